"""Where the stages of a backward pass come from: what of the definition each belongs to, and the rules that gave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["again", "cotangent", "part", "rounded", "count"]
"""What a stage is: a value of the forward pass "again"; a "cotangent", "part" of one, or one that is "rounded"; or a
"count" that the derivative of a reduction needs, such as that of the terms that are equal to a maximum."""


@dataclass(frozen=True, slots=True)
class Use:
    """What one reader adds to a cotangent.

    Args:
        reader: the stage of the definition whose term was differentiated; "" for what is given.
        rules: names of rules, as of `rules.rule`, the outermost first.
    """

    reader: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a stage of a backward pass comes from.

    Args:
        role: what it is.
        of: the stage or input of the definition that it belongs to.
        uses: for a cotangent, what it is the sum of.
        copy_of: the stage of another part that computes the same; "" if it is the first.
    """

    role: Role
    of: str
    uses: tuple[Use, ...] = ()
    copy_of: str = ""


def uses_of(parts: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[Use, ...]:
    """The uses of (reader, rules), without what is given."""
    return tuple(Use(reader, rules) for reader, rules in parts if reader)


__all__ = ["Origin", "Role", "Use", "uses_of"]
