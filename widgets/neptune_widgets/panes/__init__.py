"""The Python halves of panes, a module per pane; `neptune_widgets.pane` finds them."""
