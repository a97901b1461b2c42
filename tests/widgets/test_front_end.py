"""The TypeScript half: its own tests, its types, and that the committed bundle is what the sources build to."""

from __future__ import annotations

import pytest
from front_end import WIDGETS, npm

STATIC = WIDGETS / "neptune_widgets" / "static"
BUNDLES = ("explorer.js", "solver.js", "training.js", "live.js", "live_worker.js")


@pytest.mark.nightly
def test_reducers_and_links(front_end_packages):
    npm("test")


@pytest.mark.nightly
def test_types(front_end_packages):
    npm("run", "check")


def test_the_committed_bundles_are_built_from_the_sources(front_end_packages, tmp_path):
    npm("run", "build", "--", str(tmp_path / "explorer.js"))
    for name in (*BUNDLES, "panes.json"):
        fresh, committed = (tmp_path / name).read_bytes(), (STATIC / name).read_bytes()
        assert fresh == committed, f"{name}: run `npm run build` in widgets/ and commit"


@pytest.mark.parametrize("name", BUNDLES)
def test_the_bundle_is_small_and_loads_nothing(name):
    text = (STATIC / name).read_text(encoding="utf-8")
    assert len(text.encode()) <= 560_000
    for loads in (
        'from"http',
        "from 'http",
        'import("http',
        "importScripts",
        "@import url(http",
        "eval(",
        "new Function(",
    ):
        assert loads not in text, loads
