"""Tables of a run, in Markdown: the targets, Neptune's Tables 2 and 4, all figures, resources, and what limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean

from neptune_lab.bench.measured import DEFAULT, NO_RECORD, OURS, BenchmarkResults, SetupResult
from neptune_lab.bench.targets import Goal, targets

Rows = list[list[str]]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; `|` in a cell is escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n"

    return line(header) + line(["---"] * len(header)) + "".join(line(row) for row in rows)


def ratio(value: float | None) -> str:
    """Two decimals, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def microseconds(value: float | None) -> str:
    """Three digits or all of them, or a dash."""
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


TARGETS_HEADER = ("operators", "compared with", "target: at least", "measured", "verdict", "smallest ratio")


def target_rows(results: BenchmarkResults) -> Rows:
    """The targets: the figure asked for, the measured one, and whether it is reached."""
    return [
        [
            t.operators,
            t.against,
            f"{t.least:g}",
            "-" if t.found is None or not results.is_gpu else f"{ratio(t.found)} ({t.how} of {t.counted})",
            _verdict(t) if results.is_gpu else "open: no GPU",
            f"{ratio(t.worst[1])} {t.worst[0]}" if t.worst and results.is_gpu else "-",
        ]
        for t in targets(results)
    ]


def _verdict(target: Goal) -> str:
    if target.failed:
        return f"**not reached**: no right answer on {_some(target.failed)}"
    if target.reached is None:
        return f"open: no figure of {_some(target.missing)}" if target.missing else "open: not measured"
    return "reached" if target.reached else "**not reached**"


def _some(names: Sequence[str]) -> str:
    """Two of them, and how many more there are."""
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def _by_row(setups: Iterable[SetupResult]) -> dict[str, list[SetupResult]]:
    rows: dict[str, list[SetupResult]] = {}
    for setup in setups:
        rows.setdefault(setup.row, []).append(setup)
    return {row: sorted(each, key=axis) for row, each in rows.items()}


def axis(setup: SetupResult) -> int:
    """A setup's position on its figure's axis: its length, or columns."""
    for name in ("kv_len", "cols", "seq", "n"):
        if name in setup.sizes:
            return int(setup.sizes[name])
    return 0


def speedup_rows(results: BenchmarkResults, *kinds: str) -> tuple[list[str], Rows]:
    """Neptune's Table 2 (kind "compiler") or 4 (kind "library"): our speedup over the best, by operator and length."""
    each = _by_row(results.group("attention"))
    lengths = sorted({axis(s) for s in results.group("attention")})
    rows, everything = [], []
    for row, setups in each.items():
        speedups = {axis(s): s.speedup(*kinds) for s in setups}
        known = [x for x in speedups.values() if x is not None]
        if not known:
            continue
        everything += known
        rows.append([row, *(ratio(speedups.get(n)) for n in lengths), ratio(geometric_mean(known))])
    if everything:
        rows.append(["**all**", *("" for _ in lengths), f"**{ratio(geometric_mean(everything))}**"])
    return ["operator", *map(str, lengths), "geometric mean"], rows


def setup_rows(results: BenchmarkResults) -> Rows:
    """Every setup: our time, the best compiler and library, and the share of the device's rates."""
    rows = []
    for setup in results.setups:
        compiler, library = setup.best("compiler"), setup.best("library")
        own = next((e for e in setup.entries if e.name == OURS), None)
        said = microseconds(setup.ours) if setup.ours else f"**{own.status if own else 'missing'}**"
        rows.append(
            [
                setup.name,
                said,
                f"{compiler.name} {microseconds(compiler.us)}" if compiler else "-",
                ratio(setup.speedup("compiler")),
                f"{library.name} {microseconds(library.us)}" if library else "-",
                ratio(setup.speedup("library")),
                limit(setup, results),
            ]
        )
    return rows


SETUPS_HEADER = ("setup", "ours, µs", "best compiler, µs", "speedup", "best library, µs", "speedup", "what limits")


def limit(setup: SetupResult, results: BenchmarkResults) -> str:
    """The measured rate that limits a setup more, and the share of it that our kernel reaches."""
    rate, peak = results.rates.get("copy_gbps"), results.rates.get("matmul_tflops")
    if not setup.ours or not rate or not peak:
        return "-"
    moving = setup.bytes / rate / 1e3 / setup.ours
    computing = setup.flops / peak / 1e6 / setup.ours
    name, share = ("products", computing) if computing > moving else ("memory", moving)
    if share < 0.25:
        return f"neither: latency ({name} {share:.0%})"
    return f"{name}, {share:.0%}"


RESOURCES_HEADER = ("setup", "kernel", "registers", "spills", "shared, bytes", "warps", "options")


