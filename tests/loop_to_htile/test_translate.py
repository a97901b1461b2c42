"""Whole programs in HTile: readable, verified, and with the numbers of the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import small_operators as small  # pyright: ignore[reportMissingImports]
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import TileError
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile.nodes import Dot, Elementwise, For, Kernel, Reduce, Store
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.printer import to_text
from neptune_lab.htile.verify import verify
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.htile_passes.keep_stored_tiles import keep_stored_tiles
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.loop_ir.tree import blocks, find_block
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.loop_to_htile import translate
from neptune_lab.operators import attention, custom, softmax
from neptune_lab.pipeline.lower import translated_and_verified

EACH = pytest.mark.parametrize("template", TEMPLATES)


def scheduled(template: str, op, block_q: int = 2, block_kv: int = 2) -> Schedule:
    return TEMPLATES[template](Schedule(op), block_q=block_q, block_kv=block_kv)


def all_stores(program: TileProgram) -> list[Store]:
    return [s for k in program.kernels for s in stores(k.body)]


def assert_right(sch: Schedule, *seeds: int) -> TileProgram:
    """The program in HTile, verified, gives the definition's outputs in float64."""
    tiles = translate(sch.program)
    verify(tiles)
    for seed in seeds or (0,):
        inputs = sch.operator.random_inputs(seed)
        found = interpret(tiles, inputs, dtype="float64")
        expected = run_wide(sch.definition, inputs)
        for name in sch.definition.outputs:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12)
    return tiles


# -- bounds ----------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("factors", [(None, 4), (2, None)])
def test_iterations_past_the_end_of_a_rolling_loop_change_nothing(
    template: str, factors: tuple[int | None, int | None]
):
    """Three tiles in a loop of 1 x 4 or 2 x 2: the fourth has no element, and no maximum, which is read at the end."""
    sch = scheduled("rolling_update", small.operator(small.late_reader(4, 6)))
    loop = next(name for block in sch.blocks for name in sch.loops(block) if name.endswith(".j0"))
    sch.split(loop, factors)
    assert_right(sch, 0, 1)


@pytest.mark.parametrize("factors", [(3, None), (None, 2), (None, 4)])
def test_a_reduction_through_tags_skips_what_is_past_its_end(factors: tuple[int | None, int | None]):
    """Rows of negative numbers: a 0 in place of the missing elements would be their maximum."""
    definition = small.pair(lambda c, r: te.exp(te.max(c, 0.0) - r))
    sch = small.schedule(definition, lambda rng, shape: -1 - rng.random(shape))
    sch.fuse_under("r", "o.i")
    sch.materialize_tags("r")
    sch.retire_tags("r")
    sch.split("r.j", factors)
    inputs = sch.operator.random_inputs(0)
    found = interpret(keep_stored_tiles(assert_right(sch)), inputs, dtype="float64")
    np.testing.assert_allclose(found["o"], run_wide(sch.definition, inputs)["o"], rtol=1e-9)


def test_splits_that_are_past_the_end_hold_the_start_value():
    """Two elements in four splits of one: what the last two store is what nothing was folded into."""
    sch = small.schedule(small.pair(lambda c, r: te.exp(c - r), m=2))
    sch.split("r.j", (4, None))
    sch.split_k_update("o", "r.j0")
    assert_right(sch, 0, 1)


def test_a_tile_that_a_dot_reads_again_is_0_past_the_end():
    """s is stored, for a later kernel, and multiplied by v: of the second tile's 5 columns, 2 do not exist."""
    q, k, v = (te.placeholder((n, 4), "float32", name=name) for name, n in (("q", 5), ("k", 8), ("v", 8)))
    d, j, c = te.reduce_axis((0, 4), name="d"), te.reduce_axis((0, 8), name="j"), te.reduce_axis((0, 8), name="c")
    s = small.compute((5, 8), lambda i, j: te.sum(q[i, d] * k[j, d], axis=d), name="s")
    r = small.compute((5,), lambda i: te.sum(s[i, c], axis=c), name="r")
    acc = small.compute((5, 4), lambda i, e: te.sum(s[i, j] * v[j, e], axis=j), name="acc")
    o = small.compute((5, 4), lambda i, e: acc[i, e] / (te.abs(r[i]) + 0.5), name="o")
    kernel = nl.compile(custom("chain", [q, k, v], [o]), "rolling_update", block_kv=5, validate="none")
    inputs = kernel.schedule.operator.random_inputs(0)
    expected = run_wide(kernel.schedule.definition, inputs)["o"]
    np.testing.assert_allclose(interpret(kernel.htile, inputs, dtype="float64")["o"], expected, rtol=1e-6)


