"""Kernels in Gluon that nobody tuned: which options follow from their tiles, and when Triton is better.

A kernel's tiles are scheduled and rewritten first; its options are chosen by them, and then its text is written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from math import prod

from neptune_lab.choice import Choice, CodeOptions
from neptune_lab.htile.nodes import For, Program
from neptune_lab.htile.nodes import Kernel as TileKernel
from neptune_lab.htile_passes import PASSES, apply
from neptune_lab.htile_passes.skip_tiles_by_list import leaves_out_inside
from neptune_lab.htile_to_gluon import (
    SHORT_LOOP,
    fits_registers,
    moves_no_weights,
    reads_pairs,
    suits_persistence,
    suits_tie,
    suits_wide_tiles,
    visited_tiles,
)
from neptune_lab.htile_to_triton.module import rounds_to_eights
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.pipeline.fallback import REFUSALS
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import suited_by
from neptune_lab.target import DEFAULT, Target

# Columns of a tile if those of the choice are too many for shared memory (two products of scores) or, beside a wide
# accumulator, for the registers.
FEWER_COLUMNS = 64
# Columns of a tile of products of 8 bits, whose scores and weights leave room for them.
MORE_COLUMNS = 256
# Accumulators of more columns take so many registers that less is left for scores.
WIDE_COLUMNS = 128
# For loops that skip tiles by positions, or by data with products of more than 64 columns: more programs, since each
# has few tiles.  (On an H200, dilated attention of 4096 x 64 takes 73 us in place of 98 with 128 rows.)
SKIPPING_COLUMNS = 64
SKIPPING = TileConfig(block_q=64, block_kv=SKIPPING_COLUMNS, num_warps=4, num_stages=3)

# Documents of one length (`partition_loops_with_certain_ends`) have tiles of fewer columns if programs then visit so
# much fewer columns: on an H200, documents of 200 of 8192 positions at 128 columns take 66 us in place of 71, of 300 of
# 3000 at 80 columns 32.5 in place of 36.5, but documents of 512 of 8192, which tiles divide, 75 in place of 68.
FEW_LEFT = 0.9

# With heads of at most so many columns, row work that reads an element of a tensor for each pair is faster in Triton:
# on an H200, 128 us in place of 160 for a bias of each head at 4 x 32 x 1024 x 64; at 1 x 16 x 4096 x 128, 345 and 326.
NARROW_COLUMNS = 64

_PARTITION, _BY_DATA = "partition_masked_loops", "skip_tiles_by_data"

# Tiles of one consumer, which compile in less time than those of two.
SMALL = {"block_q": 64, "block_kv": 64}


def gluon_kernel(
    make: Callable[[Choice], Kernel],
    choice: Choice,
    *,
    small: bool = False,
    large: bool = False,
    by_data: bool = False,
) -> Kernel | None:
    """The kernel of a choice in Gluon, with the options that suit its tiles; in Triton if that skips tiles which Gluon
    does not: by the values of an input, or inside of the range that positions show.

    Args:
        make: compiles a choice.
        small: whether its tiles are those of one consumer, unless it has persistent programs.
        large: whether tiles of as many columns as the choice has would be refused, and are left out.
        by_data: whether the kernel in Triton likely skips tiles by data, and is made first.

    Returns:
        The kernel; None if it would spill registers, or is refused.
    """
    choice = compiled_once(choice)
    if by_data:
        with suppress(*REFUSALS):
            skipping = make(Choice(choice.template, SKIPPING, CodeOptions()))
            if any(done.name == _BY_DATA and done.notes for done in skipping.passes):
                return skipping
    if small and (made := _small(make, choice)) is not None:
        return made
    for config in (choice.sizes, replace(choice.sizes, block_kv=FEWER_COLUMNS))[large:]:
        with suppress(*REFUSALS):
            with suited_by(_suited_options):
                kernel = make(replace(choice, config=config))
            if (skipping := _skipping(make, choice, kernel)) is not None:
                return skipping
            if _widest_output(kernel) <= NARROW_COLUMNS and reads_pairs(kernel.htile):
                return None
            if config.block_kv != FEWER_COLUMNS and _stays_one_loop(kernel):
                kernel = _narrower(make, choice, kernel)
            if not fits_registers(kernel.htile):
                if _widest_output(kernel) > WIDE_COLUMNS:
                    continue  # with half of the scores, there is room for them
                return None
            if (wide := _wider(make, choice, kernel)) is not None:
                return wide
            return kernel
    return None


def _suited_options(tiles: Program, code: CodeOptions, target: Target | None) -> CodeOptions:
    """Options of a kernel in Gluon that suit its tiles."""
    persistent = suits_persistence(tiles) and _fills_twice(tiles, target)
    return replace(code, persistent=persistent, tie=persistent or suits_tie(tiles))


def _small_options(tiles: Program, code: CodeOptions, target: Target | None) -> CodeOptions:
    """Options of a kernel whose tiles are those of one consumer."""
    return replace(code, persistent=False, tie=suits_tie(tiles))


def _wide_options(tiles: Program, code: CodeOptions, target: Target | None) -> CodeOptions:
    """Options of a kernel with tiles of twice as many columns."""
    return replace(code, persistent=True, tie=False)


def compiled_once(choice: Choice) -> Choice:
    """A choice in Gluon whose two groups of warps share one copy of the code, which compiles in about half the time.
    Of 24 such kernels, each took 0.91 to 1.07 of the time of two consumers on an H200, 0.99 by geometric mean."""
    return replace(choice, code=replace(choice.code, one_consumer=True))


def _skipping(make: Callable[[Choice], Kernel], choice: Choice, kernel: Kernel) -> Kernel | None:
    """The kernel in Triton, if it skips tiles by data, or many between the bounds of its loops by positions: kernels in
    Gluon visit them.  None if it does not."""
    tiles = _before_skipping(kernel)
    columns = choice.sizes.block_kv
    cut = columns // SKIPPING_COLUMNS if isinstance(columns, int) else 1
    if leaves_out_inside(tiles, cut=max(1, cut)):
        skipping = make(Choice(choice.template, SKIPPING, CodeOptions()))
        if leaves_out_inside(_before_skipping(skipping)):
            return skipping
    if _widest_output(kernel) <= NARROW_COLUMNS and _stays_one_loop(kernel):
        return make(Choice(choice.template, SKIPPING, CodeOptions()))
    if not apply(PASSES[_BY_DATA], tiles).notes:
        return None
    config = SKIPPING if _widest_output(kernel) > SKIPPING_COLUMNS else None
    return make(Choice(choice.template, config, CodeOptions()))


def _narrower(make: Callable[[Choice], Kernel], choice: Choice, kernel: Kernel) -> Kernel:
    """The kernel, or that with tiles of fewer columns if its programs visit fewer of them."""
    config, wider = replace(choice.sizes, block_kv=FEWER_COLUMNS), choice.sizes.block_kv
    with suppress(*REFUSALS):
        with suited_by(_suited_options):
            narrower = make(replace(choice, config=config))
        if isinstance(wider, int) and _visited(narrower, FEWER_COLUMNS) < FEW_LEFT * _visited(kernel, wider):
            return narrower
    return kernel


def _visited(kernel: Kernel, columns: int) -> float:
    return visited_tiles(kernel.htile) * columns


def _stays_one_loop(kernel: Kernel) -> bool:
    """Whether a loop that kernels in Triton cut into parts stays one (`partition_loops_with_certain_ends`)."""
    if not any(done.name == _PARTITION for done in kernel.passes):
        return False
    whole = next(done.program for done in kernel.passes if done.name == _PARTITION)
    if all(len(_loops(part)) > 1 for part in whole.kernels):
        return False
    cut = apply(PASSES[_PARTITION], _before(kernel, _PARTITION)).program
    return any(len(_loops(a)) > len(_loops(b)) for a, b in zip(cut.kernels, whole.kernels, strict=True))


def _loops(kernel: TileKernel) -> list[For]:
    return [stmt for stmt in kernel.body if isinstance(stmt, For)]


def _small(make: Callable[[Choice], Kernel], choice: Choice) -> Kernel | None:
    """The kernel with tiles of one consumer; None if that is refused, or persistent programs of two are faster."""
    with suppress(*REFUSALS):
        with suited_by(_small_options):
            kernel = make(replace(choice, config=replace(choice.sizes, **SMALL)))
        if (skipping := _skipping(make, replace(choice, config=replace(choice.sizes, **SMALL)), kernel)) is not None:
            return skipping
        shared = 2 * (kernel.target or Target.current(otherwise=DEFAULT)).sm_count
        if _programs(kernel.htile) > shared and suits_persistence(kernel.htile, 2 * SHORT_LOOP):
            return None
        if not fits_registers(kernel.htile) or any(map(rounds_to_eights, kernel.htile.kernels)):
            return None
        return kernel
    return None


def _wider(make: Callable[[Choice], Kernel], choice: Choice, kernel: Kernel) -> Kernel | None:
    """The kernel with tiles of twice as many columns, weights half of which are float16, and persistent programs, if
    that suits it and fits."""
    if not suits_wide_tiles(kernel.htile):
        return None
    mixed = replace(choice.code, rounded_weights="mixed")
    with suppress(*REFUSALS):
        with suited_by(_wide_options):
            wide = make(replace(choice, config=replace(choice.sizes, block_kv=MORE_COLUMNS), code=mixed))
        if moves_no_weights(wide.htile) and fits_registers(wide.htile):
            return wide
    return None


def kernel_of_other_lengths(make: Callable[[Choice], Kernel], choice: Choice) -> Kernel:
    """The kernel of a choice that was measured at other sizes, with those options that depend on sizes as they suit it:
    `tie` if its tiles do not divide the keys, and persistent programs if they are short and several for each
    multiprocessor.  (With the options of the nearest records, 64 heads of 570 positions took 27.7 us on an H200, with
    these 23.2; 64 of 701 took 37.6 and 32.0.)"""
    with suited_by(_length_options):
        return make(compiled_once(choice))


def _length_options(tiles: Program, code: CodeOptions, target: Target | None) -> CodeOptions:
    """Options of a kernel in Gluon, some of which were measured at other sizes."""
    if code.code != "gluon":
        return code
    suited = suited_to_odd_lengths(code) if suits_tie(tiles) else code
    if suits_persistence(tiles):
        suited = replace(suited, persistent=_fills_twice(tiles, target), heads_together=None)
    return suited


def _fills_twice(tiles: Program, target: Target | None) -> bool:
    """Whether some multiprocessor has a second program: else persistent programs save nothing, and take up to 9% longer
    on an H200."""
    return _programs(tiles) > (target or Target.current(otherwise=DEFAULT)).sm_count


def _programs(tiles: Program) -> int:
    """The most programs of a kernel in a program of tiles."""
    return max(prod(axis.extent for axis in part.grid) for part in tiles.kernels)


def suited_to_odd_lengths(code: CodeOptions) -> CodeOptions:
    """Options for tiles that do not divide the keys: `tie`, and then not `ahead`, with which the assembler serialises
    all products.  Without that, persistent programs gain nothing if all have as many tiles."""
    return replace(code, tie=True, ahead=False, persistent=code.persistent and not code.ahead)


def _widest_output(kernel: Kernel) -> int:
    """Columns of the widest output; those that have one value per row, such as the log-sum-exp, have none."""
    shapes = [kernel.htile.tensor(name).shape for name in kernel.htile.outputs]
    most = max(map(len, shapes))
    return max(shape[-1] if shape else 1 for shape in shapes if len(shape) == most)


def _before_skipping(kernel: Kernel) -> Program:
    """The tiles before the passes that skip some, which kernels in Gluon go without."""
    return _before(kernel, "skip_tiles_by_list")


def _before(kernel: Kernel, name: str) -> Program:
    """The tiles before a pass."""
    names = list(PASSES)
    before = names[: names.index(name)]
    return [kernel.translated, *(done.program for done in kernel.passes if done.name in before)][-1]


__all__ = ["compiled_once", "gluon_kernel", "kernel_of_other_lengths"]
