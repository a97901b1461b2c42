"""The tiles of keys that a tile of packed queries sees, found from offsets in place of a module's own launches."""

from __future__ import annotations

import ast
import random

import pytest
import torch

from neptune_lab.runtime import token_places
from neptune_lab.runtime.packed_tiles import tiles_in

ENDS = """
def k_tiles_ends(c_ptr, k_tiles_ends_column_min_ptr, k_tiles_ends_column_max_ptr, n):
    t = tl.program_id(0)
    lanes = tl.arange(0, 32)
    k_tiles_ends_column_min_base = k_tiles_ends_column_min_ptr + tl.cast(t, tl.int64)
    k_tiles_ends_column_max_base = k_tiles_ends_column_max_ptr + tl.cast(t, tl.int64)
    c_at = tl.minimum(lanes + (t * 32), n + -1)
    k_tiles_ends_rows = tl.load(c_ptr + c_at, mask=(c_at >= 0) & (c_at < n), other=0)
    tl.store(k_tiles_ends_column_min_base, tl.min(k_tiles_ends_rows, axis=0))
    tl.store(k_tiles_ends_column_max_base, tl.max(k_tiles_ends_rows, axis=0))

def k_tiles(a_ptr, k_tiles_ends_column_min_ptr, k_tiles_ends_column_max_ptr, k_tiles_first_ptr, k_tiles_last_ptr, m, n):
    i0 = tl.program_id(0)
    tiles = tl.arange(0, 4096)
    lanes = tl.arange(0, 64)
    k_tiles_first_base = k_tiles_first_ptr + tl.cast(i0, tl.int64)
    k_tiles_last_base = k_tiles_last_ptr + tl.cast(i0, tl.int64)
    x_at = tl.minimum(tiles, (n + 31) // 32 + -1)
    k_tiles_column_min = tl.load(
        k_tiles_ends_column_min_ptr + x_at, mask=(x_at >= 0) & (x_at < (n + 31) // 32), other=0
    )
    y_at = tl.minimum(tiles, (n + 31) // 32 + -1)
    k_tiles_column_max = tl.load(
        k_tiles_ends_column_max_ptr + y_at, mask=(y_at >= 0) & (y_at < (n + 31) // 32), other=0
    )
"""
ROWS = """\
    a_at = tl.minimum(lanes + (i0 * 64), m + -1)
    k_tiles_rows = tl.load(a_ptr + a_at, mask=(a_at >= 0) & (a_at < m), other=0)
    k_tiles_row_min = tl.min(k_tiles_rows, axis=0)
    k_tiles_row_max = tl.max(k_tiles_rows, axis=0)
    k_tiles_may_hold = (
        (k_tiles_row_min <= k_tiles_column_max) & (k_tiles_row_max >= k_tiles_column_min) & (tiles < (n + 31) // 32)
    )
    k_tiles_begin = tl.min(tl.where(k_tiles_may_hold, tiles, (n + 31) // 32 + -1), axis=0)
    tl.store(k_tiles_first_base, k_tiles_begin)
    k_tiles_end = tl.maximum(tl.max(tl.where(k_tiles_may_hold, tiles + 1, 0), axis=0), k_tiles_begin + 1)
    tl.store(k_tiles_last_base, k_tiles_end)
"""
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
KERNEL = """
def k(q_ptr, k_ptr, a_ptr, c_ptr, k_tiles_first_ptr, k_tiles_last_ptr, out_ptr, m, n):
    i0 = tl.program_id(0)
"""
FROM_ENDS = ENDS + ROWS + KERNEL + ENTRY
AT_ONCE = (
    """
def k_tiles(a_ptr, c_ptr, k_tiles_first_ptr, k_tiles_last_ptr, m, n):
    i0 = tl.program_id(0)
    tiles = tl.arange(0, 16)
    lanes = tl.arange(0, 64)
    lanes_2 = tl.arange(0, 32)
    k_tiles_first_base = k_tiles_first_ptr + i0
    k_tiles_last_base = k_tiles_last_ptr + i0
    c_at = tl.minimum(tiles[:, None] * 32 + lanes_2[None, :] + 0, n + -1)
    k_tiles_columns = tl.load(c_ptr + c_at, mask=(c_at >= 0) & (c_at < n), other=0)
    k_tiles_column_min = tl.min(k_tiles_columns, axis=1)
    k_tiles_column_max = tl.max(k_tiles_columns, axis=1)
"""
    + ROWS
    + KERNEL
    + ENTRY.replace("    k_tiles_ends[((n + 31) // 32,)](c, k_tiles_ends_column_min, k_tiles_ends_column_max, n)\n", "")
    .replace("    k_tiles_ends_column_min = torch.empty(((n + 31) // 32,), dtype=torch.int32, device=q.device)\n", "")
    .replace("    k_tiles_ends_column_max = torch.empty(((n + 31) // 32,), dtype=torch.int32, device=q.device)\n", "")
    .replace("(a, k_tiles_ends_column_min, k_tiles_ends_column_max,", "(a, c,")
)


