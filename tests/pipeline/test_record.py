"""The record of a compilation: whole, linked, and readable without the compiler."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import neptune_lab as nl
from neptune_lab import htile_passes
from neptune_lab.operators import attention, softmax
from neptune_lab.pipeline.lower import PassWarning, lower
from neptune_lab.pipeline.record import schedule_trace
from neptune_lab.trace import from_json, links, save, to_json


@pytest.fixture(scope="module", params=["attention", "decode", "softmax"])
def kernel(request):
    made = {
        "attention": lambda: nl.compile(attention.causal(heads=2, q_len=200, kv_len=77, head_dim=64)),
        "decode": lambda: nl.compile(attention.causal(heads=2, q_len=1, kv_len=77, head_dim=64)),
        "softmax": lambda: nl.compile(softmax.figure1(4, 200), "split_k_update"),
    }
    return made[request.param]()


@pytest.mark.one_in(3)
def test_no_link_dangles_and_every_computing_line_is_covered(kernel):
    assert links(kernel.trace) == ()


@pytest.mark.one_in(3)
def test_round_trip(kernel):
    assert from_json(to_json(kernel.trace)).kernel.source == kernel.source


def test_every_step_is_recorded_in_order(kernel):
    recorded = kernel.trace.steps
    assert [s.primitive for s in recorded[1:]] == [s.primitive for s in kernel.schedule.steps]
    assert [s.index for s in recorded] == list(range(len(recorded)))
    assert all(s.phases for s in recorded)


def test_a_fusion_has_its_phases_and_algebra(kernel):
    step = next(s for s in kernel.trace.steps if s.arguments.get("block") == "s_sum" and len(s.phases) > 1)
    assert [p.key for p in step.phases] == ["dataflow", "naive", "repair", "repaired"]
    assert [p.wrong for p in step.phases] == [False, True, True, False]
    assert any(e.kind == "early" for e in step.phases[1].graph.edges)
    assert any(e.kind == "repaired" for e in step.phases[3].graph.edges)
    derivation = step.phases[2].derivation
    assert derivation.accepted
    assert "t*exp(" in derivation.summary
    assert all(s.ok and s.mathml.startswith("<math") for s in derivation.steps)


@pytest.mark.one_in(4)
def test_it_opens_without_the_compiler(kernel, tmp_path):
    save(kernel.trace, tmp_path / "trace.json")
    script = f"""
import sys
for name in ("tvm", "sympy", "triton", "torch", "numpy", "networkx"):
    sys.modules[name] = None
import neptune_lab as nl
trace = nl.load_trace({str(tmp_path / "trace.json")!r})
print(len(trace.steps), trace.kernel.name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(kernel.trace.steps)), kernel.operator.name]


@pytest.mark.parametrize("each", [True, False])
def test_a_pass_that_makes_a_program_that_is_not_valid_is_left_out_and_said_so(each, monkeypatch):
    wanted = nl.compile(softmax.figure1(4, 64), validate="none")

    def wrong(program):
        return replace(program, outputs=())

    monkeypatch.setattr(htile_passes, "PASSES", {**htile_passes.PASSES, "longest_first": wrong})
    with pytest.warns(PassWarning, match="longest_first is left out.*lists the outputs") as warned:
        kernel = lower(wanted.schedule, wanted.code, None, each=each)
    assert len(warned) == 1
    notes = {made.name: made.notes for made in kernel.trace.kernel.passes}
    assert notes["longest_first"][0].startswith("Left out: the program that this pass made is not valid. program lists")
    assert kernel.source == wanted.source  # (fused as ever, not in parts)


def test_phases_share_the_lines_of_nests_that_a_step_leaves_as_they_are():
    """A record of many independent nests would otherwise grow with the square of their number."""
    from tvm import te

    def row(n):
        x = te.placeholder((2, 8), "float32", name=f"x{n}")
        j = te.reduce_axis((0, 8), name="j")
        return x, te.compute((2,), lambda a: te.sum(x[a, j], axis=j), name=f"s{n}")

    inputs, outputs = zip(row(0), row(1), strict=True)
    schedule = nl.Schedule(nl.operators.custom("two", list(inputs), list(outputs)))
    schedule.reorder("s0", "j", "a")
    (before,), (after,) = (step.phases for step in schedule_trace(schedule).steps)

    def lines(phase, stage):
        return [id(line) for line in phase.program if line.node.endswith((f":{stage}", f"@{stage}"))]

    assert lines(before, "s1")
    assert lines(before, "s1") == lines(after, "s1")
    assert lines(before, "s0") != lines(after, "s0")
