"""The whole compiler, stage by stage, and the record of what each did."""

from neptune_lab.pipeline.compile import compile, schedule
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.record import refused_step, schedule_trace, steps_record, versions

__all__ = ["Kernel", "compile", "refused_step", "schedule", "schedule_trace", "steps_record", "versions"]
