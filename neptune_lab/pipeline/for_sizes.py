"""Kernels for sizes that are known at the launch: one for every length.

The schedule of one size, with its template and tile sizes, is applied to the definition at several sizes; the programs
of tiles that come out are one tree with other numbers, which `htile.sizes.generalized` replaces by expressions of the
sizes.  The emitted module is then run against the definition at small sizes of every kind: a part of a tile, whole
tiles, one element more, fewer tiles than splits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from neptune_lab.choice import NOTHING, CodeOptions, Given
from neptune_lab.errors import DefinitionError, ScheduleError, TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile import sizes as htile_sizes
from neptune_lab.htile.printer import index_text
from neptune_lab.htile.sizes import Sample
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.loop_schedule.outcome_cache import at_other_sizes
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.loop_schedule.templates.config import for_target
from neptune_lab.operators import Operator
from neptune_lab.pipeline.fallback import REFUSALS
from neptune_lab.pipeline.gluon_for_sizes import gluon_choice
from neptune_lab.pipeline.joint import fewest_rows
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import emitted, lower
from neptune_lab.pipeline.position_reach import farthest_told
from neptune_lab.pipeline.record import AppliedPass
from neptune_lab.pipeline.size_choice import SizeChoice, choice_of, roles_of
from neptune_lab.pipeline.size_samples import (
    Tiling,
    below_samples,
    sample_sets,
    small_samples,
    tiling_of,
)
from neptune_lab.pipeline.sized_programs import (
    LARGEST_UNCUT,
    joined_or_first,
    launched_as,
    most_tiles,
    sized,
    within_grids,
)
from neptune_lab.pipeline.validate import Validated, triton_numpy
from neptune_lab.pipeline.validate.at_sizes import wrong_at
from neptune_lab.pipeline.width_of_positions import check_width_of_positions
from neptune_lab.target import Target
from neptune_lab.tensor_spec import LARGEST

# The farthest that a definition may tell positions from each other, by numbers of its own: the samples are larger, and
# the kernel is run at every number of tiles below them.
FARTHEST = 1024
# A kernel of fewer samples and heads is compiled for the checks if its tensors are smaller than this part.
_WORTH_A_COMPILATION = 2
# A kernel that is wrong at some sizes is called at larger ones if it is right at as many of them at least.
_FEWEST_RIGHT = 3


def compile_for_sizes(
    make: Callable[[Sample], Operator],
    roles: Mapping[str, str] | None,
    hint: Sample,
    *,
    template: str | None = None,
    config: TileConfig | None = None,
    small: Callable[[Sample], Operator] | None = None,
    several: Callable[[Sample], Operator] | None = None,
    code: CodeOptions | None = None,
    given: Given = NOTHING,
    target: Target | None = None,
    shown: bool = True,
    limits: Collection[int] = (),
    farthest: int = 0,
    bounded: bool = False,
) -> Kernel:
    """Compiles an operator for all sizes of some of its dimensions.

    Args:
        make: the operator at given sizes, by name.
        roles: "rows", "columns" or "both" for each size: whether it is a nest's parallel or reduced dimension; "" if
            no tile cuts it.  None: as the nests of the definition have it.
        hint: sizes for which template and tiles are chosen.
        template, config: as in `compile`.
        small: as `make`, with few samples and heads, on which the kernel is checked; None: `make`.
        several: the same for a kernel in Gluon, whose descriptors have a stride for samples and heads; None: `small`.
        code: options of code generation, with loads by pointers; None: in Gluon if the GPU is Hopper and that is the
            choice at the hint (`gluon_for_sizes`), else in Triton.
        given: without `template`, `config` and `code`: what replaces parts of that choice.
        target: as in `compile`.
        shown: whether the programs before and after each pass are generalized too, for the record.
        limits: further numbers that the sizes are compared with, such as the extents of tables.
        farthest: the largest number that positions may be compared with, if it is more than two tiles; the larger it
            is, the longer the check takes.
        bounded: whether the kernel may be for sizes up to a number alone, with which positions are compared: a window
            that is wider hides nothing.

    Returns:
        The kernel. Its shapes, its schedule and its loops are those of a sample; from `least` on up to
        the largest (`htile.nodes.Size`), it takes every size.

    Raises:
        ScheduleError, TileError, EmitError: as `compile`; TileError also if the programs at several sizes are not one
            with other numbers, or if that is wrong at some size.
    """
    make = _once_each(make)
    op = make(hint)
    gluon = gluon_choice(op, template, config, code, target, given)
    if given:
        own = given.alone
        template, config, code = own.template, for_target(own.config, target), own.code
    if roles is None:
        roles = roles_of(make, hint, template, config)
    check_width_of_positions(make, roles, hint)
    asked = _Asked(op, make, roles, small, several, shown, limits, farthest, bounded)
    refusal = ""
    if gluon is not None:
        try:
            chosen = choice_of(make, hint, roles, gluon.template, gluon.config)
            return replace(_of_choice(asked, chosen, gluon.code, target or Target.current()), target=target)
        except REFUSALS as error:
            if (code is not None and code.code == "gluon") or given.language == "gluon":
                raise
            refusal = error.reason
    code = replace((code or CodeOptions()).in_triton, loads="pointers")
    chosen = choice_of(make, hint, roles, template, config)
    try:
        kernel = _of_choice(asked, chosen, code, target)
    except TileError:
        if template is not None or chosen.rolls:
            raise
        rolling = choice_of(make, hint, roles, "rolling_update", config)  # (fewer bounds depend on the sizes)
        kernel = _of_choice(asked, rolling, code, target)
    return _with_note(kernel, refusal) if refusal else kernel


@dataclass(frozen=True, slots=True)
class _Asked:
    """What `compile_for_sizes` is asked for, whichever template and tiles are chosen.

    Args:
        op: the operator at the hint.
        make, roles, small, several, shown, limits, farthest, bounded: as of `compile_for_sizes`.
    """

    op: Operator
    make: Callable[[Sample], Operator]
    roles: Mapping[str, str]
    small: Callable[[Sample], Operator] | None
    several: Callable[[Sample], Operator] | None
    shown: bool
    limits: Collection[int]
    farthest: int
    bounded: bool


def _once_each(make: Callable[[Sample], Operator]) -> Callable[[Sample], Operator]:
    """`make` that builds the operator of each sample once."""
    made: dict[tuple[tuple[str, int], ...], Operator] = {}

    def at(sample: Sample) -> Operator:
        key = tuple(sorted(sample.items()))
        if key not in made:
            made[key] = make(sample)
        return made[key]

    return at


def _is_smaller(small: Operator, op: Operator, *, simulated: bool) -> bool:
    """Whether the checks of `op` take more time than another compilation, of `small`; a simulation takes long."""
    few, many = (sum(prod(t.shape) for t in (*o.inputs, *o.outputs)) for o in (small, op))
    return few * (1 if simulated else _WORTH_A_COMPILATION) < many


def _with_note(kernel: Kernel, refusal: str) -> Kernel:
    """A kernel in Triton whose module says why it is not in Gluon."""
    note = f"{kernel.triton.name} is emitted in Triton: for all sizes, {refusal}."
    return replace(kernel, triton=replace(kernel.triton, notes=(*kernel.triton.notes, note)))


def compile_family(
    op: Operator,
    template: str | None,
    config: TileConfig | None,
    code: CodeOptions | None,
    target: Target | None,
    *,
    given: Given = NOTHING,
    shown: bool = True,
) -> Kernel:
    """`compile` for an operator whose sizes have names; `given` and `shown` as for `compile_for_sizes`.

    Raises:
        ScheduleError: options of code that a kernel for all sizes does not have.
        ScheduleError, TileError, EmitError: as `compile_for_sizes`.
    """
    assert op.family is not None
    loads = (code or given.alone.code).loads
    if loads != "pointers":
        raise ScheduleError(
            f"loads={loads!r}: a kernel for all sizes has loads by pointers, or is written in Gluon",
            help="leave code out, or compile the operator at numbers: op.at(...)",
        )
    more: dict[str, Any] = {"template": template, "config": config, "code": code, "target": target}
    more |= {"given": given, "shown": shown}
    made = op.family
    return compile_for_sizes(made.make, None, made.hint, small=made.small, farthest=FARTHEST, **more)


def _of_choice(asked: _Asked, chosen: SizeChoice, code: CodeOptions, target: Target | None) -> Kernel:
    """`compile_for_sizes` by one choice of template and tiles."""
    tilings = {name: tiling_of(chosen.nests, role) for name, role in asked.roles.items()}
    told = farthest_told(asked.make, asked.roles, tilings, asked.limits, asked.farthest, bounded=asked.bounded)
    farthest = told.farthest
    if farthest and not chosen.rolls:  # where a split ends among such positions depends on the size
        raise TileError(
            f"{asked.op.name} compares positions with {farthest}, which may be in any split",
            help='template="rolling_update"',
        )
    several = (
        asked.several if code.code == "gluon" and not farthest else None
    )  # (far positions: many sizes are checked)
    small = several or asked.small
    refusal: TileError | None = None
    for samples in sample_sets(tilings, farthest):
        joined = _joiner(asked.roles, chosen, samples, told.most)

        def lowered(make: Callable[[Sample], Operator], samples: list[Sample] = samples) -> list[Kernel]:
            schedules = (next(chosen.schedules(make(sample))) for sample in samples)
            return [lower(schedule, code, target, each=False, any_size=True) for schedule in schedules]

        try:
            kernels = lowered(asked.make)
            tiles = joined([kernel.htile for kernel in kernels])
            _check_arguments(tiles)
            module = checked = emitted(tiles, code, target)
            twin = asked.make
            if small is not None:
                # (with few heads it may have another form)
                with suppress(*REFUSALS, DefinitionError), at_other_sizes():
                    simulated = code.code == "gluon"
                    if _is_smaller(small(samples[0]), asked.make(samples[0]), simulated=simulated):
                        alike = joined([kernel.htile for kernel in lowered(small)])
                        if sized(alike) == sized(tiles):
                            checked, twin = emitted(alike, code, target), small
            least, validated = _checked_at_small_sizes(checked, twin, tilings, farthest, fewest_rows(code))
        except TileError as error:
            refusal = refusal or error
            continue
        first = kernels[0]
        schedule, translated, passes = first.schedule, first.translated, first.passes
        if asked.shown:
            schedule = next(chosen.schedules(asked.op))
            translated, passes = _joined_passes(kernels, joined)
        passes = (*passes[:-1], passes[-1]._replace(program=tiles))
        return Kernel(schedule, translated, passes, module, validated, code, target, least)
    assert refusal is not None, "there is a set of samples"
    # (a help with steps is for a schedule of the user's own, and this one was chosen)
    raise refusal if "one size" in (refusal.help or "") else refusal.with_fix("compile it for one size")


def _joiner(
    roles: Mapping[str, str], chosen: SizeChoice, samples: list[Sample], up_to: int
) -> Callable[[list[ir.Program]], ir.Program]:
    """The function that makes one program for all sizes of those at the samples; `up_to`: the largest ones, 0 if there
    is no such number."""
    nests = chosen.nests
    largest = {name: LARGEST_UNCUT for name, role in roles.items() if not role}
    columns = min(nest.block_kv for nest in nests)
    bounded = [name for name, role in roles.items() if role in ("columns", "both")]
    divisors = {size for nest in nests for size in (nest.block_q, nest.block_kv, nest.block_kv * (nest.splits or 1))}

    def joined(programs: list[ir.Program]) -> ir.Program:
        tiles = most_tiles(programs[0])
        most = largest | (dict.fromkeys(bounded, min(tiles * columns, LARGEST)) if tiles else {})
        most |= {name: min(most.get(name, LARGEST), up_to) for name in roles if up_to}
        alike = [launched_as(programs[0], p) for p in programs]
        return within_grids(htile_sizes.generalized(alike, samples, divisors, most))

    return joined


def _joined_passes(
    kernels: list[Kernel], joined: Callable[[list[ir.Program]], ir.Program]
) -> tuple[ir.Program, tuple[AppliedPass, ...]]:
    """The program as translated and after each pass, for all sizes where the samples' are one; for the record."""
    translated = program = joined_or_first([kernel.translated for kernel in kernels], joined)
    made = []
    for same in zip(*(kernel.passes for kernel in kernels), strict=True):
        before = program
        if any(applied.changed for applied in same):  # (most passes change nothing)
            program = joined_or_first([applied.program for applied in same], joined)
        made.append(same[0]._replace(before=before, program=program))
    return translated, tuple(made)


