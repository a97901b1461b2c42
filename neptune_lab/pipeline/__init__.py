"""The whole compiler, stage by stage, and the record of what each stage did."""

from neptune_lab.choice import Choice, CodeOptions, Given
from neptune_lab.loop_schedule.templates import SplitKConfig, TileConfig
from neptune_lab.pipeline.compile import compile, compile_choice, compile_chosen, validated
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.record import refused_step, schedule_trace, steps_record, versions
from neptune_lab.pipeline.schedules import schedule
from neptune_lab.pipeline.tuned import chosen_kernel, packs_groups, untuned_choice

__all__ = [
    "Choice",
    "CodeOptions",
    "Given",
    "Kernel",
    "SplitKConfig",
    "TileConfig",
    "chosen_kernel",
    "compile",
    "compile_choice",
    "compile_chosen",
    "packs_groups",
    "refused_step",
    "schedule",
    "schedule_trace",
    "steps_record",
    "untuned_choice",
    "validated",
    "versions",
]
