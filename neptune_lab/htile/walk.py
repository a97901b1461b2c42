"""Traversals that every consumer of HTile IR shares: children, rewriting, names used, scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar, assert_never

from neptune_lab.htile import nodes as ir


def children(expr: ir.TileExpr) -> tuple[ir.TileExpr, ...]:
    """The tile expressions directly inside `expr`."""
    match expr:
        case ir.Access() | ir.Iota() | ir.Scalar() | ir.Literal():
            return ()
        case ir.Elementwise(args=args) | ir.Gather(indices=args):
            return args
        case ir.Cast(arg=arg) | ir.Permute(arg=arg) | ir.Grouped(arg=arg) | ir.Reduce(arg=arg):
            return (arg,)
        case ir.Dot(a=a, b=b, acc=acc):
            return (a, b) if acc is None else (a, b, acc)
        case _:
            assert_never(expr)


def subexpressions(expr: ir.TileExpr) -> Iterator[ir.TileExpr]:
    """`expr` and everything inside it, parents first."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += children(node)[::-1]


def rewrite(expr: ir.TileExpr, visit: Callable[[ir.TileExpr], ir.TileExpr]) -> ir.TileExpr:
    """`expr` with `visit` applied to every node, children first; the same object if nothing changed."""
    match expr:
        case ir.Access() | ir.Iota() | ir.Scalar() | ir.Literal():
            return visit(expr)
        case ir.Elementwise(args=args):
            new_args = tuple([rewrite(arg, visit) for arg in args])
            return visit(expr if unchanged(new_args, args) else replace(expr, args=new_args))
        case ir.Gather(indices=indices):
            new_indices = tuple(rewrite(index, visit) for index in indices)
            return visit(expr if unchanged(new_indices, indices) else replace(expr, indices=new_indices))
        case ir.Cast(arg=arg) | ir.Permute(arg=arg) | ir.Grouped(arg=arg) | ir.Reduce(arg=arg):
            new_arg = rewrite(arg, visit)
            return visit(expr if new_arg is arg else replace(expr, arg=new_arg))
        case ir.Dot(a=a, b=b, acc=acc):
            new_a, new_b = rewrite(a, visit), rewrite(b, visit)
            new_acc = None if acc is None else rewrite(acc, visit)
            kept = new_a is a and new_b is b and new_acc is acc
            return visit(expr if kept else ir.Dot(new_a, new_b, new_acc))
        case _:
            assert_never(expr)


