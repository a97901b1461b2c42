"""Translation validation: what differs from the definition is an error with a script, and what was run is recorded."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import by_name
import numpy as np
import pytest
from tvm import te

import neptune_lab as nl
from neptune_lab import htile_to_triton
from neptune_lab.errors import ScheduleError, ValidationError
from neptune_lab.htile.interpret import interpret
from neptune_lab.loop_ir import run, tree
from neptune_lab.loop_ir.nodes import Load, Op, Var, const
from neptune_lab.loop_ir.roles import Role
from neptune_lab.operators import Operator, attention, custom, gemm_chain, norms, performer, rows
from neptune_lab.pipeline import schedule
from neptune_lab.pipeline import validate as package
from neptune_lab.pipeline.lower import lower
from neptune_lab.pipeline.options import CodeOptions
from neptune_lab.pipeline.validate import (
    check,
    compare,
    data,
    forget,
    reference,
    replay,
    resize,
    sizes,
    triton_numpy,
)
from neptune_lab.runtime import call_on_arrays, load


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Each test validates anew, and its scripts go to a folder of its own."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    forget()
    yield
    forget()


def softmax_sum(n: int = 3, m: int = 10) -> Operator:
    x, y = (te.placeholder((n, m), "float32", name=name) for name in "xy")
    j = te.reduce_axis((0, m), name="j")
    r = te.compute((n,), lambda i: te.max(x[i, j], axis=j), name="r")
    o = te.compute((n,), lambda i: te.sum(te.exp(x[i, j] - r[i]) * y[i, j], axis=j), name="o")
    return custom("weighted", [x, y], [o])


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

    def alone(source, inputs, dtypes, order):
        ran.append(1)
        return tuple(found[0] for found in together(source, [inputs], dtypes, order))

    def differ(*_):
        raise triton_numpy.SetsDiffer

    together = triton_numpy.run_sets
    monkeypatch.setattr(triton_numpy, "run_sets", differ)
    monkeypatch.setattr(triton_numpy, "run", alone)
    assert nl.compile(softmax_sum(), "rolling_update", block_kv=4).validated.stages == ("Triton",)
    assert len(ran) == 4


def test_a_scalar_tile_that_differs_between_sets_decides_nothing():
    same, other = triton_numpy._tile(np.array([3, 3])), triton_numpy._tile(np.array([3, 4]))
    assert list(range(same)) == [0, 1, 2]
    assert bool(same > 2)
    for decide in (range, int, lambda tile: bool(tile > 3)):
        with pytest.raises(triton_numpy.SetsDiffer):
            decide(other)
    assert (other + triton_numpy._tile(np.zeros((1, 5), int))).shape == (2, 5)


@pytest.mark.parametrize("name", ["causal", "rows"])
def test_the_numpy_form_computes_in_float32(name: str, monkeypatch: pytest.MonkeyPatch):
    """Where it is float64 by mistake, exp2(-1000) is no 0, and 0 * inf no NaN."""
    kernel = compiled(name, validate="none")
    definition = kernel.schedule.definition
    made, seen = triton_numpy._tile, set()

    def tile(value):
        found = made(value)
        seen.add(found.dtype)
        return found

    monkeypatch.setattr(triton_numpy, "_tile", tile)
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


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("mode", ["quick", "full"])
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


def planted(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """The Triton emitter writes `new` for `old`."""
    emit = htile_to_triton.emit

    def wrong(*args, **kwargs):
        source = emit(*args, **kwargs)
        assert old in source.text
        return replace(source, text=source.text.replace(old, new))

    monkeypatch.setattr(htile_to_triton, "emit", wrong)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.maximum(", "tl.minimum("),
        ("1.4426950408889634", "1.44"),
        ("< 10", "< 9"),
        ('float("-inf"), tl', "0.0, tl"),
    ],
)
def test_a_wrong_emitter_is_found_with_a_script_that_repeats_it(monkeypatch, old: str, new: str):
    planted(monkeypatch, old, new)
    with pytest.raises(ValidationError, match="Triton differs from the definition at x\\[3, 10\\]") as caught:
        nl.compile(softmax_sum(), "rolling_update", block_kv=4)
    assert caught.value.stage == "Triton"
    assert caught.value.help
    monkeypatch.undo()
    done = subprocess.run(
        [sys.executable, caught.value.script], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines()[-2:] == [
        "Triton: as the definition",
        "Triton in its interpreter: as the definition",
    ]


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


def stale(program):
    """The value of the tag before is never brought up to date."""

    def change(block):
        if block.role is not Role.RETIRE:
            return block
        return replace(block, body=replace(block.body, value=Load(block.writes, block.body.indices)))

    return tree.map_blocks(program, change)


def test_wrong_loops_are_named(monkeypatch: pytest.MonkeyPatch):
    from neptune_lab.loop_schedule.schedule import Schedule

    program = Schedule.program.fget

    def wrong(self):
        return stale(program(self))

    monkeypatch.setattr(Schedule, "program", property(wrong))
    with pytest.raises(ValidationError, match="the scheduled loops differs"):
        nl.compile(softmax_sum(), "rolling_update", block_kv=4)


def test_a_structure_is_run_once(monkeypatch: pytest.MonkeyPatch):
    ran = []
    difference = compare.difference
    monkeypatch.setattr(check, "difference", lambda *a, **k: ran.append(1) or difference(*a, **k))
    nl.compile(attention.causal(1, 2, 256))
    first = len(ran)
    assert first > 1
    nl.compile(attention.causal(1, 2, 256))
    nl.compile(attention.causal(1, 2, 320))
    assert len(ran) == first
    nl.compile(attention.causal(1, 2, 300))  # it has a remainder
    assert len(ran) > first


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


LARGE = {
    "wide tiles": lambda: schedule(attention.causal(2, 8, 2048), "rolling_update", block_q=128, block_kv=16),
    "remainders": lambda: schedule(attention.alibi(1, 8, 1000, head_dim=100), "rolling_update", block_q=64),
    "window": lambda: schedule(attention.window(1, 4, 2048, window=256), "rolling_update"),
    "chain": lambda: schedule(gemm_chain.gemm_chain(1, 512, 512, 64, 64)),
    "performer": lambda: schedule(performer.performer(1, 2, 512, 64, 64)),
    "groups": lambda: schedule(attention.gqa(1, 8, 1024, kv_heads=2), "rolling_update"),
    "rows": lambda: schedule(rows.cross_entropy(4096, 5000), block_kv=512),
    "norm": lambda: schedule(norms.rms_norm_max(4096, 1024), block_kv=256),
    "parts": lambda: schedule(attention.causal(1, 8, 1000), "split_k_update"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_scheduled_program_is_resized_to_what_its_steps_make_of_the_small_definition(name: str):
    sch = LARGE[name]()
    planned = sizes.plan(sch)
    assert resize.resized_schedule(sch, planned).program == replay.small_schedule(sch, planned).program


def test_a_large_kernel_is_validated_without_its_steps(monkeypatch: pytest.MonkeyPatch):
    """It is its own program that is run, at other sizes."""
    monkeypatch.setattr(check, "small_schedule", None)
    assert nl.compile(attention.causal(1, 4, 512), "rolling_update").validated.stages == ("Triton",)


def test_a_large_kernel_that_is_wrong_is_found_with_a_script(monkeypatch: pytest.MonkeyPatch):
    planted(monkeypatch, "repair * s_sum", "s_sum")
    with pytest.raises(ValidationError, match="Triton differs from the definition at q") as caught:
        nl.compile(attention.causal(1, 4, 512), "rolling_update")
    assert "rolling_update" in Path(caught.value.script).read_text()


def test_a_step_that_goes_wrong_at_large_sizes_alone_is_seen(monkeypatch: pytest.MonkeyPatch):
    """What the steps make at small sizes is right here: the large program is what is run."""
    sch = schedule(attention.causal(1, 4, 512), "rolling_update")
    planned = sizes.plan(sch)
    small = resize.resized(stale(sch.program), sch.definition, planned)
    made = resize.Resized(replay.small_operator(sch.operator, planned.definition), small)
    kernel = lower(made, CodeOptions(), None)
    found = check._compared(kernel, "quick", False)
    assert not isinstance(found, package.Validated)


def test_a_program_that_was_resized_wrongly_is_no_error(monkeypatch: pytest.MonkeyPatch):
    """The steps, applied at small sizes, decide."""
    made = check.resized_schedule
    ran = []

    def negative(block):
        return replace(block, body=replace(block.body, value=Op("neg", (block.body.value,))))

    def wrong(scheduled, planned):
        found = made(scheduled, planned)
        program = tree.map_blocks(found.program, lambda block: negative(block) if block.name == "out" else block)
        return resize.Resized(found.operator, program)

    steps = check.small_schedule
    monkeypatch.setattr(check, "resized_schedule", wrong)
    monkeypatch.setattr(check, "small_schedule", lambda *a: ran.append(1) or steps(*a))
    assert nl.compile(attention.causal(1, 4, 512), "rolling_update").validated.stages == ("Triton",)
    assert ran == [1]


def test_a_number_that_no_place_explains_is_not_resized():
    sch = schedule(attention.causal(1, 4, 512), "rolling_update", block_q=64, block_kv=64)
    planned = sizes.plan(sch)
    end = Op("lt", (Var("i1"), const(60)))
    odd = tree.map_blocks(sch.program, lambda b: replace(b, predicates=(end,)) if b.name == "qk" else b)
    with pytest.raises(ScheduleError, match="'qk' cannot be resized: a predicate is not the end of a dimension"):
        resize.resized(odd, sch.definition, planned)


def test_numbers_of_folded_elements_are_not_resized():
    sch = schedule(norms.layer_norm(4096, 1024), block_kv=256)
    with pytest.raises(ScheduleError, match="how many elements were folded"):
        resize.resized_schedule(sch, sizes.plan(sch))
    assert nl.compile(sch).validated.stages == ("Triton",)  # its steps are applied at small sizes


def test_masks_keep_their_boundaries_at_small_sizes():
    op = attention.window(1, 1, 2048, window=256)
    sch = schedule(op, "rolling_update", block_q=64, block_kv=64)
    small = sizes.plan(sch).definition
    inputs = {n: np.random.default_rng(0).standard_normal(small.buffer(n).shape) for n in small.inputs}
    scores = reference.evaluate(small, inputs, wide=True)["score"][0, 0]
    seen = np.isfinite(scores)
    assert not seen[0, 1:].any()  # causal still
    assert 1 < seen[-1].sum() < seen.shape[1]  # and the window ends inside the row


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


def test_a_large_program_that_cannot_be_made_small_says_so(monkeypatch: pytest.MonkeyPatch):
    def refuses(*_):
        raise ScheduleError("it does not apply", help="none")

    monkeypatch.setattr(check, "resized_schedule", refuses)
    monkeypatch.setattr(check, "small_schedule", refuses)
    validated = nl.compile(attention.causal(1, 2, 256)).validated
    assert not validated.stages
    assert "it does not apply" in str(validated)


def test_gluon_is_validated_as_tiles():
    kernel = nl.compile(
        attention.causal(1, 2, 512), "rolling_update", block_q=128, block_kv=128, code=nl.CodeOptions(code="gluon")
    )
    assert kernel.validated.stages == ("tiles",)


def deviation_of(rows: int, cols: int, value: str) -> Operator:
    x = te.placeholder((rows, cols), "float32", name="x")
    a, b = te.reduce_axis((0, cols), name="a"), te.reduce_axis((0, cols), name="b")
    m = te.compute((rows,), lambda i: te.sum(x[i, a] / cols, axis=a), name="m")
    v = te.compute((rows,), lambda i: te.sum((x[i, b] - m[i]) * (x[i, b] - m[i]), axis=b), name="v")
    o = te.compute((rows,), lambda i: {"mean": m[i] / te.sqrt(v[i]), "inverse": 1.0 / (v[i] + 1.0)}[value], name="o")
    return custom("deviation", [x], [o])


@pytest.mark.parametrize("cols", [3, 9, 13])
def test_what_rounding_decides_is_not_compared(cols: int):
    """The variance of equal numbers is 0 or a rounding; that of zeros is 0, and 0/0 is NaN however it is rounded."""
    definition = deviation_of(3, cols, "mean").program
    x = np.ones((3, cols), np.float32)
    x[0], x[1], x[2] = 80.1, 0.0, np.arange(cols)
    wanted = compare.expectations(definition, [{"x": x}])[0]
    right = np.array(wanted["o"].wide)
    assert np.isnan(right[1])
    assert np.isfinite(right[2])
    assert wanted["o"].rounding()["o"].decides.tolist() == [True, False, False]
    for either in (np.nan, np.inf, 3e7):
        right[0] = either
        found = compare.difference(wanted, {"o": right}, removes=False)
        assert found is None or (np.isfinite(wanted["o"].wide[0]) and np.isfinite(either)), found
    for row, wrong in ((1, 0.5), (2, np.nan), (2, 0.5)):
        found = compare.difference(wanted, {"o": np.where(np.arange(3) == row, wrong, right)}, removes=False)
        assert found is not None
        assert found.index == (row,) or (np.isfinite(wanted["o"].wide[0]) and found.index == (0,))


def test_a_sum_that_its_order_makes_overflow_is_not_compared():
    """2e38 - 2e38 + 2e38 - 2e38 is 0, or NaN where the two large ones are added first."""
    x = te.placeholder((2, 4), "float32", name="x")
    j = te.reduce_axis((0, 4), name="j")
    total = te.compute((2,), lambda i: te.sum(x[i, j], axis=j), name="total")
    definition = custom("f", [x], [te.compute((2,), lambda i: total[i] + 1.0, name="o")]).program
    wanted = compare.expectations(definition, [{"x": np.array([[2e38, -2e38] * 2, [1, 2, 3, 4]], np.float32)}])[0]
    assert wanted["o"].rounding()["o"].decides.tolist() == [True, False]
    assert compare.difference(wanted, {"o": np.array([np.nan, 11.0])}, removes=False) is None
    assert compare.difference(wanted, {"o": np.array([1.0, np.nan])}, removes=False) is not None


def test_an_overflow_in_a_vector_repair_may_be_nan_and_no_other_one():
    definition = deviation_of(2, 4, "inverse").program
    x = np.array([[1, 2, 3, 4], [-1e30, 1e30, 2e30, 3e30]], np.float32)
    spoilt = {"o": np.array([1 / 6, np.nan])}
    assert compare.difference(compare.expectations(definition, [{"x": x}], {"v"})[0], spoilt, removes=False) is None
    assert compare.difference(compare.expectations(definition, [{"x": x}])[0], spoilt, removes=False) is not None
    spoilt = {"o": np.array([np.nan, 0.0])}
    assert compare.difference(compare.expectations(definition, [{"x": x}], {"v"})[0], spoilt, removes=False) is not None


def test_finite_where_the_definition_is_and_nan_where_it_is():
    definition = softmax_sum(2, 4).program
    inputs = {n: np.ones((2, 4), np.float32) for n in "xy"}
    inputs["x"][1] = -np.inf
    wanted = compare.expectations(definition, [inputs])[0]
    right = {"o": np.float32([4.0, np.nan])}
    assert compare.difference(wanted, right, removes=False) is None
    for wrong in ([np.nan, np.nan], [4.1, np.nan], [4.0, 0.0]):
        assert compare.difference(wanted, {"o": np.float32(wrong)}, removes=False) is not None
    assert compare.difference(wanted, {"o": np.float32([4.0, 0.0])}, removes=True) is None
    found = interpret(nl.compile(softmax_sum(2, 4)).htile, inputs)
    assert compare.difference(wanted, found, removes=False) is None
    assert package.MODES == ("quick", "full", "none")
