"""Several threads compile and launch: the numbers are those of one thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention, softmax

THREADS, CALLS = 6, 12


def together(work: Callable[[int], object], threads: int = THREADS) -> list:
    """What each thread's work gives; all begin at once."""
    gate = threading.Barrier(threads, timeout=300)

    def begin(n: int) -> object:
        gate.wait()
        return work(n)

    with ThreadPoolExecutor(threads) as pool:
        return [future.result(timeout=500) for future in [pool.submit(begin, n) for n in range(threads)]]


def inputs(n: int, heads: int = 2, seq: int = 32) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(n)
    return [torch.randn(1, heads, seq, 16, generator=made) for _ in "qkv"]


def right(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    return torch.allclose(out.double(), wanted, atol=2e-3)


@pytest.mark.nightly
def test_six_threads_launch_one_kernel():
    kernel = nl.compile(attention.causal(heads=2, seq=32, head_dim=16, dtype="float32"))

    def work(n: int) -> list[bool]:
        return [right(kernel(*given), *given) for given in (inputs(CALLS * n + call) for call in range(CALLS))]

    assert together(work) == [[True] * CALLS] * THREADS


@pytest.mark.nightly
def test_six_threads_launch_kernels_of_their_own_and_one_kernel_from_all(tmp_path, monkeypatch):
    """The first compile, the first import and the first launch of each, all at once."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))

    def work(n: int) -> list[bool]:
        seq = 16 * (1 + n % 3)
        kernel = nl.compile(attention.causal(heads=2, seq=seq, head_dim=16, dtype="float32"))
        given = inputs(n, seq=seq)
        out = kernel(*given)
        x = torch.randn(4, 8 * (1 + n % 2), generator=torch.Generator().manual_seed(n))
        rows = nl.compile(softmax.figure1(rows=4, cols=x.shape[1]))(x)
        wanted = torch.exp(x - x.amax(1, keepdim=True)).sum(1)
        return [right(out, *given), torch.allclose(rows, wanted, rtol=1e-3)]

    assert together(work) == [[True, True]] * THREADS


@pytest.mark.parametrize("lengths", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_attention_from_six_threads(lengths: int, tmp_path, monkeypatch):
    """With two lengths, the threads make the kernel for all lengths too."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))

    def causal(b, h, i, j):
        return i >= j

    def work(n: int) -> list[bool]:
        made = [inputs(10 * n + call, seq=16 * (1 + call % lengths)) for call in range(4)]
        return [right(nl.attention(*given, mask_mod=causal), *given) for given in made]

    assert together(work) == [[True] * 4] * THREADS


@pytest.mark.nightly
def test_six_threads_trace_functions_of_their_own():
    def work(n: int) -> bool:
        x = torch.randn(3, 5 + n, generator=torch.Generator().manual_seed(n))
        kernel = nl.compile(nl.from_torch(lambda x: (x * n).softmax(-1), x))
        return torch.allclose(kernel(x), (x * n).softmax(-1), atol=1e-5)

    assert together(work) == [True] * THREADS


def test_one_torch_operator_from_six_threads():
    kernel = nl.compile(softmax.figure1(rows=4, cols=24))
    ops = together(lambda _: kernel.as_torch_op())
    assert len(set(map(id, ops))) == 1


FORK = """
import os, threading, time
import torch
import neptune_lab as nl
from neptune_lab.operators import softmax
from neptune_lab.runtime import load
kernel = nl.compile(softmax.figure1(rows=4, cols=8))
x = torch.randn(4, 8)
wanted = kernel(x)
q = torch.randn(1, 1, 8, 8)
attended = nl.attention(q, q, q)
held, done = threading.Event(), threading.Event()
def hold():
    with load_module._interpreting, load_module._loading, compiling:
        held.set()
        done.wait(300)
import neptune_lab.runtime.load
import sys
from neptune_lab.pytorch.compiled import _lock as compiling
load_module = sys.modules["neptune_lab.runtime.load"]
thread = threading.Thread(target=hold)
thread.start()
held.wait(300)
if (pid := os.fork()) == 0:
    fine = torch.equal(kernel(x), wanted) and torch.allclose(nl.attention(q, q, q, scale=1.0), attended, atol=9)
    os._exit(0 if fine else 1)
print(os.waitpid(pid, 0)[1])
done.set()
"""


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent():
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=300, env=env)
    assert done.stdout.strip() == "0", done.stderr


LOCKS = """
import os, threading
from neptune_lab.strict.forks import ReentrantLock, fork_waits_for
lock, mine, waited = ReentrantLock(), ReentrantLock(), threading.RLock()
fork_waits_for(waited)
held, done, forking = threading.Event(), threading.Event(), threading.Event()
under_way = []
def hold():
    with lock, waited:
        under_way.append(1)
        held.set()
        forking.wait(20)
        under_way.clear()
    with lock:
        held.set()
        done.wait(20)
thread = threading.Thread(target=hold)
thread.start()
held.wait(20)
held.clear()
threading.Timer(0.05, forking.set).start()
with mine:
    if (pid := os.fork()) == 0:
        with mine, waited:
            taken = lock._lock.acquire(timeout=5)
        os._exit(0 if taken and not under_way else 1)
print(os.waitpid(pid, 0)[1])
done.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_waits_for_what_is_replaced_and_its_child_finds_free_locks():
    done = subprocess.run([sys.executable, "-c", LOCKS], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0", done.stderr
