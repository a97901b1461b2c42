"""A compilation to machine code that is cancelled ends at once, and the next one works."""

from __future__ import annotations

import os
import threading
import time

import pytest
from waiting import LONG, wait_until

from neptune_lab.errors import MachineCodeError
from neptune_lab.machine_code import asked_by, cancel, machine_code
from neptune_lab.machine_code import compile as compiling
from neptune_lab.machine_code.ahead import Failure
from neptune_lab.runtime import KernelSpec


def compiles_for_ever(text: str, *_):
    """In the compiling process: makes the file that the module names, and sleeps."""
    open(text, "x").close()
    time.sleep(3600)


def refuses(text: str, *_):
    """In the compiling process: an answer at once."""
    return Failure("ptxas", "k", f"error in process {os.getpid()}")


@pytest.fixture
def own_process(monkeypatch):
    """A compiling process of this test alone."""
    monkeypatch.setattr(compiling, "_child", [])
    monkeypatch.setattr(compiling, "_killed", False)
    yield
    for child in compiling._child:
        child.close()


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
def test_what_is_compiled_ends_and_the_next_one_works(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "compiled", compiles_for_ever)
    begun = tmp_path / "begun"
    spec = KernelSpec(name="k", entry="k", text=str(begun), inputs=(), outputs=())
    told: list[str] = []

    def compile_it() -> None:
        try:
            machine_code(spec, "sm_90")
        except MachineCodeError as error:
            told.append(error.reason)

    first = threading.Thread(target=compile_it, daemon=True)
    first.start()
    wait_until(begun.exists)
    cancel()
    first.join(LONG)
    assert not first.is_alive(), "the compilation went on after the cancel"
    assert told == ["compiling k for sm_90 was cancelled"]
    monkeypatch.setattr(compiling, "compiled", refuses)
    with pytest.raises(MachineCodeError, match="ptxas fails on k for sm_90: error in process"):
        machine_code(spec, "sm_90")


@pytest.mark.usefixtures("own_process")
def test_a_cancel_of_nothing_changes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "compiled", refuses)
    spec = KernelSpec(name="k", entry="k", text="", inputs=(), outputs=())
    cancel()
    with pytest.raises(MachineCodeError, match="ptxas fails"):
        machine_code(spec, "sm_90")
    cancel()
    with pytest.raises(MachineCodeError, match="ptxas fails"):
        machine_code(spec, "sm_90")


class Explorer:
    """One of two who ask."""


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
def test_a_cancel_ends_only_what_its_owner_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "compiled", compiles_for_ever)
    mine, other = Explorer(), Explorer()
    told: dict[str, str] = {}

    def compile_it(name: str, who: Explorer) -> threading.Thread:
        spec = KernelSpec(name=name, entry="k", text=str(tmp_path / name), inputs=(), outputs=())

        def work() -> None:
            try:
                with asked_by(who):
                    machine_code(spec, "sm_90")
            except MachineCodeError as error:
                told[name] = error.reason

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    first = compile_it("first", mine)
    wait_until((tmp_path / "first").exists)
    waiting = compile_it("waiting", other)
    cancel(other)  # it waits for its turn, or has not begun to
    assert first.is_alive()
    assert "first" not in told
    cancel(mine)
    first.join(LONG)
    assert told["first"] == "compiling first for sm_90 was cancelled"
    cancel(other)
    waiting.join(LONG)
    assert told["waiting"] == "compiling waiting for sm_90 was cancelled"
