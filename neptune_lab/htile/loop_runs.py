"""Whether a loop of tiles has an iteration in every program."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.affine import affine, is_nonnegative
from neptune_lab.htile.bounds import Env
from neptune_lab.htile.walk import evaluate, names_of_index

MOST_PROGRAMS = 16384  # the loop bounds of at most so many programs are computed one by one


def always_runs(loop: ir.For, env: Env) -> bool:
    """Whether a loop has a tile in every program: by proof, or by trying all values that its bounds depend on.

    Args:
        env: the intervals of the grid's variables; of a loop whose bounds depend on others, nothing is said.
    """
    if not _names((loop,)) <= set(env):
        return False
    if is_nonnegative(affine(loop.stop) - affine(loop.start) + -1, env):
        return True
    points = bound_points((loop,), env)
    return points is not None and all(evaluate(loop.start, at) < evaluate(loop.stop, at) for at in points)


def bound_points(loops: tuple[ir.For, ...], env: Env) -> Iterator[dict[str, int]] | None:
    """All values of the variables that the bounds of `loops` depend on; None if there are too many."""
    names = sorted(_names(loops))
    if any(name not in env for name in names):
        return None
    ranges = [range(env[name].lo, env[name].hi + 1) for name in names]
    if math.prod(map(len, ranges)) > MOST_PROGRAMS:
        return None
    return (dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*ranges))


def _names(loops: tuple[ir.For, ...]) -> set[str]:
    return {n for loop in loops for n in names_of_index(loop.start) | names_of_index(loop.stop)}


__all__ = ["MOST_PROGRAMS", "always_runs", "bound_points"]
