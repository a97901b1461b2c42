"""The exercises of `00_tour`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neptune_widgets.course.exercise import NotYet, exercise, four_numbers

# Of the second exercise: positions, the window with the query itself in it, and the keys that all may see.
SEQ, WINDOW, SINKS = 64, 8, 2


@exercise(
    "A row on which naive fusion is right by luck",
    hints=(
        "Naive fusion is wrong because the maximum grows after it was read. When does it not grow?",
        "Look at the table of naive fusion: which reads have no `!`, and what would make all four like that?",
    ),
)
def lucky_row(row: Sequence[float]) -> str:
    """Right where the naively fused program gives the definition's sum, in float64.

    Args:
        row: four different finite numbers.
    """
    from neptune_lab.loop_ir.run import as_float64, run
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import softmax

    numbers = four_numbers(row)
    if len(set(numbers.astype("float32").tolist())) < 4:
        raise NotYet("the four numbers must be different")
    op = softmax.figure1(rows=1, cols=4)
    sch = Schedule(op)
    sch.rolling_update("s_sum", "s_max.j")
    program = as_float64(next(phase for phase in sch.phases if phase.key == "naive").program)
    found = run(program, {"inp": numbers[None]})
    naive, right = float(found["xsum"][0]), float(op.reference(numbers[None])[0])
    if not np.isclose(naive, right, rtol=1e-12):
        seen = sch.tag_table("j", phase="naive", inputs={"inp": numbers[None].astype("float32")}).row("xsum[0]").cells
        early = [j for j, cell in enumerate(seen) if cell is not None and cell.sign == "early"]
        where = f"it reads too early at j = {', '.join(map(str, early))}" if early else "its reads look right"
        raise NotYet(f"naive fusion gives {naive:.6g} here, right is {right:.6g}: {where}")
    return f"both give {right:.4g}; the largest number comes first, so that every read sees the final maximum"


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
    options: dict[str, Any] = {"dtype": "float32", "v_head_dim": SEQ, "empty_rows": "zero"}
    op = attention.general(1, 1, SEQ, SEQ, 16, mask_mod=mask_mod, **options)
    zeros = np.zeros((1, 1, SEQ, 16), dtype="float32")
    values = np.eye(SEQ, dtype="float32")[None, None]
    (weights,) = call_on_arrays(load(compile(op).spec), (zeros, zeros, values))
    seen = weights[0, 0] > 0
    q, kv = np.indices((SEQ, SEQ))
    wanted = (q >= kv) & ((q - kv < WINDOW) | (kv < SINKS))
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
