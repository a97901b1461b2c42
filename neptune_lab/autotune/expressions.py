"""MCFuser's tiling expressions (its section III-A): the nesting order of the cross-tile loops of a chain.

A chain is a list of computations over shared loops, such as the two products of a GEMM chain, C[m, n] = A[m, k] B[k, n]
and E[m, h] = C[m, n] D[n, h].  An expression gives the nesting of its loops: `mhnk` puts k innermost (*deep*: every
loop inside the one before), `mn(k,h)` runs k and then h inside n (*flat*: loops of different computations in sequence).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain as concatenate
from itertools import permutations, product

from neptune_lab.errors import TuneError


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a computation sees it.

    Args:
        name: of the tensor.
        loops: the loops that index it, each a dimension of its tile.
        itemsize: bytes per element.
        selected: loops that select the tile without being a dimension of it (the heads of a group select one key head).
    """

    name: str
    loops: tuple[str, ...]
    itemsize: int = 2
    selected: tuple[str, ...] = ()

    @property
    def related(self) -> tuple[str, ...]:
        """The loops that its tile depends on."""
        return (*self.loops, *self.selected)


@dataclass(frozen=True, slots=True)
class Computation:
    """One computation block: `output` from `operands`; a `product` runs on the matrix units."""

    output: Operand
    operands: tuple[Operand, ...]
    product: bool = True

    @property
    def loops(self) -> tuple[str, ...]:
        """Every loop that the computation runs along: those of its operands, then those of its output."""
        return tuple(dict.fromkeys(concatenate(*(o.related for o in self.operands), self.output.loops)))

    @property
    def reduced(self) -> tuple[str, ...]:
        """The loops that it folds."""
        return tuple(loop for loop in self.loops if loop not in self.output.loops)


@dataclass(frozen=True, slots=True)
class Chain:
    """Computations in order, and the extent of each loop."""

    extents: tuple[tuple[str, int], ...]
    computations: tuple[Computation, ...]

    def __post_init__(self) -> None:
        known = dict(self.extents)
        for computation in self.computations:
            for loop in computation.loops:
                if loop not in known:
                    raise TuneError(
                        f"{computation.output.name} runs along loop {loop!r}, whose extent is not given; "
                        f"given are {', '.join(known)}",
                        help="add (loop, size) to extents",
                    )

    @property
    def loops(self) -> tuple[str, ...]:
        """All loops, in the order of `extents`."""
        return tuple(loop for loop, _ in self.extents)

    @property
    def computed(self) -> frozenset[str]:
        """Names of the tensors that the chain computes."""
        return frozenset(c.output.name for c in self.computations)

    @property
    def intermediates(self) -> frozenset[str]:
        """Names of the tensors that one computation writes and another reads: they stay on chip."""
        return self.computed & {o.name for c in self.computations for o in c.operands}

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """Each tensor once, in the order of first use."""
        every = concatenate(*((*c.operands, c.output) for c in self.computations))
        return tuple({tensor.name: tensor for tensor in every}.values())

    def users(self, loop: str) -> tuple[int, ...]:
        """Which computations run along `loop`, by number."""
        return tuple(n for n, c in enumerate(self.computations) if loop in c.loops)

    @property
    def shared(self) -> tuple[str, ...]:
        """Loops that more than one computation runs along."""
        return tuple(loop for loop in self.loops if len(self.users(loop)) > 1)

    @property
    def parallel(self) -> tuple[str, ...]:
        """Spatial loops: those that no computation folds. They can be spread over thread blocks."""
        folded = {loop for c in self.computations for loop in c.reduced}
        return tuple(loop for loop in self.loops if loop not in folded)


