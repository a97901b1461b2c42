"""The papers' figures for the measured GPU, drawn with plotly from a run's results.

Neptune: Figures 8, 16 and 17 (relative performance over lengths), 9 (throughput over batch), 10 (ablation), 11 (norms
and performer).  MCFuser: Figures 8 (chains and modules), 10 (shared memory) and 11 (the model).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neptune_lab.bench.measured import (
    COMPILE,
    CUDNN,
    DEFAULT,
    EAGER,
    EFFICIENT,
    FLASH,
    FLEX,
    HAND,
    NO_RECORD,
    OURS,
    BenchmarkResults,
    ContestantResult,
    SetupResult,
)
from neptune_lab.bench.tables import axis
from neptune_lab.figure_colours import INK, STRONG, TEMPLATE, toned

# One colour and one marker per contestant in every figure (Okabe and Ito's palette, which colour-blind people tell
# apart, each tone as light or dark as pages of both themes need it).
_COLOURS = {
    OURS: STRONG,
    FLEX: toned("#0072b2"),
    COMPILE: toned("#56b4e9"),
    HAND: toned("#009e73"),
    CUDNN: toned("#d55e00"),
    FLASH: toned("#e69f00"),
    EFFICIENT: toned("#cc79a7"),
    EAGER: toned("#999999"),
}
_SIGNS = {
    OURS: "circle",
    FLEX: "square",
    COMPILE: "diamond",
    HAND: "cross",
    CUDNN: "triangle-up",
    FLASH: "triangle-down",
    EFFICIENT: "x",
    EAGER: "star",
}
_COLUMNS = 5
_LINES = ((_COLOURS[FLEX], "circle"), (_COLOURS[CUDNN], "square"), (STRONG, "diamond"), (_COLOURS[HAND], "cross"))


@dataclass(frozen=True)
class Drawn:
    """A figure and what it shows."""

    title: str
    text: str
    figure: go.Figure


def figures(results: BenchmarkResults) -> tuple[Drawn, ...]:
    """Every figure that the results have data for."""
    made = (
        relative(results, "compiler"),
        relative(results, "library"),
        throughput(results),
        ablation(results),
        rows_and_performer(results),
        chains(results),
        shared_memory(results),
        model(results),
    )
    drawn = tuple(one for one in made if one is not None)
    for one in drawn:  # the legend at the bottom, below the titles of axes
        one.figure.layout.template = TEMPLATE  # in place of plotly's, which `update_layout` would only add to
        one.figure.update_layout(
            legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
            margin={"t": 50, "b": 90},
        )
    return drawn


def _family(name: str) -> str:
    """The contestant without its mode: "FlexAttention, max-autotune" is FlexAttention."""
    return name.split(", ")[0]


def _fastest(setup: SetupResult, kinds: Iterable[str]) -> dict[str, ContestantResult]:
    """The fastest right answer of each family."""
    fastest: dict[str, ContestantResult] = {}
    for entry in setup.entries:
        if entry.kind in kinds and entry.status == "ok" and entry.us:
            family = _family(entry.name)
            if family not in fastest or entry.us < (fastest[family].us or 0.0):
                fastest[family] = entry
    return fastest


def _style(name: str) -> dict[str, object]:
    return {
        "name": name,
        "legendgroup": name,
        "mode": "lines+markers",
        "line": {"color": _COLOURS.get(name, INK), "width": 3 if name == OURS else 1.5},
        "marker": {"symbol": _SIGNS.get(name, "circle-open"), "size": 8},
    }


def _lines(
    figure: go.Figure, place: tuple[int, int], lines: dict[str, list[tuple[float, float]]], seen: set[str]
) -> None:
    """Adds one line per name; a name is in the legend once."""
    for name, points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        figure.add_trace(go.Scatter(x=x, y=y, showlegend=name not in seen, **_style(name)), row=place[0], col=place[1])
        seen.add(name)


def relative(results: BenchmarkResults, kind: str) -> Drawn | None:
    """Figures 8 and 16 (compilers) or 17 (libraries): our time over theirs, operator by operator."""
    setups = results.group("attention")
    rows = [r for r in dict.fromkeys(s.row for s in setups) if any(_fastest(s, (kind,)) for s in setups if s.row == r)]
    if not rows:
        return None
    figure = _grid(rows)
    seen: set[str] = set()
    for n, row in enumerate(rows):
        lines: dict[str, list[tuple[float, float]]] = {}
        for setup in (s for s in setups if s.row == row and s.ours):
            for name, entry in _fastest(setup, (kind,)).items():
                lines.setdefault(name, []).append((axis(setup), (setup.ours or 0.0) / (entry.us or 1.0)))
        place = (n // _COLUMNS + 1, n % _COLUMNS + 1)
        _lines(figure, place, lines, seen)
        figure.add_hline(y=1.0, line={"color": STRONG, "width": 1.5, "dash": "dot"}, row=place[0], col=place[1])  # pyright: ignore[reportArgumentType]
    figure.update_xaxes(**_ticks(axis(s) for s in setups))
    figure.update_yaxes(rangemode="tozero")
    many = "compilers" if kind == "compiler" else "libraries"
    source = "Neptune, Figures 8 and 16" if kind == "compiler" else "Neptune, Figure 17"
    return Drawn(
        f"Performance of {many} relative to ours ({source})",
        "Our time over theirs by sequence length; the dotted line is ours, and below it ours is the faster one.",
        figure,
    )


def _grid(titles: Sequence[str], columns: int = _COLUMNS, row_height: int = 260, **more: Any) -> go.Figure:
    """Subplots with titles, `columns` per row, with the same space between rows for any number of rows."""
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    height = 110 + row_height * rows
    figure = make_subplots(rows, columns, subplot_titles=titles, vertical_spacing=min(75 / height, 1 / rows), **more)
    figure.update_layout(height=height)
    return figure


def _ticks(values: Iterable[int]) -> dict[str, Any]:
    """Axis settings that show every value in full: plotly would write 32768 as 32.768k."""
    ticks = sorted(set(values))
    return {"type": "log", "tickvals": ticks, "ticktext": [str(n) for n in ticks], "tickangle": 0}


def throughput(results: BenchmarkResults) -> Drawn | None:
    """Figure 9: TFLOP/s over batch."""
    sizes = {s.sizes.get("kv_len") for s in results.group("batch")}
    batches = results.group("batch")
    rows = list(dict.fromkeys(s.row for s in batches))
    if not rows:
        return None
    single = tuple(s for s in results.group("attention") if s.row in rows and s.sizes.get("kv_len") in sizes)
    figure = _grid(rows, 4)
    seen: set[str] = set()
    for n, row in enumerate(rows):
        lines: dict[str, list[tuple[float, float]]] = {}
        for setup in (s for s in (*single, *batches) if s.row == row):
            for name, entry in _fastest(setup, ("ours", "compiler", "library")).items():
                if name != COMPILE:
                    reached = setup.flops / (entry.us or 1.0) / 1e6
                    lines.setdefault(name, []).append((float(setup.sizes["batch"]), reached))
        _lines(figure, (1, n + 1), lines, seen)
    figure.update_xaxes(title="batch", **_ticks(s.sizes["batch"] for s in (*single, *batches)))
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="TFLOP/s", col=1)
    return Drawn(
        "Throughput over batch (Neptune, Figures 9 and 18)",
        f"At length {', '.join(map(str, sorted(x for x in sizes if x)))}; more is better.",
        figure,
    )


# Labels of the bars of what `compile` chooses, and the colours of the bars that are no single change.
_CHOSEN = {OURS: "tuned", NO_RECORD: "untuned"}
_MARKED = {**dict.fromkeys(_CHOSEN.values(), _COLOURS[HAND]), DEFAULT: STRONG}


def ablation(results: BenchmarkResults) -> Drawn | None:
    """Figure 10: our kernel with one change."""
    setups = [s for s in results.setups if s.time(DEFAULT)]
    if not setups:
        return None
    most = 1 + max(sum(e.kind in ("ours", "ablation") and e.status == "ok" for e in s.entries) for s in setups)
    figure = _grid([s.name for s in setups], 2, 70 + 19 * most, horizontal_spacing=0.32)
    for n, setup in enumerate(setups):
        usual = setup.time(DEFAULT) or 1.0
        shown = [e for e in setup.entries if e.kind in ("ours", "ablation") and e.status == "ok" and e.us]
        plain = [e for e in setup.entries if e.name == COMPILE and e.status == "ok" and e.us]
        bars = {_CHOSEN.get(e.name, e.name): usual / (e.us or 1.0) for e in shown}
        bars |= {f"no fused reductions ({COMPILE})": usual / (e.us or 1.0) for e in plain}
        ordered = sorted(bars.items(), key=lambda item: item[1])
        shown_names, values = zip(*ordered, strict=True)
        colours = [_MARKED.get(name, _COLOURS[FLEX]) for name in shown_names]
        figure.add_trace(
            go.Bar(
                x=values, y=shown_names, orientation="h", marker_color=colours, showlegend=False,
                text=[f"{v:.2f}" for v in values], textposition="outside", cliponaxis=False,
            ),
            row=n // 2 + 1, col=n % 2 + 1,
        )  # fmt: skip
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(automargin=True)
    return Drawn(
        "Our kernel with one thing changed (Neptune, Figure 10)",
        "Performance relative to the default options (1.00); a bar below 1 is what is lost without that thing. Changes "
        "that leave the kernel as it is are not shown.",
        figure,
    )


def rows_and_performer(results: BenchmarkResults) -> Drawn | None:
    """Figure 11: norms and performer against torch.compile."""
    setups = results.group("norms", "performer")
    rows = list(dict.fromkeys(s.row for s in setups))
    if not rows:
        return None
    figure = _grid(rows, 4)
    styles: dict[str, tuple[str, str]] = {}
    for n, row in enumerate(rows):
        lines: dict[str, list[tuple[float, float]]] = {}
        for setup in (s for s in setups if s.row == row):
            value = setup.over(COMPILE)
            if value is not None:
                lines.setdefault(_rows_of(setup), []).append((axis(setup), value))
        for name, points in lines.items():
            x, y = zip(*sorted(points), strict=True)
            new = name not in styles
            colour, sign = styles.setdefault(name, _LINES[len(styles) % len(_LINES)])
            figure.add_trace(
                go.Scatter(
                    x=x, y=y, name=name, legendgroup=name, showlegend=new, mode="lines+markers",
                    line={"color": colour}, marker={"symbol": sign, "size": 8},
                ),
                row=1, col=n + 1,
            )  # fmt: skip
        figure.add_hline(y=1.0, line={"color": STRONG, "width": 1.5, "dash": "dot"}, row=1, col=n + 1)  # pyright: ignore[reportArgumentType]
        figure.update_xaxes(row=1, col=n + 1, **_ticks(axis(s) for s in setups if s.row == row))
    figure.update_yaxes(rangemode="tozero")
    return Drawn(
        "Norms and performer relative to torch.compile (Neptune, Figure 11)",
        "Its time over ours, by columns or by sequence length; more is better, the dotted line is torch.compile.",
        figure,
    )


def _rows_of(setup: SetupResult) -> str:
    return f"{setup.sizes['rows']} rows" if "rows" in setup.sizes else f"{setup.sizes.get('heads')} heads"


def chains(results: BenchmarkResults) -> Drawn | None:
    """MCFuser's Figure 8: GEMM chains and attention modules relative to PyTorch."""
    groups = [g for g in ("chains", "modules") if any(s.time(EAGER) for s in results.group(g))]
    if not groups:
        return None
    titles = {"chains": "GEMM chains", "modules": "self-attention modules"}
    figure = make_subplots(len(groups), 1, subplot_titles=[titles[g] for g in groups], vertical_spacing=0.18)
    seen: set[str] = set()
    for n, group in enumerate(groups):
        bars: dict[str, dict[str, float]] = {}
        for setup in results.group(group):
            base = setup.time(EAGER)
            for name, entry in _fastest(setup, ("ours", "compiler", "library")).items():
                if base:
                    bars.setdefault(name, {})[setup.row.upper()] = base / (entry.us or 1.0)
        for name, values in bars.items():
            figure.add_trace(
                go.Bar(
                    x=list(values), y=list(values.values()), name=name, legendgroup=name, showlegend=name not in seen,
                    marker_color=_COLOURS.get(name, INK),
                ),
                row=n + 1, col=1,
            )  # fmt: skip
            seen.add(name)
    figure.update_layout(height=340 * len(groups), barmode="group")
    return Drawn(
        "GEMM chains and attention modules relative to PyTorch (MCFuser, Figure 8)",
        f"The time of “{EAGER}” over each; more is better.",
        figure,
    )


