"""Two matrix products in a row, as MCFuser fuses them ("GEMM chain"), with its Table II as presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import Operator, TensorSpec, positive, source_of, supported, tensor_expressions
from neptune_lab.operators.dims import takes_dims
from neptune_lab.operators.stages import builder

# MCFuser's Table II, G1 to G12: batch, m, n, k, h.
PRESETS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        name: MappingProxyType(dict(zip(("batch", "m", "n", "k", "h"), sizes, strict=True)))
        for name, sizes in {
            "g1": (1, 512, 256, 64, 64),
            "g2": (1, 512, 256, 64, 128),
            "g3": (1, 512, 256, 64, 256),
            "g4": (1, 512, 512, 256, 256),
            "g5": (1, 512, 512, 512, 256),
            "g6": (1, 512, 512, 1024, 256),
            "g7": (1, 512, 512, 128, 128),
            "g8": (1, 1024, 512, 128, 128),
            "g9": (1, 2048, 512, 128, 128),
            "g10": (1, 1024, 1024, 128, 128),
            "g11": (4, 1024, 1024, 128, 128),
            "g12": (8, 1024, 1024, 128, 128),
        }.items()
    }
)


def define_gemm_chain(batch: int, m: int, n: int, k: int, h: int, dtype: str) -> tuple[list[Any], list[Any]]:
    """The chain as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    wide = "float32"
    a = te.placeholder((batch, m, k), dtype, name="a")
    b = te.placeholder((batch, k, n), dtype, name="b")
    d = te.placeholder((batch, n, h), dtype, name="d")
    c = te.reduce_axis((0, k), name="c")
    j = te.reduce_axis((0, n), name="j")
    ab = te.compute(
        (batch, m, n), lambda z, i, j: te.sum(a[z, i, c].astype(wide) * b[z, c, j].astype(wide), axis=c), name="ab"
    )
    ab_rounded = te.compute((batch, m, n), lambda z, i, j: ab[z, i, j].astype(dtype), name="ab_rounded")
    abd = te.compute(
        (batch, m, h),
        lambda z, i, e: te.sum(ab_rounded[z, i, j].astype(wide) * d[z, j, e].astype(wide), axis=j),
        name="abd",
    )
    out = te.compute((batch, m, h), lambda z, i, e: abd[z, i, e].astype(dtype), name="out")
    return [a, b, d], [out]


@takes_dims
def gemm_chain(batch: int = 1, m: int = 16, n: int = 16, k: int = 16, h: int = 16, dtype: str = "float16") -> Operator:
    """`a` (batch, m, k), `b` (batch, k, n) and `d` (batch, n, h) to `out` (batch, m, h): (a @ b) @ d.

    Both products are summed in float32; a @ b is rounded to `dtype` before the second product, as a GPU's matrix
    units take it.  The reference is exact up to float64, without that rounding.

    Args:
        batch: number of chains.
        m: rows of `a` and of the output.
        n: columns of a @ b, the dimension that the second product reduces.
        k: columns of `a`, the dimension that the first product reduces.
        h: columns of the output.
        dtype: "float16", "bfloat16" or "float32", of the inputs and the output.

    Returns:
        The operator, from `a`, `b` and `d` to `out`.

    Raises:
        DefinitionError: a size that is not a positive integer, or another dtype.
    """
    sizes = {"batch": batch, "m": m, "n": n, "k": k, "h": h}
    positive(**sizes)
    supported(dtype, "float16", "bfloat16", "float32")
    inputs = tuple(
        TensorSpec(name, shape, dtype)
        for name, shape in (("a", (batch, m, k)), ("b", (batch, k, n)), ("d", (batch, n, h)))
    )
    return Operator(
        name="gemm_chain",
        title="Two matrix products in a row",
        doc="MCFuser, Table II",
        params={**{name: int(size) for name, size in sizes.items()}, "dtype": dtype},
        inputs=inputs,
        outputs=(TensorSpec("out", (batch, m, h), dtype),),
        source=source_of(define_gemm_chain),
        build=builder("gemm_chain", ("ab", "ab_rounded", "abd", "out"), define_gemm_chain, batch, m, n, k, h, dtype),
        compute=lambda a, b, d: (np.einsum("zmk,zkn,znh->zmh", a, b, d, optimize=True),),
        draw=lambda rng: tuple(rng.standard_normal(t.shape) for t in inputs),
    )


def preset(name: str, **overrides: Any) -> Operator:
    """The chain that MCFuser's Table II calls G1 to G12.

    >>> preset("g2", batch=2).params["batch"], preset("G2").params["h"]
    (2, 128)

    Args:
        name: "g1" to "g12".
        overrides: arguments of `gemm_chain` that replace the preset's.

    Returns:
        The operator.

    Raises:
        DefinitionError: there is no such preset, or an override has a wrong value or name.
    """
    make = preset_function(name)
    for override in overrides:
        if override not in signature(make).parameters:
            known = ", ".join(signature(make).parameters)
            raise DefinitionError(f"preset {name} has no argument {override!r}", help=f"one of {known}")
    return make(**overrides)


def preset_function(name: str) -> Callable[..., Operator]:
    """`gemm_chain` with the sizes of the preset `name` as its defaults."""
    if name.lower() not in PRESETS:
        raise DefinitionError(f"there is no GEMM chain {name!r}", help=f"one of {', '.join(PRESETS)}")
    return partial(gemm_chain, **PRESETS[name.lower()])
