"""Every public function says what it takes, returns and raises: docstrings have Args, Returns and Raises."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import neptune_lab as nl
from neptune_lab import operators, records, repair, trace
from neptune_lab.loop_schedule import Schedule, plan, templates
from neptune_lab.loop_schedule.templates import config, nest_config, nest_defaults, nests, one_stage
from neptune_lab.operators import attention, gemm_chain, norms, performer, rows, softmax

# Modules of public functions; a class of `nl` brings its methods.
OPERATORS = (attention, gemm_chain, norms, performer, rows, softmax, operators)
TEMPLATES = (templates, config, nest_config, nest_defaults, nests, one_stage, plan)
MODULES = (*OPERATORS, *TEMPLATES, repair, trace)
CLASSES = (nl.Kernel, Schedule, nl.Target, repair.RepairTerm)
FUNCTIONS = (
    nl.attention,
    nl.compile,
    nl.explore,
    nl.from_torch,
    nl.load_trace,
    nl.solver,
    nl.time,
    nl.tune,
    records.best,
)
SECTION = re.compile(r"^(Args|Returns|Raises|Yields):$", re.MULTILINE)


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function and method, by its name."""
    for function in FUNCTIONS:
        yield function.__qualname__, function
    for module in MODULES:
        listed = getattr(module, "__all__", None)
        for name, function in vars(module).items():
            here = name in listed if listed else getattr(function, "__module__", "") == module.__name__
            if here and inspect.isfunction(function) and not name.startswith(("_", "define_", "preset_function")):
                yield f"{module.__name__}.{name}", function
    for kind in CLASSES:
        for name, _ in inspect.getmembers(kind):
            function = inspect.unwrap(getattr(kind, name))
            if name == "__call__" or not name.startswith("_"):
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function):
                    yield f"{kind.__qualname__}.{name}", function


PUBLIC = dict(public())


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """The sections of a docstring by their titles, and what comes before them as "".

    >>> sections(nl.compile)["Returns"].strip()[:10]
    'The kernel'
    """
    parts = SECTION.split(inspect.getdoc(function) or "")
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def raises(function: Callable[..., Any]) -> bool:
    """Whether the function's own text has a `raise`."""
    text = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    return any(isinstance(node, ast.Raise) for node in ast.walk(ast.parse(text)))


def test_there_are_public_functions():
    assert len(PUBLIC) > 80
    assert {"compile", "attention", "Schedule.rolling_update", "Schedule.undo", "Kernel.__call__"} <= set(PUBLIC)
    assert {"neptune_lab.repair.solve", "neptune_lab.operators.attention.causal"} <= set(PUBLIC)
    assert {"neptune_lab.loop_schedule.templates.rolling_update", "neptune_lab.loop_schedule.plan.plan"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_it_says_what_it_takes_returns_and_raises(name: str):
    function = PUBLIC[name]
    said = sections(function)
    assert said[""].strip(), f"{name} has no docstring"
    parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    if parameters:
        described = re.findall(r"\*{0,2}\b\w+\b(?=[\w, *]*:)", said.get("Args", ""))
        missing = [p for p in parameters if p not in described]
        assert not missing, f"{name} has no Args for {', '.join(missing)}"
    if inspect.signature(function).return_annotation not in (None, "None", inspect.Signature.empty):
        assert said.get("Returns", said.get("Yields", "")).strip(), f"{name} does not say what it returns"
    if raises(function):
        assert said.get("Raises", "").strip(), f"{name} raises, and does not say what"
