"""Random calls of `nl.attention` beside FlexAttention's eager arithmetic: drawn from a seed, judged, shrunk.

    python tests/pytorch/random_calls.py 2000 0 STATE   # cases, first seed; prints counts, refusals and what is wrong

STATE, which may be left out, is a file with a line per seed that was judged; a run skips these seeds, so it resumes.
A mod is a text, so that a case prints as a few lines that can be pasted.
"""

from __future__ import annotations

import math
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex_module

import neptune_lab as nl
from neptune_lab.errors import NeptuneError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPECIAL = {
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "finfo.min": torch.finfo(torch.float32).min,
    "-1e4": -1e4, "1e4": 1e4, "zero": 0.0, "denormal": 1e-42, "large": 3e8,
}  # fmt: skip
_EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Case:
    """One call.

    Args:
        sizes: batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim.
        dtype: of q, k and v.
        score, mask: the mods' bodies, over s, b, h, q, kv and captured tensors; "" where there is none.
        special: (tensor, value, place) of elements or rows that are overwritten; the value is a key of SPECIAL.
        seed: of the tensors.
    """

    sizes: tuple[int, int, int, int, int, int, int]
    dtype: str
    score: str
    mask: str
    special: tuple[tuple[str, str, int], ...]
    scale: float | None
    seed: int

    def tensors(self) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """q, k and v; and what the mods may capture, by name."""
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
        }
        for name, value, place in self.special:
            tensor = {"q": q, "k": k, "v": v, **captured}[name]
            rows = tensor.reshape(-1, tensor.shape[-1])
            at = place % rows.shape[0]
            if value == "equal":
                rows[:] = rows[at].clone()
            elif place % 3 == 0:
                rows[at] = SPECIAL[value]
            else:
                rows[at, place % rows.shape[1]] = SPECIAL[value]
        on_device = {n: t.to(DEVICE) for n, t in captured.items()}
        return [q.to(DEVICE), k.to(DEVICE), v.to(DEVICE)], on_device

    def mods(self, captured: dict[str, torch.Tensor]) -> tuple[Any, Any]:
        """score_mod and mask_mod, each None where it is left out."""
        scope = {"torch": torch, **captured}
        score = eval(f"lambda s, b, h, q, kv: {self.score}", scope) if self.score else None
        mask = eval(f"lambda b, h, q, kv: {self.mask}", scope) if self.mask else None
        return score, mask

    def __str__(self) -> str:
        mods = [f"score_mod=lambda s, b, h, q, kv: {self.score}"] if self.score else []
        mods += [f"mask_mod=lambda b, h, q, kv: {self.mask}"] if self.mask else []
        return (
            f"{self.sizes} {self.dtype} seed={self.seed} special={self.special} scale={self.scale}\n    "
            + "\n    ".join(mods)
        )


def draw(seed: int) -> Case:
    """The case of that seed."""
    rng = random.Random(seed)
    kv_heads, group = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])
    lengths = [1, 2, 7, 16, 17, 24, 33, 40]
    width, v_width = rng.choice([1, 3, 8, 16, 16, 20]), rng.choice([1, 5, 8, 16, 16, 24])
    q_len, kv_len = rng.choice(lengths), rng.choice([*lengths, 70])
    sizes = rng.choice([1, 1, 2]), kv_heads * group, kv_heads, q_len, kv_len, width, v_width
    mask = _mask(rng, rng.randrange(4)) if rng.random() < 0.75 else ""
    score = _score(rng, rng.randrange(4)) if rng.random() < 0.75 else ""
    names = ["q", "k", "q", "k", "bias", "slopes"] + ([] if mask or "-torch.inf" in score else ["v"])
    special = tuple(
        (rng.choice(names), rng.choice([*SPECIAL, "equal"]), rng.randrange(1000))
        for _ in range(rng.choice([0, 0, 1, 1, 2]))
    )
    scale = rng.choice([None, None, None, 1.0, 0.3, 0.0, -0.5])
    return Case(sizes, rng.choice(["float32", "float32", "float16"]), score, mask, special, scale, seed)


