"""Functions that are part of a module with Gluon kernels if a kernel calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from neptune_lab.htile_to_gluon.adder_helpers import ADDER_HELPERS
from neptune_lab.htile_to_gluon.diagonal_helpers import DIAGONAL_HELPERS
from neptune_lab.htile_to_gluon.relay_helpers import RELAY_HELPERS
from neptune_lab.htile_to_triton.helpers import HELPERS as TRITON_HELPERS

_NEXT = '''@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    """The next slot of a ring, and the parity that its barriers have there."""
    slot += 1
    if slot == STAGES:
        slot = 0
        phase ^= 1
    return slot, phase
'''

# Triton 3.9 has these under new names only, Triton 3.7 under the old ones.
_COPY_IN = """_copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
"""

_COPY_OUT = """_copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
"""

_FILL = '''@gluon.jit
def _fill(rows, slots, full, empty, slot, phase, row, column, STAGES: gl.constexpr):
    """Starts the copy of a tile into the next slot of a ring, once every consumer has done with what was there."""
    mbarrier.wait(empty.index(slot), phase ^ 1)
    mbarrier.expect(full.index(slot), rows.block_type.nbytes)
    _copy_in(rows, [row, column], full.index(slot), slots.index(slot))
    return _next(slot, phase, STAGES)
'''

_FILL_OF = '''@gluon.jit
def _fill_of(rows, slots, full, empty, slot, phase, matrix, row, column, STAGES: gl.constexpr):
    """As `_fill`, from one of several matrices; rows past its end are 0."""
    mbarrier.wait(empty.index(slot), phase ^ 1)
    mbarrier.expect(full.index(slot), rows.block_type.nbytes)
    _copy_in(rows, [matrix, row, column], full.index(slot), slots.index(slot))
    return _next(slot, phase, STAGES)
'''

_FILL_HALVES = '''@gluon.jit
def _fill_halves(rows, slots, full, empty, slot, phase, row, column, STAGES: gl.constexpr):
    """As `_fill`, in two halves: the rows 0 and 1 of every four, and the rows 2 and 3."""
    mbarrier.wait(empty.index(slot), phase ^ 1)
    mbarrier.expect(full.index(slot), rows.block_type.nbytes * 2)
    for half in gl.static_range(2):
        part = slots.index(slot).slice(half * rows.block_type.shape[0], rows.block_type.shape[0], dim=0)
        _copy_in(rows, [row // 4, half * 2, column], full.index(slot), part)
    return _next(slot, phase, STAGES)
'''

_FILL_BOTH = '''@gluon.jit
def _fill_both(rows, halves, slots, half_slots, full, empty, slot, phase, row, column, half_row, STAGES: gl.constexpr):
    """As `_fill`, with a tile of float16 beside it, in two halves: the rows 0 and 1 of every four, and 2 and 3."""
    mbarrier.wait(empty.index(slot), phase ^ 1)
    mbarrier.expect(full.index(slot), rows.block_type.nbytes + halves.block_type.nbytes * 2)
    _copy_in(rows, [row, column], full.index(slot), slots.index(slot))
    for half in gl.static_range(2):
        _copy_in(halves, [half_row // 4, half * 2, 0], full.index(slot), half_slots.index(slot * 2 + half))
    return _next(slot, phase, STAGES)
'''

_KEYS_IN_HALVES = '''@gluon.jit
def _keys_in_halves(column, HALF: gl.constexpr):
    """The keys of columns: 0 and 1 of every four in the first half, 2 and 3 in the second."""
    return column % HALF * 2 - column % 2 + column // HALF * 2
'''

_IN_ORDER_OF_KEYS = '''@gluon.jit
def _in_order_of_keys(x):
    """A tile whose keys are in halves, with its keys in order; every thread has four adjacent ones already."""
    halves = x.reshape([x.shape[0], 2, x.shape[1] // 16, 4, 2])
    return halves.permute([0, 2, 3, 1, 4]).reshape([x.shape[0], x.shape[1]])
'''

_FIRST_KEYS = '''@gluon.jit
def _first_keys(x):
    """The first keys of a tile whose keys are in halves: 0 and 1 of every four, and 2 and 3; and the other keys, which
    are in halves."""
    first, others = x.reshape([x.shape[0], 2, 2, x.shape[1] // 4]).permute([0, 1, 3, 2]).split()
    low, high = first.permute([0, 2, 1]).split()
    return low, high, others.reshape([x.shape[0], x.shape[1] // 2])
'''

_SPLIT_KEYS = '''@gluon.jit
def _split_keys(x):
    """The first and the second half of the keys of a tile, which are in order."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute([0, 2, 1]).split()
