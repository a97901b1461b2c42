"""Compiled kernels on disk, so that a later process has them without the compiler (and without loading TVM)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neptune_lab.errors import FileError, MeasureError
from neptune_lab.files import write_text
from neptune_lab.runtime import KernelSpec, cache_directory, device_facts
from neptune_lab.strict.emitted import check_emitted
from neptune_lab.strict.files import MIB
from neptune_lab.strict.json_text import check_schema, read_json
from neptune_lab.strict.typed import Count, Line, unpack

# Raised whenever the meaning of an entry changes; entries of another schema are compiled again.
SCHEMA = 2
# Bytes of an entry: the largest module has 60 KiB.
MOST_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class StoredKernel:
    """One compiled kernel.

    Args:
        spec: the emitted module and its arguments.
        captured: for each input after q, k and v, the place of its tensor among those that the mods reach.
        workloads: `records.workload_key` of the definitions whose tuning records serve it.
        records: digest of the records that were known for them.
    """

    spec: KernelSpec
    captured: tuple[Count, ...]
    workloads: tuple[Line, ...]
    records: Line

    def to_json(self, key: str) -> dict[str, Any]:
        """The entry that is kept under `key` as plain JSON data, with its digest."""
        content = asdict(self)
        return {"schema": SCHEMA, "digest": _digest(key, content), "entry": content}

    @classmethod
    def from_json(cls, data: Any, key: str) -> StoredKernel:
        """What `to_json` wrote for `key`.

        Raises:
            MeasureError: it is of another schema, another key's, or not as it was written.
        """
        check_schema(data, SCHEMA, "entry", "a kernel", MeasureError)
        if not isinstance(data.get("entry"), dict) or data.get("digest") != _digest(key, data["entry"]):
            raise MeasureError("an entry whose digest is not that of what it holds")
        entry = unpack(data["entry"], cls, "entry", MeasureError)
        if len(entry.captured) != len(entry.spec.inputs) - 3:
            raise MeasureError("an entry whose captured tensors are not its inputs")
        check_emitted(entry.spec.text, MeasureError)
        return entry


def find(key: str) -> StoredKernel | None:
    """The entry that `put` wrote for `key`; None if there is none.

    An entry that is damaged (a flipped bit, a write that was cut off) counts as none and is removed, so that the caller
    compiles again and `put` writes a new one.
    """
    path = _path(key)
    try:
        if not path.is_file():
            return None
        return StoredKernel.from_json(read_json(path, MeasureError, most=MOST_BYTES), key)
    except MeasureError:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    except (OSError, ValueError):  # a cache directory that cannot be read, or is not a directory
        pass
    return None


def put(key: str, entry: StoredKernel) -> None:
    """Keeps `entry` under `key`; where the cache directory cannot be written, nothing happens."""
    with suppress(FileError):
        write_text(_path(key), json.dumps(entry.to_json(key)), parents=True)


def _digest(key: str, content: Any) -> str:
    """SHA-256 over an entry's key and content, so that neither a changed entry nor one under another key is taken."""
    text = json.dumps([SCHEMA, key, content], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(description: Any) -> str:
    """What an entry is kept under: `description` (texts, numbers and tuples of them), the target and all versions."""
    facts = device_facts()
    target = facts.name, facts.capability, facts.sm_count, facts.interpreter
    text = repr((description, target, sorted(_versions().items()), _compiler()))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _path(key: str) -> Path:
    return cache_directory() / "attention" / f"{key}.json"


@cache
def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "triton", "apache-tvm", "apache-tvm-ffi", "sympy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


@cache
def _compiler() -> str:
    """Digest of this package's files: a kernel that another state of the compiler emitted is not taken."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(os.fsencode(path.relative_to(root)))
        digest.update(path.read_bytes())
    return digest.hexdigest()
