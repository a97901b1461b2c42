"""Schedules: primitives that rewrite loop-scalar programs, TVM's and ours, and whole schedules as templates."""

from neptune_lab.loop_schedule.outcome import Outcome, Phase
from neptune_lab.loop_schedule.primitives import PRIMITIVES, Primitive
from neptune_lab.loop_schedule.schedule import Applied, Schedule, Step

__all__ = ["PRIMITIVES", "Applied", "Outcome", "Phase", "Primitive", "Schedule", "Step"]
