"""Functions that an emitted module brings along, only where a kernel calls them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TANH = '''@triton.jit
def _tanh(x):
    """tanh(x) = 1 - 2 / (exp(2 x) + 1): finite everywhere, one exponential, no libdevice."""
    return 1.0 - 2.0 / (tl.exp2(2.8853900817779268 * x) + 1.0)
'''

_HARDWARE_TANH = '''@triton.jit
def _hardware_tanh(x):
    """The GPU's own instruction: relative error about 2**-11."""
    if INTERPRETED:
        return 1.0 - 2.0 / (tl.exp2(2.8853900817779268 * x) + 1.0)
    else:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
'''

ALLOCATOR = '''def _scratch(size, alignment, stream):
    """Memory in which kernels write their tensor descriptors."""
    return torch.empty(size, dtype=torch.int8, device="cuda")
'''

_WAIT = '''@triton.jit
def _wait():
    """Until the kernel before this one has written its results."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_wait()
'''

_LAUNCH_DEPENDENTS = '''@triton.jit
def _launch_dependents():
    """The next kernel may start; it waits by itself for what this one writes."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_launch_dependents()
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

_DOT = '''@triton.jit
def _dot(a, b, acc):
    """acc + a @ b; Triton's interpreter would multiply the bits of bfloat16, so there it goes through float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc=acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc=acc)
'''

INTERPRETED = "INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)"
# These ask whether Triton interprets them.
ASK = frozenset({"_dot", "_hardware_tanh", "_launch_dependents", "_wait"})

HELPERS: Mapping[str, str] = MappingProxyType(
    {
        "_dot": _DOT,
        "_hardware_tanh": _HARDWARE_TANH,
        "_launch_dependents": _LAUNCH_DEPENDENTS,
        "_product": _PRODUCT,
        "_round": _ROUND,
        "_tanh": _TANH,
        "_wait": _WAIT,
    }
)
