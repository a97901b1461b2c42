"""`--resume FILE`: tests whose names are lines of the file are left out, and tests that pass become lines of it.

So a run that was interrupted goes on where it was, and one in which tests failed runs these again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--resume", type=Path, metavar="FILE", help="leave out the tests that FILE names; add what passes")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--resume")
    if file is not None:
        config.pluginmanager.register(Resuming(file, getattr(config, "workerinput", None)))


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
