"""Which form long rows have, by their number and length, and that each form is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.choice import Choice, Given
from neptune_lab.operators import Operator, norms, rows
from neptune_lab.pipeline import tuned
from neptune_lab.pipeline.compile import compile_choice, compile_chosen
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.row_forms import form_of_rows
from neptune_lab.target import Target

H200 = Target("h200")
LANES, SHARED, HELD, TILES = "each lane reduces", "programs share each row", "holds each row", "reads each row in tiles"
OPERATORS = {
    "l2_norm": norms.l2_norm,
    "rms_norm_max": norms.rms_norm_max,
    "layer_norm": norms.layer_norm,
    "softmax": rows.softmax,
    "log_sum_exp": rows.log_sum_exp,
}


def of(name: str, count: int, width: int, dtype: str = "float16") -> Operator:
    return OPERATORS[name](rows=count, cols=width, dtype=dtype)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "count", "width", "form"),
    [
        ("l2_norm", 100, 33001, HELD),
        ("l2_norm", 100, 200000, TILES),
        ("l2_norm", 200, 33001, None),
        ("l2_norm", 100, 20000, None),
        ("rms_norm_max", 100, 45000, HELD),
        ("rms_norm_max", 100, 80000, None),  # whose tiles wait twice
        ("rms_norm_max", 131, 200000, TILES),
        ("layer_norm", 33, 45000, SHARED),
        ("layer_norm", 100, 45000, HELD),
        ("layer_norm", 200, 45000, SHARED),
        ("layer_norm", 200, 33001, HELD),
        ("layer_norm", 396, 33001, None),
        ("layer_norm", 500, 45000, None),
        ("softmax", 100, 57000, HELD),
        ("softmax", 60, 80000, None),
        ("softmax", 100, 80000, SHARED),
        ("softmax", 60, 200000, SHARED),
        ("softmax", 300, 45000, SHARED),
        ("log_sum_exp", 300, 20000, LANES),
        ("log_sum_exp", 33, 80000, None),
        ("log_sum_exp", 131, 200000, LANES),
    ],
)
def test_few_long_rows_have_a_form_of_their_own(name: str, count: int, width: int, form: str | None):
    choice, kernel = compile_chosen(of(name, count, width), H200, measured=False)
    forms = [known for known in (LANES, SHARED, HELD, TILES) if known in kernel.chosen]
    assert forms == ([] if form is None else [form])
    assert form is None or choice is not None


def test_a_form_is_tried_before_splits_that_the_model_prefers(monkeypatch: pytest.MonkeyPatch):
    op = of("l2_norm", 100, 200000)
    assert tuned.untuned_choice(op, H200) == Choice.of(
        "rolling_update", {"block_q": 1, "block_kv": 16384, "num_warps": 16}, "the test"
    )
    monkeypatch.setattr(tuned, "form_of_rows", lambda *of, **named: None)
    made = tuned.untuned_choice(op, H200)
    assert made is not None
    assert made.template == "split_k_update"


def test_other_rows_have_none():
    """Of 32 bits, on a GPU that was not measured, and where the caller gives something else."""

    def none(choice: Choice) -> Kernel:
        raise AssertionError(f"compiles {choice}")

    assert form_of_rows(of("layer_norm", 100, 45000, "float32"), none, H200) is None
    assert form_of_rows(of("layer_norm", 100, 45000), none, Target("a100")) is None
    for given in (
        Given(template="split_k_update"),
        Given(options=(("block_kv", 4096),)),
        Given(options=(("num_warps", 4),)),
    ):
        assert form_of_rows(of("layer_norm", 100, 45000), none, H200, given) is None, given
    x, v = torch.zeros(100, 45000, dtype=torch.float16), torch.zeros(45000, dtype=torch.float16)
    for function, inputs in (
        (lambda x, v: x @ v, (x, v)),
        (lambda x: x.argmax(1), (x,)),
        (lambda x: x.sum(1), (x.short(),)),
        (lambda x, t: x.softmax(1) + t.sum(), (x, torch.zeros(2, 3, 4, dtype=torch.float16))),
    ):
        assert form_of_rows(nl.from_torch(function, *inputs), none, H200) is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "count", "width", "form"),
    [
        ("l2_norm", 2, 20497, HELD),
        ("rms_norm_max", 2, 20496, HELD),
        ("layer_norm", 2, 32771, HELD),
        ("softmax", 2, 20483, HELD),
        ("l2_norm", 2, 57345, TILES),
        ("log_sum_exp", 2, 16387, LANES),
    ],
)
def test_forms_are_right(name: str, count: int, width: int, form: str):
    """On a GPU of three multiprocessors, as two rows are few."""
    gpu, op = replace(H200, sm_count=3), of(name, count, width)
    kernel = form_of_rows(op, lambda choice: compile_choice(op, choice, target=gpu, validate="none"), gpu)
    assert kernel is not None
    assert form in kernel.chosen
    inputs = op.random_inputs(0)
    made = kernel(*(torch.from_numpy(array) for array in inputs.values())).double().numpy()
    wanted = op.reference(*inputs.values())
    assert np.linalg.norm(made - wanted) <= 2e-3 * np.linalg.norm(wanted)
