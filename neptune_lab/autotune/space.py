"""The candidates of an operator on a device: every template that suits it with its options, less those that rules
refuse."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.autotune import limits
from neptune_lab.autotune.nests import NestChain, Nests
from neptune_lab.autotune.shared_memory import GROUP_ROWS
from neptune_lab.choice import Choice
from neptune_lab.errors import TuneError
from neptune_lab.htile_to_triton.options import COMBINE_SPLITS, LOADS
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Cast, Expr, Load, Op
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.scalar_ops import EXCHANGED
from neptune_lab.target import Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

Option: TypeAlias = "int | str | bool | None"

# Rows, columns and warps of tiles: of matrix products, of products with a single row, and of long rows without any.
ROWS = {"matrix": (16, 32, 64, 128, 256), "vector": (1, 2, 4, 8), "rows": (1, 2, 4, 8)}
COLUMNS = {
    "matrix": (16, 32, 64, 128, 256),
    "vector": (16, 32, 64, 128, 256, 512),
    "rows": (256, 1024, 2048, 4096, 8192, 16384, 32768),
}
WARPS = {"matrix": (2, 4, 8), "vector": (1, 2, 4, 8), "rows": (2, 4, 8, 16, 32)}
STAGES = (1, 2, 3, 4)
OUTPUT_COLUMNS = (32, 64, 128)
# Thread blocks per multiprocessor of a split.
WAVES = (1, 2, 4)
# Of kernels in Gluon: columns of a tile, and tiles in a pipelined buffer.
GLUON_COLUMNS = (64, 128)
GLUON_STAGES = (2, 3)
GLUON_HEADS = (None, 1, 8)
# Of loops without products; None is Triton's default, nothing loaded ahead.
LOOP_STAGES = (None, 2, 4)
# A rolling loop that uses less than one in this many multiprocessors is tried only if it is short.
IDLE = 4
# The longest such column; that of a row without products fits in one tile.
SHORT_COLUMN = {"matrix": 2048, "vector": 2048, "rows": 32768}
# A split has at least this many columns.
LEAST_COLUMNS = 32
# The largest space that is enumerated if random draws find nothing.
ENUMERATED = 50_000
# Draws from a space before it counts as empty.
ATTEMPTS = 5000


@dataclass(frozen=True, slots=True)
class Knob:
    """An option and the values to choose from; `nest` is the number of its nest, None for all."""

    option: str
    values: tuple[Option, ...]
    nest: int | None = None


@dataclass(frozen=True, slots=True)
class Subspace:
    """A template and its knobs.

    Args:
        fixed: options that all its candidates have; they distinguish two subspaces of one template.
    """

    template: str
    knobs: tuple[Knob, ...]
    fixed: tuple[tuple[str, Option], ...] = ()

    def __contains__(self, candidate: Choice) -> bool:
        options = candidate.options
        own = {knob.option for knob in self.knobs} | {name for name, _ in self.fixed}
        same = all(options.get(name) == value for name, value in self.fixed)
        return candidate.template == self.template and same and options.keys() <= own

    @property
    def size(self) -> int:
        """The number of combinations, before any is refused."""
        return prod(len(knob.values) for knob in self.knobs)

    def candidate(self, values: tuple[Option, ...]) -> Choice:
        """The candidate with one value per knob; options of several nests become tuples."""
        options: dict[str, Any] = dict(self.fixed)
        nests = 1 + max((knob.nest for knob in self.knobs if knob.nest is not None), default=0)
        for knob, value in zip(self.knobs, values, strict=True):
            if knob.nest is None or nests == 1:
                options[knob.option] = value
                continue
            entries = options.get(knob.option, (None,) * nests)
            options[knob.option] = (*entries[: knob.nest], value, *entries[knob.nest + 1 :])
        return Choice.of(self.template, options, "a candidate")

    def values_of(self, candidate: Choice) -> tuple[Option, ...]:
        """The value of each knob; what `candidate` was made from."""
        values: list[Option] = []
        for knob in self.knobs:
            value = candidate.value(knob.option)
            values.append(value[knob.nest or 0] if isinstance(value, tuple) else value)
        return tuple(values)


@dataclass(frozen=True, slots=True)
class Space:
    """Subspaces of candidates, less those that `limits` refuses.

    Args:
        subspaces: one or more per template.
        nests: the operator's nests.
        target: the GPU that the candidates run on.
    """

    subspaces: tuple[Subspace, ...]
    nests: Nests
    target: Target

    @property
    def size(self) -> int:
        """The number of combinations, before any is refused."""
        return sum(subspace.size for subspace in self.subspaces)

    def refusal(self, candidate: Choice) -> str | None:
        """Why the candidate is not worth compiling, in a sentence; None if it is."""
        nests = self.nests.of(candidate)
        for rule in limits.rules_of(candidate):
            if (reason := rule(nests, candidate, self.target)) is not None:
                return reason
        return None

    def __iter__(self) -> Iterator[Choice]:
        """Every candidate that no rule refuses, in order; for spaces that are small enough."""
        for subspace in self.subspaces:
            for values in product(*(knob.values for knob in subspace.knobs)):
                candidate = subspace.candidate(values)
                if self.refusal(candidate) is None:
                    yield candidate

    def refused(self) -> dict[str, int]:
        """The number of combinations that each rule refuses first, by the rule's name, and "kept": the rest."""
        counts = {rule.__name__: 0 for rule in (*limits.RULES, *limits.GLUON_RULES)} | {"kept": 0}
        for subspace in self.subspaces:
            for values in product(*(knob.values for knob in subspace.knobs)):
                candidate = subspace.candidate(values)
                nests = self.nests.of(candidate)
                rules = limits.rules_of(candidate)
                refusing = (rule for rule in rules if rule(nests, candidate, self.target) is not None)
                first = next(refusing, None)
                counts["kept" if first is None else first.__name__] += 1
        return counts

    def settings(self, candidate: Choice) -> tuple[tuple[str, Any], ...]:
        """The template of a candidate of this space, and the value of each of its options, by name."""
        subspace = self._subspace_of(candidate)
        names = {knob.option for knob in subspace.knobs} | {name for name, _ in subspace.fixed}
        return (("template", subspace.template), *((name, candidate.value(name)) for name in sorted(names)))

    def _subspace_of(self, candidate: Choice) -> Subspace:
        return next(subspace for subspace in self.subspaces if candidate in subspace)

    def sample(self, rng: random.Random, count: int) -> list[Choice]:
        """At most `count` different candidates, drawn at random, each subspace as often as another.

        Raises:
            TuneError: none was found.
        """
        drawn: dict[Choice, None] = {}
        for _ in range(max(ATTEMPTS, 20 * count)):
            subspace = rng.choice(self.subspaces)
            candidate = subspace.candidate(tuple(rng.choice(knob.values) for knob in subspace.knobs))
            if candidate not in drawn and self.refusal(candidate) is None:
                drawn[candidate] = None
            if len(drawn) == count:
                break
        if not drawn and self.size <= ENUMERATED:
            drawn = dict.fromkeys(islice(self, count))  # the rules leave so few that no draw met one
        if not drawn:
            raise TuneError(
                f"none of {ATTEMPTS} candidates fits {self.target}: {self.why_empty(rng)}",
                help="compile with options of your own",
            )
        return list(drawn)

    def why_empty(self, rng: random.Random) -> str:
        """The reason that one candidate is refused for."""
        subspace = rng.choice(self.subspaces)
        candidate = subspace.candidate(tuple(rng.choice(knob.values) for knob in subspace.knobs))
        return f"{candidate}: {self.refusal(candidate)}"

    def mutate(self, candidate: Choice, rng: random.Random) -> Choice:
        """The candidate with another value of one knob; itself if the rules refuse every such neighbour."""
        subspace = self._subspace_of(candidate)
        values = subspace.values_of(candidate)
        moves = [
            (n, value)
            for n, knob in enumerate(subspace.knobs)
            for value in knob.values
            if value != values[n] or type(value) is not type(values[n])
        ]
        rng.shuffle(moves)
        for n, value in moves:
            changed = subspace.candidate((*values[:n], value, *values[n + 1 :]))
            if self.refusal(changed) is None:
                return changed
        return candidate


