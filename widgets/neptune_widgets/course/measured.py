"""Runs on a GPU that a notebook shows without one: measured where there is a GPU, else read from the repository.

A recorded run is a JSON file `recorded/<name>.json` beside the notebooks, with its device, versions, date and command.
What is shown always says which of the two it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from neptune_lab.errors import MeasureError
from neptune_lab.files import write_text
from neptune_lab.strict.files import shown_path
from neptune_lab.strict.json_text import read_json
from neptune_lab.strict.typed import unpack

FOLDER = Path("recorded")
RECORDING = "NEPTUNE_LAB_RECORD"  # the command that records; where it is set, runs on a GPU are written to FOLDER


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured, and where.

    Args:
        name: of the run, and of its file.
        data: as the measurement gave it; plain JSON data. Units are in its keys.
        device: the GPU's name.
        date: ISO 8601, UTC, to the minute.
        versions: of what took part.
        command: what to run to measure again.
        recorded: whether this was read from a file.
    """

    name: str
    data: Any
    device: str
    date: str
    versions: Mapping[str, str]
    command: str
    recorded: bool = False

    @property
    def where(self) -> str:
        """Device, date and versions in a line, beginning with whether it was recorded."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        how = f"Recorded run, not measured here: {self.device}" if self.recorded else f"Measured on: {self.device}"
        return f"{how}, {self.date}; {versions}; {self.command}"

    def __repr__(self) -> str:
        return self.where

    def _repr_html_(self) -> str:
        versions = ", ".join(f"{escape(name)} {escape(number)}" for name, number in self.versions.items())
        word = "Recorded run, not measured here" if self.recorded else "Measured on"
        return (
            f"<p><b>{'● ' if self.recorded else ''}{word}:</b> {escape(self.device)}, {escape(self.date)}<br>"
            f"<small>{versions}<br><code>{escape(self.command)}</code></small></p>"
        )


def measured(name: str, measure: Callable[[], Any], *, folder: str | os.PathLike[str] = FOLDER) -> Run:
    """What `measure` gives on the GPU at hand; without a GPU the recorded run of that name.

    Args:
        name: of the run.
        measure: called on a GPU only; gives plain JSON data.
        folder: where recorded runs lie; beside the notebook by default.

    Raises:
        MeasureError: there is neither a GPU nor a recorded run.
    """
    from neptune_lab.runtime import has_gpu

    path = Path(folder) / f"{name}.json"
    if not has_gpu():
        return _read(path)
    from neptune_lab.bench.device import describe, used_versions

    command = os.environ.get(RECORDING, "")
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    data = json.loads(json.dumps(measure()))  # what is shown here is what a file can hold
    run = Run(name, data, describe()["name"], date, used_versions(), command or "this cell")
    if command:
        stored = {key: value for key, value in asdict(run).items() if key != "recorded"}
        write_text(path, json.dumps(stored, indent=1, ensure_ascii=False) + "\n", parents=True)
    return run


def _read(path: Path) -> Run:
    if not path.is_file():
        raise MeasureError(
            f"there is no GPU here, and no recorded run {path.name!r} in the folder {path.parent.name!r}",
            help="run the notebook from its own folder, which contains its recorded runs",
        )
    stored = read_json(path, MeasureError)
    if isinstance(stored, dict):
        stored["recorded"] = True
    return unpack(stored, Run, shown_path(path), MeasureError)
