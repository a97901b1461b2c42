"""Every preset stays fused, and its derivation says which fact keeps it right in float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neptune_lab.operators import attention, norms, performer, rows, softmax
from neptune_lab.operators.base import Operator
from neptune_lab.pipeline.schedules import schedule
from neptune_lab.repair import RepairTerm, VectorRepair

RISES = "only rises"
# What is repaired, and why its factor is at most 1; None: a vector repair, which moves sums and has no factor.
PRESETS: dict[str, tuple[Callable[[], Operator], dict[str, str | None]]] = {
    "causal": (lambda: attention.causal(1, 2, 64, 16), {"s_sum": RISES, "acc": RISES}),
    "global": (lambda: attention.full(1, 2, 64, 16), {"s_sum": RISES, "acc": RISES}),
    "alibi": (lambda: attention.alibi(1, 2, 64, 16), {"s_sum": RISES, "acc": RISES}),
    "softcap": (lambda: attention.softcap(1, 2, 64, 16), {"s_sum": RISES, "acc": RISES}),
    "window": (lambda: attention.window(1, 2, 64, 16, window=8), {"s_sum": RISES, "acc": RISES}),
    "prefix": (lambda: attention.prefix(1, 2, 64, 16, prefix=5), {"s_sum": RISES, "acc": RISES}),
    "gqa": (lambda: attention.gqa(1, 2, 64, 16, kv_heads=1), {"s_sum": RISES, "acc": RISES}),
    "decode": (lambda: attention.causal(1, 2, q_len=1, kv_len=64, head_dim=16), {"s_sum": RISES, "acc": RISES}),
    "lse": (lambda: attention.causal(1, 2, 64, 16, dtype="float32", return_lse=True), {"s_sum": RISES, "acc": RISES}),
    "l2_norm": (lambda: norms.l2_norm(4, 64), {"s_sum": RISES}),
    "rms_norm_max": (lambda: norms.rms_norm_max(4, 64), {"y_max": RISES}),
    "rms_norm_quantize": (lambda: norms.rms_norm_quantize(4, 64), {"y_max": RISES}),
    "layer_norm": (lambda: norms.layer_norm(4, 64), {"deviation_sum": None}),
    "layer_norm_statistics": (lambda: norms.layer_norm_statistics(4, 64), {"deviation_sum": None}),
    "performer": (lambda: performer.performer(1, 2, 64, 16), {"k_exp_sum": RISES, "kv_exp": RISES}),
    "cross_entropy": (lambda: rows.cross_entropy(4, 64), {"s_sum": RISES}),
    "log_sum_exp": (lambda: rows.log_sum_exp(4, 64), {"s_sum": RISES}),
    "softmax": (lambda: rows.softmax(4, 64), {"s_sum": RISES}),
    "figure1": (lambda: softmax.figure1(4, 64), {"s_sum": RISES}),
}


@pytest.mark.one_in(27)
@pytest.mark.parametrize("name", PRESETS)
def test_presets_stay_fused(name: str):
    make, expected = PRESETS[name]
    found: dict[str, str | None] = {}
    for applied in schedule(make()).history:
        for phase in applied.outcome.phases if applied.outcome is not None else ():
            term = phase.derivation
            if isinstance(term, RepairTerm | VectorRepair):
                assert term.steps[-1].title == "Range: in float32"
                why = RISES if any(RISES in reason for reason in term.ranges) else None
                found[str(dict(applied.step.arguments)["block"])] = why
    assert {block: why for block, why in found.items() if not block.endswith("_local")} == expected
