"""Functions that are part of an emitted module if a kernel calls them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TANH = '''@triton.jit
def _tanh(x):
    """tanh(x) = 1 - 2 / (exp(2 x) + 1): finite everywhere, one exponential, no libdevice; x itself near 0."""
    return tl.where(tl.abs(x) < 0.000244140625, x, 1.0 - 2.0 / (tl.exp2(2.8853900817779268 * x) + 1.0))
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

COUNTERS = '''@functools.cache
def _zeros(device, stream, count):
    """Counters of one stream, whose launches follow each other; each launch leaves them as the next one needs them."""
    return torch.zeros(count, dtype=torch.int32, device=device)


@functools.cache
def _spare(device, count):
    """Counters of which each launch in a graph takes one, so that the graph need not set them to 0."""
    return dict()


@functools.cache
def _every(device, count):
    """The memory of all counters that were spare: a graph that took some counts in it whenever it runs."""
    return dict()


def _counters(device, count):
    """Numbers that programs count or pass on, 0 at first; each launch in a graph has its own."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    spare = _spare(device, count)
    if torch.cuda.is_current_stream_capturing():
        taken = spare.pop(len(spare), None)
        return torch.zeros(count, dtype=torch.int32, device=device) if taken is None else taken
    if not spare:
        made = torch.zeros((64, -(-count // 4) * 4), dtype=torch.int32, device=device)
        torch.cuda.current_stream(device).synchronize()
        every = _every(device, count)
        every[len(every)] = made
        for n in range(64):
            spare[n + 1] = made[n, :count]
    return _zeros(device, torch.cuda.current_stream(device).cuda_stream, count)
'''

KEPT = '''@functools.cache
def _kept_on(device):
    """What `_made` gave, for every stream and graph of a device."""
    return dict()


def _kept(device):
    """What `_made` gives: the first call on a device makes it; a graph that comes before makes its own."""
    kept = _kept_on(device)
    if kept:
        return kept[0]
    made = _made(device)
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream(device).synchronize()
        kept[0] = made
    return made
'''

_AGAIN = '''@triton.jit
def _again(x):
    """x, of which the compilers do not know what was computed of it: they hold x until here, and no wider values."""
    if INTERPRETED or not tl.target_info.is_cuda():
        return x
    else:
        zero = tl.inline_asm_elementwise(ZERO, "=r,r", [tl.full([], 31, tl.int32)], tl.int32, is_pure=True, pack=1)
        return tl.inline_asm_elementwise(
            "xor.b32 $0, $1, $2;", "=r,r,r,r", [x, zero], dtype=x.dtype, is_pure=False, pack=2
        )


# The highest bit of a number that is below 2**31, which the assembler does not know: it would see through a move.
ZERO = tl.constexpr("{ .reg .b32 programs; mov.u32 programs, %nctaid.x; shr.u32 $0, programs, $1; }")
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

GROUPS = '''def _groups(device, parts, rows, resident):
    """How many groups of programs run at the same time, each of which shares a row."""
    if device.type != "cuda":
        return (rows + 1) // 2
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(rows, resident * multiprocessors // parts))
'''

_GIVE = '''@triton.jit
def _give(word, value, mark):
    """Passes a number on to the programs that share a row; the mark says of which row and launch it is."""
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.store(word, (mark.to(tl.int64) << 32) | bits)
'''

_ASK = '''@triton.jit
def _ask(words):
    """What is in the words of a row so far; loads of several tensors are under way together."""
    if INTERPRETED:
        return tl.load(words)
    else:
        return tl.inline_asm_elementwise(ASK, "=l,l", [words.to(tl.int64)], tl.int64, is_pure=False, pack=1)


ASK = tl.constexpr("ld.relaxed.gpu.global.b64 $0, [$1];")
'''

# ("&": the result is written before the other operands are read for the last time.)
_TAKE = '''@triton.jit
def _take(asked, words, mark):
    """The numbers that programs of a row have passed on: `asked`, or what it waits for until each has its mark."""
    if INTERPRETED:  # programs run one after another: a launch finds what the one before it has passed on
        return asked.to(tl.int32).to(tl.float32, bitcast=True)
    else:
        given = [asked, words.to(tl.int64), mark]
        bits = tl.inline_asm_elementwise(WAIT, "=&r,l,l,r", given, tl.int32, is_pure=False, pack=1)
        return bits.to(tl.float32, bitcast=True)


WAIT = tl.constexpr("""{
    .reg .b64 word; .reg .b32 found; .reg .pred other;
    mov.b64 word, $1;
again:
    mov.b64 {$0, found}, word;
    setp.ne.s32 other, found, $3;
    @other ld.relaxed.gpu.global.b64 word, [$2];
    @other bra again;
}""")
'''

_LEAVE = '''@triton.jit
def _leave(words, mark, programs):
    """The last program to leave says with which mark the next launch begins."""
    tl.debug_barrier()
    left = tl.atomic_add(words + 1, 1, sem="acq_rel", scope="gpu")
    if left == programs - 1:
        tl.store(words + 1, 0)
        tl.store(words, mark)
'''

_ROUND = '''@triton.jit
def _round(x):
    """The nearest whole number, ties to even: from 2**23 (2**52 in float64) on, a float has no fraction."""
    limit = 4503599627370496.0 if x.dtype == tl.float64 else 8388608.0
    magnitude = tl.abs(x)
    whole = (magnitude + limit) - limit
    return tl.where(magnitude < limit, tl.where(x < 0, -whole, whole), x)
'''

_ARCTAN = '''@triton.jit
def _arctan(x):
    """atan(x), of -1 / |x| or (|x| - 1) / (|x| + 1) for a large |x|, so that a polynomial of degree 21 suffices."""
    size = tl.abs(x)
    middle = (size > 0.41421356237309503) & (size <= 2.414213562373095)
    large = size > 2.414213562373095
    t = tl.where(large, -1.0 / size, tl.where(middle, (size - 1.0) / (size + 1.0), x))
    z = t * t
    p = 0.02275052699336167 * z - 0.04483334622272886
    p = p * z + 0.05736332165907643
    p = p * z - 0.06649613695291669
    p = p * z + 0.0769105515839315
    p = p * z - 0.09090852557176049
    p = p * z + 0.11111109636534361
    p = p * z - 0.1428571426609662
    p = p * z + 0.19999999999898407
    p = p * z - 0.3333333333333325
    near = t + t * (z * p)
    far = tl.where(large, 1.5707963267948966, 0.7853981633974483) + near
    return tl.where(large | middle, tl.where(x < 0, -far, far), near)
'''

_SQUARE = """@triton.jit
def _square(x):
    return x * x
"""

_POWER = '''@triton.jit
def _power(x, y):
    """x ** y as C's pow has it: NaN for a negative x and a y with a fraction, the sign of x for an odd y."""
    x = x - tl.where(y == y, 0.0, 0.0)  # both as tiles: the interpreter cannot broadcast one condition
    y = y - tl.where(x == x, 0.0, 0.0)
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    whole = tl.floor(y) == y
    odd = whole & (tl.floor(y * 0.5) * 2.0 != y)
    signed = tl.where(odd & ((x < 0) | (1.0 / x < 0)), -size, size)
    known = tl.where((x < 0) & (x > float("-inf")) & (whole == 0), float("nan"), signed)
    one = (y == 0) | (x == 1) | ((tl.abs(x) == 1) & (tl.abs(y) == float("inf")))
    return tl.where(one, 1.0, known)
'''

_PRODUCT = """@triton.jit
def _product(a, b):
    return a * b
"""

_MAXIMUM = '''@triton.jit
def _maximum(a, b):
    """The larger of two numbers; NaN if one of them is, where tl.maximum gives the other."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
'''

_MINIMUM = '''@triton.jit
def _minimum(a, b):
    """The smaller of two numbers; NaN if one of them is, where tl.minimum gives the other."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
'''

# Triton's interpreter is fast for tl.max only; it runs any other reduction element by element in Python.
_MAX = '''@triton.jit
def _max(x, axis: tl.constexpr):
    """The largest along an axis; NaN if one element is, where tl.max leaves it out."""
    if INTERPRETED:
        largest = tl.max(tl.where(x != x, float("-inf"), x), axis=axis)
        return tl.where(tl.max((x != x).to(tl.int32), axis=axis) != 0, float("nan"), largest)
    else:
        return tl.reduce(x, axis, _maximum)
'''

_MIN = '''@triton.jit
def _min(x, axis: tl.constexpr):
    """The smallest along an axis; NaN if one element is, where tl.min leaves it out."""
    if INTERPRETED:
        smallest = tl.min(tl.where(x != x, float("inf"), x), axis=axis)
        return tl.where(tl.max((x != x).to(tl.int32), axis=axis) != 0, float("nan"), smallest)
    else:
        return tl.reduce(x, axis, _minimum)
'''

_DOT = '''@triton.jit
def _dot(a, b, acc):
    """acc + a @ b; Triton's interpreter would multiply the bits of bfloat16, so there it goes through float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc=acc, input_precision="ieee")
    else:
        return tl.dot(a, b, acc=acc)
'''

_DOT_OF_EIGHTS = '''@triton.jit
def _dot_of_{name}(a, b):
    """a @ b of floats of 8 bits."""
    if INTERPRETED:
        return tl.dot(_from_{name}(a, tl.float32), _from_{name}(b, tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b)
'''

# Triton's interpreter holds floats of 8 bits as bits, and its own conversions are wrong for NaN, for rounding up to the
# next power of two and for the least numbers.
_FROM_E4M3 = '''@triton.jit
def _from_e4m3(x, dtype: tl.constexpr):
    """x in `dtype`, exactly; NaN stays NaN."""
    if INTERPRETED:
        bits = x.to(tl.uint8, bitcast=True).to(tl.int32)
        exponent = (bits >> 3) & 15
        digits = (bits & 7) + tl.where(exponent > 0, 8, 0)
        size = digits.to(tl.float32) * tl.exp2((tl.where(exponent > 0, exponent, 1) - 10).to(tl.float32))
        size = tl.where((bits & 127) == 127, float("nan"), size)
        return tl.where(bits > 127, -size, size).to(dtype)
    else:
        return x.to(dtype)
'''

_FROM_E5M2 = '''@triton.jit
def _from_e5m2(x, dtype: tl.constexpr):
    """x in `dtype`, exactly."""
    if INTERPRETED:
        return (x.to(tl.uint8, bitcast=True).to(tl.int16) << 8).to(tl.float16, bitcast=True).to(tl.float32).to(dtype)
    else:
        return x.to(dtype)
'''

# Two conversions make four numbers of 8 bits.  If both convert the same registers (constants, or a row's value at each
# column), ptxas 12.8 and 12.9 keep only the one that merges, and what it merges with is a register that nothing was
# written to.  So the first pair is converted with the other sign, which is exact, and its signs are turned back.
_TO_EIGHT = '''@triton.jit
def _to_{name}(x):
    """A float32 rounded to the nearest float of 8 bits, ties to even; at most {largest} in magnitude, NaN stays NaN."""
    if INTERPRETED:
        size = tl.where(tl.abs(x) < {largest}, tl.abs(x), {largest})
        exponent = (size.to(tl.int32, bitcast=True) >> 23) - 127
        exponent = tl.where(exponent < {least}, {least}, exponent)
        steps = size * tl.exp2(({digits} - exponent).to(tl.float32))
        steps = ((steps + 8388608.0) - 8388608.0).to(tl.int32)
        bits = (exponent - {least}) * {normal} + steps
        bits = tl.where(x == x, bits, 127) + tl.where(x.to(tl.int32, bitcast=True) < 0, 128, 0)
        return bits.to(tl.uint8).to({dtype}, bitcast=True)
    elif tl.target_info.cuda_capability_geq(8, 9):
        bits = tl.inline_asm_elementwise(
            "{{ .reg .b16 low, high; .reg .f32 a, b; neg.f32 a, $1; neg.f32 b, $2; "
            "cvt.rn.satfinite.{name}x2.f32 high, $4, $3; cvt.rn.satfinite.{name}x2.f32 low, b, a; "
            "mov.b32 $0, {{low, high}}; xor.b32 $0, $0, 0x00008080; }}",
            "=r,f,f,f,f",
            [x],
            dtype=tl.int8,
            is_pure=True,
            pack=4,
        )
        return bits.to({dtype}, bitcast=True)
    else:
        return x.to({dtype})
'''

INTERPRETED = "INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)"
# These read INTERPRETED.
ASK = frozenset(
    {"_again", "_ask", "_dot", "_hardware_tanh", "_launch_dependents", "_max", "_min", "_take", "_wait"}
    | {f"_{what}_{name}" for what in ("dot_of", "from", "to") for name in ("e4m3", "e5m2")}
)

HELPERS: Mapping[str, str] = MappingProxyType(
    {
        "_again": _AGAIN,
        "_ask": _ASK,
        "_arctan": _ARCTAN,
        "_dot": _DOT,
        "_dot_of_e4m3": _DOT_OF_EIGHTS.format(name="e4m3"),
        "_dot_of_e5m2": _DOT_OF_EIGHTS.format(name="e5m2"),
        "_from_e4m3": _FROM_E4M3,
        "_from_e5m2": _FROM_E5M2,
        "_give": _GIVE,
        "_hardware_tanh": _HARDWARE_TANH,
        "_launch_dependents": _LAUNCH_DEPENDENTS,
        "_leave": _LEAVE,
        "_max": _MAX,
        "_maximum": _MAXIMUM,
        "_min": _MIN,
        "_minimum": _MINIMUM,
        "_power": _POWER,
        "_product": _PRODUCT,
        "_round": _ROUND,
        "_square": _SQUARE,
        "_take": _TAKE,
        "_tanh": _TANH,
        "_to_e4m3": _TO_EIGHT.format(name="e4m3", dtype="tl.float8e4nv", largest=448.0, least=-6, digits=3, normal=8),
        "_to_e5m2": _TO_EIGHT.format(name="e5m2", dtype="tl.float8e5", largest=57344.0, least=-14, digits=2, normal=4),
        "_wait": _WAIT,
    }
)