def _mask(rng: random.Random, depth: int) -> str:
    n, m = rng.choice([1, 2, 3, 5, 7, 9, 16]), rng.randrange(3)
    if depth:
        kind = rng.randrange(5)
        left = _mask(rng, depth - 1)
        if kind == 0:
            return f"~({left})"
        return f"({left}) {'&|&^'[kind - 1]} ({_mask(rng, depth - 1)})"
    return rng.choice(
        [
            "q >= kv", f"q - kv < {n}", f"kv < q + {n}", f"kv % {n} != {m}", f"q // {n} == kv // {n}", f"h != {m}",
            f"(q - kv).abs() <= {n}", f"torch.abs(q - kv) > {n}", "doc[q] == doc[kv]", "ids[q] == ids[kv]", "flags[kv]",
            "flags[q] | flags[kv]", "kv < lengths[b]", "kv <= q + offset", f"kv / {n} == kv // {n}",
            f"torch.floor(kv / {n}) <= torch.ceil(q / {n})", f"(q & {n}) == (kv & {n})", f"(kv >> 1) <= q + {m}",
            f"torch.minimum(q, kv) >= {m}", f"(q + {n}).clamp(max=20) >= kv", "wide[kv] > wide[q]", "q >= 0", "q < 0",
            "(q >= kv) & (q < kv)", f"q.float() * 0.7 > kv - {n}",
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
        ]
    )  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What came of a case: "right", "refused", "wrong" or "crashed", and what is to be said of it."""

    word: str
    told: str = ""


def judge(case: Case) -> Verdict:
    """The call, beside FlexAttention in float32 and in float64.

    NaN and infinities have to be where both have them.  Where both are finite the result is as close as float32 allows
    for scores of that size; where the two differ in kind (a sum that overflows in float32 alone) all is right.
    """
    (q, k, v), captured = case.tensors()
    score_mod, mask_mod = case.mods(captured)
    options: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1], "scale": case.scale}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = nl.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod, **options)
        except NeptuneError as error:
            return Verdict("refused", f"{type(error).__name__}: {error.reason}")
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a crash
            return Verdict("crashed", f"{type(error).__name__}: {error}")
        single = _flex(q.float(), k.float(), v.float(), score_mod, mask_mod, options)
        double = _flex(q.double(), k.double(), v.double(), score_mod, mask_mod, options)
    size, decided = _rows(case, q, k, score_mod, mask_mod)
    return compare(found, single.to(found.dtype), double, size, v, decided)


def compare(
    found: torch.Tensor,
    single: torch.Tensor,
    double: torch.Tensor,
    size: torch.Tensor,
    v: torch.Tensor,
    decided: torch.Tensor | None = None,
) -> Verdict:
    """`found` beside the two references.

    Args:
        size: the largest score of each row, or part of one, which broadcasts to the result.
        decided: rows of which one key takes all the weight, however the scores are rounded.
    """
    narrow = double.to(found.dtype)
    nan = single.isnan() & narrow.isnan()
    infinite = single.isinf() & (single == narrow)
    finite = single.isfinite() & narrow.isfinite()
    wrong = (nan & ~found.isnan()) | (infinite & (found != single)) | (finite & ~found.isfinite())
    largest = v.double().nan_to_num(0, 0, 0).abs().max().item()
    blur = 32 * _EPS * size
    if decided is not None:
        blur = torch.where(decided, 0.0, blur)
    tolerance = (2e-5 + blur + (2e-3 if found.dtype == torch.float16 else 0)) * largest + 1e-30
    distance = torch.where(finite & found.isfinite(), (found.double() - double).abs(), 0.0)
    readable = blur < 0.1  # beyond, no digit of the weights is left
    wrong |= readable & (distance > tolerance + 4 * (single.double() - double).abs().nan_to_num(0, 0, 0))
    if not wrong.any():
        return Verdict("right")
    at = tuple(wrong.nonzero()[0].tolist())
    told = f"{int(wrong.sum())} of {wrong.numel()} elements, the first at {at}: {found[at].item()} in place of "
    return Verdict(
        "wrong", f"{told}{single[at].item()} (float64: {double[at].item()}); scores up to {size.max().item():.3g}"
    )


def _flex(q: Any, k: Any, v: Any, score_mod: Any, mask_mod: Any, options: dict[str, Any]) -> torch.Tensor:
    """FlexAttention without torch.compile; the mask is one of the score, as its eager form has it."""

    def mod(s, b, h, i, j):
        s = s if score_mod is None else score_mod(s, b, h, i, j)
        return s if mask_mod is None else torch.where(mask_mod(b, h, i, j), s, -torch.inf)

    before = flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        return flex_module.flex_attention(q, k, v, score_mod=mod, **options)
    finally:
        flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before


def _rows(
    case: Case, q: torch.Tensor, k: torch.Tensor, score_mod: Any, mask_mod: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest finite score of each row, or part of one; and whether one key's score is far above all others."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scale = q.shape[3] ** -0.5 if case.scale is None else case.scale
    scores = q.double() @ k.double().mT * scale
    parts = [scores, (q.double().abs() @ k.double().abs().mT) * scale]
    index = torch.meshgrid(*(torch.arange(n, device=q.device) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = torch.as_tensor(score_mod(scores, *index), device=q.device).double().expand(scores.shape)
        parts.append(scores)
    small = [torch.where(p.isfinite() & (p.abs() < 1e37), p.abs(), 0.0) for p in parts]
    size = torch.stack([p.amax(-1, keepdim=True) for p in small]).amax(0)
    if mask_mod is not None:
        scores = torch.where(mask_mod(*index), scores, -torch.inf)
    first, *more = scores.topk(min(2, scores.shape[-1]), -1).values.split(1, -1)
    second = more[0] if more else torch.full_like(first, -torch.inf)
    # In float32 the scores may be off by what `size` allows; exp(-110) is nothing beside 1.
    decided = first.isfinite() & (first - second > 256 * _EPS * size + 110) & (first.abs() < 1e37)
    return size, decided


def simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
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


def shrunk(case: Case, judged: Callable[[Case], Verdict] = judge) -> Case:
    """A smaller case with the same verdict."""
    word = judged(case).word

    def same(smaller: Case) -> bool:
        try:
            return judged(smaller).word == word
        except Exception:  # noqa: BLE001  # a part of a mod that is no mod by itself
            return False

    while (found := next((c for c in simpler(case) if same(c)), None)) is not None:
        case = found
    return case


def run(cases: int, seed: int = 0, state: Path | None = None) -> Counter[str]:
    """Judges the cases and prints what is not right; the counts by verdict, those of `state` among them."""
    words: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    lines = state.read_text().splitlines() if state is not None and state.exists() else []
    done = {int(number): word for number, word in (line.split()[:2] for line in lines)}
    for n in range(seed, seed + cases):
        if n in done:
            words[done[n]] += 1
            continue
        case = draw(n)
        verdict = judge(case)
        words[verdict.word] += 1
        if state is not None:
            with state.open("a") as file:
                print(n, verdict.word, file=file)
        if verdict.word == "refused":
            reasons[verdict.told.split("\n")[0][:160]] += 1
        elif verdict.word != "right":
            small = shrunk(case)
            print(f"{verdict.word} (seed {n}): {judge(small).told}\n  {small}", flush=True)
    for reason, count in reasons.most_common():
        print(f"refused {count} times: {reason}")
    print(f"{cases} cases: {dict(words)}", flush=True)
    return words


if __name__ == "__main__":
    found = run(*map(int, sys.argv[1:3]), state=Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    sys.exit(1 if found["wrong"] or found["crashed"] else 0)
