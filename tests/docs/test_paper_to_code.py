"""docs/paper_to_code.md is what the list of the paper's terms gives, and every name in the list exists."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module with the list, as the extensions of the site are imported."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    monkeypatch.delitem(sys.modules, "paper_to_code", raising=False)
    return import_module("paper_to_code")


def test_the_page_is_what_the_list_gives(listed: Any):
    """`page` looks up every name on the way: a function that was renamed raises LookupError."""
    assert listed.PAGE == ROOT / "docs" / "paper_to_code.md"
    assert listed.PAGE.read_text(encoding="utf-8") == listed.page(), "run: python docs/_ext/paper_to_code.py"


def test_the_list_has_forty_terms_and_names_each_once(listed: Any):
    assert len(listed.TERMS) == 40
    assert len({row.what for row in listed.TERMS}) == 40
    for row in listed.TERMS:
        assert row.names, row.what
        assert row.paper, row.what
    for number, name in listed.NOTEBOOKS.items():
        assert name.startswith(f"{number}_")
        assert (ROOT / "notebooks" / f"{name}.ipynb").is_file()


@pytest.mark.parametrize(
    "name", ["repair.solve.sulve", "repairs.solve", "tests/golden/figure_99.txt", "loop_ir.nodes.Program.b"]
)
def test_a_name_that_is_not_there_is_refused(listed: Any, name: str):
    with pytest.raises(LookupError):
        listed.place(name)
