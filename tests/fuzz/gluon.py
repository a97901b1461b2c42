"""Random attention as kernels in Gluon, simulated warp by warp: every option of theirs, floats of 16 and of 8 bits."""

from __future__ import annotations

import random
from typing import Any

import by_name
import numpy as np

from fuzz import attention, judge, special
from fuzz.outcome import Outcome, Wrong

_EIGHTS = "float8_e4m3fn"
# Relative errors of weights of e4m3 (docs/concepts/numbers.md), and of the best of two numbers, with room.
_MOST_APART = {"single": 3e-2, "split": 2.5e-2, "mixed": 2.5e-2}


def draw_gluon(rng: random.Random) -> dict[str, Any]:
    """Sizes, mods as text, and options of kernels in Gluon."""
    case = attention.draw_attention(rng)
    heads, eights = rng.choice([1, 2, 4]), rng.random() < 0.35
    width, block_kv = rng.choice([32, 64, 64, 128]), rng.choice([32, 64, 64, 128])
    kv = block_kv + rng.randint(1, 30) * 8 + rng.choice([0, 0, 0, rng.randint(0, 7)])  # else, there is no loop
    case["sizes"] |= {
        "batch": rng.choice([1, 1, 2]), "heads": heads, "head_dim": width, "v_head_dim": rng.choice([width, 64]),
        "kv_heads": rng.choice([n for n in (1, 2, 4) if heads % n == 0 and n <= heads]),
        "q_len": kv if rng.random() < 0.4 else rng.randint(1, 300), "kv_len": kv,
        "dtype": "bfloat16" if eights else "float16",
    }  # fmt: skip
    case["sizes"].pop("kv_batch", None)
    if eights and kv % 16:
        case["sizes"]["kv_len"] = kv // 16 * 16 + 16
    case["template"] = "rolling_update"
    case["options"] = {
        "code": "gluon", "block_q": rng.choice([64, 128, 128, 128, 192]), "block_kv": block_kv,
        "ring_stages": rng.choice([1, 2, 2, 3]), "ping_pong": rng.random() < 0.8, "tie": rng.random() < 0.3,
        "persistent": rng.random() < 0.4, "ahead": rng.random() < 0.2, "one_consumer": rng.random() < 0.4,
    }  # fmt: skip
    if eights:
        case["eights"] = True
        case["options"]["rounded_weights"] = rng.choice([*_MOST_APART])
    return case


def run_gluon(case: dict[str, Any], outcome: Outcome) -> None:
    """Compiles, simulates, and compares with the reference."""
    from fuzz.run_case import compare, count_kernel
    from neptune_lab.pipeline.validate import simulated

    tensors = attention.captured(case)
    op = _of_eights(case, tensors) if "eights" in case else attention.operator(case, tensors)
    kernel = by_name.compile(op, case["template"], target="h200", validate="none", **case["options"])
    count_kernel(case, kernel, outcome)
    if not any(k.language == "gluon" for k in kernel.triton.kernels):
        return
    outcome.met["kernel in Gluon"] += 1
    outcome.met["with relays"] += "_relay(" in kernel.source
    names, order = [t.name for t in op.outputs], tuple(t.name for t in op.inputs)
    dtypes = {t.name: t.dtype for t in op.inputs}

    def simulate(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = simulated.run(kernel.triton, inputs, dtypes, order, {})
        return dict(zip(names, found, strict=True))

    if "eights" in case:
        inputs = op.random_inputs(case["seed"])
        wanted = op.reference(*inputs.values())
        several = wanted if isinstance(wanted, tuple) else (wanted,)
        most = _MOST_APART[case["options"]["rounded_weights"]]
        for name, want in zip(names, several, strict=True):
            _check_norm(name, simulate(inputs)[name], want, most)
        return
    shapes = {t.name: list(t.shape) for t in op.inputs if t.name not in op.captured}
    kind = case["data"][case["seed"] % 2]  # ordinary, or another kind
    inputs = special.draw(kind, shapes, "float16", case["seed"])
    inputs |= {name: np.asarray(a) for name, a in op.captured.items()}
    wanted = judge.expectations(lambda given, dtype: attention.reference(case, given, dtype), inputs, names)
    masks = bool(case["mask"]) or "where" in case["score"]
    compare("Gluon", kind, simulate(inputs), wanted, inputs, masks, 2.0**-11)


def _of_eights(case: dict[str, Any], tensors: dict[str, np.ndarray]) -> Any:
    """Attention of e4m3 tensors with a scale per head, and weights of e4m3."""
    from neptune_lab.operators import attention as operators
    from neptune_lab.operators import math

    sizes, (score, mask) = case["sizes"], attention.mods(case, {**tensors, "m": math})
    heads, keys = (1, sizes["heads"]), (1, sizes["kv_heads"])
    formats = {f"{name}_dtype": _EIGHTS for name in "qkv"} | {"q_scale": heads, "k_scale": keys, "v_scale": keys}
    formats |= {"weights_dtype": _EIGHTS, "v_transposed": True}
    return operators.general(score_mod=score, mask_mod=mask, **{**formats, **sizes})


def _check_norm(name: str, got: np.ndarray, want: np.ndarray, most: float) -> None:
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        raise Wrong(f"Gluon, 8 bits: {name} is infinite or NaN at other places than expected")
    apart = np.linalg.norm(got[finite] - want[finite]) / max(np.linalg.norm(want[finite]), 1e-30)
    if apart > most:
        raise Wrong(f"Gluon, 8 bits: {name} is off by {apart:.3g} of its norm, expected at most {most}")


__all__ = ["draw_gluon", "run_gluon"]
