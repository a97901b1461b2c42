"""The time of products of few rows, such as decoding: a model of what a GPU of Hopper's class waits for.

The products of a single query, or of the queries of a group of heads, take hardly any time; reading keys and values
does.  With tiles of T columns and S splits, the time of a kernel is about

    start + for each turn of programs: max(what the memory needs for their tiles, what the fullest multiprocessor needs
                                           for its own) + the latency of a program
          + the latency of the combining step, and its traffic

in which a multiprocessor computes with a tile while it reads others, "max" is smooth, and a multiprocessor is slower
than it could be if its programs do not ask for enough bytes at a time (Little's law): few programs in the last turn,
or loops that load one tile at a time, and ask for the next one only when they have computed with it, which takes
longer the more padded columns it has. A program with a single tile loads all of it at once; a loop has to fill its
pipeline first. The constants are fitted to kernels that were measured on an H200 (`few_rows_fit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from neptune_lab.autotune.few_rows_rates import Rates, shipped_fit
from neptune_lab.autotune.nests import DEFAULT_STAGES, DEFAULT_WARPS, entry
from neptune_lab.choice import Choice, CodeOptions
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dimensions import dimensions
from neptune_lab.loop_ir.nodes import Program, Var
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.loop_schedule.plan import SMALLEST_ROWS, NestPlan, parallelism, plan
from neptune_lab.loop_schedule.templates import SplitKConfig, TileConfig
from neptune_lab.loop_schedule.templates.nest_shape import (
    COLUMNS,
    accumulated,
    columns_of,
    has_few_rows,
    has_product,
    is_vector_product,
    multiplies_float32,
    products,
)
from neptune_lab.loop_schedule.templates.shown import shown_columns, shows_equal_elements
from neptune_lab.power_of_two import power_of_two
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import DEFAULT, Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

# The most rows of a program: a matrix unit multiplies no fewer.
MOST_ROWS = SMALLEST_ROWS
# Columns of a tile, and the most stages of its loop.
TILES: tuple[tuple[int, int], ...] = ((32, 4), (64, 3), (128, 3), (256, 3))
# Columns from which on a tile is ranked only if it has all of them: on an H200, decoding 200 keys by 64 heads in groups
# of 4, batch 4, takes 6.8 us in one tile of 256 and 8.1 in two splits of 128.
WHOLE = 256
WARPS = 4
# The most elements of one, and the widest rows that are loaded through pointers: on an H200, MLA at batch 16, 16 heads
# and 8192 positions takes 43.4 us with descriptors that the launcher makes, and 46.5 us without.
LARGEST_TILE, WIDE_ROW = 1 << 15, 256
# The most splits that the last program of a row combines.  On an H200, one launch takes 0.97 of the time of two by
# geometric mean of 52 decoding kernels with one row, tiles of 64 and at most this many splits; with tiles of 128, 1.02
# of it (25 kernels), and with more than 64 splits of one tile, 1.12 to 1.72.  The rows of a group, which one program
# combines after another, take 1.0 to 2.8 of it.
MOST_AT_ONCE = 32
# The time of a turn is about the larger of what its multiprocessors and what memory take: the norm with this exponent,
# since both are late now and then.  (Computing with tiles counts on the multiprocessors only.  Added to the memory's
# time, long loops of few programs look 1.06 slower than they are on an H200: 128 programs over 8192 columns.)
LARGER = 8
# Stages of a loop for each tile that is asked for ahead, if a table says where its columns are: Triton gives the loads
# of the table as many as those of the columns.  On an H200, decoding 32 heads in 8 from pages of 16 keys takes 26.9 us
# in 5 stages and 36.7 in 3 at batch 4 and 4096 keys, 28.6 and 38.2 at batch 1 and 16384, 267 and 295 at 32 and 8192.
STAGES_OF_PLACED = 2
# More programs than this per multiprocessor are not ranked.
MOST_PROGRAMS = 16
# Programs of four warps for which a multiprocessor has registers: of rows of at most `NARROW` elements, of others, and
# of others with splits (about 96, 128 and 146 registers a thread, by ptxas); and bytes of shared memory that a program
# takes beside its tiles.
NARROW = 64
OF_NARROW_ROWS, OF_ROWS, OF_SPLITS = 5, 4, 3
BESIDE = 2 << 10
# Single rows of widths that are padded to twice `NARROW`, from so many columns on, in at least so many programs for
# each multiprocessor: in two splits that all run at once, tiles of 64 columns in three stages are within 3% of the best
# of twenty kernels in each of five problems on an H200.  The model's first choices take 1.05 to 1.20 times as long, and
# it does not tell why (docs/using/benchmark.md).
LEAST_OF_TWO, PROGRAMS_OF_TWO = 900, 0.7


@dataclass(frozen=True)
class FewRows:
    """An operator whose only nest has few rows.

    Args:
        programs: without splits.
        rows: of a program, before they are padded.
        columns: how many there are.
        seen: the first one that a mask shows, and the one after the last.
        widths: elements of a column in each of the tiles that are loaded.
        bytes: of a column in all of them.
        shared: elements of a column in tiles that two products read.
        kept: elements of a row that are accumulated.
        pads: a single row is padded, so that matrix units multiply it.
        tiled_rows: the rows of a program are a tile of an axis, of a size that is chosen.
        target: the GPU.
        dealt: tiles are dealt to the splits in turn.  Those that the fit was measured with followed each other.
        equal: a mask shows a column where an element equals that of the only row, so that loops leave tiles out.
        placed: a table says where columns are, as of a cache of pages, and there are several rows (of single ones, more
            stages were not measured).
    """

    programs: int
    rows: int
    columns: int
    seen: tuple[int, int]
    widths: tuple[int, ...]
    bytes: int
    shared: int
    kept: int
    pads: bool
    tiled_rows: bool
    target: Target
    dealt: bool = False
    equal: bool = False
    placed: bool = False

    @classmethod
    def found_in(cls, operator: Operator, target: Target) -> FewRows | None:
        """What the model knows of an operator; None if it is for others, or for other GPUs."""
        program = operator.program
        nests = plan(program)
        if target.capability != DEFAULT.capability or len(nests) != 1 or not _suits(program, nests[0]):
            return None
        (nest,) = nests
        tiles = _tiles(program, nest)
        if not tiles:
            return None
        first = tree.find_block(program, nest.first)[1]
        rows = 1 if nest.row_axis is None else nest.row_size or first.iter(nest.row_axis).extent
        return cls(
            parallelism(program, nest, MOST_ROWS),
            rows,
            columns_of(program, nest),
            shown_columns(program, nest),
            tuple(width for width, _, _ in tiles),
            sum(width * size for width, size, _ in tiles),
            sum(width for width, _, times in tiles if times > 1),
            accumulated(program, nest),
            is_vector_product(program, nest),
            nest.row_axis is not None and nest.row_size is None,
            target,
            has_few_rows(nest),
            shows_equal_elements(program, nest),
            not is_vector_product(program, nest) and _are_placed(program, nest),
        )

    def reads_hidden_tiles(self, choice: Choice) -> bool:
        """Whether programs have one tile each, which they read though it may be of other documents than the row's;
        loops leave such tiles out.  (On an H200, four problems of decoding with documents of 20 to 600 keys take 11.2
        to 14.7 us in single tiles, and 9.4 to 10.6 in the loops of several that rank next.)"""
        columns, splits = choice.sizes.block_kv, choice.splits
        if not self.equal or not isinstance(columns, int) or not isinstance(splits, int):
            return False
        return 1 < ceil(self.columns / columns) <= splits

    def choices(self) -> Iterator[Choice]:
        """The choices that are ranked: tiles, and numbers of splits of which none is empty."""
        widest = max(self.widths)
        for columns, most in TILES:
            if columns * widest > LARGEST_TILE:
                continue
            tiles, before = ceil(self.columns / columns), 0
            if columns >= WHOLE and tiles > 1:
                continue
            for each in range(1, tiles + 1):
                splits = ceil(tiles / each)
                if splits == before or (splits > 1 and splits * self.programs > MOST_PROGRAMS * self.target.sm_count):
                    continue
                before = splits
                for stages in self._stages(columns, most, each, splits):
                    yield self._choice(columns, stages, splits)

    def is_best_of_padded(self, choice: Choice) -> bool:
        """Whether a choice is the two splits that are best for single rows of padded widths (`LEAST_OF_TWO`)."""
        sizes, most = choice.sizes, OF_SPLITS * self.target.sm_count
        padded = all(NARROW < width < 2 * NARROW for width in self.widths) and self.itemsize == 2
        return (
            (choice.splits, sizes.block_kv, sizes.num_stages) == (2, COLUMNS, 3)
            and (self.pads and self.rows == 1 and padded)
            and (self.seen == (0, self.columns) and self.columns >= LEAST_OF_TWO)
            and PROGRAMS_OF_TWO * self.target.sm_count <= self.programs <= most // 2
        )

    def _stages(self, columns: int, most: int, each: int, splits: int) -> Iterator[int]:
        """The most stages whose tiles fit; and the fewest of a loop over all columns, if its programs then run in fewer
        turns.  (On an H200, 512 programs of 12 tiles at width 80 take 38.0 us so, all at once, and 49.1 with a stage
        more, of which three share a multiprocessor; 43.3 and 49.5 at width 128.  256 programs take 70.5 and 61.7.)"""
        room = self.target.shared_memory
        every = [self._stages_of(n) for n in range(most - 1, 0, -1)]
        fitting = [n for n in every if self._shared(columns, n, each, splits) <= room]
        yield from fitting[:1]
        if each > 1 == splits and columns == COLUMNS and len(fitting) > 1:
            own = ceil(self.programs / self.target.sm_count)
            turns = [ceil(own / self._resident(columns, n, each, splits, WARPS)) for n in (fitting[0], fitting[-1])]
            if turns[1] < turns[0]:
                yield fitting[-1]

    def _stages_of(self, ahead: int) -> int:
        """The stages of a loop that asks for so many tiles ahead."""
        return STAGES_OF_PLACED * ahead + 1 if self.placed and ahead > 1 else ahead + 1

    def _shared(self, columns: int, stages: int, visited: int, splits: int) -> float:
        """About the bytes of shared memory of a program that visits so many tiles: those that are loaded ahead, the
        rows, and if the last tile of a loop has a mask, the tile that is masked, which no second product reads then (of
        single rows without splits, it is masked in registers)."""
        ahead = self._ahead(visited, stages)
        masked = visited > 1 and self.columns % columns > 0 and (splits > 1 or not self.pads)
        again = (ahead * self.shared + power_of_two(self.kept)) * self.itemsize if masked else 0
        return columns * (ahead * self._padded_bytes + again) + MOST_ROWS * self._padded_bytes + BESIDE

    def _ahead(self, visited: int, stages: int) -> int:
        """How many tiles a program asks for before it computes with the first of them."""
        return 1 if visited == 1 else max(1, (stages - 1) // (STAGES_OF_PLACED if self.placed else 1))

    def _resident(self, columns: int, stages: int, visited: int, splits: int, warps: int) -> int:
        """How many programs a multiprocessor runs at a time, about."""
        registers = OF_NARROW_ROWS if self.kept <= NARROW else OF_ROWS if splits == 1 else OF_SPLITS
        room = int(self.target.shared_memory // self._shared(columns, stages, visited, splits))
        return max(1, min(room, registers * WARPS // max(WARPS, warps)))

    def fits(self, written: Choice) -> bool:
        """Whether the tiles of a choice with all sizes written out fit in shared memory, by the same estimate."""
        columns, splits = entry(written.sizes.block_kv, 0) or COLUMNS, entry(written.splits, 0) or 1
        stages, each = entry(written.sizes.num_stages, 0) or DEFAULT_STAGES, ceil(ceil(self.columns / columns) / splits)
        return self._shared(columns, stages, each, splits) <= self.target.shared_memory

    def _choice(self, columns: int, stages: int, splits: int) -> Choice:
        given: dict[str, Any] = {"block_kv": columns, "num_stages": stages, "num_warps": WARPS, "pad_rows": self.pads}
        given |= {"block_q": MOST_ROWS} if self.tiled_rows else {}
        whole = max(self.widths) > WIDE_ROW and self.columns % (columns * splits) == 0
        loads = "host_descriptors" if whole else "pointers"
        if splits == 1:
            return Choice("rolling_update", TileConfig(**given), CodeOptions(loads=loads))
        if loads == "pointers" and self.rows == 1 and columns == COLUMNS and splits <= MOST_AT_ONCE:
            code = CodeOptions(combine="last_program")
        else:
            code = CodeOptions(loads=loads, dependent_launch=loads == "pointers")
        return Choice("split_k_update", SplitKConfig(**given, splits=splits), code)

    def seconds(self, written: Choice, rates: Rates | None = None) -> float:
        """The estimate for a choice with all sizes written out.

        Args:
            written: the choice.
            rates: other constants than the package's.
        """
        sizes, rates, sms = written.sizes, rates or shipped_fit().rates, self.target.sm_count
        columns, splits = entry(sizes.block_kv, 0) or COLUMNS, entry(written.splits, 0) or 1
        warps, stages = entry(sizes.num_warps, 0) or DEFAULT_WARPS, entry(sizes.num_stages, 0) or DEFAULT_STAGES
        each = ceil(ceil(self.columns / columns) / splits)
        first, last = self.seen[0] // columns, ceil(self.seen[1] / columns)  # tiles that loops visit
        most, with_tiles = min(each, last - first), (last - 1) // each - first // each + 1
        if self.dealt:
            most, with_tiles = ceil((last - first) / splits), min(splits, last - first)
        # (without a loop, a program loads its tile in any case)
        running = self.programs * (splits if each == 1 else with_tiles)
        size = columns * self.bytes
        ahead = self._ahead(most, stages)
        resident = self._resident(columns, stages, most, splits, warps)
        padded = 1e-6 * columns * self._padded_bytes
        work = rates.work * padded
        # (loaded one at a time, a tile is asked for once the one before it is computed with)
        asking = 0.0 if most == 1 or ahead > 1 else rates.alone + work
        latency, computing = (rates.single, 0.0) if most == 1 else (rates.loop, rates.tile * most)
        # (a loop computes with a tile while others are loaded; single tiles of programs that run at a time all arrive
        # when the last one does)
        later = rates.later * padded if each == 1 else 0.0
        taken, left = rates.start, running
        while left > 0:  # one turn after another
            now = min(left, sms * resident)
            own, of_one = ceil(now / sms), most * size
            rate = 1 / (asking / (own * size) + 1 / rates.multiprocessor)
            here, memory = own * of_one / rate + computing, now * of_one / (rates.memory * self._speed)
            taken += (here**LARGER + memory**LARGER) ** (1 / LARGER) + latency + own * later
            left -= now
        if self.pads and not sizes.pad_rows:
            taken *= rates.unpadded
        if splits > 1:
            once = written.code.combine == "last_program"
            parts = 4e-6 * self.programs * splits * self.rows * self.kept
            taken += rates.idle * (self.programs * splits - running) / sms
            taken += (rates.once * self.rows if once else rates.combine) + rates.partial * parts
        return 1e-6 * taken

    @property
    def told(self) -> str:
        """What the estimates are from, and how far they are off, in a sentence."""
        fit = shipped_fit()
        return f"a model of few rows, fitted to {fit.kernels} kernels on an H200: off by a factor of {fit.error:.2f}"

    @property
    def itemsize(self) -> int:
        """Bytes of an element, about."""
        return ceil(self.bytes / sum(self.widths))

    @cached_property
    def _padded_bytes(self) -> float:
        return self.bytes * sum(map(power_of_two, self.widths)) / sum(self.widths)

    @cached_property
    def _speed(self) -> float:
        """The memory's rate over an H200's, by their data sheets."""
        own, usual = self.target.gbps, DEFAULT.gbps
        return own / usual if own and usual else 1.0


def _are_placed(program: Program, nest: NestPlan) -> bool:
    """Whether an index of what products read is itself read from a tensor."""
    every = (read for block in products(program, nest) for read in loads(block.body.value))
    return any(True for read in every for index in read.indices for _ in loads(index))


def _suits(program: Program, nest: NestPlan) -> bool:
    """Whether a nest reads much and computes little: products of few rows in 16 bits or less, of a softmax."""
    first = tree.find_block(program, nest.first)[1]
    rows = 1 if nest.row_axis is None else nest.row_size or first.iter(nest.row_axis).extent
    multiplied = {block.name for block in products(program, nest)}
    return (
        (has_product(program, nest) or is_vector_product(program, nest))
        and rows <= MOST_ROWS
        and not (nest.column_axis or nest.serial_axes)
        and nest.first in multiplied
        and any(name in multiplied for name in nest.reductions)
        and any(name not in multiplied for name in nest.reductions)
        and not multiplies_float32(program, nest)
    )


def _tiles(program: Program, nest: NestPlan) -> tuple[tuple[int, int, int], ...]:
    """What each column of the tiles has that products load: its elements, the bytes of one, and how many products read
    it, for which it is loaded once; none if a tile is not made of whole columns, or if two variables of a product run
    along one dimension, such as queries and keys that read one table."""
    dims, inputs = dimensions(program), {b.name: b.dtype for b in program.buffers if b.name in program.inputs}
    first = tree.find_block(program, nest.first)[1]
    column = dims.of(first, nest.reduce_axis)
    parallel = {dims.of(first, name) for name in nest.parallel_axes}
    found: dict[tuple[str, tuple[tuple[int, bool], ...]], tuple[int, int, int]] = {}
    for block in products(program, nest):
        own = {name: dimension for dimension, name in dims.all_of(block).items()}
        if len(own) < len(block.iters):
            return ()
        for read in (r for r in loads(block.body.value) if r.buffer in inputs):
            free = [[n for n in sorted(variables(i)) if own[n] not in parallel] for i in read.indices]
            if not any(own[n] == column for names in free for n in names):
                continue
            inner = [names for names in free if names and own[names[0]] != column]
            if any(len(names) > 1 for names in free):
                return ()
            region = tuple(
                (block.iter(names[0]).extent, index == Var(names[0]))
                for names, index in zip(free, read.indices, strict=True)
                if names and own[names[0]] != column
            )
            width, known = prod(block.iter(names[0]).extent for names in inner), found.get((read.buffer, region))
            found[read.buffer, region] = width, itemsize(inputs[read.buffer]), 1 + (known[2] if known else 0)
    return tuple(found.values())


__all__ = ["FewRows"]
