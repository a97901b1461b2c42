"""What a person chose to see, saved and opened again: plain JSON, checked, and never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neptune_lab.errors import TraceError
from neptune_lab.files import write_text
from neptune_lab.strict.console import shown
from neptune_lab.strict.files import read_text, shown_path
from neptune_lab.strict.json_text import at_place, parse
from neptune_lab.strict.typed import plain

FORMAT = "neptune_lab view"
VERSION = 1
KEYS = ("step", "phase", "panes", "selection", "compare", "search", "iteration", "hidden", "sizes", "folded")
_SAVE = "write one with explorer.save_view(path)"
_MOST_BYTES = 200_000
_MOST_LEVELS = 12


def save(view: dict[str, Any], path: str | Path) -> Path:
    """Saves a view to a file; the file's path. FileError where it cannot be written."""
    data = {"format": FORMAT, "version": VERSION, "view": checked(view)}
    return write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def load(path: str | Path) -> dict[str, Any]:
    """The view that `save` wrote; TraceError for anything else."""
    name = shown_path(path)
    text = read_text(path, _MOST_BYTES, TraceError)
    try:
        data = parse(text, TraceError)
    except TraceError as error:
        raise TraceError(f"{name}: not a saved view: {error.reason}", help=_SAVE) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TraceError(f"{name}: not a saved view", help=_SAVE)
    if data.get("version") != VERSION or isinstance(data["version"], bool):
        raise TraceError(
            f"{name}: a view of version {shown(data.get('version'))}, this version reads version {VERSION}", help=_SAVE
        )
    with at_place(name, TraceError):
        return checked(data.get("view"))


def checked(view: Any) -> dict[str, Any]:
    """The known parts of a view; TraceError where it is not plain JSON, or too deep."""
    if not isinstance(view, dict):
        raise TraceError(f"a view is an object, this is {type(view).__name__}", help=_SAVE)
    known = {key: view[key] for key in KEYS if key in view}
    return plain(known, "view", TraceError, _MOST_LEVELS)
