"""Figures and tables of what the notebook on the GPU measures: a function of a `Run`, nothing measured here.

Each figure function gives (plotly figure in its JSON form, what it shows in words), as `course.show_figure` takes them;
its title names the device, since a time means nothing without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from neptune_lab.autotune.waterfall import Level
from neptune_lab.bench.measured import COMPILE, CUDNN, DEFAULT, EAGER, FLASH, OURS, BenchmarkResults
from neptune_lab.figure_colours import FAINT
from neptune_lab.runtime.timing import summary
from neptune_widgets.course.gpu_runs import PARTITION, ROLLING, UNPARTITIONED, entry
from neptune_widgets.course.measured import Run
from neptune_widgets.course.tile_map import TileMap

Drawn: TypeAlias = tuple[dict[str, Any], str]

# Okabe and Ito's colours and a violet, with a sign each: colour is never all that tells two lines apart.
BLACK, VIOLET, BLUE, SKY, GREEN, RED, ORANGE, PINK, GREY = (
    "#000000", "#8b6cd6", "#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7", "#999999",
)  # fmt: skip
STYLES = {
    OURS: (VIOLET, "circle", "neptune_lab"),
    ROLLING: (BLUE, "square", "neptune_lab, one rolling loop"),
    CUDNN: (RED, "triangle-up", "PyTorch SDPA, cuDNN"),
    FLASH: (ORANGE, "triangle-down", "PyTorch SDPA, FlashAttention-2"),
    EAGER: (PINK, "x", "PyTorch, stage by stage"),
}


def clock(run: Run) -> Drawn:
    """Samples of one kernel with a warm and with a cold L2 cache."""
    data = []
    for name, colour, sign in (("warm", RED, "x"), ("cold", BLUE, "circle")):
        us = run.data[f"{name}_us"]
        data.append(_dots(list(range(1, len(us) + 1)), us, f"{name} L2", colour, sign))
    said = "; ".join(
        f"{name} L2: median {us:.1f} µs, 10 to 90 % {low:.1f} to {high:.1f}, which would be {rate:.2f} TB/s"
        for name, us, low, high, rate in clock_summary(run)
    )
    title = f"{run.data['setup']}: {len(run.data['cold_us'])} samples of each, {run.device}"
    layout = _layout(title, {"title": {"text": "sample"}}, {"title": {"text": "µs"}, "rangemode": "tozero"})
    return {"data": data, "layout": layout}, said


def clock_summary(run: Run) -> list[tuple[str, float, float, float, float]]:
    """(state of L2, median, tenth and ninetieth percentile in µs, TB/s at which keys and values would have come)."""
    found = []
    for name in ("warm", "cold"):
        us, low, high = summary(run.data[f"{name}_us"])
        found.append((name, us, low, high, run.data["kv_bytes"] / us / 1e6))
    return found


CLOCK_HEAD = ("L2", "median, µs", "10 to 90 %", "keys and values, TB/s")


def clock_table(run: Run) -> list[tuple[str, ...]]:
    """`clock_summary` as text."""
    return [(n, f"{us:.2f}", f"{a:.2f} to {b:.2f}", f"{rate:.2f}") for n, us, a, b, rate in clock_summary(run)]


def lengths(run: Run) -> Drawn:
    """Times of every contestant over ours, by length."""
    names = [n for n in STYLES if n != OURS and any(entry(row, n) for row in run.data)]
    data, said = [], []
    xs = [row["setup"].rpartition("-")[2] for row in run.data]
    for name in names:
        ratios = [ratio(row, name) for row in run.data]
        colour, sign, label = STYLES[name]
        data.append(_line(xs, ratios, label, colour, sign))
        said.append(f"{label}: " + ", ".join(f"{r:.2f} at {x}" for x, r in zip(xs, ratios, strict=True) if r))
    data.append(
        {**_line(xs, [1.0] * len(xs), "neptune_lab", VIOLET, "circle"), "line": {"color": VIOLET, "dash": "dot"}}
    )
    x = {"title": {"text": "length"}, "type": "category"}
    most = max(filter(None, (y for line in data for y in line["y"])))
    ticks = {"tickvals": [1, 2, 5, 10, 20, 50, 100], "range": [-0.1, float(np.log10(most)) + 0.1]}
    y = {"title": {"text": "time over ours (log)"}, "type": "log", **ticks}
    return {"data": data, "layout": _layout(f"Causal attention on {run.device}", x, y)}, (
        "Time over ours. " + "; ".join(said)
    )


def ratio(row: Mapping[str, Any], name: str, base: str = OURS) -> float | None:
    """The time of `name` over that of `base`; None without either."""
    over, under = entry(row, name), entry(row, base)
    return over["us"] / under["us"] if over and under else None


def times(run: Run) -> list[tuple[str, ...]]:
    """A row a length and contestant: name, median, spread, TFLOP/s, TB/s, error; or why there is none."""
    rows = []
    for row in run.data:
        for one in row["entries"]:
            label = STYLES.get(one["name"], ("", "", one["name"]))[2]
            if one["status"] != "ok":
                rows.append((row["setup"], label, f"{one['status']}: {one['note']}", "", "", "", ""))
                continue
            us = one["us"]
            spread = f"{one['low_us']:.4g} to {one['high_us']:.4g}"
            rates = (f"{row['flops'] / us / 1e6:.0f}", f"{row['bytes'] / us / 1e6:.2f}")
            rows.append((row["setup"], label, f"{us:.4g}", spread, *rates, f"{one['error']:.1e}"))
    return rows


TIMES_HEAD = ("setup", "kernel", "median, µs", "10 to 90 %", "TFLOP/s", "TB/s", "error")


CEILINGS_HEAD = ("", "measured", "datasheet")


def ceilings_table(run: Run) -> list[tuple[str, ...]]:
    """The two rates, measured and as the datasheet has them, where that is known."""
    names = {"memory, GB/s": ("copy_gbps", "sheet_gbps"), "products, TFLOP/s": ("product_tflops", "sheet_tflops")}
    rates = {name: [run.data[key] for key in keys] for name, keys in names.items()}
    return [(name, *(f"{rate:.0f}" if rate else "unknown" for rate in found)) for name, found in rates.items()]


def roofline(ceilings: Run, *runs: Run) -> Drawn:
    """Every kernel of the runs under the measured roof: arithmetic intensity against the rate that was reached."""
    copy, product = ceilings.data["copy_gbps"], ceilings.data["product_tflops"]
    ridge = product * 1e3 / copy
    xs = np.sort(np.append(np.geomspace(0.5, 1e4, 30), [ridge]))
    roof = np.minimum(product, xs * copy / 1e3)
    data: list[dict[str, Any]] = [_roof(xs, roof, "measured roof", BLACK, "solid")]
    if ceilings.data["sheet_gbps"] and ceilings.data["sheet_tflops"]:
        sheet = np.minimum(ceilings.data["sheet_tflops"], xs * ceilings.data["sheet_gbps"] / 1e3)
        data.append(_roof(xs, sheet, "datasheet", GREY, "dot"))
    said = [f"Measured roof: {copy / 1e3:.2f} TB/s and {product:.0f} TFLOP/s, ridge at {ridge:.0f} operations per byte"]
    found: dict[str, list[tuple[float, float, str]]] = {}
    for row in (row for run in runs for row in run.data):
        for one in row["entries"]:
            if one["status"] == "ok" and one["name"] in STYLES:
                at = row["flops"] / row["bytes"], row["flops"] / one["us"] / 1e6
                found.setdefault(one["name"], []).append((*at, row["setup"]))
                if one["name"] == OURS:
                    share = at[1] / min(product, at[0] * copy / 1e3)
                    said.append(
                        f"{row['setup']}: {at[0]:.3g} operations per byte, {at[1]:.3g} TFLOP/s, {share:.0%} of the roof"
                    )
    for name, points in found.items():
        colour, sign, label = STYLES[name]
        x, y, text = zip(*points, strict=True)
        dots = _dots(list(x), list(y), label, colour, sign)
        hover = "%{text}: %{x:.3g} operations per byte, %{y:.3g} TFLOP/s"
        data.append({**dots, "text": list(text), "hovertemplate": hover})
    x = {"title": {"text": "floating-point operations per byte (log)"}, "type": "log"}
    y = {"title": {"text": "TFLOP/s (log)"}, "type": "log"}
    layout = _layout(f"Under the roof of {ceilings.device}", x, y, height=520)
    layout["annotations"] = [
        {"x": float(np.log10(ridge)), "y": float(np.log10(product)), "text": f"ridge: {ridge:.0f}", "ay": -28, "ax": 0}
    ]
    return {"data": data, "layout": layout}, ". ".join(said) + "."


def tiles(maps: Mapping[str, TileMap]) -> Drawn:
    """Which tiles are visited, and which of them are masked: a panel a kernel, queries down, keys to the right."""
    data: list[dict[str, Any]] = []
    layout = _layout("Tiles of the scores of one head", {}, {}, height=420)
    scale = [[0, FAINT], [0.33, FAINT], [0.33, SKY], [0.67, SKY], [0.67, RED], [1, RED]]
    gap, count = 0.08, len(maps)
    width = (1 - gap * (count - 1)) / count
    layout["annotations"] = []
    for n, (name, found) in enumerate(maps.items()):
        tag, begin = "" if n == 0 else str(n + 1), n * (width + gap)
        bar = {"tickvals": [0, 1, 2], "ticktext": ["skipped", "whole", "masked"], "len": 0.5}
        data.append(
            {
                "type": "heatmap", "z": found.cells.tolist(), "zmin": -0.5, "zmax": 2.5, "colorscale": scale,
                "xaxis": f"x{tag}", "yaxis": f"y{tag}", "xgap": 1, "ygap": 1, "showscale": n == 0, "colorbar": bar,
            }
        )  # fmt: skip
        plain = {"showgrid": False, "zeroline": False}
        title = {"title": {"text": f"tiles of {found.block_kv} keys"}}
        layout[f"xaxis{tag}"] = _axis({"domain": [begin, begin + width], **title, **plain})
        layout[f"yaxis{tag}"] = {"autorange": "reversed", "anchor": f"x{tag}", "automargin": True, **plain}
        layout["annotations"].append(
            {"text": name, "x": begin + width / 2, "y": 1.06, "xref": "paper", "yref": "paper", "showarrow": False}
        )
    layout["yaxis"]["title"] = {"text": f"tiles of {next(iter(maps.values())).block_q} queries"}
    return {"data": data, "layout": layout}, "; ".join(f"{name}: {found}" for name, found in maps.items())


def partition(run: Run, maps: Mapping[str, TileMap]) -> list[tuple[str, ...]]:
    """A row a setup: share of tiles visited and masked, the time without the pass over the time with it, errors."""
    rows = []
    for row in run.data:
        found = maps[row["setup"]]
        both = entry(row, DEFAULT), entry(row, UNPARTITIONED)
        slower = ratio(row, UNPARTITIONED, DEFAULT)
        errors = " and ".join(f"{e['error']:.1e}" if e else "none" for e in both)
        shares = (f"{found.visited / found.all:.0%}", f"{found.masked / found.all:.1%}")
        rows.append((row["setup"], *shares, f"{slower:.2f}" if slower else "none", errors))
    return rows


PARTITION_HEAD = (
    "setup",
    "tiles visited",
    "tiles masked",
    f"time without `{PARTITION}` over the time with it",
    "errors with it and without",
)


def ablation(run: Run, setups: Sequence[str]) -> Drawn:
    """Figure 10's question: the time with one thing changed over the time with default options, a column a setup."""
    results: BenchmarkResults = run.data
    chosen = [next(s for s in results.setups if s.name == name) for name in setups]
    rows: dict[str, list[float | None]] = {}
    for name in dict.fromkeys(e.name for s in chosen for e in s.entries if e.name.startswith("without ")):
        values = [_over(s, name) for s in chosen]
        if any(v is not None for v in values):
            rows[name] = values
    rows = dict(sorted(rows.items(), key=lambda item: max(v or 0.0 for v in item[1])))
    rows = {"tuned": [_over(s, OURS) for s in chosen], **rows}
    rows["nothing fused (torch.compile)"] = [_over(s, COMPILE) for s in chosen]
    # The same kernel takes the same time; a cell without a number has no ground, and its text no known contrast.
    z = [[0.0 if v is None else float(np.log2(v)) for v in values] for values in rows.values()]
    text = [["same kernel" if v is None else f"{v:.2f}" for v in values] for values in rows.values()]
    data = [
        {
            "type": "heatmap", "x": list(setups), "y": list(rows), "z": z, "text": text, "texttemplate": "%{text}",
            "colorscale": [[0, BLUE], [0.5, "#f7f7f7"], [1, RED]], "zmid": 0, "zmin": -2, "zmax": 2,
            "showscale": False, "xgap": 2, "ygap": 2,
        }
    ]  # fmt: skip
    axis = {"showgrid": False, "tickfont": {"size": 11}}
    title = f"Time over the time with default options, {run.device}"
    layout = _layout(title, axis, axis, height=460)
    said = "; ".join(f"{name}: " + ", ".join(line) for name, line in zip(rows, text, strict=True))
    return {"data": data, "layout": layout}, f"Columns {', '.join(setups)}. {said}."


