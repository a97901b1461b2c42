"""The record: JSON and back, without the compiler's libraries, refusing what is not a record, links that hold."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from neptune_lab import trace as t
from neptune_lab.errors import TraceError

SOURCE = '''\
import triton
import triton.language as tl


@triton.jit
def sums(
    x_ptr,
    N: tl.constexpr,
):
    """Row sums."""
    i = tl.program_id(0)
    total = 0.0
    for j in range(N):
        total += tl.load(
            x_ptr + i * N + j,
        )
    tl.store(x_ptr + i, total)


def launch(x):
    grid = (4,)
    sums[grid](x, N=4)
'''
COMPUTES = {11, 12, 13, 14, 17}


def line(n: int, refs: tuple[str, ...] = ()) -> t.Line:
    return t.Line(f"store:s{n}", f"    x{n}[i] = …", "s_sum", "store", refs)


def phase(key: str, count: int, **extra) -> t.Phase:
    graph = t.Graph(
        (
            t.GraphNode("inp", "inp", "input"),
            t.GraphNode("s_sum", "s_sum", "reduce", "sum over j", "", 1, 2.5, 60.0, 20.0),
        ),
        (t.GraphEdge("inp", "s_sum", "inp", "early", ((0.0, 1.0), (2.0, 3.0))),),
        100.0,
        50.0,
    )
    return t.Phase(key, key, "note", tuple(line(n, ("def:s_sum",)) for n in range(count)), graph, **extra)


def example() -> t.Trace:
    operator = t.OperatorRecord(
        "sums",
        "Row sums",
        {"rows": 4, "scale": 0.5, "mask_mod": None, "sizes": [1, 2]},
        (t.TensorRecord("x", (4, 4), "float32"),),
        (t.TensorRecord("y", (4,), "float32"),),
        "y = te.compute(…)",
        (t.Line("def:s_sum", "y[i] = sum(x[i, j] for j in range(4))", "s_sum", "definition"),),
    )
    derivation = t.Derivation(
        "sum", "exp(c - r)", (t.DerivationStep("invert", "r = …", r"r = \log", "<math/>", True),), True, "h = …"
    )
    steps = (
        t.StepRecord(0, "split", {"block": "s_sum", "factor": 4}, "split j by 4", (phase("split", 30),)),
        t.StepRecord(
            1,
            "rolling_update",
            {"block": "s_sum"},
            "…",
            (phase("naive", 31, wrong=True), phase("repair", 31, derivation=derivation), phase("repaired", 32)),
        ),
        t.StepRecord(2, "rolling_update", {"block": "s_sum"}, "…", (phase("naive", 3),), error="no repair term"),
    )
    tile = (t.Line("tile:0", "y = sum(x)", "s_sum", "store", ("store:s31",)),)
    text = SOURCE.splitlines()
    triton = tuple(
        t.SourceLine(n, s, ("tile:0",), ("store:s31",), ("def:s_sum",)) if n in COMPUTES else t.SourceLine(n, s)
        for n, s in enumerate(text, 1)
    )
    kernel = t.KernelRecord("sums", tile, (t.PassRecord("fold", tile),), SOURCE, triton, ({"grid": [4], "N": 4},))
    return t.Trace(operator, steps, kernel, {"python": "3.11"}, "neptune-lab compile sums")


def test_round_trip(tmp_path: Path) -> None:
    trace = example()
    assert t.from_json(t.to_json(trace)) == trace
    t.save(trace, tmp_path / "a.json")
    assert t.load_trace(tmp_path / "a.json") == trace
    assert t.to_json(t.load_trace(tmp_path / "a.json")) == t.to_json(trace)
    bare = replace(trace, steps=(), kernel=None, command=None)
    assert t.from_json(t.to_json(bare)) == bare
    assert t.from_json(t.to_json(trace)).steps[0].phases[0].graph.nodes[1].x == 1.0


def test_a_repeated_program_is_stored_once() -> None:
    trace = example()
    data = json.loads(t.to_json(trace))
    assert len(data["lines"]) == 1 + 32 + 1
    assert data["steps"][1]["phases"][2]["program"] == data["steps"][1]["phases"][1]["program"] + [32]


def test_the_program_of_a_trace_is_of_the_last_step_that_worked() -> None:
    trace = example()
    assert len(trace.program) == 32
    assert replace(trace, steps=()).program == trace.operator.definition


def test_reading_needs_the_standard_library_only(tmp_path: Path) -> None:
    t.save(example(), tmp_path / "a.json")
    blocked = ["tvm", "tvm_ffi", "sympy", "triton", "torch", "numpy", "networkx", "IPython"]
    code = (
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "import neptune_lab as nl\n"
        f"trace = nl.load_trace({str(tmp_path / 'a.json')!r})\n"
        "from neptune_lab.trace import links\n"
        "print(trace.operator.name, len(trace.steps), links(trace))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "sums 3 ()"


# -- what is not a record ---------------------------------------------------------------------------------------------


def edited(*place: str | int, **change) -> str:
    """The example's JSON with fields set at one place, or dropped where the value is ..."""
    data = json.loads(t.to_json(example()))
    target = data
    for step in place:
        target = target[step]
    for name, value in change.items():
        if value is ...:
            del target[name]
        else:
            target[name] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{'schema': 1}", "not JSON"),
        (t.to_json(example())[:-100], "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "not a record"),
        ("{}", "not a record: expected an object with a field 'schema'"),
        (edited(schema=1), "schema 1, this version reads schemas 2 to 5"),
        (edited(schema=True), "schema True"),
        (edited(schema="1"), "schema '1'"),
        (edited(kernel=...), "trace has no field 'kernel'"),
        (edited(lines=...), "trace.lines is NoneType, expected list"),
        (edited(more=1), "trace has a field 'more', which is not known"),
        (edited("operator", name=...), "trace.operator has no field 'name'"),
        (edited("operator", name=3), "trace.operator.name is int, expected str"),
        (edited("operator", params=[]), "trace.operator.params is list, expected dict"),
        (
            edited("operator", definition=[99]),
            r"trace.operator.definition\[0\] is line 99, but the record has 34 lines",
        ),
        (edited("operator", definition=[-1]), "is line -1"),
        (edited("operator", definition=[True]), "is bool, expected int"),
        (edited("operator", "inputs", 0, shape=["4"]), r"trace.operator.inputs\[0\].shape\[0\] is str, expected int"),
        (edited("steps", 1, phases={}), r"trace.steps\[1\].phases is dict, expected list"),
        (edited("steps", 1, error=1), r"trace.steps\[1\].error is int, expected str"),
        (edited("steps", 1, "phases", 0, wrong=1), "wrong is int, expected bool"),
        (
            edited("steps", 1, "phases", 0, "graph", "nodes", 0, kind="blob"),
            "kind is 'blob', expected one of 'input', 'map'",
        ),
        (edited("steps", 1, "phases", 0, "graph", "nodes", 0, kind=[]), r"kind is \[\], expected one of"),
        (edited("steps", 1, "phases", 0, "graph", "nodes", 0, x=float("nan")), "x is nan, expected a finite number"),
        (edited("steps", 1, "phases", 0, "graph", "edges", 0, points=[[1.0]]), r"points\[0\] has 1 values, expected 2"),
        (edited(versions={"python": 3}), "trace.versions.python is int, expected str"),
        (edited(lines=[["a", "b"]]), r"trace.lines\[0\] has 2 values"),
        (edited(lines=[["a", "b", "c", "d", [1]]]), r"trace.lines\[0\] is int, expected str"),
    ],
)
def test_a_corrupted_record_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=message):
        t.from_json(text)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(TraceError, match=r"bad\.json: .*" + message):
        t.load_trace(tmp_path / "bad.json")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*none\.json: No such file"):
        t.load_trace(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'{"schema": "\xe9"}')
    with pytest.raises(TraceError, match="not UTF-8"):
        t.load_trace(tmp_path / "latin.json")


