"""Exercises of notebook 08_beyond_attention, and the facts about a fusion that its tables are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np

import neptune_lab as nl
from neptune_lab.autotune.cost_model import Machine, predict_program
from neptune_lab.bench import measured
from neptune_lab.bench.command import SHIPPED
from neptune_lab.loop_schedule.templates.common import finish
from neptune_lab.operators import Operator, custom, norms
from neptune_lab.operators.base import tensor_expressions
from neptune_lab.pipeline import Choice, Kernel, compile_choice
from neptune_lab.pipeline.facts import block_facts, work
from neptune_lab.runtime import call_on_arrays, load
from neptune_widgets.course.exercise import NotYet, exercise

# -- facts about a fusion --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair that a kernel carries out: of the reduction `block`, whose term is `g`, by `h`; both as text."""

    block: str
    g: str
    h: str


@dataclass(frozen=True, slots=True)
class Fusion:
    """An operator compiled in three ways, each compared with float64.

    Args:
        name: the operator's.
        reductions: its reductions, in the order of the definition.
        repairs: those that were repaired, with h.
        loops: how many loops each kernel of the fused program has.
        least: bytes of all inputs and outputs, each once.
        fused, inlined, apart: bytes moved by the template's program, by one kernel a reduction (maps are written into
            their readers), and by one kernel a stage.
        kernels: how many kernels these three have.
        error: the largest relative error of the three against float64.
        kernel: the fused program.
    """

    name: str
    reductions: tuple[str, ...]
    repairs: tuple[Repair, ...]
    loops: tuple[int, ...]
    least: int
    fused: int
    inlined: int
    apart: int
    kernels: tuple[int, int, int]
    error: float
    kernel: Kernel


def fusion(operator: Operator, block_q: int | None = None, block_kv: int | None = None) -> Fusion:
    """Compiles and runs `operator` by the template `rolling_update` with these tiles, and in the two other ways."""
    fused = nl.compile(operator, "rolling_update", block_q=block_q, block_kv=block_kv)
    ways = (fused, each_alone(operator, maps_apart=False), each_alone(operator))
    moved = [bytes_moved(kernel) for kernel in ways]
    return Fusion(
        name=operator.name,
        reductions=tuple(b.name for b in block_facts(operator.program) if b.reduces),
        repairs=repairs(fused),
        loops=loops(fused),
        least=int(work(operator.program).bytes),
        fused=moved[0],
        inlined=moved[1],
        apart=moved[2],
        kernels=(len(ways[0].triton.kernels), len(ways[1].triton.kernels), len(ways[2].triton.kernels)),
        error=max(kernel.relative_error() for kernel in ways),
        kernel=fused,
    )


def each_alone(operator: Operator, *, maps_apart: bool = True) -> Kernel:
    """The operator as one kernel a stage; with `maps_apart` false, maps are written into the stages that read them."""
    schedule = nl.Schedule(operator)
    for block in block_facts(operator.program):
        if not (maps_apart or block.reduces or block.writes in operator.program.outputs):
            schedule.inline(block.name)
    finish(schedule, {})
    return nl.compile(schedule)


def bytes_moved(kernel: Kernel) -> int:
    """Bytes that the kernel's programs load from global memory and store to it, by the tuner's model (MCFuser, Eq. 3):
    a tile that is needed again in another iteration or program counts again, within an iteration it counts once."""
    return round(predict_program(kernel.htile, Machine(bandwidth=1.0, peak=1.0, multiprocessors=1)).moved)


def loops(kernel: Kernel) -> tuple[int, ...]:
    """How many loops each kernel of the HTile program has."""
    parts = kernel.outline.split("\nkernel ")[1:]
    return tuple(sum(line.lstrip().startswith("for ") for line in part.splitlines()) for part in parts)


def repairs(kernel: Kernel) -> tuple[Repair, ...]:
    """What the kernel's schedule repaired, in order."""
    found = []
    for step in kernel.trace.steps:
        for phase in step.phases:
            if phase.derivation is not None and phase.derivation.accepted:
                h = phase.derivation.summary.partition(" = ")[2].partition("\n")[0]
                found.append(Repair(str(step.arguments["block"]), phase.derivation.term, h))
    return tuple(found)


def run(kernel: Kernel, *arrays: np.ndarray) -> Any:
    """The kernel on NumPy arrays: its output, or a tuple of them where it has several, in float64."""
    found = tuple(np.asarray(array, dtype="float64") for array in call_on_arrays(load(kernel.spec), arrays))
    return found[0] if len(found) == 1 else found