def space(operator: Operator, target: Target) -> Space:
    """The candidates of `operator` on `target`.

    Templates: one rolling loop per nest, unless that leaves most multiprocessors idle for long; splits, unless rows
    alone fill the device.

    Raises:
        TuneError: the operator has no reduction, so that there is nothing to choose.
    """
    nests = Nests.found_in(operator)
    if not nests.plain:
        raise TuneError(f"{operator.name} has no reduction: there is nothing to tune", help="compile it as it is")
    knobs = [knob for n in range(len(nests.plain)) for knob in _nest_knobs(nests.plain[n], nests.padded[n], n)]
    shared = _shared_knobs(operator, nests, target)
    splits = [Knob("splits", _split_counts(nest, target), n) for n, nest in enumerate(nests.plain)]
    # A kernel can start before the previous one has ended.
    early = [Knob("dependent_launch", (False, True))] if target.dependent_launch else []
    # One launch instead of two, on GPUs whose order of memory is known.
    once = [] if target.kind == "hip" else [Knob("combine", COMBINE_SPLITS)]
    subspaces = []
    if any(_rolls(nest, target) for nest in nests.plain):
        follows = early if len(nests.plain) > 1 else []
        subspaces.append(Subspace("rolling_update", (*knobs, *shared, *follows)))
    if any(_splits(nest, target) for nest in nests.plain):
        subspaces.append(Subspace("split_k_update", (*knobs, *splits, *shared, *early, *once)))
    if gluon := _gluon_knobs(operator, nests, target):
        # (One consumer is as fast as two, and compiles in half the time: docs/using/benchmark.md.)
        fixed = (("block_q", 2 * GROUP_ROWS), ("code", "gluon"), ("one_consumer", True))
        subspaces.append(Subspace("rolling_update", gluon, fixed))
    return Space(tuple(subspaces), nests, target)


