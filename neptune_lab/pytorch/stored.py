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

from neptune_lab.errors import FileError
from neptune_lab.files import write_text
from neptune_lab.runtime import KernelSpec, TensorSpec, cache_directory, device_facts

# Raised whenever the meaning of an entry changes; entries of another schema are compiled again.
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled kernel.

    Args:
        spec: the emitted module and its arguments.
        captured: for each input after q, k and v, the place of its tensor among those that the mods reach.
        workloads: `records.workload_key` of the definitions whose tuning records serve it.
        records: digest of the records that were known for them.
    """

    spec: KernelSpec
    captured: tuple[int, ...]
    workloads: tuple[str, ...]
    records: str

    def to_json(self) -> dict[str, Any]:
        """The entry as plain JSON data."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, data: Any) -> Entry:
        """What `to_json` wrote; KeyError, TypeError or ValueError for anything else."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}")
        spec = data["spec"]
        inputs, outputs = (
            tuple(TensorSpec(t["name"], tuple(map(int, t["shape"])), t["dtype"]) for t in spec[side])
            for side in ("inputs", "outputs")
        )
        return cls(
            KernelSpec(str(spec["name"]), str(spec["entry"]), str(spec["text"]), inputs, outputs),
            tuple(map(int, data["captured"])),
            tuple(map(str, data["workloads"])),
            str(data["records"]),
        )


def find(key: str) -> Entry | None:
    """The entry that `put` wrote for `key`; None where there is none that can be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Entry.from_json(json.loads(_path(key).read_text(encoding="utf-8")))
    return None


def put(key: str, entry: Entry) -> None:
    """Keeps `entry` under `key`; where the cache directory cannot be written, nothing happens."""
    with suppress(FileError):
        write_text(_path(key), json.dumps(entry.to_json()), parents=True)


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