def gemm_chain(m: int, n: int, k: int, h: int, itemsize: int = 2) -> Chain:
    """The GEMM chain of MCFuser's Figure 3: C[m, n] = A[m, k] B[k, n], E[m, h] = C[m, n] D[n, h]."""
    a, b, c = Operand("A", ("m", "k"), itemsize), Operand("B", ("k", "n"), itemsize), Operand("C", ("m", "n"), itemsize)
    d, e = Operand("D", ("n", "h"), itemsize), Operand("E", ("m", "h"), itemsize)
    return Chain((("m", m), ("n", n), ("k", k), ("h", h)), (Computation(c, (a, b)), Computation(e, (c, d))))


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tiling expression: `nested` loops, outermost first, then inside them the loops of `sequence`, part by part.

    >>> str(Tiling(("m", "h", "n", "k"))), str(Tiling(("m", "n"), (("k",), ("h",))))
    ('mhnk', 'mn(k,h)')
    """

    nested: tuple[str, ...]
    sequence: tuple[tuple[str, ...], ...] = ()

    @property
    def deep(self) -> bool:
        """Whether every two loops are nested in each other."""
        return not self.sequence

    @property
    def loops(self) -> tuple[str, ...]:
        """All loops, in the order of the text."""
        return (*self.nested, *concatenate(*self.sequence))

    def around(self, loop: str) -> tuple[str, ...]:
        """`loop` and the loops around it, outermost first; KeyError if there is no such loop."""
        for order in (self.nested, *((*self.nested, *part) for part in self.sequence)):
            if loop in order:
                return order[: order.index(loop) + 1]
        raise KeyError(loop)

    def without(self, *loops: str) -> Tiling:
        """The expression without some loops; itself if it has none of them."""
        if not set(loops) & set(self.loops):
            return self
        parts = tuple(part for p in self.sequence if (part := _but(p, loops)))
        nested = _but(self.nested, loops)
        return Tiling((*nested, *parts[0])) if len(parts) == 1 else Tiling(nested, parts)

    def __str__(self) -> str:
        joint = "" if all(len(loop) == 1 for loop in self.loops) else " "
        text = joint.join(self.nested)
        return f"{text}({','.join(joint.join(part) for part in self.sequence)})" if self.sequence else text


def _but(loops: tuple[str, ...], gone: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(loop for loop in loops if loop not in gone)


def deep_tilings(chain: Chain) -> Iterator[Tiling]:
    """Every order of all loops: x! for x loops."""
    return (Tiling(order) for order in permutations(chain.loops))


def flat_tilings(chain: Chain) -> Iterator[Tiling]:
    """Shared loops in every order, around the sequence of the loops that only one computation has; none if fewer than
    two computations have such loops."""
    own = [tuple(loop for loop in chain.loops if chain.users(loop) == (n,)) for n in range(len(chain.computations))]
    parts = [part for part in own if part]
    if len(parts) < 2:
        return
    for nested in permutations(chain.shared):
        for sequence in product(*(permutations(part) for part in parts)):
            yield Tiling(nested, sequence)


def tilings(chain: Chain) -> tuple[Tiling, ...]:
    """All tiling expressions, deep ones first.

    >>> len(tilings(gemm_chain(1024, 1024, 512, 512)))
    26
    """
    return (*deep_tilings(chain), *flat_tilings(chain))


def bind(chain: Chain, tiling: Tiling) -> tuple[tuple[str, ...], Tiling]:
    """The loops that go to the grid (`blockIdx`), and the sub-tiling expression of one thread block.

    Spatial loops are bound.  One that all computations run along (m of a GEMM chain) always is.  One that only some
    run along (h: binding it makes every block compute C again) is bound if it is the outermost or innermost
    remaining loop; between two loops that stay it stays as well, as do the loops of a sequence.  The paper states
    the first half and gives `mhnk` and `mnkh`, both `nk` for a block, as its example; the second half is ours: among
    readings that give the example, it is the one that also gives the published counts, 5 sub-tiling expressions of a
    GEMM chain and 3 after rule 2, which the paper does not list.

    >>> chain = gemm_chain(1024, 1024, 512, 512)
    >>> sorted({str(bind(chain, t)[1]) for t in tilings(chain)})
    ['khn', 'kn', 'n(k,h)', 'nhk', 'nk']
    """
    free = [loop for loop in tiling.nested if loop in chain.parallel]
    grid = [loop for loop in free if len(chain.users(loop)) == len(chain.computations)]
    rest = [loop for loop in tiling.nested if loop not in grid]
    if tiling.deep:
        while rest and rest[0] in free:
            grid.append(rest.pop(0))
        while rest and rest[-1] in free:
            grid.append(rest.pop())
    ordered = tuple(loop for loop in tiling.nested if loop in grid)
    return ordered, tiling.without(*ordered)
