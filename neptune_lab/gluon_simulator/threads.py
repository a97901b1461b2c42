"""The threads of a simulated launch and the barriers between them, which really block."""

from __future__ import annotations

import threading
from collections.abc import Callable

from neptune_lab.errors import NeptuneError
from neptune_lab.gluon_simulator.steps import START, Stamp, current


class Deadlock(NeptuneError):
    """A group of warps waited for what never came."""


class Crew:
    """The threads of one launch.  All barriers share its lock, so that it sees when every thread waits."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.working = 1
        self.waits: list[Callable[[], bool]] = []
        self.resting = [0, 0]  # those that go on first, and those that go on last
        self.stuck = False

    def begin(self, threads: int) -> None:
        """From now on so many threads work."""
        with self.condition:
            self.working, self.stuck = threads, False

    def leave(self) -> None:
        """A thread has ended."""
        with self.condition:
            self.working -= 1
            self._look()

    def wait(self, done: Callable[[], bool], what: str) -> None:
        """Until `done`, of which a thread with the lock tells by a notice; Deadlock if no thread can do that."""
        with self.condition:
            self.waits.append(done)
            self._look()
            self.condition.wait_for(lambda: self.stuck or done())
            self.waits.remove(done)
            if not done():
                raise Deadlock(what, help="compare the barrier's arrivals with its waits")

    def rest(self, *, last: bool = True) -> None:
        """Until no other thread can go on: what may happen before a thread's next line has happened.

        Args:
            last: even of the threads that rest, those go on first that do so without it.
        """
        with self.condition:
            self.resting[last] += 1
            self._look()
            self.condition.wait_for(lambda: self._blocked() + sum(self.resting[last:]) >= self.working)
            self.resting[last] -= 1

    def _blocked(self) -> int:
        return sum(not done() for done in self.waits)

    def _look(self) -> None:
        """After a thread has begun to wait or has ended."""
        if self.working and self._blocked() == self.working:
            self.stuck = True
        self.condition.notify_all()


class Barrier:
    """An mbarrier: phases that end when all have arrived and all bytes have come."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.expected = self.pending = self.bytes = 0
        self.ended: list[Stamp] = []
        self._latest = START

    @property
    def phase(self) -> int:
        """The parity of the phase that runs."""
        return len(self.ended) & 1

    def change(self, arrivals: int = 0, size: int = 0, stamp: Stamp = START) -> None:
        """Arrivals, or bytes that are expected (positive) or have come (negative), at the step of `stamp`."""
        with self.crew.condition:
            self.pending -= arrivals
            self.bytes += size
            self._latest = max(self._latest, stamp)
            if self.pending < 0:
                raise Deadlock("more arrivals than a barrier expects", help="the emitted module is wrong: report it")
            if self.pending == 0 and self.bytes == 0:
                self.ended.append(self._latest)
                self._latest = START
                self.pending = self.expected
                self.crew.condition.notify_all()

    def wait(self, parity: int) -> None:
        """Until the phase of that parity has ended."""
        self.crew.wait(lambda: self.phase != parity, f"no end of the phase of parity {parity}")
        group = current()
        if group is not None:
            with self.crew.condition:
                group.until(self.ended[-1] if self.ended else START)


class Named:
    """A barrier of the hardware for two groups."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.arrived = 0
        self.passed: list[Stamp] = []
        self._latest = START

    def arrive(self) -> int:
        """One group has come; the generation that it takes part in."""
        group = current()
        stamp = START if group is None else group.step("arrive")
        with self.crew.condition:
            mine = len(self.passed)
            self.arrived += 1
            self._latest = max(self._latest, stamp)
            if self.arrived == 2:
                self.arrived = 0
                self.passed.append(self._latest)
                self._latest = START
                self.crew.condition.notify_all()
            return mine

    def sync(self) -> None:
        """Comes, and waits for the other."""
        mine = self.arrive()
        self.crew.wait(lambda: len(self.passed) > mine, "the other consumer does not come")
        group = current()
        if group is not None:
            group.until(self.passed[mine])
