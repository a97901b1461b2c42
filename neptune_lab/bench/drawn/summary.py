"""The summary of a results file: ratios by class, the targets, first calls, and what failed or is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median

from neptune_lab.bench.drawn.results import LIMIT_S, DrawnResult, DrawnRun
from neptune_lab.bench.measured import FLEX, OURS
from neptune_lab.bench.tables import markdown, ratio

# One problem with a slow peer should not decide a mean.
CAP = 3.0
# Row operators on a matrix of more bytes are judged by the copy rate; below it, part of the matrix stays in L2.
LARGE = 64 << 20
# Packages of row operators.
PACKAGES = ("quack-kernels", "liger-kernel")


@dataclass(frozen=True)
class Figures:
    """Ratios of peers' times to ours (above 1: ours is faster).

    Args:
        count: problems with a ratio.
        capped, mean: geometric means, with each ratio at most `CAP` and as they are.
        middle, worst: the median and the smallest.
        at: the problem of the smallest.
    """

    count: int
    capped: float
    mean: float
    middle: float
    worst: float
    at: str


def figures(results: Iterable[DrawnResult], *kinds: str) -> Figures | None:
    """The ratios to the fastest peer of these kinds; None if there are none."""
    found = [(value, r.problem.name) for r in results if (value := r.ratio(*kinds)) is not None]
    if not found:
        return None
    values = [value for value, _ in found]
    worst, at = min(found)
    capped = geometric_mean([min(CAP, v) for v in values])
    return Figures(len(found), capped, geometric_mean(values), median(values), worst, at)


def classes(run: DrawnRun) -> list[tuple[str, tuple[DrawnResult, ...]]]:
    """Names of classes and their problems; a problem is in several."""
    attention = tuple(r for r in run.results if r.problem.kind != "rows")
    rows = tuple(r for r in run.results if r.problem.kind == "rows")

    def by(name: str, key: Callable[[DrawnResult], object], among: Sequence[DrawnResult]):
        values = sorted({str(key(r)) for r in among})
        return [(name.format(v), tuple(r for r in among if str(key(r)) == v)) for v in values]

    return [
        ("attention", attention),
        *by("{}", lambda r: r.problem.kind, attention),
        *by("width {}", lambda r: f"{r.problem.sizes['head_dim']:03}/{r.problem.sizes['v_head_dim']:03}", attention),
        *by("mask {}", lambda r: r.problem.mask, attention),
        *by("mod {}", lambda r: r.problem.mod, attention),
        ("views", tuple(r for r in attention if r.problem.view)),
        ("rows", rows),
        *by("{}", lambda r: r.problem.operator, rows),
        ("rows past 64 MiB", tuple(r for r in rows if 2 * r.problem.sizes["rows"] * r.problem.sizes["cols"] > LARGE)),
    ]


def to_markdown(run: DrawnRun) -> str:
    """The whole summary, in Markdown; of a run whose times say nothing, what was checked."""
    if run.tiny or not run.gpu:
        return _checks(run)
    groups = dict(classes(run))
    header = ("class", "problems", "compared", "mean, capped at 3", "mean", "median", "worst", "of compilers, capped")
    table = [_row(name, group) for name, group in groups.items() if group]
    parts = [
        f"{_what(run)}; the best peer's time over ours\n",
        markdown(header, table),
    ]
    parts.append(markdown(("target", "at least", "found", ""), _targets(run, groups["attention"], groups["rows"])))
    parts += [_listed(title, names) for title, names in (*_details(run, groups["rows"]), *_exceptions(run)) if names]
    return "\n".join(parts)


def _checks(run: DrawnRun) -> str:
    """How many answers of each class were right, and the largest error of one that was."""
    why = "tiny sizes" if run.tiny else "no GPU"
    table = []
    for name, group in classes(run):
        right = [r.ours for r in group if r.ours.status == "ok"]
        errors = [entry.error for entry in right if entry.error is not None]
        largest = f"{max(errors):.1e}" if errors else "-"
        table += [[name, str(len(group)), str(len(right)), largest]] if group else []
    parts = [
        f"{_what(run)}: {why}, so answers are checked against float64, and no time is shown and no target is judged\n",
        markdown(("class", "problems", "right", "largest error"), table),
    ]
    parts += [_listed(title, names) for title, names in _exceptions(run) if names]
    return "\n".join(parts)


def _row(name: str, group: Sequence[DrawnResult]) -> list[str]:
    best, compilers = figures(group, "compiler", "library"), figures(group, "compiler")
    cells = [ratio(v) for v in ((best.capped, best.mean, best.middle) if best else (None,) * 3)]
    worst = f"{ratio(best.worst)} {best.at}" if best else "-"
    counted = str(best.count if best else 0)
    return [name, str(len(group)), counted, *cells, worst, ratio(compilers.capped if compilers else None)]


def first_calls(results: Iterable[DrawnResult]) -> list[float]:
    """Our first call's seconds over FlexAttention's, of problems where both answered right."""
    found = []
    for result in results:
        right = {e.name for e in result.entries if e.status == "ok"}
        seconds = result.first_call_s
        if {OURS, FLEX} <= right & set(seconds) and seconds[FLEX] > 0:
            found.append(seconds[OURS] / seconds[FLEX])
    return found


def _targets(run: DrawnRun, attention: Sequence[DrawnResult], rows: Sequence[DrawnResult]) -> list[list[str]]:
    every, compilers = figures(attention, "compiler", "library"), figures(attention, "compiler")
    row = figures(map(_without_packages, rows), "compiler", "library")
    first = first_calls(attention)
    wanted = [
        ("attention, mean, best of everything", 1.0, every and every.capped, attention),
        ("attention, worst, best of everything", 0.8, every and every.worst, attention),
        ("attention, mean, best compiler", 1.3, compilers and compilers.capped, attention),
        ("rows, mean, best of eager and torch.compile", 1.2, row and row.capped, rows),
        ("rows, worst, best of eager and torch.compile", 0.9, row and row.worst, rows),
    ]
    table = []
    for name, least, found, group in wanted:
        failed = sum(r.ours.status != "ok" for r in group)
        table.append([name, f"{least:g}", ratio(found), _verdict(found, found is not None and found >= least, failed)])
    rates = [rate for rate, _ in copy_rates(run, rows)]
    for name, least, values in (("rows, mean, quack and liger", 1.0, _of_packages(rows)),
                                ("rows past 64 MiB, mean, of the copy rate", 0.85, rates)):  # fmt: skip
        found = geometric_mean(values) if values else None
        failed = sum(r.ours.status != "ok" for r in rows)
        reached = found is not None and found >= least
        table.append([name, f"{least:g}", ratio(found), _verdict(found, reached, failed)])
    mean, worst = (geometric_mean(first), max(first)) if first else (None, None)
    tuned = [one.untuned_us / one.tuned_us for one in run.tuned if one.untuned_us and one.tuned_us]
    lost = len(run.tuned) - len(tuned)
    wrong = sum(r.ours.status != "ok" for r in attention)
    for name, most, found, failed in (
        ("first call over FlexAttention's, mean", 1.0, mean, wrong),
        ("first call over FlexAttention's, worst", 1.5, worst, wrong),
        (f"tuned against untuned, mean of {len(tuned)}", 1.08, geometric_mean(tuned) if tuned else None, lost),
    ):
        reached = found is not None and found <= most
        table.append([name, f"at most {most:g}", ratio(found), _verdict(found, reached, failed)])
    return table


def copy_rates(run: DrawnRun, rows: Iterable[DrawnResult]) -> list[tuple[float, str]]:
    """For each row problem whose matrix is past `LARGE`: the rate of the bytes that must be moved over the copy rate,
    and its name."""
    found = []
    for result in rows:
        problem, us = result.problem, result.ours.us
        large = 2 * problem.sizes["rows"] * problem.sizes["cols"] > LARGE
        if large and us and result.ours.status == "ok" and run.copy_gbps:
            found.append((problem.moved / (us * 1e3) / run.copy_gbps, problem.name))
    return found


def _without_packages(result: DrawnResult) -> DrawnResult:
    """The problem with PyTorch as its only peer, compiled and eager."""
    return replace(result, entries=tuple(e for e in result.entries if e.name not in PACKAGES))


def _of_packages(rows: Iterable[DrawnResult]) -> list[float]:
    """The ratios of the fastest of quack and liger, each at most `CAP`."""
    found = []
    for result in rows:
        peers = [e.us for e in result.entries if e.name in PACKAGES and e.status == "ok" and e.us]
        if peers and result.ours.status == "ok" and result.ours.us:
            found.append(min(CAP, min(peers) / result.ours.us))
    return found


def _verdict(found: float | None, reached: bool, failed: int) -> str:
    if failed:
        return f"missed: {failed} of ours failed or were wrong"
    return "open: nothing was compared" if found is None else "reached" if reached else "missed"


def _details(run: DrawnRun, rows: Sequence[DrawnResult]) -> list[tuple[str, list[str]]]:
    """Rows against the copy rate, the peers' own figures, and what tuning gained."""
    names = {r.problem.index: r.problem.name for r in run.results}
    copied = [f"{name}: {rate:.2f}" for rate, name in sorted(copy_rates(run, rows))]  # the worst first
    tuned = [
        f"{names.get(one.index, f'#{one.index}')}: {one.untuned_us:.1f} us untuned, {one.tuned_us:.1f} us after "
        f"{one.seconds:.0f} s"
        if one.untuned_us and one.tuned_us
        else f"{names.get(one.index, f'#{one.index}')}: {one.note}"
        for one in run.tuned
    ]
    peers = []
    for name in dict.fromkeys(e.name for r in run.results for e in r.entries if e.name != OURS):
        found = [
            min(CAP, e.us / r.ours.us)
            for r in run.results
            for e in r.entries
            if e.name == name and e.status == "ok" and e.us and r.ours.status == "ok" and r.ours.us
        ]
        if found:
            peers.append(f"{name}: {geometric_mean(found):.2f} over {len(found)} problems, the worst {min(found):.2f}")
    rate = "" if run.copy_gbps is None else f" of {run.copy_gbps / 1e3:.2f} TB/s"
    return [
        ("Each peer's time over ours, capped at 3", peers),
        (f"Rows past 64 MiB, share{rate} of a copy", copied),
        ("Tuned", tuned),
    ]