def _over(setup: Any, name: str) -> float | None:
    usual, other = setup.time(DEFAULT), setup.time(name)
    return other / usual if usual and other else None


def rules(levels: Sequence[Level]) -> Drawn:
    """How many candidates each of MCFuser's rules leaves, on a logarithmic scale (its Figure 7)."""
    counts = [level.candidates for level in levels]
    text = [f"{level.candidates:,}<br>{level.expressions} expressions" for level in levels]
    names = [level.rule.replace(": ", ":<br>") for level in levels]
    bar = {"type": "bar", "x": names, "y": counts, "text": text, "textposition": "outside"}
    y = {"title": {"text": "candidates (log)"}, "type": "log", "range": [2, float(np.log10(max(counts))) + 1]}
    layout = _layout("Candidates left after each rule", {}, y)
    said = "; ".join(f"{level.rule}: {level.candidates:,} candidates" for level in levels)
    return {"data": [{**bar, "marker": {"color": BLUE}}], "layout": layout}, said


def model(tiles_alone: Run, search: Run) -> Drawn:
    """Predicted and measured times of two sets of candidates."""
    data = []
    sets = (("tiles alone", tiles_alone, BLUE, "circle"), ("the search", search, ORANGE, "x"))
    for name, run, colour, sign in sets:
        timed = timed_trials(run)
        points = [t["predicted_us"] for t in timed], [t["us"] for t in timed]
        dots = _dots(*points, name, colour, sign)
        data.append({**dots, "text": [t["candidate"] for t in timed], "hovertemplate": "%{text}<br>%{x:.1f}, %{y:.1f}"})
    said = "; ".join(f"{name}: {ranking(run)}" for name, run, *_ in sets)
    x = {"title": {"text": "predicted by Eqs. 2 to 5, µs (log)"}, "type": "log"}
    y = {"title": {"text": "measured, µs (log)"}, "type": "log"}
    title = f"{tiles_alone.data['setup']}: one point per candidate, {tiles_alone.device}"
    return {"data": data, "layout": _layout(title, x, y, height=480)}, said


