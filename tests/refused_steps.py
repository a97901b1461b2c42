"""Steps of schedules that are refused, with the words of the message and of the help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import by_name
import numpy as np
from tvm import te

import neptune_lab as nl
from neptune_lab.errors import NeptuneError, ScheduleError, TileError
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.schedule import Step
from neptune_lab.operators import attention, softmax

sys.path.insert(0, str(Path(__file__).parent / "loop_schedule"))

import small_operators as small  # pyright: ignore[reportMissingImports]


@dataclass(frozen=True)
class Refused:
    """`act` on the schedule that `start` makes raises `error`, with these words in its message and in its help."""

    start: Callable[[], Schedule]
    act: Callable[[Schedule], object]
    message: str
    help: str
    error: type[NeptuneError] = ScheduleError


def figure1() -> Schedule:
    return Schedule(softmax.figure1(rows=4, cols=8))


def fused_loops() -> Schedule:
    sch = figure1()
    sch.fuse("s_max", "i", "j")
    return sch


def split(definition: small.Definition, loop: str = "r.j") -> Schedule:
    sch = small.schedule(definition)
    sch.split(loop, (None, 2))
    return sch


def bound() -> Schedule:
    sch = split(small.scaled_first(), "c.j")
    sch.bind("c.j0", "blockIdx.x")
    return sch


def two_readers() -> Schedule:
    """s rolls with r; q, which reads r's tags too, would be left behind if the tags were retired and one value kept."""
    sch = split(small.two_direct_sums())
    sch.rolling_update("s", "r.j0")
    sch.retire_tags("r")
    return sch


def template(name: str, **options: Any) -> Callable[[Schedule], object]:
    return lambda sch: by_name.compile(sch.operator, name, **options)


def on_schedule(name: str, **options: Any) -> Callable[[Schedule], object]:
    return lambda sch: by_name.apply(name, sch, **options)


