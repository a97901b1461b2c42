"""Schedule's methods come from the declarations of primitives, for Python, for type checkers and for readers."""

from __future__ import annotations

import inspect
import pkgutil
import random
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from fuzz import random_steps

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule import PRIMITIVES, Schedule, as_method, methods, primitives
from neptune_lab.loop_schedule.cut_loops import CutLoop, Resized
from neptune_lab.loop_schedule.declare import Primitive, declared, primitive
from neptune_lab.loop_schedule.kinds import BlockName, Formula, LoopNames, Scope, Size, TileSizes
from neptune_lab.loop_schedule.outcome import Outcome
from neptune_lab.loop_schedule.steps import Step, call
from neptune_lab.operators import softmax

STUB = Path(methods.__file__).with_suffix(".pyi")
EACH = pytest.mark.parametrize("name", sorted(PRIMITIVES))


REWRITE = "pytest --update-golden on this test writes it anew"


def test_the_stub_shows_every_primitive_as_it_is_declared(request: pytest.FixtureRequest):
    if request.config.getoption("--update-golden"):
        STUB.write_text(as_method.stub(PRIMITIVES.values()), encoding="utf-8")
    assert STUB.read_text(encoding="utf-8") == as_method.stub(PRIMITIVES.values()), (
        "pytest --update-golden on this test writes it anew"
    )


def test_every_module_of_primitives_declares_one():
    for module in pkgutil.iter_modules(primitives.__path__):
        assert declared(import_module(f"{primitives.__name__}.{module.name}")), module.name


@EACH
def test_a_method_takes_what_its_primitive_takes(name: str):
    method = getattr(Schedule, name)
    names = [n for n in inspect.signature(method).parameters if n != "self"]
    assert names == [p.name for p in PRIMITIVES[name].parameters]
    assert method.__name__ == name
    assert method.__qualname__ == f"Schedule.{name}"
    assert (inspect.getdoc(method) or "").startswith(PRIMITIVES[name].summary)


@EACH
def test_a_docstring_explains_every_argument_and_what_comes_back(name: str):
    doc = inspect.getdoc(getattr(Schedule, name)) or ""
    arguments = doc.partition("Args:")[2]
    for p in PRIMITIVES[name].parameters:
        assert f"    {p.name}:" in arguments or f", {p.name}:" in arguments, p.name
    assert "Raises:\n    " in doc
    assert ("Returns:\n    " in doc) == (PRIMITIVES[name].makes != "nothing")


# -- a primitive that is declared here -------------------------------------------------------------


@primitive(ours=True, makes="one", made="The copy's name.")
def sample(
    program: Program,
    *,
    block: BlockName,
    loops: LoopNames,
    scope: Scope = "shared",
    formula: Formula | None = None,
    size: Size = 4,
) -> Outcome:
    """Does nothing.

    Raises:
        ScheduleError: never.
    """
    return Outcome(program, (), (f"{block}_{scope}",))


@primitive()
def sized(program: Program, *, block: BlockName, tiles: TileSizes) -> Outcome:
    """Does nothing."""
    return Outcome(program)


SAMPLE: Primitive = sample.primitive  # type: ignore[attr-defined]
SIZED: Primitive = sized.primitive  # type: ignore[attr-defined]


def test_a_declaration_says_all_of_a_method():
    assert str(as_method.signature(SAMPLE)) == (
        "(self, block: 'str', *loops: 'str', scope: 'str' = 'shared', formula: 'str | None' = None, size: 'int' = 4)"
        " -> 'str'"
    )
    assert str(as_method.signature(SIZED)) == "(self, block: 'str', /, **tiles: 'int') -> 'None'"
    assert as_method.docstring(SAMPLE) == (
        "Does nothing.\n\nReturns:\n    The copy's name.\n\nRaises:\n    ScheduleError: never."
    )
    assert as_method.docstring(SIZED) == "Does nothing."


def test_a_call_leaves_defaults_out_unless_they_are_explicit():
    step = call(SAMPLE, {"block": "s_max", "loops": ("i", "j"), "scope": "shared", "formula": None, "size": 4})
    assert step == Step.of("sample", block="s_max", loops=["i", "j"], scope="shared")
    assert call(SAMPLE, {"block": "s", "loops": ("i",), "scope": "local", "formula": "t", "size": 8}) == Step.of(
        "sample", block="s", loops=["i"], scope="local", formula="t", size=8
    )


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"block": 3, "loops": []}, "sample: block=3, expected a string"),
        ({"block": "s"}, "sample needs the argument 'loops'"),
        ({"block": "s", "loops": "i"}, "sample: loops='i', expected a list of loop names"),
        ({"block": "s", "loops": [], "scope": "register"}, "scope='register' is not a memory scope"),
        ({"block": "s", "loops": [], "scope": None}, "sample: scope=None, expected a string"),
        ({"block": "s", "loops": [], "size": True}, "sample: size=True, expected a positive integer"),
        ({"block": "s", "loops": [], "sise": 4}, "sample has no argument 'sise'"),
    ],
)
def test_arguments_are_checked_by_their_kinds(arguments: dict[str, object], match: str):
    with pytest.raises(ScheduleError, match=match) as caught:
        SAMPLE.check(arguments)
    assert caught.value.help


def test_none_stands_for_a_default_of_none_only():
    SAMPLE.check({"block": "s", "loops": [], "formula": None})


def test_blocks_are_found_by_kind():
    assert PRIMITIVES["rolling_update"].blocks({"block": "s_sum", "loop": "s_max.j"}) == ["s_sum", "s_max"]
    assert PRIMITIVES["remark"].blocks({"text": "s_max.j"}) == []


