"""Bugs to plant, and a definition of two dependent reductions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import te

from neptune_lab import htile_to_triton
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Load
from neptune_lab.loop_ir.roles import Role
from neptune_lab.operators import Operator, custom


def softmax_sum(n: int = 3, m: int = 10) -> Operator:
    x, y = (te.placeholder((n, m), "float32", name=name) for name in "xy")
    j = te.reduce_axis((0, m), name="j")
    r = te.compute((n,), lambda i: te.max(x[i, j], axis=j), name="r")
    o = te.compute((n,), lambda i: te.sum(te.exp(x[i, j] - r[i]) * y[i, j], axis=j), name="o")
    return custom("weighted", [x, y], [o])


def planted(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """The Triton emitter writes `new` for `old`."""
    emit = htile_to_triton.emit

    def wrong(*args, **kwargs):
        source = emit(*args, **kwargs)
        assert old in source.text
        return replace(source, text=source.text.replace(old, new))

    monkeypatch.setattr(htile_to_triton, "emit", wrong)


def stale(program):
    """The value of the tag before is never brought up to date."""

    def change(block):
        if block.role is not Role.RETIRE:
            return block
        return replace(block, body=replace(block.body, value=Load(block.writes, block.body.indices)))

    return tree.map_blocks(program, change)
