"""Functions that an emitted module brings along, only where a kernel calls them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TANH = '''@triton.jit
def _tanh(x):
    """tanh(x) = 1 - 2 / (exp(2 x) + 1): finite everywhere, one exponential, no libdevice."""
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
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

HELPERS: Mapping[str, str] = MappingProxyType({"_tanh": _TANH, "_product": _PRODUCT, "_dot": _DOT})
