"""Rewrites of HTile programs that preserve their meaning, one per file.

    from neptune_lab.htile_passes import PASSES, run

    better = run(program)                      # all of them
    for name, rewrite in PASSES.items():       # or one by one, to record each
        done = apply(rewrite, program)         # done.program, and done.notes where the pass proves something

A pass that changes nothing returns the same object. Every module here that declares a pass (`tile_pass`) is imported;
the declaration names the pass that it follows.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

from neptune_lab.htile.nodes import Program
from neptune_lab.htile_passes.rewrite import Pass, Place, Rewrite, apply, in_order, summary


def _declared() -> Iterator[Place]:
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        module = import_module(f"{__name__}.{name}")
        for function in vars(module).values():
            if getattr(function, "__module__", None) == module.__name__:
                yield from getattr(function, "places", ())


_PLACES = tuple(_declared())

# Those that always run, in their order.
PASSES: Mapping[str, Pass] = MappingProxyType(in_order(place for place in _PLACES if not place.on_request))

# Passes that always run, and passes that run on request.
ALL_PASSES: Mapping[str, Pass] = MappingProxyType(
    {**PASSES, **{place.name: place.run for place in _PLACES if place.on_request}}
)


def run(program: Program, disable_passes: Collection[str] = ()) -> Program:
    """`program` after every pass, in the order of `PASSES`, except those named in `disable_passes`."""
    for name, rewrite in PASSES.items():
        if name not in disable_passes:
            program = apply(rewrite, program).program
    return program


__all__ = ["ALL_PASSES", "PASSES", "Pass", "Rewrite", "apply", "run", "summary"]
