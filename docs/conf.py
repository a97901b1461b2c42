"""The documentation site: `make docs` builds it, offline, with warnings as errors."""

from __future__ import annotations

import gc
import sys
from functools import cache
from pathlib import Path

from sphinx.search.en import SearchEnglish

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "_ext"), str(ROOT)]
sys.path.append(str(ROOT / "tests"))  # the page of planted bugs reads theirs

import neptune_lab  # noqa: E402

# A build makes millions of nodes and keeps them: looking for garbage among them takes a fifth of its time.
gc.disable()

# Sphinx forgets the stems of words after each page; they take a tenth of a build.
SearchEnglish.stem = cache(SearchEnglish.stem)

project = "neptune_lab"
author = "the authors of neptune_lab"
project_copyright = "the authors of neptune_lab; Apache License 2.0"
version = release = neptune_lab.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
    "sphinx_copybutton",
    # ours, in _ext/
    "written_pages",  # the pages that are written from the code, and the notebooks
    "plain_docstrings",  # docstrings with Markdown's backticks, as reStructuredText
    "mathml_math",  # mathematics as MathML, without a script
]
exclude_patterns = ["_ext", "_static", "generated"]  # the last one is included by pages
suppress_warnings = ["mystnb.mime_priority"]  # an output whose forms are all for a running page

# -- Markdown and notebooks: outputs are those that the repository has, which the tests check -------------------------
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
myst_update_mathjax = False
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
nb_ipywidgets_js = {}  # no script from a network; running widgets are not in the repository
nb_mime_priority_overrides = [
    ("html", "application/vnd.jupyter.widget-view+json", None),
    ("html", "application/javascript", None),
    ("html", "image/svg+xml", 5),  # before the HTML of a figure that needs a script
]
nb_merge_streams = True

# -- the API reference ------------------------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# -- HTML -------------------------------------------------------------------------------------------------------------
html_theme = "furo"
html_title = "neptune_lab"
html_static_path = ["_static"]
html_css_files = ["neptune.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # "sum" is an argument
html_theme_options = {"top_of_page_buttons": [], "navigation_with_keys": False}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = "div.highlight pre"
