"""`%%explore` in IPython's own shell: what the cell does, whose lines are shown, and how errors read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from neptune_widgets.explorer import Explorer

ATTENTION = """\
%%explore q=float16[1, 2, 64, 32] k=float16[1,2,64,32] --block-q 32 v=float16[1,2,64,32] -o view

def attention(q, k, v):
    # scaled
    scores = q @ k.mT / 8
    return torch.softmax(scores, -1) @ v

print("the cell ran")
attention.__name__
"""


class Shell:
    """A shell with the magic, and what it prints."""

    def __init__(self, shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
        self.shell = shell
        self.capsys = capsys

    def run(self, cell: str) -> str:
        """What a cell prints that succeeds; its value is `result`."""
        done = self.shell.run_cell(cell, store_history=True)
        out = self.capsys.readouterr().out
        assert done.success, out
        self.result = done.result
        return out

    def fail(self, cell: str) -> str:
        """What a cell prints that fails."""
        done = self.shell.run_cell(cell, store_history=True)
        out, err = self.capsys.readouterr()
        assert not done.success, out
        return out + err


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    InteractiveShell.clear_instance()
    made = Shell(InteractiveShell.instance(colors="nocolor"), capsys)
    made.run("%load_ext neptune_lab\nimport torch")
    yield made
    InteractiveShell.clear_instance()


@pytest.mark.nightly
def test_a_cell_runs_and_its_function_is_explored(shell: Shell):
    out = shell.run(ATTENTION)
    number = shell.shell.displayhook.prompt_count
    assert "the cell ran" in out
    assert f"Out[{number}]: 'attention'" in out, "the last expression is shown as in any cell"
    assert f"Out[{number}]: Explorer: attention" in out
    view = shell.result
    assert isinstance(view, Explorer)
    assert view is shell.shell.user_ns["view"]
    shell.run("assert attention(*torch.zeros(3, 1, 2, 64, 32)).shape == (1, 2, 64, 32)")
    operator = view.schedule.operator
    assert [t.shape for t in operator.inputs] == [(1, 2, 64, 32)] * 3
    assert operator.lines["scores"].line == 5, "counted in the cell, whose first line is the magic's"
    lines = operator.python[0].lines
    assert [(line.number, line.text) for line in lines][:3] == [
        (3, "def attention(q, k, v):"),
        (4, "    # scaled"),
        (5, "    scores = q @ k.mT / 8"),
    ]
    assert str(operator.lines["scores"]) == f"cell In[{number}], line 5: `scores = q @ k.mT / 8`"
    (template,) = [step for step in view.schedule.steps if step.primitive == "rolling_update"][:1]
    assert "32" in view.to_python()
    assert template is not None
    assert view.kernel is not None


MODULE = """
%%explore x=float32[4,8] --function scaled
class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2, -1)

def other(x):
    return torch.sort(x).values

scaled = Scaled()
"""


@pytest.mark.nightly
def test_a_name_is_chosen_and_modules_are_taken(shell: Shell):
    shell.run(MODULE.strip())
    assert shell.result.trace.operator.title == "Scaled"
    shell.run(MODULE.strip().replace("--function scaled", "--function Scaled"))
    assert [f.lines[0].text.strip() for f in shell.result.trace.operator.python] == ["def forward(self, x):"]


def cell(inputs: str, *lines: str) -> str:
    return "\n".join([f"%%explore {inputs}", *lines])


F = ("def f(x):", "    y = x * 2", "    return torch.sort(y).values")
REFUSED = {
    cell("x=flot16[1]", *F): ("there is no dtype 'flot16'", "    x=flot16[1]\n      ^\n  help: did you mean float16?"),
    cell("", *F): ("no inputs are given", "help: write name=dtype[sizes]"),
    cell("x=float32[4,8]", *F): (
        "torch's sort is not supported, in cell In[",
        "line 4: `return torch.sort(y)",
        "help:",
    ),
    cell("x=float32[4,8] y=float32[1]", *F): ("f has no parameter 'y'; its parameters: x", "help:"),
    cell("x=float32[4,8]", "x = 3"): ("the cell defines no function", "--function NAME"),
    cell("x=float32[4,8] -f g", *F): ("does not define 'g'", "help:"),
    cell("x=float32[4,8] --template nope", "def f(x):", "    return x.softmax(-1)"): ("no template 'nope'", "help:"),
    cell("x=float32[4] -f L", "L = torch.nn.Linear"): ("L of the cell cannot be made without arguments", "help:"),
    cell("x=float32[4] --blokc 2", *F): ("UsageError: unrecognized arguments: --blokc 2",),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_are_short_and_name_the_line(shell: Shell, text: str):
    out = shell.fail(text)
    for words in REFUSED[text]:
        assert words in out
    assert "Traceback" not in out
    assert "neptune_widgets" not in out
    assert len(out.splitlines()) <= 5


def test_an_error_of_the_cell_is_shown_from_its_own_line(shell: Shell):
    out = shell.fail(cell("x=float32[4]", "def f(x):", "    return x", "def g():", "    return 1 / 0", "g()"))
    assert "ZeroDivisionError: division by zero" in out
    assert "----> 6 g()" in out
    assert "----> 5     return 1 / 0" in out
    assert "run_cell_magic" not in out
    assert "magic.py" not in out
    out = shell.fail(cell("x=float32[4]", "", "def f(x):", "    return x +"))
    assert "SyntaxError: invalid syntax" in out
    assert "line 4" in out
    assert "run_cell_magic" not in out
