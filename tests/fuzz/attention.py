"""Random attention: sizes, heads in groups, score mods and masks as text, captured tensors."""

from __future__ import annotations

import random
import re
from typing import Any

import by_name
import numpy as np

from fuzz import judge, special
from fuzz.definitions import unless_large

_SCORES = [
    "s", "s", "s * 0.5", "s + bias[q, kv]", "s + bias[q, kv]", "s + slopes[h] * (kv - q)", "s - 0.25 * (q - kv)",
    "2.0 * m.tanh(s / 2.0)", "m.where(q >= kv, s, -3.4028234663852886e38)", "m.where(kv < {a}, s, s + 1.0)",
    "m.where((q - kv) % 2 == 0, s, s - 1.0)", "s + m.where(kv == 0, sink[h], 0.0)", "s * s * s", "m.maximum(s, -1.0)",
    "s + bias[q, kv] * slopes[h]", "s + rel[q - kv + {kv}]", "m.where((q - kv) / 3.0 <= 1.0, s, s - 0.5)",
]  # fmt: skip
_MASKS = [
    "", "", "", "q >= kv", "q >= kv", "q + {off} >= kv", "(q >= kv) & (q - kv <= {a})", "(kv < {a}) | (q >= kv)",
    "kv < {a}", "doc[q] == doc2[kv]", "(q - kv) * (q - kv) <= {a}", "~(q < kv)", "kv % 2 == 0", "(kv != q) | (q == 0)",
    "q >= {a}", "(kv >= q) & (h == 0)", "(q // 2) >= (kv // 2)", "kv < ends[b]", "q + ends[b] - kv < {a}",
    "(kv <= q + ends[b]) & (kv > q + ends[b] - {a})", "q // ({off} + 2) == kv // ({off} + 2)",
    "(q >= kv) & ((kv < {off}) | (q - kv < {a}))", "(q < {off}) | (kv < {off}) | (abs(q - kv) <= {a} // 2)",
    "((q - kv) // 2 % 3 == 0) | (kv == {a})", "(q // 2 % 3 == kv // 2 % 3) & ~((q - kv > 1) & (kv >= {off}))",
]  # fmt: skip


# Flags of keys, as a static cache has them, and the documents of keys.
_FLAGS = ["shown[b, kv]", "shown[b, kv] & (kv != {a})", "doc[q] == doc2[kv]", "(doc2[kv] == doc[q]) & (kv != {a})"]

# Limits that `or` joins.
_JOINED = [
    "(kv < 3) | (q + {kv} - kv < {a})", "(kv <= q + ends[b]) & ((kv > q + ends[b] - {a}) | (kv < {off}))",
    "(kv < ends[b]) | (kv >= {a})", "(kv < ends[b] - {a}) | (kv == q + ends[b]) | (kv < {off})",
]  # fmt: skip

# A loop that runs once, and a load in a loop whose condition always holds.
_ASKED = re.compile(r"for once in range|& \(\w+ >= \d+\)")