@dataclass(frozen=True, slots=True)
class Recorded:
    """Ratios of a recorded benchmark, and where it ran.

    Args:
        device, date: of the run; the date in UTC, ISO 8601.
        versions: of torch and Triton.
        ratios: time of torch.compile (the faster of its modes) over ours, by operator, then by setup.
    """

    device: str
    date: str
    versions: str
    ratios: Mapping[str, Mapping[str, float]]


def recorded(*groups: str) -> Recorded:
    """The recorded run that comes with the package: the setups of these groups of the benchmark."""
    results = measured.read(SHIPPED)
    ratios: dict[str, dict[str, float]] = {}
    for setup in results.group(*groups):
        ratio = setup.over(measured.COMPILE)
        if ratio is not None:
            row = "gemm_chain" if setup.group == "chains" else setup.row
            ratios.setdefault(row, {})[setup.name] = ratio
    versions = ", ".join(f"{name} {results.versions[name]}" for name in ("torch", "triton"))
    return Recorded(results.device["name"], results.started[:10], versions, ratios)


def recorded_ways() -> dict[str, str]:
    """What the kernels of the recorded norms do with a row, by setup: each is compiled with its recorded options."""
    ways = {}
    for setup in measured.read(SHIPPED).group("norms"):
        options = next(dict(entry.options) for entry in setup.entries if entry.name == measured.OURS)
        name = options.pop("template")
        choice = Choice.of(None if name == "by shape" else name, options, "the recorded run")
        operator = getattr(norms, setup.row)(**setup.sizes)
        kernel = compile_choice(operator, choice)
        done = {step.primitive for step in kernel.trace.steps}
        ways[setup.name] = (
            "splits the row and combines"
            if "split_k_update" in done
            else "rolls over the row"
            if "rolling_update" in done
            else "holds the whole row"
        )
    return ways


_WAYS = (
    ("fused", "fused", "#0072B2"),
    ("inlined", "maps written into their readers", "#E69F00"),
    ("apart", "one kernel a stage", "#999999"),
)
_LOGARITHMIC = {"type": "log", "tickvals": [1, 2, 3, 5, 10, 20]}


def bytes_figure(fusions: Collection[Fusion]) -> tuple[dict[str, Any], str]:
    """Bars of the bytes moved over the least possible, and the same in words."""

    def over(found: Fusion, way: str) -> float:
        return getattr(found, way) / found.least

    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "y": [f.name for f in fusions],
            "x": [over(f, way) for f in fusions],
            "text": [f"{over(f, way):.1f}" for f in fusions],
            "textposition": "outside",
            "textfont": {"size": 11},
            "cliponaxis": False,
            "marker": {"color": colour},
        }
        for way, label, colour in _WAYS
    ]
    layout = {
        "title": {"text": "Bytes moved, over the least possible"},
        "xaxis": {"title": {"text": "bytes moved / bytes of inputs and outputs (logarithmic)"}, **_LOGARITHMIC},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "legend": {"orientation": "h", "y": -0.12},
        "uniformtext": {"mode": "show", "minsize": 10},
        "width": 880,
        "height": 800,
    }
    lines = [f"{f.name}: " + ", ".join(f"{label} {over(f, way):.2f}" for way, label, _ in _WAYS) for f in fusions]
    return {"data": bars, "layout": layout}, "\n".join(["Bytes moved over the least possible", *lines])


def ratios_figure(record: Recorded) -> tuple[dict[str, Any], str]:
    """A dot for each recorded setup, and the same in words."""
    colours = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
    dots = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": list(ratios.values()),
            "y": [name] * len(ratios),
            "text": list(ratios),
            "marker": {"color": colour, "size": 11, "opacity": 0.75, "line": {"color": "#333333", "width": 0.5}},
        }
        for (name, ratios), colour in zip(record.ratios.items(), colours, strict=True)
    ]
    equal = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dash", "width": 1}}
    layout = {
        "title": {"text": f"torch.compile's time over ours, recorded: {record.device}, {record.date}"},
        "xaxis": {"title": {"text": "ratio of times (logarithmic); right of 1 ours is faster"}, **_LOGARITHMIC},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "shapes": [equal],
        "showlegend": False,
        "width": 880,
        "height": 340,
    }
    told = "; ".join(f"{name}: {min(r.values()):.2f} to {max(r.values()):.2f}" for name, r in record.ratios.items())
    return {"data": dots, "layout": layout}, f"Recorded on {record.device}: torch.compile's time over ours. {told}"


