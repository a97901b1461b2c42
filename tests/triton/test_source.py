"""The emitted text: what it looks like, where its lines come from, which names it takes, what it refuses."""

from __future__ import annotations

import ast
from dataclasses import replace

import numpy as np
import pytest
from htile_programs import CASES, F16, F32, at, attention, lit, op, softmax, tile

from neptune_lab.errors import EmitError, TileError
from neptune_lab.htile.nodes import (
    Arith,
    Cast,
    Dot,
    For,
    GridAxis,
    Int,
    Kernel,
    Name,
    Permute,
    Program,
    Slice,
    Stmt,
    Store,
    Tensor,
)
from neptune_lab.htile_passes import run
from neptune_lab.htile_to_triton import EmittedModule, emit


def one_kernel(tensors: tuple[Tensor, ...], *body: Stmt, grid: tuple[GridAxis, ...] = (), name: str = "p") -> Program:
    inputs = tuple(t.name for t in tensors if t.space == "input")
    outputs = tuple(t.name for t in tensors if t.space == "output")
    return Program(name, tensors, inputs, outputs, (Kernel("k", name, grid, body),))


def vector(name: str, space="input", n: int = 16, dtype: str = F32) -> Tensor:
    return Tensor(name, (n,), dtype, space)


I = Slice(Int(0), 16, "i")


def test_golden(golden):
    golden("triton_attention.py", emit(run(attention().program)).text)


def node_ids(program: Program) -> set[str]:
    def visit(body: tuple[Stmt, ...]) -> set[str]:
        return {s.node_id for s in body} | {n for s in body if isinstance(s, For) for n in visit(s.body)}

    return {k.node_id for k in program.kernels} | {n for k in program.kernels for n in visit(k.body)}


@pytest.mark.parametrize("name", CASES)
def test_every_computing_line_is_linked(name):
    program = run(CASES[name]().program)
    source = emit(program)
    text = source.text.splitlines()
    known = node_ids(program)
    assert {n for line in source.lines for n in line.node_ids} == known, "every node has a line, no link dangles"
    for line in source.lines:
        assert text[line.number - 1] == line.text
        assert line.node_ids
        assert line.kernel in {kernel.name for kernel in source.kernels}
    linked = {line.number for line in source.lines}
    assert not {n for n in computing_lines(source) if n not in linked}


def computing_lines(source: EmittedModule) -> set[int]:
    """Lines of statements inside functions, by Python's own parser: docstrings and `return out` compute nothing."""
    lines: set[int] = set()
    for function in ast.parse(source.text).body:
        if isinstance(function, ast.FunctionDef):
            for stmt in ast.walk(function):
                is_doc = isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant)
                returns = isinstance(stmt, ast.Return) and function.name == source.entry
                if isinstance(stmt, ast.stmt) and not is_doc and not returns and stmt is not function:
                    last = stmt.lineno if isinstance(stmt, ast.For | ast.If) else stmt.end_lineno or stmt.lineno
                    lines |= set(range(stmt.lineno, last + 1))
    return lines


def test_emission_is_deterministic():
    assert emit(run(attention().program)) == emit(run(attention().program))


def test_kernel_records_are_parts_of_the_module():
    source = emit(run(CASES["split_k"]().program))
    assert [k.name for k in source.kernels] == ["split_k_local", "split_k_combine"]
    assert [k.grid for k in source.kernels] == [(3, 3), (3,)]
    assert [k.arguments for k in source.kernels] == [("x", "w", "partial"), ("y", "partial")]
    assert all(k.text in source.text for k in source.kernels)
    assert "partial = torch.empty((3, 5, 12), dtype=torch.float32, device=x.device)" in source.text


def test_no_masks_where_sizes_divide():
    text = emit(attention(128, 64, 64, 64, 32).program).text
    assert "mask" not in text
    assert "mask" in emit(attention(129, 64, 64, 64, 32).program).text


def test_a_transposed_load_is_pointer_arithmetic():
    text = emit(attention().program).text
    assert "k = tl.load(k_base + j[None, :] * 64 + d[:, None]" in text
    assert "tl.trans" not in text


