"""Programs of tiles for sizes that are known at the launch."""

import numpy as np
import pytest

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile import printer
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile.sizes import at, corners, generalized
from neptune_lab.htile_to_triton import emit
from neptune_lab.loop_schedule.templates import SplitKConfig, TileConfig
from neptune_lab.operators import attention
from neptune_lab.pipeline import compile

LENGTHS = (87, 99, 133, 181, 263)
SAMPLES = [{"n": n} for n in LENGTHS]


def causal(n: int) -> ir.Program:
    """Causal attention in tiles of 16 x 16."""
    op = attention.causal(batch=1, heads=2, seq=n, head_dim=16)
    return compile(op, "rolling_update", config=TileConfig(block_q=16, block_kv=16), validate="none").htile


@pytest.fixture(scope="module")
def program() -> ir.Program:
    return generalized([causal(n) for n in LENGTHS], SAMPLES, {16})


@pytest.mark.nightly
def test_a_program_for_all_lengths_is_the_compilers_at_each_sample(program):
    for n in LENGTHS:
        made, own = at(program, {"n": n}), causal(n)
        assert made.tensors == own.tensors
        assert [k.grid for k in made.kernels] == [k.grid for k in own.kernels]
        assert not made.sizes


def test_it_is_that_of_a_length_that_was_no_sample(program):
    inputs = attention.causal(batch=1, heads=2, seq=105, head_dim=16).random_inputs(0)
    ours, own = interpret(at(program, {"n": 105}), inputs), interpret(causal(105), inputs)
    np.testing.assert_array_equal(ours["out"], own["out"])


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 32, 33])
def test_it_is_right_at_short_lengths(program, n):
    op = attention.causal(batch=1, heads=2, seq=n, head_dim=16)
    inputs = op.random_inputs(0)
    np.testing.assert_allclose(
        interpret(at(program, {"n": n}), inputs)["out"], op.reference(*inputs.values()), atol=2e-3
    )


def test_its_text_has_the_size_for_numbers(program):
    text = printer.to_text(program)
    assert "  size    n  # known at the launch; compiled at 87" in text
    assert "float16[1, 2, i1: n, d: 16]" in text
    assert "grid (i0: (n+15)//16, h: 2, b: 1)" in text
    assert "181" not in text


def test_interior_tiles_have_no_mask(program):
    """The mask of the last tile is in the part of the loop that has the last tile."""
    lines = emit(program).text.splitlines()
    first = next(n for n, line in enumerate(lines) if "# interior" in line)
    inside = lines[first + 1 : next(n for n in range(first + 1, len(lines)) if not lines[n].startswith(" " * 8))]
    assert any("tl.load" in line for line in inside)
    assert not any("mask=" in line for line in inside)
    assert any("mask=" in line and "< n" in line for line in lines)


def test_sizes_are_arguments_of_which_triton_makes_one_version(program):
    text = emit(program).text
    assert '@triton.jit(do_not_specialize=["n"])' in text
    assert "    n = q.shape[2]" in text
    assert "[((n+15)//16, 2, 1)](q, k, v, out, n)" in text


def test_offsets_are_in_64_bits(program):
    text = emit(program).text
    assert "q_base = q_ptr + tl.cast(" in text
    assert "tl.int64) * n * 16" in text


def test_corners_have_tiles_and_their_ends(program):
    values = {sample["n"] for sample in corners(program)}
    assert {1, 16, 17, 48, 49} <= values


@pytest.mark.nightly
def test_programs_of_different_trees_are_refused():
    other = compile(attention.full(batch=1, heads=2, seq=87, head_dim=16), "rolling_update", validate="none").htile
    with pytest.raises(TileError, match="at n = 87"):
        generalized([other, *(causal(n) for n in LENGTHS[1:])], SAMPLES, {16})


def with_literal(n: int, dtype: str, value: int) -> ir.Program:
    """A program that stores a number."""
    store = ir.Store("s", ir.Access("y", (ir.Name("i"),)), ir.Literal(value, dtype), "y")
    kernel = ir.Kernel("k", "k", (ir.GridAxis("i", n),), (store,))
    tensors = (ir.Tensor("x", (n,), "float32", "global"), ir.Tensor("y", (n,), dtype, "global"))
    return ir.Program("p", tensors, ("x",), ("y",), (kernel,))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_numbers_of_each_kind_of_integer_follow_sizes(dtype: str):
    made = generalized([with_literal(n, dtype, 2 * n - 1) for n in LENGTHS], SAMPLES, {16})
    ((store,),) = (kernel.body for kernel in made.kernels)
    number = ir.Scalar(ir.Arith("+", ir.Arith("*", ir.Name("n"), ir.Int(2)), ir.Int(-1)))
    assert store.value == (number if dtype == "int32" else ir.Cast(number, dtype))


def test_an_int64_that_leaves_int32_at_large_sizes_is_refused():
    """A kernel would compute it in int32."""
    with pytest.raises(TileError, match="which no expression of these sizes gives"):
        generalized([with_literal(n, "int64", n * n) for n in LENGTHS], SAMPLES, {16})


def test_a_number_that_no_expression_gives_is_refused():
    """The samples are not the lengths that the programs were made for."""
    wrong = [{"n": n} for n in (87, 99, 134, 181, 263)]
    with pytest.raises(TileError, match="which no expression of these sizes gives"):
        generalized([causal(n) for n in LENGTHS], wrong, {16})


def test_a_tile_that_holds_a_whole_dimension_is_told_from_a_number_without_an_expression():
    """Its extent is the size, but the shape of a tile is not known at the launch."""
    programs = []
    for n in LENGTHS:
        whole = ir.Slice(ir.Int(0), n, "j")
        store = ir.Store("s", ir.Access("y", (whole,)), ir.Access("x", (whole,)), "y")
        tensors = (ir.Tensor("x", (n,), "float32", "global"), ir.Tensor("y", (n,), "float32", "global"))
        kernel = ir.Kernel("k", "k", (ir.GridAxis("i", 1),), (store,))
        programs.append(ir.Program("p", tensors, ("x",), ("y",), (kernel,)))
    with pytest.raises(TileError, match="a tile has the same extent at all sizes"):
        generalized(programs, SAMPLES, {16})


def test_a_size_with_the_name_of_a_loop_is_refused():
    with pytest.raises(TileError, match="'i0' is the name of a size and of a loop of attention_causal"):
        generalized([causal(n) for n in LENGTHS], [{"i0": n} for n in LENGTHS], {16})


def decoding(n: int) -> ir.Program:
    """One query, and four splits of tiles of 16 keys."""
    op = attention.full(batch=1, heads=2, q_len=1, kv_len=n, head_dim=16)
    config = SplitKConfig(block_q=16, block_kv=16, splits=4)
    return compile(op, "split_k_update", config=config, validate="none").htile


@pytest.fixture(scope="module")
def splits() -> ir.Program:
    lengths = (427, 533, 751, 1031, 1437)
    return generalized([decoding(n) for n in lengths], [{"n": n} for n in lengths], {64})


@pytest.mark.nightly
@pytest.mark.parametrize("n", [17, 65, 81, 129])
def test_splits_that_are_empty_at_short_lengths_are_right(splits, n):
    op = attention.full(batch=1, heads=2, q_len=1, kv_len=n, head_dim=16)
    inputs = op.random_inputs(0)
    found = interpret(at(splits, {"n": n}), inputs)["out"]
    np.testing.assert_allclose(found, op.reference(*inputs.values()), atol=2e-3)
