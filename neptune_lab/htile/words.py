"""What each statement of a tile program is, in a few words: the kind that the record keeps of its lines."""

from __future__ import annotations

from functools import lru_cache
from math import isinf

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import subexpressions


def kinds(program: ir.Program) -> dict[str, str]:
    """The kind of each kernel, loop and store by node id; words are separated by spaces.

    The first word is what the node id begins with.  For a loop the part that it is follows ("left-edge", "interior",
    ...), for a store those of

    - "dot", "accumulates": a matrix product, and one that is added to an accumulator;
    - "sum", "max", "min", "prod": a reduction over a dimension of a tile;
    - "mask": a `where` on positions, or a masked store; "guard": a `where` that replaces an infinity;
    - "loads", "gathers", "stores": it reads or writes global memory, or reads it element by element;
    - "fills", "copies": its value is a constant, or another tile as it is.

    Args:
        program: verified HTile.
    """
    outside = frozenset(t.name for t in program.tensors if t.space != "chip")
    found: dict[str, str] = {}

    def visit(body: tuple[ir.Stmt, ...]) -> None:
        for stmt in body:
            if isinstance(stmt, ir.For):
                part = "visited" if stmt.part == "whole" else stmt.part.replace(" ", "-")
                found[stmt.node_id] = _joined(stmt.node_id, (part,) if part else ())
                visit(stmt.body)
            else:
                found[stmt.node_id] = _joined(stmt.node_id, _words(stmt, outside))

    for kernel in program.kernels:
        found[kernel.node_id] = _joined(kernel.node_id, ())
        visit(kernel.body)
    return found


def _joined(node_id: str, words: tuple[str, ...]) -> str:
    return " ".join([node_id.partition(":")[0], *words])


# Most passes change few stores, and the record keeps the program after each pass.
@lru_cache(maxsize=4096)
def _words(store: ir.Store, outside: frozenset[str]) -> tuple[str, ...]:
    """The words of a store, each once; `outside` names the tensors in global memory."""
    words: dict[str, None] = {}
    for expr in subexpressions(store.value):
        match expr:
            case ir.Dot(acc=acc):
                words |= {"dot": None} if acc is None else {"dot": None, "accumulates": None}
            case ir.Reduce(op=op):
                words[op] = None
            case ir.Gather():
                words["gathers"] = None
            case ir.Access(tensor=tensor) if tensor in outside:
                words["loads"] = None
            case ir.Elementwise(op="where", args=(condition, *_)):
                inside = list(subexpressions(condition))
                if any(isinstance(x, ir.Iota) for x in inside):
                    words["mask"] = None
                elif any(isinstance(x, ir.Literal) and isinstance(x.value, float) and isinf(x.value) for x in inside):
                    words["guard"] = None
    if store.mask is not None:
        words["mask"] = None
    if isinstance(store.value, ir.Literal):
        words["fills"] = None
    elif isinstance(store.value, ir.Access):
        words["copies"] = None
    if store.target.tensor in outside:
        words["stores"] = None
    return tuple(words)


__all__ = ["kinds"]
