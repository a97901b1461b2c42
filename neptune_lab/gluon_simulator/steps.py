"""Simulated steps: what each group of warps does in order, and for which step of another group it waits.

A step is one operation of the emitted module: an operation on a tile, the start of a copy or of a product, an arrival
at a barrier.  A copy lands `COPY` steps after its start; a product ends `PRODUCT` steps after it, or after the product
before it.  A group that waits goes on at the step at which the last of what it waits for has happened.  So steps show
order and dependence; they are not time: on a GPU, operations take longer and shorter.

The steps follow from the module alone, not from the order in which threads of the simulation happen to run.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

# Steps that a copy and a product are in flight: so many that overlap can be seen.  They are no measurement.
COPY = 6
PRODUCT = 6

MODULE = "<gluon>"
"""The file name that the module's code is compiled with."""

Kind = Literal["compute", "copy", "product", "arrive", "wait"]
Lines = tuple[int, ...]


class Stamp(NamedTuple):
    """When something happened: the step, the group that did it, and the lines of the module, innermost first."""

    step: int
    group: str
    lines: Lines


START = Stamp(0, "", ())


@dataclass(frozen=True, slots=True)
class Event:
    """What a group does from step `start` to before `end`.

    Args:
        kind: of the operation; "wait" if the group stands still.
        start: the first step.
        end: the step after the last one.
        lines: of the module, innermost first: the line of a helper, then the line that calls it.
        after: of a wait, what ended it; None if it was over before.
    """

    kind: Kind
    start: int
    end: int
    lines: Lines
    after: Stamp | None = None


@dataclass(frozen=True, slots=True)
class Flight:
    """A copy or a product from its start to the step at which it is done."""

    kind: Kind
    start: int
    end: int
    lines: Lines


@dataclass(slots=True)
class Group:
    """A group of warps, and what it did.

    Args:
        name: such as "producer" or "consumer 0".
        warps: how many.
        limit: later steps are not kept.
        now: the next step.
        events: in order, without gaps.
        flights: copies and products that it started.
        product: the step at which its last product ends.
    """

    name: str
    warps: int
    limit: int
    now: int = 0
    events: list[Event] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    product: int = 0
    inside: bool = False

    def step(self, kind: Kind) -> Stamp:
        """Takes one step; its stamp."""
        stamp = Stamp(self.now, self.name, lines_here())
        self._add(Event(kind, self.now, self.now + 1, stamp.lines))
        return stamp

    def until(self, stamp: Stamp) -> None:
        """Waits for what has `stamp`, and takes a step even if it need not wait."""
        end = max(self.now + 1, stamp.step + 1)
        self._add(Event("wait", self.now, end, lines_here(), stamp if stamp.step > self.now else None))

    def fly(self, kind: Kind) -> Stamp:
        """Starts a copy or a product; the stamp of its end."""
        started = self.step(kind)
        begin = max(self.product, started.step) if kind == "product" else started.step
        end = begin + (PRODUCT if kind == "product" else COPY)
        if kind == "product":
            self.product = end
        if started.step < self.limit:
            self.flights.append(Flight(kind, started.step, end, started.lines))
        return started._replace(step=end)

    def _add(self, event: Event) -> None:
        self.now = event.end
        if event.start >= self.limit:
            return
        last = self.events[-1] if self.events else None
        if last is not None and last.kind == event.kind == "compute" and last.lines == event.lines:
            self.events[-1] = Event("compute", last.start, event.end, event.lines)
        else:
            self.events.append(event)


_here = threading.local()


def begin(group: Group | None) -> None:
    """From now on this thread is the group; None: of none, and nothing is recorded."""
    _here.group = group


def current() -> Group | None:
    """The group that this thread is; None if nothing is recorded, or inside of an operation that was recorded."""
    group: Group | None = getattr(_here, "group", None)
    return None if group is None or group.inside else group


def lines_here() -> Lines:
    """The lines of the module that are running in this thread, innermost first."""
    found: list[int] = []
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == MODULE:
            found.append(frame.f_lineno)
        frame = frame.f_back
    return tuple(found)
