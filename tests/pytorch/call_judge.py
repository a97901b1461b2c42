"""What comes of a random call: `nl.attention` beside FlexAttention's eager arithmetic, and the same verdict on less.

FlexAttention runs on the CPU: there `x / 7` is rounded as IEEE 754 says, which a CUDA tensor's is not.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex_module
from call_cases import Case, simpler

from neptune_lab.errors import NeptuneError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":  # create_block_mask imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")
_EPS = torch.finfo(torch.float32).eps
_LARGEST = 0.99 * torch.finfo(torch.float32).max
_UNCOMPILED = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"


@dataclass(frozen=True)
class Verdict:
    """What came of a case, and what is to be said of it.

    Args:
        word: "right", "refused" (by an error of ours that says what helps), "unclear" (by one that does not), "wrong",
            or "crashed".
    """

    word: str
    told: str = ""


def judge(case: Case) -> Verdict:
    """The call, beside FlexAttention in float32 and in float64.

    NaN and infinities have to be where both have them, and something that is not finite where float32 has NaN by a wide
    margin.  Where both are finite the result is as close as float32 allows for scores of that size; where the two
    differ in kind (a sum that overflows in float32 alone) all else is right.
    """
    given, captured = case.tensors()
    q, k, v = case.form.dense(given)
    score_mod, mask_mod = case.form.mods(*case.mods(captured), case.sizes, case.seed)
    options: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1], "scale": case.scale}
    on_device = case.mods({name: tensor.to(DEVICE) for name, tensor in captured.items()})
    given = [t.to(DEVICE) for t in given]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found, *further = (t.cpu() for t in case.form.call(given, *on_device, case.seed, options))
        except NeptuneError as error:
            word = "unclear" if error.help is None else "refused"
            return Verdict(word, f"{type(error).__name__}: {error.reason}")
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a crash
            return Verdict("crashed", f"{type(error).__name__}: {error}")
        single = _flex(q.float(), k.float(), v.float(), score_mod, mask_mod, options)
        double = _flex(q.double(), k.double(), v.double(), score_mod, mask_mod, options)
        narrow = single if q.dtype == torch.float32 else _flex(q, k, v, score_mod, mask_mod, options)
        smaller = {**options, "scale": 0.5 * (q.shape[3] ** -0.5 if case.scale is None else case.scale)}
        halved = _flex(q.float(), k.float(), v.float(), score_mod, mask_mod, smaller)
    size, decided, ordered = _rows(case, q, k, score_mod, mask_mod)
    lost = single.isnan() & halved.isnan() & narrow.isnan()
    # numbers.md, "Near the largest float": an element is left out where the order of a sum decides, and where a sum of
    # p * v, in which p is larger than the weight, may overflow on the way.
    found, single = (torch.where(ordered, double, x).to(found.dtype) for x in (found, single))
    large = ((v.abs() > 1e35) & v.isfinite()).any(-2, keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1)
    found = torch.where(large & single.isfinite() & ~found.isfinite(), single.to(found.dtype), found)
    of_eights = 5e-3 if case.form.eights else 0.0  # weights have 16 bits
    verdict = compare(found, single, double, size, v, decided, lost & ~ordered, narrow.isnan(), of_eights)
    if verdict.word != "right" or case.special:
        return verdict
    return _statistics(further, _scores(case, q, k, score_mod, mask_mod), size[..., 0], of_eights)


def compare(
    found: torch.Tensor,
    single: torch.Tensor,
    double: torch.Tensor,
    size: torch.Tensor,
    v: torch.Tensor,
    decided: torch.Tensor | None = None,
    lost: torch.Tensor | None = None,
    rounded: torch.Tensor | None = None,
    more: float = 0.0,
) -> Verdict:
    """`found` beside the two references.

    Args:
        size: the largest score of each row, or part of one, which broadcasts to the result.
        decided: rows of which one key takes all the weight, however the scores are rounded.
        lost: elements that are NaN in float32 wherever the scores are rounded.
        rounded: elements that are NaN in the inputs' own dtype, where a small weight may be 0.
        more: further error, relative to the largest value.
    """
    narrow = double.to(found.dtype)
    nan = single.isnan() & narrow.isnan()
    infinite = single.isinf() & (single == narrow)
    if rounded is not None:
        infinite &= ~rounded
    finite = single.isfinite() & narrow.isfinite()
    wrong = (nan & ~found.isnan()) | (infinite & (found != single)) | (finite & ~found.isfinite())
    if lost is not None:
        wrong |= lost & found.isfinite()
    largest = v.double().nan_to_num(0, 0, 0).abs().max().item()
    blur = 32 * _EPS * size
    if decided is not None:
        blur = torch.where(decided, 0.0, blur)
    own = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(found.dtype, 0.0)
    tolerance = (2e-5 + blur + max(own, more)) * largest + 1e-30
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


def _scores(case: Case, q: torch.Tensor, k: torch.Tensor, score_mod: Any, mask_mod: Any) -> torch.Tensor:
    """The scores after the mods, in float64."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q.double() @ k.double().mT * (q.shape[3] ** -0.5 if case.scale is None else case.scale)
    index = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = torch.as_tensor(score_mod(scores, *index)).double().expand(scores.shape)
    return scores if mask_mod is None else torch.where(mask_mod(*index), scores, -torch.inf)


