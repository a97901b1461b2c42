"""Iterations that a bound skips entirely: they must not change tiles on chip.

If a loop of 3 iterations is split into 1 x 4, no block runs in the fourth iteration.  A tile whose region does not
depend on that loop must not be stored then: a running maximum would be updated with elements that do not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from neptune_lab.htile.nodes import Access, Elementwise, For, Literal, Stmt, Store, TileExpr
from neptune_lab.htile.walk import names_of_access, stores


def unless_skipped(target: Access, value: TileExpr, runs: TileExpr, dtype: str) -> TileExpr:
    """`where(runs, value, target)`."""
    return Elementwise("where", (runs, value, target), dtype)


def with_first_values(
    body: tuple[Stmt, ...], dtypes: Mapping[str, str], stored: frozenset[str] = frozenset()
) -> tuple[Stmt, ...]:
    """The statements, with a store of 0 before each loop whose first iteration might skip a tile's first store.

    Only the last iterations are skipped, so the 0 is never used; but a tile that a loop updates needs a value before
    the loop.

    Args:
        body: statements of a kernel, in order.
        dtypes: of the tensors, by name.
        stored: tensors that were stored before.
    """
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            seen = set(stored)
            for store in stores(stmt.body):
                tensor = store.target.tensor
                moves = stmt.var in names_of_access(store.target)
                if tensor not in seen and _may_be_skipped(store) and not moves:
                    first = Literal(0.0 if "float" in dtypes[tensor] else 0, dtypes[tensor])
                    result.append(Store(f"tile:{tensor}/first", store.target, first, store.origin))
                    stored |= {tensor}
                seen.add(tensor)
            result.append(replace(stmt, body=with_first_values(stmt.body, dtypes, stored)))
        else:
            result.append(stmt)
        stored |= {store.target.tensor for store in stores((stmt,))}
    return tuple(result)


def _may_be_skipped(store: Store) -> bool:
    value = store.value
    return isinstance(value, Elementwise) and value.op == "where" and value.args[2] == store.target


__all__ = ["unless_skipped", "with_first_values"]
