"""How a consumer waits for copies, gives slots back and takes turns: by itself, or through the relays of its groups."""

from __future__ import annotations

from collections.abc import Sequence

from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.relay_helpers import TURNS
from neptune_lab.htile_to_gluon.shared_memory import RingBuffer


class Barriers:
    """Those of a consumer of four warps.

    Args:
        ctx: of the function that is emitted.
        me: the consumer's number in it.
    """

    # Whether a wait has to be between two arrivals.
    alternate = False

    def __init__(self, ctx: GluonContext, me: str) -> None:
        self.ctx = ctx
        self.me = me

    def wait(self, barriers: Sequence[str]) -> None:
        """Waits for barriers in shared memory, each with a parity."""
        for barrier in barriers:
            self.ctx.line(f"mbarrier.wait({barrier})")

    def arrive(self, barriers: Sequence[str]) -> None:
        """Arrives at barriers in shared memory."""
        for barrier in barriers:
            self.ctx.line(f"mbarrier.arrive({barrier}, count=1)")

    def open_turns(self) -> None:
        """Lets the first group of warps issue its products first."""
        self.ctx.line(f"if {self.me} == 1:")
        self.ctx.line(f"    {self.ctx.helper('_arrive')}({TURNS})")

    def take_turn(self) -> None:
        """Waits until the group may issue products."""
        self.ctx.line(f"{self.ctx.helper('_sync')}({TURNS} + {self.me})")

    def pass_turn(self) -> None:
        """Lets the other group issue its products."""
        self.ctx.line(f"{self.ctx.helper('_arrive')}({TURNS + 1} - {self.me})")


class RelayedBarriers(Barriers):
    """Those of a consumer of two groups, for each of which a relay waits and arrives (relay.py)."""

    alternate = True

    def wait(self, barriers: Sequence[str]) -> None:
        """Waits until the relays have waited."""
        self._call("_await_relay")

    def arrive(self, barriers: Sequence[str]) -> None:
        """Lets the relays arrive."""
        self._call("_tell_relay")

    def open_turns(self) -> None:
        """Lets the first group issue its products first."""
        self._call("_open_turns")

    def take_turn(self) -> None:
        """Each group waits until it may issue products."""
        self._call("_take_turn")

    def pass_turn(self) -> None:
        """Each group lets the other one issue its products."""
        self._call("_pass_turn")

    def _call(self, name: str) -> None:
        self.ctx.line(f"{self.ctx.helper(name)}()")


class BarriersOfRelay(Barriers):
    """Those of a relay: what a consumer of four warps does, and where it meets its group."""

    alternate = True

    def wait(self, barriers: Sequence[str]) -> None:
        """Waits, then lets the group go on."""
        super().wait(barriers)
        self.ctx.line(f"{self.ctx.helper('_tell_group')}({self.me})")

    def arrive(self, barriers: Sequence[str]) -> None:
        """Arrives once the group says so."""
        self.ctx.line(f"{self.ctx.helper('_await_group')}({self.me})")
        super().arrive(barriers)


def full(ring: RingBuffer, more: str = "") -> str:
    """What to wait for until a ring's current slot is full: its barrier and parity; `more`: further arguments."""
    return f"{ring.full}.index({ring.slot}), {ring.phase}{more}"


__all__ = ["Barriers", "BarriersOfRelay", "RelayedBarriers", "full"]
