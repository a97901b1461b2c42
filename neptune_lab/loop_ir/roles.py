"""The role of a block in a scheduled program, and the repair that it applies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from neptune_lab.errors import ScheduleError


class Role(StrEnum):
    """What a block does in a scheduled program; the value is the role's name in the text of a program."""

    DEFINED = ""
    """A stage of the definition, perhaps moved and tiled."""
    LOCAL = "local"
    """Reduces one split of the reduced dimension (`split_k_update`, `privatize_reduction`)."""
    TILE = "tile"
    """Reduces one tile of the reduced dimension (`rolling_update`)."""
    GLOBAL = "global"
    """Combines the values of local blocks or tiles."""
    SCAN = "scan"
    """Updates a value in every iteration of the rolling loop and keeps all values, one per tag (`materialize_tags`)."""
    CURRENT = "current"
    """A scan after `retire_tags`: it keeps the value of the current iteration only."""
    INITIAL = "initial"
    """Writes a start value: of a reduction, or of what a rolling loop updates (`retire_tags`)."""
    RETIRE = "retire"
    """Copies the current value to the previous one at the end of each iteration (`retire_tags`)."""
    ROLLED = "rolled"
    """A pointwise stage that is recomputed for each tag, inside the rolling loop."""
    CACHE = "cache"
    """A copy of a tensor in faster memory (`cache_read`, `cache_write`)."""

    def __repr__(self) -> str:
        """As Python reads it: the script of a ValidationError holds programs as Python data."""
        return f"Role.{self.name}"


# Roles of blocks that reduce a part of the reduced dimension. The last part may hold fewer elements.
PARTIAL = (Role.LOCAL, Role.TILE)


@dataclass(frozen=True, slots=True)
class RepairInfo:
    """The repair that a block applies (paper, section 4.2): which stages it follows, and whether it is proved.

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
