"""The distribution that problems are drawn from. Each problem has a random generator of its own, made from the seed and
the problem's number, so a longer run has the same problems first."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from neptune_lab.strict.typed import Count, Extent, OneOf

Kind: TypeAlias = Annotated[str, OneOf(frozenset({"prefill", "chunk", "decode", "rows"}))]

MASKS = ("full", "causal", "window", "prefix", "document")
MODS = ("plain", "alibi", "softcap", "relative")
ROWS = ("softmax", "log_sum_exp", "cross_entropy", "layer_norm", "l2_norm", "rms_norm_max")
DTYPES = ("float16", "bfloat16")
WIDTHS = ((64, 64), (80, 80), (96, 96), (128, 128), (128, 128), (192, 128), (256, 256))

# A problem with more bytes of tensors, or more operations, is drawn again: contestants copy tensors, and one call
# should take less than a tenth of a second.
MOST_BYTES = 8 << 30
MOST_FLOPS = 2e13


@dataclass(frozen=True)
class Problem:
    """One drawn problem.

    Args:
        index: its number in the run, from 0.
        kind: how many queries there are, or "rows" for an operator on the rows of a matrix.
        operator: "attention", or the name of the row operator.
        dtype: of the inputs.
        sizes: rows and cols; or batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim, window, documents.
        mask, mod: of attention; one of `MASKS` and of `MODS`.
        view: q, k and v are (batch, length, heads, width) tensors, transposed.
    """

    index: Count
    kind: Kind
    operator: Annotated[str, OneOf(frozenset({"attention", *ROWS}))]
    dtype: Annotated[str, OneOf(frozenset(DTYPES))]
    sizes: Mapping[str, Extent] = field(hash=False)
    mask: Annotated[str, OneOf(frozenset(MASKS))] = "full"
    mod: Annotated[str, OneOf(frozenset(MODS))] = "plain"
    view: bool = False

    @property
    def name(self) -> str:
        """The problem in words, such as "#3 softmax 512x1000 float16"."""
        s = self.sizes
        if self.kind == "rows":
            return f"#{self.index} {self.operator} {s['rows']}x{s['cols']} {self.dtype}"
        view = ", view" if self.view else ""
        return (
            f"#{self.index} {self.kind} {s['batch']}x{s['heads']}/{s['kv_heads']}, {s['q_len']}x{s['kv_len']}, "
            f"d{s['head_dim']}/{s['v_head_dim']}, {self.mask}, {self.mod}, {self.dtype}{view}"
        )

    @property
    def bytes(self) -> int:
        """Bytes of all inputs and the output, in 16-bit elements."""
        s = self.sizes
        if self.kind == "rows":
            return 4 * s["rows"] * s["cols"]
        width = s["head_dim"] + s["v_head_dim"]
        return 2 * s["batch"] * width * (s["heads"] * s["q_len"] + s["kv_heads"] * s["kv_len"])

    @property
    def moved(self) -> int:
        """Bytes that a row operator must read and write once: its matrix, what it writes, and weights or labels."""
        rows, cols = self.sizes["rows"], self.sizes["cols"]
        matrix, per_row = 2 * rows * cols, 4 * rows
        if self.operator in ("softmax", "layer_norm"):
            return 2 * matrix + (4 * cols if self.operator == "layer_norm" else 0)
        return matrix + per_row + (per_row if self.operator == "cross_entropy" else 0)

    @property
    def flops(self) -> float:
        """Operations of the products without a mask; 0 of a row operator."""
        s = self.sizes
        if self.kind == "rows":
            return 0.0
        return 2.0 * s["batch"] * s["heads"] * s["q_len"] * s["kv_len"] * (s["head_dim"] + s["v_head_dim"])


def draw(seed: int, count: int, *, tiny: bool = False) -> tuple[Problem, ...]:
    """The first `count` problems of a seed; every third is a row operator.

    Args:
        tiny: sizes for Triton's interpreter.
    """
    return tuple(_drawn(random.Random(f"{seed}/{index}"), index, tiny) for index in range(count))


def _drawn(rng: random.Random, index: int, tiny: bool) -> Problem:
    while True:
        made = _rows(rng, index, tiny) if index % 3 == 2 else _attention(rng, index, tiny)
        if made.bytes <= MOST_BYTES and made.flops <= MOST_FLOPS:
            return made


def _rows(rng: random.Random, index: int, tiny: bool) -> Problem:
    rows, cols = ((2, 9), (20, 90)) if tiny else ((32, 16384), (500, 262144))
    sizes = {"rows": _between(rng, *rows), "cols": _between(rng, *cols)}
    return Problem(index, "rows", rng.choice(ROWS), rng.choice(DTYPES), sizes)


def _attention(rng: random.Random, index: int, tiny: bool) -> Problem:
    kind = rng.choices(("prefill", "chunk", "decode"), (5, 2, 3))[0]
    heads = rng.choice((4, 8) if tiny else (4, 8, 16, 32, 64))
    group = rng.choice([g for g in (1, 1, 4, 8) if g <= heads])
    head_dim, v_head_dim = rng.choice(((16, 16), (24, 16)) if tiny else WIDTHS)
    kv_len = _between(rng, *((18, 50) if tiny else (128, 32768)))
    chunk = _between(rng, *((3, 12) if tiny else (16, 512)))
    sizes = {
        "batch": rng.choice((1, 2) if tiny else (1, 1, 2, 4, 8, 16)),
        "heads": heads,
        "kv_heads": heads // group,
        "q_len": {"prefill": kv_len, "chunk": min(chunk, kv_len), "decode": 1}[kind],
        "kv_len": kv_len,
        "head_dim": head_dim,
        "v_head_dim": v_head_dim,
        "window": 7 if tiny else rng.choice((256, 1000, 4096)),
        "documents": max(1, kv_len // (9 if tiny else rng.choice((300, 900, 3000)))),
    }
    masks = ("full", "full", "window", "document") if kind == "decode" else (*MASKS, "causal")
    mod = rng.choice(("plain", "plain", *MODS))
    return Problem(
        index, kind, "attention", rng.choice(DTYPES), sizes, rng.choice(masks), mod, view=rng.random() < 0.25
    )


def _between(rng: random.Random, least: int, most: int) -> int:
    """An integer from `least` to `most`, uniform on a logarithmic scale."""
    return min(most, int(least * (most / least) ** rng.random()))
