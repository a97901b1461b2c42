"""The notebook on splits: what it measures on a GPU, what it models, and its exercises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import MeasureError
from neptune_lab.loop_ir.roles import Role
from neptune_widgets.course.exercise import NotYet, exercise
from neptune_widgets.course.measured import Run, measured

if TYPE_CHECKING:
    from neptune_lab.bench.setups import Setup
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.pipeline import Choice

HEADS, HEAD_DIM = 32, 128
KEYS = (8192, 32768)
SPLITS = (1, 2, 4, 8, 16, 32, 64)
QUERIES = (1, 64, 128, 256, 512, 1024, 4096)
# Relative error of a kernel whose numbers count, against float64.
RIGHT = 2e-3

# -- measured ---------------------------------------------------------------------------------------------------


def measure() -> dict[str, Any]:
    """Both sweeps, on the GPU at hand: decoding over the number of splits, and the two templates over queries.

    Global attention, 32 heads of 128, float16, batch 1, with the L2 cache flushed before each launch.  Every kernel is
    checked against float64 before it is timed, and the kernels of one setup are timed in turns.  About half a minute.

    Returns:
        Plain data: "decode", a row a number of keys and splits, and "templates", a row a number of queries and
        template; times are microseconds ("us" the median, "low" and "high" the tenth and ninetieth percentile).

    Raises:
        MeasureError: a kernel's numbers are wrong, or it could not be timed.
    """
    decode = [
        {"kv_len": keys, "splits": splits, **row}
        for keys in KEYS
        for splits, row in zip(SPLITS, _timed(1, keys, [_choice("split_k_update", s) for s in SPLITS]), strict=True)
    ]
    names = ("rolling_update", "split_k_update")
    templates = [
        {"q_len": queries, "kv_len": KEYS[0], "template": name, **row}
        for queries in QUERIES
        for name, row in zip(names, _timed(queries, KEYS[0], [_choice(name) for name in names]), strict=True)
    ]
    return {"heads": HEADS, "head_dim": HEAD_DIM, "decode": decode, "templates": templates}


def _choice(template: str, splits: int = 8) -> Choice:
    """The template; splits are fixed, so that they are there with many queries too, where it would choose one."""
    from neptune_lab.pipeline import Choice, SplitKConfig

    return Choice(template, SplitKConfig(splits=splits) if template == "split_k_update" else None)


def _timed(queries: int, keys: int, choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Times of the same operator compiled in several ways: grids, microseconds, error."""
    from neptune_lab.bench.clock import GpuTimer
    from neptune_lab.bench.reference import reference
    from neptune_lab.bench.tensors import make_tensors
    from neptune_lab.errors import MeasureError
    from neptune_lab.pipeline import compile_choice
    from neptune_lab.runtime import load
    from neptune_lab.runtime.timing import summary

    case = _setup(queries, keys)
    tensors = make_tensors(case.op)
    want = reference(case, tensors)
    calls, rows = {}, []
    for n, choice in enumerate(choices):
        kernel = compile_choice(case.op, choice)
        loaded = load(kernel.spec)
        error = want.error(loaded(*tensors))
        if not error < RIGHT:
            raise MeasureError(f"{kernel!r} is off by {error:.1e}: its time would mean nothing")
        calls[str(n)] = lambda loaded=loaded: loaded(*tensors)
        rows.append({"grids": [list(k.grid) for k in kernel.triton.kernels], "error": error})
    found = GpuTimer(seconds=1.0, most=40).times(calls, cold=True)
    for row, samples in zip(rows, found.values(), strict=True):
        if not samples.us:
            raise MeasureError(samples.note)
        row["us"], row["low"], row["high"] = summary(samples.us)
    return rows


def _setup(queries: int, keys: int) -> Setup:
    """Attention without a mask at these lengths, as the benchmark describes a setup."""
    from neptune_lab.bench.setups import Setup

    sizes = {"heads": HEADS, "q_len": queries, "kv_len": keys, "head_dim": HEAD_DIM}
    return Setup(f"global-{queries}x{keys}", "global", "attention", "attention.full", sizes, cold=True)


def recorded() -> Run | None:
    """The sweeps of `measure`: taken here where there is a GPU, else the recorded run; None where there is neither."""
    try:
        return measured("split_k", measure)
    except MeasureError:
        return None


