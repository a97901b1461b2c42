"""Divides a backward pass into parts, each of which can be one loop nest.

The gradient of the queries is a sum over keys, and those of keys and values are sums over queries.  A stage along both
dimensions, such as the scores, would have to go through memory between the two nests, with an element per pair.  So
each nest computes its own copy, and what lies along one dimension only, such as the delta of each row, is computed
before.  Each nest computes its copy in the order of axes that its products read (`tile_order`), and sums over groups of
heads where it sums over queries (`groups`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from neptune_lab.loop_ir.dimensions import Dimension, Dimensions, dimensions
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Block, Load, Program
from neptune_lab.loop_ir.products import is_product
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import is_plain, loads
from neptune_lab.operators.reverse_mode.groups import with_groups_summed
from neptune_lab.operators.reverse_mode.stages import Stage, in_order, needed, renamed
from neptune_lab.operators.reverse_mode.stored import read_rounded
from neptune_lab.operators.reverse_mode.tile_order import left_factors, reordered

# Up to so many products per element, computing them again takes less time than storing and loading the sum in float32:
# 2 operations each at 700 TFLOP/s against 8 bytes at 4 TB/s.
MOST_REPEATED = 700

# Up to so many elements of all pairs, 4 GiB in float32, are stored for the gradient of a bias that has one per pair.
MOST_STORED = 2**30


@dataclass(frozen=True, slots=True)
class Division:
    """The stages in parts: first what several results read, then those of each group of results.

    Args:
        parts: without empty ones; their stages together are the definition.
        copies: by stage that computes again what an earlier part computes, the name of that one.
    """

    parts: tuple[tuple[Stage, ...], ...]
    copies: Mapping[str, str]


def divided(
    program: Program,
    stages: Sequence[Stage],
    results: Sequence[str],
    grouped: bool | None = None,
    partial: Collection[str] = (),
) -> Division:
    """Divides the stages into parts.

    Args:
        program: a definition.
        stages: its stages.
        results: names of stages.
        grouped: as for `with_groups_summed`.
        partial: names of sums that a later part adds up (`partial_sums`).

    Returns:
        The parts, in which copies have names with a number.
    """
    defined = _Definition.of(program, stages)
    groups = defined.groups(results)
    of_group = [needed(stages, names) for names in groups.values()]
    early = {name for fold, group in zip(groups, of_group, strict=True) for name in _early(group, fold, defined)}
    early -= {*results}
    if len(groups) == 1 and not early and {*results} == {*_in_one_nest(results, frozenset(), stages, defined)}:
        orders = left_factors(stages, results, next(iter(groups)), defined.dims, defined.blocks)
        whole = with_groups_summed([reordered(stage, orders) for stage in stages], results, grouped)
        return Division(_in_steps(whole, partial), {})
    before = needed(stages, defined.shared(groups, of_group, early))
    parts: list[Sequence[Stage]] = [before]
    names = _Names({*defined.stages, *program.inputs})
    for n, (fold, group) in enumerate(zip(groups, of_group, strict=True)):
        mine = [stage for stage in group if stage not in before]
        orders = left_factors(mine, results, fold, defined.dims, defined.blocks)
        copies = names.of_copies(mine, results, n + 1) if n else {}
        chosen = _in_one_nest(groups[fold], fold, mine, defined)
        mine = in_order([renamed(reordered(stage, orders), copies) for stage in mine])
        whole = with_groups_summed(mine, results, grouped)
        nest = needed(whole, [copies.get(one, one) for one in chosen])
        rest = read_rounded([stage for stage in whole if stage not in nest], nest, results)
        sums = {copies.get(one, one) for one in partial}
        parts += [*_in_steps(nest, sums), *_in_steps(rest, sums)]
    return Division(tuple(tuple(part) for part in parts if part), names.copies)


@dataclass(slots=True)
class _Names:
    """Names of stages, and the stage that each copy is of."""

    taken: set[str]
    copies: dict[str, str] = field(default_factory=dict)

    def of_copies(self, stages: Sequence[Stage], results: Collection[str], part: int) -> dict[str, str]:
        """New names, with the number of the part, for all stages but results, by their own; whether or not a stage is a
        copy, so that names are the same at all sizes."""
        names: dict[str, str] = {}
        for stage in stages:
            if stage.name not in results:
                names[stage.name] = unique(f"{stage.name}_{part}", self.taken, "_")
                self.taken.add(names[stage.name])
        self.copies |= {copy: name for name, copy in names.items()}
        return names


@dataclass(frozen=True, slots=True)
class _Definition:
    """What is asked about the stages of a definition.

    Args:
        stages: by name.
        blocks: the block of each stage.
        dims: which axes of different blocks are one dimension.
        spatial: the dimensions of each stage, without those that it folds.
    """

    stages: Mapping[str, Stage]
    blocks: Mapping[str, Block]
    dims: Dimensions
    spatial: Mapping[str, Collection[Dimension]]

    @classmethod
    def of(cls, program: Program, stages: Sequence[Stage]) -> _Definition:
        dims, by_block = dimensions(program), {block.name: block for block in blocks(program)}
        spatial = {stage.name: dims.all_of(by_block[stage.name], "spatial").keys() for stage in stages}
        return cls({stage.name: stage for stage in stages}, by_block, dims, spatial)

    def groups(self, results: Sequence[str]) -> dict[frozenset[Dimension], list[str]]:
        """The results that one nest can compute, by the dimensions that its loop folds."""
        groups: dict[frozenset[Dimension], list[str]] = {}
        for name in results:
            groups.setdefault(self._folded_last(name), []).append(name)
        return _with_diagonals(_with_pairs(groups, self), self)

    def _folded_last(self, name: str) -> frozenset[Dimension]:
        """The dimensions of the last sum that makes a result, sums of its partial results and dimensions of one element
        aside."""
        while self.stages[name].reducer is None or _adds_sums(self.stages[name], self.stages):
            made = [read for read in self.stages[name].reads if read in self.stages]
            if len(made) != 1:
                return frozenset()
            (name,) = made
        own = self.dims.all_of(self.blocks[name], "reduce")
        return frozenset(d for d, axis in own.items() if self.stages[name].extents[axis] > 1)

    def shared(
        self, folds: Collection[frozenset[Dimension]], of_group: Sequence[Sequence[Stage]], early: Collection[str]
    ) -> list[str]:
        """The stages that a part before all nests computes: the early ones, and those that several nests read and that
        are not cheap enough for each to compute them again.

        Args:
            folds: the dimensions that each nest folds.
            of_group: the stages that each nest needs.
            early: names of stages, from `_early`.
        """
        repeated = {
            name
            for name, stage in self.stages.items()
            if sum(bool(fold & self.dims.all_of(self.blocks[name]).keys()) for fold in folds if fold) > 1
            and _products(stage) <= MOST_REPEATED
            and name not in early
        }
        return [
            name
            for name, stage in self.stages.items()
            if name in early or (name not in repeated and sum(stage in group for group in of_group) > 1)
        ]


def _with_pairs(
    groups: Mapping[frozenset[Dimension], Sequence[str]], defined: _Definition
) -> dict[frozenset[Dimension], list[str]]:
    """The groups, with each result along pairs in the group of the first nest that computes pairs.

    The gradient of `bias[h, q, kv]` has an element per pair, so it can be a sum over samples of what that nest stores.
    A nest of its own would compute the scores again, one row at a time and without matrix units, since a tile would
    have samples, rows and columns.

    Formal statement: such a result has the dimensions that the products of matrices of two other groups fold, and what
    it sums has at most `MOST_STORED` elements.  (Sums over samples are no products: the gradient of the queries has
    samples too.)
    """
    made = {fold: list(names) for fold, names in groups.items()}
    stages, blocks = defined.stages, defined.blocks
    products = {f for f, names in groups.items() if any(is_product(blocks[_sums(stages, n)[-1]]) for n in names)}
    for fold, names in groups.items():
        for name in names:
            others = [other for other in groups if other in products - {fold} and other <= {*defined.spatial[name]}]
            terms = stages[name].size * max((_products(stages[r]) for r in _sums(stages, name)), default=1)
            if len(others) > 1 and terms <= MOST_STORED:
                made[fold].remove(name)
                made[others[0]].append(name)
    return {fold: names for fold, names in made.items() if names}


def _with_diagonals(
    groups: Mapping[frozenset[Dimension], Sequence[str]], defined: _Definition
) -> dict[frozenset[Dimension], list[str]]:
    """The groups, with each sum along diagonals of pairs in the group of a nest that stores them row by row.

    The gradient of `bias[h, q - kv + S]` is a sum over queries, at each of which neighbouring diagonals are
    neighbouring keys. The nest of the queries stores the keys of a query side by side, that of the keys its queries.

    Formal statement: such a sum reads pairs at an index that is no variable, and folds one dimension of them; the other
    group's sums fold another dimension of them.
    """
    made = {fold: list(names) for fold, names in groups.items()}
    for fold, names in groups.items():
        for name in names:
            last = defined.stages[_sums(defined.stages, name)[-1]]
            pairs = [read for read in loads(last.term) if read.buffer in defined.stages and not is_plain(read)]
            own = {d for read in pairs for d in defined.spatial[read.buffer]}
            others = [other for other in groups if other and other != fold and other <= own]
            if fold and fold <= own and others:
                made[fold].remove(name)
                made[others[0]].append(name)
    return {fold: names for fold, names in made.items() if names}


def _sums(stages: Mapping[str, Stage], name: str) -> list[str]:
    """The result and the stages that it is a conversion of, up to the sum that makes it."""
    found = [name]
    while stages[found[-1]].reducer is None:
        made = [read for read in stages[found[-1]].reads if read in stages]
        if len(made) != 1:
            break
        found += made
    return found


def _in_one_nest(
    group: Sequence[str],
    fold: frozenset[Dimension],
    own: Sequence[Stage],
    defined: _Definition,
) -> list[str]:
    """The results of a group that one nest computes; what the others need besides is a part after it.

    The gradient of the queries and that of a bias `bias[q - kv + S]` are both sums over keys. But the bias is read by
    all samples, so a program of one nest would hold all of them; and its sum goes along diagonals, so it reads what
    the nest computes where another program stored it.

    Formal statement: a result is left to a later part if a sum on the way to it that is no product of matrices folds a
    dimension that the result lacks and the group's other results have, or reads a stage of the part at an index that
    is no variable.  So is a result that has an element for each iteration of the nest's loop, such as the gradient of a
    bias of each sample, head and pair, if the nest has other results.

    Args:
        group: names of results.
        fold: the dimensions that the nest's loop folds.
        own: the stages of the part that computes them.
        defined: the definition.

    Returns:
        Some of them, and the partial sums of the others that the nest computes; all if each is left.
    """
    blocks, spatial = defined.blocks, defined.spatial
    names = {stage.name for stage in own}
    by_name = {stage.name: stage for stage in own}
    found: list[str] = []
    partial: list[str] = []
    for name in group:
        others = {d for other in group if other != name for d in spatial[other]} - {*spatial[name]}
        sums = [s for s in needed(own, [name]) if s.reducer is not None and not is_product(blocks[s.name])]
        folded = {s.name: defined.dims.all_of(blocks[s.name], "reduce").keys() for s in sums}
        apart = {s.name for s in sums if others & folded[s.name] or not _reads_plainly(s, names)}
        each = bool(fold) and fold <= {*spatial[name]} and any(not fold <= {*spatial[other]} for other in group)
        if not apart and not each:
            found.append(name)
        # What a sum that is left reads and nothing else, such as sums of rows.
        partial += [s.name for s in sums if s.name not in apart and any(by_name[a].term == s.element for a in apart)]
    return [*found, *partial] if found else list(group)


def _in_steps(stages: Sequence[Stage], partial: Collection[str]) -> tuple[tuple[Stage, ...], ...]:
    """The stages in parts: what adds up partial sums begins a part of its own, since one program of a nest of both
    would have a tile of all that either folds; so does a sum along diagonals, which reads what other programs store."""
    names = {stage.name for stage in stages}

    def begins(stage: Stage) -> bool:
        adds = isinstance(stage.term, Load) and stage.term.buffer in partial
        return adds or (stage.reducer is not None and not _reads_plainly(stage, names))

    starts = [n for n, stage in enumerate(stages) if n and begins(stage)]
    return tuple(tuple(stages[a:b]) for a, b in pairwise([0, *starts, len(stages)]))


def _adds_sums(stage: Stage, stages: Mapping[str, Stage]) -> bool:
    """Whether a stage adds up partial sums."""
    return isinstance(stage.term, Load) and stage.term.buffer in stages and stages[stage.term.buffer].reducer == "sum"


def _reads_plainly(stage: Stage, names: Collection[str]) -> bool:
    """Whether a stage reads those of these names at variables only."""
    return all(is_plain(read) for read in loads(stage.term) if read.buffer in names)


def _early(group: Sequence[Stage], fold: frozenset[Dimension], defined: _Definition) -> list[str]:
    """The sums of a group that are computed before its nest, such as the delta of a row before the sum over rows.

    Formal statement: the nest goes along `fold`, and computes elements along further dimensions that such a sum lacks,
    so that each of its programs would compute the sum again; and the sum reads nothing that the nest computes along
    these dimensions.
    """
    found: list[str] = []
    for stage in group:
        own = {*defined.spatial[stage.name]}
        if stage.reducer is None or _products(stage) == 1 or not fold or not fold <= own:
            continue
        wider = {other.name for other in group if own < {*defined.spatial[other.name]}}
        if wider and not wider & {other.name for other in needed(group, [stage.name])}:
            found.append(stage.name)
    return found


def _products(stage: Stage) -> int:
    """How many terms one element folds."""
    count = 1
    for _, extent in stage.folded:
        count *= extent
    return count


__all__ = ["Division", "divided"]
