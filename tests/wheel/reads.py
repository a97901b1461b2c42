"""With nothing but the wheel itself (`pip install --no-deps`): a saved record is read and written as HTML."""

import sys
from importlib.util import find_spec
from pathlib import Path

from neptune_widgets import static_view

import neptune_lab as nl

assert Path(nl.__file__).is_relative_to(sys.prefix), nl.__file__
found = [name for name in ("torch", "tvm", "triton", "sympy", "numpy", "anywidget", "typer") if find_spec(name)]
assert not found, found
record = nl.load_trace(sys.argv[2])
assert [step.primitive for step in record.steps].count("rolling_update") == 3
assert "Causal attention" in static_view.html(record)