def tuned_decode() -> tuple[str, list[tuple[str, int, int, float, float, int, str]]]:
    """Decoding as the tuner chose it, from the benchmark's results that come with the package.

    Returns:
        Where and when it was measured, and a row a setup: operator, keys, splits, microseconds, the share of the
        copy rate that reading keys and values once in that time takes, keys of a tile, and whether its row is padded.
    """
    from neptune_lab.bench.command import SHIPPED
    from neptune_lab.bench.measured import read

    results = read(SHIPPED)
    rows = []
    for setup in results.group("attention"):
        if not setup.row.endswith("_dc"):
            continue
        ours = next(entry for entry in setup.entries if entry.name == "neptune_lab")
        if ours.us is None or "splits" not in ours.options:
            continue
        keys, splits = int(setup.sizes["kv_len"]), int(ours.options["splits"])
        share = setup.kv_bytes / ours.us / results.rates["copy_gbps"] / 1e3
        padded = "padded" if ours.options.get("pad_rows") else ""
        rows.append(
            (setup.row, keys, splits, round(ours.us, 1), round(share, 2), int(ours.options["block_kv"]), padded)
        )
    rates = f"copy rate {results.rates['copy_gbps'] / 1e3:.2f} TB/s"
    where = f"Recorded run, not measured here: {results.device['name']}, {results.started[:10]}, {rates}"
    return where, sorted(rows)


# -- modelled ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one way of compiling attention (32 heads of 128) takes on an H200 by the tuner's model; nothing is timed.

    Args:
        template: rolling_update or split_k_update.
        splits: of the keys.
        programs: thread blocks of the first kernel.
        moved: bytes that all kernels load and store, tile by tile.
        us: microseconds of each kernel.
    """

    template: str
    splits: int
    programs: int
    moved: int
    us: tuple[float, ...]

    @property
    def total_us(self) -> float:
        """Microseconds of all kernels."""
        return sum(self.us)


def estimate(queries: int, keys: int, template: str, splits: int | None = None) -> Estimate:
    """The tuner's model (`autotune/cost_model.py`, MCFuser's Eqs. 2 to 5) of attention without a mask.

    The operator is compiled down to HTile, whose loads, stores and products the model counts.
    """
    from neptune_lab.autotune.cost_model import Machine, predict_kernel
    from neptune_lab.pipeline import SplitKConfig, compile
    from neptune_lab.target import DEFAULT

    machine = Machine.of(DEFAULT)
    config = None if splits is None else SplitKConfig(splits=splits)
    # The kernel is counted and never run.
    kernel = compile(_setup(queries, keys).op, template, config=config, validate="none")
    parts = [predict_kernel(kernel.htile, k, machine) for k in kernel.htile.kernels]
    grid = kernel.triton.kernels[0].grid
    found = grid[0] if len(parts) > 1 else 1
    moved = round(sum(p.moved for p in parts))
    return Estimate(template, found, math.prod(grid), moved, tuple(p.seconds * 1e6 for p in parts))


def splits_figure(estimates: Mapping[int, Sequence[Estimate]], run: Run | None) -> tuple[Any, str]:
    """Time over the number of splits, and the same in words.

    Args:
        estimates: of each number of keys.
        run: what was measured, drawn beside it.
    """
    import plotly.graph_objects as go

    figure, words = go.Figure(), ["Time over the number of splits, microseconds, NVIDIA H200."]
    for keys, colour in zip(estimates, ("#0072b2", "#d55e00"), strict=False):
        found = estimates[keys]
        x, y = [e.splits for e in found], [round(e.total_us, 1) for e in found]
        name = f"model, {keys} keys"
        figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", line={"color": colour, "dash": "dash"})
        words.append(f"{name} (estimate): {_pairs(x, y)}.")
        if run is not None:
            rows = [row for row in run.data["decode"] if row["kv_len"] == keys]
            x, y = [row["splits"] for row in rows], [round(row["us"], 1) for row in rows]
            name = f"measured, {keys} keys"
            figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", line={"color": colour})
            words.append(f"{name}: {_pairs(x, y)}.")
    figure.update_layout(
        title="Attention with one query, 32 heads of 128, on an H200",
        xaxis={"title": "splits of the keys", "type": "log", "tickvals": list(SPLITS)},
        yaxis={"title": "µs", "type": "log", "tickvals": [25, 50, 100, 200, 400, 800]},
        height=420,
    )
    return figure, " ".join(words)


def queries_figure(estimates: Mapping[int, Sequence[Estimate]], run: Run | None) -> tuple[Any, str]:
    """Time of split-k update over that of rolling update, over the number of queries, and the same in words.

    Args:
        estimates: for each number of queries, of rolling update and of split-k update.
        run: what was measured, drawn beside it.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    x = list(estimates)
    y = [round(split.total_us / rolling.total_us, 3) for rolling, split in estimates.values()]
    figure.add_scatter(x=x, y=y, name="model", mode="lines+markers", line={"color": "#0072b2", "dash": "dash"})
    words = [f"Time with 8 splits over time of the rolling loop, by queries. Model (estimate): {_pairs(x, y)}."]
    if run is not None:
        times = {(row["q_len"], row["template"]): row["us"] for row in run.data["templates"]}
        x = sorted({queries for queries, _ in times})
        y = [round(times[q, "split_k_update"] / times[q, "rolling_update"], 3) for q in x]
        figure.add_scatter(x=x, y=y, name="measured", mode="lines+markers", line={"color": "#d55e00"})
        words.append(f"Measured: {_pairs(x, y)}.")
    figure.add_hline(y=1, line={"color": "#888888", "width": 1})
    figure.update_layout(
        title="Splits or one rolling loop? 32 heads of 128, 8192 keys, on an H200",
        xaxis={"title": "queries", "type": "log", "tickvals": x},
        yaxis={"title": "time with 8 splits / time without", "rangemode": "tozero"},
        height=420,
        showlegend=True,
    )
    return figure, " ".join(words)


