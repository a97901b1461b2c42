"""Numeric bisection: the first stage of the compiler, statement, tile and element whose numbers depart."""

from neptune_lab.pipeline.bisect.bisect import bisect
from neptune_lab.pipeline.bisect.departure import Departure

__all__ = ["Departure", "bisect"]
