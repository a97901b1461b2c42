"""What a pass hands back: a program alone, or a program with notes on why it may be written so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from neptune_lab.htile.nodes import Program


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