def unchanged(new: Sequence[object], old: Sequence[object]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(new) == len(old) and all(a is b for a, b in zip(new, old, strict=True))


_HasBody = TypeVar("_HasBody", ir.Kernel, ir.For)


def with_body(node: _HasBody, body: tuple[ir.Stmt, ...]) -> _HasBody:
    """`node` with another body; the same object if `body` is its own."""
    return node if body is node.body else replace(node, body=body)


def accesses(expr: ir.TileExpr | None) -> Iterator[ir.Access]:
    """Every tensor access in `expr` (none for None)."""
    if expr is not None:
        for node in subexpressions(expr):
            if isinstance(node, ir.Access):
                yield node


def roots(store: ir.Store) -> tuple[ir.TileExpr, ...]:
    """The value of `store`, and its mask if it has one."""
    return (store.value,) if store.mask is None else (store.value, store.mask)


def reads(store: ir.Store) -> Iterator[ir.Access]:
    """Every access that `store` reads: in its value and in its mask."""
    for root in roots(store):
        yield from accesses(root)


def expressions(store: ir.Store) -> Iterator[ir.TileExpr]:
    """Every expression in the value of `store` and in its mask."""
    for root in roots(store):
        yield from subexpressions(root)


def gathered_tensors(store: ir.Store) -> Iterator[str]:
    """Names of the tensors that `store` reads element by element."""
    for node in expressions(store):
        if isinstance(node, ir.Gather):
            yield node.tensor


def read_tensors(store: ir.Store) -> frozenset[str]:
    """Names of all tensors that `store` reads, of tiles and element by element."""
    return frozenset((*(access.tensor for access in reads(store)), *gathered_tensors(store)))


def stores(body: Iterable[ir.Stmt]) -> Iterator[ir.Store]:
    """Every store in `body`, those in loops too, in program order."""
    for stmt in body:
        match stmt:
            case ir.Store():
                yield stmt
            case ir.For(body=inner):
                yield from stores(inner)
            case _:
                assert_never(stmt)


def loops_in(body: Iterable[ir.Stmt]) -> Iterator[ir.For]:
    """Every loop in `body`, each before those in it, in program order."""
    for stmt in body:
        if isinstance(stmt, ir.For):
            yield stmt
            yield from loops_in(stmt.body)


def is_exception(stmt: ir.Stmt, program: ir.Program) -> bool:
    """Whether a statement is a loop that runs for exceptional values only: it runs once or not, which what is on chip
    says (`htile_passes.squares_without_scale`), and is no part of another loop."""
    if not isinstance(stmt, ir.For) or stmt.within is None or stmt.part:
        return False
    once = (stmt.start, stmt.stop) == (ir.Int(0), ir.Int(1))
    return once and all(program.tensor(bound.tensor).space == "chip" for bound in stmt.within)


def is_bounded_by_data(loop: ir.For, program: ir.Program) -> bool:
    """Whether an earlier kernel found the bounds of a loop (`htile_passes.skip_tiles_by_data`)."""
    return loop.within is not None and all(program.tensor(bound.tensor).space != "chip" for bound in loop.within)


def loop_bounds(body: Iterable[ir.Stmt]) -> Iterator[ir.Access]:
    """Every element of a tensor that bounds a loop of `body`, or lists what its variable is."""
    for stmt in body:
        if isinstance(stmt, ir.For):
            yield from stmt.within or ()
            yield from stmt.without or ()
            yield from stmt.listed or ()
            yield from loop_bounds(stmt.body)


def written_tensors(kernel: ir.Kernel) -> frozenset[str]:
    """Names of the tensors that `kernel` stores to."""
    return frozenset(store.target.tensor for store in stores(kernel.body))


def values_by_tensor(every: Iterable[ir.Store]) -> dict[str, list[ir.TileExpr]]:
    """By tensor, the values that stores put into it, in order."""
    values: dict[str, list[ir.TileExpr]] = {}
    for store in every:
        values.setdefault(store.target.tensor, []).append(store.value)
    return values


def names_of_index(index: ir.IndexExpr | ir.Index) -> frozenset[str]:
    """Grid and loop variables used in an index."""
    match index:
        case ir.Int() | ir.NewAxis():
            return frozenset()
        case ir.Name(name=name):
            return frozenset((name,))
        case ir.Arith(a=a, b=b):
            return names_of_index(a) | names_of_index(b)
        case ir.Slice(start=start):
            return names_of_index(start)
        case _:
            assert_never(index)


@lru_cache(maxsize=4096)
def names_of_access(access: ir.Access) -> frozenset[str]:
    """Grid and loop variables used in the index of `access`."""
    return frozenset().union(*(names_of_index(index) for index in access.index))


def names_of_tile(expr: ir.TileExpr) -> frozenset[str]:
    """Grid and loop variables that an expression uses, also in the indices of what it reads."""
    names: set[str] = set()
    for part in subexpressions(expr):
        match part:
            case ir.Access() | ir.Iota():
                names |= names_of_access(ir.Access("", part.index))
            case ir.Scalar(value=value):
                names |= names_of_index(value)
            case _:
                pass
    return frozenset(names)


def region(access: ir.Access) -> tuple[ir.IndexExpr | ir.Slice, ...]:
    """The index of `access` without its `NewAxis` entries: one entry for each dimension of the tensor."""
    return tuple(index for index in access.index if not isinstance(index, ir.NewAxis))


def tile_dims(index: Iterable[ir.Index]) -> tuple[ir.Slice | ir.NewAxis, ...]:
    """The entries of an access's index that make the dimensions of its tile: slices and `NewAxis`."""
    return tuple(entry for entry in index if isinstance(entry, ir.Slice | ir.NewAxis))


def same_index(a: ir.IndexExpr | ir.Slice, b: ir.IndexExpr | ir.Slice) -> bool:
    """Whether two indices are proven to select the same elements; the axis of a slice does not count."""
    if isinstance(a, ir.Slice) and isinstance(b, ir.Slice):
        return a.extent == b.extent and simplify(a.start) == simplify(b.start)
    if isinstance(a, ir.Slice) or isinstance(b, ir.Slice):
        return False
    return simplify(a) == simplify(b)


@lru_cache(maxsize=4096)
def tile_read(access: ir.Access) -> ir.Access:
    """The region that is read, whatever its axes are called and wherever it has `NewAxis`."""
    parts = (replace(i, start=simplify(i.start), axis="") if isinstance(i, ir.Slice) else i for i in region(access))
    return ir.Access(access.tensor, tuple(parts))


def same_region(a: ir.Access, b: ir.Access) -> bool:
    """Whether two accesses of one tensor are proven to select the same tile; `NewAxis` entries do not count."""
    ra, rb = region(a), region(b)
    return len(ra) == len(rb) and all(same_index(x, y) for x, y in zip(ra, rb, strict=True))


def simplify(expr: ir.IndexExpr) -> ir.IndexExpr:
    """`expr` with constants folded and neutral elements dropped; constants come last.

    >>> simplify(ir.Arith("+", ir.Arith("*", ir.Name("i0"), ir.Int(1)), ir.Int(0)))
    Name(name='i0')
    """
    match expr:
        case ir.Int() | ir.Name():
            return expr
        case ir.Arith(op=op, a=a, b=b):
            a, b = simplify(a), simplify(b)
            if op in ("+", "*") and isinstance(a, ir.Int) and not isinstance(b, ir.Int):
                a, b = b, a
            return _fold(op, a, b)
        case _:
            assert_never(expr)


def _fold(op: str, a: ir.IndexExpr, b: ir.IndexExpr) -> ir.IndexExpr:
    match op, a, b:
        case _, ir.Int(value=x), ir.Int(value=y) if not (op in ("//", "%") and y == 0):
            return ir.Int(arith(op, x, y))
        case ("+" | "-", _, ir.Int(value=0)) | ("*" | "//", _, ir.Int(value=1)):
            return a
        case ("*", _, ir.Int(value=0)) | ("%", _, ir.Int(value=1)):
            return ir.Int(0)
        case ("+", ir.Arith(op="+", a=inner, b=ir.Int(value=x)), ir.Int(value=y)):
            return _fold("+", inner, ir.Int(x + y))
        case ("*", ir.Arith(op="*", a=inner, b=ir.Int(value=x)), ir.Int(value=y)):
            return _fold("*", inner, ir.Int(x * y))
        case _:
            return ir.Arith(op, a, b)  # pyright: ignore[reportArgumentType]


def arith(op: str, a: int, b: int) -> int:
    """`a op b` on integers; `//` and `%` floor.

    Raises:
        ValueError: `op` is not an operator of index expressions.
    """
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
        case "%":
            return a % b
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case _:
            raise ValueError(f"no index operator {op!r}")


def evaluate(index: ir.IndexExpr, env: Mapping[str, int]) -> int:
    """The value of an index expression, with the values of its variables in `env`.

    Raises:
        KeyError: a variable is not in `env`.

    >>> evaluate(ir.Arith("+", ir.Arith("*", ir.Name("i0"), ir.Int(4)), ir.Int(1)), {"i0": 2})
    9
    """
    match index:
        case ir.Int(value=value):
            return value
        case ir.Name(name=name):
            return env[name]
        case ir.Arith(op=op, a=a, b=b):
            return arith(op, evaluate(a, env), evaluate(b, env))
        case _:
            assert_never(index)


def map_stores(body: tuple[ir.Stmt, ...], visit: Callable[[ir.Store], ir.Store]) -> tuple[ir.Stmt, ...]:
    """`body` with `visit` applied to every store; the same object if nothing changed."""
    out: list[ir.Stmt] = []
    for stmt in body:
        if isinstance(stmt, ir.Store):
            out.append(visit(stmt))
        else:
            out.append(with_body(stmt, map_stores(stmt.body, visit)))
    return body if unchanged(out, body) else tuple(out)


def conjuncts(condition: ir.TileExpr) -> tuple[ir.TileExpr, ...]:
    """The operands of `and` in `condition`; `condition` itself if it is no `and`."""
    if isinstance(condition, ir.Elementwise) and condition.op == "and":
        return tuple(part for arg in condition.args for part in conjuncts(arg))
    return (condition,)


def rewrite_store(store: ir.Store, visit: Callable[[ir.TileExpr], ir.TileExpr]) -> ir.Store:
    """`store` with `visit` applied to every node of its value and mask; the same object if nothing changed."""
    value = rewrite(store.value, visit)
    mask = None if store.mask is None else rewrite(store.mask, visit)
    return store if value is store.value and mask is store.mask else replace(store, value=value, mask=mask)