def found_in(text: str, of: tuple[str, str] = ("a", "c"), sizes: tuple[str, str] = ("m", "n")):
    launcher = ast.parse(text).body[-1]
    assert isinstance(launcher, ast.FunctionDef)
    return tiles_in(text, launcher, of, sizes)


@pytest.mark.parametrize("text", [FROM_ENDS, AT_ONCE], ids=["from ends", "at once"])
def test_the_launches_are_found_and_left_out(text: str):
    found = found_in(text)
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


def test_of_numbers():
    text = AT_ONCE.replace(", m, n)", ")").replace("    m = q.shape[2]\n    n = k.shape[2]\n", "")
    numbers = {"(n + 31) // 32 + -1": "2", "(n + 31) // 32": "3", "(m + 63) // 64": "2", "n + -1": "69", "m + -1": "99"}
    for old, new in {**numbers, "< m)": "< 100)", "< n)": "< 70)", "2, m, 8": "2, 100, 8"}.items():
        assert old in text
        text = text.replace(old, new)
    found = found_in(text, sizes=("100", "70"))
    assert found is not None
    assert (found.rows, found.columns, len(found.left)) == (64, 32, 5)
    assert found_in(text, sizes=("100", "71")) is found_in(text, sizes=("129", "70")) is None


@pytest.mark.parametrize("text", [FROM_ENDS, AT_ONCE], ids=["from ends", "at once"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k_tiles_row_min <= k_tiles_column_max", "k_tiles_row_min < k_tiles_column_max"),
        ("(k_tiles_row_min <= k_tiles_column_max) & ", ""),  # another comparison of the two
        ("tl.load(a_ptr", "tl.load(c_ptr"),
        ("i0 * 64", "i0 * 32"),
        ("i0 * 64", "i0 * 64 + 1"),
        ("lanes = tl.arange(0, 64)", "lanes = tl.arange(0, 32)"),
        ("(m + 63) // 64,)](a", "(m + 63) // 64 * 2,)](a"),  # its tiles are not one after another
        ("(m + 63) // 64,)](a", "(m + 63) // 64, 2)](a"),
        ("](a, ", "](c, "),
        ("tiles + 1, 0)", "tiles + 2, 0)"),
        ("    tl.store(k_tiles_last_base, k_tiles_end)\n", "    tl.store(k_tiles_last_base, k_tiles_begin)\n"),
        ("    tl.store(k_tiles_last_base, k_tiles_end)\n", "    tl.store(k_tiles_last_base, k_tiles_end)\n    x = 1\n"),
        ("k_tiles_first_base = k_tiles_first_ptr", "k_tiles_first_base = k_tiles_last_ptr"),
        ("+ -1)", "+ -2)"),
        ("(n + 31) // 32", "(n + 63) // 32"),
        ("tl.program_id(0)", "tl.program_id(1)"),
    ],
)
def test_kernels_of_another_form_stay(text: str, old: str, new: str):
    assert text.count(old)
    assert found_in(text.replace(old, new)) is None


def test_of_other_tensors_or_sizes():
    assert found_in(FROM_ENDS, of=("c", "a")) is found_in(FROM_ENDS, of=("a", "a")) is None
    assert found_in(FROM_ENDS, sizes=("n", "n")) is found_in(FROM_ENDS, sizes=("n", "m")) is None
    assert found_in(FROM_ENDS.replace("t * 32", "t * 64")) is None
    assert found_in(FROM_ENDS.replace("column_max_base, tl.max", "column_max_base, tl.min")) is None


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
