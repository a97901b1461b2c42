"""What `07_your_operator` shares between its cells, and its exercises: masks, repairs and operators of the reader's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import DefinitionError, RepairError
from neptune_widgets.course.exercise import NotYet, exercise, four_numbers

if TYPE_CHECKING:
    from neptune_lab import Kernel, Schedule
    from neptune_lab.htile.nodes import Program
    from neptune_lab.operators import Operator

# Of the first exercise: positions, the length of a chunk, the width of a tile, and the most tiles that may be visited.
SEQ, CHUNK, TILE, MOST = 256, 64, 32, 21
# Of the exercise with sinks: positions, the window with the query itself in it, and the keys that all may see.
SINK_SEQ, SINK_WINDOW, SINKS = 64, 8, 2
# Of the last: rows and columns, and how far from 0 the numbers of a row may lie.
ROWS, COLS, OFFSETS = 32, 256, (0.0, 500.0, -500.0)
# Of the second: the repair that is wrong, and the iteration at which it is to show.
EXCHANGED, SHOWS_AT = "t * exp(xmax_now - xmax_before)", 3


def one_query(keys: int = 4) -> Operator:
    """Attention of one query of width 1 in float32: where q is 1, a score is a key."""
    from neptune_lab.operators import attention

    return attention.full(batch=1, heads=1, q_len=1, kv_len=keys, head_dim=1, dtype="float32")


def one_query_inputs(scores: Sequence[float], values: Sequence[float]) -> dict[str, np.ndarray]:
    """Inputs of `one_query` with these scores and values."""
    k, v = (np.array(x, dtype="float32").reshape(1, 1, len(x), 1) for x in (scores, values))
    return {"q": np.ones((1, 1, 1, 1), dtype="float32"), "k": k, "v": v}


def before_the_accumulator(operator: Operator) -> Schedule:
    """`operator` with its maximum and its sum in the loop over the keys, and the accumulator still outside."""
    from neptune_lab.loop_schedule import Schedule

    sch = Schedule(operator)
    sch.reverse_compute_at("score", "qk.j")
    sch.rolling_update("s_max", "qk.j")
    sch.rolling_update("s_sum", "qk.j")
    return sch


def mask_figure(programs: Mapping[str, Program]) -> tuple[Any, str]:
    """Which tiles of the scores each kernel visits, by its HTile program; a plotly figure and its words."""
    from neptune_widgets.course.gpu_figures import tiles
    from neptune_widgets.course.tile_map import tile_map

    return tiles({name: tile_map(program) for name, program in programs.items()})


# -- exercise 1 ---------------------------------------------------------------------------------------------------


def chunked(b: Any, h: Any, q: Any, kv: Any) -> Any:
    """A query sees the keys of its own chunk of 64 positions, up to itself: they differ in their last 6 bits alone."""
    return (q >= kv) & ((q ^ kv) < CHUNK)


@exercise(
    "A condition that hides no pair, and that the compiler can use",
    hints=(
        "The compiler bounds a loop by conditions that compare sums of positions with numbers, such as `q - kv < 10`.",
        "Two positions of one chunk: how far apart can they be at most?",
        "Add `& (q - kv < …)` with the least number that hides no pair.",
    ),
)
def fewer_tiles(mask_mod: Callable[..., Any]) -> str:
    """Right where the mask lets through the pairs of `chunked`, and the compiled loops visit 21 tiles at most."""
    from neptune_widgets.course.tile_map import tile_map

    kernel = _masked(mask_mod)
    seen, wanted = _pairs(kernel.operator), _pairs(_masked(chunked).operator)
    if (seen != wanted).any():
        q, kv = (int(n[0]) for n in np.nonzero(seen != wanted))
        how = "sees" if seen[q, kv] else "does not see"
        raise NotYet(f"this is another mask: query {q} {how} key {kv}, {abs(q - kv)} positions away")
    found = tile_map(kernel.htile)
    if found.visited > MOST:
        raise NotYet(
            f"the pairs are right, and the loops still visit {found.visited} of {found.all} tiles, "
            f"where {MOST} would do: the notes of `partition_masked_loops` say which condition is useful"
        )
    return f"the same pairs, and {found.visited} of {found.all} tiles are visited; with `chunked` it was 36"


def _masked(mask_mod: Any) -> Kernel:
    import neptune_lab as nl
    from neptune_lab.operators import attention

    if not callable(mask_mod):
        raise NotYet(f"expected a function of (b, h, q, kv), found {mask_mod!r}")
    op = attention.general(1, 1, SEQ, SEQ, 16, mask_mod=mask_mod)
    return nl.compile(op, "rolling_update", block_q=TILE, block_kv=TILE)


def _pairs(op: Operator) -> np.ndarray:
    """(queries, keys), bool: which pairs count, by the definition in float64."""
    q = np.zeros(op.inputs[0].shape)
    values = np.zeros(op.inputs[2].shape)
    seen = np.zeros((SEQ, SEQ), dtype=bool)
    width = values.shape[-1]
    for first in range(0, SEQ, width):  # the values are a part of the identity matrix
        part = values.copy()
        part[0, 0, first : first + width] = np.eye(width)
        seen[:, first : first + width] = np.asarray(op.reference(q, q, part))[0, 0] > 0
    return seen


# -- exercise 2 ---------------------------------------------------------------------------------------------------


@exercise(
    "A row on which only the last iteration is wrong",
    hints=(
        "When does the exchanged repair change nothing? Look at its factor if the maximum does not change.",
        "The maximum must not change at j = 1 and j = 2, and must grow at j = 3.",
    ),
)
def late_row(row: Sequence[float]) -> str:
    """Right where the tag table of the exchanged repair on Figure 1 is first wrong at j = 3."""
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import softmax

    numbers = four_numbers(row, "float32")
    sch = Schedule(softmax.figure1(rows=1, cols=4))
    sch.rolling_update("s_sum", "s_max.j", repair=EXCHANGED, proved=False)
    found = sch.tag_table("j", inputs={"inp": numbers[None]}).first_wrong
    if not found:
        raise NotYet("on this row the wrong repair gives the right sum at every iteration")
    if found[0].column != f"j = {SHOWS_AT}":
        raise NotYet(f"on this row the sum is wrong from {found[0].column} on; it must be right until then")
    (wrong,) = found
    return f"the sum is right up to j = 2; at j = 3 it is {wrong.value:.4g} and should be {wrong.should_be:.4g}"


# -- exercise 3 ---------------------------------------------------------------------------------------------------


def from_below(rows: int = 2, cols: int = 4) -> Operator:
    """A minimum, and a sum that reads it: total[i] = sum over j of exp(bottom[i] - x[i, j]), all of them at most 1."""
    from neptune_lab.operators import custom
    from neptune_lab.operators.base import tensor_expressions

    te = tensor_expressions()
    x = te.placeholder((rows, cols), "float32", name="x")
    j = te.reduce_axis((0, cols), name="j")
    bottom = te.compute((rows,), lambda i: te.min(x[i, j], axis=j), name="bottom")
    total = te.compute((rows,), lambda i: te.sum(te.exp(bottom[i] - x[i, j]), axis=j), name="total")
    return custom("from_below", [x], [total], doc="notebook 07")


@exercise(
    "The repair of a sum that reads a minimum",
    hints=(
        "Write the term with the old minimum and with the new one. What is the quotient of the two?",
        "`exp(bottom_now - x)` is `exp(bottom_before - x)` times something that does not depend on x.",
    ),
)
def minimum_repair(h: str) -> str:
    """Right where the compiler proves h, a text over t, bottom_before and bottom_now."""
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.loop_schedule.repairing import RepairRefused

    if not isinstance(h, str):
        raise NotYet(f'expected a text, such as "t + bottom_now", found {h!r}')
    sch = Schedule(from_below())
    try:
        sch.rolling_update("total", "bottom.j", repair=h)
    except RepairRefused as error:
        if (case := error.counterexample) is None:
            cause = error.__cause__
            said = cause.reason if isinstance(cause, RepairError) else error.reason
            raise NotYet(f"h is written with t, bottom_before and bottom_now: {said}") from error
        (before,), (now,) = case.previous, case.current
        why = f"it fails at {error.failed_step!r}: from bottom = {before[1]:g} to {now[1]:g} it takes {case.t:.4g} to "
        raise NotYet(f"{why}{case.found:.4g}, and {case.expected:.4g} is wanted") from error
    return f"proved, and the program {sch.check()}"


# -- exercise 4 ---------------------------------------------------------------------------------------------------


@exercise(
    "The position of the smallest number, softly, in one loop",
    hints=(
        "Take `peak` of section 6 as a pattern. Which reducer finds the number that keeps exponents at most 0?",
        "With `bottom` the minimum of the row, `exp(bottom - x)` is at most 1. Two sums read it.",
        "Divide after the loop: `te.compute((rows,), lambda i: first[i] / total[i])`.",
    ),
)
def valley(define: Callable[[Any], Any]) -> str:
    """Right where one loop over the columns gives sum over j of j * w_j / sum of w_j, with w_j = exp(-x_j), stably.

    Args:
        define: takes a `te.placeholder` of 32 rows and 256 columns in float32, gives a `te.compute` of 32 rows.
    """
    import neptune_lab as nl
    from neptune_lab.operators import custom
    from neptune_lab.operators.base import tensor_expressions
    from neptune_widgets.course.beyond_attention import loops, run

    if not callable(define):
        raise NotYet(f"expected a function of a tensor, found {define!r}")
    te = tensor_expressions()
    x = te.placeholder((ROWS, COLS), "float32", name="x")
    given = define(x)
    if not isinstance(given, te.Tensor):
        raise NotYet(f"the function must return a tensor made by te.compute, this is {type(given).__name__}")
    try:
        op = custom("valley", [x], [given], doc="notebook 07")
    except DefinitionError as error:
        raise NotYet(f"the definition is refused: {error.reason}") from error
    if op.outputs[0].shape != (ROWS,):
        raise NotYet(f"the output has the shape {op.outputs[0].shape}, expected {(ROWS,)}: a position a row")
    kernel = nl.compile(op, "rolling_update", block_q=16, block_kv=64)
    for offset in OFFSETS:
        _valley_numbers(lambda rows: run(kernel, rows), offset)
    if loops(kernel) != (1,):
        said = "; ".join(remark for remark in kernel.remarks if "loop of its own" in remark)
        raise NotYet(f"the numbers are right, in {sum(loops(kernel))} loops over the columns; one will do. {said}")
    return f"one loop, one kernel, and right for rows around {', '.join(f'{offset:g}' for offset in OFFSETS)}"


def _valley_numbers(compute: Callable[[np.ndarray], np.ndarray], offset: float) -> None:
    """NotYet where the positions are wrong for rows of standard normal numbers, moved by `offset`."""
    x = (np.random.default_rng(7).standard_normal((ROWS, COLS)) + offset).astype("float32")

    def soft(sign: float) -> np.ndarray:
        shifted = sign * x.astype("float64")
        weights = np.exp(shifted - shifted.max(axis=1, keepdims=True))
        return weights @ np.arange(COLS) / weights.sum(axis=1)

    got, right = np.asarray(compute(x), dtype="float64"), soft(-1)
    if np.allclose(got, right, rtol=1e-3):
        return
    where = f"for rows around {offset:g}"
    if not np.isfinite(got).all():
        raise NotYet(
            f"{where} the result is not finite: an exponent is far from 0. Subtract a value that keeps terms at most 1"
        )
    if np.allclose(got, soft(1), rtol=1e-3):
        raise NotYet("this is the position of the largest number; expected that of the smallest")
    if np.allclose(got, right + 1, rtol=1e-3):
        raise NotYet("this is too large by one: columns are counted from 0")
    raise NotYet(f"{where} the first position is {got[0]:.4g}, right is {right[0]:.4g}")


@exercise(
    "A window with two sinks, as a `mask_mod`",
    hints=(
        "Take the window's mask and add the two keys with `|`, the operator for *or*.",
        "Who may see key 1? Query 0 comes before it.",
        "The causal condition applies to both parts: `(q >= kv) & (… | …)`.",
    ),
)
def sinks(mask_mod: Callable[..., Any]) -> str:
    """Right where the compiled kernel sees keys q - 7 to q and keys 0 and 1, none of them after q.

    All scores are 0 and the values are the identity matrix, so that the output is the mask with rows divided by
    their sums.
    """
    from neptune_lab.operators import attention
    from neptune_lab.pipeline import compile
    from neptune_lab.runtime import call_on_arrays, load

    if not callable(mask_mod):
        raise NotYet(f"expected a function of (b, h, q, kv), found {mask_mod!r}")
    # A query that sees nothing gives zeros.
    options: dict[str, Any] = {"dtype": "float32", "v_head_dim": SINK_SEQ, "empty_rows": "zero"}
    op = attention.general(1, 1, SINK_SEQ, SINK_SEQ, 16, mask_mod=mask_mod, **options)
    zeros = np.zeros((1, 1, SINK_SEQ, 16), dtype="float32")
    values = np.eye(SINK_SEQ, dtype="float32")[None, None]
    (weights,) = call_on_arrays(load(compile(op).spec), (zeros, zeros, values))
    seen = weights[0, 0] > 0
    q, kv = np.indices((SINK_SEQ, SINK_SEQ))
    wanted = (q >= kv) & ((q - kv < SINK_WINDOW) | (kv < SINKS))
    if (seen == wanted).all():
        return f"the compiled kernel lets each query see what it should, {int(seen.sum())} pairs in all"
    raise NotYet(_wrong_pair(seen, wanted))


def _wrong_pair(seen: np.ndarray, wanted: np.ndarray) -> str:
    """What the mask does to a pair that tells most: of the future first, then the first query that goes wrong."""
    q, kv = np.indices(seen.shape)
    wrong = seen != wanted
    if (future := wrong & (kv > q)).any():
        wrong = future
    i = int(np.argmax(wrong.any(axis=1)))
    j = int(np.argmax(wrong[i]))
    if seen[i, j]:
        why = "which comes after it" if j > i else f"which is {i - j} positions before it"
        return f"in the compiled kernel query {i} sees key {j}, {why}, and should not"
    why = "one of the first two" if j < SINKS else "itself" if i == j else f"{i - j} positions before it"
    return f"in the compiled kernel query {i} does not see key {j}, {why}, and should"
