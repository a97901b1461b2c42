"""What is sent to a measuring process, and what one candidate's measurement gives there."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys

import fake_runner
import numpy as np
import pytest
import torch
from by_name import choice

from neptune_lab.errors import MeasureError
from neptune_lab.operators import attention, custom, find, gemm_chain
from neptune_lab.pipeline import compile_choice
from neptune_lab.records import workload_key
from neptune_lab.runtime import KernelSpec, Resources
from neptune_lab.runtime.measurement import Measurement, MeasurementLimits, measure, remeasure
from neptune_lab.runtime.task import Draw, Task
from neptune_lab.target import Target
from neptune_lab.tuning.measuring import emit, portable, starts_cold, task_of

TABLE = np.arange(8, dtype=np.float32)


def test_large_inputs_are_described_and_not_made():
    task = task_of(attention.causal(heads=32, seq=1 << 20, head_dim=128))  # 8 GB an input
    assert task.draws == dict.fromkeys("qkv", Draw("normal"))
    assert task.values == {}
    assert [str(t.dtype) for t in task.inputs] == ["float16"] * 3
    assert task.outputs[0].shape == (1, 32, 1 << 20, 128)


def test_labels_are_drawn_in_their_range():
    task = task_of(find("rows.cross_entropy")(rows=64, cols=5))
    assert task.draws == {"logits": Draw("normal"), "labels": Draw("integers", 0, 5)}
    logits, labels = task.make_inputs("cpu")
    assert (logits.dtype, labels.dtype) == (torch.float32, torch.int32)
    assert set(labels.tolist()) == {0, 1, 2, 3, 4}


def test_captured_tensors_travel_with_their_values():
    op = attention.general(1, 1, 8, 8, 4, score_mod=lambda score, b, h, q, kv: score + TABLE[kv])
    task = task_of(op)
    (name,) = op.captured
    np.testing.assert_array_equal(task.make_inputs("cpu")[3].numpy(), TABLE)
    assert (set(task.draws), set(task.values)) == ({"q", "k", "v"}, {name})


@pytest.mark.parametrize(
    "draw",
    [lambda rng: [rng.standard_normal((4, 8)) * 3], lambda rng: [rng.uniform(1, 2, (4, 8))]],
    ids=["scaled", "another distribution"],
)
def test_inputs_drawn_in_a_way_of_their_own_travel_too(draw):
    from tvm import te

    x = te.placeholder((4, 8), "float32", name="x")
    y = te.compute((4, 8), lambda i, j: x[i, j] + 1.0, name="y")
    op = custom("add_one", [x], [y], draw=draw)
    task = task_of(op, seed=3)
    assert task.draws == {}
    np.testing.assert_array_equal(task.make_inputs("cpu")[0].numpy(), op.random_inputs(3)["x"])


def test_inputs_are_the_same_for_the_same_seed(small):
    one, same, other = (task_of(small, seed=s).make_inputs("cpu")[0] for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_only_decoding_starts_cold(small):
    assert starts_cold(attention.full(heads=2, q_len=1, kv_len=64, head_dim=16))
    assert not starts_cold(small)
    assert not starts_cold(gemm_chain.gemm_chain())
    assert task_of(small, cold=True).cold


def test_a_task_as_json(small):
    task = task_of(small, seed=7)
    again = Task.from_json(json.loads(json.dumps(task.to_json())), {})
    assert (again.key, again.seed, again.cold, again.draws) == (workload_key(small), 7, False, task.draws)
    assert again.inputs == task.inputs


def test_a_portable_operator_is_pickled_and_compiles_to_the_same(small, with_warps):
    sent = pickle.loads(pickle.dumps(portable(small)))
    spec = emit(sent, with_warps(4), Target("h200"))
    assert isinstance(spec, KernelSpec)
    assert spec == compile_choice(small, with_warps(4)).spec
    with pytest.raises(MeasureError, match="to be compiled only"):
        sent.random_inputs()


def test_a_refused_candidate_says_why(small):
    assert "block_q=(16, 16)" in emit(small, choice("rolling_update", block_q=(16, 16)))


# -- errors ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows():
    return task_of(find("rows.softmax")(rows=2, cols=4))


def test_distance_is_relative(rows):
    want = torch.tensor([[3.0, 4.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    assert rows.error(want.float(), [want]) == 0
    assert rows.error(want * 1.01, [want]) == pytest.approx(0.01)


@pytest.mark.parametrize(("at", "value"), [(0, float("nan")), (0, float("inf")), (1, 0.0), (2, float("inf"))])
def test_nan_and_infinity_stand_where_they_should(rows, at, value):
    want = torch.tensor([[1.0, float("nan"), float("-inf"), 2.0]] * 2, dtype=torch.float64)
    assert rows.error(want.clone(), [want]) == 0
    got = want.clone()
    got[1, at] = value
    assert rows.error(got, [want]) == float("inf")


def test_an_output_of_another_shape_or_number_is_wrong(rows):
    want = torch.zeros(2, 4, dtype=torch.float64)
    assert rows.error(want[:1], [want]) == float("inf")
    assert rows.error((want, want), [want]) == float("inf")


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("rows.softmax", "float16", 2e-3),
        ("rows.softmax", "bfloat16", 1.6e-2),
        ("norms.rms_norm_quantize", "float16", 2e-2),
    ],
)
def test_tolerance_follows_the_dtypes(name, dtype, tolerance):
    assert task_of(find(name)(rows=2, cols=4, dtype=dtype)).tolerance == tolerance


# -- trials ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spec(small, with_warps):
    return compile_choice(small, with_warps(fake_runner.FAST)).spec


def changed(spec, old, new):
    assert old in spec.text
    return KernelSpec(spec.name, spec.entry, spec.text.replace(old, new), spec.inputs, spec.outputs)


def test_a_right_kernel_is_timed(small, spec):
    samples = iter(range(1, 100))
    found = measure(
        task_of(small),
        spec,
        MeasurementLimits(samples=5),
        lambda run, cold: lambda n: [next(samples) for _ in range(n)],
    )
    assert (found.us, found.low, found.high, found.failure) == (3, 1.4, 4.6, None)
    assert 0 < found.error < 1e-3
    assert Measurement.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("tl.maximum", "tl.minimum", "wrong: (relative error|NaN)"),
        ("0.0, tl.float32", 'float("nan"), tl.float32', "wrong: NaN or infinity"),
    ],
)
def test_wrong_numbers_do_not_count(small, spec, old, new, said):
    def never(run, cold):
        raise AssertionError("a wrong kernel was timed")

    found = measure(task_of(small), changed(spec, old, new), clock=never)
    assert found.us is None
    assert re.match(said, found.failure)


def test_a_kernel_that_spills_is_dropped_before_it_is_timed(small, spec, monkeypatch):
    taken = (Resources("k", 255, 8, 0, 4), Resources("combine", 255, 180, 0, 4))
    monkeypatch.setattr("neptune_lab.runtime.measurement.resources", lambda module: taken)
    clock = fake_runner.clock(10.0)
    assert measure(task_of(small), spec, clock=clock).failure == "spills 180 registers per thread"
    assert measure(task_of(small), spec, MeasurementLimits(spills=180), clock).us == 10.0


def test_a_kernel_that_does_not_fit_the_gpu_is_a_failure(small, spec, monkeypatch):
    from triton.runtime.errors import OutOfResources

    from neptune_lab.runtime import LoadedKernel

    def launch(self, tensors):
        raise OutOfResources(300_000, 232_448, "shared memory")

    for way in ("_interpret", "_launch"):
        monkeypatch.setattr(LoadedKernel, way, launch)
    assert "needs 300000 of shared memory; this GPU has 232448" in measure(task_of(small), spec).failure


def test_the_best_are_timed_in_turns(small, spec):
    turns = []

    def clock(run, cold):
        number = len(turns)
        turns.append([])
        return lambda n: turns[number].append(sum(map(len, turns))) or [10.0 + number] * n

    found = remeasure(task_of(small), [spec, spec], rounds=3, clock=clock)
    assert [m.us for m in found] == [10.0, 11.0]
    assert turns == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(("us", "taken"), [(10.0, 30), (20_000.0, 10), (150_000.0, 3)])
def test_slow_kernels_are_sampled_less(small, spec, us, taken):
    counts = []
    found = measure(task_of(small), spec, clock=lambda run, cold: lambda n: counts.append(n) or [us] * n)
    assert (found.us, sum(counts)) == (us, taken)


def test_inputs_and_reference_are_made_once_a_workload(small, spec, monkeypatch):
    made = []
    reference = Task.make_reference
    monkeypatch.setattr(Task, "make_reference", lambda self, inputs: made.append(self.key) or reference(self, inputs))
    for seed in (11, 11, 12):
        measure(task_of(small, seed=seed), spec, clock=fake_runner.clock(1.0))
    assert len(made) == 2


_OFFLINE = """
import pickle, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from neptune_lab.runtime import device, measurement