def test_steps_that_change_no_number_are_known_by_declaration():
    def silent(name: str, **arguments: object) -> bool:
        return PRIMITIVES[name].is_silent(arguments)

    assert silent("remark", text="why")
    assert silent("annotate", loop="s.j", key="num_warps", value=4)
    assert not silent("annotate", loop="s.j", key="sequential", value=1)
    assert not silent("cut", block="s")
    assert not silent("set_scope", block="s", scope="local")
    assert {p.name for p in PRIMITIVES.values() if p.repairs} == {"rolling_update", "split_k_update"}


def test_loops_that_a_step_cuts_are_found_by_kind():
    cut = PRIMITIVES["tile"].cut_loops({"block": "qk", "tiles": {"i": 16, "j": 8}})
    assert cut == [CutLoop("qk.i", 16), CutLoop("qk.j", 8)]
    assert PRIMITIVES["split"].cut_loops({"loop": "qk.j", "factors": [None, 4, 2]}) == [CutLoop("qk.j", 2, 4)]
    assert PRIMITIVES["split"].cut_loops({"loop": "qk.j", "factors": [8, None]}) == [CutLoop("qk.j", 0)]
    assert PRIMITIVES["tile_outermost"].cut_loops({"loop": "qk.j", "size": 8}) == [CutLoop("qk.j", 8)]
    assert SAMPLE.cut_loops({"block": "s", "loops": ["i"], "size": 4}) == [], "a size without a loop cuts none"
    assert PRIMITIVES["cut"].cut_loops({"block": "s"}) == []


def test_sizes_follow_the_loops_that_they_cut():
    halved = Resized(64, 32, lambda size: size // 2)
    tile = {"block": "qk", "tiles": {"i": 16, "j": 8}}
    assert PRIMITIVES["tile"].resized(tile, lambda _: halved) == {"block": "qk", "tiles": {"i": 8, "j": 4}}
    split = {"loop": "qk.j", "factors": [2, 4, 8], "names": ["a", "b", "c"]}
    assert PRIMITIVES["split"].resized(split, lambda _: halved) == {**split, "factors": [4, 2, 4]}
    assert PRIMITIVES["split"].with_sizes(split, lambda _, size: size + 1) == {**split, "factors": [3, 5, 9]}
    assert PRIMITIVES["split"].without_sizes(split) == {"loop": "qk.j", "names": ["a", "b", "c"]}
    outermost = {"loop": "qk.j", "size": 8}
    assert PRIMITIVES["tile_outermost"].with_sizes(outermost, lambda loop, size: len(loop) * size)["size"] == 32


def test_random_steps_are_drawn_from_declarations():
    """Every primitive but the remark, with arguments of their kinds; also one that only this file declares."""
    rng, sch = random.Random(0), Schedule(softmax.figure1(4, 8))
    drawn = [random_steps.step(rng, sch) for _ in range(400)]
    assert {step.primitive for step in drawn} == set(PRIMITIVES) - {"remark"}
    for step in drawn:
        PRIMITIVES[step.primitive].check(step.plain_arguments())
    for p in (SAMPLE, SIZED):
        for _ in range(20):
            p.check(random_steps.arguments(rng, p, sch))


def test_a_parameter_without_a_kind_is_refused():
    def unkind(program: Program, *, block: str) -> Outcome:
        raise AssertionError

    with pytest.raises(TypeError, match="primitive unkind: parameter 'block' has no kind"):
        primitive()(unkind)


def test_two_primitives_of_one_name_are_refused():
    def twice() -> Iterator[Primitive]:
        yield from (SAMPLE, SAMPLE)

    with pytest.raises(TypeError, match=r"two primitives are called 'sample', in .*test_methods and .*test_methods"):
        primitives.by_name(twice())


def named(name: str, *, ours: bool = False, after: str | None = None) -> Primitive:
    return replace(SAMPLE, name=name, ours=ours, after=after)


def test_lists_show_primitives_by_name_or_after_the_one_that_they_name():
    found = [named("b"), named("z", ours=True), named("a", after="b"), named("c"), named("d", after="a"), named("aa")]
    assert list(primitives.by_name(found)) == ["aa", "b", "a", "d", "c", "z"]
    assert list(PRIMITIVES)[:3] == ["split", "reorder", "fuse"]


def test_a_place_after_no_primitive_is_refused():
    with pytest.raises(TypeError, match="primitive a is to be listed after 'gone', which is no primitive"):
        primitives.by_name([named("a", after="gone"), named("b")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "missing a required argument: 'loop'"), (("s_max.i", "blockIdx.x", 3), "too many positional arguments")],
)
def test_a_call_that_does_not_fit_names_the_method(arguments: tuple[object, ...], message: str):
    with pytest.raises(
        TypeError, match=rf"Schedule.bind\(\): {message}\n  help: it is called as sch.bind\(loop, thread\)$"
    ):
        Schedule(softmax.figure1(4, 8)).bind(*arguments)  # type: ignore[call-arg]


def test_choices_are_those_that_are_checked():
    kind = next(p.kind for p in PRIMITIVES["bind"].parameters if p.name == "thread")
    assert kind.offered == kind.choices == ("blockIdx.x", "blockIdx.y", "blockIdx.z")


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_argument_is_described_by_a_sentence(name: str):
    about = PRIMITIVES[name].about()
    assert list(about) == [parameter.name for parameter in PRIMITIVES[name].parameters]
    assert all(text.endswith(".") and "  " not in text for text in about.values())
