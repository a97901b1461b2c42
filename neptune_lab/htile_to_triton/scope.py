"""Names and scopes of one emitted kernel: each definition is placed in the outermost possible scope."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

RESERVED = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"tl", "triton", "torch", "INTERPRETED"}


class UniqueNames:
    """Makes identifiers that differ from Python's and Triton's names and from each other.

    >>> names = UniqueNames()
    >>> names.fresh("max"), names.fresh("q"), names.fresh("q")
    ('max_', 'q', 'q_2')
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(RESERVED) | set(taken)

    def fresh(self, wanted: str) -> str:
        """`wanted`, or a similar name if it is taken or not an identifier."""
        base = re.sub(r"\W", "_", wanted)
        base = f"_{base}" if base[:1].isdigit() or not base else base
        base = f"{base}_" if base in RESERVED else base
        name, n = base, 1
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._taken.add(name)
        return name


@dataclass(slots=True, eq=False)
class Draft:
    """One statement without a line number yet.

    Args:
        lines: its text.
        origin: the loop-IR block that it comes from.
        nodes: ids of the HTile nodes that use it (a dict used as an ordered set); empty: it is not emitted.
        needs: definitions that it reads.
        is_comment: whether it is a comment.
    """

    lines: list[str]
    origin: str
    nodes: dict[str, None] = field(default_factory=dict)
    needs: tuple[Draft, ...] = ()
    is_comment: bool = False

    def used_by(self, node: str) -> None:
        """Links this statement, and the definitions that it reads, to an HTile node."""
        if node not in self.nodes:
            self.nodes[node] = None
            for draft in self.needs:
                draft.used_by(node)


@dataclass(slots=True, eq=False)
class Scope:
    """The body of a kernel or of a loop.

    Args:
        parent: the scope around it.
        binds: the variables that it binds.
        prelude: definitions at its top.
        body: its statements.
        header: the loop's first line; None for a kernel.
        known: the name and the line of each definition, by key.
    """

    parent: Scope | None
    binds: frozenset[str]
    prelude: list[Draft] = field(default_factory=list)
    body: list[Draft | Scope] = field(default_factory=list)
    header: Draft | None = None
    known: dict[Hashable, tuple[str, Draft]] = field(default_factory=dict)

    def chain(self) -> Iterator[Scope]:
        """This scope and those around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def lookup(self, key: Hashable) -> tuple[str, Draft] | None:
        """The name and the line of the definition `key`, here or in a scope around."""
        return next((scope.known[key] for scope in self.chain() if key in scope.known), None)

    def widest(self, names: frozenset[str]) -> Scope:
        """The outermost scope in which every one of `names` is bound."""
        for scope in self.chain():
            if scope.binds & names or scope.parent is None:
                return scope
        raise AssertionError("a scope chain ends at its root")

    def is_related(self, other: Scope) -> bool:
        """Whether one of the two scopes contains the other."""
        return any(s is other for s in self.chain()) or any(s is self for s in other.chain())

    def drafts(self, indent: str) -> Iterator[tuple[str, Draft]]:
        """Every statement in order with its indentation, without unused definitions."""
        for item in [*self.prelude, *self.body]:
            if isinstance(item, Scope):
                assert item.header is not None
                yield indent, item.header
                inner = list(item.drafts(indent + "    "))
                yield from inner or [(indent + "    ", Draft(["pass"], item.header.origin, item.header.nodes))]
            elif item.nodes:
                yield indent, item