# -- exercises ---------------------------------------------------------------------------------------------------

TEMPERATURE = 2.0
_CLOSE = 1e-4


@exercise(
    "Log-sum-exp with a temperature",
    hints=(
        "Begin with the log-sum-exp of section 5: its three stages are a maximum, a sum of exponentials, and a map.",
        "Divide inside the exponential, after subtracting the maximum: `te.exp((x[i, j] - peak[i]) / T)`.",
        (
            "A factor exp(peak/T) was taken out of the sum. Its logarithm is added again, and T multiplies all of it: "
            "`T * log(total) + peak`."
        ),
    ),
)
def tempered(x: Any, out: Any) -> str:
    """Judges `out` (rows,), made of the placeholder `x` (rows, cols), by compiling it and by its numbers."""
    op = custom("tempered", [x], [out])
    (spec,), (rows, *rest) = op.inputs, op.inputs[0].shape
    if len(rest) != 1 or op.outputs[0].shape != (rows,):
        raise NotYet(f"expected one number a row: x (rows, cols) to out (rows,), got {op}")
    cols = rest[0]
    block_kv = max(1, cols // 4)
    kernel = nl.compile(op, "rolling_update", block_q=min(rows, 16), block_kv=block_kv)
    small = np.random.default_rng(0).standard_normal(spec.shape).astype(spec.dtype)
    _tempered_numbers(run(kernel, small), small)
    large = (small + 1000).astype(spec.dtype)
    if not np.allclose(run(kernel, large), _tempered(large), rtol=1e-3):
        raise NotYet(
            "right where x is near 0, and not finite where x is near 1000: exp(x) is beyond float32. "
            "The definition in section 5 says what to subtract first"
        )
    if loops(kernel) != (1,):
        said = " ".join(kernel.remarks[1:])
        raise NotYet(f"the numbers are right, but the kernel has {sum(loops(kernel))} loops, not one. {said}")
    found = repairs(kernel)
    told = "".join(f"; {r.block} is repaired by `h = {r.h}`" for r in found) or "; nothing had to be repaired"
    return f"one loop over {-(-cols // block_kv)} tiles, and right near 0 and near 1000{told}"


def _tempered(x: np.ndarray, inner: float = TEMPERATURE, outer: float = TEMPERATURE) -> np.ndarray:
    """outer*log(sum(exp((x - max)/inner))) + max in float64."""
    wide = x.astype(np.float64)
    peak = wide.max(axis=1)
    return outer * np.log(np.exp((wide - peak[:, None]) / inner).sum(axis=1)) + peak


def _tempered_numbers(got: np.ndarray, x: np.ndarray) -> None:
    """Raises NotYet where `got` is not the answer, with what it is instead."""
    right, t = _tempered(x), TEMPERATURE
    if np.allclose(got, right, rtol=_CLOSE, atol=_CLOSE):
        return
    wide = x.astype(np.float64)
    others = (
        (_tempered(x, 1, 1), f"this is the log-sum-exp without a temperature; T is {t:g}"),
        (_tempered(x, t, 1), "the temperature is inside the exponential, but is missing before the logarithm"),
        (_tempered(x, 1, t), "the temperature is before the logarithm, but is missing inside the exponential"),
        (_tempered(x) / t, "the temperature is missing before the whole: this is log(sum(exp(x/T)))"),
        (_tempered(x) - wide.max(axis=1), "the maximum that was subtracted is not added again"),
        (_tempered(x) + (t - 1) * wide.max(axis=1), "the maximum is added T times; it is in units of x already"),
        (_tempered(x, 1 / t, 1 / t), "this is the temperature 1/T: x is multiplied by T where it should be divided"),
    )
    for value, reason in others:
        if np.allclose(got, value, rtol=_CLOSE, atol=_CLOSE):
            raise NotYet(reason)
    shown = f"{float(got[0]):.4f}, where T*log(sum(exp(x/T))) in float64 is {right[0]:.4f}"
    raise NotYet(f"for standard normal x, row 0 gives {shown}")


def row_statistics(rows: int = 32, cols: int = 256) -> Operator:
    """`x` (rows, cols) to `lse`, `square` and `deviation`, all (rows,): its log-sum-exp, the sum of (x - mean)**2, and
    the sum of |x - mean|; float32.  Five reductions: top, total, x_sum, square, deviation."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), "float32", name="x")
    j = te.reduce_axis((0, cols), name="j")
    top = te.compute((rows,), lambda i: te.max(x[i, j], axis=j), name="top")
    total = te.compute((rows,), lambda i: te.sum(te.exp(x[i, j] - top[i]), axis=j), name="total")
    x_sum = te.compute((rows,), lambda i: te.sum(x[i, j], axis=j), name="x_sum")

    def away(i: Any) -> Any:
        return x[i, j] - x_sum[i] / cols

    square = te.compute((rows,), lambda i: te.sum(away(i) * away(i), axis=j), name="square")
    deviation = te.compute((rows,), lambda i: te.sum(te.abs(away(i)), axis=j), name="deviation")
    lse = te.compute((rows,), lambda i: top[i] + te.log(total[i]), name="lse")
    return custom("row_statistics", [x], [lse, square, deviation])


def loop_groups(kernel: Kernel, column: str = "j0") -> frozenset[frozenset[str]]:
    """Which reductions of the definition share a loop along the tiles `column` in the kernel's loop program."""
    wanted = {b.name for b in block_facts(kernel.operator.program) if b.reduces}
    found: dict[tuple[int, ...], set[str]] = {}
    for block in block_facts(kernel.program):
        names = [name for name, _, _ in block.loops]
        if block.name in wanted and column in names:
            found.setdefault(block.nest[: names.index(column) + 1], set()).add(block.name)
    return frozenset(map(frozenset, found.values()))


@exercise(
    "Which reductions share a loop?",
    hints=(
        (
            "A reduction that reads no other one's result can stand in any loop. Of each other one ask: if the result "
            "that it reads changes from r to r', can its sum so far be moved along?"
        ),
        (
            "exp(x - r): each term changes by the same factor. (x - r)**2: section 4 repairs it with two more sums. "
            "|x - r|: terms on the two sides of r move in opposite directions."
        ),
        "Only one of the five has no repair, neither alone nor with companions.",
    ),
)
def shared_loops(groups: Sequence[Sequence[str]]) -> str:
    """Judges a partition of the reductions of `row_statistics` into loops by compiling it."""
    kernel = nl.compile(row_statistics(), "rolling_update", block_q=16, block_kv=64)
    right = loop_groups(kernel)
    names = sorted(set().union(*right))
    if isinstance(groups, str) or any(isinstance(g, str) for g in groups):
        raise NotYet('expected a list of loops, each a list of names, such as [["top"], ["total", "x_sum"]]')
    given = [name for group in groups for name in group]
    if unknown := [name for name in given if name not in names]:
        raise NotYet(f"{unknown[0]!r} is not one of the reductions {', '.join(names)}")
    if sorted(given) != names:
        odd = next((n for n in names if given.count(n) != 1), "")
        raise NotYet(f"`{odd}` stands in {given.count(odd)} loops; each reduction is in one")
    found = frozenset(frozenset(group) for group in groups if group)
    if found == right:
        return f"{len(right)} loops. The record says why: {kernel.remarks[-1]}"
    if len(found) == 1:
        raise NotYet("the compiler makes more than one loop: one of the terms could not be repaired")
    if len(found) == len(names):
        raise NotYet("that is one loop for each, as without repairs; most of them share one")
    for group in right:
        for pair in ((a, b) for a in sorted(group) for b in sorted(group) if a < b):
            if not any(set(pair) <= given for given in found):
                raise NotYet(f"`{pair[0]}` and `{pair[1]}` share a loop in the compiled program, and not in the answer")
    raise NotYet("two reductions share a loop in the answer that do not in the compiled program")


def p_norm(power: int, rows: int = 4, cols: int = 64) -> Operator:
    """`x` (rows, cols) to `out` (rows,), float32: the norm (sum |x|**power)**(1/power) of each row, scaled by the row's
    maximum `x_max`; its sum is `s_sum`."""
    te = tensor_expressions()
    x = te.placeholder((rows, cols), "float32", name="x")
    j = te.reduce_axis((0, cols), name="j")
    x_max = te.compute((rows,), lambda i: te.max(te.abs(x[i, j]), axis=j), name="x_max")

    def term(i: Any) -> Any:
        return prod([te.abs(x[i, j]) / x_max[i]] * (power - 1), start=te.abs(x[i, j]) / x_max[i])

    s_sum = te.compute((rows,), lambda i: te.sum(term(i), axis=j), name="s_sum")
    root = te.const(1 / power, "float32")
    out = te.compute((rows,), lambda i: x_max[i] * te.exp(te.log(s_sum[i]) * root), name="out")
    return custom("p_norm", [x], [out])


POWER = 3


@exercise(
    "The repair term of another norm",
    hints=(
        "In the sum each |x| is divided by the old maximum r. Which factor turns |x|/r into |x|/new?",
        (
            "|x|/new = (|x|/r) * (r/new). The terms of this sum are third powers of that, and the factor is the same "
            "in all of them."
        ),
    ),
)
def p_norm_repair(h: Callable[[float, float, float], float]) -> str:
    """Judges h(t, r, new) of the sum of (|x|/r)**3 by folding a row with it, and against the compiler's own."""
    if not callable(h):
        raise NotYet("expected a function of three numbers, such as lambda t, r, new: t")
    row = np.abs(np.random.default_rng(2).standard_normal(12)) * np.linspace(0.2, 3, 12)
    peak = total = 0.0
    for value in map(float, row):
        new = max(peak, value)
        try:
            moved = float(h(total, peak, new)) if peak else 0.0
        except Exception as error:
            raise NotYet(f"h({total:.4g}, {peak:.4g}, {new:.4g}) raised {type(error).__name__}: {error}") from error
        peak, total = new, moved + (value / new) ** POWER
    right = float(((row / row.max()) ** POWER).sum())
    if isfinite(total) and abs(total - right) < 1e-9 * right and _as_power(h, POWER):
        (found,) = repairs(nl.compile(p_norm(POWER), "rolling_update", block_q=4, block_kv=16))
        return f"the reduced sum is {total:.6f}, as it should be; the compiler derives `h = {found.h}`"
    reasons = (
        (0, "h returns t, so nothing is repaired: terms that were divided by an older maximum are unchanged"),
        (2, "that is the factor of the L2 norm, whose terms are squares"),
        (1, "that repairs a sum of first powers; these are third powers"),
        (-POWER, "the fraction is upside down: where the maximum grows, each old term has to become smaller"),
        (-1, "the fraction is upside down: where the maximum grows, each old term has to become smaller"),
    )
    reason = next((text for power, text in reasons if _as_power(h, power)), "")
    shown = f"folding a row of 12 numbers with it gives {total:.4f}; the sum is {right:.4f}"
    raise NotYet(f"{reason}; {shown}" if reason else shown)


def _as_power(h: Callable[[float, float, float], float], power: int) -> bool:
    """Whether h is t*(r/new)**power, at some points with r < new, and t where the two are the same."""
    points = ((2.0, 0.5, 1.5), (0.7, 1.0, 4.0), (3.0, 1.25, 1.25))
    try:
        return all(np.isclose(float(h(t, r, new)), t * (r / new) ** power) for t, r, new in points)
    except (ArithmeticError, ValueError, TypeError):
        return False


ROWS, COLS = 4096, 8192


@exercise(
    "Bytes of a quantized row",
    hints=(
        "Follow one element of x: how often is it loaded, how wide is it, and what is stored for it?",
        "It is loaded once in each of the two loops, 2 bytes each time. What is stored is one int8.",
    ),
)
def quantize_bytes(answer: float) -> str:
    """Judges the bytes that the fused `rms_norm_quantize` moves at ROWS by COLS in float16, by compiling it."""
    try:
        answer = float(answer)
    except (TypeError, ValueError) as error:
        raise NotYet("expected a number of bytes, such as 3 * 4096 * 8192") from error
    kernel = nl.compile(
        norms.rms_norm_quantize(ROWS, COLS, dtype="float16"), "rolling_update", block_q=16, block_kv=256
    )
    elements, moved = ROWS * COLS, bytes_moved(kernel)
    each = moved / elements
    if abs(answer - moved) <= 0.01 * moved:
        return f"{moved} bytes by the compiler's count: {each:.3f} an element, in {loops(kernel)[0]} loops"
    if abs(answer - each) <= 0.01 * each:
        raise NotYet("that is for one element; the question is about the whole matrix")
    reasons = (
        (2, "that is one load of x and nothing else"),
        (3, "that is one load of x and one store of q: this would be right for a single pass over the row"),
        (4, "that is two loads of x (or a load and a store of 2 bytes); q is stored too, and is int8"),
        (6, "q has one byte an element, not two"),
        (9, "x has two bytes an element, not four"),
    )
    for bytes_each, reason in reasons:
        if abs(answer / elements - bytes_each) <= 0.01 * bytes_each:
            raise NotYet(reason)
    raise NotYet(
        f"that is {answer / elements:.3g} bytes an element; count what the two loops of its outline load and store"
    )
