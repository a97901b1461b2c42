"""Loop partition for masks, from the operator to the numbers: which tiles run, with which masks, and what comes out."""

from __future__ import annotations

import re

import by_name
import numpy as np
import pytest
from index_values import value
from neptune_widgets.static_view import html

import neptune_lab as nl
from neptune_lab.htile.nodes import Elementwise, For, Int, Store
from neptune_lab.htile.printer import to_text
from neptune_lab.htile.walk import loops_in
from neptune_lab.htile.words import kinds
from neptune_lab.htile_passes import partition_masked_loops as partition
from neptune_lab.htile_passes import unmask_tiles_by_data as unmasking
from neptune_lab.operators import attention
from neptune_lab.pipeline.validate import check
from neptune_lab.trace import from_json, links, to_json

TOLERANCE = 1e-3  # relative, Frobenius norm, fp16 inputs
TILES = {"block_q": 16, "block_kv": 16}
# Passes behind the partition that give its loops another form: a part of one tile becomes straight code, and the grid
# runs backwards.  Without them the source shows every part as the loop that it is.
AS_LOOPS = {"disable_passes": ("unroll_single_parts", "longest_first")}


def window(b, h, q, kv):
    return (kv <= q) & (q - kv < 40)


def narrow(b, h, q, kv):
    return (kv <= q) & (q - kv < 5)


def both_sides(b, h, q, kv):
    return (q - kv < 24) & (kv - q < 40)


def prefix(b, h, q, kv):
    return (kv <= q) | (kv < 37)


def heads(b, h, q, kv):
    return (h < 1) | (kv <= q)


def heads_or_window(b, h, q, kv):
    return (h < 1) | ((kv <= q) & (q - kv < 24))


def negated(b, h, q, kv):
    return ~((kv > q) | (kv < 20))


def residues(b, h, q, kv):
    return (kv % 3 != 1) & (kv <= q)


def documents(b, h, q, kv):
    return q // 24 == kv // 24


MASKS = [window, narrow, both_sides, prefix, heads, heads_or_window, negated, residues, documents]


def compiled(mask, q_len=70, kv_len=70, **options):
    return by_name.compile(attention.general(1, 2, q_len, kv_len, 32, mask_mod=mask), **{**TILES, **options})


def applied(kernel):
    """What `partition_masked_loops` did."""
    return next(done for done in kernel.passes if done.name == "partition_masked_loops")


def loops(kernel) -> list[For]:
    return [stmt for k in applied(kernel).program.kernels for stmt in k.body if isinstance(stmt, For)]


def visits(kernel, part: str | None = None) -> list[tuple[int, int, int]]:
    """(h, i0, j0) of every tile that the kernel visits, or that a part of its loop does, in order."""
    (launch,) = applied(kernel).program.kernels
    extents = {axis.var: axis.extent for axis in launch.grid}
    return [
        (h, i, j)
        for h in range(extents["h"])
        for i in range(extents["i0"])
        for loop in loops(kernel)
        if part is None or loop.part == part
        for j in range(*(value(b, {"h": h, "i0": i, "b": 0}) for b in (loop.start, loop.stop)))
    ]


def test_causal_visits_the_lower_triangle_and_masks_the_diagonal():
    kernel = by_name.compile(attention.causal(heads=2, seq=128, head_dim=32), **TILES, **AS_LOOPS)
    n = 8
    assert len(visits(kernel)) == 2 * n * (n + 1) // 2
    assert visits(kernel, "right edge") == [(h, i, i) for h in range(2) for i in range(n)]
    interior, edge = kernel.source.split("# interior")[1].split("# right edge")
    assert "tl.where(j[" not in interior
    assert "mask=" not in interior
    assert "tl.where(j[None, :] <= i[:, None]" in edge
    assert "mask=" not in edge.split("# out")[0], "128 divides: no tile needs a bound"


def test_a_tail_is_masked_in_the_last_tile_only():
    kernel = by_name.compile(attention.full(heads=1, seq=200, head_dim=32), block_q=64, block_kv=64, **AS_LOOPS)
    assert [(loop.part, loop.start, loop.stop) for loop in loops(kernel)] == [
        ("interior", Int(0), Int(3)),
        ("right edge", Int(3), Int(4)),
    ]
    interior = kernel.source.split("# interior")[1].split("# right edge")[0]
    assert "< 200" not in interior


def test_sizes_that_divide_without_a_mask_change_nothing():
    kernel = nl.compile(attention.full(heads=1, seq=128, head_dim=32), block_q=64, block_kv=64)
    done = applied(kernel)
    assert done.notes == ()
    assert not done.changed


