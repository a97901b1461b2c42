"""From a schedule to a kernel: loops to tiles, the passes, and the emitter, one arrow per line (paper, Figure 2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from neptune_lab import htile_passes, htile_to_gluon, htile_to_triton
from neptune_lab.choice import CodeOptions
from neptune_lab.errors import ScheduleError, TileError
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.verify import verify
from neptune_lab.htile_passes import Pass, Rewrite
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_to_htile import translate
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.record import AppliedPass
from neptune_lab.progress import tell

if TYPE_CHECKING:
    from neptune_lab.target import Target


class PassWarning(UserWarning):
    """A pass made a program of tiles that is not valid: a mistake of the pass, whose rewrite is left out."""


# Chooses options of the emitter by a program of tiles.
Suited: TypeAlias = Callable[[TileProgram, CodeOptions, "Target | None"], CodeOptions]
_suited: ContextVar[Suited | None] = ContextVar("suited", default=None)


@contextmanager
def suited_by(choose: Suited) -> Iterator[None]:
    """Inside, kernels have the options that `choose` gives for their tiles, which have the same passes: it is asked
    before the text is emitted, which is then emitted once."""
    before = _suited.set(choose)
    try:
        yield
    finally:
        _suited.reset(before)


@contextmanager
def keeping(keep: Callable[[CodeOptions], CodeOptions]) -> Iterator[None]:
    """Inside, options that `suited_by` chooses are passed through `keep`, which puts back what the caller gave."""
    choose = _suited.get()
    if choose is None:
        yield
        return
    with suited_by(lambda tiles, code, target: keep(choose(tiles, code, target))):
        yield


def lower(
    scheduled: Schedule,
    code: CodeOptions,
    target: Target | None,
    *,
    each: bool = True,
    any_size: bool = False,
    whole: bool = False,
) -> Kernel:
    """Lowers a schedule to the kernel's source.

    Args:
        any_size: in the form of passes that is the same at all sizes.
        each: verify the program of tiles after every pass; else after the last one only, for a program that was
            verified at other sizes and is run.  If that one is not valid, they are verified one by one.
        whole: masks divide no loop (`partition_no_loops`).

    Raises:
        ScheduleError, TileError, EmitError: the stage that refused, with the block or loop and what would help.
    """
    translated = translated_and_verified(scheduled) if each else laid_out(scheduled)  # loops -> HTile
    passes = passed(translated, code, each=each, any_size=any_size, whole=whole)  # HTile -> HTile
    tiles = passes[-1].program if passes else translated
    suited = _suited.get()
    if suited is not None:
        code = suited(tiles, code, target)
    if not each:
        try:
            verify(tiles)
        except TileError:  # (which pass it was shows only after each)
            return lower(scheduled, code, target, any_size=any_size, whole=whole)
    return Kernel(scheduled, translated, passes, emitted(tiles, code, target), code=code, target=target)


def emitted(tiles: TileProgram, code: CodeOptions, target: Target | None) -> EmittedModule:
    """The module of a program of tiles, in the language that `code` names.

    Raises:
        EmitError: the emitter refuses it.
    """
    if code.code == "gluon":
        return htile_to_gluon.emit(tiles, code.gluon(target))  # HTile -> Gluon
    return htile_to_triton.emit(tiles, code.emitter(target))  # HTile -> Triton


def emitted_with(kernel: Kernel, code: CodeOptions) -> Kernel:
    """The kernel with other options of the emitter; what was scheduled and rewritten stays, so `code` has the same
    passes.

    Raises:
        EmitError: the emitter refuses it.
    """
    assert tuple(code_passes(code)) == tuple(applied.name for applied in kernel.passes), "the passes are the same"
    if code == kernel.code:
        return kernel
    return replace(kernel, triton=emitted(kernel.htile, code, kernel.target), code=code, validated=None)


def passed(
    tiles: TileProgram, code: CodeOptions, *, each: bool = True, any_size: bool = False, whole: bool = False
) -> tuple[AppliedPass, ...]:
    """The HTile program after each pass; if `each`, all are verified, and a rewrite that is not valid is left out."""
    passes = []
    chosen = code_passes(code, any_size=any_size)
    if whole and "partition_masked_loops" in chosen:
        chosen["partition_masked_loops"] = htile_passes.ALL_PASSES["partition_no_loops"]
    if any_size:
        chosen |= {name: htile_passes.ALL_PASSES[_ANY_SIZE[name]] for name in _ANY_SIZE if name in chosen}
        chosen = {name: rewrite for name, rewrite in chosen.items() if name not in _OF_ONE_SIZE}
        if code.hidden_tiles == "auto":  # (where a list can pay depends on the sizes)
            chosen.pop("skip_tiles_by_list", None)
    for name, rewrite in chosen.items():
        tell("pass", name)
        done = _valid(name, rewrite, tiles) if each else htile_passes.apply(rewrite, tiles)
        passes.append(AppliedPass(name, tiles, done.program, done.notes))
        tiles = done.program
    return tuple(passes)


def _valid(name: str, rewrite: Pass, tiles: TileProgram) -> Rewrite:
    """The result of a pass if it is a valid program; else the program before it, with a note and a `PassWarning`.

    A pass is never needed for a kernel (`CodeOptions.disable_passes`), so its mistake is no reason to fuse less.
    """
    done = htile_passes.apply(rewrite, tiles)
    if done.program is tiles:
        return done
    try:
        verify(done.program)
    except TileError as error:
        warnings.warn(
            f"the pass {name} is left out: it made a program of tiles that is not valid: {error.reason}\n"
            "  help: this is a mistake of the pass, and the kernel does without it; please report the operator",
            PassWarning,
            stacklevel=2,
        )
        return Rewrite(tiles, (f"Left out: the program that this pass made is not valid. {error.reason}.",))
    return done


# The forms of passes that suit kernels in Gluon of one size.
_OF_GLUON = {
    "partition_masked_loops": "partition_loops_with_certain_ends",
    "unroll_single_parts": "unroll_single_ends",
}
# The forms of passes that are the same for every number of tiles, and every size.
_ANY_SIZE = {
    "skip_tiles_by_data": "skip_any_tiles_by_data",
    "skip_tiles_by_list": "skip_any_tiles_by_list",
    "partition_masked_loops": "partition_loops_of_any_size",
}
# Passes whose statements depend on the length of a row and on where it begins in memory.
_OF_ONE_SIZE = frozenset(
    {
        "align_grid_tiles",
        "align_row_loops",
        "compute_again",
        "cut_long_rows",
        "hold_rows_as_loaded",
        "load_row_tiles_ahead",
        "reduce_in_lanes",
        "reread_backwards",
        "share_rows",
        "shift_vectors",
        "squares_without_scale",
    }
)
# The help for a program of tiles that the verifier refuses.
_HELP = "take steps back with Schedule.undo() until it compiles: the last one makes tiles that do not fit"


def translated_and_verified(scheduled: Schedule) -> TileProgram:
    """The HTile program of a schedule whose repairs are all proved."""
    check_proved(scheduled)
    try:
        return verify_and_return(laid_out(scheduled))
    except TileError as error:
        help = None if error.help == TileError.usual_help else error.help
        if help is not None and error.node is not None:
            raise
        # The verifier sees tiles, and the user has written steps.
        node = error.node or blocks(scheduled.program)[-1].name
        raise TileError(error.reason, node=node, help=help or _HELP) from error


def laid_out(scheduled: Schedule) -> TileProgram:
    """The HTile program of a schedule, whose inputs and outputs have the strides that the operator gives them."""
    tiles = translate(scheduled.program)
    strides = {t.name: t.strides for t in (*scheduled.operator.inputs, *scheduled.operator.outputs)}
    if not any(strides.values()):
        return tiles
    return replace(tiles, tensors=tuple(replace(t, strides=strides.get(t.name)) for t in tiles.tensors))


def check_proved(scheduled: Schedule) -> None:
    """Formal statement: every repair of the program is proved. No kernel is made of one that is not."""
    for block in blocks(scheduled.program):
        h = block.unproved
        if h is not None:
            raise ScheduleError(
                f"block {block.name!r} is repaired by h = {h}, which is not proved: no kernel is made of it",
                node=block.name,
                help="leave repair= and proved= out, and h is derived; Schedule.check() and Schedule.tag_table() show "
                "what this one does",
            )


def code_passes(code: CodeOptions, *, any_size: bool = False) -> dict[str, htile_passes.Pass]:
    """The HTile passes in order, by name: the default passes without `code.disable_passes`, then the optional ones.

    Gluon kernels visit every tile, but for those for all sizes, which skip tiles by bounds: those of one size leave out
    masks by data too (`unmask_tiles_by_data`), which is faster in Triton.
    """
    by_data = {"skip_tiles_by_flags"} if any_size else set[str]()  # (how many flags a program reads is fixed)
    if code.code == "gluon":
        by_data = {"skip_tiles_by_list", "skip_tiles_by_positions", "skip_tiles_by_flags", "cut_padded_widths"}
        by_data |= set[str]() if any_size else {"skip_tiles_by_data"}
    by_list = {"skip_tiles_by_list"} if code.hidden_tiles == "bounds" else set[str]()
    weights = {"split_rounded_weights"} if code.rounded_weights == "single" else set[str]()
    left_out = {*code.disable_passes, *by_data, *by_list, *weights}
    chosen = {name: rewrite for name, rewrite in htile_passes.PASSES.items() if name not in left_out}
    if code.combine == "waiting":  # before the passes that look at rows as they are
        chosen = {"share_rows": htile_passes.ALL_PASSES["share_rows"], **chosen}
    if code.hidden_tiles == "list" and "skip_tiles_by_list" in chosen:
        chosen["skip_tiles_by_list"] = htile_passes.ALL_PASSES["skip_every_tile_by_list"]
    if code.rounded_weights == "mixed" and "split_rounded_weights" in chosen:  # what is not mixed is split
        chosen = _with_before(chosen, "split_rounded_weights", "mix_rounded_weights")
    if code.code == "gluon" and not any_size:
        chosen |= {name: htile_passes.ALL_PASSES[_OF_GLUON[name]] for name in _OF_GLUON if name in chosen}
    if code.code == "triton" and not any_size and "partition_masked_loops" in chosen:
        chosen["partition_masked_loops"] = htile_passes.ALL_PASSES["partition_long_loops"]
    if code.interleave > 1:
        chosen["interleave_rows"] = htile_passes.ALL_PASSES["interleave_rows"]
    return chosen


def _with_before(passes: dict[str, htile_passes.Pass], name: str, added: str) -> dict[str, htile_passes.Pass]:
    """The passes with another one before that of this name."""
    items = list(passes.items())
    at = list(passes).index(name)
    return dict([*items[:at], (added, htile_passes.ALL_PASSES[added]), *items[at:]])


def verify_and_return(tiles: TileProgram) -> TileProgram:
    """The program, verified: every stage hands a valid one to the next."""
    verify(tiles)
    return tiles
