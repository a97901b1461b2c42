"""A repair that the user gives to a primitive, by its arguments `repair` and `proved`."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class UserRepair:
    """A repair that the user gives.

    Args:
        h: its text.
        proved: whether to refuse it if it is not proved; otherwise it is marked.
        shown: (buffer, name) of each producer that has another name in h than its buffer.
    """

    h: str
    proved: bool = True
    shown: tuple[tuple[str, str], ...] = ()

    def names(self, producers: tuple[str, ...]) -> list[str]:
        """The names that producers have in h."""
        return [dict(self.shown).get(p, p) for p in producers]


def user_repair_of(primitive: str, block: str, repair: str | None, proved: bool) -> UserRepair | None:
    """The arguments `repair` and `proved` of a primitive; ScheduleError if proved=False is given without a repair."""
    if repair is not None:
        return UserRepair(repair, proved)
    if not proved:
        raise ScheduleError(
            f"{primitive}({block!r}): proved=False is for a repair that is given, and none is",
            node=block,
            help="a derived repair is always proved; give one with repair='…', or leave proved out",
        )
    return None


def nothing_to_repair(primitive: str, block: str, given: UserRepair | None) -> None:
    """Raise ScheduleError if a repair is given although there is nothing to repair."""
    if given is not None:
        raise ScheduleError(
            f"{primitive}({block!r}): a repair is given, but {block} reads no reduction that the loop leaves "
            "incomplete",
            node=block,
            help="leave repair= out: there is nothing to repair",
        )


__all__ = ["UserRepair", "nothing_to_repair", "user_repair_of"]
