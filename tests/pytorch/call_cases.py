"""Random calls of `nl.attention`: what one holds, how one is drawn from a seed, and which ones are simpler.

A mod is a text, so that a case prints as a few lines that can be pasted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import layouts
import torch
import torch.nn.functional as F

SPECIAL = {
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "finfo.min": torch.finfo(torch.float32).min,
    "-1e4": -1e4, "1e4": 1e4, "zero": 0.0, "denormal": 1e-42, "large": 3e8, "1e20": 1e20, "-1e20": -1e20, "1e30": 1e30,
}  # fmt: skip
# Factors of a row.
FACTORS = {"x1e20": 1e20, "x-1e20": -1e20, "x1e-20": 1e-20}
LAYOUTS = ("", "sliced", *layouts.LAYOUTS)


@dataclass(frozen=True)
class Case:
    """One call.

    Args:
        sizes: batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim.
        dtype: of q, k and v.
        score, mask: the mods' bodies, over s, b, h, q, kv and captured tensors; "" where there is none.
        special: (tensor, value, place) of elements or rows that are overwritten; the value is a key of SPECIAL or of
            FACTORS, or "equal".
        seed: of the tensors.
        layout: how q, k and v lie in memory, one of LAYOUTS; "" is contiguous.
    """

    sizes: tuple[int, int, int, int, int, int, int]
    dtype: str
    score: str
    mask: str
    special: tuple[tuple[str, str, int], ...]
    scale: float | None
    seed: int
    layout: str = ""

    def tensors(self) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """q, k and v; and what the mods may capture, by name.  All on the CPU."""
        batch, heads, kv_heads, q_len, kv_len, width, v_width = self.sizes
        g = torch.Generator().manual_seed(self.seed)
        dtype = getattr(torch, self.dtype)
        shapes = (batch, heads, q_len, width), (batch, kv_heads, kv_len, width), (batch, kv_heads, kv_len, v_width)
        q, k, v = (torch.randn(s, generator=g).to(dtype) for s in shapes)
        longest = max(q_len, kv_len)
        captured = {
            "slopes": torch.rand(heads, generator=g),
            "bias": torch.randn(q_len, kv_len, generator=g),
            "deep": torch.randn(batch, heads, q_len, kv_len, generator=g).half(),
            "wide": torch.rand(longest, generator=g, dtype=torch.float64),
            "doc": (torch.arange(longest) * 3) // max(1, longest),
            "ids": torch.randint(0, 3, (longest,), generator=g) * 2**32,
            "flags": torch.rand(longest, generator=g) < 0.7,
            "lengths": torch.randint(1, kv_len + 1, (batch,), generator=g, dtype=torch.int32),
            "offset": torch.tensor(kv_len // 3),
            "tiny": torch.randint(-100, 100, (longest,), generator=g, dtype=torch.int8),
            "bytes": torch.randint(0, 256, (longest,), generator=g, dtype=torch.uint8),
            "short": torch.randint(-300, 300, (longest,), generator=g, dtype=torch.int16),
            "half": torch.randn(longest, generator=g).half(),
            "brain": torch.randn(longest, generator=g).bfloat16(),
            "gain": torch.rand((), generator=g) + 0.5,
            "perm": torch.randperm(longest, generator=g),
            "table": torch.randint(-longest, longest, (3, longest), generator=g, dtype=torch.int32),
            "relative": torch.randn(2 * longest, generator=g),
            "strided": torch.randn(longest, 2, generator=g)[:, 1],
            "spread": torch.randn(1, kv_len, generator=g).expand(q_len, kv_len),
        }
        for name, value, place in self.special:
            tensor = {"q": q, "k": k, "v": v, **captured}[name]
            rows = tensor.reshape(-1, tensor.shape[-1])
            at = place % rows.shape[0]
            if value == "equal":
                rows[:] = rows[at].clone()
            elif value in FACTORS:
                rows[at] = rows[at] * FACTORS[value]
            elif place % 3 == 0:
                rows[at] = SPECIAL[value]
            else:
                rows[at, place % rows.shape[1]] = SPECIAL[value]
        return [_laid_out(t, self.layout) for t in (q, k, v)], captured

    def mods(self, captured: dict[str, torch.Tensor]) -> tuple[Any, Any]:
        """score_mod and mask_mod, each None where it is left out; S is the larger length."""
        scope = {"torch": torch, "math": math, "F": F, "S": max(self.sizes[3:5]), **captured}
        score = eval(f"lambda s, b, h, q, kv: {self.score}", scope) if self.score else None
        mask = eval(f"lambda b, h, q, kv: {self.mask}", scope) if self.mask else None
        return score, mask

    def __str__(self) -> str:
        mods = [f"score_mod=lambda s, b, h, q, kv: {self.score}"] if self.score else []
        mods += [f"mask_mod=lambda b, h, q, kv: {self.mask}"] if self.mask else []
        head = f"{self.sizes} {self.dtype} seed={self.seed} special={self.special} scale={self.scale} {self.layout}"
        return "\n    ".join([head.rstrip(), *mods])


def _laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of `tensor`, with strides as `layout` says; "one sample" and "one head" repeat the first."""
    if layout == "sliced":
        return tensor.repeat_interleave(2, -1)[..., ::2]
    return layouts.LAYOUTS[layout](tensor) if layout else tensor


