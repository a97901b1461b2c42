"""A summary of an HTile program: the loops of each kernel, and what each loads, multiplies, masks and stores.

It answers the first questions: what is loaded once and what in every iteration, which parts of the loop still have
masks, and what is written to memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.bounds import Env, grid_env, interval, loop_interval
from neptune_lab.htile.printer import bounded_by, expr_doc, flat_access, index_text
from neptune_lab.htile.walk import gathered_tensors, reads, region, subexpressions
from neptune_lab.wrapping import lines

_LABEL = 9
_WIDE = 10_000  # columns, so that a condition stays on one line


def outline(program: ir.Program, emitted: Mapping[str, str] | None = None) -> str:
    """The structure of `program` as text, a newline after each line.

    Each kernel has its grid and its loops with their bounds, and for a partitioned loop its part.  Lines outside the
    loops and in each loop list:

    - `loads`: tiles of global tensors that are read; `(bounded)` if the tile may reach past the end of its tensor, so
      that the load has a mask;
    - `gathers`: global tensors that are read element by element;
    - `dots`, `reduces`: the tiles that these compute;
    - `masks`: a tile and the condition on positions that masks it; "none" for a loop without masks;
    - `stores`: tiles of global tensors that are stored, `(bounded)` likewise.

    Args:
        program: verified HTile.
        emitted: by kernel name, text about the emitted source that follows the kernel's grid; None if there is none.
    """
    between = [f"{t.name} {t.dtype}{list(t.shape)}" for t in program.tensors if t.space == "global"]
    out = [
        f"program {program.name}({', '.join(program.inputs)}) -> {', '.join(program.outputs)}",
        f"  between kernels, in global memory: {', '.join(between) or 'nothing'}",
    ]
    for kernel in program.kernels:
        grid = ", ".join(f"{axis.var}: {axis.extent}" for axis in kernel.grid)
        about_source = "" if emitted is None else f"  {emitted[kernel.name]}"
        out += ["", f"kernel {kernel.name}  grid ({grid}){about_source}"]
        out += _body(program, kernel.body, grid_env(kernel), "  ", in_loop=False)
    return "".join(f"{line}\n" for line in out)


def _body(program: ir.Program, body: tuple[ir.Stmt, ...], env: Env, indent: str, *, in_loop: bool) -> Iterator[str]:
    """The lines of a body in program order: a summary of each run of stores, and each loop with its body."""
    run: list[ir.Store] = []
    masked = False
    for stmt in body:
        if isinstance(stmt, ir.Store):
            run.append(stmt)
            masked = masked or any(_masks(stmt))
            continue
        yield from _summary(program, run, env, indent)
        run = []
        part = f"  # {stmt.part}" if stmt.part else ""
        bounds = index_text(stmt.stop)
        if (start := index_text(stmt.start)) != "0":
            bounds = f"{start}, {bounds}"
        yield f"{indent}for {stmt.var} in range({bounds}){bounded_by(stmt)}:{part}"
        inner = {**env, stmt.var: loop_interval(stmt, env)}
        yield from _body(program, stmt.body, inner, indent + "  ", in_loop=True)
    yield from _summary(program, run, env, indent)
    if in_loop and not masked and not any(isinstance(stmt, ir.For) for stmt in body):
        yield _row(indent, "masks", "none")


def _summary(program: ir.Program, run: list[ir.Store], env: Env, indent: str) -> Iterator[str]:
    """What a run of stores loads, computes and stores, one line for each; elementwise work on chip has none."""
    for store in run:
        for access in dict.fromkeys(reads(store)):  # a statement loads a tile once, however often it reads it
            if program.tensor(access.tensor).space != "chip":
                yield _row(indent, "loads", _tile_text(program, access, env))
        for name in gathered_tensors(store):
            yield _row(indent, "gathers", name)
        kinds = [type(expr) for expr in subexpressions(store.value)]
        name = store.target.tensor
        if ir.Dot in kinds:
            yield _row(indent, "dots", name)
        if ir.Reduce in kinds:
            yield _row(indent, "reduces", name)
        for condition in _masks(store):
            yield _row(indent, "masks", f"{name} by {condition}")
        if program.tensor(name).space != "chip":
            yield _row(indent, "stores", _tile_text(program, store.target, env))


def _row(indent: str, label: str, text: str) -> str:
    return f"{indent}{label:<{_LABEL}}{text}"


def _tile_text(program: ir.Program, access: ir.Access, env: Env) -> str:
    """The text of a tile that is loaded or stored, with `(bounded)` if it may reach past the end of its tensor."""
    past = any(
        isinstance(index, ir.Slice) and interval(index.start, env).hi + index.extent > size
        for index, size in zip(region(access), program.tensor(access.tensor).shape, strict=True)
    )
    return flat_access(access) + ("  (bounded)" if past else "")


def _masks(store: ir.Store) -> Iterator[str]:
    """The conditions on positions in a store, as text; a guard against an infinity is not one."""
    for expr in subexpressions(store.value):
        if isinstance(expr, ir.Elementwise) and expr.op == "where" and _of_positions(expr.args[0]):
            yield _text(expr.args[0])
    if store.mask is not None:
        yield _text(store.mask)


def _of_positions(condition: ir.TileExpr) -> bool:
    return any(isinstance(expr, ir.Iota) for expr in subexpressions(condition))


def _text(expr: ir.TileExpr) -> str:
    return lines(expr_doc(expr), _WIDE, "")[0]
