"""Recorded runs: read where there is no GPU, written where they are asked for, and always marked."""

from __future__ import annotations

import json

import pytest
from neptune_widgets.course import measured
from neptune_widgets.course.measured import RECORDING

from neptune_lab.errors import MeasureError


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr("neptune_lab.runtime.has_gpu", lambda: True)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("neptune_lab.runtime.has_gpu", lambda: False)


def test_without_a_gpu_and_without_a_record_it_says_so(tmp_path, no_gpu):
    with pytest.raises(MeasureError, match=r"no recorded run 'copy\.json'"):
        measured("copy", lambda: {"us": 1}, folder=tmp_path)


def test_what_is_recorded_is_read_again_and_marked(tmp_path, monkeypatch, gpu):
    monkeypatch.setenv(RECORDING, "make it so")
    now = measured("copy", lambda: {"us": 1.5}, folder=tmp_path)
    assert not now.recorded
    assert now.where.startswith("Measured on: ")
    monkeypatch.setattr("neptune_lab.runtime.has_gpu", lambda: False)
    read = measured("copy", lambda: pytest.fail("nothing is measured without a GPU"), folder=tmp_path)
    assert read.recorded
    assert read.where.startswith("Recorded run, not measured here: ")
    assert (read.data, read.device, read.date, read.versions) == (now.data, now.device, now.date, now.versions)
    assert "make it so" in read.where
    assert "Recorded run, not measured here" in read._repr_html_()
    assert set(json.loads((tmp_path / "copy.json").read_text())) == {
        "name", "data", "device", "date", "versions", "command",
    }  # fmt: skip


def test_a_run_of_ones_own_leaves_no_file(tmp_path, monkeypatch, gpu):
    monkeypatch.delenv(RECORDING, raising=False)
    assert measured("copy", lambda: 1, folder=tmp_path).data == 1
    assert list(tmp_path.iterdir()) == []