'''

# The compiler packs conversions by moves of bytes; in this order, the second instruction merges the first's result. By
# ptxas 12.8, a tile of 256 keys with rests is 883 instructions in place of 931. (Weights that are one number are not
# faster so, and spill registers under a causal mask.)
# The first of two conversions has `.relu`, which changes no weight, since none is below 0: of two conversions of the
# same registers, such as those of two masked pairs of keys, ptxas 12.8 and 12.9 keep the one that merges, and what it
# merges with is a register that nothing was written to.
_ROUNDED = '''@gluon.jit
def _rounded(x):
    """A tile of numbers not below 0, rounded to e4m3; every thread has four adjacent elements."""
    bits = gl.inline_asm_elementwise(
        "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; "
        "cvt.rn.satfinite.relu.e4m3x2.f32 low, $2, $1; mov.b32 $0, {low, high}; }",
        "=r,f,f,f,f",
        [x],
        dtype=gl.int8,
        is_pure=True,
        pack=4,
    )
    return bits.to(gl.float8e4nv, bitcast=True)
'''

_ROUNDED_AND_REST = '''@gluon.jit
def _rounded_and_rest(x):
    """Numbers of e4m3, towards zero, of numbers not below 0, and what that leaves, rounded to e4m3: three of a
    float16's ten binary places stay, and their difference from it is exact. Every thread has four adjacent ones."""
    rounded, rest = gl.inline_asm_elementwise(
        "{ .reg .b16 low, high; .reg .b32 a, b, c, d; cvt.rn.f16x2.f32 a, $3, $2; cvt.rn.f16x2.f32 b, $5, $4; "
        "and.b32 c, a, 0xFF80FF80; and.b32 d, b, 0xFF80FF80; cvt.rn.satfinite.relu.e4m3x2.f16x2 low, c; "
        "cvt.rn.satfinite.e4m3x2.f16x2 high, d; mov.b32 $0, {low, high}; sub.f16x2 c, a, c; sub.f16x2 d, b, d; "
        "cvt.rn.satfinite.relu.e4m3x2.f16x2 low, c; cvt.rn.satfinite.e4m3x2.f16x2 high, d; mov.b32 $1, {low, high}; }",
        "=r,=r,f,f,f,f",
        [x],
        dtype=(gl.int8, gl.int8),
        is_pure=True,
        pack=4,
    )
    return rounded.to(gl.float8e4nv, bitcast=True), rest.to(gl.float8e4nv, bitcast=True)
'''

_LOCATE = '''@gluon.jit
def _locate(tile, BLOCKS: gl.constexpr, HEADS: gl.constexpr):
    """Row block and head of a tile: HEADS heads side by side share the cache, row blocks in order among them."""
    rest = tile % (HEADS * BLOCKS)
    return rest // HEADS, tile // (HEADS * BLOCKS) * HEADS + rest % HEADS
'''

_TURN = '''@gluon.jit
def _turn(turn, SECTION: gl.constexpr):
    """The turn of a program and its tile: back and forth over the programs, from the other end in every second section
    of heads, so that long and short tiles even out. A turn that the last tiles of a section do not fill is skipped.
    There are at most SECTION programs."""
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    turns = (SECTION + programs - 1) // programs
    section = turn // turns
    place = turn % turns
    back = (section + place) % 2
    at = place * programs + program * (1 - back) + (programs - 1 - program) * back
    skipped = gl.where(at >= SECTION, 1, 0)
    first = gl.where(section % 2 == 0, programs - 1 - program, program)
    at = gl.where(at >= SECTION, first, at)
    return turn + skipped, (section + skipped) * SECTION + at
'''

_TURN_ON = '''@gluon.jit
def _turn_on(turn):
    """The turn of a program and its tile: back and forth over the programs."""
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    back = turn % 2
    return turn, turn * programs + program * (1 - back) + (programs - 1 - program) * back