# -- text ------------------------------------------------------------------------------------------


@EACH
def test_golden_tiles(template: str, golden: Callable[[str, str], None]):
    op = attention.causal(batch=1, heads=1, q_len=4, kv_len=4, head_dim=2)
    golden(f"loop_to_htile_{template}.txt", to_text(translate(scheduled(template, op).program)))


def test_golden_tiles_of_figure_1(golden: Callable[[str, str], None]):
    golden("loop_to_htile_figure1.txt", to_text(translate(scheduled("rolling_update", softmax.figure1(4, 6)).program)))


# -- numbers ---------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize(("rows", "cols", "block"), [(4, 8, 2), (3, 7, 2), (5, 5, 4), (1, 6, 4), (2, 3, 64)])
def test_figure_1(template: str, rows: int, cols: int, block: int):
    assert_right(scheduled(template, softmax.figure1(rows, cols), block, block), 0, 1)


def test_a_tile_of_one_element_past_the_end_holds_the_identity():
    """Splits of 2 over 3 columns, one column a tile: no loop folds the last tile, and it is past the end."""
    sch = TEMPLATES["split_k_update"](
        Schedule(softmax.figure1(2, 3)), block_q=1, block_kv=1, config=nl.SplitKConfig(splits=2)
    )
    assert_right(sch)


def test_a_loop_that_is_folded_and_kept_is_refused():
    """Row and column made one loop, then tiled: what is stored and what is folded run along the same loop."""
    sch = Schedule(softmax.figure1(3, 3))
    sch.fuse("s_max", "i", "j")
    sch.tile("s_max", ij=3)
    with pytest.raises(TileError, match="folds along ij0, which is also a dimension of what it stores") as refused:
        translate(sch.program)
    assert refused.value.node == "s_max"
    assert "undo the step that fused" in str(refused.value.help)


def test_a_refusal_of_the_verifier_says_which_steps_to_look_at(monkeypatch: pytest.MonkeyPatch):
    """The verifier sees tiles, not steps."""

    def refuse(_: TileProgram) -> None:
        raise TileError("tile:s_sum: operands do not broadcast")

    monkeypatch.setattr("neptune_lab.pipeline.lower.verify", refuse)
    with pytest.raises(TileError, match="operands do not broadcast") as refused:
        translated_and_verified(scheduled("rolling_update", softmax.figure1(4, 6)))
    assert refused.value.node is not None
    assert "Schedule.undo()" in str(refused.value.help)


@pytest.mark.one_in(6)
@EACH
@pytest.mark.parametrize(
    ("q_len", "kv_len", "block_q", "block_kv"),
    [(4, 8, 2, 4), (5, 7, 2, 4), (5, 7, 4, 2), (1, 9, 4, 4), (3, 3, 16, 16)],
)
def test_attention(template: str, q_len: int, kv_len: int, block_q: int, block_kv: int):
    op = attention.causal(2, 2, q_len=q_len, kv_len=kv_len, head_dim=3)
    assert_right(scheduled(template, op, block_q, block_kv))


def late_keys(b, h, q, kv):
    return (kv >= 5) & (q != 1)


def soft(score, b, h, q, kv):
    from neptune_lab.operators.math import tanh

    return tanh(score) - (q - kv) * 0.5


@pytest.mark.one_in(2)
@EACH
def test_masks_and_score_mods(template: str):
    """The first tiles of every row are masked throughout, and row 1 sees nothing: NaN, as defined."""
    op = attention.general(1, 1, 3, 7, 2, score_mod=soft, mask_mod=late_keys)
    tiles = assert_right(scheduled(template, op), 0, 1)
    out = interpret(tiles, op.random_inputs(0), dtype="float64")["out"]
    assert np.isnan(out[0, 0]).any(axis=1).tolist() == [False, True, False]


# -- shape of the result ---------------------------------------------------------------------------


@EACH
def test_every_block_is_a_tile_store_with_its_name(template: str):
    sch = scheduled(template, attention.full(1, 1, q_len=4, kv_len=4, head_dim=2))
    tiles = translate(sch.program)
    names = [b.name for b in blocks(sch.program)]
    assert [s.origin for s in all_stores(tiles)] == names
    assert [s.node_id for s in all_stores(tiles)] == [f"tile:{n}" for n in names]


