"""The machine code that a saved page has: its machine pane cannot ask for more."""

from __future__ import annotations

from neptune_widgets.pane import Message, kept_data
from neptune_widgets.panes import machine
from neptune_widgets.session import Session


@kept_data
def data(session: Session) -> list[Message]:
    """The targets and stages that were asked for, compiled."""
    return machine.kept(session)
