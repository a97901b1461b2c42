"""What axe-core finds in a page: the rules of accessibility that its elements break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

# Installed with the front end's packages: a test that uses it takes the fixture `front_end_packages`.
AXE = Path(__file__).parents[1] / "widgets" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = ("serious", "critical")


def violations(
    page: Page, selector: str = ".nx", *, impacts: tuple[str, ...] = SERIOUS, left_out: tuple[str, ...] = ()
) -> list[str]:
    """The rules that are broken, each with its first element.

    Args:
        page: the page.
        selector: of the element that is looked at.
        impacts: how grave a violation must be: "minor", "moderate", "serious", "critical".
        left_out: rules that are not looked at.
    """
    options: dict[str, Any] = {"resultTypes": ["violations"], "rules": {rule: {"enabled": False} for rule in left_out}}
    # Not as an element of the page, which its content security policy may forbid.
    run = f"axe.run(document.querySelector({json.dumps(selector)}), {json.dumps(options)})"
    found = page.evaluate(f"{AXE.read_text(encoding='utf-8')}; {run}")
    return [
        f"{v['id']}: {v['help']} ({v['nodes'][0]['html'][:120]})" for v in found["violations"] if v["impact"] in impacts
    ]


__all__ = ["SERIOUS", "violations"]