def test_a_trace_of_wrong_types_is_not_written() -> None:
    trace = example()
    with pytest.raises(TraceError, match=r"trace.command is int, expected str"):
        t.to_json(replace(trace, command=3))  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=r"trace.operator.params.f is function, expected plain JSON"):
        t.to_json(replace(trace, operator=replace(trace.operator, params={"f": example})))
    with pytest.raises(TraceError, match=r"trace.operator.params.x is inf"):
        t.to_json(replace(trace, operator=replace(trace.operator, params={"x": float("inf")})))
    with pytest.raises(TraceError, match=r"definition\[0\].text is int"):
        t.to_json(replace(trace, operator=replace(trace.operator, definition=(t.Line("a", 1),))))  # type: ignore[arg-type]


# -- links ------------------------------------------------------------------------------------------


def relinked(number: int, **links) -> t.Trace:
    trace = example()
    assert trace.kernel
    triton = tuple(replace(x, **links) if x.number == number else x for x in trace.kernel.triton)
    return replace(trace, kernel=replace(trace.kernel, triton=triton))


def test_links_of_a_whole_record_hold() -> None:
    assert t.links(example()) == ()


@pytest.mark.parametrize("number", sorted(COMPUTES))
@pytest.mark.parametrize("stage", ["nodes", "blocks", "definition"])
def test_every_line_that_computes_reaches_every_stage(number: int, stage: str) -> None:
    (problem,) = t.links(relinked(number, **{stage: ()}))
    assert problem.startswith(f"triton, line {number}: it computes and has no {stage}: ")


