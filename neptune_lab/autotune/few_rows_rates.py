"""The constants of the model of few rows (`few_rows`), and the fit that the package has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from neptune_lab.autotune.calibration import FOLDER, SCHEMA
from neptune_lab.errors import MeasureError
from neptune_lab.strict.json_text import check_schema, read_json
from neptune_lab.strict.typed import Count, Number, unpack


@dataclass(frozen=True, slots=True)
class Rates:
    """The model's constants, in microseconds and bytes.

    Args:
        start: of a launch with empty caches.
        memory: bytes per microsecond of an H200; another GPU's is in proportion to its data sheet.
        multiprocessor: the most bytes per microsecond of one.
        work: microseconds of a program per MB of a padded tile in shared memory.
        alone: the latency of a load if a loop loads one tile at a time; that of others is hidden.
        single, loop, tile: the latency of a program with one tile; of one with a loop; what each of its tiles takes.
        later: microseconds per MB of padded tiles that a multiprocessor computes with when all of them are there.
        combine, once: the second kernel's latency; that of each row that a last program combines.
        partial: the cost of each MB of partial results.
        idle: the latency of a program that visits no tile.
        unpadded: the factor of products of single rows without matrix units.
    """

    start: Number
    memory: Number
    multiprocessor: Number
    work: Number
    alone: Number
    single: Number
    loop: Number
    tile: Number
    later: Number
    combine: Number
    once: Number
    partial: Number
    idle: Number
    unpadded: Number


@dataclass(frozen=True)
class FewRowsFit:
    """The constants, and what they are from (`few_rows_fit`).

    Args:
        rates: the constants.
        kernels, problems: how many were measured.
        error: the typical factor between the estimate and the time of a kernel.
        loss: the time of the kernel that ranks first over the best one's, by geometric mean over the problems, each
            left out of the fit.
    """

    rates: Rates
    kernels: Count
    problems: Count
    error: Number
    loss: Number


@cache
def shipped_fit() -> FewRowsFit:
    """The fit in the package."""
    path = FOLDER / "few_rows_sm_90.json"
    data = check_schema(read_json(path, MeasureError), SCHEMA, path.name, "a fit", MeasureError, help="fit it")
    del data["schema"]
    return unpack(data, FewRowsFit, path.name, MeasureError)


__all__ = ["FewRowsFit", "Rates", "shipped_fit"]
