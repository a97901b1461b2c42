"""Errors travel to other processes whole: each class, found by walking them."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import neptune_lab
from neptune_lab.errors import DefinitionError, FileError, NeptuneError, RepairError, ScheduleError, TileError
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.repairing import RepairRefused
from neptune_lab.operators import softmax
from neptune_lab.repair import solve
from neptune_lab.repair.supplied import prove_supplied


def every_class() -> list[type[NeptuneError]]:
    """The root and each class under it, of all modules that can be imported here."""
    for found in pkgutil.walk_packages(neptune_lab.__path__, "neptune_lab."):
        if ".shipped" not in found.name and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    classes, left = [], [NeptuneError]
    while left:
        kind = left.pop()
        classes.append(kind)
        left += kind.__subclasses__()
    return [kind for kind in classes if kind.__module__.startswith("neptune_lab")]


def made(kind: type[NeptuneError]) -> NeptuneError:
    cause = RepairError("why", step="invert", expression="max(c, r)")
    given = {"step": "invert", "expression": "max(c, r)", "node": "r.j", "help": "what helps", "cause": cause}
    parameters = inspect.signature(kind).parameters.values()
    keywords = {p.name: given.get(p.name, p.name) for p in parameters if p.kind is p.KEYWORD_ONLY}
    error = kind("what went wrong", **keywords)
    error.add_note("a note")
    return error


def same(a: NeptuneError, b: NeptuneError) -> bool:
    return type(a) is type(b) and a.args == b.args and str(a) == str(b) and vars(a) == vars(b)


# Raised inside, and caught there: their text goes into a remark or into another error that has a help.
INNER = {
    "UnsupportedKernel(",
    "TvmRefusal",
    "UnknownSpelling",
    "an entry whose ",
    "left to the single steps",
    "no more than {LONGEST_RUN}",
}
INNER |= {"{ATTEMPTS} ways to fuse"}


def without_help(text: str, kinds: set[str]) -> list[int]:
    """Lines of a module that make an error of `kinds`, with a message and without a help."""
    if not any(kind in text for kind in kinds):
        return []
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Name | ast.Attribute)
        and (call.func.id if isinstance(call.func, ast.Name) else call.func.attr) in kinds
        and not {word.arg for word in call.keywords} & {"help", None}
        and not any(inner in ast.unparse(call) for inner in INNER)
    ]


def test_each_error_has_a_help():
    kinds = {kind.__name__ for kind in every_class() if kind.usual_help is None} - {"NeptuneError"}
    assert without_help("raise ScheduleError('no')", kinds) == [1]
    assert without_help("raise ScheduleError('no', help='yes')", kinds) == []
    folder = Path(neptune_lab.__file__).parent
    found = {
        path.relative_to(folder).as_posix(): without_help(path.read_text(), kinds) for path in folder.rglob("*.py")
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_class_has_a_usual_help():
    assert TileError("wrong").help == TileError.usual_help
    assert TileError("wrong", help="right").help == "right"
    assert ScheduleError("wrong").help is None


def test_each_error_is_pickled_and_copied_whole():
    classes = every_class()
    assert {NeptuneError, RepairError, FileError, ScheduleError} <= set(classes)
    for kind in classes:
        error = made(kind)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert same(pickle.loads(pickle.dumps(error, protocol)), error), kind
        assert same(copy.copy(error), error), kind
        assert same(copy.deepcopy(error), error), kind


def refuse(g: str) -> None:
    solve("sum", g, ["r"])


def test_what_real_refusals_hold_is_pickled():
    with pytest.raises(RepairError) as wrong:
        prove_supplied("sum", "exp(c - r)", ["r"], "t*exp(r_now - r_before)")
    schedule = Schedule(softmax.figure1(rows=4, cols=8))
    with pytest.raises(RepairRefused) as refused:
        schedule.rolling_update("s_sum", "s_max.j", repair="t * exp(xmax_now - xmax_before)")
    for error in (wrong.value, refused.value):
        found = pickle.loads(pickle.dumps(error))
        assert type(found) is type(error)
        assert str(found) == str(error)
        assert vars(found).keys() == vars(error).keys()


@pytest.mark.nightly
def test_a_refusal_comes_back_from_another_process():
    with pytest.raises(RepairError) as here:
        refuse("max(c, r)")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, pytest.raises(RepairError) as there:
        pool.submit(refuse, "max(c, r)").result(timeout=300)
    assert there.value.step == here.value.step == "invert"
    assert str(there.value) == str(here.value)
    assert [step.text for step in there.value.passed] == [step.text for step in here.value.passed] != []


def test_long_texts_are_cut_in_the_message_and_in_the_help():
    error = DefinitionError(f"expected a list, found {'1, ' * 9999}: remove it", help="x" * 9999)
    assert error.reason.startswith("expected a list, found 1, 1")
    assert error.reason.endswith("1, : remove it")
    assert "characters left out" in error.reason
    assert len(str(error)) < 3300
