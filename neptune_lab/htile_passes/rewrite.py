"""What a pass hands back: a program alone, or a program with notes on why it may be written so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from neptune_lab.htile.nodes import Program, TileExpr
from neptune_lab.htile.walk import map_stores, rewrite_store


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A pass's result: the program (the same object where nothing changed) and its proof, a sentence a line."""

    program: Program
    notes: tuple[str, ...] = ()


Pass: TypeAlias = Callable[[Program], Program | Rewrite]


def apply(rewrite: Pass, program: Program) -> Rewrite:
    """`rewrite(program)`, with no notes where the pass gives none."""
    result = rewrite(program)
    return result if isinstance(result, Rewrite) else Rewrite(result)


def summary(rewrite: Pass) -> str:
    """What a pass does, in one line: the first of its module's docstring."""
    return (sys.modules[rewrite.__module__].__doc__ or "").partition("\n")[0]


def rewrite_expressions(program: Program, visit: Callable[[TileExpr], TileExpr]) -> Program:
    """`program` with `visit` applied to every expression of every store; the same object where nothing changed."""
    kernels = tuple(
        k if (body := map_stores(k.body, lambda s: rewrite_store(s, visit))) is k.body else replace(k, body=body)
        for k in program.kernels
    )
    unchanged = all(a is b for a, b in zip(kernels, program.kernels, strict=True))
    return program if unchanged else replace(program, kernels=kernels)
