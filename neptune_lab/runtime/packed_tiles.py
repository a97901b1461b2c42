"""The launches of a module that find which tiles of keys have a sequence of a tile of queries.

A kernel whose mask compares the sequences of queries and keys visits tiles between bounds, which one or two kernels
find before it from the sequences of all tokens (`htile_passes.skip_tiles_by_data`).  For packed sequences they follow
from the offsets: the kernel of places finds them too (`token_places`), and these launches are left out.  Which they are
is said by the pass that makes their kernels (`htile.nodes.FoundTiles`); of a kernel that says nothing, none is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neptune_lab.runtime.spec import TileLaunches
from neptune_lab.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of keys for each tile of queries.

    Args:
        first, last: the launcher's tensors for the number of the first one, and of the last one plus 1.
        rows, columns: of a tile: queries, and keys.
        left: the statements of the launcher without those that find them from the sequences.
    """

    first: str
    last: str
    rows: int
    columns: int
    left: list[ast.stmt]


def tiles_in(
    said: Iterable[TileLaunches],
    inputs: Sequence[TensorSpec],
    launcher: ast.FunctionDef,
    of: tuple[str, str],
    sizes: Sequence[str],
) -> Tiles | None:
    """The tiles that a launcher finds from sequences, and can be given; None if it finds none.

    Formal statement: (1) the launches find them from these sequences, which are those of all queries and keys; (2) they
    are all in the launcher; and (3) of the tensors that it makes for them, others read the first and last tiles alone.

    Args:
        said: what the launcher's kernels say that they find.
        inputs: of the launcher.
        of: the inputs for the sequences of queries and of keys.
        sizes: how many queries and keys there are, as the launcher has them.
    """
    counts = {tensor.name: size_of(tensor, 0) for tensor in inputs if len(tensor.shape) == 1}
    if [counts.get(name) for name in of] != [*sizes]:
        return None
    for found in said:
        removed = [stmt for stmt in launcher.body if _launched(stmt) in found.kernels]
        left = [stmt for stmt in launcher.body if stmt not in removed]
        passed_on = _stored(_made(launcher.body)) & _read(removed) & _read(left)
        fits = (found.rows, found.columns) == of and passed_on == {found.first, found.last}
        if fits and len(removed) == len(found.kernels):
            left = [stmt for stmt in left if stmt not in _made(left) or _stored([stmt]) & _read(left)]
            return Tiles(found.first, found.last, found.row_extent, found.column_extent, left)
    return None


def size_of(tensor: TensorSpec, dimension: int) -> str:
    """The size of a dimension, as a launcher has it: a number, or the name of a size of the call."""
    return (tensor.sizes[dimension] if tensor.sizes else "") or str(tensor.shape[dimension])


def _launched(stmt: ast.stmt) -> str:
    """The kernel that a statement launches, or ""."""
    match stmt:
        case ast.Expr(value=ast.Call(func=ast.Subscript(value=ast.Name(id=name)))):
            return name
    return ""


def _made(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements that make tensors."""
    return [stmt for stmt in body if isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.Call)]


def _read(statements: Iterable[ast.stmt]) -> set[str]:
    return _names(statements, ast.Load)


def _stored(statements: Iterable[ast.stmt]) -> set[str]:
    return _names(statements, ast.Store)


def _names(statements: Iterable[ast.stmt], context: type[ast.expr_context]) -> set[str]:
    nodes = (node for stmt in statements for node in ast.walk(stmt))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


__all__ = ["Tiles", "size_of", "tiles_in"]
