"""The kinds of arguments that primitives take.

A primitive annotates its parameters with the types below (`loop: LoopRef`, `size: Size`). The kind of an argument
defines how it is checked, its type in the method of `Schedule`, its text in a step, and its control in the editor.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.annotations import GRID, HINTS
from neptune_lab.loop_ir.nodes import SCOPES
from neptune_lab.loop_schedule.arguments import NOTES, is_count
from neptune_lab.loop_schedule.cut_loops import FACTORS, SIZE, TILES, Cutting
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import items_of


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(x, str) for x in value)


def _is_new_name(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _is_new_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_new_name, value))


def _is_sizes(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and is_count(v) for k, v in value.items())


def _is_factors(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(x is None or is_count(x) for x in value)


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _as_given(value: Any) -> Any:
    return value


def _listed(value: Any) -> Any:
    """A list of the items of an iterable; a string or any other value unchanged, which the check then refuses."""
    items = items_of(value)
    return value if items is None else list(items)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of argument.

    Args:
        control: the editor's control: "block", "loop", "loops", "buffer", "factors", "tiles", "choice", "int", "text"
            or "sentence".
        annotation: the type of the parameter of `Schedule`'s method, as Python text.
        fits: whether a value is of this kind.
        expected: what the error says was expected if a value does not fit.
        example: the help of that error.
        passed_as: how the text of a call passes it: by "position", by "name", as "several" positions (`*loops`) or as
            several "named" values (`**tiles`).
        of_step: converts the value that a method got to the value that its step holds.
        choices: the strings that are allowed; (): all that fit.
        offered: the values that the editor offers; (): the editor computes them from the program.
        refusal: the message for a value that is not among the choices; {name} and {value} are filled in.
        explicit: whether a step holds the argument even if it equals its default.
        own: for a loop: whether "block.loop" must have the block of the primitive's argument `block`.
        cutting: how a value cuts loops, and what it becomes if they have other extents; None: it cuts none.
        silent: values with which a step changes no number.
    """

    control: str
    annotation: str
    fits: Callable[[Any], bool]
    expected: str
    example: str
    passed_as: Literal["position", "name", "several", "named"] = "name"
    of_step: Callable[[Any], Any] = _as_given
    choices: tuple[str, ...] = ()
    offered: tuple[Any, ...] = ()
    refusal: str = ""
    explicit: bool = False
    own: bool = False
    cutting: Cutting | None = None
    silent: tuple[Any, ...] = ()

    def check(self, primitive: str, name: str, value: Any) -> None:
        """Checks a value.

        Args:
            primitive: the primitive's name, for the message.
            name: the argument's name, for the message.
            value: the value to check.

        Raises:
            ScheduleError: the value does not fit, or is not among the choices.
        """
        if not self.fits(value):
            raise ScheduleError(f"{primitive}: {name}={shown(value)}, expected {self.expected}", help=self.example)
        if self.choices and value not in self.choices:
            message = self.refusal.format(name=name, value=repr(value))
            close = difflib.get_close_matches(value[:100], self.choices, n=1, cutoff=0.5)
            *others, last = (f'"{choice}"' for choice in self.choices)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise ScheduleError(message, help=f"{meant}Use {', '.join(others)} or {last}")

    def block_of(self, value: Any) -> str | None:
        """The block that a value names.

        Args:
            value: a checked value, such as "s_max" or "s_max.j".

        Returns:
            The block's name, "s_max"; None if values of this kind name neither a block nor a loop with its block.
        """
        return str(value).partition(".")[0] if self.control in ("block", "loop") else None


_TEXT = Kind("text", "str", _is_text, "a string", "a block is written 's_max', a loop 's_max.j'")
_REF = replace(_TEXT, passed_as="position")


def _choice(choices: tuple[str, ...], refusal: str, *, explicit: bool = False) -> Kind:
    return replace(_TEXT, control="choice", choices=choices, offered=choices, refusal=refusal, explicit=explicit)