# Seeds from here on draw sizes that fill a GPU's tiles; Triton's interpreter is slow at them.
LARGE = 1_000_000


def draw(seed: int) -> Case:
    """The case of that seed."""
    rng = random.Random(seed)
    many = seed >= LARGE
    kv_heads, group = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])
    lengths = [64, 100, 128, 200, 300] if many else [1, 2, 7, 16, 17, 24, 33, 40]
    widths, v_widths = (
        ([16, 33, 64, 64, 128], [8, 20, 32, 64, 128]) if many else ([1, 3, 8, 16, 16, 20], [1, 5, 8, 16, 16, 24])
    )
    width, v_width = rng.choice(widths), rng.choice(v_widths)
    q_len, kv_len = rng.choice(lengths), rng.choice([*lengths, 1000 if many else 70])
    sizes = rng.choice([1, 1, 2]), kv_heads * group, kv_heads, q_len, kv_len, width, v_width
    mask = _mask(rng, rng.randrange(4)) if rng.random() < 0.75 else ""
    score = _score(rng, rng.randrange(4)) if rng.random() < 0.75 else ""
    names = ["q", "k", "q", "k", "bias", "slopes"] + ([] if mask or "-torch.inf" in score else ["v"])
    special = tuple(
        (rng.choice(names), rng.choice([*SPECIAL, *FACTORS, "equal"]), rng.randrange(1000))
        for _ in range(rng.choice([0, 0, 1, 1, 2]))
    )
    scale = rng.choice([None, None, None, 1.0, 0.3, 0.0, -0.5, 4.0])
    dtype = rng.choice(["float32", "float32", "float32", "float16", "bfloat16"])
    return Case(sizes, dtype, score, mask, special, scale, seed, rng.choice(["", "", *LAYOUTS]))


def _mask(rng: random.Random, depth: int) -> str:
    n, m = rng.choice([1, 2, 3, 5, 7, 9, 16]), rng.randrange(3)
    if depth:
        kind = rng.randrange(6)
        left, right = _mask(rng, depth - 1), _mask(rng, depth - 1)
        if kind == 0:
            return f"~({left})"
        if kind == 5:
            return f"torch.where(q % {n} > {m}, {left}, {right})"
        return f"({left}) {'&|&^'[kind - 1]} ({right})"
    return rng.choice(
        [
            "q >= kv", f"q - kv < {n}", f"kv < q + {n}", f"kv % {n} != {m}", f"q // {n} == kv // {n}", f"h != {m}",
            f"(q - kv).abs() <= {n}", f"torch.abs(q - kv) > {n}", "doc[q] == doc[kv]", "ids[q] == ids[kv]", "flags[kv]",
            "flags[q] | flags[kv]", "kv < lengths[b]", "kv <= q + offset", f"kv / {n} == kv // {n}",
            f"torch.floor(kv / {n}) <= torch.ceil(q / {n})", f"(q & {n}) == (kv & {n})", f"(kv >> 1) <= q + {m}",
            f"torch.minimum(q, kv) >= {m}", f"(q + {n}).clamp(max=20) >= kv", "wide[kv] > wide[q]", "q >= 0", "q < 0",
            "(q >= kv) & (q < kv)", f"q.float() * 0.7 > kv - {n}",
            # quotients and remainders of negative numbers
            f"(q - kv) // {n} >= -{m}", f"(kv - q) % {n} == {m}", f"(q - kv) // -{n} < {m}", f"(kv - q) % -{n} == -{m}",
            f"torch.remainder(kv - q, {n}) != {m}", f"(q - kv) * 0.7 % 1.5 < 0.{n}", f"((q - kv) >> 1) >= -{n}",
            f"torch.fmod(kv - q, {n}) >= {m}", f"torch.div(q - kv, {n}, rounding_mode='trunc') == 0",
            # captured tensors of every dtype, looked up with whatever is a whole number
            f"tiny[kv] * {n} > tiny[q]", "bytes[q] >= bytes[kv]", f"bytes[q] + {n} > bytes[kv]", "short[kv] // 7 > q",
            f"half[kv] > 0.{n}", "brain[q] <= half[kv]", "perm[q] >= perm[kv]", "doc[perm[kv]] == doc[q]",
            "table[h % 3, kv] >= q", "perm[table[1, kv]] <= q", "doc[kv - 1] == doc[q]", "perm[-q - 1] >= kv",
            f"flags[(kv * {n}) % S]", f"kv < gain * {n}", "bias[q, kv] > -0.5", "spread[q, kv] < strided[q]",
            # hashes, whose products leave 32 bits
            f"(q * 73856093 + kv * 19349663) % {n + 2} < 3", f"((q * 73856093) ^ 83492791) % {n + 2} != kv % 3",
            # conditions as values
            "(q >= kv) == (kv > 3)", f"(q >= kv) + (kv < {n})", f"(kv % {n}).bool()", f"(q > kv) * {n} >= kv % 4",
            f"torch.isfinite(bias[q, kv]) & (kv != {m})", f"torch.sign(q - kv) >= {m - 1}",
            f"torch.logical_not(kv < {n})",
            # neighbourhoods in two dimensions, and dilated ones
            f"((q // {n} - kv // {n}).abs() <= 1) & ((q % {n} - kv % {n}).abs() <= {m})",
            f"((q // {n}).clamp({m}, 3) - kv // {n}).abs() <= 1", f"((q - kv) % {n} == 0) & ((q - kv).abs() <= 9)",
        ]
    )  # fmt: skip


