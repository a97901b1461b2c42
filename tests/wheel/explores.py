"""With [widgets]: the explorer of a kernel and of a saved record, and both as pages with the built script."""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import jupyterlab  # noqa: F401
import plotly  # noqa: F401
from neptune_widgets.page import BUNDLE, bundle_text

import neptune_lab as nl

assert Path(nl.__file__).is_relative_to(sys.prefix), nl.__file__
assert BUNDLE.is_file()
assert Path(BUNDLE).is_relative_to(sys.prefix), BUNDLE
assert "is not built" not in bundle_text()[:2000]
operator = nl.operators.softmax.figure1(rows=4, cols=8)
page = nl.explore(nl.compile(operator)).export_html()
assert operator.title in page
assert "application/vnd.jupyter.widget-view+json" in nl.explore(sys.argv[2])._repr_mimebundle_()[0]
assert nl.course.exercise is not None
assert nl.solver("exp(c - r)", producers="r").term is not None
