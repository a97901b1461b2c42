"""Options of long runs.

`--resume FILE`: tests whose names are lines of the file are left out, and tests that pass become lines of it.  So a run
that was interrupted goes on where it was, and one in which tests failed runs these again.

`--night N`: of the tests marked `nightly` those whose turn it is in night N; any NIGHTS nights in a row have all.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

NIGHTS = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--resume", type=Path, metavar="FILE", help="leave out the tests that FILE names; add what passes")
    parser.addoption("--night", type=int, metavar="N", help=f"of nightly tests, the one in {NIGHTS} of the N-th night")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--resume")
    if file is not None:
        config.pluginmanager.register(Resuming(file, getattr(config, "workerinput", None)))


def of_other_nights(items: list[pytest.Item], night: int) -> set[pytest.Item]:
    """The nightly tests whose turn is in another night.

    One in NIGHTS of each file stays, drawn by its name, and about as many of each test's parameters.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("nightly"):
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    others = set[pytest.Item]()
    for file, nightly in files.items():
        draw = random.Random(file)
        first = draw.randrange(NIGHTS)
        drawn = sorted(draw.sample(nightly, len(nightly)), key=lambda item: item.nodeid.partition("[")[0])
        others.update(item for place, item in enumerate(drawn, first) if (place - night) % NIGHTS)
    return others


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (night := config.getoption("--night")) is not None:
        others = of_other_nights(items, night)
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = [item for item in items if item not in others]


class Resuming:
    """The tests that passed before this run, and those that pass in it.

    All workers leave out the same tests, also one that is started later because another died: they are told which.
    """

    def __init__(self, file: Path, given: dict[str, Any] | None) -> None:
        self.file = file
        self.writes = given is None
        told = None if given is None else given["passed"]
        self.before: list[str] = (file.read_text().splitlines() if file.is_file() else []) if told is None else told
        self.called, self.failed = set[str](), set[str]()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["passed"] = self.before

    @pytest.hookimpl(trylast=True)  # the turns of a night are drawn from all tests, also where a run goes on
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        before = set(self.before)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in before])
        items[:] = [item for item in items if item.nodeid not in before]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.writes:
            return
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.called.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid in self.called and report.nodeid not in self.failed:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as file:
                file.write(f"{report.nodeid}\n")