def _pairs(x: Sequence[float], y: Sequence[float]) -> str:
    return ", ".join(f"{a}: {b}" for a, b in zip(x, y, strict=True))


# -- exercises --------------------------------------------------------------------------------------------------

MAXIMA = (5.0, 2.0, 7.0)


@exercise(
    "By which factor is each part's sum multiplied?",
    hints=(
        "A part's sum was made with the part's own maximum. It must become the sum made with the maximum of the row.",
        "`h(t, r, r') = t * exp(r - r')`. Here `r` is the part's maximum. What is `r'`?",
        "`r'` is 7 for all three parts.",
    ),
)
def factors(answer: Sequence[float]) -> str:
    """Three factors, for parts with the maxima `MAXIMA`."""
    from neptune_lab import repair

    try:
        given = np.asarray(answer, dtype=float)
    except (TypeError, ValueError) as error:
        raise NotYet(f"expected three numbers, got `{answer!r}`") from error
    if given.shape != (3,):
        raise NotYet(f"expected three numbers, one a part, got {given.size}")
    term = repair.solve("sum", "exp(c - r)", ["r"])
    local = np.array(MAXIMA)
    wanted = term.evaluate(np.ones(3), {"r": local}, {"r": np.full(3, local.max())})
    if np.allclose(given, wanted, rtol=2e-2, atol=1e-5):
        return f"the parts' sums are multiplied by {', '.join(f'{w:.4g}' for w in wanted)}, in any order of the parts"
    so_far = np.maximum.accumulate(local)
    rolling = term.evaluate(np.ones(3), {"r": np.r_[-np.inf, so_far[:-1]]}, {"r": so_far})
    if np.allclose(given, rolling, rtol=2e-2, atol=1e-5) or np.allclose(given[1:], rolling[1:], rtol=2e-2, atol=1e-5):
        raise NotYet("these are factors of a rolling loop, which goes from one maximum so far to the next")
    if np.allclose(given, 1 / wanted, rtol=2e-2):
        raise NotYet("a part with a small maximum would get too large a factor: the exponent has the opposite sign")
    if np.allclose(given, 1):
        raise NotYet("this is naive fusion: the parts were made with different maxima, so they cannot be added as is")
    first = int(np.flatnonzero(~np.isclose(given, wanted, rtol=2e-2, atol=1e-5))[0])
    raise NotYet(f"the factor of part {first}, whose maximum is {MAXIMA[first]:g}, is another one")


