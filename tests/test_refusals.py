"""Everything that is refused says what, why, and what would help, and leaves the schedule as it was.

Refused steps are in `refused_steps.py`, one entry per refusal: how to make it, the error's class, its message and help.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from refused_steps import CASES, Refused, figure1

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError, ScheduleError
from neptune_lab.operators import attention, softmax


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_refused(case: Refused) -> None:
    sch = case.start()
    program, steps, text = sch.program, sch.steps, str(sch)
    with pytest.raises(case.error, match=case.message) as caught:
        case.act(sch)
    assert caught.value.help is not None
    assert re.search(case.help, caught.value.help)
    assert sch.program is program
    assert sch.steps == steps
    assert str(sch) == text


def test_the_limit_on_shared_memory_refuses_nothing_that_fits() -> None:
    """196608 bytes for both operands: what an H200 ran."""
    op = attention.causal(1, 1, seq=512, head_dim=128)
    assert nl.compile(op, "rolling_update", block_q=256, block_kv=512).source


def test_rows_of_a_product_are_no_matrix_product() -> None:
    """A single query is multiplied without `tl.dot`, so its tiles need no shared memory."""
    op = attention.full(1, 1, q_len=1, kv_len=2048, head_dim=128)
    assert nl.compile(op, "rolling_update", block_kv=2048).source


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: attention.causal(seq=0), "seq=0: expected a positive integer"),
        (lambda: attention.causal(seq=True), "seq=True: expected a positive integer"),
        (lambda: attention.causal(seq=8, head_dim=2.0), "head_dim=2.0"),  # type: ignore[arg-type]
        (lambda: attention.causal(seq=8, dtype="half"), "dtype='half': expected one of float16"),
        (lambda: softmax.figure1(dtype="int8"), "dtype='int8': expected one of"),
    ],
)  # fmt: skip
def test_definitions_are_refused_with_the_argument(make: Callable[[], object], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        make()


def test_arrays_of_another_shape_are_refused() -> None:
    with pytest.raises(ScheduleError, match="no array was given for input 'inp'"):
        figure1().run()
    with pytest.raises(ScheduleError, match=r"'inp' has shape \(1, 1\), expected \(4, 8\)"):
        figure1().run(inp=np.zeros((1, 1)))


def test_a_captured_tensor_may_be_left_out_and_a_wrong_one_is_refused() -> None:
    torch = pytest.importorskip("torch")
    bias = np.arange(4, dtype=np.float32)
    op = attention.general(1, 1, 4, 4, 16, score_mod=lambda s, b, h, q, kv: s + bias[kv])
    kernel = nl.compile(op)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v, captured = (torch.as_tensor(a, device=device) for a in op.random_inputs(0).values())
    assert torch.equal(kernel(q, k, v), kernel(q, k, v, captured))
    name = op.inputs[3].name
    with pytest.raises(LaunchError, match=rf"argument {name} has shape \(3,\); expected \(4,\)"):
        kernel(q, k, v, captured[:3])
    with pytest.raises(LaunchError, match=rf"got 2 arguments; expected 4: q, k, v, {name}"):
        kernel(q, k)


@pytest.mark.parametrize(
    ("lookup", "near"),
    [
        (lambda: attention.casual, "module 'neptune_lab.operators.attention' has no attribute 'casual'.*'causal'"),
        (
            lambda: figure1().rolling_udpate,
            "a Schedule has no attribute 'rolling_udpate'; did you mean 'rolling_update'",
        ),
        (lambda: attention.__casual__, "no attribute '__casual__'$"),
        (lambda: figure1().compute_inline, "a Schedule has no attribute 'compute_inline'; did you mean 'inline'"),
        (lambda: nl.complie, "module 'neptune_lab' has no attribute 'complie'; did you mean 'compile'"),
        (lambda: nl.load, "has no attribute 'load'; did you mean 'load_trace'"),
        (lambda: nl.zzz, "has no attribute 'zzz'; it has CodeOptions, Kernel"),
        (lambda: object.__new__(nl.Kernel).sorce, "a Kernel has no attribute 'sorce'; did you mean 'source'"),
        (lambda: object.__new__(nl.Kernel).operator, "has no attribute 'schedule'"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(lookup, near: str):
    with pytest.raises(AttributeError, match=near):
        lookup()


def test_completion_lists_operators_and_no_imports():
    assert [name for name in dir(softmax) if not name.startswith("_")] == ["define_figure1", "figure1"]
    assert {"causal", "general"} <= {*dir(attention)}
    assert not {"Any", "DefinitionError", "annotations"} & {*dir(attention), *dir(nl.operators)}