def test_rolling_update_is_one_kernel_with_one_loop_and_split_k_two():
    op = attention.full(1, 1, q_len=4, kv_len=4, head_dim=2)
    (one,) = translate(scheduled("rolling_update", op).program).kernels
    assert one.name == "attention_full"
    loops = [s for s in one.body if isinstance(s, For)]
    assert len(loops) == 1
    assert not any(isinstance(s, For) for s in loops[0].body)
    first, second = translate(scheduled("split_k_update", op).program).kernels
    assert (first.name, second.name) == ("attention_full_local", "attention_full_combine")
    assert first.grid[0].var == "j0"


def test_scores_stay_on_chip_and_multiply_as_dots():
    tiles = translate(scheduled("rolling_update", attention.full(1, 1, q_len=4, kv_len=4, head_dim=2)).program)
    spaces = {t.name: t.space for t in tiles.tensors}
    assert {n for n, s in spaces.items() if s != "chip"} == {"q", "k", "v", "out"}
    dots = {s.origin for s in all_stores(tiles) if any(isinstance(e, Dot) for e in subexpressions(s.value))}
    assert dots == {"qk", "acc_tile"}


@pytest.mark.parametrize(("cols", "masked"), [(6, False), (7, True)])
def test_folds_are_masked_only_where_sizes_do_not_divide(cols: int, masked: bool):
    tiles = translate(scheduled("rolling_update", softmax.figure1(4, cols), 2, 3).program)
    folds = [e for s in all_stores(tiles) for e in subexpressions(s.value) if isinstance(e, Reduce)]
    assert len(folds) == 2
    for e in folds:
        assert (isinstance(e.arg, Elementwise) and e.arg.op == "where") is masked


def test_launch_hints_come_from_the_outermost_loop():
    sch = scheduled("rolling_update", softmax.figure1(4, 6))
    sch.annotate("s_max.i0", "num_warps", 2)
    sch.annotate("s_max.i0", "num_stages", 5)
    (kernel,) = translate(sch.program).kernels
    assert isinstance(kernel, Kernel)
    assert (kernel.num_warps, kernel.num_stages) == (2, 5)


def test_launch_hints_come_from_the_outermost_loop_where_nothing_is_on_the_grid():
    sch = Schedule(softmax.figure1(4, 6))
    sch.annotate("s_sum.i", "num_warps", 2)
    kernels = translate(sch.program).kernels
    assert [k.num_warps for k in kernels if isinstance(k, Kernel)] == [None, None, 2]


def test_a_launch_hint_inside_a_kernel_is_refused():
    sch = scheduled("rolling_update", softmax.figure1(4, 6))
    inner = next(name for name in sch.loops("s_max") if name.endswith("j0"))
    sch.annotate(inner, "num_warps", 2)
    with pytest.raises(TileError, match=r"num_warps on loop 'j0' would have no effect") as caught:
        translate(sch.program)
    assert "bound to the grid" in (caught.value.help or "")


@pytest.mark.parametrize("definition", [small.l2_norm, small.weighted, small.two_sums, small.two_producers])
def test_other_chains(definition: Callable[..., small.Definition]):
    sch = small.schedule(definition(n=5, m=7))
    sch.tile("r", i=2, j=3)
    for block in ("s", "q", "o"):
        if sch.has_block(block) and f"{block}.j" in sch.loops(block):
            sch.rolling_update(block, "r.j0")
    for name in [b.name for b in sch.program.buffers if b.tagged]:
        sch.retire_tags(name)
    for block in ("s", "q", "o"):
        if sch.has_block(block) and find_block(sch.program, block)[1].init is not None:
            sch.decompose_reduction(block, f"{block}.j0")
    sch.bind("r.i0", "blockIdx.x")
    assert_right(sch)


# -- refusals --------------------------------------------------------------------------------------


def test_tags_that_were_not_retired():
    sch = Schedule(softmax.figure1(4, 6))
    sch.tile("s_max", i=2, j=3)
    sch.rolling_update("s_sum", "s_max.j0")
    with pytest.raises(TileError, match=r"'s_max' reads a previous tag of 'xmax'") as caught:
        translate(sch.program)
    assert caught.value.help == "apply retire_tags('s_max') to the schedule first"


def test_a_reader_of_tags_that_were_not_retired():
    sch = Schedule(softmax.figure1(4, 6))
    sch.materialize_tags("s_max")
    program = sch.program
    readers = replace(program, params=("xmax", *program.params), body=program.body[1:])
    with pytest.raises(TileError, match="'s_exp' reads the scan buffer 'xmax', one value per tag"):
        translate(readers)


