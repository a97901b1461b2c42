"""Walks over the expressions of the loop-scalar IR: what they read, and rewrites of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from neptune_lab.loop_ir.nodes import Block, Const, Expr, Iter, Load, Op, Previous, Store, Var, children, rebuild


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """The conditions that `condition` joins by `and`."""
    match condition:
        case Op("and", (a, b)):
            return conjuncts(a) + conjuncts(b)
    return (condition,)


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of an expression, operands first."""
    nodes: list[Expr] = []
    _collect(expr, nodes)  # one list: a generator per node would pass each node through all those above it
    return iter(nodes)


def _collect(expr: Expr, nodes: list[Expr]) -> None:
    for child in children(expr):
        _collect(child, nodes)
    nodes.append(expr)


def walk_once(expr: Expr) -> Iterator[Expr]:
    """As `walk`, but a node that is the operand of several others comes once.

    Where each of n stages reads the one before twice, the inlined expression is a tree of 2^n nodes, of which n differ.
    """
    nodes: dict[int, Expr] = {}
    _collect_once(expr, nodes)
    return iter(nodes.values())


def _collect_once(expr: Expr, nodes: dict[int, Expr]) -> None:
    if id(expr) in nodes:
        return
    for child in children(expr):
        _collect_once(child, nodes)
    nodes[id(expr)] = expr


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Variables replaced by expressions, all at once."""
    return _substituted(expr, values, {})


def _substituted(expr: Expr, values: Mapping[str, Expr], done: dict[int, Expr]) -> Expr:
    if type(expr) is Var:
        return values.get(expr.name, expr)
    operands = children(expr)
    if not operands:
        return expr
    found = done.get(id(expr))
    if found is None:
        found = done[id(expr)] = rebuild(expr, tuple([_substituted(child, values, done) for child in operands]))
    return found


def transform(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Bottom-up rewrite: `rule(node)` returns the node's replacement, or the node itself for no change.

    A node that is the operand of several others is rewritten once, and the result is shared by them too.
    """
    return _transformed(expr, rule, {})


def transform_each(expr: Expr, rule: Callable[[Expr], Expr]) -> dict[Expr, Expr]:
    """Every node of an expression, constants aside, and what `transform` makes of it."""
    done: dict[int, Expr] = {}
    return {node: _transformed(node, rule, done) for node in walk_once(expr) if not isinstance(node, Const)}


def _transformed(expr: Expr, rule: Callable[[Expr], Expr], done: dict[int, Expr]) -> Expr:
    operands = children(expr)
    if not operands:
        return rule(expr)
    found = done.get(id(expr))
    if found is None:
        found = done[id(expr)] = rule(rebuild(expr, tuple([_transformed(child, rule, done) for child in operands])))
    return found


def variables(expr: Expr) -> set[str]:
    """Names of the variables that occur."""
    return set(_variables(expr))


def loads(expr: Expr) -> list[Load | Previous]:
    """All reads, in evaluation order."""
    return list(_loads(expr))


def distinct_reads(expr: Expr) -> tuple[Load | Previous, ...]:
    """Every read once, in evaluation order; as `walk_once`, in time that grows with the nodes that differ."""
    return tuple(dict.fromkeys(node for node in walk_once(expr) if isinstance(node, Load | Previous)))


def is_plain(read: Load | Previous) -> bool:
    """Whether each index of a read is a variable or a constant."""
    return all(isinstance(index, Var | Const) for index in read.indices)


@lru_cache(maxsize=16384)
def _variables(expr: Expr) -> frozenset[str]:
    return frozenset(node.name for node in walk_once(expr) if isinstance(node, Var))


@lru_cache(maxsize=16384)
def _loads(expr: Expr) -> tuple[Load | Previous, ...]:
    return tuple(node for node in walk(expr) if isinstance(node, Load | Previous))


@lru_cache(maxsize=16384)
def buffers_read(expr: Expr) -> frozenset[str]:
    """Names of the buffers that an expression reads."""
    return frozenset(read.buffer for read in distinct_reads(expr))


def reads(block: Block, buffer: str) -> bool:
    """Whether the value that the block stores reads `buffer`, at the current or the previous tag."""
    return reads_buffer(block.body.value, buffer)


def reads_buffer(expr: Expr, buffer: str) -> bool:
    """Whether an expression reads `buffer`, at the current or the previous tag."""
    return buffer in buffers_read(expr)


def bound_loops(iters: Iterable[Iter]) -> set[str]:
    """Names of the loops in the bindings of iteration variables."""
    return set().union(*(variables(it.binding) for it in iters))


@lru_cache(maxsize=4096)
def folded_loops(block: Block) -> frozenset[str]:
    """The loops in the bindings of the block's reduce iterations."""
    return frozenset(bound_loops(it for it in block.iters if it.kind == "reduce"))


def map_store(store: Store, rule: Callable[[Expr], Expr]) -> Store:
    """The store with its indices and value replaced by `rule(expression)`."""
    return Store(store.buffer, tuple(rule(i) for i in store.indices), rule(store.value))