def _nest_knobs(nest: NestChain, padded: NestChain, n: int) -> Iterator[Knob]:
    """The knobs of one nest: its tiles, warps, and for products the stages of its loop."""
    kind = kind_of(nest if nest.has_product else padded)
    if nest.row is not None and nest.row_size is None:
        yield Knob("block_q", _up_to(ROWS[kind], nest.extent(nest.row)), n)
    yield Knob("block_kv", _up_to(COLUMNS[kind], nest.extent(nest.column)), n)
    # A chain of products alone may compute the first one again for each tile of the output's own columns.
    chained = nest.out is not None and all(c.product for c in nest.chain.computations)
    if chained and (smaller := [size for size in OUTPUT_COLUMNS if size < nest.extent(nest.out)]):
        yield Knob("block_out", (None, *smaller), n)
    yield Knob("num_warps", WARPS[kind], n)
    if kind == "matrix":
        yield Knob("num_stages", STAGES, n)


def _shared_knobs(operator: Operator, nests: Nests, target: Target) -> tuple[Knob, ...]:
    """The knobs of code generation, which apply to all nests."""
    every = (*nests.plain, *nests.padded)
    long_rows = any(n.has_product and n.row_size is None and n.extent(n.row) >= 2 * limits.HALF_ROWS for n in every)
    knobs = []
    if any(p.has_product and not n.has_product for p, n in zip(nests.padded, nests.plain, strict=True)):
        knobs.append(Knob("pad_rows", (False, True)))
    if target.descriptors and any(nest.has_product for nest in every):
        knobs.append(Knob("loads", LOADS))
    if long_rows:
        knobs.append(Knob("interleave", (1, 2)))
    if not all(nest.has_product for nest in every):
        knobs.append(Knob("loop_stages", LOOP_STAGES))
    if target.hardware_tanh and has_tanh(operator):
        knobs.append(Knob("tanh", ("exp2", "hardware")))
    return tuple(knobs)


