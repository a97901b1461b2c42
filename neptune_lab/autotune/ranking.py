"""Ranks the choices for a kernel that nobody tuned, by the calibrated model; nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod
from typing import TYPE_CHECKING

from neptune_lab.autotune import packed_groups
from neptune_lab.autotune.calibration import Calibration, calibration_of, kind
from neptune_lab.autotune.cost_model import Machine
from neptune_lab.autotune.few_rows import FewRows
from neptune_lab.autotune.misjudged import is_misjudged
from neptune_lab.autotune.nests import Nests
from neptune_lab.autotune.resolved import Resolver
from neptune_lab.autotune.shared_memory import GROUP_ROWS
from neptune_lab.autotune.space import Space, Subspace, compares_inputs, has_tanh, space
from neptune_lab.choice import NOTHING, Choice, CodeOptions, Given
from neptune_lab.errors import NeptuneError, TuneError
from neptune_lab.htile_passes.input_comparisons import FEWEST_TILES
from neptune_lab.loop_ir import tree
from neptune_lab.loop_schedule.plan import parallelism
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.loop_schedule.templates.nest_shape import accumulated, columns_of, folded, products
from neptune_lab.loop_schedule.templates.shown import shown_columns
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

RECORD, GLUON, SHAPE, SPACE, FEW_ROWS = "nearest record", "Gluon", "shape", "space", "few rows"
PACKED = "packed groups"
# The form in Gluon that did best on all measured prefill attention.
GLUON_COLUMNS, STAGES_OF_KEYS = 128, 2
GLUON_TILES = TileConfig(block_q=2 * GROUP_ROWS, block_kv=GLUON_COLUMNS)
# Options that the space is ranked over; the others follow from the tiles, or are the usual ones.
RANKED = frozenset({"block_q", "block_kv", "splits"})
# Combinations of them that are estimated at most; of operators with more (several nests), none is.
MOST = 200
# Elements of the keys that a program of two groups of warps reads: the least, unless rows are wider than `WIDE`, and
# those from which on it does not matter how many programs share a multiprocessor.
FEWEST_ELEMENTS, MANY_ELEMENTS, WIDE = 12_000, 40_000, 128
# Outputs of so many columns for whose programs of one group of warps Triton is faster.
NARROW = 64
# Programs of one group of warps on a multiprocessor: of Gluon, and of Triton.
SHARED_GLUON, SHARED_TRITON = 2, 3
# Kernels that take less time, and accumulate no more columns, get tiles of one group of warps.
SMALL_S, SMALL_COLUMNS = 50e-6, 256
# Programs that see no more columns have at most 32 tiles of 64, wherever these begin; with rows of so many columns,
# shared memory has room for outputs beside what persistent programs load ahead.
SURELY_SHORT, SURELY_STORED = 2048 - 2 * GROUP_ROWS, 256


@dataclass(frozen=True, slots=True)
class Ranked:
    """A choice, its estimate, and where it comes from: one of `RECORD`, `GLUON`, `SHAPE`, `SPACE`, `FEW_ROWS` and
    `PACKED`."""

    choice: Choice
    seconds: float
    origin: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """Choices in the order in which they are tried.

    Args:
        ranked: the first is compiled, the others only if it is refused.
        model: what the estimates are from, and how far they are off, in a sentence.
        small: whether tiles of one group of warps suit the form in Gluon.
        large: whether its own tiles are surely too large for shared memory.
        by_data: whether Triton surely skips tiles by data where the form in Gluon would be chosen.
    """

    ranked: tuple[Ranked, ...]
    model: str
    small: bool = False
    large: bool = False
    by_data: bool = False

    def why(self, one: Ranked) -> str:
        """How a choice was found, in a sentence."""
        said = {
            RECORD: "the tuning record of the nearest sizes",
            GLUON: "the form in Gluon that did best on measured prefill attention",
            SHAPE: "what the shape suggests",
            SPACE: "other tiles than the shape suggests",
            FEW_ROWS: "the tiles and splits that read the columns fastest",
            PACKED: "tiles of the queries of a group of heads",
        }[one.origin]
        return f"{said}, about {one.seconds * 1e6:.3g} us by {self.model}"


def ranking(
    operator: Operator, target: Target, *, near: Choice | None = None, given: Given = NOTHING
) -> Ranking | None:
    """The choices for an operator, the best first.

    Products of few rows have a model of their own, whose order is taken as it is.  Of others, the first one is, by the
    model, no slower than `near`.  Of the rest, one replaces a choice before it in the order of `usual` only if it is
    faster by more than the model is typically off.

    Args:
        near: the choice of the record of the nearest sizes.
        given: what the caller gives; choices that it does not fit are left out, and it replaces parts of the others
            before they are estimated.

    Returns:
        The ranking, or None if the model does not apply: there is no reduction, or the nests cannot be planned.
    """
    try:
        nests, resolve = Nests.found_in(operator), Resolver(operator, target)
    except NeptuneError:
        return None
    if not nests.plain:
        return None
    if (few := FewRows.found_in(operator, target)) is not None:
        return _of_few_rows(few, resolve, near, given)
    template = given.template
    estimates = _Estimates(nests, resolve, calibration_of(target), Machine.of(target))
    error, told = estimates.calibrated.error, estimates.calibrated.told
    if operator.params.get("pack_groups"):
        tiles = ((packed_groups.choice(operator, target), PACKED), (Choice(), SHAPE))
        found = (estimates.of(given.over(one), origin) for one, origin in tiles if given.fits(one))
        return Ranking(tuple(found), told)
    # (no kernel in Gluon is split)
    rolls = template or ("rolling_update" if given.language == "gluon" else operator.template or resolve.template)
    gluon = Choice(rolls, _gluon_tiles(given), CodeOptions(code="gluon"))
    if kind(nests) == "rows":
        near = None  # (rows of all lengths were measured for what the shape suggests: docs/using/benchmark.md)
    if near is not None and near.code.code == "gluon" and _given_rows(given) == GROUP_ROWS:
        near = None  # (it was measured with other rows)
    recorded = near is not None and near.code.code == "gluon"
    suits = given.fits(gluon) and _suits(nests, rolls, target) and not _few_rows_are_given(given, resolve)
    most = _most_shown(resolve) if suits or recorded else 0  # (three programs' masks are read for it)
    fills = (suits or recorded) and _fills_groups(resolve, most, target)
    if recorded and not fills:
        near = None
    usual = [
        *((estimates.of(given.over(near), RECORD),) if near is not None and given.fits(near) else ()),
        # (who asks for Gluon has it for programs that have little to do, too)
        *((estimates.of(given.over(gluon), GLUON),) if suits and (fills or given.language == "gluon") else ()),
        *((estimates.of(given.over(Choice(template)), SHAPE),) if given.fits(Choice(template)) else ()),
    ]
    if not usual:
        return Ranking((), told)
    fastest = min(other.seconds for other in usual)
    in_triton = (
        ()
        if given.language == "gluon"
        else _space(operator, target, estimates.calibrated, template or _only(operator, resolve))
    )
    over = dict.fromkeys(given.over(choice) for choice in in_triton) if given else in_triton
    others = [made for choice in over if (made := estimates.of(choice, SPACE)).seconds * error < fastest]
    small = any(one.origin == GLUON and _is_small(resolve, most, one.seconds, target) for one in usual)
    small = small and not _is_surely_persistent(operator, resolve, most, target)
    large = any(one.origin == GLUON for one in usual) and _are_surely_too_large(operator, resolve, target)
    by_data = any(one.origin == GLUON for one in usual) and _is_surely_bounded_by_data(operator, resolve)
    return Ranking(_in_order(usual, others, error), told, small, large, by_data)


@dataclass(frozen=True, slots=True)
class _Estimates:
    """How long kernels take by the calibrated model."""

    nests: Nests
    resolve: Resolver
    calibrated: Calibration
    machine: Machine

    def of(self, choice: Choice, origin: str) -> Ranked:
        """A choice with its estimate; infinity if it has sizes for the nests of another operator."""
        try:
            whole = self.resolve(choice) if origin != SPACE else choice
            return Ranked(choice, self.calibrated.seconds(self.nests, whole, self.machine), origin)
        except NeptuneError:
            return Ranked(choice, inf, origin)


def _in_order(usual: Sequence[Ranked], others: Sequence[Ranked], error: float) -> tuple[Ranked, ...]:
    """The choices in the order in which they are tried: by their estimates if there are `others`; else first the one of
    `usual` that no later one beats by more than the model is off, then the rest by their estimates.

    Args:
        usual: what is known or suggested, the most trusted first.
        others: choices of the space that are faster than all of these by more than the model is off.
        error: the factor by which the model is typically off.
    """
    first = usual[0]
    for other in usual[1:]:
        if other.seconds * error < first.seconds:
            first = other
    rest = sorted((one for one in (*usual, *others) if one is not first), key=lambda one: one.seconds)
    return tuple(sorted((*rest, first), key=lambda one: one.seconds)) if others else (first, *rest)


def _of_few_rows(few: FewRows, resolve: Resolver, near: Choice | None, given: Given) -> Ranking:
    """The ranking of products of few rows."""
    found = [(choice, FEW_ROWS) for choice in few.choices()] + [(Choice(given.template), SHAPE)]
    found += [] if near is None else [(near, RECORD)]
    ranked: dict[Choice, Ranked] = {}
    for one, origin in found:
        if not given.fits(one):
            continue
        with suppress(NeptuneError):  # (a record of another operator has sizes for other nests)
            choice = given.over(one)
            written = choice if origin == FEW_ROWS and not given else resolve(choice)
            if origin == SHAPE or not (given or origin == RECORD) or few.fits(written):
                ranked.setdefault(choice, Ranked(choice, few.seconds(written), origin))

    def order(one: Ranked) -> tuple[bool, bool, float]:
        return few.reads_hidden_tiles(one.choice), not few.is_best_of_padded(one.choice), one.seconds

    return Ranking(tuple(sorted(ranked.values(), key=order)), few.told)


def _gluon_tiles(given: Given) -> TileConfig:
    """The tiles of the form in Gluon; of as many columns as rows if a caller gives the rows of one group of warps: on
    an H200, causal attention of 16 x 4096 x 128 takes 136 us with 64 columns, 167 with 128, and 175 in Triton."""
    return replace(GLUON_TILES, block_kv=GROUP_ROWS) if _given_rows(given) == GROUP_ROWS else GLUON_TILES


def _given_rows(given: Given) -> object:
    return dict(given.options).get("block_q")


def _few_rows_are_given(given: Given, resolve: Resolver) -> bool:
    """Whether a caller gives the rows of one group of warps, and no language, and outputs are narrow: then Triton is
    faster.  On an H200, 2 x 32 in 8 x 700 x 64 takes 33.0 us in Gluon and 25.8 in Triton, 22.2 and 21.0 with a causal
    mask, and 4 x 16 x 1000 x 64 58.5 and 44.8."""
    narrow = accumulated(resolve.program, resolve.nests[0]) <= NARROW
    return _given_rows(given) == GROUP_ROWS and given.language is None and narrow


def _suits(nests: Nests, template: str, target: Target) -> bool:
    """Whether the form in Gluon is tried: a rolling loop on a GPU with products by groups of warps."""
    return template == "rolling_update" and target.warpgroup_products and any(n.has_product for n in nests.plain)


def _only(operator: Operator, resolve: Resolver) -> str | None:
    """The template of the space that is ranked; None: any.  The model counts the columns that masks hide, so it would
    split them."""
    masked = any(
        shown_columns(resolve.program, nest) != (0, columns_of(resolve.program, nest)) for nest in resolve.nests
    )
    return operator.template or ("rolling_update" if masked and resolve.template == "rolling_update" else None)


def _rows_of_groups(resolve: Resolver) -> tuple[int, int]:
    """The rows of the first nest, and those of a program of two groups of warps; 1 without rows."""
    program, nest = resolve.program, resolve.nests[0]
    if nest.row_axis is None:
        return 1, 1
    rows = tree.find_block(program, nest.first)[1].iter(nest.row_axis).extent
    return rows, min(rows, 2 * GROUP_ROWS)


def _most_shown(resolve: Resolver) -> int:
    """The most columns that a program of two groups of warps sees: the first, the middle or the last."""
    program, nest = resolve.program, resolve.nests[0]
    if nest.row_axis is None:
        return columns_of(program, nest)
    rows, size = _rows_of_groups(resolve)
    most = 0
    for start in {0, (rows - size) // 2, rows - size}:
        first, end = shown_columns(program, nest, range(start, start + size))
        most = max(most, end - first)
    return most


def _fills_groups(resolve: Resolver, most: int, target: Target) -> bool:
    """Whether the programs that Gluon has, of one or two groups of warps, have enough to do, and are enough.

    Otherwise, kernels in Triton with 64 rows are faster: on an H200, they take 0.72 and 0.94 of the time of two kernels
    in Gluon with fewer elements, 0.56 of one with 64 programs and long keys, and 0.79, 0.83 and 1.01 of three that
    would run in two turns in Gluon and in one in Triton.  Wider rows have enough in any case.

    Args:
        most: the columns that a program sees.
    """
    program, nest = resolve.program, resolve.nests[0]
    width = power_of_two(max(folded(program, nest), accumulated(program, nest)))
    if nest.row_axis is None or width > WIDE or len(resolve.nests) > 1:
        return True
    programs = parallelism(program, nest, GROUP_ROWS)
    if most * width < FEWEST_ELEMENTS or 2 * programs < target.sm_count:
        return False
    each = -(-programs // target.sm_count)
    return most * width >= MANY_ELEMENTS or not SHARED_GLUON < each <= SHARED_TRITON


def _is_small(resolve: Resolver, most: int, seconds: float, target: Target) -> bool:
    """Whether tiles of one group of warps are chosen, for which Triton takes a third of the time of tiles of two, whose
    code it compiles for each.

    Two such programs share a multiprocessor: on an H200, eleven problems of 11 to 48 us took 0.73 to 1.10 of the time,
    0.97 by geometric mean, and two with 256 columns, of which one program has room, 1.00 to 1.26; longer ones up to
    1.43.  They are also chosen where programs of two would leave half of the multiprocessors idle: eight such problems
    took 0.57 to 0.99 of the time of the kernels in Triton that were chosen before, 0.81 by geometric mean.

    Args:
        most: the columns that a program sees; the model counts all.
        seconds: about how long the form in Gluon takes.
    """
    program, nest = resolve.program, resolve.nests[0]
    shown = most / columns_of(program, nest)
    few = 2 * parallelism(program, nest, _rows_of_groups(resolve)[1]) < target.sm_count
    short = seconds * shown < SMALL_S
    return len(resolve.nests) == 1 and (short or few) and accumulated(program, nest) <= SMALL_COLUMNS


def _is_surely_persistent(operator: Operator, resolve: Resolver, most: int, target: Target) -> bool:
    """Whether `pipeline.hopper` would refuse tiles of one group of warps, since persistent programs of two are faster:
    so these are not even compiled.  It says so of kernels without tanh that have room for outputs, many programs and
    few tiles."""
    program, nest = resolve.program, resolve.nests[0]
    many = parallelism(program, nest, GROUP_ROWS) > 2 * target.sm_count
    narrow = max(folded(program, nest), accumulated(program, nest)) <= SURELY_STORED
    return most <= SURELY_SHORT and many and narrow and not has_tanh(operator)


def _are_surely_too_large(operator: Operator, resolve: Resolver, target: Target) -> bool:
    """Whether `GLUON_TILES` of an operator of two products take more shared memory than there is, so that they are not
    even compiled: a tile of rows, and two of the keys and of the values that are read beside it, as wide as copies are,
    a power of two."""
    program, nest = resolve.program, resolve.nests[0]
    if len(resolve.nests) > 1 or len(products(program, nest)) != 2 or nest.row_axis is None:
        return False
    rows, columns = _rows_of_groups(resolve)[1], min(columns_of(program, nest), GLUON_COLUMNS)
    keys, values = power_of_two(folded(program, nest)), power_of_two(accumulated(program, nest))
    least = min(itemsize(tensor.dtype) for tensor in operator.inputs)
    return least * (rows * keys + STAGES_OF_KEYS * columns * (keys + values)) > target.shared_memory


def _is_surely_bounded_by_data(operator: Operator, resolve: Resolver) -> bool:
    """Whether `pipeline.hopper` would find that a mask compares inputs, so that the form in Gluon is not even compiled:
    there are enough tiles, and outputs are not narrow, for which more decides."""
    program, nest = resolve.program, resolve.nests[0]
    enough = columns_of(program, nest) > (FEWEST_TILES - 1) * GLUON_COLUMNS
    return enough and len(resolve.nests) == 1 and accumulated(program, nest) > NARROW and compares_inputs(operator)


def _space(operator: Operator, target: Target, calibrated: Calibration, template: str | None) -> Iterator[Choice]:
    """The candidates of the tuner's space in Triton, over tiles and splits alone."""
    try:
        whole = space(operator, target)
    except TuneError:
        return
    for subspace in whole.subspaces:
        if dict(subspace.fixed).get("code") == "gluon" or template not in (None, subspace.template):
            continue
        yield from _tiles(whole, subspace, calibrated, Machine.of(target))


def _tiles(whole: Space, subspace: Subspace, calibrated: Calibration, machine: Machine) -> Iterator[Choice]:
    usual = calibrated.usual.get(f"{kind(whole.nests)} {subspace.template}", {})
    knobs = [knob for knob in subspace.knobs if knob.option in RANKED]
    if prod(len(knob.values) for knob in knobs) > MOST:
        return
    reduced = Subspace(subspace.template, tuple(knobs), subspace.fixed)
    known = {knob.option for knob in subspace.knobs}
    for values in product(*(knob.values for knob in knobs)):
        candidate = reduced.candidate(values)
        options = candidate.options | {name: value for name, value in usual.items() if name in known}
        candidate = Choice.of(subspace.template, options, "the usual options")
        known_well = calibrated.knows(whole.nests, candidate) and not is_misjudged(whole.nests, candidate, machine)
        if known_well and whole.refusal(candidate) is None:
            yield candidate


__all__ = ["FEW_ROWS", "GLUON", "PACKED", "RECORD", "SHAPE", "SPACE", "Ranked", "Ranking", "ranking"]