'''

_BARRIERS = '''@gluon.jit
def _barriers(NUMBER: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers in shared memory, each complete after that many arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for n in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(n), count=ARRIVALS)
    return barriers
'''

# Triton 3.7 renamed it.
_MEET = """_meet = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # Triton 3.7 and before
"""

_MEET_OF = '''@gluon.jit
def _meet_of(BARRIER: gl.constexpr, THREADS: gl.constexpr):
    """Waits at a barrier of the hardware for so many threads, of one or of both consumers."""
    lane = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        f"bar.sync {BARRIER}, {THREADS}; mov.b32 $0, $1;", "=r,r", [lane], dtype=gl.int32, is_pure=False, pack=1
    )
'''

_SYNC = '''@gluon.jit
def _sync(BARRIER: gl.constexpr):
    """Waits at a barrier of the hardware for the other consumer."""
    lane = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        f"bar.sync {BARRIER}, 256; mov.b32 $0, $1;", "=r,r", [lane], dtype=gl.int32, is_pure=False, pack=1
    )
'''

_ARRIVE = '''@gluon.jit
def _arrive(BARRIER: gl.constexpr):
    """Lets the other consumer pass a barrier of the hardware."""
    lane = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        f"bar.arrive {BARRIER}, 256; mov.b32 $0, $1;", "=r,r", [lane], dtype=gl.int32, is_pure=False, pack=1
    )
'''

_KEEP_BRANCH = '''@gluon.jit
def _keep_branch():
    """Keeps a branch around what follows, which the compiler else computes in all tiles, to select by the condition."""
    lane = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [lane], dtype=gl.int32, is_pure=False, pack=1)
'''

_NEGATE = '''@gluon.jit
def _negate(tile, LAYOUT: gl.constexpr):
    """Changes the signs of a tile of floats of 8 bits in shared memory, before products read it."""
    bits = tile.load(LAYOUT).to(gl.int8, bitcast=True)
    tile.store((bits ^ -128).to(tile.dtype, bitcast=True))
    fence_async_shared()
    _meet()
'''

_SUMS_OF_THREADS = '''@gluon.jit
def _sums_of_threads(x):
    """The sums of what each of the four threads of a row holds: two adjacent columns of every eight."""
    return gl.sum(gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 4, 2]), axis=3), axis=1)
'''

_BESIDE_THREADS = '''@gluon.jit
def _beside_threads(vector, sums):
    """A vector of rows beside the sums of the threads of each row."""
    return gl.convert_layout(vector, gl.SliceLayout(1, sums.type.layout), assert_trivial=True)[:, None]
'''

# The same function as the Triton emitter's `_tanh`, operation by operation: LLVM takes less time if each element is one
# call than for eight operations.
_TANH = '''@gluon.jit
def _tanh_gluon(x):
    """tanh(x) = 1 - 2 / (exp(2 x) + 1): finite everywhere, one exponential, no libdevice; x itself near 0."""
    return gl.inline_asm_elementwise(
        "{ .reg .f32 e, size; .reg .pred small; abs.f32 size, $1; setp.lt.f32 small, size, 0f39800000; "
        "mul.f32 e, $1, 0f4038AA3B; ex2.approx.ftz.f32 e, e; add.f32 e, e, 0f3F800000; div.full.f32 e, 0f40000000, e; "
        "sub.f32 e, 0f3F800000, e; selp.f32 $0, $1, e, small; }",
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )
'''

_HARDWARE_TANH = '''@gluon.jit
def _hardware_tanh_gluon(x):
    """The GPU's own instruction: relative error about 2**-11."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)
'''

_ROUND = '''@gluon.jit
def _round_gluon(x):
    """The nearest whole number, ties to even: from 2**23 on, a float has no fraction."""
    magnitude = gl.abs(x)
    whole = (magnitude + 8388608.0) - 8388608.0
    return gl.where(magnitude < 8388608.0, gl.where(x < 0, -whole, whole), x)
'''

_KEEP_NAN = """_KEEP_NAN = gl.constexpr(PropagateNan.ALL)
"""

_MAXIMUM = '''@gluon.jit
def _maximum_gluon(a, b):
    """The larger of two numbers; NaN if one of them is, where gl.maximum gives the other."""
    return gl.maximum(a, b, propagate_nan=_KEEP_NAN)
'''

_MINIMUM = '''@gluon.jit
def _minimum_gluon(a, b):
    """The smaller of two numbers; NaN if one of them is, where gl.minimum gives the other."""
    return gl.minimum(a, b, propagate_nan=_KEEP_NAN)
'''

_MAX = '''@gluon.jit
def _max_gluon(x, axis: gl.constexpr):
    """The largest along an axis; NaN if one element is, where gl.max leaves it out."""
    return gl.reduce(x, axis, _maximum_gluon)
'''

_MIN = '''@gluon.jit
def _min_gluon(x, axis: gl.constexpr):
    """The smallest along an axis; NaN if one element is, where gl.min leaves it out."""
    return gl.reduce(x, axis, _minimum_gluon)
'''


def _by_sizes(text: str, name: str) -> str:
    """A helper with numbers that are known at the launch only in place of constants."""
    return text.replace(f"def {name}(", f"def {name}_by_sizes(").replace(": gl.constexpr", "")


def _respelled(name: str) -> str:
    """A helper of the Triton emitter in Gluon, with Gluon's names of the functions."""
    text = TRITON_HELPERS[name].replace("@triton.jit", "@gluon.jit").replace(f"def {name}(", f"def {name}_gluon(")
    return re.sub(r"\btl\.", "gl.", text)


