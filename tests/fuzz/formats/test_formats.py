"""Every format, changed at random: one of our errors or a right result, never another exception, never code run.

`make test` tries 15 changes per format, `make nightly` 1,500.  A failure names the format and the seed of the change.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from fuzz.formats.kinds import KINDS, Kind
from neptune_lab.errors import NeptuneError

QUICK, MANY = 15, 1500


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))


def run(kind: Kind, seed: int, folder: Path, data: bytes, canary: Path) -> str:
    """One change: "accepted" or "refused"."""
    changed = kind.change(data, Random(seed), canary)
    (folder / kind.file).write_bytes(changed)
    refused: NeptuneError | None = None
    try:
        kind.use(folder)
    except NeptuneError as error:
        refused = error
    if refused is None:
        return "accepted"
    assert str(refused).strip(), "an error without a message"
    assert "\x1b" not in str(refused), "an error that prints a terminal's escape"
    assert not kind.exact, refused
    return "refused"


def sweep(name: str, count: int, folder: Path) -> Counter[str]:
    kind = KINDS[name]
    canary = folder / "canary"
    work = folder / "work"
    work.mkdir()
    kind.make(work)
    data = (work / kind.file).read_bytes()
    kind.use(work)  # the sample itself is accepted
    found: Counter[str] = Counter()
    for seed in range(count):
        for path in work.glob("*.sqlite*"):
            path.unlink()
        try:
            found[run(kind, seed, work, data, canary)] += 1
        except Exception as error:
            error.add_note(f"format {name!r}, seed {seed}")
            raise
        assert not canary.exists(), f"format {name!r}, seed {seed}: code ran"
    return found


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", KINDS)
def test_a_changed_file_is_refused_or_right(name: str, tmp_path: Path) -> None:
    found = sweep(name, QUICK, tmp_path)
    assert found.total() == QUICK
    assert KINDS[name].exact or found["refused"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_many_changed_files_are_refused_or_right(name: str, tmp_path: Path) -> None:
    started = time.perf_counter()
    found = sweep(name, MANY, tmp_path)
    print(f"{name}: {dict(found)} in {time.perf_counter() - started:.0f} s")
    assert found.total() == MANY