def _score(rng: random.Random, depth: int) -> str:
    x = _score(rng, depth - 1) if depth else "s"
    c, n = rng.choice([0.5, 2.0, 7.0, 20.0]), rng.choice([1, 2, 3, 5, 7])
    return rng.choice(
        [
            f"({x}) * {c}", f"({x}) + slopes[h] * (kv - q)", f"({x}) + bias[q, kv]", f"({x}) + deep[b, h, q, kv]",
            f"torch.tanh(({x}) / {c}) * {c}", f"torch.where({_mask(rng, 1)}, {x}, -torch.inf)",
            f"torch.where({_mask(rng, 0)}, {x}, -1e4)",
            f"torch.where({_mask(rng, 0)}, {x}, torch.finfo(torch.float32).min)",
            f"torch.where({_mask(rng, 0)}, {x}, ({x}) * 0.5)", f"({x}) + torch.ceil(kv / {n})",
            f"({x}) + torch.floor((q - kv) / {n}) * 0.25", f"({x}).clamp(-{c}, {c})", f"torch.nn.functional.relu({x})",
            f"torch.nn.functional.gelu({x})", f"torch.nn.functional.silu({x})", f"(({x}) * 0.5) ** {n}",
            f"({x}).abs() + 0.1 * q", f"-({x})", f"torch.sigmoid({x}) * {c}", f"({x}) + wide[kv]", f"({x}) * wide[q]",
            f"({x}) + 0.9 ** (q - kv).abs()", f"torch.maximum({x}, bias[q, kv])", f"torch.exp(-({x}).abs())",
            f"({x}) - torch.log(1.0 + (q - kv).abs())", f"({x}) + (q * kv % {n}) * 0.1",
            f"({x}) * 1e-20", f"({x}) * 1e20", f"({x}) / 1e-20", f"({x}) * 1e-20 + bias[q, kv]", f"({x}) * gain",
            f"({x}).masked_fill({_mask(rng, 0)}, -torch.inf)", f"({x}) + ((kv - q) // {n}) * 0.1",
            f"({x}) + ((kv - q) % -{n}) * 0.1", f"({x}) + (kv * 0.37) // 0.1 * 0.01", f"({x}) + (kv * 0.37 - 3) % 0.5",
            f"({x}) + relative[q - kv + S - 1]", f"({x}) + relative[kv - q]",
            f"({x}) + relative[(q - kv).clamp(-{n}, {n}) + {n}]", f"({x}) + spread[q, kv]",
            f"({x}) + strided[perm[kv]]",
            f"({x}) * (q >= kv)", f"({x}) + flags[kv] * {c}", f"({x}) + tiny[kv] * 0.01", f"({x}) + half[kv]",
            f"({x}) + brain[q]", f"({x}) / (1 + (q - kv).abs())", f"({x}) / (q - kv)", f"({x}) + torch.sqrt(kv - 1.0)",
            f"({x}) - torch.log1p((q - kv).abs())", f"torch.minimum({x}, strided[q])", f"torch.fmax({x}, bias[q, kv])",
            f"({x}) + torch.sign(bias[q, kv])", f"torch.where(flags[kv], {x}, strided[kv])", f"({x}) + perm[kv] * 0.1",
            f"({x}) + torch.cos((q - kv) * 0.{n})", f"F.softplus({x})", f"torch.nan_to_num({x}, {c})",
            f"({x}) + (q * kv * 3000000) * 1e-9", f"torch.clamp({x}, min=-{c})", f"F.leaky_relu({x}, 0.{n})",
        ]
    )  # fmt: skip


def simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    if case.layout:
        yield replace(case, layout="")
    for n in range(len(case.special)):
        yield replace(case, special=case.special[:n] + case.special[n + 1 :])
    for name in ("score", "mask"):
        text = getattr(case, name)
        if text:
            yield replace(case, **{name: ""})
            yield from (replace(case, **{name: part}) for part in _brackets(text))
    if case.scale is not None:
        yield replace(case, scale=None)
    for n, size in enumerate(case.sizes):
        for less in {1, size // 2, size - 1} - {0, size}:
            sizes = (*case.sizes[:n], less, *case.sizes[n + 1 :])
            if sizes[1] % sizes[2] == 0:
                yield replace(case, sizes=sizes)  # pyright: ignore[reportArgumentType]


def _brackets(text: str) -> Iterator[str]:
    starts: list[int] = []
    for n, letter in enumerate(text):
        if letter == "(":
            starts.append(n)
        elif letter == ")" and starts:
            part = text[starts.pop() + 1 : n]
            if part and part != text:
                yield part