def timed_trials(run: Run) -> list[Mapping[str, Any]]:
    """The trials that have a time, the fastest first."""
    return sorted((t for t in run.data["trials"] if t["us"]), key=lambda t: t["us"])


def ranking(run: Run) -> str:
    """How well the model ranks the trials of a run, in a sentence."""
    timed = timed_trials(run)
    found = rank_correlation([t["predicted_us"] for t in timed], [t["us"] for t in timed])
    return f"{len(timed)} candidates, rank correlation {found:.2f}"


RANKING_HEAD = ("candidates", "timed", "different predictions", "rank correlation", "best over median time", "seconds")


def ranking_row(run: Run) -> tuple[str, ...]:
    """A tuning run: how many were timed, how many predictions they have, how well those rank, and what was won."""
    timed = timed_trials(run)
    found = rank_correlation([t["predicted_us"] for t in timed], [t["us"] for t in timed])
    different = len({t["predicted_us"] for t in timed})
    seconds = f"{run.data['seconds']:.0f}, ended: {run.data['ended']}"
    return str(len(timed)), str(different), f"{found:+.2f}", f"{best_over_median(run):.2f}", seconds


def best_over_median(run: Run) -> float:
    """The fastest time of a run's trials over their median time."""
    times = [t["us"] for t in timed_trials(run)]
    return times[0] / summary(times)[0]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's coefficient: 1 where both put everything in the same order, about 0 where they have nothing in common.

    >>> rank_correlation([1, 2, 3, 3], [10, 20, 30, 30])
    1.0
    """
    return round(float(np.corrcoef(_ranks(x), _ranks(y))[0, 1]), 6)


def _ranks(values: Sequence[float]) -> np.ndarray:
    """The place of each value in order; equal values share the mean of their places."""
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[which]


def decode(run: Run, ceilings: Run) -> Drawn:
    """Decoding: the rate at which keys and values come in, by length, under the measured copy rate."""
    copy = ceilings.data["copy_gbps"]
    xs = [row["setup"].rpartition("-")[2] for row in run.data]
    data, said = [], []
    for name in (OURS, CUDNN, ROLLING):
        found = [entry(row, name) for row in run.data]
        rates = [row["kv_bytes"] / e["us"] / 1e3 if e else None for row, e in zip(run.data, found, strict=True)]
        colour, sign, label = STYLES[name]
        data.append(_line(xs, rates, label, colour, sign))
        parts = [f"{rate / copy:.0%} at {x}" for x, rate in zip(xs, rates, strict=True) if rate]
        said.append(f"{label}: {', '.join(parts)}")
    data.append({**_line(xs, [copy] * len(xs), "measured copy rate", GREY, "line-ew"), "mode": "lines"})
    x = {"title": {"text": "keys"}, "type": "category"}
    y = {"title": {"text": "keys and values, GB/s"}, "rangemode": "tozero"}
    layout = _layout(f"Decoding, 64 heads on 8 of keys, cold L2, {run.device}", x, y)
    return {"data": data, "layout": layout}, "Share of the measured copy rate. " + "; ".join(said)


# -- pieces ----------------------------------------------------------------------------------------------------------


def _layout(title: str, x: Mapping[str, Any], y: Mapping[str, Any], height: int = 420) -> dict[str, Any]:
    legend = {"orientation": "h", "yref": "container", "y": 0.0, "yanchor": "bottom"}
    return {"title": {"text": title}, "xaxis": _axis(x), "yaxis": _axis(y), "legend": legend, "height": height}


def _axis(axis: Mapping[str, Any]) -> dict[str, Any]:
    """An axis whose title stands clear of its ticks."""
    title = {"title": {**axis["title"], "standoff": 12}} if "title" in axis else {}
    return {"automargin": True, **axis, **title}


def _line(x: Sequence[Any], y: Sequence[Any], name: str, colour: str, sign: str) -> dict[str, Any]:
    return {**_dots(x, y, name, colour, sign), "mode": "lines+markers", "line": {"color": colour}}


def _dots(x: Sequence[Any], y: Sequence[Any], name: str, colour: str, sign: str) -> dict[str, Any]:
    marker = {"color": colour, "symbol": sign, "size": 9}
    return {"type": "scatter", "mode": "markers", "x": list(x), "y": list(y), "name": name, "marker": marker}


def _roof(x: np.ndarray, y: np.ndarray, name: str, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": colour, "dash": dash}
    points = {"x": [round(float(v), 4) for v in x], "y": [round(float(v), 4) for v in y]}
    return {"type": "scatter", "mode": "lines", **points, "name": name, "line": line, "hoverinfo": "skip"}
