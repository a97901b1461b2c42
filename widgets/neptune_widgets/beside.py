"""A widget, and beside it what stays when a notebook is opened again: two outputs of a cell."""

from __future__ import annotations

from typing import Any

# JupyterLab writes "Error displaying widget: model not found" in place of a widget whose kernel is gone. Before the
# static view, and after an explanation, that output is hidden: it has no element inside, which a widget has.
_NO_ERROR = (
    "<style>.jp-OutputArea-child:has(+ .jp-OutputArea-child .neptune-static) > .jupyter-widgets:not(:has(*)),"
    ".jp-OutputArea-child:has(.neptune-explanation) + .jp-OutputArea-child > .jupyter-widgets:not(:has(*))"
    "{display:none}</style>"
)


def display_beside(data: dict[str, Any], metadata: dict[str, Any], *, html: str, text: str) -> None:
    """Shows a widget, then its static view, which a running page hides.

    JupyterLab shows one form of an output alone, and of a widget whose kernel is gone an error.

    Args:
        data: the widget's MIME bundle; its other forms are left out.
        metadata: of the bundle.
        html: the static view, in an element of class "neptune-static".
        text: for readers that show text.
    """
    from IPython.display import display

    widget = {kind: value for kind, value in data.items() if kind != "text/html"}
    display({**widget, "text/plain": text}, metadata=metadata, raw=True)
    display({"text/html": static(html), "text/plain": ""}, raw=True)


def static(html: str) -> str:
    """The static view, for an output before or after the widget's."""
    return _NO_ERROR + html


__all__ = ["display_beside", "static"]