class Hopper:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda index: 0)

driver.set_active(Hopper())
for module in (measurement, device, sys.modules["neptune_lab.runtime.load"]):
    module.interpreting = lambda: False
spec = pickle.loads(bytes.fromhex(sys.argv[1]))
print(measurement.compile_ahead(spec))
print([r.shared for r in measurement.resources(sys.modules["neptune_lab.runtime.load"].load(spec).module)])
broken = type(spec)(spec.name, spec.entry, spec.text.replace("tl.dot(", "tl.dots("), spec.inputs, spec.outputs)
print(measurement.compile_ahead(broken))
"""


@pytest.mark.nightly
def test_compiling_ahead_needs_no_memory_and_no_launch(small, spec, tmp_path):
    """With a driver that says "Hopper" and can do nothing else: a launch would fail."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "NEPTUNE_LAB_CACHE": str(tmp_path)}
    call = [sys.executable, "-c", _OFFLINE, pickle.dumps(spec).hex()]
    done = subprocess.run(call, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    said, shared, broken = done.stdout.splitlines()
    assert said == "None"
    assert all(n > 0 for n in json.loads(shared))
    assert "dots" in broken


def test_a_measurement_is_plain_json_that_is_read_back():
    made = Measurement(5.0, 4.0, 6.0, 1e-3, (Resources("k", 32, 0, 1024, 4),))
    plain = made.to_json()
    assert plain["resources"] == [{"kernel": "k", "registers": 32, "spills": 0, "shared": 1024, "warps": 4}]
    assert Measurement.from_json(plain) == made