def _statistics(found: list[torch.Tensor], scores: torch.Tensor, size: torch.Tensor, more: float) -> Verdict:
    """The log-sum-exp and the largest scores, if the call returned them, where both are finite or -inf."""
    for name, own, wanted in zip(("lse", "max_scores"), found, (scores.logsumexp(-1), scores.amax(-1)), strict=False):
        usual = ((wanted.abs() < 1e30) | wanted.isneginf()) & (size < 1e30)
        finite = usual & wanted.isfinite()
        tolerance = 64 * _EPS * size + (2e-5 + more) * wanted.abs().clamp(min=1)
        far = (own.double() - wanted).abs().nan_to_num(torch.inf) > tolerance
        wrong = torch.where(finite, far, usual & (own.double() != wanted))
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            return Verdict("wrong", f"{name} at {at}: {own[at].item()} in place of {wanted[at].item()}")
    return Verdict("right")


def _flex(q: Any, k: Any, v: Any, score_mod: Any, mask_mod: Any, options: dict[str, Any]) -> torch.Tensor:
    """FlexAttention without torch.compile; the mask is one of the score, as its eager form has it.

    The score that a mod returns is rounded to float32, as its compiled form does and its eager form does not.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32

    def mod(s, b, h, i, j):
        s = s if score_mod is None else score_mod(s, b, h, i, j).to(dtype)
        return s if mask_mod is None else torch.where(mask_mod(b, h, i, j), s, -torch.inf)

    before = getattr(flex_module, _UNCOMPILED, False)
    setattr(flex_module, _UNCOMPILED, True)
    try:
        return flex_module.flex_attention(q, k, v, score_mod=mod, **options)  # pyright: ignore[reportReturnType]
    finally:
        setattr(flex_module, _UNCOMPILED, before)


def _rows(
    case: Case, q: torch.Tensor, k: torch.Tensor, score_mod: Any, mask_mod: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The largest finite score of each row, or part of one; whether one key's score is far above all others; and
    whether the order in which a score is summed up decides if it overflows."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scale = q.shape[3] ** -0.5 if case.scale is None else case.scale
    scores = q.double() @ k.double().mT * scale
    summed = q.double().abs() @ k.double().abs().mT
    ordered = summed.isfinite() & (summed > _LARGEST)
    parts = [scores, summed * scale]
    index = torch.meshgrid(*(torch.arange(n) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = torch.as_tensor(score_mod(scores, *index)).double().expand(scores.shape)
        parts.append(scores)
    small = [torch.where(p.isfinite() & (p.abs() < 1e37), p.abs(), 0.0) for p in parts]
    size = torch.stack([p.amax(-1, keepdim=True) for p in small]).amax(0)
    if mask_mod is not None:
        allowed = mask_mod(*index)
        scores, ordered = torch.where(allowed, scores, -torch.inf), ordered & allowed
    first, *more = scores.topk(min(2, scores.shape[-1]), -1).values.split(1, -1)
    second = more[0] if more else torch.full_like(first, -torch.inf)
    # In float32 the scores may be off by what `size` allows; exp(-110) is nothing beside 1.
    decided = first.isfinite() & (first - second > 256 * _EPS * size + 110) & (first.abs() < 1e37)
    return size, decided, ordered.any(-1, keepdim=True)


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
