"""Kernels are compiled in threads during the comparison with the definition."""

from __future__ import annotations

import sys
import threading
from types import FrameType, SimpleNamespace

import pytest
import torch
import triton

from neptune_lab.runtime import early
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.tensor_spec import TensorSpec

SPEC = KernelSpec(
    "pair", "pair", "", (TensorSpec("x", (4, 8), "float16"), TensorSpec("y", (8, 4), "float32", (1, 8))), ()
)


class Jit:
    """Stands for Triton's JIT function: notes what it is asked to compile, and launches nothing."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.ran = fails, []
        self.done = threading.Event()

    def run(self, *arguments, grid, warmup, **options):
        self.ran.append((arguments, grid, warmup, options, threading.current_thread()))
        self.done.set()
        if self.fails:
            raise RuntimeError("PassManager::run failed")


def _loaded(monkeypatch: pytest.MonkeyPatch, first: Jit, second: Jit):
    module = SimpleNamespace(first=first, second=second)
    space = {"first": first, "second": second, "torch": torch}
    exec(
        "def pair(x, y):\n"
        "    out = torch.empty((4, 4), device=x.device)\n"
        "    first[(2, 1, 1)](x, out, num_warps=4)\n"
        "    first[(9, 1, 1)](x, out, num_warps=4)\n"
        "    second[(3, 1, 1)](out, y)\n"
        "    return out\n",
        space,
    )
    module.pair = space["pair"]
    kernel = SimpleNamespace(spec=SPEC, module=module, interpreter=False)
    monkeypatch.setattr(early, "load", lambda spec: kernel)
    monkeypatch.setattr("triton.runtime.jit.JITFunction", Jit)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    return kernel


def test_every_kernel_is_compiled_once_in_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch):
    first, second = Jit(), Jit()
    _loaded(monkeypatch, first, second)
    with early.compiling(SPEC, torch.device("cuda", 0)):
        assert first.done.wait(20), "it is compiled while the block runs"
        assert second.done.wait(20)
    ((arguments, grid, warmup, options, thread),) = first.ran
    assert (grid, warmup, options) == ((2, 1, 1), True, {"num_warps": 4})
    assert [t.device.type for t in arguments] == ["meta", "meta"]
    assert thread is not threading.main_thread()
    assert len(second.ran) == 1
    assert second.ran[0][0][1].stride() == (1, 8), "the strides that the kernel is written for"
    assert second.ran[0][4] is not thread


def test_it_waits_and_a_failure_is_left_to_the_launch(monkeypatch: pytest.MonkeyPatch):
    first, second = Jit(fails=True), Jit()
    _loaded(monkeypatch, first, second)
    with pytest.raises(ZeroDivisionError), early.compiling(SPEC, torch.device("cuda", 0)):
        raise ZeroDivisionError
    assert first.ran
    assert second.ran
    assert not first.ran[0][4].is_alive()


def test_nothing_is_compiled_in_the_interpreter_or_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    first, second = Jit(), Jit()
    kernel = _loaded(monkeypatch, first, second)
    with early.compiling(SPEC, torch.device("cpu")):
        pass
    kernel.interpreter = True
    with early.compiling(SPEC, torch.device("cuda", 0)):
        pass
    assert not first.ran
    assert not second.ran


def test_a_compilation_that_was_begun_goes_on_until_it_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    go_on, order = threading.Event(), []

    class Slow(Jit):
        def run(self, *arguments, grid, warmup, **options):
            assert go_on.wait(20)
            order.append("compiled")

    _loaded(monkeypatch, Slow(), Slow())
    wait = early.begun(SPEC, torch.device("cuda", 0))
    order.append("begun")
    go_on.set()
    wait()
    assert order == ["begun", "compiled", "compiled"]
    early.begun(SPEC, torch.device("cpu"))()
    assert len(order) == 3


def test_the_block_starts_after_the_front_end_which_needs_pythons_lock(monkeypatch: pytest.MonkeyPatch):
    main, begun, order = threading.main_thread().ident, threading.Event(), []

    def waits() -> bool:
        frame: FrameType | None = sys._current_frames()[main or 0]
        while frame is not None and frame.f_code is not early._after_front_end.__code__:
            frame = frame.f_back
        return frame is not None

    def make_llir() -> None:
        assert begun.wait(20)
        order.append("machine code")

    class Slow(Jit):
        def run(self, *arguments, grid, warmup, **options):
            while not waits() and not begun.wait(0.001):
                pass
            order.append("front end")
            make_llir()

    _loaded(monkeypatch, Slow(), Jit())
    with early.compiling(SPEC, torch.device("cuda", 0)):
        order.append("block")
        begun.set()
    assert order == ["front end", "block", "machine code"]


def test_what_launches_a_kernel_is_built_during_its_compilation(monkeypatch: pytest.MonkeyPatch):
    """From the frames of Triton's `compile`, which has finished its front end by then."""
    built: list[tuple[object, object]] = []
    done = threading.Event()

    class Launcher:
        def __init__(self, src: object, metadata: SimpleNamespace) -> None:
            built.append((src, metadata.tensordesc_meta))
            done.set()
            metadata.shared  # which is not known yet

    def make_llir() -> None:
        assert done.wait(20)

    space = {"__name__": "triton.compiler.compiler", "make_llir": make_llir}
    exec("def compile(src, metadata):\n    make_llir()\n", space)

    class Compiles(Jit):
        def run(self, *arguments, grid, warmup, **options):
            space["compile"](self, {"tensordesc_meta": grid})

    first, second = Compiles(), Jit()
    _loaded(monkeypatch, first, second)
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=SimpleNamespace(launcher_cls=Launcher)))
    with early.compiling(SPEC, torch.device("cuda", 0)):
        pass
    assert built == [(first, (2, 1, 1))]
