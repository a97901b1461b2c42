"""Gluon kernels of tiles whose columns are no power of two: the tiles get more columns, which hold zeros."""

from __future__ import annotations

import by_name
import numpy as np
import pytest
import torch
from by_turns import in_turn
from gluon.test_numbers import simulate
from layouts import LAYOUTS, transposed

import neptune_lab as nl
from neptune_lab.errors import EmitError
from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile_to_gluon.widths import widened
from neptune_lab.operators import attention
from neptune_lab.tensor_spec import dense_strides

OPERATORS = {
    "80": lambda: attention.causal(2, 2, 256, 80),
    "80, rows that tiles do not divide": lambda: attention.causal(2, 2, 301, 80),
    "96": lambda: attention.full(1, 2, 301, 96),
    "40": lambda: attention.alibi(1, 2, 256, 40),
    "values of 80": lambda: attention.causal(1, 2, 256, 64, v_head_dim=80),
    "keys of 192": lambda: attention.causal(1, 2, 301, 192, v_head_dim=128),
    "192": lambda: attention.causal(1, 1, 256, 192),
    "gqa": lambda: attention.gqa(batch=2, heads=4, kv_heads=2, seq=301, head_dim=80),
    "softcap": lambda: attention.softcap(batch=1, heads=2, kv_heads=1, seq=256, head_dim=80),
    "lse": lambda: attention.causal(1, 2, 256, 96, return_lse=True),
}


@pytest.mark.one_in(18)
@pytest.mark.parametrize(("name", "persistent"), in_turn(OPERATORS, [False, True], every=2))
def test_widths(name: str, persistent: bool):
    assert simulate(OPERATORS[name](), persistent=persistent) < 2e-3


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_widened_program_computes_the_same(name: str):
    operator = OPERATORS[name]()
    program = by_name.compile(operator, block_q=128, block_kv=64, validate="none").htile
    made, kernel = widened(program, program.kernels[0])
    assert made != program
    assert kernel in made.kernels
    inputs = operator.random_inputs(0)
    before, after = (interpret(p, inputs, dtype="float64") for p in (program, made))
    for output in program.outputs:
        np.testing.assert_allclose(after[output], before[output], rtol=1e-12, atol=1e-14)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str):
    """The columns past a head's last one are those of the next head, of a gap, or of another part of a projection."""
    operator = attention.gqa(batch=2, heads=4, kv_heads=2, seq=256, head_dim=80)
    drawn = [LAYOUTS[layout](torch.from_numpy(array)) for array in operator.random_inputs(0).values()]
    strides = {name: t.stride() for name, t in zip("qkv", drawn, strict=True)}
    strided = operator.with_strides(**strides, out=dense_strides(drawn[0].shape, drawn[0].stride()))
    kernel = by_name.compile(strided, "rolling_update", code="gluon", block_q=128, block_kv=64)
    out = Simulator(kernel.source, 5)(kernel.triton.entry, *drawn)
    wanted = operator.reference(*(t.numpy() for t in drawn))
    assert np.linalg.norm(out.double().numpy() - wanted) / np.linalg.norm(wanted) < 2e-3


@pytest.mark.nightly
def test_columns_past_the_end_are_not_of_the_next_head():
    operator = attention.causal(1, 2, 256, 80)
    q, k, v = (transposed(torch.from_numpy(array)) for array in operator.random_inputs(0).values())
    k[:, 1], v[:, 1] = float("nan"), float("nan")
    strides = {name: t.stride() for name, t in (("q", q), ("k", k), ("v", v))}
    strided = operator.with_strides(**strides, out=dense_strides(q.shape, q.stride()))
    kernel = by_name.compile(strided, "rolling_update", code="gluon", block_q=128, block_kv=64)
    out = Simulator(kernel.source, 5)(kernel.triton.entry, q, k, v)
    wanted = operator.reference(*(t.numpy() for t in (q, k, v)))
    assert np.isnan(out[:, 1].numpy()).all()
    assert np.linalg.norm(out[:, 0].double().numpy() - wanted[:, 0]) < 2e-3 * np.linalg.norm(wanted[:, 0])


def _largest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = torch.softmax(q @ k.mT / 8, dim=-1) @ v
    return y - y.amax(dim=-1, keepdim=True)


def _first_columns(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q[..., :48] @ k[..., :48].mT / 8, dim=-1) @ v


@pytest.mark.nightly
@pytest.mark.parametrize("function", [_largest, _first_columns])
def test_columns_that_hold_no_zeros_are_not_added(function):
    """Zeros would be the largest of negative elements; and behind the first 48 columns are others of the tensor."""
    half = torch.ones(1, 2, 256, 80, dtype=torch.float16)
    operator = nl.from_torch(function, half, half, half)
    program = by_name.compile(operator, "rolling_update", block_q=128, block_kv=64, validate="none").htile
    for kernel in program.kernels:
        made, _ = widened(program, kernel)
        assert made == program
    with pytest.raises(EmitError, match="expected powers of two"):
        by_name.compile(operator, "rolling_update", code="gluon", block_q=128, block_kv=64)
