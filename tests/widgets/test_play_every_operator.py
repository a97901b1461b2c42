"""Every operator has something to play, which ends at the definition's values, or says why not."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from neptune_widgets import tags
from neptune_widgets.panes import play
from neptune_widgets.session import Session, Source

from neptune_lab import CodeOptions
from neptune_lab.operators import OPERATORS, PRESETS, Operator, attention, gemm_chain
from neptune_lab.pipeline import schedule

SIZES = {"heads": 4, "q_len": 192, "kv_len": 192, "seq": 192, "head_dim": 32, "rows": 128, "cols": 640, "features": 128}


def made(name: str) -> Operator:
    """An operator or preset, at sizes of several tiles."""
    if name in gemm_chain.PRESETS:
        return gemm_chain.preset(name)
    if name in PRESETS:
        return attention.preset(name, **({"seq": 512} if PRESETS[name].takes_seq else {}))
    taken = inspect.signature(OPERATORS[name]).parameters
    left_out = {"q_len", "kv_len"} if "seq" in taken else set()
    sizes = {n: size for n, size in SIZES.items() if n in taken and n not in left_out}
    if name == "attention.gqa":
        sizes["kv_heads"] = 2
    if name == "attention.general":
        sizes["batch"] = 1
    return OPERATORS[name](**sizes)


EVERY = [
    *OPERATORS,
    *(
        pytest.param(n, marks=[pytest.mark.nightly] if k % 10 else [])
        for k, n in enumerate([*PRESETS, *gemm_chain.PRESETS])
    ),
]


@pytest.mark.one_in(27)
@pytest.mark.parametrize("name", EVERY)
def test_it_plays_and_ends_right(name: str):
    session = Session.__new__(Session)
    session.source, session.kernel = Source(schedule(made(name)), CodeOptions()), None
    small, _ = tags.shown(session.schedule)
    inputs = tags.default_inputs(small.operator)
    films = play.films(session)
    assert films
    outputs = small.operator.reference(*inputs.values())
    names = [t.name for t in small.operator.outputs]
    wanted = dict(zip(names, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))
    for film in films:
        for side in film["sides"]:
            assert len(side["frames"]) > 1
            assert {"running", "part"} & {t["kind"] for t in side["tensors"]}
        last = film["sides"][-1]
        if last["wrong"]:  # a repair that was refused: the naive program is shown alone
            continue
        for t in small.operator.outputs:
            tensor = next(x for x in last["tensors"] if x["name"] == t.name)
            found = np.full(int(np.prod(tensor["shape"])), np.nan)
            for frame in tensor["frames"]:
                for write in frame:
                    found[write[0]] = float(write[1])
            right = np.asarray(wanted[t.name], np.float64).reshape(-1)
            tolerance = 1e-4 if t.dtype in ("float32", "float64") else 2e-2
            np.testing.assert_allclose(
                found,
                right,
                rtol=tolerance,
                atol=tolerance * max(1.0, np.abs(right[np.isfinite(right)]).max(initial=0)),
            )
