"""The refusal of a normalisation that applies, but not in floats."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError


class FloatsDiffer(ScheduleError):
    """A normalisation is right over the reals, and may change which results are finite, or lose digits."""


__all__ = ["FloatsDiffer"]
