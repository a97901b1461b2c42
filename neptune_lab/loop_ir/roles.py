"""What the primitives made of a block: its role in a scheduled program, and the repair that it carries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neptune_lab.errors import ScheduleError


class Role(StrEnum):
    """What a primitive made of a block; the value is the role's name in the text of a program."""

    DEFINED = ""
    """As in the definition, or moved and tiled only."""
    LOCAL = "local"
    """Reduces one split of the reduced dimension (`split_k_update`, `privatize_reduction`)."""
    TILE = "tile"
    """Reduces one tile of the reduced dimension (`rolling_update`)."""
    GLOBAL = "global"
    """Combines the values of local blocks or tiles."""
    SCAN = "scan"
    """Carries a value along the rolling loop and keeps it for every tag (`materialize_tags`)."""
    CURRENT = "current"
    """A scan that keeps the value of the current iteration only (`retire_tags`)."""
    INITIAL = "initial"
    """Writes the value before the first iteration (`retire_tags`), or a reduction's start value."""
    RETIRE = "retire"
    """Copies the current value to the previous one at the end of an iteration (`retire_tags`)."""
    ROLLED = "rolled"
    """A pointwise stage that is computed again per tag, inside the rolling loop."""
    CACHE = "cache"
    """A copy of a tensor in faster memory (`cache_read`, `cache_write`)."""

    def __repr__(self) -> str:
        """As Python reads it: the script of a ValidationError holds programs as Python data."""
        return f"Role.{self.name}"


# Roles of blocks that reduce a part of the reduced dimension. The last part may hold fewer elements.
PARTIAL = (Role.LOCAL, Role.TILE)


@dataclass(frozen=True, slots=True)
class RepairInfo:
    """The repair that a block carries (paper, section 4.2): which stages it follows, and whether it is proved.

    Args:
        by: the stages of the definition whose values the repair reads, sorted.
        unproved: the repair as the user gave it, if it is not proved; None if it is.
        wrong: numbers show that the unproved repair is wrong.

    Raises:
        ScheduleError: `wrong` without `unproved`; a proved repair is not wrong.
    """

    by: tuple[str, ...] = ()
    unproved: str | None = None
    wrong: bool = False

    def __post_init__(self) -> None:
        if self.wrong and self.unproved is None:
            raise ScheduleError(
                "RepairInfo(wrong=True): expected unproved= as well, since a proved repair is not wrong",
                help='give the repair as text, for example unproved="t * exp(r_before - r_now)"',
            )


__all__ = ["PARTIAL", "RepairInfo", "Role"]
