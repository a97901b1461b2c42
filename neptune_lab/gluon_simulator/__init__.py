"""A simulator of emitted Gluon kernels in NumPy: numbers, hand-overs between warps, and simulated steps."""

from __future__ import annotations

from neptune_lab.gluon_simulator.simulator import Simulator
from neptune_lab.gluon_simulator.steps import Event, Flight, Group
from neptune_lab.gluon_simulator.threads import Deadlock
from neptune_lab.gluon_simulator.timeline import Timeline, timeline

__all__ = ["Deadlock", "Event", "Flight", "Group", "Simulator", "Timeline", "timeline"]
