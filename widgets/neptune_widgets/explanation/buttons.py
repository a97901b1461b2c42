"""A button per region of an explanation, which opens the region's explorer below; for a running notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets

if TYPE_CHECKING:
    from neptune_widgets.explanation import ShownExplanation


def buttons(explanation: ShownExplanation) -> ipywidgets.VBox:
    """The buttons, and below them the explorer of the one that was pressed last.

    Args:
        explanation: with at least one region.

    Returns:
        The widget.
    """
    place = ipywidgets.VBox()
    made = [
        ipywidgets.Button(
            description=f"{n} {region.title}",
            tooltip=f"Open region {n} in the explorer",
            layout=ipywidgets.Layout(width="auto"),
        )
        for n, region in enumerate(explanation.regions, 1)
    ]

    def press(pressed: ipywidgets.Button) -> None:
        """Opens the region of a button, or closes it if it is open."""
        number = made.index(pressed) + 1
        was_open = pressed.button_style == "info"
        for child in place.children:
            child.close()
        for button in made:
            button.button_style = ""
        if was_open:
            place.children = ()
            return
        pressed.button_style = "info"
        place.children = (explanation.explore(number),)

    for button in made:
        button.on_click(press)
    label = ipywidgets.Label("Open in the explorer:")
    row = ipywidgets.HBox([label, *made], layout=ipywidgets.Layout(flex_flow="row wrap"))
    return ipywidgets.VBox([row, place])


__all__ = ["buttons"]
