"""torch's pass over a graph is left out at further sizes only where it changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._export import utils as export_utils

from neptune_lab.errors import DefinitionError
from neptune_lab.torch_to_stages import composite, graph
from neptune_lab.torch_to_stages.operator import decomposition

HELD = torch.linspace(0.5, 1.5, 16)


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def norms(q, k, v):
    return F.layer_norm(q, (16,)) + F.gelu(k) * F.rms_norm(v, (16,))


def in_place(q, k, v):
    score = q @ k.transpose(-1, -2)
    score.mul_(2.0)
    return score @ v


def through_a_view(q, k, v):
    made = q + 1
    made[..., 0] = 0
    return made * k * v


def alias(q, k, v):
    return q @ k.mT @ v


def held(q, k, v):
    return q * HELD + k * v


def by_size(q, k, v):
    return q.sum(-1) * k.sum(-1) if q.shape[-2] > 50 else (q + 1).mul_(2.0).sum(-1) * k.sum(-1)


SETTLED = {attention: 1, sdpa: 1, norms: 1, in_place: 0, through_a_view: 0, alias: 0}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("function", [*SETTLED, held, by_size], ids=lambda f: getattr(f, "__name__", ""))
def test_the_graph_is_that_of_the_whole_pass(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    settled: set[Any] = set()
    passes: list[int] = []
    whole = torch.export.ExportedProgram.run_decompositions

    def counted(program: Any, *args: Any) -> Any:
        passes.append(1)
        return whole(program, *args)

    graph.trace(function, tuple(torch.randn(3, 1, 2, 64, 16)), decomposition, settled)
    if function in SETTLED:
        assert len(settled) == SETTLED[function]
    other = tuple(torch.randn(3, 1, 2, 40, 16))
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    short = graph.trace(function, other, decomposition, settled)
    if function in SETTLED:
        assert bool(passes) == (not settled)
    full = graph.trace(function, other, decomposition)
    assert str(short.module.graph) == str(full.module.graph)
    assert (short.placeholders, short.names, [*short.held]) == (full.placeholders, full.names, [*full.held])
    for one, two in zip(short.module.graph.nodes, full.module.graph.nodes, strict=True):
        assert getattr(one.meta.get("val"), "shape", None) == getattr(two.meta.get("val"), "shape", None)
        assert str(one.meta.get("stack_trace")) == str(two.meta.get("stack_trace"))


def test_composite_operations_are_looked_up_once_and_torch_keeps_its_own_lookup(monkeypatch: pytest.MonkeyPatch):
    looked_up, own = [], export_utils._materialize_cpp_cia_ops
    monkeypatch.setattr(composite, "_LOOK_UP", lambda: looked_up.append(own()))
    graph.trace(lambda x: F.silu(x).sum(-1), (torch.ones(2, 3),), decomposition)
    assert looked_up == [None]
    assert export_utils._materialize_cpp_cia_ops is composite._LOOK_UP
    monkeypatch.undo()
    with pytest.raises(DefinitionError):
        graph.trace(lambda x: x + x.new_zeros(int(x.sum())), (torch.ones(2, 3),), decomposition)
    assert export_utils._materialize_cpp_cia_ops is own


def test_operations_that_stay_are_set_as_torch_sets_them_and_given_back():
    graph.trace(lambda x: F.silu(x).sum(-1), (torch.ones(2, 3),), decomposition)
    operations = dict.fromkeys(composite._known, composite._STAYS)
    assert torch.ops.aten.linear.default in operations

    def kernels():
        return {op: (dict(op.py_kernels), op in composite._RULES) for op in operations}

    def names(set_kernels: Any):
        # (torch makes some of them anew each time)
        with set_kernels(operations):
            inside = kernels()
        return {
            op: ({k: getattr(f, "__qualname__", type(f)) for k, f in own.items()}, rule)
            for op, (own, rule) in inside.items()
        }

    before = kernels()
    assert names(composite._set_as_before) == names(composite._SET)
    assert kernels() == before
    with pytest.raises(ZeroDivisionError), composite._set_as_before(operations):
        1 / 0
    assert kernels() == before
    op = torch.ops.aten.linear.default
    op.py_impl(torch._C.DispatchKey.CPU)(len)  # by somebody else: what was known is not for it
    try:
        with composite._set_as_before({op: composite._STAYS}):
            assert op.py_kernels[torch._C.DispatchKey.CPU] is len
        assert op.py_kernels[torch._C.DispatchKey.CPU] is len
    finally:
        del op.py_kernels[torch._C.DispatchKey.CPU]
        op._dispatch_cache.clear()
