"""The measurement of one candidate on one device, as frozen data with a JSON form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from neptune_lab.errors import MeasureError
from neptune_lab.runtime.choice import choice_of, with_tuples
from neptune_lab.runtime.timing import Resources
from neptune_lab.strict.console import printable
from neptune_lab.strict.files import shown_path
from neptune_lab.strict.json_text import at_place, check_schema, field_of, read_json
from neptune_lab.strict.typed import Line, Number, Time, Words, fit, pack, unpack

# Increased whenever the meaning of a record changes; records of another schema are not read.
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One measurement.

    Args:
        workload: `workload_key` of the operator.
        operator: its name, for information.
        params: the arguments of the operator, plain JSON, for information.
        device: the GPU's name.
        capability: its compute capability, such as "9.0".
        torch, triton: versions that it was measured with.
        source: SHA-256 of the emitted module, shortened.
        candidate: the choice that was compiled, as its `to_json` writes it.
        cold: L2 was flushed before each run; otherwise the launches were replayed from a CUDA graph.
        us: the median, in microseconds; None for a failure.
        low, high: the tenth and the ninetieth percentile.
        error: the largest relative error (Frobenius norm) over the outputs, against float64.
        resources: one row per kernel: its name, registers, spills, bytes of shared memory and warps.
        failure: why there is no time; None if there is one.
        when: UTC, ISO 8601.
        command: the call that made the record.
    """

    workload: Line
    operator: Line
    params: Mapping[str, Any]
    device: Line
    capability: Line
    torch: Line
    triton: Line
    source: Line
    candidate: Mapping[str, Any]
    cold: bool
    us: Time | None
    low: Time | None = None
    high: Time | None = None
    error: Number | None = None
    resources: tuple[Resources, ...] = ()
    failure: Annotated[str, Words()] | None = None
    when: Line = ""
    command: Annotated[str, Words()] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidate", choice_of(self.candidate, "record.candidate", MeasureError))

    @property
    def template(self) -> str | None:
        """The template of the candidate; None: the operator's own."""
        return self.candidate["template"]

    @property
    def options(self) -> dict[str, Any]:
        """The candidate's options as arguments of `compile`; lists in JSON become tuples."""
        return with_tuples(self.candidate["options"])

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON data."""
        return pack(self)

    @classmethod
    def from_json(cls, data: Any) -> Record:
        """The record that `to_json` wrote.

        Raises:
            MeasureError: a field is missing, unknown, or not of its type.
        """
        if not isinstance(data, dict):
            raise MeasureError(
                f"a record is {type(data).__name__}, expected an object", help="export the records again"
            )
        known = {f.name for f in fields(cls)}
        if wrong := known ^ data.keys():
            operator = printable(str(data.get("operator", "an unknown operator")))[:100]
            raise MeasureError(
                f"a record of {operator} lacks, or has too many of, the fields "
                f"{printable(', '.join(sorted(wrong)))[:500]}",
                help="export the records again with this version",
            )
        return unpack(data, cls, "record", MeasureError)


def dump(records: Iterable[Record]) -> str:
    """The records as JSON text, one per line, so that a diff of two files is readable."""
    lines = ",\n".join(json.dumps(r.to_json(), ensure_ascii=False, allow_nan=False) for r in records)
    return f'{{"schema": {SCHEMA}, "records": [\n{lines}\n]}}\n'


def read(path: str | Path) -> tuple[Record, ...]:
    """The records of a file that `dump` wrote.

    Raises:
        MeasureError: the file cannot be read, or is no such file.
    """
    name = shown_path(path)
    data = read_json(path, MeasureError, help="give a file that `neptune-lab records --export` wrote")
    help = "export the records again with this version"
    check_schema(data, SCHEMA, name, "tuning records", MeasureError, help=help)
    with at_place(name, MeasureError, help=help):
        listed = fit(field_of(data, "records", "the file", MeasureError), list, "records", MeasureError)
    records = []
    for n, record in enumerate(listed):
        with at_place(f"{name}: records[{n}]", MeasureError, help=help):
            records.append(Record.from_json(record))
    return tuple(records)
