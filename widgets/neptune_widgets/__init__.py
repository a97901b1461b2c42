"""The explorer's widgets: the Jupyter side of neptune_lab, views of the record that the compiler writes.

`explore`, `Explorer` and `Solver` (made by `nl.solver`) need anywidget; `time` needs nothing of Jupyter. Each loads on
first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neptune_widgets.explorer import Explorer, explore
    from neptune_widgets.solver import Solver
    from neptune_widgets.timing import Timings, time

__all__ = ["Explorer", "Solver", "Timings", "explore", "time"]

_HOMES = {
    "Explorer": "neptune_widgets.explorer",
    "Solver": "neptune_widgets.solver",
    "Timings": "neptune_widgets.timing",
    "explore": "neptune_widgets.explorer",
    "time": "neptune_widgets.timing",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)