def test_a_statement_over_several_lines_may_be_linked_on_any() -> None:
    full = {"nodes": ("tile:0",), "blocks": ("store:s31",), "definition": ("def:s_sum",)}
    trace = relinked(14, nodes=(), blocks=(), definition=())
    assert trace.kernel
    triton = tuple(replace(x, **full) if x.number == 15 else x for x in trace.kernel.triton)
    assert t.links(replace(trace, kernel=replace(trace.kernel, triton=triton))) == ()


def test_dangling_links_are_named() -> None:
    assert t.links(relinked(12, nodes=("tile:9",))) == ("triton, line 12: 'tile:9' in nodes does not exist",)
    trace = example()
    assert trace.kernel
    bad = replace(trace.kernel, passes=(t.PassRecord("fold", (line(1, ("store:gone",)), *trace.kernel.htile)),))
    assert t.links(replace(trace, kernel=bad)) == (
        "htile after fold: line 'store:s1' refers to 'store:gone', which the stage above does not have",
    )
    bad = replace(trace.kernel, source=SOURCE.replace("total = 0.0", "total = 1.0"))
    assert t.links(replace(trace, kernel=bad)) == ("triton: the lines are not those of the source",)
    graph = t.Graph((t.GraphNode("a", "a", "map"),), (t.GraphEdge("a", "b", "x"),))
    bad = t.Phase("naive", "", "", (t.Line("store:x", "x", "elsewhere", "store", ("def:y",)),), graph)
    assert t.links(replace(trace, steps=(t.StepRecord(0, "fuse", {}, "", (bad,)),), kernel=None)) == (
        "step 0 (fuse), phase naive: line 'store:x' refers to 'def:y', which the stage above does not have",
        "step 0 (fuse), phase naive: line 'store:x' comes from 'elsewhere', which is no stage of the definition",
        "step 0 (fuse), phase naive: the edge a to b has no node 'b'",
    )


def test_source_that_is_not_python_is_a_problem() -> None:
    trace = example()
    assert trace.kernel
    broken = replace(trace.kernel, source="def (:", triton=(t.SourceLine(1, "def (:"),))
    assert t.links(replace(trace, kernel=broken)) == ("triton: line 1 is not Python: invalid syntax",)