def _gluon_knobs(operator: Operator, nests: Nests, target: Target) -> tuple[Knob, ...]:
    """The knobs of warp-specialised kernels, for one nest of products with rows for two groups of warps; else none."""
    nest = nests.plain[0]
    rows = nest.extent(nest.row) if nest.row is not None and nest.row_size is None else 0
    if len(nests.plain) != 1 or not nest.has_product or not rows:
        return ()
    if not target.warpgroup_products:
        return ()
    tiles = tuple(size for size in GLUON_COLUMNS if size <= nest.extent(nest.column))
    switches = (Knob(name, (False, True)) for name in ("ping_pong", "tie", "persistent"))
    sharing = Knob("heads_together", GLUON_HEADS)
    knobs = (Knob("block_kv", tiles), Knob("ring_stages", GLUON_STAGES), *switches, sharing)
    tanh = target.hardware_tanh and has_tanh(operator)
    return (*knobs, Knob("tanh", ("exp2", "hardware"))) if tiles and tanh else knobs if tiles else ()


def has_tanh(operator: Operator) -> bool:
    """Whether some element is a hyperbolic tangent."""
    return any(
        isinstance(expr, Op) and expr.name == "tanh"
        for block in tree.blocks(operator.program)
        for expr in walk(block.body.value)
    )


def compares_inputs(operator: Operator) -> bool:
    """Whether some element is a comparison of two elements of inputs, such as the documents of a row and a column."""
    return any(
        isinstance(expr, Op) and expr.name in EXCHANGED and all(_reads_input(arg, operator) for arg in expr.args)
        for block in tree.blocks(operator.program)
        for expr in walk(block.body.value)
    )


def _reads_input(expr: Expr, operator: Operator) -> bool:
    while isinstance(expr, Cast):
        expr = expr.arg
    return isinstance(expr, Load) and expr.buffer in operator.program.inputs


def _up_to(sizes: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """The sizes up to the first that covers the extent."""
    covering = [size for size in sizes if size >= extent]
    return tuple(size for size in sizes if size < extent) + tuple(covering[:1])


def kind_of(nest: NestChain) -> str:
    """Its kind of tiles: "matrix", "vector" (products with a single row) or "rows" (no products)."""
    if nest.has_product:
        return "matrix"
    return "vector" if any(c.product for c in nest.chain.computations) else "rows"


def _usual(nest: NestChain) -> TileConfig:
    """Usual tiles of an operator of its kind."""
    return TileConfig(block_q=64 if nest.has_product else 1, block_kv=64)


def _rolls(nest: NestChain, target: Target) -> bool:
    """Whether one loop over the columns is tried: not if it is long and most of the device is idle."""
    blocks = limits.blocks_of(nest, replace(_usual(nest), block_q=ROWS[kind_of(nest)][0]))
    return IDLE * blocks >= target.sm_count or nest.extent(nest.column) <= SHORT_COLUMN[kind_of(nest)]


def _splits(nest: NestChain, target: Target) -> bool:
    """Whether the columns can be split, and rows alone do not fill the device."""
    few = limits.blocks_of(nest, _usual(nest)) < target.sm_count
    return few and len(_split_counts(nest, target)) > 1


def _split_counts(nest: NestChain, target: Target) -> tuple[int, ...]:
    """1 (the nest rolls), and counts that give each multiprocessor one, two or four thread blocks."""
    blocks = limits.blocks_of(nest, _usual(nest))
    most = -(-nest.extent(nest.column) // LEAST_COLUMNS)
    counts = {min(most, max(1, waves * target.sm_count // blocks)) for waves in WAVES}
    return (1, *sorted(counts - {1}))