# These keep NaN, and need Triton's enumeration PropagateNan.
EXTREMA = frozenset({"_max", "_maximum", "_min", "_minimum"})

# Each follows those that it calls; the second entry lists these.
HELPERS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "_next": (_NEXT, ()),
        "_copy_in": (_COPY_IN, ()),
        "_copy_out": (_COPY_OUT, ()),
        "_fill": (_FILL, ("_next", "_copy_in")),
        "_fill_of": (_FILL_OF, ("_next", "_copy_in")),
        "_fill_halves": (_FILL_HALVES, ("_next", "_copy_in")),
        "_fill_both": (_FILL_BOTH, ("_next", "_copy_in")),
        "_keys_in_halves": (_KEYS_IN_HALVES, ()),
        "_in_order_of_keys": (_IN_ORDER_OF_KEYS, ()),
        "_first_keys": (_FIRST_KEYS, ()),
        "_split_keys": (_SPLIT_KEYS, ()),
        "_rounded": (_ROUNDED, ()),
        "_rounded_and_rest": (_ROUNDED_AND_REST, ()),
        "_locate": (_LOCATE, ()),
        "_turn": (_TURN, ()),
        "_turn_on": (_TURN_ON, ()),
        "_locate_by_sizes": (_by_sizes(_LOCATE, "_locate"), ()),
        "_turn_by_sizes": (_by_sizes(_TURN, "_turn"), ()),
        "_barriers": (_BARRIERS, ()),
        "_meet": (_MEET, ()),
        "_meet_of": (_MEET_OF, ()),
        **ADDER_HELPERS,
        "_negate": (_NEGATE, ("_meet",)),
        "_sums_of_threads": (_SUMS_OF_THREADS, ()),
        "_beside_threads": (_BESIDE_THREADS, ()),
        "_sync": (_SYNC, ()),
        "_arrive": (_ARRIVE, ()),
        "_keep_branch": (_KEEP_BRANCH, ()),
        **RELAY_HELPERS,
        "_tanh": (_TANH, ()),
        "_hardware_tanh": (_HARDWARE_TANH, ()),
        "_round": (_ROUND, ()),
        "_arctan": (_respelled("_arctan"), ()),
        "_square": (_respelled("_square"), ()),
        "_power": (_respelled("_power"), ()),
        **DIAGONAL_HELPERS,
        "_KEEP_NAN": (_KEEP_NAN, ()),
        "_maximum": (_MAXIMUM, ("_KEEP_NAN",)),
        "_minimum": (_MINIMUM, ("_KEEP_NAN",)),
        "_max": (_MAX, ("_KEEP_NAN", "_maximum")),
        "_min": (_MIN, ("_KEEP_NAN", "_minimum")),
    }
)
