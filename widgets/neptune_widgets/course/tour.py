"""The exercises of `00_tour`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neptune_widgets.course.exercise import NotYet, exercise, four_numbers, numbers_of

# Positions of the second exercise, before and after they are doubled.
LENGTHS = (4096, 8192)


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
    "Twice as many positions",
    hints=(
        "Which tensors does the definition store in global memory, and what are their sizes in N?",
        "A matrix of N × N numbers grows by 4 if N doubles. Which tensors does the single kernel read and write?",
    ),
)
def growth(answer: Sequence[float]) -> str:
    """Right if the numbers are how the traffic of the definition and of one kernel grow, to 10 %.

    Args:
        answer: two factors.
    """
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import attention
    from neptune_lab.pipeline.facts import buffer_bytes
    from neptune_widgets.course.memory import total, traffic

    given = numbers_of(answer, 2)
    programs = [Schedule(attention.causal(batch=1, heads=4, seq=n, head_dim=64)).definition for n in LENGTHS]
    apart = [total(traffic(program)) for program in programs]
    fused = [sum(buffer_bytes(program, name) for name in program.params) for program in programs]
    right = np.array([apart[1] / apart[0], fused[1] / fused[0]])
    near = np.isclose(given, right, rtol=0.1)
    if near.all():
        return f"from {LENGTHS[0]} to {LENGTHS[1]} positions: {right[0]:.2f} and {right[1]:.2f} times the bytes"
    if np.isclose(given[::-1], right, rtol=0.1).all():
        raise NotYet("these are the two factors, exchanged: first the definition, then the kernel")
    if not near[0]:
        raise NotYet(f"the definition's traffic does not grow by {given[0]:g}: most of it is matrices of N × N numbers")
    raise NotYet(f"the kernel's traffic does not grow by {given[1]:g}: it reads and writes N × d numbers, no scores")