# Two of the three pairs of lengths by day, in turn; all at night.
VISITS = [
    pytest.param(
        mask, *lengths, id=f"{mask.__name__}-{lengths[0]}-{lengths[1]}", marks=pytest.mark.nightly if n % 3 == m else ()
    )
    for n, mask in enumerate(MASKS)
    for m, lengths in enumerate([(70, 70), (40, 90), (64, 64)])
]


@pytest.mark.nightly
@pytest.mark.parametrize(("mask", "q_len", "kv_len"), VISITS)
def test_visited_tiles_against_all_positions(mask, q_len, kv_len):
    """Enumerated: a tile left out is false at every position, a tile that carries no mask is true at every one."""
    kernel = compiled(mask, q_len, kv_len)
    seen, interior = visits(kernel), set(visits(kernel, "interior"))
    assert len(seen) == len(set(seen)), "a tile is visited once"
    assert seen == sorted(seen), "in the order of the loop"
    inner = next((loop for loop in loops(kernel) if loop.part == "interior"), None)
    keeps_its_mask = inner is not None and any(
        isinstance(store.value, Elementwise) and store.value.op == "where"
        for store in inner.body
        if isinstance(store, Store) and store.target.tensor == "score"
    )
    affine = (lambda b, h, q, kv: kv <= q) if mask is residues else mask
    for h in range(2):
        for i in range(-(-q_len // 16)):
            for j in range(-(-kv_len // 16)):
                q, kv = np.ogrid[i * 16 : i * 16 + 16, j * 16 : j * 16 + 16]
                holds = affine(0, h, q, kv) & (kv < kv_len) & (q >= 0)
                if (h, i, j) not in seen:
                    assert not holds.any()
                if (h, i, j) in interior and not keeps_its_mask:
                    assert holds.all()


def test_window_visits_a_band():
    kernel = by_name.compile(attention.general(1, 1, 256, 256, 32, mask_mod=window), **TILES, **AS_LOOPS)
    # Rows of one tile see 16 + 39 columns: the tile of the diagonal and three before it.
    assert len(visits(kernel)) == 1 + 2 + 3 + 4 * 13
    assert [loop.part for loop in loops(kernel)] == ["left edge", "interior", "right edge"]
    left, right = kernel.source.split("# left edge")[1].split("# interior")[0], kernel.source.split("# right edge")[1]
    assert "< 40" in left
    assert "j[None, :] <= i" not in left, "columns of the left edge are before the diagonal"
    assert "< 40" not in right.split("# out")[0], "the diagonal's tile is inside the window"


@pytest.mark.nightly
def test_a_head_with_a_window_skips_what_one_without_visits():
    seen = visits(compiled(heads_or_window, 128, 128))
    assert [(i, j) for h, i, j in seen if h == 0] == [(i, j) for i in range(8) for j in range(8)]
    assert [(i, j) for h, i, j in seen if h == 1] == [(i, j) for i in range(8) for j in range(max(0, i - 2), i + 1)]


@pytest.mark.one_in(12)
@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m.__name__)
def test_numbers(mask):
    assert compiled(mask).relative_error() < TOLERANCE


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("q_len", "kv_len"), [(33, 77), (77, 33), (48, 48)])
@pytest.mark.parametrize(("block_q", "block_kv"), [(32, 16), (16, 32)])
def test_causal_numbers_with_unequal_tiles(q_len, kv_len, block_q, block_kv):
    """77 queries on 33 keys: the first 44 rows see nothing, their first tiles have no iteration, and stay NaN."""
    op = attention.causal(heads=1, q_len=q_len, kv_len=kv_len, head_dim=32)
    kernel = nl.compile(op, block_q=block_q, block_kv=block_kv)
    assert kernel.relative_error() < TOLERANCE
    if q_len > kv_len:
        assert any(loop.part == "right edge" for loop in loops(kernel))


def test_the_record_and_the_page_hold_the_proof():
    trace = by_name.compile(attention.causal(heads=1, seq=40, head_dim=16), **TILES).trace
    notes = {p.name: p.notes for p in trace.kernel.passes}
    assert not notes["hoist_invariant_loads"]
    proof = notes["partition_masked_loops"]
    assert "interior 0 .. i0; right edge i0 .. i0+1" in proof[0]
    assert any(
        re.search(r"true on whole tiles for j0 in 0 \.\. i0, false .* outside j0 in 0 \.\. i0\+1", x) for x in proof
    )
    assert "    s_sum = s_sum" in proof
    assert "  assumed: 0 times v counts as 0, so v is finite" in proof
    assert {p.name: p.notes for p in from_json(to_json(trace)).kernel.passes}["partition_masked_loops"] == proof
    assert "Proof: partition masked loops" in html(trace)
    assert "    s_sum = s_sum" in html(trace)


@pytest.mark.nightly
@pytest.mark.parametrize("mask", [window, prefix], ids=lambda m: m.__name__)
def test_parts_are_linked(mask):
    assert links(compiled(mask).trace) == ()


def test_unknown_conditions_are_named():
    notes = applied(compiled(residues)).notes
    assert any("% 3 != 1: unknown" in line for line in notes)


def test_golden_window(golden):
    kernel = nl.compile(attention.general(1, 2, 200, 200, 64, mask_mod=window), block_q=16, block_kv=16)
    done = applied(kernel)
    golden("attention_window.partition.txt", "\n".join(done.notes) + "\n\n" + to_text(done.program))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("written", "compared"),
    [
        (lambda b, h, q, kv: (q >= kv) & (abs(q - kv) < 40), lambda b, h, q, kv: (q >= kv) & (q - kv < 40)),
        (lambda b, h, q, kv: abs(kv - q) < 40, lambda b, h, q, kv: (q - kv < 40) & (kv - q < 40)),
        (lambda b, h, q, kv: abs(q - 100) <= kv, lambda b, h, q, kv: (q - 100 <= kv) & (100 - q <= kv)),
    ],
    ids=["causal window", "window on both sides", "of one position"],
)
def test_an_absolute_value_bounds_the_loop_as_its_two_comparisons_do(written, compared):
    loops = []
    for mask in (written, compared):
        op = attention.general(1, 1, 256, 256, 16, mask_mod=mask, empty_rows="zero")
        kernel = nl.compile(op, block_q=32, block_kv=32)
        assert kernel.relative_error() < 1e-3
        loops.append([line.strip() for line in kernel.outline.splitlines() if line.strip().startswith("for ")])
    assert loops[0] == loops[1]
    assert loops[0]
    assert loops[0] != ["for j0 in range(8)"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("operator", "parts"), [
    (lambda: attention.general(2, 4, 1, 77, 16, None, lambda b, h, q, kv: kv > 20, kv_heads=1), 1),
    (lambda: attention.general(2, 4, 77, 77, 16, None, lambda b, h, q, kv: (kv <= q) & (q - kv < 40)), 3),
])  # fmt: skip
def test_a_loop_of_few_queries_stays_one(operator, parts):
    """It waits for memory, and each loop would start and drain the pipeline of loads again."""
    kernel = by_name.compile(operator(), "rolling_update", **TILES, disable_passes=("unroll_single_parts",))
    loops = [stmt for stmt in kernel.htile.kernels[0].body if isinstance(stmt, For)]
    assert len(loops) == parts


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("mask", "parts"), [(attention.causal, 2), (attention.window, 3)])
def test_a_short_loop_of_large_tiles_stays_one(mask, parts, monkeypatch):
    """Of up to 16 tiles: Triton would compile each copy of the body for as long as the first."""
    options = {"block_q": 64, "block_kv": 64, "validate": "none", **AS_LOOPS}
    extra = {"window": 200} if mask is attention.window else {}
    long = by_name.compile(mask(heads=2, seq=64 * 17, head_dim=128, **extra), "rolling_update", **options)
    assert len(loops(long)) == parts
    small: list[int] = []
    lower = check.lower
    monkeypatch.setattr(check, "lower", lambda *a, **k: (small.append(len(loops(made := lower(*a, **k)))), made)[1])
    check.forget()
    short = by_name.compile(
        mask(heads=2, seq=300, head_dim=128, **extra), "rolling_update", **{**options, "validate": "quick"}
    )
    assert [loop.part for loop in loops(short)] == ["whole"]
    assert "for visited" in kinds(short.htile).values(), "what the explorer says of it"
    assert short.relative_error() < TOLERANCE
    assert small == [1], "what is compared with the definition at small sizes has one loop too"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("width", "mod", "parts"), [
    (256, None, ["whole"]),
    (256, lambda score, b, h, q, kv: 30 * (score / 30).tanh(), ["left edge", "interior", "right edge"]),
    (128, None, ["left edge", "interior", "right edge"]),
])  # fmt: skip
def test_a_loop_of_documents_with_wide_tiles_stays_one(width, mod, parts, monkeypatch):
    """Where Triton would compile three of its bodies for longer than FlexAttention compiles two."""
    monkeypatch.setattr(unmasking, "FEWEST_TILES", 2)
    monkeypatch.setattr(partition, "SHORT_LOOP", 0)
    monkeypatch.setattr(partition, "WIDE_TILES", partition.WIDE_TILES // 4)  # of 16 rows
    ids = np.arange(75, dtype="int32") // 40
    operator = attention.general(1, 1, 75, 75, width, mod, lambda b, h, q, kv: (ids[q] == ids[kv]) & (kv <= q))
    kernel = by_name.compile(operator, "rolling_update", validate="none", **TILES, **AS_LOOPS)
    assert [loop.part for part in kernel.htile.kernels for loop in loops_in(part.body)] == parts
    assert parts != ["whole"] or kernel.relative_error() < TOLERANCE
