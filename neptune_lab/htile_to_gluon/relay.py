"""A relay: one warp that waits and arrives at barriers in shared memory for a group of four warps.

Where one consumer of eight warps computes 128 rows, its code is compiled once, but Triton makes all eight meet at each
of these barriers, so that the two groups could not take turns.  So each group has a relay, which does for it what a
consumer of four warps does itself, in the same order, and meets the group alone, at barriers of the hardware:

    group    ...  _await_relay()        product  _tell_relay()   ...
    relay    mbarrier.wait(full)  _tell_group    _await_group  mbarrier.arrive(empty)

Formal statement: a relay makes the waits and arrivals of `Consumer` in its order.  Both meet at each wait, and between
two arrivals of the group is a wait, so the group does not arrive twice before the relay has seen the first.
"""

from __future__ import annotations

from neptune_lab.htile.nodes import IndexExpr, Store
from neptune_lab.htile_to_gluon.barriers import BarriersOfRelay, full
from neptune_lab.htile_to_gluon.consumer import Consumer
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.producer import for_tiles_of_program
from neptune_lab.htile_to_gluon.shared_body import Body
from neptune_lab.htile_to_gluon.shared_memory import SharedMemory, by_ring
from neptune_lab.htile_to_gluon.structure import LoopPart


class Relay(Consumer):
    """The emission of a relay's function: the consumer's barriers, without its work."""

    def __init__(self, ctx: GluonContext, shared: SharedMemory) -> None:
        super().__init__(ctx, shared)
        self.barriers = BarriersOfRelay(ctx, self.me)

    def emit(self) -> None:
        """Emits the body of the function."""
        self.ctx.root.binds = frozenset()
        for ring in self.shared.rings:
            self.ctx.line(f"{ring.slot} = 0")
            self.ctx.line(f"{ring.phase} = 0")
        for_tiles_of_program(self.ctx, self._tile)

    def _slot(self) -> str:
        return self.shared.resident_slot("0")

    def _prologue(self, this: LoopPart, left: IndexExpr) -> None:
        self._start_leading(this)
        self._release(self.shared.leading)
        self._await_next(left)

    def _steady_state(self, body: Body, left: IndexExpr) -> None:
        self._issue_trailing(body.part)
        self._release(self.shared.leading)
        self._await_next(left)
        self._release(self.shared.trailing)

    def _epilogue(self, this: LoopPart) -> None:
        self._issue_trailing(this)
        self._release(self.shared.trailing, self._spent())

    def _issue_leading(self, this: LoopPart) -> None:
        """Products are the group's."""

    def _issue_trailing(self, this: LoopPart, *, waited: bool = False) -> None:
        for ring in by_ring(self.shared.trailing, this.trailing):
            self._at(this.trailing[0].store)
            self.barriers.wait([full(ring)])

    def _store(self, stmt: Store) -> None:
        """Row work is the group's."""


__all__ = ["Relay"]
