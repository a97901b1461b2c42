"""Gluon kernels of fewer rows than two consumers have: the tiles get more rows, which are not stored."""

from __future__ import annotations

import by_name
import numpy as np
import pytest
import torch
from by_turns import in_turn
from gluon.test_numbers import simulate
from layouts import transposed

from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile_to_gluon.heights import heightened
from neptune_lab.operators import attention
from neptune_lab.tensor_spec import dense_strides

DOCUMENTS = np.repeat(np.arange(4, dtype=np.int32), 50)[None]
OPERATORS = {
    "100": lambda: attention.causal(1, 2, q_len=100, kv_len=170, head_dim=64),
    "one consumer": lambda: attention.full(2, 2, q_len=40, kv_len=170, head_dim=64),
    "three consumers": lambda: attention.causal(1, 2, q_len=140, kv_len=170, head_dim=64),
    "as many as columns": lambda: attention.causal(1, 2, q_len=70, kv_len=170, head_dim=80),
    "alibi": lambda: attention.alibi(1, 4, q_len=90, kv_len=201, head_dim=64),
    "gqa": lambda: attention.gqa(2, 4, kv_heads=2, q_len=101, kv_len=190, head_dim=96),
    "documents": lambda: attention.general(
        1, 2, 100, 200, 64, mask_mod=lambda b, h, q, kv: DOCUMENTS[0][q + 100] == DOCUMENTS[0][kv]
    ),
    "lse": lambda: attention.causal(1, 2, q_len=100, kv_len=170, head_dim=64, return_lse=True),
}


def block_q(name: str) -> int:
    return 192 if name == "three consumers" else 128


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("name", "persistent"), in_turn(OPERATORS, [False, True], every=2))
def test_heights(name: str, persistent: bool):
    assert simulate(OPERATORS[name](), persistent=persistent, block_q=block_q(name)) < 2e-3


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "documents"])  # (whose bounds have a kernel)
def test_a_heightened_program_computes_the_same(name: str):
    operator = OPERATORS[name]()
    program = by_name.compile(operator, block_q=block_q(name), block_kv=64, validate="none").htile
    made, kernel = heightened(program, program.kernels[0])
    assert made != program
    assert kernel in made.kernels
    inputs = operator.random_inputs(0)
    before, after = (interpret(p, inputs, dtype="float64") for p in (program, made))
    for output in program.outputs:
        np.testing.assert_allclose(after[output], before[output], rtol=1e-12, atol=1e-14)


def test_rows_past_the_end_are_not_those_of_the_next_head():
    """The heads of a transposed view follow each other in memory, and each has 90 rows."""
    operator = attention.causal(1, 2, q_len=90, kv_len=170, head_dim=64)
    q, k, v = (transposed(torch.from_numpy(array)) for array in operator.random_inputs(0).values())
    strides = {name: t.stride() for name, t in (("q", q), ("k", k), ("v", v))}
    strided = operator.with_strides(**strides, out=dense_strides(q.shape, q.stride()))
    kernel = by_name.compile(strided, "rolling_update", code="gluon", block_q=128, block_kv=64)
    out = Simulator(kernel.source, 5)(kernel.triton.entry, q, k, v)
    wanted = operator.reference(*(t.numpy() for t in (q, k, v)))
    assert np.linalg.norm(out.double().numpy() - wanted) < 2e-3 * np.linalg.norm(wanted)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("queries", "width", "rows"),
    [
        pytest.param(96, 96, 96, id="as many columns"),
        pytest.param(128, 64, 128, id="whole consumers"),
        pytest.param(200, 64, 100, id="two blocks, the second of which has the new rows of the first"),
    ],
)
def test_other_rows_stay(queries: int, width: int, rows: int):
    operator = attention.causal(1, 2, q_len=queries, kv_len=300, head_dim=width)
    program = by_name.compile(operator, block_q=rows, block_kv=64, validate="none").htile
    assert heightened(program, program.kernels[0]) == (program, program.kernels[0])
