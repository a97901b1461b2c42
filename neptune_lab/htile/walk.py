"""Traversals that every consumer of HTile IR shares: children, rewriting, names used, scopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar, assert_never

from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Cast,
    Dot,
    Elementwise,
    For,
    Gather,
    Index,
    IndexExpr,
    Int,
    Iota,
    Kernel,
    Literal,
    Name,
    NewAxis,
    Permute,
    Reduce,
    Scalar,
    Slice,
    Stmt,
    Store,
    TileExpr,
)


def children(expr: TileExpr) -> tuple[TileExpr, ...]:
    """The tile expressions directly inside `expr`."""
    match expr:
        case Access() | Iota() | Scalar() | Literal():
            return ()
        case Elementwise(args=args) | Gather(indices=args):
            return args
        case Cast(arg=arg) | Permute(arg=arg) | Reduce(arg=arg):
            return (arg,)
        case Dot(a=a, b=b, acc=acc):
            return (a, b) if acc is None else (a, b, acc)
        case _:
            assert_never(expr)


def subexpressions(expr: TileExpr) -> Iterator[TileExpr]:
    """`expr` and everything inside it, parents first."""
    waiting = [expr]
    while waiting:
        found = waiting.pop()
        yield found
        waiting += children(found)[::-1]


def rewrite(expr: TileExpr, visit: Callable[[TileExpr], TileExpr]) -> TileExpr:
    """`expr` with `visit` applied to every node, children first; the same object where nothing changed."""
    match expr:
        case Access() | Iota() | Scalar() | Literal():
            return visit(expr)
        case Elementwise(args=args):
            new_args = tuple([rewrite(arg, visit) for arg in args])
            return visit(expr if unchanged(new_args, args) else replace(expr, args=new_args))
        case Gather(indices=indices):
            new_indices = tuple(rewrite(index, visit) for index in indices)
            return visit(expr if unchanged(new_indices, indices) else replace(expr, indices=new_indices))
        case Cast(arg=arg) | Permute(arg=arg) | Reduce(arg=arg):
            new_arg = rewrite(arg, visit)
            return visit(expr if new_arg is arg else replace(expr, arg=new_arg))
        case Dot(a=a, b=b, acc=acc):
            new_a, new_b = rewrite(a, visit), rewrite(b, visit)
            new_acc = None if acc is None else rewrite(acc, visit)
            kept = new_a is a and new_b is b and new_acc is acc
            return visit(expr if kept else Dot(new_a, new_b, new_acc))
        case _:
            assert_never(expr)


def unchanged(new: Sequence[object], old: Sequence[object]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(new) == len(old) and all(a is b for a, b in zip(new, old, strict=True))


_Nest = TypeVar("_Nest", Kernel, For)


def with_body(nest: _Nest, body: tuple[Stmt, ...]) -> _Nest:
    """`nest` with another body; the same object where that is its own."""
    return nest if body is nest.body else replace(nest, body=body)


def accesses(expr: TileExpr | None) -> Iterator[Access]:
    """Every tensor access in `expr` (none for None)."""
    if expr is not None:
        for node in subexpressions(expr):
            if isinstance(node, Access):
                yield node


def reads(store: Store) -> Iterator[Access]:
    """Every access that `store` reads: in its value and in its mask."""
    yield from accesses(store.value)
    yield from accesses(store.mask)


def gathered_tensors(store: Store) -> Iterator[str]:
    """Names of the tensors that `store` reads element by element."""
    for root in (store.value, store.mask):
        for node in () if root is None else subexpressions(root):
            if isinstance(node, Gather):
                yield node.tensor


def stores(body: Iterable[Stmt]) -> Iterator[Store]:
    """Every store in `body`, in program order, loops entered."""
    for stmt in body:
        match stmt:
            case Store():
                yield stmt
            case For(body=inner):
                yield from stores(inner)
            case _:
                assert_never(stmt)


def written_tensors(kernel: Kernel) -> frozenset[str]:
    """Names of the tensors that `kernel` stores to."""
    return frozenset(store.target.tensor for store in stores(kernel.body))


def names_of_index(index: IndexExpr | Index) -> frozenset[str]:
    """Grid and loop variables used in an index."""
    match index:
        case Int() | NewAxis():
            return frozenset()
        case Name(name=name):
            return frozenset((name,))
        case Arith(a=a, b=b):
            return names_of_index(a) | names_of_index(b)
        case Slice(start=start):
            return names_of_index(start)
        case _:
            assert_never(index)


@lru_cache(maxsize=4096)
def names_of_access(access: Access) -> frozenset[str]:
    """Grid and loop variables used in the index of `access`."""
    return frozenset().union(*(names_of_index(index) for index in access.index))


def region(access: Access) -> tuple[IndexExpr | Slice, ...]:
    """The index of `access` without its `NewAxis`es: one entry for each dimension of the tensor."""
    return tuple(index for index in access.index if not isinstance(index, NewAxis))


def same_index(a: IndexExpr | Slice, b: IndexExpr | Slice) -> bool:
    """Whether two indices select the same elements, as far as their text shows; the axis of a slice does not count."""
    if isinstance(a, Slice) and isinstance(b, Slice):
        return a.extent == b.extent and simplify(a.start) == simplify(b.start)
    if isinstance(a, Slice) or isinstance(b, Slice):
        return False
    return simplify(a) == simplify(b)


@lru_cache(maxsize=4096)
def same_region(a: Access, b: Access) -> bool:
    """Whether two accesses of one tensor select the same tile (apart from the `NewAxis`es around it)."""
    ra, rb = region(a), region(b)
    return len(ra) == len(rb) and all(same_index(x, y) for x, y in zip(ra, rb, strict=True))


def simplify(expr: IndexExpr) -> IndexExpr:
    """`expr` with constants folded and neutral elements dropped; constants come last.

    >>> simplify(Arith("+", Arith("*", Name("i0"), Int(1)), Int(0)))
    Name(name='i0')
    """
    match expr:
        case Int() | Name():
            return expr
        case Arith(op=op, a=a, b=b):
            a, b = simplify(a), simplify(b)
            if op in ("+", "*") and isinstance(a, Int) and not isinstance(b, Int):
                a, b = b, a
            return _fold(op, a, b)
        case _:
            assert_never(expr)


def _fold(op: str, a: IndexExpr, b: IndexExpr) -> IndexExpr:
    match op, a, b:
        case _, Int(value=x), Int(value=y) if not (op in ("//", "%") and y == 0):
            return Int(arith(op, x, y))
        case ("+" | "-", _, Int(value=0)) | ("*" | "//", _, Int(value=1)):
            return a
        case ("*", _, Int(value=0)) | ("%", _, Int(value=1)):
            return Int(0)
        case ("+", Arith(op="+", a=inner, b=Int(value=x)), Int(value=y)):
            return _fold("+", inner, Int(x + y))
        case ("*", Arith(op="*", a=inner, b=Int(value=x)), Int(value=y)):
            return _fold("*", inner, Int(x * y))
        case _:
            return Arith(op, a, b)  # pyright: ignore[reportArgumentType]


def arith(op: str, a: int, b: int) -> int:
    """`a op b` as HTile means it: `//` and `%` floor."""
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


def evaluate(index: IndexExpr, env: Mapping[str, int]) -> int:
    """The value of an index expression where each variable has the value that `env` says.

    >>> evaluate(Arith("+", Arith("*", Name("i0"), Int(4)), Int(1)), {"i0": 2})
    9
    """
    match index:
        case Int(value=value):
            return value
        case Name(name=name):
            return env[name]
        case Arith(op=op, a=a, b=b):
            return arith(op, evaluate(a, env), evaluate(b, env))
        case _:
            assert_never(index)


def map_stores(body: tuple[Stmt, ...], visit: Callable[[Store], Store]) -> tuple[Stmt, ...]:
    """`body` with `visit` applied to every store; the same object where nothing changed."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Store):
            out.append(visit(stmt))
        else:
            out.append(with_body(stmt, map_stores(stmt.body, visit)))
    return body if unchanged(out, body) else tuple(out)


def conjuncts(condition: TileExpr) -> tuple[TileExpr, ...]:
    """The conditions that `condition` joins by `and`."""
    if isinstance(condition, Elementwise) and condition.op == "and":
        return tuple(part for arg in condition.args for part in conjuncts(arg))
    return (condition,)


def rewrite_store(store: Store, visit: Callable[[TileExpr], TileExpr]) -> Store:
    """`store` with `visit` applied through its value and mask; the same object where nothing changed."""
    value = rewrite(store.value, visit)
    mask = None if store.mask is None else rewrite(store.mask, visit)
    return store if value is store.value and mask is store.mask else replace(store, value=value, mask=mask)