def test_a_start_value_inside_the_loop():
    sch = Schedule(softmax.figure1(4, 6))
    sch.tile("s_max", i=2, j=3)
    sch.rolling_update("s_sum", "s_max.j0")
    sch.retire_tags("s_max")
    with pytest.raises(TileError, match="'s_sum' carries a value over loops outside its tile") as caught:
        translate(sch.program)
    assert caught.value.help is not None
    assert "decompose_reduction('s_sum', loop)" in caught.value.help


def test_gaps_in_the_grid():
    sch = Schedule(softmax.figure1(4, 6))
    sch.bind("s_exp.i", "blockIdx.y")
    with pytest.raises(TileError, match=r"leaves blockIdx\.x free below a used grid axis") as caught:
        translate(sch.program)
    assert caught.value.help == "bind a loop to blockIdx.x"


def test_a_grid_axis_inside_other_work():
    sch = scheduled("rolling_update", softmax.figure1(4, 6))
    sch.bind("s_max_start.i1", "blockIdx.y")
    with pytest.raises(TileError, match=r"loop 'i1' is bound to blockIdx.y inside other work"):
        translate(sch.program)


def test_a_buffer_on_chip_that_two_kernels_touch():
    sch = Schedule(softmax.figure1(4, 6))
    sch.set_scope("s_exp", "shared")
    match = r"'xexp' is kept on chip \(shared\), but blocks 's_exp' and 's_sum' of different kernels touch it"
    with pytest.raises(TileError, match=match) as caught:
        translate(sch.program)
    assert caught.value.help == "set_scope('s_exp', \"global\"), or move both blocks into one nest"
    sch.set_scope("s_exp", "global")
    assert_right(sch)


def test_a_diagonal_is_gathered():
    x = small.matrix(n=4, m=4)
    y = small.compute((4,), lambda i: x[i, i], name="y")
    sch = small.schedule(([x], [y]))
    assert "y[0:4] = gather(x, iota[0:4], iota[0:4])" in to_text(translate(sch.program))
    assert_right(sch)


def test_a_step_of_two_is_gathered():
    x = small.matrix(n=4, m=8)
    y = small.compute((4, 4), lambda i, j: x[i, j * 2], name="y")
    sch = small.schedule(([x], [y]))
    assert "gather(x, iota[0:4, NewAxis], iota[NewAxis, 0:4] * 2)" in to_text(translate(sch.program))
    assert_right(sch)


def test_a_diagonal_of_what_is_on_chip_is_refused():
    x = small.matrix(n=4, m=4)
    z = small.compute((4, 4), lambda i, j: x[i, j] * 2.0, name="z")
    y = small.compute((4,), lambda i: z[i, i], name="y")
    sch = small.schedule(([x], [y]))
    sch.set_scope("z", "local")
    with pytest.raises(TileError, match="'z' is kept on chip"):
        translate(sch.program)


def test_a_tile_that_is_too_large():
    x = small.matrix(n=2048, m=1024)
    y = small.compute((2048, 1024), lambda i, j: x[i, j] + 1.0, name="y")
    with pytest.raises(TileError, match="'y' would compute a tile of 2097152 elements"):
        translate(small.operator(([x], [y])).program)


@pytest.mark.parametrize("template", ["rolling_update", "split_k_update"])
def test_what_follows_a_prefix_stays_outside_of_a_dot(template: str):
    """The fold ends at 6 of 11 rows, inside of a tile of 4; NaN behind it reaches nothing."""
    q, k, v = small.matrix("q", 4, 8), small.matrix("k", 11, 8), small.matrix("v", 11, 6)
    d, j, j2 = te.reduce_axis((0, 5), "d"), te.reduce_axis((0, 6), "j"), te.reduce_axis((0, 6), "j")
    s = te.compute((4, 6), lambda i, n: te.sum(q[i, d] * k[n, d], axis=d), name="s")
    m = te.compute((4,), lambda i: te.max(s[i, j], axis=j), name="m")
    p = te.compute((4, 6), lambda i, n: te.exp(s[i, n] - m[i]), name="p")
    o = te.compute((4, 6), lambda i, c: te.sum(p[i, j2] * v[j2, c], axis=j2), name="o")
    op = small.operator(([q, k, v], [o]))
    arrays = op.random_inputs(0)
    program = translate(TEMPLATES[template](Schedule(op), block_kv=4).program)
    expected = interpret(program, arrays)["o"]
    for name, place in (("q", np.s_[:, 5:]), ("k", np.s_[:, 5:]), ("k", np.s_[6:]), ("v", np.s_[6:])):
        arrays[name] = arrays[name].copy()
        arrays[name][place] = np.nan
    assert np.isfinite(expected).all()
    assert np.array_equal(interpret(program, arrays)["o"], expected)
