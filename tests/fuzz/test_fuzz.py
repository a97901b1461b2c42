"""The fuzzer's own parts: what it draws is reproducible, its two readers agree, and a run survives what cases do."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import neptune_lab as nl
from fuzz import draw, dying_worker, judge, special, workers
from fuzz.definitions import evaluate, to_python
from fuzz.outcome import Outcome, Wrong
from fuzz.report import Report
from fuzz.row_vectors import check_early_starts
from fuzz.run_case import custom_operator, make
from fuzz.shrink import shrunk
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.run_in_python import run_in_python
from neptune_lab.loop_schedule import Schedule


def test_a_seed_draws_the_same_case():
    assert make("7:3") == make("7:3") != make("7:4")
    json.dumps(make("7:3"))


@pytest.mark.parametrize("seed", range(12))
def test_the_two_readers_of_a_definition_agree(seed: int):
    definition = draw.definition(random.Random(seed))
    inputs = special.draw("ordinary", definition["inputs"], definition["dtype"], seed)
    program = custom_operator(definition).program
    found, want = run_in_python(program, inputs), evaluate(definition, inputs, "float64")
    for name in definition["outputs"]:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-9, atol=1e-12)


def test_plain_python_runs_agree_with_native_ones():
    definition = draw.definition(random.Random(3))
    sch = Schedule(custom_operator(definition))
    inputs = special.draw("ordinary", definition["inputs"], "float32", 0)
    native = sch.run(**inputs)
    for name, found in run_in_python(sch.program, inputs).items():
        np.testing.assert_allclose(found, native[name], rtol=1e-4, atol=1e-5)


def test_the_printed_lines_make_the_definition():
    definition = {**draw.definition(random.Random(5)), "dtype": "float32"}
    scope: dict = {}
    exec("import neptune_lab as nl\nfrom tvm import te, tirx\n" + "\n".join(to_python(definition)), scope)
    inputs = special.draw("ordinary", definition["inputs"], "float32", 0)
    found, want = run_in_python(scope["op"].program, inputs), evaluate(definition, inputs, "float64")
    for name in definition["outputs"]:
        np.testing.assert_allclose(found[name], want[name], rtol=1e-9, atol=1e-12)


def test_the_judge_sees_a_wrong_element_and_lets_rounding_pass():
    def twice(inputs, dtype):
        return {"o": np.asarray(inputs["x"]).astype(dtype.rstrip("+-")) * 2}

    inputs = {"x": np.float32([1.0, 3.0, np.inf])}
    want = judge.expectations(twice, inputs, ["o"])["o"]
    assert judge.wrong(np.float32([2.0000005, 6.0, np.inf]), want, masks=False, inputs_finite=False) is None
    assert judge.wrong(np.float32([2.0, 6.01, np.inf]), want, masks=False, inputs_finite=False) == (1,)
    assert judge.wrong(np.float32([np.nan, 6.0, np.inf]), want, masks=False, inputs_finite=False) == (0,)
    assert judge.wrong(np.float32([2.0, 6.0, 40.0]), want, masks=False, inputs_finite=False) == (2,)


def test_a_read_of_what_nobody_wrote_is_an_error():
    from dataclasses import replace

    sch = Schedule(custom_operator(draw.definition(random.Random(3))))
    inputs = special.draw("ordinary", {s.name: list(s.shape) for s in sch.operator.inputs}, "float32", 0)
    with pytest.raises(ScheduleError, match="nothing has written"):
        run_in_python(replace(sch.program, body=sch.program.body[1:]), inputs)


def test_a_failing_case_is_shrunk(monkeypatch: pytest.MonkeyPatch):
    """Against a stand-in for the compiler that fails wherever a definition holds an exponential."""
    from fuzz import shrink

    case = next(c for c in map(make, map(str, range(99))) if c["kind"] == "operator" and "exp" in str(c["definition"]))
    monkeypatch.setattr(
        shrink, "run", lambda c: Outcome("wrong" if "exp" in str(c["definition"]) else "accepted", detail="planted")
    )
    small = shrunk(case, "wrong")
    assert "exp" in str(small["definition"])
    assert len(str(small["definition"])) <= len(str(case["definition"]))
    assert not small["options"]
    assert len(small["data"]) == 1


@pytest.mark.nightly
def test_a_worker_that_dies_is_one_recorded_crash_and_a_run_goes_on_from_its_file(tmp_path):
    state = tmp_path / "state.jsonl"
    report = Report("0")
    workers.run_cases(4, "0", 2, state, 60.0, report, dying_worker.dies)
    assert report.verdicts == {"accepted": 3, "crashed": 1}
    state.write_text(state.read_text() + '{"n": 4, "verd')  # the line that a killed run was writing
    again = Report("0")
    workers.run_cases(5, "0", 1, state, 60.0, again, dying_worker.dies)
    assert again.verdicts == {"accepted": 4, "crashed": 1}


def test_a_case_is_late_by_its_cpu_time():
    report = Report("0")
    workers.run_cases(3, "0", 1, None, 0.2, report, dying_worker.spins)
    assert report.verdicts == {"accepted": 2, "late": 1}


def test_sums_that_the_order_decides_say_nothing():
    """3e38 + 3e38 - 3e38 is finite or not, as the order has it; an infinite term says the same in every order."""
    definition = {
        "inputs": {"x": [3, 3]},
        "dtype": "float32",
        "stages": [
            {
                "name": "o",
                "space": [["i", 3]],
                "fold": [["j", 3]],
                "reducer": "sum",
                "term": ["at", "x", "i", "j"],
            }
        ],
        "outputs": ["o"],
    }
    x = np.float32([[3e38, -3e38, 3e38], [-np.inf, 1, 2], [1, 2, 3]])
    want = judge.expectations(lambda given, dtype: evaluate(definition, given, dtype), {"x": x}, ["o"])["o"]
    assert np.isnan(want.single[0])
    for first in (np.inf, np.nan, 3e38):
        assert judge.wrong(np.array([first, -np.inf, 6.0]), want, masks=False, inputs_finite=False) is None
    assert judge.wrong(np.array([0.0, 0.0, 6.0]), want, masks=False, inputs_finite=False) == (1,)
    assert judge.wrong(np.array([0.0, np.nan, np.nan]), want, masks=False, inputs_finite=False) == (2,)


def test_a_launch_that_reads_too_early_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("neptune_lab.htile_passes.cut_long_rows.MANY_ELEMENTS", 0)
    op = nl.operators.norms.layer_norm(rows=600, cols=1101, dtype="float16")
    source = nl.compile(op, target="h200", validate="none").source
    assert check_early_starts(source) == 1
    wait = "    _wait()\n"
    first, second = source.split(wait)
    late = second.index("    tl.store(")
    with pytest.raises(Wrong, match="gamma_shifted"):
        check_early_starts(first + second[:late] + wait + second[late:])
    with pytest.raises(Wrong, match="waits 0 times"):
        check_early_starts(first + second)
    with pytest.raises(Wrong, match="does not let it"):
        check_early_starts(source.replace("    _launch_dependents()\n", ""))
