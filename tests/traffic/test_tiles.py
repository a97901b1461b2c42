"""Traffic of tile programs: against the interpreter's own loads and stores, and the model of the L2 cache."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.htile import from_text
from neptune_lab.htile.interpret import _Machine
from neptune_lab.htile.nodes import Access
from neptune_lab.operators import attention, norms, softmax
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import DEFAULT
from neptune_lab.traffic import Chip, kernel_traffic, of_tiles

LARGE = Chip(resident=4, cache=1e9)


class Counting(_Machine):
    """The interpreter, which notes each element that a store loads or stores; a tile is loaded once per store."""

    def __init__(self, program, inputs):
        super().__init__(program, inputs, None, None)
        self.moved: Counter[tuple[str, bool]] = Counter()
        self.touched: dict[tuple[str, bool], set] = {}
        self.seen: set[Access] = set()

    def note(self, name, access, stores):
        where, exists = self.positions(access.index, self.program.tensor(name).shape)
        keep = np.broadcast_to(exists, np.broadcast_shapes(*(w.shape for w in where), exists.shape))
        columns = [np.broadcast_to(w, keep.shape)[keep].tolist() for w in where]
        points = list(zip(*columns, strict=True)) if columns else [()]
        self.moved[name, stores] += len(points)
        self.touched.setdefault((name, stores), set()).update(points)

    def store(self, store):
        self.seen = set()
        super().store(store)
        self.note(store.target.tensor, store.target, True)

    def read(self, access):
        if access not in self.seen:
            self.seen.add(access)
            self.note(access.tensor, access, False)
        return super().read(access)


def kernels():
    heads = {"batch": 1, "heads": 2, "head_dim": 16}
    yield "causal", nl.compile(attention.causal(**heads, seq=64), block_q=16, block_kv=16, validate="none")
    yield "remainder", nl.compile(attention.causal(**heads, seq=40), block_q=16, block_kv=16, validate="none")
    yield "window", nl.compile(attention.window(**heads, seq=64, window=24), block_q=16, block_kv=16, validate="none")
    gqa = attention.gqa(batch=1, heads=4, kv_heads=2, q_len=1, kv_len=64, head_dim=16)
    yield "decode", nl.compile(gqa, "split_k_update", config=nl.SplitKConfig(splits=2), validate="none")
    yield "softmax", nl.compile(softmax.figure1(rows=3, cols=40), block_q=1, block_kv=16, validate="none")
    yield "norm", nl.compile(norms.rms_norm_quantize(rows=4, cols=48), validate="none")


@pytest.fixture(scope="module", params=["causal", "remainder", "window", "decode", "softmax", "norm"])
def kernel(request):
    return next(kernel for name, kernel in kernels() if name == request.param)


@pytest.mark.one_in(6)
def test_loads_and_stores_are_those_of_the_interpreter(kernel):
    program = kernel.htile
    machine = Counting(program, kernel.operator.random_inputs(0))
    with np.errstate(all="ignore"):
        for k in program.kernels:
            machine.run(k)
    found = of_tiles(program, LARGE)
    assert found.exact
    assert {t.name for t in found.tensors} == {t.name for t in program.tensors if t.space != "chip"}
    chip = 0
    for tensor in program.tensors:
        item = itemsize(tensor.dtype)
        loaded, stored = (machine.moved[tensor.name, s] * item for s in (False, True))
        if tensor.space == "chip":
            chip += loaded + stored
            continue
        (counted,) = (t for t in found.tensors if t.name == tensor.name)
        assert (counted.loaded, counted.stored) == (loaded, stored), tensor.name
        assert counted.written == len(machine.touched.get((tensor.name, True), ())) * item
        if tensor.space == "input":  # everything fits into the cache
            assert counted.read == len(machine.touched.get((tensor.name, False), ())) * item
        else:  # a kernel has just written it
            assert counted.read == 0
    assert found.chip == chip


PASSES = """program two(x) -> y
  input   x  float32[i: 8, j: 32]
  output  y  float32[i: 8, j: 32]
  chip    s  float32[i: 8]

kernel two  grid (i0: 8)
    s[i0:i0+1] = 0.0
    for j0 in range(2):
        s[i0:i0+1] = s[i0:i0+1] + reduce(sum, x[i0:i0+1, j0*16:j0*16+16], dim=1)
    for j1 in range(2):
        y[i0:i0+1, j1*16:j1*16+16] = x[i0:i0+1, j1*16:j1*16+16] * s[i0:i0+1, NewAxis]
"""


# Four rows of 128 bytes run side by side: the second pass finds them if the cache holds the first pass.
@pytest.mark.parametrize(
    ("resident", "cache", "times"), [(4, 512, 1), (4, 511, 2), (1, 128, 1), (8, 1024, 1), (8, 600, 2)]
)
def test_a_second_pass_reads_again_what_the_cache_has_lost(resident, cache, times):
    found = of_tiles(from_text(PASSES), Chip(resident, cache))
    x, y = found.tensors
    assert (x.bytes, x.loaded, x.read) == (1024, 2048, 1024 * times)
    assert (y.stored, y.written, y.read) == (1024, 1024, 0)


SHARED = """program product(a, b) -> c
  input   a  float16[i: 64, k: 32]
  input   b  float16[k: 32, j: 64]
  output  c  float32[i: 64, j: 64]

kernel product  grid (i0: 4, j0: 4)
    c[i0*16:i0*16+16, j0*16:j0*16+16] = dot(a[i0*16:i0*16+16, 0:32], b[0:32, j0*16:j0*16+16])
"""


# The first grid axis is the fastest: a wave of 4 blocks reads all of a and one column of b, and stores 4 KiB.
@pytest.mark.parametrize(
    ("cache", "a", "b"), [(1 << 20, 4096, 4096), (4096 + 1024 + 4096, 4096, 4096), (8192, 4 * 4096, 4096)]
)
def test_blocks_of_a_wave_share_what_they_read(cache, a, b):
    found = of_tiles(from_text(SHARED), Chip(4, cache))
    read = {t.name: t.read for t in found.tensors}
    assert read == {"a": a, "b": b, "c": 0}
    assert {t.name: t.loaded for t in found.tensors} == {"a": 4 * 4096, "b": 4 * 4096, "c": 0}
    assert found.products == found.operations == 2 * 64 * 64 * 32


@pytest.mark.nightly
def test_with_few_touches_to_look_at_each_kernel_reads_a_byte_once():
    """The keys of attention, read by many programs, do not fit into a small cache; the bound counts them once."""
    op = attention.full(batch=1, heads=2, q_len=256, kv_len=512, head_dim=16)
    kernel = nl.compile(op, "rolling_update", block_q=32, block_kv=32)
    small = Chip(4, 8192.0)
    whole, once = (of_tiles(kernel.htile, small, most) for most in (1 << 20, 1 << 6))
    inputs = sum(2 * prod(t.shape) for t in kernel.operator.inputs)
    assert (once.read, once.written) == (inputs, whole.written)
    assert whole.read > once.read
    assert kernel_traffic(kernel.htile, DEFAULT).hbm == kernel.traffic(DEFAULT, blocks=1).kernel.hbm