# A block's name: "s_max".
BlockName: TypeAlias = Annotated[str, replace(_REF, control="block")]
# A loop with its block: "s_max.j".
LoopRef: TypeAlias = Annotated[str, replace(_REF, control="loop")]
# A loop around the primitive's `block`, as "block.loop" with that block.
OwnLoopRef: TypeAlias = Annotated[str, replace(_REF, control="loop", own=True)]
# An ordered list of loops around the primitive's `block`, named without it: "i0", "j0".
LoopNames: TypeAlias = Annotated[
    list[str],
    Kind(
        *("loops", "str", _is_names, "a list of loop names", "name loops without their block, as in ['i', 'j']"),
        passed_as="several",
        of_step=_listed,
    ),
]
# Names for several loops that a primitive creates, or for one.
NewNames: TypeAlias = Annotated[
    list[str],
    Kind(
        *("text", "Iterable[str]", _is_new_names, "a list of Python identifiers"),
        "name loops without their block, as in ['j0', 'j1']",
        of_step=_listed,
    ),
]
NewName: TypeAlias = Annotated[
    str,
    replace(
        _TEXT,
        fits=_is_new_name,
        expected="a Python identifier",
        example="for example 'outer', or leave it out for the default name",
        offered=("outer", "inner"),
    ),
]
# A buffer that the block reads.
BufferName: TypeAlias = Annotated[str, replace(_TEXT, control="buffer")]
# Elements per tile; the primitive's `loop` is cut into such tiles.
Size: TypeAlias = Annotated[int, Kind("int", "int", is_count, "a positive integer", "for example 64", cutting=SIZE)]
# Extents of the loops that the primitive's `loop` is split into; None: computed from the others.
Factors: TypeAlias = Annotated[
    list[int | None],
    Kind(
        *("factors", "Iterable[int | None]", _is_factors, "a tuple of positive integers, at most one of them None"),
        "for example (None, 64)",
        of_step=_listed,
        cutting=FACTORS,
    ),
]
# Elements per tile for each loop, by the loop's name without its block.
TileSizes: TypeAlias = Annotated[
    dict[str, int],
    Kind(
        *("tiles", "int", _is_sizes, "a positive integer for each loop", "for example tile('s_max', i=64, j=64)"),
        passed_as="named",
        cutting=TILES,
    ),
]
# A repair term that the user gives, as a scalar formula.
FORMULA = replace(
    _TEXT,
    expected="a formula as a string",
    example="for example 't * exp(xmax_before - xmax_now)', or leave it out, and it is derived",
)
Formula: TypeAlias = Annotated[str, FORMULA]
# A sentence for readers.
Sentence: TypeAlias = Annotated[str, replace(_TEXT, control="sentence")]
Switch: TypeAlias = Annotated[
    bool,
    Kind(
        *("choice", "bool", lambda v: isinstance(v, bool), "True or False", "pass True or False"),
        offered=(True, False),
    ),
]
GridAxis: TypeAlias = Annotated[str, _choice(GRID, "{name}={value} is not a grid axis")]
# Explicit: readers of a schedule look for the scope, so a step always names it.
Scope: TypeAlias = Annotated[str, _choice(SCOPES, "{name}={value} is not a memory scope", explicit=True)]
MapPolicy: TypeAlias = Annotated[str, _choice(("auto", "inline", "keep"), "{name}={value} is not a policy")]
# The key of an annotation. The editor does not offer "note", whose value is free text.
NoteKey: TypeAlias = Annotated[
    str,
    replace(
        _choice(NOTES, "there is no annotation {value}"),
        offered=tuple(k for k in NOTES if k != "note"),
        silent=HINTS,
    ),
]
NoteValue: TypeAlias = Annotated[
    str | int,
    Kind(
        *("int", "str | int", _is_value, "a string or an int", "a number of warps is 4, a note is 'by hand'"),
        offered=(1, 2, 3, 4, 8, 16),
        explicit=True,
    ),
]

__all__ = [
    "FORMULA",
    "SCOPES",
    "BlockName",
    "BufferName",
    "Factors",
    "Formula",
    "GridAxis",
    "Kind",
    "LoopNames",
    "LoopRef",
    "MapPolicy",
    "NewName",
    "NewNames",
    "NoteKey",
    "NoteValue",
    "OwnLoopRef",
    "Scope",
    "Sentence",
    "Size",
    "Switch",
    "TileSizes",
]
