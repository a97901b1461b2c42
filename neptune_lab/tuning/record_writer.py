"""Stores a run's records; records that the store refuses stay in memory and are tried again, and the user is warned."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from neptune_lab.errors import MeasureError, NeptuneError
from neptune_lab.files import quoted, write_text
from neptune_lab.records import Record, Store, dump

# Seconds to wait for a process that has locked the file: at first, and after a failure.
PATIENCE = 5.0
PATIENCE_AFTER_FAILURE = 0.1


class RecordWriter:
    """Stores records as they come, from any thread.

    Args:
        store: where they are kept.
        patience: seconds to wait before the first failure; later ones wait less.
    """

    def __init__(self, store: Store, patience: float = PATIENCE) -> None:
        self.store = store
        self._patience = patience
        self._unsaved: dict[str, Record] = {}
        self._lock = threading.Lock()
        self._told = False
        self.failure: MeasureError | None = None
        self.rescued: Path | None = None

    @property
    def unsaved(self) -> tuple[Record, ...]:
        """The records that the store has refused so far."""
        return tuple(self._unsaved.values())

    def put(self, record: Record) -> None:
        """Stores a record, together with those that were refused before; raises nothing if the store refuses."""
        with self._lock:
            self._unsaved[record.source] = record
            self._try(self._patience if self.failure is None else PATIENCE_AFTER_FAILURE)

    def news(self) -> str | None:
        """A message, once: that records are not stored, why, and a help."""
        failure = self.failure
        if failure is None or self._told:
            return None
        self._told = True
        return (
            f"measurements cannot be stored, and are kept in memory: {failure.reason}\n"
            f"  help: {failure.help}; the run goes on and tries again"
        )

    def finish(self) -> str | None:
        """Tries a last time, and saves the rest to a file elsewhere. A message, or None if all records are stored."""
        with self._lock:
            if not self._unsaved:
                return None
            self._try(self._patience)
            if not self._unsaved:
                return None
            failure, count = self.failure, len(self._unsaved)
            said = f"{count} measurements could not be stored in {self.store.path}: {failure.reason if failure else ''}"
            self.rescued = _rescue(self.unsaved)
            if self.rescued is not None:
                load = f"neptune-lab records --load {quoted(self.rescued)}"
                return f"{said}\n  help: they are in {self.rescued}; add them with: {load}"
            return f"{said}\n  help: they are in memory only; save them with result.export('FILE.json')"

    def _try(self, patience: float) -> None:
        try:
            self.store.put(*self._unsaved.values(), patience=patience)
        except MeasureError as error:
            self.failure = error
        else:
            self._unsaved.clear()


def _rescue(records: Sequence[Record]) -> Path | None:
    """A new file of these records in the folder for temporary files, or in the working folder; None if neither can."""
    name = f"neptune_lab-records-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}.json"
    for folder in (tempfile.gettempdir, os.getcwd):
        with suppress(NeptuneError, OSError):
            return write_text(Path(folder()) / name, dump(records))
    return None
