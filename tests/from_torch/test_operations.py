"""Each ATen operation that has a lowering, against torch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from from_torch.cases import CASES, Case
from torch.utils import _pytree as pytree

import neptune_lab as nl
from neptune_lab.from_torch.decompositions import decomposition
from neptune_lab.from_torch.graph import trace
from neptune_lab.from_torch.lowering import lowering_of, taken_operations
from neptune_lab.loop_ir.run import run_wide


def wide(tree):
    """Every float of a tree of tensors in float64."""
    return pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, tree)


def agrees(got: np.ndarray, wanted: torch.Tensor) -> bool:
    """Equal up to float64 rounding, NaN and infinities included."""
    return got.shape == tuple(wanted.shape) and np.allclose(
        got.astype(np.float64), wanted.double().numpy(), rtol=1e-6, atol=1e-7, equal_nan=True
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.texts[0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_definition_is_the_function(case: Case, seed: int):
    function, inputs = case.function(), case.inputs(seed)
    operator = nl.from_torch(function, *inputs)
    arrays = dict(zip(case.names, (t.numpy() for t in inputs), strict=True))
    found = run_wide(operator.program, arrays | dict(operator.captured))
    reference = operator.reference(*arrays.values())
    references = iter(reference if isinstance(reference, tuple) else (reference,))
    outputs = iter(operator.outputs)
    for text, wanted, eager in zip(case.texts, function(*wide(inputs)), function(*inputs), strict=True):
        for want, plain in zip(pytree.tree_leaves(wanted), pytree.tree_leaves(eager), strict=True):
            spec = next(outputs)
            assert spec.dtype == str(plain.dtype).removeprefix("torch."), text
            assert agrees(next(references), want), text
            assert agrees(found[spec.name], want), text


def test_every_lowering_has_a_case():
    reached = set()
    for case in CASES:
        graph = trace(case.function(), case.inputs(0), decomposition)
        for node in graph.module.graph.nodes:
            if node.op == "call_function" and hasattr(node.target, "_opname"):
                reached |= {node.target._opname, f"{node.target._opname}.{node.target._overloadname}"}
    # dropout is in a graph in training alone, where it is refused.
    assert {name for name in taken_operations() if name not in reached} == {"dropout"}
    assert lowering_of("no_such_operation.default") is None
