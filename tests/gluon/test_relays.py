"""Two groups of warps as one consumer, each with a relay at the barriers of shared memory."""

from __future__ import annotations

import re

import by_name
import numpy as np
import pytest
import torch
from by_turns import in_turn

from neptune_lab.gluon_simulator import Deadlock, Simulator
from neptune_lab.operators import attention

ODD = {"batch": 1, "heads": 2, "seq": 197, "head_dim": 64}
OPERATORS = {
    "causal": lambda: attention.causal(**ODD, return_lse=True),
    "window": lambda: attention.window(**{**ODD, "seq": 320}, window=150),
    "softcap and groups": lambda: attention.general(
        1,
        4,
        150,
        210,
        64,
        lambda s, b, h, q, kv: s + 0.1 * (kv - q),
        lambda b, h, q, kv: (kv < 70) | (q >= kv),
        kv_heads=2,
    ),
    "of no matrix": lambda: attention.causal(heads=2, seq=256, head_dim=64),
}


def compiled(operator, **options):
    return by_name.compile(operator, "rolling_update", code="gluon", **{"block_q": 128, "block_kv": 64, **options})


def outputs(operator, kernel, source: str = "") -> list[np.ndarray]:
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in operator.random_inputs(0).values()]
    made = Simulator(source or kernel.source, 1)(kernel.triton.entry, *tensors)
    return [one.numpy() for one in (made if isinstance(made, tuple) else (made,))]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "persistent"), in_turn(OPERATORS, [False, True], every=2))
def test_numbers(name, persistent):
    operator = OPERATORS[name]()
    kernel = compiled(operator, one_consumer=True, persistent=persistent)
    assert "_relay(" in kernel.source
    wanted = operator.reference(*operator.random_inputs(0).values())
    for got, want in zip(outputs(operator, kernel), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert np.linalg.norm(got.astype(np.float64) - want) < 2e-3 * np.linalg.norm(want)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{"block_q": 64}, {"block_q": 192}, {"ahead": True, "persistent": True}], ids=str)
def test_other_kernels_keep_their_consumers(options):
    operator = attention.causal(heads=1, seq=384, head_dim=64)
    assert compiled(operator, one_consumer=True, **options).source == compiled(operator, **options).source


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPERATORS)
def test_a_group_waits_between_two_arrivals(name):
    """Else it could arrive twice at a barrier of the hardware before its relay has come once."""
    source = compiled(OPERATORS[name](), one_consumer=True, persistent=True).source
    for function, wait, arrival in (
        ("consumer", "_await_relay", "_tell_relay"),
        ("relay", "_tell_group", "_await_group"),
    ):
        body = re.search(rf"def \w+_{function}\(.*?(?=\n\n\n)", source, re.DOTALL)
        assert body is not None
        met = re.findall(rf"^ *({wait}|{arrival})\(", body[0], re.MULTILINE)
        assert not any(a == b == arrival for a, b in zip(met, met[1:] + met[:1], strict=True))
        # A loop over tiles may have no iteration, and begins and ends so that it may be left out.
        loops = re.findall(r"^( +)for step.*?\n((?:\1 .*\n)*)", body[0], re.MULTILINE)
        for _, lines in loops:
            inside = re.findall(rf"({wait}|{arrival})\(", lines)
            assert (inside[0], inside[-1]) == (wait, arrival)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", OPERATORS)
def test_groups_take_turns(name):
    """Each group takes a turn and passes it on, in this order; the simulator takes both for one."""
    source = compiled(OPERATORS[name](), one_consumer=True, persistent=True).source
    body = re.search(r"def \w+_consumer\(.*?(?=\n\n\n)", source, re.DOTALL)
    assert body is not None
    opened, *turns = re.findall(r"^ *(_open_turns|_take_turn|_pass_turn)\(", body[0], re.MULTILINE)
    assert opened == "_open_turns"
    assert turns == ["_take_turn", "_pass_turn"] * (len(turns) // 2)
    assert turns
    for lines in re.findall(r"_take_turn\(\)\n(.*?)_pass_turn\(", body[0], re.DOTALL):
        assert "warpgroup_mma(" in lines


# Beside each, `_rest()` lets everything happen first that may, so that chance hides nothing.
_LATE_COPIES = ("    _copy_in(rows", "    _rest()\n    _copy_in(rows")
FAULTS = {
    "a relay gives a slot back before its group has read it": (
        (
            "_await_group(consumer)\n        mbarrier.arrive(v_empty.index(v_slot), count=1)",
            "mbarrier.arrive(v_empty.index(v_slot), count=1)\n        _await_group(consumer)",
        ),
        ("\n        acc = warpgroup_mma_wait(0", "\n        _rest()\n        acc = warpgroup_mma_wait(0"),
    ),
    "a relay does not wait for a copy": (("    mbarrier.wait(v_full.index(v_slot), v_phase)\n", "\n"), _LATE_COPIES),
    "a group waits for no relay": (("    _await_relay()\n        acc_pending", "    acc_pending"),),
    "a group tells no relay": (("    _tell_relay()\n        v_slot", "    v_slot"),),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_simulator_sees_faults(fault):
    operator = attention.full(heads=1, q_len=128, kv_len=384, head_dim=64)
    kernel = compiled(operator, one_consumer=True, ring_stages=1)
    source = kernel.source
    for right, wrong in FAULTS[fault]:
        assert right in source
        source = source.replace(right, wrong)
    wanted = operator.reference(*operator.random_inputs(0).values())
    try:
        (out,) = outputs(operator, kernel, source)
    except Deadlock:
        return
    assert not np.linalg.norm(out.astype(np.float64) - wanted) <= 0.1 * np.linalg.norm(wanted)