def draw_attention(rng: random.Random) -> dict[str, Any]:
    """Sizes, mods as text and the template's options."""
    from fuzz.draw import options

    heads = rng.choice([1, 1, 2, 4])
    q, kv = rng.randint(1, 12), rng.randint(2, 14)
    if rng.random() < 0.5:
        kv = q = max(q, 2)
    sizes = {
        "batch": rng.choice([1, 1, 2]), "heads": heads, "q_len": q, "kv_len": kv, "head_dim": rng.choice([2, 4]),
        "kv_heads": rng.choice([n for n in (1, 2, 4) if heads % n == 0 and n <= heads]),
        "v_head_dim": rng.choice([2, 3, 4]), "dtype": rng.choices(["float32", "float16"], [3, 1])[0],
        "return_lse": rng.random() < 0.3, "empty_rows": rng.choice(["nan", "zero"]),
    }  # fmt: skip
    fill = {"a": rng.randint(0, kv), "off": rng.randint(0, 3), "kv": kv}
    made = options(rng)
    made["options"].pop("interleave", None)
    if rng.random() < 0.04:  # rows enough for two halves of matrix products
        sizes |= {"heads": 1, "kv_heads": 1, "q_len": (kv := rng.randint(33, 48)), "kv_len": kv, "head_dim": 16}
        made = {"template": "rolling_update", "options": {"block_q": 32, "block_kv": 16, "interleave": 2}}
    elif rng.random() < 0.05:  # tiles enough for a list of those that a mask of positions shows
        sizes |= {"heads": 1, "kv_heads": 1, "q_len": rng.randint(1, 40), "kv_len": (kv := rng.randint(33, 40))}
        made = {"template": "rolling_update", "options": {"block_q": rng.choice([2, 4]), "block_kv": 2}}
        fill["kv"] = kv
    case = {
        **made,
        "sizes": sizes,
        "score": rng.choice(_SCORES).format(**fill),
        "mask": rng.choice(_MASKS).format(**fill),
    }
    sizes["return_max"] = rng.random() < 0.2
    if rng.random() < 0.3:
        sizes["kv_batch"] = 1
    return case


def draw_few_rows(rng: random.Random) -> dict[str, Any]:
    """Few queries, on a GPU that copies ahead: first tiles may be asked for together."""
    case = draw_attention(rng)
    case["sizes"] |= {
        "q_len": rng.choice([1, 1, 2, 7, 9]), "head_dim": rng.choice([16, 32, 32, 192]),
        "v_head_dim": rng.choice([16, 16, 192]), "kv_len": rng.randint(17, 100),
    }  # fmt: skip
    options = {"block_kv": rng.choice([16, 32, 64]), "pad_rows": True}
    template = rng.choice(["rolling_update", "split_k_update"])
    if template == "split_k_update":
        options["splits"] = rng.choice([1, 2, 3, 5])
    of_tiles = rng.random()
    if of_tiles < 0.4:
        fill = {"a": rng.randint(0, 16), "off": rng.randint(0, 3), "kv": case["sizes"]["kv_len"]}
        case |= {"mask": rng.choice(_FLAGS if of_tiles < 0.2 else _JOINED).format(**fill)}
    return {**case, "template": template, "options": options, "target": "h200"}


