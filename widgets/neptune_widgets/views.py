"""What a person chose to see, saved and opened again: plain JSON, checked, and never run."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

from neptune_lab.errors import TraceError
from neptune_lab.files import write_text

FORMAT = "neptune_lab view"
VERSION = 1
KEYS = ("step", "phase", "panes", "selection", "compare", "search", "iteration", "hidden", "sizes")
_MOST_CHARACTERS = 200_000
_MOST_LEVELS = 12


def save(view: dict[str, Any], path: str | Path) -> Path:
    """Saves a view to a file; the file's path. FileError where it cannot be written."""
    data = {"format": FORMAT, "version": VERSION, "view": checked(view)}
    return write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def load(path: str | Path) -> dict[str, Any]:
    """The view that `save` wrote; TraceError for anything else."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not a saved view: not UTF-8 text") from error
    if len(text) > _MOST_CHARACTERS:
        raise TraceError(f"{path}: not a saved view: {len(text):,} characters")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not a saved view: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TraceError(f"{path}: not a saved view", help="write one with explorer.save_view(path)")
    if data.get("version") != VERSION:
        raise TraceError(f"{path}: a view of version {data.get('version')!r}, this one reads version {VERSION}")
    return checked(data.get("view"))


def checked(view: Any) -> dict[str, Any]:
    """The known parts of a view; TraceError where it is not plain JSON, or too deep."""
    if not isinstance(view, dict):
        raise TraceError(f"a view is an object, this is {type(view).__name__}")
    known = {key: view[key] for key in KEYS if key in view}
    _plain(known, "view", _MOST_LEVELS)
    return known


def _plain(value: Any, where: str, levels: int) -> None:
    if levels < 0:
        raise TraceError(f"{where} is nested too deeply")
    match value:
        case None | bool() | int() | str():
            return
        case float() if isfinite(value):
            return
        case list() | tuple():
            for n, item in enumerate(value):
                _plain(item, f"{where}[{n}]", levels - 1)
        case dict() if all(isinstance(k, str) for k in value):
            for key, item in value.items():
                _plain(item, f"{where}.{key}", levels - 1)
        case _:
            raise TraceError(f"{where} is {type(value).__name__}, which is not plain JSON")
