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
from call_forms import PLAIN, Form, draw_form, simpler_forms
from call_mods import mask_text, morton, parity, score_text

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
        form: what the call has beside q, k, v and mods: packed sequences, a cache of pages, a block mask, 8 bits, ...
    """

    sizes: tuple[int, int, int, int, int, int, int]
    dtype: str
    score: str
    mask: str
    special: tuple[tuple[str, str, int], ...]
    scale: float | None
    seed: int
    layout: str = ""
    form: Form = PLAIN

    def tensors(self) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """q, k and v; and what the mods may capture, by name.  All on the CPU."""
        batch, heads, kv_heads, q_len, kv_len, width, v_width = self.sizes
        samples, q_most = self.form.extents(batch, q_len, kv_len)  # of the positions that mods get
        g = torch.Generator().manual_seed(self.seed)
        dtype = getattr(torch, self.dtype)
        shapes = (batch, heads, q_len, width), (batch, kv_heads, kv_len, width), (batch, kv_heads, kv_len, v_width)
        q, k, v = (torch.randn(s, generator=g).to(dtype) for s in shapes)
        longest = max(q_len, kv_len)
        captured = {
            "slopes": torch.rand(heads, generator=g),
            "bias": torch.randn(q_most, kv_len, generator=g),
            "deep": torch.randn(samples, heads, q_most, kv_len, generator=g).half(),
            "wide": torch.rand(longest, generator=g, dtype=torch.float64),
            "doc": (torch.arange(longest) * 3) // max(1, longest),
            "ids": torch.randint(0, 3, (longest,), generator=g) * 2**32,
            "flags": torch.rand(longest, generator=g) < 0.7,
            "lengths": torch.randint(1, kv_len + 1, (samples,), generator=g, dtype=torch.int32),
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
            "spread": torch.randn(1, kv_len, generator=g).expand(q_most, kv_len),
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
        scope = {
            "torch": torch,
            "math": math,
            "F": F,
            "morton": morton,
            "parity": parity,
            "S": max(self.sizes[3:5]),
            **captured,
        }
        score = eval(f"lambda s, b, h, q, kv: {self.score}", scope) if self.score else None
        mask = eval(f"lambda b, h, q, kv: {self.mask}", scope) if self.mask else None
        return score, mask

    def __str__(self) -> str:
        mods = [f"score_mod=lambda s, b, h, q, kv: {self.score}"] if self.score else []
        mods += [f"mask_mod=lambda b, h, q, kv: {self.mask}"] if self.mask else []
        head = f"{self.sizes} {self.dtype} seed={self.seed} special={self.special} scale={self.scale} {self.layout}"
        head += f" {self.form}" if self.form != PLAIN else ""
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
    mask = mask_text(rng, rng.randrange(4)) if rng.random() < 0.75 else ""
    score = score_text(rng, rng.randrange(4)) if rng.random() < 0.75 else ""
    names = ["q", "k", "q", "k", "bias", "slopes"] + ([] if mask or "-torch.inf" in score else ["v"])
    special = tuple(
        (rng.choice(names), rng.choice([*SPECIAL, *FACTORS, "equal"]), rng.randrange(1000))
        for _ in range(rng.choice([0, 0, 1, 1, 2]))
    )
    scale = rng.choice([None, None, None, 1.0, 0.3, 0.0, -0.5, 4.0])
    dtype = rng.choice(["float32", "float32", "float32", "float16", "bfloat16"])
    form = draw_form(rng, sizes)
    layout = rng.choice(["", "", *LAYOUTS]) if form.kind in ("", "made", "lists", "full lists") else ""
    if form.hides:  # as for masks: NaN and infinities of v
        special = tuple(one for one in special if one[0] != "v")
    return Case(form.sizes(sizes), dtype, score, mask, () if form.eights else special, scale, seed, layout, form)


def simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    yield from (replace(case, form=form) for form in simpler_forms(case.form))
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
            if sizes[1] % sizes[2] == 0 and case.form.fits(sizes):
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
