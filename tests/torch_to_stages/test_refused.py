"""What cannot be compiled is refused with the user's line and a fix."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch
from torch_to_stages import refused

import neptune_lab as nl
from neptune_lab.errors import DefinitionError


def refusal(function) -> DefinitionError:
    with pytest.raises(DefinitionError) as caught:
        nl.from_torch(function, torch.randn(4, 8))
    return caught.value


@pytest.mark.one_in(3)
@pytest.mark.parametrize("function", refused.FUNCTIONS, ids=lambda f: f.__name__)
def test_an_error_names_the_line_and_a_fix(function):
    error = refusal(function)
    lines, first = inspect.getsourcelines(function)
    marked = [n for n, line in enumerate(lines, first) if line.rstrip().endswith("# here")]
    for number in marked:
        assert f"{refused.__file__}, line {number}: `{lines[number - first].strip()}`" in error.reason
        assert error.node == f"{refused.__file__}:{number}"
    assert error.help


def speaks(x):
    print("a word", file=sys.stderr)
    return refused.branches(x)


def test_torch_prints_and_logs_nothing_of_its_own(capfd: pytest.CaptureFixture[str]):
    """Its exporter prints the graph of a function whose control flow depends on values, and logs a warning."""
    assert "values of a tensor" in refusal(speaks).reason
    assert capfd.readouterr() == ("", "a word\n")


def test_the_messages(golden):
    rows = [f"{f.__name__}\n{refusal(f)}".replace(refused.__file__, "FILE") for f in refused.FUNCTIONS]
    golden("from_torch_refusals.txt", "\n\n".join(rows) + "\n")


def test_arguments_that_are_no_example():
    with pytest.raises(DefinitionError, match="is given no tensor"):
        nl.from_torch(refused.sorts)
    with pytest.raises(DefinitionError, match="expected a function"):
        nl.from_torch(3, torch.randn(2))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"shape \(0, 2\)"):
        nl.from_torch(torch.exp, torch.randn(0, 2))
    with pytest.raises(DefinitionError, match="the input 'x' has dtype uint8; expected float16"):
        nl.from_torch(lambda x: x.sum(), torch.zeros(2, dtype=torch.uint8))
    held = torch.zeros(4, 6, dtype=torch.uint8)
    with pytest.raises(DefinitionError, match=r"outside of the function, of shape \(4, 6\) has dtype uint8") as raised:
        nl.from_torch(lambda x: (x * held).sum(1), torch.zeros(4, 6))
    assert "mask.int()" in raised.value.help


def test_a_module_in_training_that_writes_statistics():
    with pytest.raises(DefinitionError, match="buffer"):
        nl.from_torch(torch.nn.BatchNorm1d(8), torch.randn(4, 8))
    nl.from_torch(torch.nn.BatchNorm1d(8).eval(), torch.randn(4, 8))