def test_index_vectors_stand_outside_of_loops_where_they_can():
    lines = emit(run(attention().program)).text.splitlines()
    loop = next(n for n, line in enumerate(lines) if "for j0" in line)
    assert any(line.startswith("    i = ") for line in lines[:loop])
    assert any(line.startswith("    d = ") for line in lines[:loop])
    assert lines[loop + 1] == "        j = j0 * 32 + tl.arange(0, 32)"


COLLIDING = ["tl", "max", "lambda", "torch", "i", "i0", "x_ptr", "triton", "range", "p", "_dot"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("space", ["chip", "output"])
@pytest.mark.parametrize("taken", COLLIDING)
def test_names_do_not_collide(taken, space, run_triton):
    """A tensor may be called like a module, a builtin, a keyword, an index or a parameter of the emitted code."""
    i = Slice(Arith("*", Name("i0"), Int(8)), 8, "i1")
    tile_name, out = (taken, "y") if space == "chip" else ("t", taken)
    body = (
        Store("s1", at(tile_name, i), op("add", at("x", i), lit(1.0)), "a"),
        Store("s2", at(out, i), op("max", at(tile_name, i), lit(0.0)), "b"),
    )
    tensors = (vector("x"), vector(out, "output"), vector(tile_name, "chip"))
    x = np.linspace(-2, 2, 16)
    (found,) = run_triton(one_kernel(tensors, *body, grid=(GridAxis("i0", 2),)), {"x": x}).values()
    np.testing.assert_allclose(found, np.maximum(x + 1, 0), rtol=1e-6, atol=1e-7)


def test_offsets_past_two_to_the_31_are_64_bit():
    shape = (4, 1 << 15, 1 << 15)
    tensors = (Tensor("x", shape, F16, "input"), Tensor("y", shape, F16, "output"))
    b, i, j = Name("b"), tile("i0", 128, "i"), Slice(Int(0), 128, "j")

    def text(*index, i_extent: int = 1, b_extent: int = 4) -> str:
        grid = (GridAxis("i0", i_extent), GridAxis("b", b_extent))
        return emit(one_kernel(tensors, Store("s", at("y", *index), at("x", *index), "y"), grid=grid)).text

    assert "x_base = x_ptr + tl.cast(b * 32768 + i0, tl.int64) * 32768" in text(b, Name("i0"), j, i_extent=1 << 15)
    rows = text(b, i, j, i_extent=256)
    assert "x_base = x_ptr + tl.cast(b, tl.int64) * 1073741824" in rows
    assert "i[:, None] * 32768" in rows, "inside one matrix 32 bits are enough"
    assert ".to(tl.int64)[:, None] * 1073741824" in text(Slice(b, 4, "n"), Int(0), j, b_extent=1)


def test_a_dot_in_bfloat16_goes_through_a_helper():
    m, k = Slice(Int(0), 16, "m"), Slice(Int(0), 16, "k")
    tensors = (Tensor("a", (16, 16), "bfloat16", "input"), Tensor("y", (16, 16), F32, "output"))
    source = emit(
        one_kernel(tensors, Store("s", at("y", m, k), Dot(at("a", m, k), Permute(at("a", m, k), (1, 0))), "y"))
    )
    assert "INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)" in source.text
    assert "_dot(a, tl.trans(a), tl.full([16, 16], 0.0, tl.float32))" in source.text


def test_float32_dots_are_exact():
    assert 'input_precision="ieee"' in emit(CASES["matmul_float32"]().program).text
    assert "input_precision" not in emit(CASES["matmul"]().program).text


def test_sibling_loops_share_names():
    text = emit(CASES["causal_rows"]().program).text
    assert text.count("        j = ") == 2
    assert "x_2" not in text


def test_refused_grid():
    store = Store("s", at("y", I), at("x", I), "y")
    program = one_kernel((vector("x"), vector("y", "output")), store, grid=(GridAxis("a", 1), GridAxis("b", 70000)))
    with pytest.raises(
        EmitError, match=r"grid axis b of kernel p has 70000 instances; expected at most 65535 on axis y"
    ):
        emit(program)


def test_refused_tile_that_only_a_loop_defines():
    loop = For("l", "j", Int(0), Int(2), (Store("s1", at("t", I), at("x", I), "t"),), "t")
    program = one_kernel(
        (vector("x"), vector("y", "output"), vector("t", "chip")), loop, Store("s2", at("y", I), at("t", I), "y")
    )
    with pytest.raises(
        EmitError, match=r"tile t is read in s2 where it has no value.*\n.*help: store an initial value of t"
    ) as caught:
        emit(program)
    assert caught.value.node == "s2"


def test_refused_carried_tile_that_changes_shape():
    tensors = (vector("x"), vector("y", "output"), vector("t", "chip"))
    half = Slice(Int(0), 8, "i")
    loop = For("l", "j", Int(0), Int(2), (Store("s2", at("t", half), at("x", half), "t"),), "t")
    program = one_kernel(
        tensors, Store("s1", at("t", I), at("x", I), "t"), loop, Store("s3", at("y", I), at("x", I), "y")
    )
    with pytest.raises(EmitError, match=r"tile t of shape \(8,\) replaces one of shape \(16,\) inside a loop"):
        emit(program)


def test_invalid_programs_are_refused_first():
    program = one_kernel((vector("x"), vector("y", "output")), Store("s", at("y", I), at("z", I), "y"))
    with pytest.raises(TileError, match="tensor 'z' is not declared"):
        emit(program)


def test_comments_name_blocks_that_the_code_does_not():
    text = emit(softmax().program).text
    assert "# normalized" in text
    assert "# x_exp" not in text


def test_casts_are_written_once():
    row = tile("i0", 8, "i")
    tensors = (Tensor("x", (16,), F16, "input"), Tensor("y", (16,), F16, "output"))
    value = Cast(op("mul", Cast(at("x", row), F32), lit(2.0)), F16)
    text = emit(one_kernel(tensors, Store("s", at("y", row), value, "y"), grid=(GridAxis("i0", 2),))).text
    assert "tl.store(y_ptr + i, (x.to(tl.float32) * 2.0).to(tl.float16))" in text


@pytest.mark.parametrize("permuted", [False, True])
def test_a_tile_that_was_read_is_not_loaded_again(permuted, run_triton):
    """A statement that is one load takes the tile of an earlier one, unless it has the elements in another order."""
    rows, columns = Slice(Int(0), 4, "r"), Slice(Int(0), 8, "c")
    matrix = at("x", rows, columns)
    again = at("t", columns, rows) if permuted else at("t", rows, columns)
    shape = (8, 4) if permuted else (4, 8)
    tensors = (
        Tensor("x", (4, 8), F16, "input"),
        Tensor("y", (4, 8), F32, "output"),
        Tensor("z", shape, F32, "output"),
        Tensor("t", shape, F32, "chip"),
    )
    program = one_kernel(
        tensors,
        Store("s1", at("y", rows, columns), op("mul", Cast(matrix, F32), lit(2.0)), "y"),
        Store("s2", again, Cast(Permute(matrix, (1, 0)) if permuted else matrix, F32), "t"),
        Store("s3", replace(again, tensor="z"), op("add", again, lit(1.0)), "z"),
    )
    assert emit(program).text.count("tl.load(x_ptr") == (2 if permuted else 1)
    x = np.arange(32, dtype=np.float16).reshape(4, 8)
    y, z = run_triton(program, {"x": x}).values()
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(z, (x.T if permuted else x) + 1)


def test_a_tile_that_is_written_meanwhile_is_loaded_again(run_triton):
    tensors = (vector("x"), vector("y", "output"), vector("z", "output"), vector("t", "chip"))
    body = (
        Store("s1", at("y", I), at("x", I), "y"),
        Store("s2", at("z", I), op("add", at("y", I), lit(1.0)), "z"),
        Store("s3", at("y", I), op("mul", at("x", I), lit(3.0)), "y"),
        Store("s4", at("t", I), at("y", I), "t"),
        Store("s5", at("z", I), op("add", at("z", I), at("t", I)), "z"),
    )
    x = np.arange(16.0)
    found = run_triton(one_kernel(tensors, *body), {"x": x})
    np.testing.assert_array_equal(found["z"], x + 1 + 3 * x)
