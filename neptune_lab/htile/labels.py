"""Labels of statements in the text of a tile program: node ids and origins that are not the usual ones.

The usual origin of a store is the name of the tensor that it stores to, that of a loop the origin of its first
statement. The usual node id is made of the origin, as the translator and the passes do it. In a part of a loop it ends
with the part, as in tile:x/interior; if it is taken, with #2, #3 and so on:

    x[0:4] = y[0:4]               origin x,      id tile:x
    x[0:4] = y[0:4]  @start       origin start,  id tile:start
    x[0:4] = y[0:4]  @x/chip      origin x,      id tile:x/chip
    x[0:4] = y[0:4]  @x=for:j0@y  origin x,      id for:j0@y
    kernel f  grid (i0: 4)  @k    id k, and else kernel:f
"""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.htile.nodes import For, Kernel, Part, Stmt, Store
from neptune_lab.strict.tokens import Token, label_parts, label_text, refusal

SUFFIX: dict[Part, str] = {"left edge": "/left", "interior": "/interior", "right edge": "/right"}


class Labels:
    """The labels of a program's statements, in the order of the text."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of_kernel(self, kernel: Kernel) -> str:
        """The kernel's label; "" if it needs none."""
        usual = self._new(f"kernel:{kernel.name}")
        self._taken.add(kernel.node_id)
        return "" if kernel.node_id == usual else label_text(kernel.node_id)

    def of(self, stmt: Stmt, around: tuple[For, ...]) -> str:
        """The statement's label; "" if it needs none."""
        before, after = _frame(stmt, around)
        rest = stmt.node_id.removeprefix(before).removesuffix(after)
        usual = self._usual(stmt, stmt.origin, around)
        short = rest.partition("/")[0] == stmt.origin and self._usual(stmt, rest, around) == stmt.node_id
        self._taken.add(stmt.node_id)
        if stmt.origin == usual_origin(stmt) and stmt.node_id == usual:
            return ""
        if short and rest and not set(rest) & set('"= \t\n'):
            return label_text(rest)
        return label_text(stmt.origin, stmt.node_id)

    def kernel(self, kernel: Kernel, label: Token | None) -> Kernel:
        """The kernel with the node id of its label, or with the usual one if `label` is None.

        Raises:
            TextError: the label is not a kernel's, or its node id is taken.
        """
        if label is None:
            node_id = self._new(f"kernel:{kernel.name}")
        else:
            node_id, more = label_parts(label)
            if more is not None:
                raise refusal(label, "the id of a kernel, such as @k")
        return replace(kernel, node_id=self._once(node_id, label))

    def named(self, stmt: Stmt, label: Token | None, origin: str, around: tuple[For, ...]) -> Stmt:
        """The statement with the node id and origin of its label; without a label, with `origin` and the usual id.

        Raises:
            TextError: the label's node id is taken.
        """
        rest, node_id = (origin, None) if label is None else label_parts(label)
        if label is not None:
            origin = origin_of(label)
        if node_id is None:
            node_id = self._usual(stmt, rest, around)
        return replace(stmt, node_id=self._once(node_id, label), origin=origin)

    def _usual(self, stmt: Stmt, rest: str, around: tuple[For, ...]) -> str:
        before, after = _frame(stmt, around)
        return self._new(f"{before}{rest}{after}")

    def _new(self, wanted: str) -> str:
        node_id, n = wanted, 2
        while node_id in self._taken:
            node_id, n = f"{wanted}#{n}", n + 1
        return node_id

    def _once(self, node_id: str, label: Token | None) -> str:
        if label is not None and node_id in self._taken:
            raise refusal(label, f"a node id of its own, not {node_id!r} again", "leave the label out")
        self._taken.add(node_id)
        return node_id


def usual_origin(stmt: Stmt) -> str:
    """The origin of a statement without a label; "" for an empty loop."""
    if isinstance(stmt, Store):
        return stmt.target.tensor
    return next((inner.origin for inner in stmt.body if inner.origin), "")


def origin_of(label: Token) -> str:
    """The origin in a label."""
    rest, node_id = label_parts(label)
    return rest.partition("/")[0] if node_id is None else rest


def _frame(stmt: Stmt, around: tuple[For, ...]) -> tuple[str, str]:
    """The text before and after the origin in the statement's usual id."""
    if isinstance(stmt, Store):
        return "tile:", _suffix(around)
    around = (*around, stmt)
    return f"for:{'.'.join(loop.var for loop in around)}@", _suffix(around)


def _suffix(around: tuple[For, ...]) -> str:
    return "".join(SUFFIX.get(loop.part, "") for loop in around)
