"""A bundle's results on a disk that fills up: found out first, kept in memory, and written elsewhere in the end."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import faulty_disk as disk
import pytest
from devices import H200

from neptune_lab import files
from neptune_lab.errors import FileError
from neptune_lab.runtime import bundle
from neptune_lab.runtime.bundle import BundleEntry, BundleResults, read_results
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.task import Task

FILES = [f"kernels/{n}.py" for n in range(4)]


class OneGpu:
    """Gives 10, 11, 12… microseconds."""

    size = 1

    def __init__(self, disk_fills_at=None):
        self.count, self.at = 0, disk_fills_at

    def facts(self):
        return H200

    def compile(self, spec):
        return None

    def time(self, task, spec):
        if self.count == self.at:
            self.fill()
        us = 10.0 + self.count
        self.count += 1
        return Measurement(us, us, us, 1e-4)

    def remeasure(self, task, specs):
        return tuple(Measurement(us, us, us) for us in (1.0, 2.0, 3.0, 4.0)[: len(specs)])

    def kill(self):
        pass


@pytest.fixture
def entries(monkeypatch):
    task = Task("key", {"outputs": []}, {})
    entry = BundleEntry("one", task, {f: KernelSpec(f, f, f, (), ()) for f in FILES})
    monkeypatch.setattr(bundle, "read_manifest", lambda folder: (SimpleNamespace(name="one"),))
    monkeypatch.setattr(bundle, "read_entry", lambda folder, data: entry)


def run(tmp_path, gpu_worker, monkeypatch, **more):
    def fill():
        monkeypatch.setattr("neptune_lab.files.os", disk.FaultyDisk(0, disk.full))

    gpu_worker.fill = fill
    said: list[str] = []
    try:
        return bundle.run(tmp_path, tmp_path / "results.json", [gpu_worker], say=said.append, **more), said
    except FileError as error:
        return error, said


@pytest.mark.usefixtures("entries")
class TestRun:
    def test_a_full_disk_is_found_out_before_anything_is_measured(self, tmp_path, monkeypatch):
        monkeypatch.setattr("neptune_lab.files.os", disk.FaultyDisk(0, disk.full))
        gpu_worker = OneGpu()
        found, _ = run(tmp_path, gpu_worker, monkeypatch)
        assert isinstance(found, FileError)
        assert gpu_worker.count == 0

    @pytest.mark.parametrize("at", range(len(FILES)))
    def test_all_results_are_elsewhere_then(self, tmp_path, monkeypatch, at):
        rescued: list = []
        real = files.write_text

        def write(path, text):
            if path.parent == tmp_path:
                return real(path, text)
            rescued.append(text)
            return path

        monkeypatch.setattr(files, "write_text", write)
        found, said = run(tmp_path, OneGpu(at), monkeypatch)
        assert isinstance(found, FileError)
        assert "everything is in" in found.reason
        assert len(json.loads(rescued[0])["results"]) == len(FILES)
        assert sum("kept in memory" in line for line in said) == 1
        assert len(read_results(tmp_path / "results.json")[1]) == at

    def test_measuring_again_keeps_the_old_results_until_there_are_new_ones(self, tmp_path, monkeypatch):
        run(tmp_path, OneGpu(), monkeypatch)
        before = read_results(tmp_path / "results.json")[1]
        monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
        shutil.copy(tmp_path / "results.json", tmp_path / "copy.json")
        found, _ = run(tmp_path, OneGpu(1), monkeypatch, again=True)
        assert isinstance(found, FileError)
        after = read_results(tmp_path / "results.json")[1]
        assert after.keys() == before.keys()
        assert after[FILES[0]].us == 10.0
        assert after[FILES[3]] == before[FILES[3]]


def test_finish_says_nothing_where_all_is_written(tmp_path):
    results = BundleResults(tmp_path / "results.json", H200)
    assert results.add({"a": Measurement(failure="none")}) is None
    results.finish()