def shared_memory(results: BenchmarkResults) -> Drawn | None:
    """MCFuser's Figure 10: estimated and actual shared memory of tuned candidates."""
    points = [
        (t["shared_estimate"] / 1024, t["shared"] / 1024, str(tuning["setup"]))
        for tuning in results.tuning
        for t in tuning["trials"]
        if t.get("shared_estimate") is not None and t.get("shared") is not None
    ]
    if not points:
        return None
    figure = _scatter(points)
    most = max(max(x, y) for x, y, _ in points)
    figure.add_trace(
        go.Scatter(x=[0, most], y=[0, most], mode="lines", line={"color": INK, "dash": "dot"}, name="equal")
    )
    figure.update_layout(xaxis_title="estimated, KiB", yaxis_title="actual, KiB", height=480)
    return Drawn("Shared memory, estimated and actual (MCFuser, Figure 10)", "One point per candidate.", figure)


def model(results: BenchmarkResults) -> Drawn | None:
    """MCFuser's Figure 11: the model's time and the measured one, each over the best of its setup."""
    points = []
    for tuning in results.tuning:
        timed = [t for t in tuning["trials"] if t.get("us") and t.get("predicted_us")]
        if timed:
            least, fewest = min(t["predicted_us"] for t in timed), min(t["us"] for t in timed)
            points += [(t["predicted_us"] / least, t["us"] / fewest, str(tuning["setup"])) for t in timed]
    if not points:
        return None
    figure = _scatter(points)
    figure.update_layout(xaxis_title="predicted, over the least", yaxis_title="measured, over the least", height=480)
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    said = []
    for name in dict.fromkeys(name for *_, name in points):
        coefficient = _correlation([(x, y) for x, y, at in points if at == name])
        if coefficient is not None:
            said.append(f"{name} {coefficient:.2f}")
    text = f"One point per candidate. Correlation: {', '.join(said)}." if said else "One point per candidate."
    return Drawn("The analytical model and the measured times (MCFuser, Figure 11)", text, figure)


def _scatter(points: Sequence[tuple[float, float, str]]) -> go.Figure:
    figure = go.Figure()
    signs = tuple(_SIGNS.values())
    colours = tuple(_COLOURS.values())
    for n, name in enumerate(dict.fromkeys(name for *_, name in points)):
        mine = [(x, y) for x, y, at in points if at == name]
        x, y = zip(*mine, strict=True)
        marker = {"opacity": 0.6, "symbol": signs[n % len(signs)], "color": colours[n % len(colours)]}
        figure.add_trace(go.Scatter(x=x, y=y, mode="markers", name=name, marker=marker))
    return figure


def _correlation(points: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's coefficient; None for fewer than three points, or if one coordinate never changes."""
    if len(points) < 3:
        return None
    try:
        return correlation(*zip(*points, strict=True))
    except StatisticsError:
        return None
