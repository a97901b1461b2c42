"""Simulated steps of a Gluon kernel's warps: the same for each run, and each wait ends with what it waits for."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.gluon_simulator import Deadlock, Timeline, steps, timeline
from neptune_lab.operators import attention


def compiled(seq: int = 512, dtype: str = "float16", **options: Any) -> nl.Kernel:
    operator = attention.causal(heads=1, seq=seq, head_dim=64, dtype=dtype)
    code = nl.CodeOptions(code="gluon", **options)
    return nl.compile(operator, "rolling_update", block_q=128, block_kv=64, code=code, validate="none")


def simulated(kernel: nl.Kernel, source: str = "", limit: int = 10_000) -> Timeline:
    tensors = tuple(torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in kernel.operator.inputs)
    return timeline(source or kernel.source, kernel.triton.entry, tensors, 132, limit)


@pytest.fixture(scope="module")
def kernel() -> nl.Kernel:
    return compiled()


@pytest.fixture(scope="module")
def made(kernel: nl.Kernel) -> Timeline:
    return simulated(kernel)


def line(kernel: nl.Kernel, number: int) -> str:
    return kernel.source.splitlines()[number - 1]


def test_the_groups_are_those_of_the_kernel(made: Timeline):
    assert [(g.name, g.warps) for g in made.groups] == [("consumer 0", 4), ("consumer 1", 4), ("producer", 1)]
    assert made.steps == max(g.now for g in made.groups)


def test_a_group_does_one_thing_at_each_step(made: Timeline):
    for group in made.groups:
        ends = [e.end for e in group.events]
        assert [e.start for e in group.events] == [0, *ends[:-1]]
        assert ends[-1] == group.now
        assert all(e.end - e.start == 1 for e in group.events if e.kind not in ("wait", "compute"))


def test_an_event_is_at_the_line_that_does_it(kernel: nl.Kernel, made: Timeline):
    words = {
        "copy": ("_copy_in(", "_copy_out("),
        "product": ("warpgroup_mma(",),
        "wait": ("mbarrier.wait(", "warpgroup_mma_wait(", "_sync("),
        "arrive": ("mbarrier.arrive(", "mbarrier.expect(", "_sync(", "_arrive("),
    }
    for group in made.groups:
        assert {e.kind for e in group.events} <= {*words, "compute"}
        for event in group.events:
            if event.kind in words:
                assert any(word in line(kernel, event.lines[0]) for word in words[event.kind]), event
    repairs = {n for n, text in enumerate(kernel.source.splitlines(), 1) if "repair[:, None] * acc" in text}
    assert repairs <= {e.lines[0] for e in made.groups[0].events if e.kind == "compute"}


def test_a_wait_ends_right_after_what_it_waits_for(kernel: nl.Kernel, made: Timeline):
    waits = [e for g in made.groups for e in g.events if e.kind == "wait"]
    long = [e for e in waits if e.end - e.start > 1]
    assert all(e.after is not None for e in long)
    assert all(e.after is None or e.after.step == e.end - 1 for e in waits)
    slots = [e for e in made.groups[2].events if "empty.index" in line(kernel, e.lines[0]) and e.after is not None]
    assert slots  # the producer waits for the consumers to give slots back
    assert {"_empty" in line(kernel, e.after.lines[0]) for e in slots if e.after} == {True}
    assert {e.after.group for e in slots if e.after} <= {"consumer 0", "consumer 1"}


def test_a_flight_takes_as_long_as_it_says(made: Timeline):
    flights = [f for g in made.groups for f in g.flights]
    assert {f.end - f.start for f in flights if f.kind == "copy"} == {steps.COPY}
    assert min(f.end - f.start for f in flights if f.kind == "product") == steps.PRODUCT
    for group in made.groups:
        products = [f for f in group.flights if f.kind == "product"]
        assert all(b.end - a.end >= steps.PRODUCT for a, b in itertools.pairwise(products))


def test_more_tiles_are_more_copies_and_products(made: Timeline):
    longer = simulated(compiled(1024))
    copies = [[len([f for f in t.groups[2].flights if f.kind == "copy"]) for t in (made, longer)]]
    assert copies == [[2 * 8 + 2, 2 * 16 + 2]]  # the first program has the most tiles: K and V of each, and Q twice


def test_the_steps_do_not_depend_on_how_threads_run(kernel: nl.Kernel, made: Timeline):
    before = sys.getswitchinterval()
    try:
        for interval in (1e-6, 1e-4, 1.0):
            sys.setswitchinterval(interval)
            assert simulated(kernel) == made
    finally:
        sys.setswitchinterval(before)


def test_a_single_slot_makes_the_producer_wait_longer():
    def waited(stages: int) -> int:
        producer = simulated(compiled(ring_stages=stages)).groups[2]
        return sum(e.end - e.start for e in producer.events[:20] if e.kind == "wait")

    assert waited(1) > waited(3)


def test_steps_above_the_limit_are_not_kept(kernel: nl.Kernel, made: Timeline):
    cut = simulated(kernel, limit=50)
    assert cut.steps == made.steps
    for short, whole in zip(cut.groups, made.groups, strict=True):
        assert all(e.start < 50 for e in short.events)
        assert short.events[:-1] == whole.events[: len(short.events) - 1]


def test_a_kernel_that_hangs_is_told(kernel: nl.Kernel):
    wrong = kernel.source.replace("mbarrier.arrive(k_empty.index(k_slot), count=1)", "pass")
    with pytest.raises(Deadlock, match="no end of the phase"):
        simulated(kernel, wrong)


@pytest.mark.nightly
def test_bfloat16_and_persistent_kernels():
    assert simulated(compiled(dtype="bfloat16")).steps > 0
    assert simulated(compiled(persistent=True)).groups[2].flights


def test_numbers_in_bfloat16():
    from neptune_lab.gluon_simulator import Simulator

    kernel = compiled(256, "bfloat16")
    inputs = kernel.operator.random_inputs(0)
    tensors = [torch.from_numpy(np.asarray(a, np.float32)).to(torch.bfloat16) for a in inputs.values()]
    out = Simulator(kernel.source)(kernel.triton.entry, *tensors)
    wanted = kernel.operator.reference(*inputs.values())
    assert np.linalg.norm(out.double().numpy() - wanted) < 0.02 * np.linalg.norm(wanted)