def _check_arguments(program: ir.Program) -> None:
    """Raise TileError unless each dimension of an argument is constant or one size."""
    for name in (*program.inputs, *program.outputs):
        for size in program.tensor(name).sizes or ():
            if not isinstance(size, ir.Int | ir.Name):
                raise TileError(
                    f"a dimension of {name} is {index_text(size)}; expected a size or a constant",
                    help="compile it for one size",
                )


def _checked_at_small_sizes(
    module: EmittedModule,
    make: Callable[[Sample], Operator],
    tilings: Mapping[str, Tiling],
    farthest: int,
    fewest: int,
) -> tuple[dict[str, int], Validated]:
    """The smallest sizes, `fewest` or more, at which the module is right, and what was run.

    Raises:
        TileError: it is wrong at large sizes too.
    """
    least = dict.fromkeys(tilings, fewest)
    right: list[Sample] = []
    wrong: tuple[Sample, str] | None = None
    for sample in below_samples(tilings, farthest) if farthest else small_samples(tilings):
        if any(sample[name] < least[name] for name in least):
            continue
        try:
            what = wrong_at(module, make(sample))
        except triton_numpy.UnknownSpelling as error:
            raise TileError(
                f"the kernel for all sizes cannot be checked: {error}", help="compile it for one size"
            ) from error
        if what is None:
            right.append(sample)
            continue
        wrong = sample, what
        for name, tiling in tilings.items():
            # (with two sizes, the one that is smaller is the reason)
            if sample[name] == min(sample.values()):
                least[name] = max(least[name], (sample[name] // tiling.tile + 1) * tiling.tile + 1)
    # Formal statement: it was run at several of the sizes that it takes, and right at all of them.
    run = sum(all(sample[name] >= least[name] for name in least) for sample in right)
    if wrong is not None and run < _FEWEST_RIGHT:
        sample, what = wrong
        raise TileError(f"the kernel for all sizes is wrong at {dict(sample)}: {what}", help="compile it for one size")
    said = ", ".join(f"{name} from {value} on" for name, value in least.items())
    language = "Gluon" if any(kernel.language == "gluon" for kernel in module.kernels) else "Triton"
    return least, Validated("quick", (language,), ("ordinary numbers",), f"{len(right)} sizes ({said})")


__all__ = ["compile_family", "compile_for_sizes"]
