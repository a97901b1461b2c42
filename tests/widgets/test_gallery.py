"""The gallery has a page for every operator and preset, and its index links them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from neptune_widgets import gallery

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import OPERATORS, PRESETS, find, gemm_chain


def test_every_operator_and_preset_has_an_entry_with_sizes_that_it_takes():
    assert {*gallery.names(), "attention.general"} == {*OPERATORS, *PRESETS, *gemm_chain.PRESETS}
    for name in gallery.names():
        made = find(name)(**gallery.sizes(name))
        assert made.inputs, name


@pytest.mark.nightly
def test_pages_and_their_index(tmp_path: Path):
    entries = gallery.write(tmp_path, ["softmax.figure1", "norms.l2_norm"])
    assert [e.file for e in entries] == ["softmax.figure1.html", "norms.l2_norm.html"]
    index = (tmp_path / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'href="([^"]+)"', index)
    assert links == [e.file for e in entries]
    for link, entry in zip(links, entries, strict=True):
        page = (tmp_path / link).read_text(encoding="utf-8")
        assert f"<title>{entry.kernel.operator.title} - neptune_lab</title>" in page
        assert "://" not in re.sub(r"http://www.w3.org/\S+", "", index), "the index loads nothing"
    assert "x[256, 1024]" in index
    assert re.findall(r"<th colspan[^>]*>(.*?)<small>", index) == ["Operators"]
    # Figure 1 is in several tiles, so that its page has a wrong program and its repair.
    figure1 = entries[0].kernel.trace.steps
    assert [p.key for s in figure1 for p in s.phases if p.wrong] == ["naive", "repair"]


def test_an_unknown_operator_is_refused(tmp_path: Path):
    with pytest.raises(DefinitionError, match="there is no operator 'softmx'"):
        gallery.write(tmp_path, ["softmx"])
    assert not list(tmp_path.iterdir())