def captured(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """The tensors that mods may capture, as they are for the seed."""
    sizes, rng = case["sizes"], np.random.default_rng(case["seed"])
    q, kv = sizes["q_len"], sizes["kv_len"]
    return {
        "bias": rng.standard_normal((q, kv)).astype("float32"),
        "slopes": rng.uniform(0.1, 1.0, sizes["heads"]).astype("float32"),
        "sink": rng.standard_normal(sizes["heads"]).astype("float32"),
        "rel": rng.standard_normal(q + kv).astype("float32"),
        "doc": np.sort(rng.integers(0, 3, q)).astype("int32"),
        "doc2": np.sort(rng.integers(0, 3, kv)).astype("int32"),
        "ends": rng.integers(-3, kv + 4, sizes["batch"]).astype("int32"),
        "shown": _runs(rng, sizes["batch"], kv),
    }


def _runs(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Booleans that are set in one run of each row, which may be empty, but for some of them."""
    first, last = np.sort(rng.integers(0, columns + 1, (2, rows)), axis=0)
    places = np.arange(columns)
    inside = (places >= first[:, None]) & (places < last[:, None])
    return inside & (rng.random((rows, columns)) < 0.8)


def mods(case: dict[str, Any], scope: dict[str, Any]) -> tuple[Any, Any]:
    """The two mods, their names looked up in `scope`."""
    score = eval(f"lambda s, b, h, q, kv: {case['score']}", scope) if case["score"] != "s" else None
    mask = eval(f"lambda b, h, q, kv: {case['mask']}", scope) if case["mask"] else None
    return score, mask  # the texts are this module's own


def operator(case: dict[str, Any], tensors: dict[str, np.ndarray]) -> Any:
    """The operator, its mods written with neptune_lab's functions."""
    from neptune_lab.operators import attention, math

    score, mask = mods(case, {**tensors, "m": math})
    return attention.general(score_mod=score, mask_mod=mask, **case["sizes"])


def reference(case: dict[str, Any], inputs: Any, dtype: str) -> dict[str, np.ndarray]:
    """Attention stage by stage in NumPy, with the mods' text read by NumPy."""
    sizes, kind = case["sizes"], np.dtype(dtype.rstrip("+-"))
    names = ("bias", "slopes", "sink", "rel", "doc", "doc2", "ends", "shown")
    values = {n: np.asarray(inputs[n]) for n in names if n in inputs}
    values = {n: a.astype(kind) if a.dtype.kind == "f" else a.astype(np.int64) for n, a in values.items()}
    values |= {n: values[n] != 0 for n in ("shown",) if n in values}
    score_mod, mask_mod = mods(case, {**values, "m": np})
    q, k, v = (np.asarray(inputs[n]).astype(kind) for n in ("q", "k", "v"))
    group = sizes["heads"] // sizes["kv_heads"]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    grid = np.ogrid[0 : sizes["batch"], 0 : sizes["heads"], 0 : sizes["q_len"], 0 : sizes["kv_len"]]
    shape = (sizes["batch"], sizes["heads"], sizes["q_len"], sizes["kv_len"])
    with np.errstate(all="ignore"):
        scale = kind.type(np.float32(sizes["head_dim"] ** -0.5))
        turned = np.swapaxes(k, 2, 3)
        score = unless_large((q @ turned).astype(kind), q[:, :, :, None].astype(float) * k[:, :, None], (4,)) * scale
        if score_mod is not None:
            score = np.broadcast_to(np.asarray(score_mod(score, *grid)), shape).astype(kind)
        if mask_mod is not None:
            score = np.where(np.broadcast_to(mask_mod(*grid), shape), score, kind.type(-np.inf))
        top = score.max(axis=3)
        weights = np.exp(score - top[..., None])
        total = weights.sum(axis=3)
        out = unless_large(weights @ v, np.broadcast_to(v[:, :, None], (*shape, v.shape[3])), (3,)) / total[..., None]
        lse = np.where(np.isneginf(top), -np.inf, top + np.log(total))
        if sizes["empty_rows"] == "zero":
            out = np.where(np.isneginf(top)[..., None], 0.0, out)
    return {"out": out.astype(kind), "lse": lse.astype(kind), "max_scores": top.astype(kind)}


def run_attention(case: dict[str, Any], outcome: Any) -> None:
    """Compiles, and compares tiles and Triton on every kind of data of the case."""
    from fuzz.run_case import compare, count_kernel, triton_outputs
    from neptune_lab.htile.interpret import interpret

    tensors = captured(case)
    op = operator(case, tensors)
    kernel = by_name.compile(op, case["template"], validate="none", target=case.get("target"), **case["options"])
    count_kernel(case, kernel, outcome)
    if "target" in case:
        outcome.met["asked for together"] += bool(_ASKED.search(kernel.source))
    dtype = case["sizes"]["dtype"]
    shapes = {t.name: list(t.shape) for t in op.inputs if t.name not in op.captured}
    for n, kind in enumerate(case["data"]):
        inputs: dict[str, np.ndarray] = special.draw(kind, shapes, dtype, case["seed"] + n)
        inputs |= {name: np.asarray(a) for name, a in op.captured.items()}
        if "bias" in op.captured and kind.endswith("-inf"):
            inputs["bias"] = special.draw(kind, {"x": list(inputs["bias"].shape)}, "float32", case["seed"])["x"]
        outputs = list(kernel.htile.outputs)
        wanted = judge.expectations(lambda given, d: reference(case, given, d), inputs, outputs)
        unit = 2.0**-20 if dtype == "float32" else 2.0**-11
        masks = bool(case["mask"]) or "where" in case["score"]
        compare("tiles", kind, interpret(kernel.htile, inputs), wanted, inputs, masks, unit)
        compare("Triton", kind, triton_outputs(kernel, inputs, case, n), wanted, inputs, masks, unit)
