"""Functions by which programs add to tiles of a total in global memory, and the last of them stores the result."""

from __future__ import annotations

from neptune_lab.strict.emitted import ADD_OUT

_AWAIT = '''@gluon.jit
def _await(counter, NUMBER):
    """Waits until other programs have told so large a number: one thread of a warp reads it."""
    lane = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    gl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 seen; setp.ne.s32 p, $3, 0; @p bra READY; "
        "AGAIN: ld.acquire.gpu.global.s32 seen, [$1]; setp.lt.s32 p, seen, $2; @p bra AGAIN; "
        "fence.proxy.async.global; READY: bar.warp.sync 0xffffffff; mov.b32 $0, $3; }",
        "=r,l,r,r",
        [counter, NUMBER, lane],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
'''

_TELL = '''@gluon.jit
def _tell(counter, NUMBER):
    """Stores a number for other programs, once what the copy engine added for this warp is in global memory."""
    lane = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    gl.inline_asm_elementwise(
        "{ .reg .pred p; cp.async.bulk.wait_group 0; bar.warp.sync 0xffffffff; setp.eq.s32 p, $3, 0; "
        "@p st.release.gpu.global.s32 [$1], $2; mov.b32 $0, $3; }",
        "=r,l,r,r",
        [counter, NUMBER, lane],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
'''

_STORE_ROWS = '''@gluon.jit
def _store_rows(pointer, x, WIDTH: gl.constexpr):
    """Stores a tile in rows of WIDTH elements; the pointer is that of its first element."""
    row = gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    column = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    gl.store(pointer + (row[:, None] * WIDTH + column[None, :]), x)
'''

_STORE_COLUMNS = '''@gluon.jit
def _store_columns(pointer, x, STRIDE: gl.constexpr):
    """Stores the columns of a tile STRIDE elements apart; the pointer is that of its first element."""
    row = gl.arange(0, x.shape[0], gl.SliceLayout(1, x.type.layout))
    column = gl.arange(0, x.shape[1], gl.SliceLayout(0, x.type.layout))
    gl.store(pointer + (column[None, :] * STRIDE + row[:, None]), x)
'''

ADDER_HELPERS = {
    "_add_out": (ADD_OUT, ()),
    "_await": (_AWAIT, ()),
    "_tell": (_TELL, ()),
    "_store_rows": (_STORE_ROWS, ()),
    "_store_columns": (_STORE_COLUMNS, ()),
}

__all__ = ["ADDER_HELPERS"]
