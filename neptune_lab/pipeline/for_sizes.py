"""Kernels for sizes that are known at the launch: one for every length.

The schedule of one size, with its template and tile sizes, is applied to the definition at several sizes; the programs
of tiles that come out are one tree with other numbers, which `htile.sizes.generalized` replaces by expressions of the
sizes.  The emitted module is then run against the definition at small sizes of every kind: a part of a tile, whole
tiles, one element more, fewer tiles than splits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from neptune_lab import htile_to_triton
from neptune_lab.errors import DefinitionError, ScheduleError, TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile import sizes as htile_sizes
from neptune_lab.htile.printer import index_text
from neptune_lab.htile.sizes import Sample
from neptune_lab.htile.walk import evaluate, names_of_index
from neptune_lab.htile_passes.skip_tiles_by_data import MOST_TILES
from neptune_lab.htile_passes.skip_tiles_by_list import MOST_LISTED
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Var, children
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.operators import Operator
from neptune_lab.pipeline.fallback import REFUSALS
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import lower
from neptune_lab.pipeline.options import CodeOptions
from neptune_lab.pipeline.record import AppliedPass
from neptune_lab.pipeline.size_choice import SizeChoice, choice_of, roles_of
from neptune_lab.pipeline.size_samples import (
    UNCUT,
    Tiling,
    below_samples,
    lengths_of,
    sample_sets,
    small_samples,
    tiling_of,
)
from neptune_lab.pipeline.validate import Validated, triton_numpy
from neptune_lab.pipeline.validate.at_sizes import wrong_at
from neptune_lab.pipeline.width_of_positions import check_width_of_positions
from neptune_lab.scalar_ops import rows
from neptune_lab.target import Target
from neptune_lab.tensor_spec import LARGEST

# Operations of which bounds of positions decide the result, so that the compiler may leave them out.
_DECIDED = frozenset(
    {
        *("lt", "le", "gt", "ge", "eq", "ne", "min", "max", "floordiv", "floormod", "floor", "ceil", "round", "trunc"),
        *(row.name for row in rows("loop") if row.kind == "bits"),
    }
)
# The farthest that a definition may tell positions from each other, by numbers of its own: the samples are larger, and
# the kernel is run at every number of tiles below them.
FARTHEST = 1024
# The largest value of such a size: the most programs along the second and the third axis of a grid.
_LARGEST_UNCUT = 65_535


def compile_for_sizes(
    make: Callable[[Sample], Operator],
    roles: Mapping[str, str] | None,
    hint: Sample,
    *,
    template: str | None = None,
    config: TileConfig | None = None,
    small: Callable[[Sample], Operator] | None = None,
    code: CodeOptions | None = None,
    target: Target | None = None,
    shown: bool = True,
    limits: Collection[int] = (),
    farthest: int = 0,
) -> Kernel:
    """Compiles an operator for all sizes of some of its dimensions.

    Args:
        make: the operator at given sizes, by name.
        roles: "rows", "columns" or "both" for each size: whether it is a nest's parallel or reduced dimension; "" if
            no tile cuts it.  None: as the nests of the definition have it.
        hint: sizes for which template and tiles are chosen.
        template, config: as in `compile`.
        small: as `make`, with few samples and heads, on which the kernel is checked; None: `make`.
        code: options of code generation; pointers are used for loads, whatever it says.
        target: as in `compile`.
        shown: whether the programs before and after each pass are generalized too, for the record.
        limits: further numbers that the sizes are compared with, such as the extents of tables.
        farthest: the largest number that positions may be compared with, if it is more than two tiles; the larger it
            is, the longer the check takes.

    Returns:
        The kernel. Its shapes, its schedule and its loops are those of a sample; from `least` on up to
        the largest (`htile.nodes.Size`), it takes every size.

    Raises:
        ScheduleError, TileError, EmitError: as `compile`; TileError also if the programs at several sizes are not one
            with other numbers, or if that is wrong at some size.
    """
    code = replace(code or CodeOptions(), code="triton", loads="pointers")
    op = make(hint)
    if roles is None:
        roles = roles_of(make, hint, template, config)
    check_width_of_positions(make, roles, hint)
    chosen = choice_of(make, hint, roles, template, config)
    try:
        return _of_choice(op, make, roles, small, chosen, code, target, limits, farthest, shown=shown)
    except TileError:
        if template is not None or chosen.rolls:
            raise
    chosen = choice_of(make, hint, roles, "rolling_update", config)  # (fewer bounds depend on the sizes)
    return _of_choice(op, make, roles, small, chosen, code, target, limits, farthest, shown=shown)


def compile_family(
    op: Operator,
    template: str | None,
    config: TileConfig | None,
    code: CodeOptions | None,
    target: Target | None,
    *,
    shown: bool = True,
) -> Kernel:
    """`compile` for an operator whose sizes have names; `shown` as for `compile_for_sizes`.

    Raises:
        ScheduleError: options of code that a kernel for all sizes does not have.
        ScheduleError, TileError, EmitError: as `compile_for_sizes`.
    """
    assert op.family is not None
    if code is not None and (code.code, code.loads) != ("triton", "pointers"):
        raise ScheduleError(
            f"code={code.code!r} with loads={code.loads!r}: a kernel for all sizes is Triton with loads by pointers",
            help="leave code out, or compile the operator at numbers: op.at(...)",
        )
    more: dict[str, Any] = {"template": template, "config": config, "code": code, "target": target, "shown": shown}
    made = op.family
    return compile_for_sizes(made.make, None, made.hint, small=made.small, farthest=FARTHEST, **more)


def _of_choice(
    op: Operator,
    make: Callable[[Sample], Operator],
    roles: Mapping[str, str],
    small: Callable[[Sample], Operator] | None,
    chosen: SizeChoice,
    code: CodeOptions,
    target: Target | None,
    limits: Collection[int],
    allowed: int,
    *,
    shown: bool,
) -> Kernel:
    """`compile_for_sizes` by one choice."""
    nests = chosen.nests
    tilings = {name: tiling_of(nests, role) for name, role in roles.items()}
    farthest = _farthest(make, roles, tilings, limits, allowed)
    if farthest and not chosen.rolls:  # where a split ends among such positions depends on the size
        raise TileError(
            f"{op.name} compares positions with {farthest}, which may be in any split", help='template="rolling_update"'
        )
    largest = {name: _LARGEST_UNCUT for name, role in roles.items() if not role}
    columns = min(nest.block_kv for nest in nests)
    bounded = [name for name, role in roles.items() if role in ("columns", "both")]
    divisors = {size for nest in nests for size in (nest.block_q, nest.block_kv, nest.block_kv * (nest.splits or 1))}
    refusal: TileError | None = None
    for samples in sample_sets(tilings, farthest):

        def lowered(make: Callable[[Sample], Operator], samples: list[Sample] = samples) -> list[Kernel]:
            schedules = (next(chosen.schedules(make(sample))) for sample in samples)
            return [lower(schedule, code, target, each=False, any_size=True) for schedule in schedules]

        def joined(programs: list[ir.Program], samples: list[Sample] = samples) -> ir.Program:
            tiles = _most_tiles(programs[0])
            most = largest | (dict.fromkeys(bounded, min(tiles * columns, LARGEST)) if tiles else {})
            alike = [_launched_as(programs[0], p) for p in programs]
            return _within_grids(htile_sizes.generalized(alike, samples, divisors, most))

        try:
            kernels = lowered(make)
            tiles = joined([kernel.htile for kernel in kernels])
            _check_arguments(tiles)
            module = checked = htile_to_triton.emit(tiles, code.emitter(target))
            twin = make
            if small is not None:
                with suppress(*REFUSALS, DefinitionError):  # (with few heads it may have another form)
                    alike = joined([kernel.htile for kernel in lowered(small)])
                    if _sized(alike) == _sized(tiles):
                        checked, twin = htile_to_triton.emit(alike, code.emitter(target)), small
            least, validated = _checked(checked, twin, tilings, farthest)
        except TileError as error:
            refusal = refusal or error
            continue
        first = kernels[0]
        translated, passes = first.translated, first.passes
        schedule = next(chosen.schedules(op)) if shown else first.schedule
        if shown:
            translated = before = _joined_or_first([kernel.translated for kernel in kernels], joined)
            inputs, made = [kernel.translated for kernel in kernels], []
            for n, applied in enumerate(first.passes):
                outputs = [kernel.passes[n].program for kernel in kernels]
                if any(a is not b for a, b in zip(outputs, inputs, strict=True)):  # (most passes change nothing)
                    before = _joined_or_first(outputs, joined)
                inputs = outputs
                made.append(_with_program(applied, before))
            passes = tuple(made)
        passes = (*passes[:-1], _with_program(passes[-1], tiles))
        return Kernel(schedule, translated, passes, module, validated, code, target, least)
    assert refusal is not None, "there is a set of samples"
    raise refusal


def _within_grids(program: ir.Program) -> ir.Program:
    """`program` with sizes that no tile cuts so small that the second and third axes of grids, which may be products of
    them, have no more programs than a GPU launches."""
    axes = [axis.size for kernel in program.kernels for axis in kernel.grid[1:] if axis.size is not None]
    sizes = {size.name: size.most for size in program.sizes}
    for axis in axes:
        while evaluate(axis, sizes) > _LARGEST_UNCUT:
            name = max(names_of_index(axis), key=sizes.__getitem__)
            sizes[name] //= 2
            if not sizes[name]:
                return program  # its emitter says why
    return replace(program, sizes=tuple(replace(size, most=sizes[size.name]) for size in program.sizes))


def _most_tiles(program: ir.Program) -> int:
    """The most tiles of a loop that data bounds (`skip_any_tiles_by_data`) or lists (`skip_any_tiles_by_list`); 0 if it
    does for none."""
    loops = [stmt for kernel in program.kernels for stmt in kernel.body if isinstance(stmt, ir.For)]
    if any(loop.listed is not None for loop in loops):
        return MOST_LISTED
    return MOST_TILES if any(loop.within is not None for loop in loops) else 0


def reach(expr: Expr) -> float:
    """The largest product of the numbers of one comparison, rounding or index of a read: how far apart the positions
    are that it tells from each other.  A factor below 1 counts as its inverse.  A comparison of values that are read,
    such as that of a maximum with the least float, tells no positions from each other."""
    inside = max(map(reach, children(expr)), default=1.0)
    if not isinstance(expr, Load) and not (isinstance(expr, Op) and expr.name in _DECIDED and _has_position(expr)):
        return inside
    return max(inside, math.prod(max(abs(c), 1 / abs(c)) for c in _numbers(expr)))


def _has_position(expr: Expr) -> bool:
    """Whether a position is in an expression, other than in an index of a read."""
    return isinstance(expr, Var) or (not isinstance(expr, Load) and any(map(_has_position, children(expr))))


def _numbers(expr: Expr) -> Iterator[float]:
    """The finite numbers in an expression other than 0."""
    if isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value and math.isfinite(expr.value):
        yield float(expr.value)
    for child in children(expr):
        yield from _numbers(child)


def _farthest(
    make: Callable[[Sample], Operator],
    roles: Mapping[str, str],
    tilings: Mapping[str, Tiling],
    limits: Collection[int],
    allowed: int,
) -> int:
    """How far apart the positions are that the definition tells from each other by numbers of its own; 0 if they are
    in two tiles of any sample.

    At sizes below the width of a window, no tile is outside of it: programs of such samples would not have its edge,
    and neither would the kernel, at sizes above.  So the samples are larger.  A number that grows with the sizes, such
    as the position of the last key, is not one of the definition's own.

    Raises:
        TileError: they are too far apart for samples of that size.
    """
    large = [{name: sizes[n] for name, sizes in lengths_of(tilings).items()} for n in (0, -1)]
    found = [_reach_of(make(sample)) for sample in (dict.fromkeys(tilings, 2), *large)]
    own = max(found[0], found[1] if found[1] == found[2] else 0.0) * max(limits, default=1)
    most = {name: 2 * tiling.part if roles[name] else UNCUT for name, tiling in tilings.items()}
    if own <= min(most.values()):
        return 0
    if own > allowed or len(roles) > 1 or not all(roles.values()):
        raise TileError(
            f"{make(large[0]).name} compares positions with {own:g}, or with a product that makes it; at sizes on "
            "both sides of such a number the programs differ",
            help="compile it for one size",
        )
    return math.ceil(own)


def _reach_of(op: Operator) -> float:
    return max(reach(block.body.value) for block in tree.blocks(op.program))


def _check_arguments(program: ir.Program) -> None:
    """Raise TileError unless each dimension of an argument is constant or one size."""
    for name in (*program.inputs, *program.outputs):
        for size in program.tensor(name).sizes or ():
            if not isinstance(size, ir.Int | ir.Name):
                raise TileError(
                    f"a dimension of {name} is {index_text(size)}; expected a size or a constant",
                    help="compile it for one size",
                )


def _launched_as(first: ir.Program, program: ir.Program) -> ir.Program:
    """`program` with the warps and stages of `first`, which may be chosen by the number of rows or columns."""
    if len(program.kernels) != len(first.kernels):
        return program
    pairs = zip(first.kernels, program.kernels, strict=True)
    return replace(program, kernels=tuple(replace(k, num_warps=f.num_warps, num_stages=f.num_stages) for f, k in pairs))


def _with_program(applied: AppliedPass, program: ir.Program) -> AppliedPass:
    """`applied` with another program."""
    return AppliedPass(applied.name, program, applied.notes)


def _joined_or_first(programs: list[ir.Program], joined: Callable[[list[ir.Program]], ir.Program]) -> ir.Program:
    """For the record: a program before the last pass need not be one tree at all samples."""
    try:
        return joined(programs)
    except TileError:
        return programs[0]


def _sized(program: ir.Program) -> list[ir.IndexExpr]:
    """The expressions of sizes in a program, in order, but for strides, which differ with the numbers of heads."""
    names = {size.name for size in program.sizes}
    plain = replace(program, tensors=tuple(replace(tensor, steps=None) for tensor in program.tensors))
    return list(htile_sizes.expressions(plain, names))


def _checked(
    module: htile_to_triton.EmittedModule,
    make: Callable[[Sample], Operator],
    tilings: Mapping[str, Tiling],
    farthest: int,
) -> tuple[dict[str, int], Validated]:
    """The smallest sizes at which the module is right, and what was run.

    Raises:
        TileError: it is wrong at large sizes too.
    """
    least = dict.fromkeys(tilings, 1)
    tried = 0
    for sample in below_samples(tilings, farthest) if farthest else small_samples(tilings):
        if any(sample[name] < least[name] for name in least):
            continue
        try:
            what = wrong_at(module, make(sample))
        except triton_numpy.UnknownSpelling as error:
            raise TileError(
                f"the kernel for all sizes cannot be checked: {error}", help="compile it for one size"
            ) from error
        tried += 1
        if what is None:
            continue
        for name, tiling in tilings.items():
            # (with two sizes, the one that is smaller is the reason)
            if sample[name] == min(sample.values()):
                least[name] = max(least[name], (sample[name] // tiling.tile + 1) * tiling.tile + 1)
            if least[name] > 4 * tiling.tile + farthest:
                raise TileError(
                    f"the kernel for all sizes is wrong at {dict(sample)}: {what}", help="compile it for one size"
                )
    said = ", ".join(f"{name} from {value} on" for name, value in least.items())
    return least, Validated("quick", ("Triton",), ("ordinary numbers",), f"{tried} sizes ({said})")


__all__ = ["compile_family", "compile_for_sizes"]