def _what(run: DrawnRun) -> str:
    """The problems, the device, and a time limit of peers that is not the usual one."""
    limit = "" if run.peer_limit_s == LIMIT_S else f", {run.peer_limit_s:.0f} s per problem with its peers"
    return f"{len(run.results)} problems of seed {run.seed} on {run.device}{limit}"


def _exceptions(run: DrawnRun) -> list[tuple[str, list[str]]]:
    """Titles, and what is listed below each."""
    ours = [f"{r.problem.name}: {r.ours.status}: {r.ours.note}" for r in run.results if r.ours.status != "ok"]
    timed = () if run.tiny or not run.gpu else run.results
    alone = [r.problem.name for r in timed if r.ours.status == "ok" and r.ratio("compiler", "library") is None]
    peers = [
        f"{r.problem.name}: {e.name} {e.status}: {e.note}"
        for r in run.results
        for e in r.entries
        if e.name != OURS and e.status in ("failed", "wrong")
    ]
    absent = sorted({f"{name}: {why}" for r in run.results for name, why in r.absent.items()})
    return [
        ("Ours failed, was wrong or was lost", ours),
        ("No peer answered", alone),
        ("Peers that failed or were wrong", peers),
        ("Peers that were not run", absent),
    ]


def _listed(title: str, names: Iterable[str]) -> str:
    return f"{title}:\n\n" + "".join(f"- {name}\n" for name in names)
