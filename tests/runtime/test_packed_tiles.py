"""The tiles of keys that a tile of packed queries sees, found from offsets in place of a module's own launches."""

from __future__ import annotations

import ast
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention
from neptune_lab.pytorch.stored import StoredKernel, _digest
from neptune_lab.runtime import token_places
from neptune_lab.runtime.packed_tiles import tiles_in
from neptune_lab.runtime.spec import TileLaunches
from neptune_lab.tensor_spec import TensorSpec

A, C = np.zeros(40, "int32"), np.zeros(80, "int32")

ENTRY = """
def entry(q, k, a, c):
    m = q.shape[2]
    n = k.shape[2]
    k_tiles_ends_column_min = torch.empty(((n + 31) // 32,), dtype=torch.int32, device=q.device)
    k_tiles_ends_column_max = torch.empty(((n + 31) // 32,), dtype=torch.int32, device=q.device)
    k_tiles_ends[((n + 31) // 32,)](c, k_tiles_ends_column_min, k_tiles_ends_column_max, n)
    k_tiles_first = torch.empty(((m + 63) // 64,), dtype=torch.int32, device=q.device)
    k_tiles_last = torch.empty(((m + 63) // 64,), dtype=torch.int32, device=q.device)
    k_tiles[((m + 63) // 64,)](a, k_tiles_ends_column_min, k_tiles_ends_column_max, k_tiles_first, k_tiles_last, m, n)
    out = torch.empty((1, 2, m, 8), dtype=torch.float16, device=q.device)
    k[((m + 63) // 64, 2)](q, k, a, c, k_tiles_first, k_tiles_last, out, m, n)
    return out
"""
FOUND = TileLaunches(("k_tiles_ends", "k_tiles"), "k_tiles_first", "k_tiles_last", "a", "c", 64, 32)


def vector(name: str, size: str) -> TensorSpec:
    return TensorSpec(name, (128,), "int32", sizes=(size,))


def found_in(
    said: TileLaunches = FOUND, text: str = ENTRY, of: tuple[str, str] = ("a", "c"), sizes: tuple[str, str] = ("m", "n")
):
    launcher = ast.parse(text).body[-1]
    assert isinstance(launcher, ast.FunctionDef)
    return tiles_in([said], [vector("a", "m"), vector("c", "n")], launcher, of, sizes)


def test_the_launches_are_left_out():
    found = found_in()
    assert found is not None
    assert (found.first, found.last, found.rows, found.columns) == ("k_tiles_first", "k_tiles_last", 64, 32)
    assert [ast.unparse(stmt).partition("((")[0] for stmt in found.left] == [
        "m = q.shape[2]",
        "n = k.shape[2]",
        "k_tiles_first = torch.empty",
        "k_tiles_last = torch.empty",
        "out = torch.empty",
        "k[(m + 63) // 64, 2](q, k, a, c, k_tiles_first, k_tiles_last, out, m, n)",
        "return out",
    ]


def test_launches_that_others_need_stay():
    """A part of them, one that the launcher does not have, and one whose tensors another kernel reads too."""
    for kernels in (("k_tiles_ends",), ("k_tiles",), ("k_tiles_ends", "k_tiles", "other"), ()):
        assert found_in(replace(FOUND, kernels=kernels)) is None
    assert found_in(text=ENTRY.replace("(q, k, a, c, ", "(q, k, a, c, k_tiles_ends_column_min, ")) is None
    assert found_in(text=ENTRY.replace("    return out", "    return out, k_tiles_ends_column_max")) is None
    assert found_in(replace(FOUND, first="out")) is None


def test_of_other_tensors_or_sizes():
    assert found_in(of=("c", "a")) is found_in(of=("a", "a")) is found_in(replace(FOUND, rows="c")) is None
    assert found_in(sizes=("n", "n")) is found_in(sizes=("n", "m")) is found_in(sizes=("128", "n")) is None


