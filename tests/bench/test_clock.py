"""Turns, fallbacks and what nvidia-smi says, without a GPU: the GPU's part is played."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from neptune_lab.bench import clock, device
from neptune_lab.bench.clock import GpuTimer, HostTimer
from neptune_lab.runtime.timing import Ceiling, Measured


@pytest.fixture
def played(monkeypatch):
    """Samples are one, two, three and so on, whoever is asked; who was asked stands in the list."""
    asked: list[str] = []

    def sampler(call, *, cold, stream):
        if call() == "never captured":
            raise RuntimeError("operation not permitted when stream is capturing")

        def sample(count: int) -> list[float]:
            asked.append(call())
            return [float(len(asked))] * count

        return sample

    monkeypatch.setattr(clock, "sampler", sampler)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return asked


def test_contestants_are_timed_in_turns_that_begin_with_another(played):
    names = ("a", "b", "c")
    found = GpuTimer(seconds=0.0, least=3).times({n: lambda n=n: n for n in names}, cold=False)
    assert "".join(played) == "abcbcacab"
    assert found["a"].us == (1.0, 6.0, 8.0)
    assert {s.note for s in found.values()} == {""}


def test_what_cannot_be_captured_is_launched_call_by_call(played, monkeypatch):
    flushed: list[bool] = []

    def measure(call, *, warmup, repetitions, flush_l2):
        flushed.append(flush_l2)
        return Measured(7.0, 7.0, 7.0, repetitions, "made-up GPU", flush_l2)

    monkeypatch.setattr(clock, "measure", measure)
    found = GpuTimer(seconds=0.0, least=2).times({"x": lambda: "never captured"}, cold=True)
    assert found["x"].us == (7.0, 7.0)
    assert "cannot be captured" in found["x"].note
    assert flushed == [True, True]


def test_one_that_fails_is_not_everybodys_failure(played, monkeypatch):
    def measure(call, **options):
        raise RuntimeError("out of memory\nby far")

    monkeypatch.setattr(clock, "measure", measure)
    calls = {"x": lambda: "never captured", "y": lambda: "y"}
    found = GpuTimer(seconds=0.0, least=2).times(calls, cold=False)
    assert found["x"].us == ()
    assert found["x"].note == "could not be timed: out of memory"
    assert len(found["y"].us) == 2
    monkeypatch.setattr(clock, "LOST", "out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        GpuTimer(seconds=0.0, least=2).times(calls, cold=False)


def test_the_host_clock_calls_everybody():
    called: list[str] = []
    found = HostTimer(turns=2).times({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, cold=False)
    assert called == ["a", "b", "a", "b"]
    assert all(len(s.us) == 2 and min(s.us) >= 0 for s in found.values())


def test_clocks_are_read_while_the_kernel_runs(monkeypatch):
    launched: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: launched.append(-1))
    monkeypatch.setattr(device.shutil, "which", lambda name: name)

    def smi(query: str) -> str:
        assert query == "clocks.sm,clocks.mem,temperature.gpu,power.draw"
        assert launched == [1] * 200
        return "1980, 2619, 45, [N/A]"

    monkeypatch.setattr(device, "_smi", smi)
    found = device.under_load(lambda: launched.append(1), us=1000.0)
    assert found == {"sm_mhz": 1980.0, "memory_mhz": 2619.0, "celsius": 45.0, "watts": "[N/A]"}
    assert launched[-1] == -1


def test_the_rates_are_the_ceilings_of_the_runtime(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(device, "measure_ceilings", lambda n: Ceiling(f"GPU {n}", 700.0, 4200.0, "measured"))
    monkeypatch.setattr(device, "measure", lambda *_, **__: SimpleNamespace(us=1.2))
    assert device.rates() == {"copy_gbps": 4200.0, "matmul_tflops": 700.0, "empty_us": 1.2}


def test_without_a_gpu_there_are_no_rates(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.rates() == {}
    assert device.under_load(lambda: None, 1.0) == {}
    assert {"torch", "triton", "Python"} <= set(device.used_versions())
