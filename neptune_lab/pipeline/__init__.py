"""The whole compiler, stage by stage, and the record of what each did."""

from neptune_lab.pipeline.compile import compile, schedule
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.record import schedule_trace, steps_record, versions

__all__ = ["Kernel", "compile", "schedule", "schedule_trace", "steps_record", "versions"]
