"""Each line of the user's Python knows the stages that it became, and the record keeps text and links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from IPython.core.interactiveshell import InteractiveShell
from neptune_widgets import static_view
from neptune_widgets.parts import sent
from torch_to_stages.patterns import ATTENTION

import neptune_lab as nl
from neptune_lab import trace
from neptune_lab.loop_ir import tree
from neptune_lab.operators import Operator


def stages(operator: Operator, text: str) -> tuple[set[str], set[str]]:
    """The stages of the one line that has `text`: its own, and those that compute something of it."""
    found = [line for f in operator.python for line in f.lines if text in line.text]
    assert len(found) == 1, [line.text for line in found]
    return set(found[0].stages), set(found[0].within)


def attention(name: str) -> Operator:
    function, make = ATTENTION[name]
    return nl.from_torch(function, *make())


def test_lines_of_attention_have_their_stages():
    operator = attention("vanilla")
    function = ATTENTION["vanilla"][0]
    assert [f.title for f in operator.python] == ["vanilla in torch_to_stages/patterns.py"]
    lines = operator.python[0].lines
    assert lines[0].text == "def vanilla(q, k, v):"
    assert [line.number for line in lines] == [function.__code__.co_firstlineno + n for n in range(4)]
    assert stages(operator, "def vanilla") == (set(), set())
    assert stages(operator, "scores = q @ k") == ({"matmul", "scores"}, set())
    assert stages(operator, "torch.softmax") == ({"p_max", "p_exp", "p_sum", "p"}, set())
    assert stages(operator, "return p @ v") == ({"matmul_2", "out"}, set())


def test_a_line_without_a_stage_of_its_own_is_linked_to_those_that_compute_it():
    operator = attention("causal")
    assert stages(operator, "n = q.shape[-2]") == (set(), set())
    assert stages(operator, "torch.tril") == (set(), {"scores"})
    assert stages(operator, "torch.matmul") == ({"matmul"}, {"scores"})


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_every_stage_of_every_pattern_is_of_a_line_that_is_shown(name: str):
    operator = attention(name)
    shown = {stage for f in operator.python for line in f.lines for stage in line.stages}
    assert shown == set(operator.lines) == {b.name for b in tree.blocks(operator.program)}


def helper(x):
    # a comment
    return F.rms_norm(
        x,
        # another one
        x.shape[-1:],
    )


class Inner(torch.nn.Module):
    def forward(self, x):
        shifted = lambda t: torch.relu(t) + 1  # noqa: E731
        return shifted(x)


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(8, 8))
        self.inner = Inner()

    def forward(self, x):
        y = helper(x)
        return self.inner(y @ self.w)


def test_a_module_shows_its_forward_and_those_that_it_calls():
    operator = nl.from_torch(Outer().eval(), torch.randn(4, 8))
    where = "torch_to_stages/test_python_lines.py"
    assert [f.title for f in operator.python] == [
        f"{n} in {where}" for n in ("Outer.forward", "helper", "Inner.forward")
    ]
    rms = {"rms_norm_sum", "rms_norm"}
    assert stages(operator, "y = helper(x)") == (set(), rms), "a call has the stages of what it calls"
    assert stages(operator, "return self.inner(y") == ({"matmul"}, {"out"})
    assert stages(operator, "shifted = lambda") == ({"out"}, set())
    assert stages(operator, "return shifted(x)") == (set(), {"out"})
    for part in ("return F.rms_norm(", "x.shape[-1:],"):
        assert stages(operator, part) == (rms, set()), "a statement over several lines is one statement"
    for comment in ("# a comment", "# another one"):
        assert stages(operator, comment) == (set(), set())


def test_a_lambda_shows_its_statement():
    function = lambda x: x.sum(-1) * 2  # noqa: E731
    operator = nl.from_torch(function, torch.randn(4, 8))
    assert [[line.text.strip()[:20] for line in f.lines] for f in operator.python] == [["function = lambda x:"]]
    assert stages(operator, "lambda x: x.sum")[0] == {"sum", "out"}


def test_what_has_no_text_of_the_users_shows_none():
    made: dict = {"torch": torch}
    exec("def f(x):\n    return torch.softmax(x, -1)", made)
    for function in (torch.exp, F.silu, torch.nn.Linear(8, 8), made["f"]):
        operator = nl.from_torch(function, torch.randn(4, 8))
        assert operator.python == ()
        assert nl.Schedule(operator).program is not None


HOSTILE = """'</pre></script><img src=x onerror="window.hit = 1">'"""


def cell_operator() -> Operator:
    shell = InteractiveShell.instance()
    code = f"import torch\ndef f(x):\n    {HOSTILE}\n    p = torch.softmax(x, -1)\n    return p.amax(-1)\n"
    assert shell.run_cell(code).success
    return nl.from_torch(shell.user_ns["f"], torch.randn(4, 8))


def test_a_function_of_a_notebook_cell_is_shown_as_it_was_when_it_was_traced():
    operator = cell_operator()
    assert [f.title for f in operator.python] == ["f in a notebook cell"]
    assert [line.number for line in operator.python[0].lines] == [2, 3, 4, 5]
    assert stages(operator, "torch.softmax") == ({"p_max", "p_exp", "p_sum"}, {"amax"})
    InteractiveShell.instance().run_cell("def f(x):\n    return x\n")
    assert stages(operator, "p.amax(-1)") == ({"amax", "out"}, set())


@pytest.mark.nightly
def test_the_record_keeps_the_lines_and_their_links(tmp_path: Path):
    operator = cell_operator()
    record = nl.compile(operator, validate="none").trace
    assert trace.links(record) == ()
    trace.save(record, tmp_path / "record.json")
    again = trace.load_trace(tmp_path / "record.json")
    assert again == record
    (function,) = again.operator.python
    assert set(function.lines[2].definition) == {"def:p_max", "def:p_exp", "def:p_sum"}
    assert function.lines[2].within == ("def:amax",)
    head = json.loads(sent(record).head)
    assert head["operator"]["python"][0]["lines"][2]["definition"] == list(function.lines[2].definition)
    page = static_view.html(record)
    assert "<summary>f in a notebook cell</summary>" in page
    assert "<img" not in page
    assert "&lt;img" in page


@pytest.mark.nightly
def test_a_link_of_a_python_line_without_a_target_is_found():
    record = nl.compile(cell_operator(), validate="none").trace
    text = trace.to_json(record).replace('"within":["def:amax"', '"within":["def:gone"')
    assert trace.links(trace.from_json(text)) == (
        "f in a notebook cell: line 4 refers to 'def:gone', which the definition does not have",
    )
