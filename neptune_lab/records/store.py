"""The user's own records, in one SQLite file that several processes may use at once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from neptune_lab.errors import MeasureError
from neptune_lab.files import write_text
from neptune_lab.records.record import SCHEMA, Record, dump, read
from neptune_lab.runtime import cache_directory

# A measurement is known by these; a newer one of the same key replaces the older.
_KEY = ("workload", "device", "capability", "torch", "triton", "source", "cold")
_COLUMNS = (*_KEY, "us", "record")
_TABLE = f"""
create table if not exists records_{SCHEMA} (
    workload text, device text, capability text, torch text, triton text, source text, cold integer,
    us real, record text not null,
    primary key ({", ".join(_KEY)})
)"""
_PUT = f"insert or replace into records_{SCHEMA} ({', '.join(_COLUMNS)}) values ({', '.join('?' * len(_COLUMNS))})"


class Store:
    """Records on disk.  Each `put` is committed before it returns, so a crash loses nothing that was measured.

    Args:
        path: of the file, made on first use; None: `records.sqlite` in the cache directory.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path is not None else cache_directory() / "records.sqlite"

    def put(self, *records: Record) -> None:
        """Adds records; one of the same workload, device, versions and source is replaced."""
        rows = [(*(getattr(r, name) for name in _KEY), r.us, json.dumps(r.to_json(), allow_nan=False)) for r in records]
        with self._open() as db:
            db.executemany(_PUT, rows)

    def find(
        self,
        *,
        workload: str | None = None,
        device: str | None = None,
        source: str | None = None,
        cold: bool | None = None,
    ) -> tuple[Record, ...]:
        """The records with these values, the fastest first, failures last; nothing where there is no file yet.

        Args:
            workload: the key of an operator's definition, shapes and dtypes (`records.workload_key`).
            device: a GPU's name, such as "NVIDIA H200".
            source: a digest of the emitted module.
            cold: whether each run started with a cold L2 cache.
        """
        if not self.path.is_file():
            return ()
        given = {"workload": workload, "device": device, "source": source, "cold": cold}
        wanted = {name: value for name, value in given.items() if value is not None}
        where = " and ".join(f"{name} = ?" for name in wanted) or "true"
        query = f"select record from records_{SCHEMA} where {where} order by us is null, us"
        with self._open() as db:
            rows = db.execute(query, tuple(wanted.values())).fetchall()
        return tuple(Record.from_json(json.loads(text)) for (text,) in rows)

    def export(self, path: str | Path, records: Iterable[Record] | None = None) -> Path:
        """Saves all records, or these, to a JSON file; its path.

        Raises:
            FileError: the file cannot be written; a file that was there is unchanged.
        """
        return write_text(path, dump(self.find() if records is None else records))

    def load(self, path: str | Path) -> int:
        """Adds the records of a JSON file that `export` wrote; how many there were."""
        found = read(path)
        self.put(*found)
        return len(found)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection of this call alone (they do not go from thread to thread), committed at the end."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, timeout=60.0)
            try:
                # Readers and one writer at once; a writer waits for another up to the timeout above.
                db.execute("pragma journal_mode = wal")
                db.execute(_TABLE)
                with db:
                    yield db
            finally:
                db.close()
        except (sqlite3.Error, OSError) as error:
            raise MeasureError(
                f"the records in {self.path} cannot be used: {error}",
                help="set NEPTUNE_LAB_CACHE to a folder that can be written, or remove the file if it is damaged",
            ) from error
