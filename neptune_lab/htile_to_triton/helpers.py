"""Functions that an emitted module brings along, only where a kernel calls them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TANH = '''@triton.jit
def _tanh(x):
    """tanh(x) = 1 - 2 / (exp(2 x) + 1): finite everywhere, one exponential, no libdevice."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
'''

_ROUND = '''@triton.jit
def _round(x):
    """The nearest whole number, ties to even: from 2**23 (2**52 in float64) on, a float has no fraction."""
    limit = 4503599627370496.0 if x.dtype == tl.float64 else 8388608.0
    magnitude = tl.abs(x)
    whole = (magnitude + limit) - limit
    return tl.where(magnitude < limit, tl.where(x < 0, -whole, whole), x)
'''

_PRODUCT = """@triton.jit
def _product(a, b):
    return a * b
"""

_DOT = '''INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _dot(a, b, acc):
    """acc + a @ b; Triton's interpreter would multiply the bits of bfloat16, so there it goes through float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc=acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc=acc)
'''

HELPERS: Mapping[str, str] = MappingProxyType({"_tanh": _TANH, "_round": _ROUND, "_product": _PRODUCT, "_dot": _DOT})
