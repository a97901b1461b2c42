"""Runs of every step, for a page that is saved, which cannot ask for them."""

from __future__ import annotations

from typing import Any

from neptune_widgets.pane import kept_data
from neptune_widgets.panes import play
from neptune_widgets.session import Session


@kept_data
def kept(session: Session) -> dict[str, Any]:
    """The films of `play`."""
    return {"films": play.films(session)}
