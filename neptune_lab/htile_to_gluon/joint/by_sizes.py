"""Two nests that are one kernel at all sizes that are known at the launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.sizes import Sample, at
from neptune_lab.htile.walk import loops_in
from neptune_lab.htile_to_gluon.joint.form import KEYS
from neptune_lab.htile_to_gluon.joint.match import Joint, joint_of, joint_with
from neptune_lab.htile_to_gluon.joint.terms import SQUARE
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel

# The most row blocks of a size that is tried.
MOST_BLOCKS = 48
# More row blocks than those that a number in the bounds of a loop spans.
FURTHER = 5


def joint_by_sizes(program: ir.Program) -> Joint:
    """The two nests of a program, which may have sizes that are known at the launch.

    Formal statement: at each size they are one kernel if they are at that number (`joint_of`), with the same answers.
    The bounds of loops are linear in the numbers of tiles between the corners of minima and maxima, which are at
    numbers of the program's own.  So sizes are tried up to twice the largest such number and some row blocks more, with
    tiles that are whole, that have one row, and that lack one.

    Raises:
        UnsupportedKernel: there are no two of this form at one of the sizes; the message says in what they differ.
    """
    if not program.sizes:
        return joint_of(program)
    found: Joint | None = None
    for sample in _samples(program):
        try:
            joint = joint_of(at(program, sample))
        except UnsupportedKernel as reason:
            said = ", ".join(f"{name} = {value}" for name, value in sample.items())
            raise UnsupportedKernel(f"at {said}, {reason.reason}", help=reason.help) from reason
        if found is not None and _answers(joint) != _answers(found):
            raise UnsupportedKernel("its nests are one kernel in another way at other sizes")
        # (at short lengths the first row block is among those of each tile, whatever the window)
        found = replace(joint, from_first=joint.from_first and (found is None or found.from_first))
    assert found is not None, "there are samples"
    return joint_with(program, found)


def _answers(joint: Joint) -> tuple[Any, ...]:
    return (
        joint.kernel.name,
        joint.other.name,
        joint.around is None,
        joint.value,
        joint.held.target,
        joint.total,
        joint.output.node_id,
        joint.row,
        joint.in_turn,
        joint.heads,
    )


def _samples(program: ir.Program) -> Iterator[Sample]:
    """The sizes that are tried: from one row block on, so that there are as many queries and keys."""
    blocks = 2 * (max(_numbers(program), default=0) // KEYS) + FURTHER
    if blocks > MOST_BLOCKS or len(program.sizes) > 2:
        raise UnsupportedKernel("its loops compare positions too far apart, or it has more than two sizes")
    ends = (0, 1, SQUARE, SQUARE + 1, KEYS - 1)
    every = [KEYS * n + end for n in range(1, blocks) for end in ends]
    if len(program.sizes) > 1:
        every = every[:: max(1, len(every) // 12)]
    for values in product(*(every for _ in program.sizes)):
        yield {size.name: value for size, value in zip(program.sizes, values, strict=True)}


def _numbers(program: ir.Program) -> Iterator[int]:
    """The numbers in the bounds of loops."""

    def inside(expr: ir.IndexExpr) -> Iterator[int]:
        match expr:
            case ir.Int(value=value):
                yield abs(value)
            case ir.Arith(a=a, b=b):
                yield from inside(a)
                yield from inside(b)
            case _:
                pass

    for kernel in program.kernels:
        for loop in loops_in(kernel.body):
            yield from inside(loop.start)
            yield from inside(loop.stop)


__all__ = ["joint_by_sizes"]
