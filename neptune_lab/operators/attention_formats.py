"""The dtypes of an attention operator's tensors, and the scales that quantized ones have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import TensorSpec, supported
from neptune_lab.strict.console import shown
from neptune_lab.strict.dtypes import EIGHTS

PLAIN = ("float16", "bfloat16", "float32")
QUANTIZED = (*EIGHTS, "int8")
# The largest weight, exp(0), becomes this before it is rounded to 8 bits, so that weights down to 2**-18 are not 0; the
# dtype's largest number is 448.
LARGEST_WEIGHT = 256.0

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Formats:
    """How the tensors of an attention operator hold their values.

    Args:
        q, k, v: dtypes.
        out: dtype of `out`.
        weights: dtype to which the softmax's numerators are rounded before they are multiplied by v.
        scales: for some of "q", "k" and "v", the shape (batch or 1, heads or 1) of its scale: what `q` stands for is
            q[b, h, i, d] * q_scale[b, h]; a dimension of 1 is shared by all samples, or by all heads.
        v_transposed: v is (batch, kv_heads, v_head_dim, kv_len).
    """

    q: str
    k: str
    v: str
    out: str
    weights: str
    scales: tuple[tuple[str, tuple[int, int]], ...] = ()
    v_transposed: bool = False

    @property
    def scores(self) -> str:
        """The dtype in which q and k are multiplied; both convert to it exactly."""
        return self.q if self.q == self.k and self.q in EIGHTS else widest(self.q, self.k)

    @property
    def largest_weight(self) -> float:
        """What the largest numerator of a softmax becomes."""
        return LARGEST_WEIGHT if self.weights in EIGHTS else 1.0

    @property
    def scale_specs(self) -> tuple[TensorSpec, ...]:
        """The scales as inputs: float32."""
        return tuple(TensorSpec(f"{name}_scale", shape, "float32") for name, shape in self.scales)

    def scale_of(self, name: str, scales: Mapping[str, Any], sample: Any, head: Any) -> Any:
        """The scale of `name` ("q", "k" or "v") for a sample and a head of it; None if it has none."""
        for own, (samples, heads) in self.scales:
            if own == name:
                return scales[f"{name}_scale"](0 if samples == 1 else sample, 0 if heads == 1 else head)
        return None

    def values(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, scales: Mapping[str, np.ndarray], paged: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What q, k and v stand for, in float64 and without a transposed v; `paged`: k and v are caches of pages."""
        stored = {"q": q, "k": k, "v": v.swapaxes(2, 3) if self.v_transposed else v}
        for name, _ in self.scales:
            scale = scales[f"{name}_scale"]
            in_pages = paged and name != "q"
            stored[name] = stored[name] * (scale[:, None, :, None] if in_pages else scale[:, :, None, None])
        return stored["q"], stored["k"], stored["v"]


class FormatOptions(TypedDict, total=False):
    """The arguments of `general` for quantized tensors.

    Args:
        q_dtype, k_dtype, v_dtype: None: the operator's dtype.  Floats of 8 bits, and int8 for k and v, hold what they
            stand for divided by the scale.
        weights_dtype: dtype to which the softmax's numerators are rounded; None: the widest of q, k and v, but
            float16 if v has 8 bits and neither q nor k has 32.  "float8_e4m3fn" multiplies them with a v of this dtype
            as it is.
        q_scale, k_scale, v_scale: shape (batch or 1, heads or 1) of a further input of this name, in float32; None:
            the scale is 1.
        v_transposed: v is (batch, kv_heads, v_head_dim, kv_len), as products of 8 bits read it fastest.
    """

    q_dtype: str | None
    k_dtype: str | None
    v_dtype: str | None
    weights_dtype: str | None
    q_scale: tuple[int, int] | None
    k_scale: tuple[int, int] | None
    v_scale: tuple[int, int] | None
    v_transposed: bool


def widest(*dtypes: str) -> str:
    """The dtype of at least 16 bits that holds the values of all of them."""
    wide = {dtype for dtype in dtypes if dtype not in QUANTIZED}
    if len(wide) > 1:
        return "float32"
    return wide.pop() if wide else "float16"


def formats_of(params: Mapping[str, Any], extents: Mapping[str, tuple[int, int]]) -> Formats:
    """The formats that an operator's params state: "dtype", and some of "q_dtype", "k_dtype", "v_dtype",
    "weights_dtype", "q_scale", "k_scale", "v_scale" (shapes) and "v_transposed".

    `extents` says how many samples and heads of q, k and v may have scales of their own.

    Raises:
        DefinitionError: a dtype or a shape is not supported.
    """
    out = params["dtype"]
    supported(out, *PLAIN)
    own = {name: params.get(f"{name}_dtype") or out for name in "qkv"}
    for dtype in own.values():
        supported(dtype, *PLAIN, *QUANTIZED)
    if own["q"] == "int8":
        raise DefinitionError(
            "q_dtype='int8': queries of int8 are not supported", help="int8 is a dtype of k and v; give q another one"
        )
    weights = params.get("weights_dtype") or _weights(own["q"], own["k"], own["v"])
    supported(weights, *PLAIN, "float8_e4m3fn")
    if weights in EIGHTS and own["v"] != weights:
        raise DefinitionError(
            f"weights_dtype={weights!r} with v of {own['v']}: a product of 8 bits has two factors of one dtype",
            help=f"give v as {weights}, or leave weights_dtype out",
        )
    if weights not in EIGHTS and widest(weights, own["v"]) != weights:
        raise DefinitionError(
            f"weights_dtype={weights!r} with v of {own['v']}, which it does not hold", help="leave weights_dtype out"
        )
    scales = []
    for name in "qkv":
        shape = params.get(f"{name}_scale")
        if shape is not None:
            scales.append((name, _scale_shape(name, shape, extents[name])))
    return Formats(
        **own, out=out, weights=weights, scales=tuple(scales), v_transposed=params.get("v_transposed", False)
    )


def _weights(q: str, k: str, v: str) -> str:
    """The dtype of the numerators, which are at most 1: as exact as 16 bits can be if v has 8."""
    wide = widest(q, k, v)
    return "float16" if v in QUANTIZED and wide != "float32" else wide


def _scale_shape(name: str, shape: Any, most: tuple[int, int]) -> tuple[int, int]:
    allowed = [{1, extent} for extent in most]
    if (
        not isinstance(shape, tuple | list)
        or len(shape) != 2
        or any(n not in many for n, many in zip(shape, allowed, strict=True))
    ):
        raise DefinitionError(
            f"{name}_scale={shown(shape)}: expected a shape (1 or {most[0]}, 1 or {most[1]})",
            help=f"such as (1, {most[1]}), one scale per head",
        )
    return int(shape[0]), int(shape[1])


__all__ = ["LARGEST_WEIGHT", "PLAIN", "QUANTIZED", "FormatOptions", "Formats", "formats_of", "widest"]