@exercise(
    "How many bytes does the first kernel store for the second?",
    hints=(
        "For each head and each split: the accumulator, the sum and the maximum.",
        "The accumulator has as many numbers as a head is wide. All are float32, of 4 bytes.",
        "(64 + 1 + 1) numbers of 4 bytes, for each of 8 heads and 16 splits.",
    ),
)
def partial_bytes(answer: int) -> str:
    """Bytes between the kernels of attention with one query, 8 heads of 64, 4096 keys, 16 splits."""
    from neptune_lab import operators
    from neptune_lab.pipeline import SplitKConfig, schedule

    op = operators.attention.full(heads=8, q_len=1, kv_len=4096, head_dim=64)
    program = schedule(op, "split_k_update", config=SplitKConfig(splits=16)).program
    buffers = {b.name: b for b in program.buffers if b.scope == "global" and b.name not in program.params}
    sizes = {name: 4 * math.prod(b.shape) for name, b in buffers.items()}
    wanted, heads, splits = sum(sizes.values()), 8, 16
    if not isinstance(answer, int | float) or isinstance(answer, bool):
        raise NotYet(f"expected a number of bytes, got `{answer!r}`")
    if answer == wanted:
        listed = ", ".join(f"`{name}` {size}" for name, size in sizes.items())
        return f"{listed}: {wanted} bytes, beside {2 * 8 * 4096 * 64 * 2} bytes of keys and values"
    known = {
        4 * heads * splits * 64: "this is the accumulator alone; the combining kernel needs more to repair it",
        wanted // 2: "the partial results are not float16",
        2 * wanted: "every partial result is stored once; that it is read again is the second kernel's traffic",
        wanted // heads: "this is one head",
        wanted // splits: "this is one split",
        4 * heads * splits * 65: "one of the three tensors is missing",
        wanted // 4: "this is the number of values; each has several bytes",
    }
    if answer in known:
        raise NotYet(known[int(answer)])
    raise NotYet(f"{answer} is {'more' if answer > wanted else 'less'} than the program's buffers have")


@exercise(
    "Split the L2 norm into three parts",
    hints=(
        "Print `nl.Schedule(norms.l2_norm(rows=2, cols=12))`: which block finds the maximum, which one adds up?",
        "First `split` the maximum's loop over the columns, with three as the first factor.",
        'Then `sch.split_k_update("s_sum", "x_max.j0")`: the consumer, and the loop over the parts.',
    ),
)
def split_norm(answer: Callable[[Schedule], Any]) -> str:
    """A function that takes a schedule of `norms.l2_norm(rows=2, cols=12)` and splits it."""
    from neptune_lab.loop_ir import tree
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators import norms

    if not callable(answer):
        raise NotYet(f"expected a function that takes a schedule, got `{answer!r}`")
    sch = Schedule(norms.l2_norm(rows=2, cols=12))
    made = answer(sch)
    sch = made if isinstance(made, Schedule) else sch
    if not sch.steps:
        raise NotYet("the function changed nothing: the schedule has no step")
    local = {b.origin: b for b in tree.blocks(sch.program) if b.role is Role.LOCAL}
    used = {step.primitive for step in sch.steps}
    if "s_sum" not in local:
        if "rolling_update" in used:
            raise NotYet("this is a rolling loop over the row in order. The parts must be independent")
        missing = "the maximum has a local part, the sum has none" if local else "no reduction has a local part"
        raise NotYet(f"{missing}:\n{sch}")
    block = local["s_sum"]
    parts = [i.extent for i in block.iters if i.kind == "spatial" and i.name != "i"]
    if 3 not in parts:
        raise NotYet(f"the sum has {parts[0]} local parts a row, not three")
    agreement = sch.check()
    if not agreement:
        raise NotYet(f"three parts, but the program {agreement}")
    return f"three local sums a row, and the program {agreement}"


@exercise(
    "From how many queries on does one rolling loop fill the GPU?",
    hints=(
        "A program takes up to 64 queries of one head. How many programs are there for 65 queries?",
        "The remark says that three quarters of the multiprocessors are enough: 99 programs.",
        "16 heads with 6 blocks of queries each are 96 programs. Which is the first query of a seventh block?",
    ),
)
def first_rolling(answer: int) -> str:
    """The least q_len at which attention with 16 heads of 64 and 8192 keys is compiled by rolling update."""
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 < answer <= 65536:
        raise NotYet(f"expected a number of queries, got `{answer!r}`")
    name, why = chosen(answer)
    if name != "rolling_update":
        raise NotYet(f"with {answer} {'query' if answer == 1 else 'queries'} the compiler still splits: {why}")
    before, earlier = chosen(answer - 1) if answer > 1 else ("", "")
    if before == "rolling_update":
        raise NotYet(f"with {answer} queries it rolls, but so it does with one query less: {earlier}")
    return f"{answer} queries: {why}. With one less: {earlier}"


def chosen(queries: int, heads: int = 16, keys: int = 8192, head_dim: int = 64) -> tuple[str, str]:
    """The template that `nl.compile` takes for attention without a mask, and its reason."""
    from neptune_lab import operators
    from neptune_lab.loop_schedule.templates import choose_template

    op = operators.attention.full(heads=heads, q_len=queries, kv_len=keys, head_dim=head_dim)
    return choose_template(op.program)
