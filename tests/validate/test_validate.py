"""Translation validation: what differs from the definition is an error with a script, and what was run is recorded."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace

import by_name
import numpy as np
import pytest
import torch
from by_turns import in_turn
from planted import planted, softmax_sum, stale

import neptune_lab as nl
from neptune_lab.errors import ScheduleError, ValidationError
from neptune_lab.loop_ir import run
from neptune_lab.operators import attention, gemm_chain, norms, performer, rows
from neptune_lab.pipeline import schedule
from neptune_lab.pipeline.validate import (
    compare,
    data,
    forms,
    numpy_tiles,
    reference,
    replay,
    resize,
    sizes,
    triton_numpy,
)
from neptune_lab.runtime import call_on_arrays, load

OPERATORS = {
    "causal": (lambda: attention.causal(1, 2, 10, head_dim=4), {"block_q": 4, "block_kv": 4}),
    "split": (
        lambda: attention.causal(1, 2, 10, head_dim=4),
        {"template": "split_k_update", "block_kv": 4, "splits": 2},
    ),
    "bfloat16": (lambda: attention.softcap(1, 1, 9, head_dim=4, dtype="bfloat16"), {"block_q": 4, "block_kv": 4}),
    "groups": (lambda: attention.gqa(1, 4, 6, head_dim=4, kv_heads=2), {"block_q": 2, "block_kv": 4}),
    "no keys": (lambda: attention.causal(1, 1, q_len=8, kv_len=4, head_dim=4, return_lse=True), {"block_q": 4}),
    "rows": (lambda: rows.cross_entropy(4, 12), {"block_kv": 4}),
    "norm": (lambda: norms.layer_norm(3, 12), {"block_kv": 4}),
    "quantized": (lambda: norms.rms_norm_quantize(3, 12), {"block_kv": 4}),
    "chain": (lambda: gemm_chain.gemm_chain(1, 8, 8, 4, 4), {"block_q": 4, "block_kv": 4}),
    "performer": (lambda: performer.performer(1, 1, 8, 4, 4), {}),
}


def compiled(name: str, **more) -> nl.Kernel:
    make, options = OPERATORS[name]
    options = {**options, **more}
    return by_name.compile(make(), options.pop("template", None), **options)


@pytest.mark.one_in(18)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_numpy_form_of_triton_is_what_tritons_interpreter_gives(name: str):
    kernel = compiled(name, validate="none")
    definition = kernel.schedule.definition
    dtypes = {b.name: b.dtype for b in definition.buffers}
    for _, inputs in data.data_sets(definition, {}, 3):
        ours = triton_numpy.run(kernel.triton, inputs, dtypes, definition.inputs)
        given = [np.asarray(inputs[n], dtypes[n]) for n in definition.inputs]
        theirs = call_on_arrays(load(kernel.spec), given)
        for a, b in zip(ours, theirs, strict=True):
            unit = 2e-2 if "bfloat16" in dtypes.values() else 2e-3
            np.testing.assert_allclose(np.asarray(a, "float64"), b, rtol=unit, atol=unit)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", OPERATORS)
def test_sets_that_are_run_at_once_give_what_each_gives_by_itself(name: str):
    kernel = compiled(name, validate="none")
    definition = kernel.schedule.definition
    dtypes = {b.name: b.dtype for b in definition.buffers}
    sets = [inputs for _, inputs in data.data_sets(definition, {}, 4)]
    assert len(sets) == 4
    found = triton_numpy.run_sets(kernel.triton, sets, dtypes, definition.inputs)
    wanted = compare.expectations(definition, sets)
    for n, inputs in enumerate(sets):
        alone = triton_numpy.run(kernel.triton, inputs, dtypes, definition.inputs)
        for a, b in zip(found, alone, strict=True):
            np.testing.assert_array_equal(a[n], b)
        for output, want in compare.expectations(definition, [inputs])[0].items():
            np.testing.assert_array_equal(wanted[n][output].stated, want.stated)
            np.testing.assert_array_equal(wanted[n][output].wide, want.wide)
            np.testing.assert_array_equal(wanted[n][output].slack, want.slack)


def test_a_kernel_that_does_not_do_the_same_on_all_sets_is_run_on_each(monkeypatch: pytest.MonkeyPatch):
    ran = []

    def alone(source, inputs, dtypes, order, strides):
        ran.append(1)
        return tuple(found[0] for found in together(source, [inputs], dtypes, order, strides))

    def differ(*_):
        raise numpy_tiles.SetsDiffer

    together = triton_numpy.run_sets
    monkeypatch.setattr(triton_numpy, "run_sets", differ)
    monkeypatch.setattr(triton_numpy, "run", alone)
    assert nl.compile(softmax_sum(), "rolling_update", block_kv=4).validated.stages == ("Triton",)
    assert len(ran) == 4


def test_a_scalar_tile_that_differs_between_sets_decides_nothing():
    same, other = numpy_tiles.tile(np.array([3, 3])), numpy_tiles.tile(np.array([3, 4]))
    assert list(range(same)) == [0, 1, 2]
    assert bool(same > 2)
    for decide in (range, int, lambda tile: bool(tile > 3)):
        with pytest.raises(numpy_tiles.SetsDiffer):
            decide(other)
    assert (other + numpy_tiles.tile(np.zeros((1, 5), int))).shape == (2, 5)


def test_numbers_chosen_by_a_condition_have_32_bits():
    """As in Triton, where their products wrap there."""
    x = torch.tensor([3, -3], dtype=torch.int32)
    op = nl.from_torch(lambda x: (x > 0).int() * 65537 * torch.arange(1, 24).prod(), x)
    kernel = nl.compile(op, validate="none")
    (out,) = triton_numpy.run(kernel.triton, {"x": x.numpy()}, {"x": "int32"}, ("x",))
    assert [*out] == [*(x > 0).int() * 65537 * torch.arange(1, 24).prod()] == [862453760, 0]


@pytest.mark.parametrize("name", ["causal", "rows"])
def test_the_numpy_form_computes_in_float32(name: str, monkeypatch: pytest.MonkeyPatch):
    """Where it is float64 by mistake, exp2(-1000) is no 0, and 0 * inf no NaN."""
    kernel = compiled(name, validate="none")
    definition = kernel.schedule.definition
    made, seen = numpy_tiles.tile, set()

    def tile(value):
        found = made(value)
        seen.add(found.dtype)
        return found

    for module in (numpy_tiles, triton_numpy):
        monkeypatch.setattr(module, "tile", tile)
    inputs = kernel.schedule.operator.random_inputs(0)
    triton_numpy.run(kernel.triton, inputs, {b.name: b.dtype for b in definition.buffers}, definition.inputs)
    assert np.dtype("float32") in seen
    assert np.dtype("float64") not in seen


@pytest.mark.parametrize("name", OPERATORS)
def test_the_reference_is_the_operators_own(name: str):
    op = OPERATORS[name][0]()
    inputs = op.random_inputs(1)
    found = reference.evaluate(op.program, inputs, wide=True)
    want = op.reference(*inputs.values())
    for spec, array in zip(op.outputs, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(found[spec.name], array, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.one_in(18)
@pytest.mark.parametrize(("mode", "name"), in_turn(["quick", "full"], OPERATORS, every=2))
def test_right_kernels_pass_and_say_what_was_run(name: str, mode: str):
    validated = compiled(name, validate=mode).validated
    assert validated.mode == mode
    assert "Triton" in validated.stages
    assert ("tiles" in validated.stages) == (mode == "full")
    assert data.ORDINARY in validated.data
    assert f"validated ({mode})" in str(validated)


def test_none_runs_nothing_and_other_modes_are_refused():
    assert str(nl.compile(softmax_sum(), validate="none").validated) == "not validated"
    with pytest.raises(ScheduleError, match="validate='thorough'"):
        nl.compile(softmax_sum(), validate="thorough")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.maximum(", "tl.minimum("),
        ("1.4426950408889634", "1.44"),
        ("< 10", "< 9"),
        ('float("-inf"), tl', "0.0, tl"),
    ],
)
def test_a_wrong_emitter_is_found_with_a_script_that_repeats_it(monkeypatch, capsys, old: str, new: str):
    planted(monkeypatch, old, new)
    with pytest.raises(ValidationError, match="Triton differs from the definition at x\\[3, 10\\]") as caught:
        nl.compile(softmax_sum(), "rolling_update", block_kv=4)
    assert caught.value.stage == "Triton"
    assert caught.value.help
    monkeypatch.undo()
    assert caught.value.script is not None
    runpy.run_path(caught.value.script, run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-2:] == RIGHT


RIGHT = ["Triton: as the definition", "Triton in its interpreter: as the definition"]


@pytest.mark.nightly
def test_a_script_needs_neptune_lab_only(monkeypatch):
    """Nothing of the process that wrote it."""
    planted(monkeypatch, "tl.maximum(", "tl.minimum(")
    with pytest.raises(ValidationError) as caught:
        nl.compile(softmax_sum(), "rolling_update", block_kv=4)
    assert caught.value.script is not None
    command = [sys.executable, caught.value.script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-2:] == RIGHT


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch):
    from neptune_lab import htile_passes
    from neptune_lab.htile.nodes import Elementwise
    from neptune_lab.htile.walk import map_stores, rewrite_store

    def wrong(program):
        def rule(e):
            return replace(e, op="min") if isinstance(e, Elementwise) and e.op == "max" else e

        def changed(kernel):
            return replace(kernel, body=map_stores(kernel.body, lambda store: rewrite_store(store, rule)))

        return replace(program, kernels=tuple(map(changed, program.kernels)))

    monkeypatch.setattr(htile_passes, "PASSES", {**htile_passes.PASSES, "longest_first": wrong})
    with pytest.raises(ValidationError, match="the program of tiles after longest_first differs"):
        nl.compile(softmax_sum(), "rolling_update", block_kv=4)


def test_wrong_loops_are_named(monkeypatch: pytest.MonkeyPatch):
    from neptune_lab.loop_schedule.schedule import Schedule

    program = Schedule.program.fget

    def wrong(self):
        return stale(program(self))

    monkeypatch.setattr(Schedule, "program", property(wrong))
    with pytest.raises(ValidationError, match="the scheduled loops differs"):
        nl.compile(softmax_sum(), "rolling_update", block_kv=4)


@pytest.mark.nightly
def test_a_structure_is_run_once(monkeypatch: pytest.MonkeyPatch):
    ran = []
    difference = compare.difference
    monkeypatch.setattr(forms, "difference", lambda *a, **k: ran.append(1) or difference(*a, **k))
    nl.compile(attention.causal(1, 2, 256))
    first = len(ran)
    assert first > 1
    nl.compile(attention.causal(1, 2, 256))
    nl.compile(attention.causal(1, 2, 320))
    assert len(ran) == first
    nl.compile(attention.causal(1, 2, 300))  # it has a remainder
    assert len(ran) > first


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("seq", "block_q", "block_kv"), [(256, 64, 64), (250, 64, 64), (1000, 128, 64), (512, 128, 32), (96, 32, 32)]
)
def test_small_sizes_keep_divisibilities(seq: int, block_q: int, block_kv: int):
    op = attention.causal(1, 8, seq, kv_heads=2)
    sch = schedule(op, "rolling_update", block_q=block_q, block_kv=block_kv)
    planned = sizes.plan(sch)
    small = planned.definition
    _, heads, n, _ = small.buffer("q").shape
    assert heads // small.buffer("k").shape[1] == 2  # groups of several heads
    assert small.buffer("k").shape[2] == n
    for block in (block_q, block_kv):
        t = planned.sizes.tiles[block]
        assert (n % t == 0) == (seq % block == 0)
        assert n >= 2 * t
        assert n <= 48
    made = replay.small_schedule(sch, planned)
    assert [s.primitive for s in made.steps] == [
        s.primitive for s in sch.steps if s.primitive != "remark" and "num_" not in str(s)
    ]
    inputs = {n: np.random.default_rng(0).standard_normal(small.buffer(n).shape) for n in small.inputs}
    assert run.compare(made.program, small, inputs)
    assert resize.resized_schedule(sch, planned).program == made.program


def test_special_rows_hold_what_floats_go_wrong_on():
    definition = softmax_sum(14, 8).program
    sets = dict(data.data_sets(definition, {}, 9))
    assert set(sets) == {data.ORDINARY, "special rows in x", "special rows in y"}
    x = sets["special rows in x"]["x"]
    assert np.isneginf(x).all(axis=1).any()
    assert (x == np.finfo(np.float32).min).any()
    assert (x == 0).all(axis=1).any()
    assert (x < -250).all(axis=1).any()
    assert any(row[0] < -100 and row[-1] > -20 for row in x)
    assert any(len(set(row)) == 1 and np.isfinite(row[0]) for row in x)


def test_an_input_of_few_rows_has_special_rows_of_every_kind():
    """Three rows hold three kinds, and the sets that other inputs do not need hold the next ones."""
    definition = softmax_sum(3, 8).program
    sets = dict(data.data_sets(definition, {}, 12))
    x = np.concatenate([inputs["x"] for kind, inputs in sets.items() if kind.startswith("special rows in x")])
    assert (x == np.finfo(np.float32).min).any()
    assert any((np.maximum.accumulate(row) == 0).any() and row.max() > 0 and row.min() < 0 for row in x)
    assert any(row[0] == -row[1] != 0 for row in x)
    assert len(data.data_sets(definition, {}, 4)) == 4


def test_the_other_factors_of_a_product_are_not_negative():
    """Rows of q that are far below 0 make scores far below 0, where a lane past the end would show."""
    definition = attention.full(1, 1, 8, head_dim=4).program
    sets = dict(data.data_sets(definition, {}, 4))
    assert (sets["special rows in q"]["k"] >= 0).all()
    scores = np.einsum("bhid,bhjd->bhij", *(sets["special rows in q"][n].astype("float64") for n in "qk"))
    assert (scores < -250).all(axis=3).any()
    assert (sets[data.ORDINARY]["k"] < 0).any()


def test_gluon_is_validated_as_tiles():
    kernel = nl.compile(
        attention.causal(1, 2, 512), "rolling_update", block_q=128, block_kv=128, code=nl.CodeOptions(code="gluon")
    )
    assert kernel.validated.stages == ("tiles",)
