"""Every function of `cases`, and more, at NaN, infinities, zeros and ties: values and gradients beside PyTorch's.

    python -m torch_to_stages.special_inputs float32 torch.atan2    # prints how the functions with this text differ

Definitions run in float64, as PyTorch's functions do, so that only what is defined can differ, not rounding.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gradients import as_float64, gradients
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch_to_stages.cases import CASES, Case

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.operators import training

NAN, INF = float("nan"), float("inf")
COMMON = (1.0, -1.0, 2.0, 0.5, -0.5, 3.0, -3.0, 0.0, 0.25, 2.0, 1.0, 6.0)
SPECIAL = (NAN, INF, -INF, 0.0, -0.0)
# How many elements are one of which numbers; the others are of COMMON, with ties.
STYLES: dict[str, tuple[float, tuple[float, ...]]] = {
    "ties": (0.0, SPECIAL),
    "nan": (0.25, (NAN,)),
    "inf": (0.25, (INF,)),
    "-inf": (0.25, (-INF,)),
    "few": (0.12, SPECIAL),
    "half": (0.5, SPECIAL),
}

# Functions that `cases` has in one form, or whose operations are torch's definitions.
MORE = """
F.threshold(x, 0.5, 2.0)
F.prelu(x, v)
F.glu(torch.cat([x, y], 1), 1)
F.softshrink(x, 0.5)
F.hardshrink(x, 0.5)
F.tanhshrink(x)
F.relu6(x)
F.hardtanh(x, -0.5, 2.0)
F.elu(x, 0.3)
F.celu(x, 0.4)
F.binary_cross_entropy_with_logits(x, y)
F.poisson_nll_loss(x, y)
F.hinge_embedding_loss(x, torch.where(m, 1.0, -1.0))
F.margin_ranking_loss(x, y, torch.where(m, 1.0, -1.0))
F.soft_margin_loss(x, torch.where(m, 1.0, -1.0))
F.cosine_embedding_loss(x, y, torch.where(m[:, 0], 1, -1))
F.multi_margin_loss(x, i)
F.huber_loss(x, y, reduction='none', delta=2.0)
F.smooth_l1_loss(x, y, reduction='sum', beta=2.0)
F.smooth_l1_loss(x, y, reduction='none', beta=0.0)
F.l1_loss(x, y, reduction='none')
F.kl_div(x, y, reduction='none', log_target=True)
F.nll_loss(x, i, reduction='none')
torch.clamp(x, min=v)
torch.clamp(x, max=y)
torch.clamp_min(x, y)
torch.clamp_max(x, v)
x.clamp(2.0, 1.0)
torch.nansum(x, -1)
torch.nanmean(x, -1)
torch.logaddexp2(x, y)
x ** 2.5
x ** -3
x ** y
2.0 ** x
torch.logit(x, eps=0.1)
torch.copysign(x, y)
torch.lerp(x, y, 0.7)
torch.lerp(x, y, v)
torch.addcdiv(x, y, p)
x / 0
x.amax()
(x * 0.7).max()
(x * 0.7).amin(0)
(x * y).prod(0)
x.norm(p=1, dim=-1)
x.norm(p=INF, dim=-1)
x.norm(p=-INF, dim=-1)
x.norm(p=-2.5, dim=-1)
torch.dist(x, y, INF)
torch.pdist(x, 2.0)
torch.cdist(x, y)
torch.cdist(x, y, 1.0)
torch.cdist(x, y, 0.0)
F.normalize(x, p=1, dim=-1)
x[:, :1].std(-1)
F.group_norm(t, 1)
F.local_response_norm(q, 2)
F.max_pool1d(t * 0.7, 2, 1, 1)
F.max_pool1d(t, 2, 2, 0, 1, True)
F.max_pool2d(q, 2)
F.adaptive_max_pool2d(q, 2)
F.adaptive_max_pool1d(t, 3)
F.lp_pool1d(t, 2, 2)
F.interpolate(t, size=2, mode='linear')
F.interpolate(q, size=5, mode='bilinear', align_corners=True)
F.interpolate(q, scale_factor=1.7, mode='bilinear')
F.interpolate(q[None], size=(3, 5, 6), mode='trilinear')
F.grid_sample(q, torch.stack([x, y], -1)[:, None], align_corners=True)
F.grid_sample(q, torch.stack([x, y], -1)[:, None], mode='nearest', align_corners=False)
F.grid_sample(q.relu(), torch.stack([x, y], -1)[:, None] / 7, align_corners=False)
F.embedding_bag(j, w, mode='max', padding_idx=1)
x.scatter_reduce(1, j, y[:, :3], 'amax')
x.scatter_reduce(1, j, y[:, :3], 'amax', include_self=False)
x.index_reduce(0, i * 0, y, 'amin')
x.index_reduce(0, i * 0, y, 'amax')
(x * 0.7).index_reduce(0, i * 0, y * 0.7, 'amin')
x.index_reduce(0, i * 0, y, 'amax', include_self=False)
torch.where(x > y, x, y)
x * m
torch.diff(x, dim=-1)
torch.isclose(x, y)
torch.angle(x)
torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]))
F.cross_entropy(x, i, label_smoothing=0.1)
F.unfold(q, 2)
""".strip().splitlines()

_INTEGERS = "NaN and infinities have no integer, and each machine takes another one"
_MEMORY = "it reads memory that nothing wrote"
_STATISTICS = "PyTorch gives statistics no gradient; ours is the whole derivative"
_LIMIT = "PyTorch multiplies infinity by 0; ours is the limit, or NaN beside an infinite variance"
_HIDDEN = "what a mask or a choice hides has no effect, whatever it is"
_EMPTY_ROW = "a row of -inf has the gradient 0"
_DOMAIN = "outside of the domain, and at its end, where the derivative is infinite, PyTorch has another formula"
_COUNTED = "PyTorch counts an element that is not included, and loses its part"
_OTHERS = "of a product with NaN or infinities, PyTorch multiplies the other terms only if one of all terms is 0"
_FIRST_NAN = "PyTorch keeps NaN only if it is the first of a bag"
_NAN_ROW = "a term that is 0 has the gradient 0 in a norm that is NaN"
_MEAN = "PyTorch's mean beside a variance is NaN where the sum is infinite"
_VECTORS = "at NaN, PyTorch's vector instructions have another gradient than its scalar code, which GPUs have too"
_PIXELS = "PyTorch multiplies the neighbour by 0 at the pixel itself, if a size stays"
_EQUALS = "of equal elements, and of several NaN, PyTorch takes any"
_MIDDLE = "a median that is NaN has the gradient NaN at every NaN"
_FARTHEST = "PyTorch's CPU leaves out NaN, and gives each of equal differences all of the gradient"
_SCATTERED = "PyTorch gives the gradient of the view that was put in to the tensor it was put into"

# What may differ ("value", "gradient"), by a part of the text, and why.
KNOWN: dict[str, tuple[str, str]] = {
    "x.int() + n": ("value", _INTEGERS),
    ".to(torch.int8)": ("value", _INTEGERS),
    "x.type_as(n)": ("value", _INTEGERS),
    "(x * 1e10).long()": ("value", _INTEGERS),
    "torch.empty": ("value", _MEMORY),
    "native_layer_norm": ("value gradient", _STATISTICS),
    "_native_batch_norm_legit": ("gradient", _STATISTICS),
    ".var(": ("gradient", _LIMIT),
    "var_mean": ("value gradient", _MEAN),
    "std_mean": ("value", _MEAN),
    "x.std(0, correction=100)": ("gradient", _LIMIT),
    "atan2": ("gradient", _LIMIT),
    "hypot": ("gradient", _LIMIT),
    "copysign": ("gradient", _LIMIT),
    "multi_dot": ("gradient", _LIMIT),
    "polar": ("value gradient", _LIMIT),
    "baddbmm(t[:1, :1, :1] / 0": ("gradient", _LIMIT),
    "expand(4, -1).prod(0)": ("gradient", _LIMIT),
    "expand(-1, 5).amax(-1)": ("gradient", _LIMIT),
    "gelu": ("value gradient", _LIMIT),
    ".elu(": ("gradient", _VECTORS),
    ".selu(": ("gradient", _VECTORS),
    ".celu(": ("gradient", _VECTORS),
    "hardswish": ("gradient", _VECTORS),
    "cdist(x, y, 1.0)": ("gradient", _VECTORS),
    "cdist(x, y, 3.0)": ("gradient", _NAN_ROW),
    "cdist(x, y, float('inf'))": ("value gradient", _FARTHEST),
    "softshrink": ("gradient", _VECTORS),
    "scaled_dot_product_attention": ("value gradient", _HIDDEN),
    "float('-inf')": ("value gradient", _HIDDEN),
    "cross_entropy": ("value gradient", _HIDDEN),
    "triu(1)": ("value gradient", _EMPTY_ROW),
    "acosh": ("gradient", _DOMAIN),
    "entr": ("gradient", _DOMAIN),
    "asin(": ("gradient", _DOMAIN),
    "acos(": ("gradient", _DOMAIN),
    "atanh": ("gradient", _DOMAIN),
    "p ** -0.5": ("gradient", _DOMAIN),
    "xlogy": ("gradient", _DOMAIN),
    "kl_div": ("gradient", _DOMAIN),
    "x.median()": ("gradient", _MIDDLE),
    ".topk(": ("value gradient", _EQUALS),
    ".kthvalue(": ("value gradient", _EQUALS),
    "as_strided_scatter": ("gradient", _SCATTERED),
    "ldexp": ("gradient", "PyTorch takes 2 ** n of negative n as 0"),
    "'amax', include_self=False": ("gradient", _COUNTED),
    "'prod'": ("gradient", _OTHERS),
    ".prod(": ("gradient", _OTHERS),
    "cumprod": ("gradient", _OTHERS),
    "mode='max'": ("value gradient", _FIRST_NAN),
    "vector_norm(x, 3": ("gradient", _NAN_ROW),
    "vector_norm(p, -1.5)": ("gradient", _NAN_ROW),
    "norm(p=-2.5": ("gradient", _NAN_ROW),
    "size=(3, 5)": ("value", _PIXELS),
    "x ** y": ("value", "NumPy's root of -inf is NaN; kernels have infinity"),
    "rms_norm(x, v.shape, v)": ("gradient", "its epsilon is that of the dtype"),
}


@dataclass(frozen=True)
class Difference:
    """Where a function differs from PyTorch.

    Args:
        what: "value" or "gradient".
        style: of the inputs.
        shown: the inputs and both results.
    """

    what: str
    style: str
    shown: str


def groups(size: int) -> list[tuple[str, ...]]:
    """The functions as texts, so many together."""
    texts = list(dict.fromkeys((*(text for case in CASES for text in case.texts), *MORE)))
    return [tuple(texts[n : n + size]) for n in range(0, len(texts), size)]


def drawn(case: Case, style: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Inputs of a case: whole numbers and conditions as ever, and floats of a style, as float64 that `dtype` holds."""
    part, special = STYLES[style]
    generator = torch.Generator().manual_seed(list(STYLES).index(style))

    def choice(shape: torch.Size, numbers: tuple[float, ...]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float64)[torch.randint(0, len(numbers), shape, generator=generator)]

    def of(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        values = choice(t.shape, COMMON)
        chosen = torch.rand(t.shape, generator=generator) < part
        return torch.where(chosen, choice(t.shape, special), values).to(dtype).double()

    return {name: of(t) for name, t in zip(case.names, case.inputs(0), strict=True)}


def differences(text: str, dtype: torch.dtype) -> Iterator[Difference]:
    """Where a function traced in a dtype differs from PyTorch's in float64; nothing if it is refused."""
    case = Case((text,))
    names = {"torch": torch, "F": torch.nn.functional, "INF": INF}
    function: Any = eval(f"lambda {', '.join(case.names)}: ({text},)", names)
    like = {n: t.to(dtype) if t.is_floating_point() else t for n, t in drawn(case, "ties", dtype).items()}
    try:
        op = nl.from_torch(function, *like.values())
    except DefinitionError:  # (such as: no result depends on an input)
        return
    try:
        passes = training(op)
    except DefinitionError:  # no result has gradients
        passes = None
    # Constants (0.1, pi) are numbers of the dtype, where PyTorch's are float64 here.
    precision = torch.finfo(dtype).eps if dtype == torch.bfloat16 else 1e-6
    for style in STYLES:
        values = drawn(case, style, dtype)
        with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield from _at(function, op, passes, values, style, precision)


def _at(
    function: Any, op: Any, passes: Any, values: dict[str, torch.Tensor], style: str, precision: float
) -> Iterator[Difference]:
    wide = {n: t.clone().requires_grad_() if t.is_floating_point() else t for n, t in values.items()}
    try:
        outputs = pytree.tree_leaves(function(*wide.values()))
    except (RuntimeError, ValueError):  # no gradient of an input, or a value that it refuses
        passes = None
        try:
            outputs = pytree.tree_leaves(function(*values.values()))
        except (RuntimeError, ValueError):
            return
    arrays = as_float64({n: t.numpy() for n, t in values.items()} | {n: np.asarray(a) for n, a in op.captured.items()})
    found = run_wide(op.program, arrays)
    shown = {n: t.tolist() for n, t in values.items() if t.numel() <= 16}
    for spec, out in zip(op.outputs, outputs, strict=True):
        if not _equal(found[spec.name], out, precision):
            yield Difference("value", style, f"{shown}: {found[spec.name].tolist()}, expected {out.tolist()}")
    given = [torch.linspace(1, 2, max(o.numel(), 1)).double()[: o.numel()].reshape(o.shape) for o in outputs]
    recorded = [(o, g) for o, g in zip(outputs, given, strict=True) if o.requires_grad]
    if passes is None or not recorded:
        return
    floats = {n: t for n, t in wide.items() if t.is_floating_point()}
    try:
        expected = torch.autograd.grad(
            [o for o, _ in recorded], [*floats.values()], [g for _, g in recorded], allow_unused=True
        )
    except RuntimeError:  # no derivative of an operation
        return
    ours = gradients(passes, arrays, {f"d_{t.name}": g.numpy() for t, g in zip(op.outputs, given, strict=True)})
    for (name, t), wanted in zip(floats.items(), expected, strict=True):
        got = ours.get(name, np.zeros(t.shape))
        if not _equal(got, torch.zeros_like(t) if wanted is None else wanted, precision):
            wanted_list = None if wanted is None else wanted.tolist()
            yield Difference("gradient", style, f"by {name} at {shown}: {got.tolist()}, expected {wanted_list}")


def _equal(got: Any, wanted: torch.Tensor, precision: float) -> bool:
    return np.allclose(got, wanted.detach().double().numpy(), rtol=precision, atol=precision / 10, equal_nan=True)


def unexpected(text: str, dtype: torch.dtype) -> list[Difference]:
    """The differences of a function that KNOWN does not have."""
    known = {what for part, (kinds, _) in KNOWN.items() if part in text for what in kinds.split()}
    return [d for d in differences(text, dtype) if d.what not in known]


if __name__ == "__main__":
    for text in (text for group in groups(1) for text in group if sys.argv[2] in text):
        for d in differences(text, getattr(torch, sys.argv[1])):
            print(f"{text}, {d.style}: {d.what} {d.shown}\n")