OPERANDS = "block 'qk' multiplies tiles of q .131072 bytes. and k .131072 bytes., 262144 bytes in all"
CASES: dict[str, Refused] = {
    # Names and steps that are written otherwise than they are.
    "a loop where a block belongs": Refused(
        figure1, lambda s: s.fuse("s_max.i", "s_max.j"), "no block 's_max.i'", "did you mean 's_max'"
    ),
    "loops with their block": Refused(
        figure1,
        lambda s: s.reorder("s_max", *s.loops("s_max")),
        "no loop 's_max.i' around it",
        "without its block.*'i'",
    ),
    "loops in a list": Refused(figure1, lambda s: s.reorder("s_max", ["j", "i"]), "loops=.*'j', 'i'", "without"),  # type: ignore[arg-type]
    "a buffer where a block belongs": Refused(
        figure1, lambda s: s.inline("xexp"), "no block 'xexp'", "xexp is a buffer, written by block 's_exp'"
    ),
    "a step that is a name alone": Refused(figure1, lambda s: s.apply("inline"), "needs the argument 'block'", "block"),
    "a step with arguments beside its own": Refused(
        lambda: split(small.scaled_first(), "c.j"),
        lambda s: s.apply(s.steps[0], block="c"),
        "got block as well",
        "alone",
    ),
    "no step": Refused(figure1, lambda s: s.apply(None), "None is not a Step", "sch.apply"),  # type: ignore[arg-type]
    "a step of other data": Refused(figure1, lambda _: Step("split", {"loop": 1}), "a tuple of", "Step.of"),  # type: ignore[arg-type]
    "steps as Python": Refused(
        figure1, lambda s: Schedule.replay(s.operator, "sch.inline('s_exp')"), "not a list of steps", "to_python"
    ),
    "an index of no element": Refused(
        figure1, lambda s: s.tag_table("j", where={"row": 0}), "no element has an index 'row'", "i, j"
    ),
    "an element that is not there": Refused(
        figure1, lambda s: s.tag_table("j", where={"i": 9}), "i is from 0 to 3, not 9", "where="
    ),
    "an input by another name": Refused(figure1, lambda s: s.run(input=np.zeros((4, 8))), "no input 'input'", "inp"),
    "a tolerance below zero": Refused(figure1, lambda s: s.check(tolerance=-1), "0 or above", "such as"),
    # What the updates refuse.
    "a producer that is not a reduction": Refused(
        figure1, lambda s: s.rolling_update("s_exp", "s_max.j"), "'s_exp' is not a reduction", "a sum or a max"
    ),
    "a rolling loop that encloses the target": Refused(
        figure1, lambda s: s.rolling_update("s_max", "s_max.j"), "'s_max.j' encloses block 's_max'", "comes before it"
    ),
    "a rolling loop behind the target": Refused(
        figure1, lambda s: s.rolling_update("s_max", "s_sum.j"), "'s_max' comes before loop", "comes before it"
    ),
    "a rolling loop that is parallel": Refused(
        bound, lambda s: s.rolling_update("r", "c.j0"), "'c.j0' is bound to blockIdx.x", "split_k_update"
    ),
    "an output would hold one value per tag": Refused(
        lambda: split(small.maximum_output()),
        lambda s: s.rolling_update("s", "r.j0"),
        "'r' writes the output 'r'",
        "copies it to the output",
    ),
    "a second consumer whose tags are retired": Refused(
        two_readers,
        lambda s: s.rolling_update("q", "r.j0"),
        "'q' reads 'r_0', whose tags are retired",
        "after the last rolling_update",
    ),
    "a consumer under a loop that leaves its producer incomplete": Refused(
        figure1, lambda s: s.fuse_under("s_sum", "s_max.j"), "would read s_max inside loop", "rolling_update"
    ),
    "an input that is computed later": Refused(
        lambda: split(small.late_weight()),
        lambda s: s.rolling_update("o", "r.j0"),
        "would read 'w' before 'w' writes it",
        r"reverse_compute_at\('w', 'r.j0'\) if it is elementwise \(or inline it\)",
    ),
    "a consumer under a loop that its producer is not in": Refused(
        figure1,
        lambda s: s.reverse_compute_at("s_sum", "s_max.j"),
        "TVM refuses: .* under the target loop. Not there: s_exp.",
        "rolling_update, split_k_update or fuse_under",
    ),
    "a consumer behind a loop whose tags are retired": Refused(
        two_readers,
        lambda s: s.reverse_compute_at("q", "r.i"),
        "if several blocks write the same buffer: r_0 by r_start and r_next",
        "before retire_tags .*; after them, use fuse_under",
    ),
    "a producer under a loop that its consumer is not in": Refused(
        figure1,
        lambda s: s.compute_at("s_max", "s_sum.j"),
        "TVM refuses: .* under the target loop. Not there: s_exp.",
        "a loop around every block that reads it",
    ),
    "a block fused twice": Refused(
        lambda: split(small.scaled_first(), "c.j"),
        lambda s: s.rolling_update("c", "c.j0"),
        "encloses block 'c' already",
        "leave this step out if an earlier one has fused it",
    ),
    "tags that no reader has asked for": Refused(
        figure1, lambda s: s.retire_tags("s_max"), "'s_max' has no tags to retire", "fuses a reduction that reads it"
    ),
    "a read at another element": Refused(
        lambda: split(small.elsewhere(lambda i, j: 3 - i)),
        lambda s: s.rolling_update("o", "r.j0"),
        r"would read r.*, but only .* is written",
        "at the element",
    ),
    "a repair that cannot be proved": Refused(
        lambda: split(small.pair(lambda c, r: c * r, "max")),
        lambda s: s.rolling_update("o", "r.j0"),
        "no repair term, step 'prove Eq. 4' failed.*not monotone",
        "signs follow from the definition",
    ),
    "a term that cannot be inverted": Refused(
        lambda: split(small.pair(lambda c, r: te.erf(c - r))),
        lambda s: s.rolling_update("o", "r.j0"),
        "step 'invert' failed.*erf has no known inverse",
        "operations that can be undone",
    ),
    "splits of one element": Refused(
        figure1, lambda s: s.split_k_update("s_sum", "s_max.j"), "each split would have one element", "split the loop"
    ),
    "an unknown policy": Refused(
        figure1, lambda s: s.rolling_update("s_sum", "s_max.j", maps="some"), "maps='some'", '"auto", "inline"'
    ),
    # Names.
    "an unknown block": Refused(
        figure1, lambda s: s.rolling_update("s_sun", "s_max.j"), "no block 's_sun'", "did you mean 's_sum'"
    ),
    "an unknown loop": Refused(
        figure1, lambda s: s.split("s_max.jj", (None, 2)), "'s_max' has no loop 'jj'", "did you mean 'j'"
    ),
    "an unknown loop among those to tile": Refused(
        figure1,
        lambda s: s.tile("s_max", i=2, k=2),
        "'s_max' has no loop 'k'",
        "the loops around s_max: i, j$",
    ),
    "a loop without its block": Refused(
        figure1, lambda s: s.split("j", (None, 2)), "'j' does not name a loop", '"block.loop"'
    ),
    "a loop of another block": Refused(
        figure1, lambda s: s.decompose_reduction("s_max", "s_sum.j"), "named by another block", "'s_max.j'"
    ),
    "an unknown primitive": Refused(
        figure1, lambda s: s.apply(Step.of("spilt")), "no primitive 'spilt'", "did you mean 'split'"
    ),
    "an unknown argument": Refused(
        figure1,
        lambda s: s.apply(Step.of("split", loop="s_max.j", factor=[2])),
        "split has no argument 'factor'",
        "did you mean 'factors'",
    ),
    "a missing argument": Refused(
        figure1, lambda s: s.apply(Step.of("split", loop="s_max.j")), "needs the argument 'factors'", "loop, factors"
    ),
    "an unknown template": Refused(figure1, template("rolling_updat"), "no template 'rolling_updat'", "did you mean"),
    "an unknown option": Refused(
        figure1, template("rolling_update", block_k=4), "has no option 'block_k'", "did you mean 'block_kv'"
    ),
    "an option of the other template": Refused(
        figure1, template("rolling_update", splits=2), "has no option 'splits'", "block_q, block_kv"
    ),
    "no operator": Refused(figure1, lambda s: nl.compile(None), "got None", "make an operator"),  # type: ignore[arg-type]
    "options for a schedule": Refused(
        figure1, lambda s: nl.compile(s, block_q=4), "compiled without changes", "schedule.operator"
    ),
    # Sizes and kinds.
    "splits of 0": Refused(
        figure1, on_schedule("split_k_update", splits=0), "splits=0, expected a positive", "leave it out"
    ),
    "block_q of 0": Refused(figure1, on_schedule("split_k_update", block_q=0), "block_q=0, expected", "such as 64"),
    "block_kv below 0": Refused(figure1, on_schedule("rolling_update", block_kv=-1), "block_kv=-1", "such as 64"),
    "block_q of True": Refused(figure1, on_schedule("rolling_update", block_q=True), "block_q=True", "whole number"),
    "block_kv a float": Refused(figure1, on_schedule("rolling_update", block_kv=2.0), "block_kv=2.0", "whole number"),
    "block_q text": Refused(figure1, template("rolling_update", block_q="64"), "block_q='64'", "whole number"),
    "three warps": Refused(figure1, on_schedule("rolling_update", num_warps=3), "num_warps=3.*power of two", "32"),
    "no stages": Refused(figure1, on_schedule("rolling_update", num_stages=0), "num_stages=0", "load ahead"),
    "warps in a note": Refused(
        figure1,
        lambda s: s.annotate("s_max.i", "num_warps", "four"),
        "annotate on 's_max.i': num_warps='four'",
        "4 or 8",
    ),
    "a misspelt annotation": Refused(
        figure1, lambda s: s.annotate("s_max.i", "num_wraps", 4), "no annotation 'num_wraps'", "mean 'num_warps'"
    ),
    "an annotation that is a number": Refused(
        figure1, lambda s: s.annotate("s_max.i", "sequential", 4), "sequential=4, expected 1", "omit the value"
    ),
    "a factor of 0": Refused(figure1, lambda s: s.split("s_max.j", (None, 0)), r"factors=\[None, 0\]", r"\(None, 64\)"),
    "a factor of True": Refused(figure1, lambda s: s.split("s_max.j", (None, True)), "factors=.*True", r"\(None, 64\)"),
    "a factor that is no list": Refused(figure1, lambda s: s.split("s_max.j", 2), "factors=2", r"\(None, 64\)"),  # type: ignore[arg-type]
    "factors that leave a rest": Refused(
        figure1, lambda s: s.split("s_max.j", (2, 2)), "cover 4 of the 8 iterations", "one factor None"
    ),
    "a tile that is a float": Refused(figure1, lambda s: s.tile("s_max", i=2.5), "tiles={'i': 2.5}", "i=64"),  # type: ignore[arg-type]
    "a loop that is a number": Refused(
        figure1,
        lambda s: s.split(3, (None, 2)),  # type: ignore[arg-type]
        "loop=3, expected a string",
        "'s_max.j'",
    ),
    "an operator that is none": Refused(
        figure1,
        lambda s: Schedule("attention.causal"),  # type: ignore[arg-type]
        "takes an operator, and got 'attention.causal'",
        "operators.attention.causal",
    ),
    # The standard primitives.
    "a fold along the grid": Refused(
        figure1, lambda s: s.bind("s_max.j", "blockIdx.x"), "cannot run in parallel", "split_k_update"
    ),
    "a thread": Refused(figure1, lambda s: s.bind("s_max.i", "threadIdx.x"), "is not a grid axis", "blockIdx.x"),
    "a loop twice": Refused(figure1, lambda s: s.reorder("s_max", "j", "j"), "each once, got", "i, j"),
    "loops the wrong way round": Refused(
        figure1, lambda s: s.fuse("s_max", "j", "i"), "TVM refuses", "outermost first"
    ),
    "a reduction inlined": Refused(figure1, lambda s: s.inline("s_max"), "is a reduction: it cannot", "elementwise"),
    "an output inlined": Refused(
        lambda: small.schedule(small.doubled()), lambda s: s.inline("o"), "writes the output 'o'", "elementwise"
    ),
    "an unknown memory": Refused(
        figure1, lambda s: s.cache_read("s_max", "inp", "share"), "scope='share'", "did you mean 'shared'"
    ),
    "an output on chip": Refused(figure1, lambda s: s.set_scope("s_sum", "local"), "'xsum', an output", "cache_write"),
    "nothing to undo": Refused(figure1, lambda s: s.undo(), "no step to undo", "apply a step"),
    "nothing to redo": Refused(figure1, lambda s: s.redo(), "no step to redo", "follows undo"),
    "a loop that was fused of two dimensions": Refused(
        fused_loops,
        lambda s: s.privatize_reduction("s_max.ij"),
        r"'s_max' runs along loop 'ij' by ij % 8, which is not a multiple",
        "before loops are fused into 'ij'",
    ),
    # Tiles.
    "a tile of too many elements": Refused(
        lambda: Schedule(softmax.figure1(2048, 2048)),
        nl.compile,
        "'s_max' would compute a tile of 4194304 elements .*at most 1048576",
        "split its loops",
        TileError,
    ),
    "tiles larger than shared memory": Refused(
        lambda: Schedule(attention.causal(1, 1, seq=1024, head_dim=128)),
        template("rolling_update", block_q=512, block_kv=512),
        OPERANDS + r" \(i1 512 × d 128 × j1 512\); at most 232448",
        "i1 256 × d 128 × j1 512, which take 196608 bytes",
        TileError,
    ),
}