def resource_rows(results: BenchmarkResults) -> Rows:
    """The resources of each launched kernel of ours, and how it was compiled."""
    rows = []
    for setup in results.setups:
        for entry in setup.entries:
            if entry.name != OURS:
                continue
            options = "; ".join(x for x in (entry.note, ", ".join(f"{k}={v}" for k, v in entry.options.items())) if x)
            rows += [
                [setup.name, *map(str, (r.kernel, r.registers, r.spills, r.shared, r.warps)), options]
                for r in entry.resources
            ]
    return rows


PROBLEMS_HEADER = ("setup", "contestant", "", "why")


def problem_rows(results: BenchmarkResults) -> Rows:
    """Every contestant without a valid time, and why."""
    return [
        [s.name, e.name, f"**{e.status}**" if e.status == "wrong" else e.status, e.note]
        for s in results.setups
        for e in s.entries
        if e.status in ("wrong", "failed", "lost", "skipped")
    ]


UNTUNED_HEADER = ("operator", "setups", "untuned over tuned (geometric mean)", "least", "most")


def untuned_rows(results: BenchmarkResults) -> Rows:
    """What tuning gives, by operator (all chains and all modules in a row each): the time of what is chosen without a
    record of these sizes over that with one.

    Below 1, the record's choice is the slower one.
    """
    found: dict[str, list[tuple[float, str]]] = {}
    for setup in results.setups:
        untuned = setup.time(NO_RECORD)
        if setup.ours and untuned:
            row = setup.group if setup.group in ("chains", "modules") else setup.row
            found.setdefault(row, []).append((untuned / setup.ours, setup.name))
    if found:
        found["**all**"] = [one for each in found.values() for one in each]
    return [[row, *_spread(each)] for row, each in found.items()]


def _spread(found: Sequence[tuple[float, str]]) -> list[str]:
    """How many ratios there are, their geometric mean, and the least and the most with their setups' names."""
    (least, low), (most, high) = min(found), max(found)
    mean = geometric_mean(value for value, _ in found)
    return [str(len(found)), ratio(mean), f"{ratio(least)} {low}", f"{ratio(most)} {high}"]


def ablation_rows(results: BenchmarkResults) -> Rows:
    """Neptune's Figure 10 as figures: the time with one change over the time with default options."""
    rows = []
    for setup in results.setups:
        usual = setup.time(DEFAULT)
        for entry in setup.entries:
            if entry.kind == "ablation" and entry.status != "same" and usual:
                shown = f"{entry.us / usual:.2f}" if entry.us and entry.status == "ok" else entry.status
                rows.append([setup.name, entry.name, microseconds(entry.us), shown])
        if usual and setup.ours:
            rows.append([setup.name, OURS, microseconds(setup.ours), ratio(setup.ours / usual)])
    return rows


def summary(results: BenchmarkResults) -> str:
    """The device, versions and command of the run, in a few lines of Markdown."""
    lines = [f"{results.device.get('name')}, {results.started}, {results.seconds:.0f} s, {len(results.setups)} setups."]
    if not results.is_gpu:
        lines.append("**Not a GPU: numbers were checked, times mean nothing.**")
    if results.rates:
        rates = results.rates
        lines.append(
            f"Copy {rates['copy_gbps'] / 1e3:.2f} TB/s, fp16 product {rates['matmul_tflops']:.0f} TFLOP/s, "
            f"overhead of an empty event pair {rates['empty_us']:.1f} µs."
        )
    clocks = [s.load["sm_mhz"] for s in results.setups if isinstance(s.load.get("sm_mhz"), float)]
    if clocks:
        lines.append(f"SM clock while our kernels ran: {min(clocks):.0f} to {max(clocks):.0f} MHz.")
    lines.append(", ".join(f"{name} {number}" for name, number in results.versions.items()) + ".")
    lines.append(f"`{results.command}`")
    return "\n".join(f"{line}  " for line in lines) + "\n"


SECTIONS: tuple[tuple[str, Callable[[BenchmarkResults], tuple[Sequence[str], Rows]]], ...] = (
    ("Targets", lambda r: (TARGETS_HEADER, target_rows(r))),
    ("Speedup over the best compiler (Neptune, Table 2)", lambda r: speedup_rows(r, "compiler")),
    ("Speedup over the best library (Neptune, Table 4)", lambda r: speedup_rows(r, "library")),
    ("Every setup", lambda r: (SETUPS_HEADER, setup_rows(r))),
    ("Tuned and untuned", lambda r: (UNTUNED_HEADER, untuned_rows(r))),
    ("Ablation (Neptune, Figure 10)", lambda r: (("setup", "kernel", "µs", "over default"), ablation_rows(r))),
    ("Registers, shared memory, spills", lambda r: (RESOURCES_HEADER, resource_rows(r))),
    ("Setups without a valid time", lambda r: (PROBLEMS_HEADER, problem_rows(r))),
)


def to_markdown(results: BenchmarkResults) -> str:
    """All tables."""
    parts = [f"# Benchmark\n\n{summary(results)}"]
    for title, make in SECTIONS:
        header, rows = make(results)
        if rows:
            parts.append(f"## {title}\n\n{markdown(header, rows)}")
    return "\n".join(parts)
