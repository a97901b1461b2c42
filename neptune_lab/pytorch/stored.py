"""Compiled kernels on disk, so that later processes load them without the compiler (and without TVM)."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from neptune_lab.errors import FileError, MeasureError
from neptune_lab.files import write_text
from neptune_lab.hashed import digest_of
from neptune_lab.runtime import KernelSpec, cache_directory, device_facts
from neptune_lab.strict.emitted import check_emitted
from neptune_lab.strict.files import MIB
from neptune_lab.strict.json_text import check_schema, read_json
from neptune_lab.strict.typed import Count, Line, pack, unpack
from neptune_lab.tensor_spec import TensorSpec

# Raised whenever the meaning of an entry changes; entries of another schema are compiled again.
SCHEMA = 2
# Bytes of an entry; the largest module has 60 KiB.
MOST_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class StoredKernel:
    """One compiled kernel.

    Args:
        spec: the emitted module and its arguments.
        captured: for each input after q, k, v and their scales, its tensor's index in `Reading.tensors`.
        workloads: `records.workload_key` of the definitions whose tuning records apply to it.
        records: digest of the tuning records for these when it was compiled.
    """

    spec: KernelSpec
    captured: tuple[Count, ...]
    workloads: tuple[Line, ...]
    records: Line

    def to_json(self, key: str) -> dict[str, Any]:
        """The entry for `key` as plain JSON data, with its digest."""
        content = pack(self)
        return {"schema": SCHEMA, "digest": _digest(key, content), "entry": content}

    @classmethod
    def from_json(cls, data: Any, key: str) -> StoredKernel:
        """The entry that `to_json` wrote for `key`.

        Raises:
            MeasureError: the data has another schema, was written for another key, or was changed.
        """
        check_schema(data, SCHEMA, "entry", "a kernel", MeasureError)
        if not isinstance(data.get("entry"), dict) or data.get("digest") != _digest(key, data["entry"]):
            raise MeasureError("an entry whose digest is not that of what it holds")
        entry = unpack(data["entry"], cls, "entry", MeasureError)
        if len(entry.captured) != len(captured_inputs(entry.spec.inputs)):
            raise MeasureError("an entry whose captured tensors are not its inputs")
        check_emitted(entry.spec.text, MeasureError)
        return entry


def captured_inputs(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs that mods capture: all but those of these names, which no captured tensor has."""
    return tuple(tensor for tensor in inputs if tensor.name not in ("q", "k", "v", "q_scale", "k_scale", "v_scale"))


def find(key: str) -> StoredKernel | None:
    """The entry that `put` wrote for `key`; None if there is none.

    A damaged entry (a flipped bit, a truncated file) is removed and counts as none, so that the caller compiles again
    and `put` writes a new one.
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
    """Writes `entry` for `key`; does nothing if the cache directory cannot be written."""
    with suppress(FileError):
        write_text(_path(key), json.dumps(entry.to_json(key)), parents=True)


def _digest(key: str, content: Any) -> str:
    """SHA-256 of an entry's key and content, by which `find` detects changed entries and entries of other keys."""
    text = json.dumps([SCHEMA, key, content], sort_keys=True, separators=(",", ":"))
    return digest_of(text)


def key_of(description: Any) -> str:
    """A digest of `description` (texts, numbers, dataclasses and tuples of them), the target and all versions."""
    facts = device_facts()
    target = facts.name, facts.capability, facts.sm_count, facts.interpreter
    return digest_of((description, target, _versions(), _compiler()))[:40]


def _path(key: str) -> Path:
    return cache_directory() / "attention" / f"{key}.json"


@cache
def _versions() -> Mapping[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("torch", "triton", "apache-tvm", "apache-tvm-ffi", "sympy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    return versions


@cache
def _compiler() -> str:
    """Digest of this package's files, so that kernels of another state of the compiler are not reused."""
    root = Path(__file__).parents[1]
    files = sorted(root.rglob("*.py"))
    return digest_of(*(part for path in files for part in (os.fsencode(path.relative_to(root)), path.read_bytes())))