def test_a_kernel_says_what_it_finds_in_what_is_saved():
    """Of an entry without it, as those before it was written, no launch is left out."""
    op = attention.general(1, 1, 40, 80, 4, mask_mod=lambda b, h, q, kv: A[q] == C[kv], dtype="float32")
    spec = nl.compile(op, "rolling_update", block_q=16, block_kv=16, validate="none").spec
    (found,) = spec.tiles
    assert (found.row_extent, found.column_extent, found.kernels) == (16, 16, ("attention_general_tiles",))
    assert [next(t.shape for t in spec.inputs if t.name == name) for name in (found.rows, found.columns)] == [
        (40,),
        (80,),
    ]
    entry = StoredKernel(replace(spec, inputs=spec.inputs[:3]), (), ("a",), "b")
    data = entry.to_json("key")
    assert StoredKernel.from_json(data, "key").spec.tiles == (found,)
    del data["entry"]["spec"]["tiles"]
    old = StoredKernel.from_json({**data, "digest": _digest("key", data["entry"])}, "key")
    launcher = next(stmt for stmt in ast.parse(spec.text).body if getattr(stmt, "name", "") == spec.entry)
    assert isinstance(launcher, ast.FunctionDef)
    of = found.rows, found.columns
    assert tiles_in(spec.tiles, spec.inputs, launcher, of, ["40", "80"]) is not None
    assert tiles_in(old.spec.tiles, spec.inputs, launcher, of, ["40", "80"]) is None


def offsets(drawn: random.Random, total: int, ends: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([0, *sorted(drawn.choices(range(total + 1), k=ends - 2)), total], dtype=dtype)


def bounds(of_q: torch.Tensor, of_k: torch.Tensor, tokens: int, keys: int, rows: int, columns: int):
    """What the kernel of places finds: the sequences, and the first tile and the last one plus 1 of each tile."""
    tiles = -(-tokens // rows)
    first, last = (torch.full((tiles + 3,), -7, dtype=torch.int32) for _ in range(2))
    of, other = (torch.empty(n, dtype=torch.int32) for n in (tokens, keys))
    grid = -(-max(tokens, keys) // token_places.TOKENS.value), 3
    token_places._places[grid](
        *(of_q, of_k, of, other, of, other, first, last, tokens, keys, of_q.shape[0], rows, columns)
    )
    assert (first[tiles:] == -7).all()
    assert (last[tiles:] == -7).all()
    return of, other, first[:tiles], last[:tiles]


@pytest.mark.parametrize("seed", range(8))
def test_tiles_of_offsets(seed: int):
    """From the first key of a tile's sequences to the last one; also if offsets do not reach from 0 to the end."""
    drawn = random.Random(seed)
    tokens, keys, ends = drawn.randint(2, 600), drawn.randint(2, 600), drawn.randint(2, 30)
    rows, columns = drawn.choice([1, 16, 64]), drawn.choice([16, 128])
    of_q = offsets(drawn, tokens, ends, torch.int32)
    of_k = offsets(drawn, keys, ends, drawn.choice([torch.int32, torch.int64]))
    if seed >= 6:
        of_q[-1] -= drawn.randint(0, tokens - int(of_q[-2]))
        of_k[0] = drawn.randint(0, int(of_k[1]))
    of, other, first, last = bounds(of_q, of_k, tokens, keys, rows, columns)
    own, theirs = (
        torch.bucketize(torch.arange(n), o[1:].long().contiguous(), right=True)
        for n, o in ((tokens, of_q), (keys, of_k))
    )
    assert torch.equal(of.long(), own)
    assert torch.equal(other.long(), theirs)
    for n, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        least, most = own[n * rows], own[min(n * rows + rows, tokens) - 1]
        seen = ((theirs >= least) & (theirs <= most)).nonzero().flatten().tolist()
        if seen:
            assert (begin, end) == (seen[0] // columns, seen[-1] // columns + 1)
        else:
            assert 0 <= begin == end - 1 < -(-keys // columns)


def test_wrong_offsets_give_tiles_that_there_are():
    """(a GPU's are not checked)"""
    drawn = random.Random(0)
    for _ in range(8):
        of_q = torch.tensor([drawn.randint(-(2**31), 2**31 - 1) for _ in range(5)], dtype=torch.int32)
        of_k = torch.tensor([drawn.randint(-(2**62), 2**62) for _ in range(5)])
        *_, first, last = bounds(of_q, of_k, 70, 90, 16, 32)
        assert ((first >= 0) & (first < last) & (last <= 3)).all()
