"""Every operator and preset opens in the explorer, and has tag tables; most presets do so at night.

A preset is an operator at other sizes: one of five is tried every time.
"""

from __future__ import annotations

import inspect
import json

import pytest
from neptune_widgets import static_view, tags

import neptune_lab as nl
from neptune_lab.operators import OPERATORS, PRESETS, attention, gemm_chain

# More than one tile along every dimension, and too many values for a table of them all.
SIZES = {
    "heads": 4,
    "q_len": 192,
    "kv_len": 192,
    "seq": 192,
    "head_dim": 32,
    "features": 128,
    "window": 100,
    "prefix": 70,
    "rows": 128,
    "cols": 640,
    "m": 128,
    "n": 192,
    "k": 32,
    "h": 32,
}


def small(name):
    """An operator of OPERATORS at SIZES."""
    taken = inspect.signature(OPERATORS[name]).parameters
    sizes = {n: size for n, size in SIZES.items() if n in taken}
    if "seq" in taken:
        sizes = {n: size for n, size in sizes.items() if n not in ("q_len", "kv_len")}
    if name == "attention.general":
        sizes["batch"] = 1
    if name == "attention.gqa":
        sizes["kv_heads"] = 2
    return OPERATORS[name](**sizes)


def preset(name):
    if name in gemm_chain.PRESETS:
        return gemm_chain.preset(name)
    return attention.preset(name, **({"seq": 512} if PRESETS[name].takes_seq else {}))


ALL = [pytest.param(small, name, id=name) for name in OPERATORS] + [
    pytest.param(preset, name, id=name, marks=[pytest.mark.nightly] if n % 5 else [])
    for n, name in enumerate([*PRESETS, *gemm_chain.PRESETS])
]


@pytest.mark.one_in(40)
@pytest.mark.parametrize(("make", "name"), ALL)
def test_it_opens_and_has_a_sampled_table(make, name):
    explorer = nl.explore(make(name))
    shown = json.loads(explorer.payload)
    if shown["kernel_error"] is None:
        assert shown["trace"]["kernel"]["source"]
    else:  # a preset that is too wide for the template's tiles opens all the same
        assert "smaller tiles" in shown["kernel_error"]["help"]
    html = static_view.html(explorer.trace)
    assert html.count("<details") == html.count("</details>") >= 3

    schedule, note = tags.shown(explorer.schedule)
    assert note.startswith("A sample: the same steps at"), note
    assert tags.size(schedule) <= tags.LARGEST
    for tiny, real in zip(schedule.history, explorer.schedule.history, strict=True):
        keys = [p.key for p in real.outcome.phases]
        # A remark is replayed as its sentence: the refusal before it, with its phases, is the real schedule's.
        assert [p.key for p in tiny.outcome.phases] == (keys if real.step.primitive != "remark" else ["remark"])
    last = schedule.history[-1].outcome.phases[-1].key
    inputs = tags.default_inputs(schedule.operator)
    table = tags.table(schedule, len(schedule.history), last, None, inputs, note)
    cells = [c for row in table["rows"] for c in row["cells"] if c]
    assert cells
    # In float16 a sum that nearly cancels is further off than rounding on its own scale.
    assert all(
        float(c["value"]) == pytest.approx(float(c["should_be"]), rel=0.02) for c in cells if c["right"] is False
    )
