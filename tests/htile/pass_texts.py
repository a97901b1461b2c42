"""Tests of passes as text in, text out: the declarations once per module, then the kernels before and after.

    assert after(drop_dead_tiles, DECLARED, '''
    kernel p  grid ()
        t[0:4] = x[0:4]
        y[0:4] = x[0:4]
    ''') == '''
    - chip t float32[i: 4]
    kernel p  grid ()
        y[0:4] = x[0:4]
    '''

A statement has its usual node id and origin unless a label says another (docs/concepts/tiles.md).
"""

from __future__ import annotations

from textwrap import dedent

from neptune_lab.htile import from_text, to_text, verify
from neptune_lab.htile.nodes import Program, Tensor
from neptune_lab.htile_passes import Pass, apply


def read(declared: str, kernels: str) -> Program:
    """A verified program of declarations and kernels."""
    program = from_text(f"{dedent(declared)}\n{dedent(kernels)}")
    verify(program)
    return program


def after(rewrite: Pass, declared: str, kernels: str) -> str:
    """What a pass makes of a program: declarations that it adds (+) and removes (-), then the kernels; or "unchanged"
    for the same object.  The program is verified before and after."""
    before = read(declared, kernels)
    found = apply(rewrite, before).program
    if found is before:
        return "unchanged"
    verify(found)
    assert (found.name, found.inputs, found.outputs) == (before.name, before.inputs, before.outputs)
    assert _common(found, before) == _common(before, found), "the declarations that stay keep their order"
    _, _, text = to_text(found).partition("\n\n")
    return f"\n{_declared('-', before, found)}{_declared('+', found, before)}{text}"


def _common(one: Program, other: Program) -> list[Tensor]:
    return [tensor for tensor in one.tensors if tensor in other.tensors]


def _declared(sign: str, one: Program, other: Program) -> str:
    """The declarations of `one` that `other` lacks."""
    lines = to_text(one).splitlines()[1:]
    missing = [line for line, tensor in zip(lines, one.tensors, strict=False) if tensor not in other.tensors]
    return "".join(f"{sign} {' '.join(line.split())}\n" for line in missing)
