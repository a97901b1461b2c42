"""The operator's arguments, which the page shows as fields, and why they are fixed if they are."""

from __future__ import annotations

from typing import Any

from neptune_widgets.pane import pane_data
from neptune_widgets.remake import fields, why_fixed
from neptune_widgets.session import Session


@pane_data
def data(session: Session) -> dict[str, Any]:
    """`fields`, as `Field.as_json` gives them, and `fixed`: why there are none; empty if there are."""
    operator = session.operator
    return {"fields": [field.as_json() for field in fields(operator)], "fixed": why_fixed(operator)}
