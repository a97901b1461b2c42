"""Tuning in the page: a run of `nl.tune`, as states that the page draws. A cancel keeps what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.records import Record
    from neptune_lab.target import Target
    from neptune_lab.tuning.tune import Attempt, TuneProgress, TuneResult

State = dict[str, Any]

# The longest run that can be started in the page, in seconds.
MOST_SECONDS = 24 * 3600.0
# Rows of the table of the fastest candidates, and reasons of failures.
ROWS, REASONS = 8, 4
# The largest space whose candidates are counted rule by rule, which takes 0.2 ms for each combination.
COUNTED = 20_000


def run(op: Operator, seconds: float, *, cancel: Callable[[], bool], report: Callable[[State], None]) -> State:
    """Tunes an operator on the GPUs of this machine.

    Args:
        op: what is tuned.
        seconds: time limit.
        cancel: whether the page wants it to end.
        report: takes the state at the start, after each candidate, and when the phase changes.

    Returns:
        The last state: "done", "cancelled" or "failed", with the fastest candidates.
    """
    from neptune_lab.tuning.tune import tune

    kept = _Kept(op)

    def told(now: TuneProgress) -> None:
        kept.take(now)
        report({**kept.state, "state": "running"})

    try:
        result = tune(op, seconds=seconds, progress=told, cancel=cancel, command="nl.explore")
    except NeptuneError as error:
        return {
            **kept.state,
            "state": "cancelled" if cancel() else "failed",
            "message": error.reason,
            "help": error.help,
        }
    return {**kept.state, **_ended(result), "state": "cancelled" if result.ended == "cancelled" else "done"}


class _Kept:
    """What a run has told so far."""

    def __init__(self, op: Operator) -> None:
        self._op = op
        self._reasons: Counter[str] = Counter()
        self._ranked: dict[str, tuple[float, State]] = {}
        self._times: list[float | None] = []
        self.state: State = {"operator": op.name, "space": None, "times": [], "rows": [], "reasons": []}

    def take(self, now: TuneProgress) -> None:
        if now.latest is not None:
            self._attempt(now.latest)
        if now.phase == "searching" and self.state["space"] is None and now.target is not None:
            # The workers are busy compiling the first candidates: there is time to count.
            self.state["space"] = space_of(self._op, now.target)
        self.state |= {
            "phase": now.phase,
            "seconds": round(now.seconds, 2),
            "limit": now.limit,
            "device": now.device,
            "tried": now.tried,
            "failed": now.failed,
            "best": None if now.best is None else row(now.best),
            "times": list(self._times),
            "rows": [made for _, made in sorted(self._ranked.values(), key=lambda pair: pair[0])[:ROWS]],
            "reasons": reasons(self._reasons),
        }

    def _attempt(self, tried: Attempt) -> None:
        self._times.append(tried.us)
        if tried.us is None or tried.record is None:
            self._reasons[tried.failure] += 1
        else:
            self._ranked[tried.record.source] = (tried.us, row(tried.record))


def reasons(counted: Counter[str]) -> list[State]:
    """Why candidates have no time, the most frequent reason first."""
    return [{"count": n, "why": why} for why, n in counted.most_common(REASONS)]


def _ended(result: TuneResult) -> State:
    """The fastest candidates by their last times, and how the run ended."""
    timed = [r for r in result.records if r.us is not None]
    return {
        "ended": result.ended,
        "seconds": round(result.seconds, 2),
        "best": row(result.best),
        "rows": [row(record) for record in timed[:ROWS]],
        "unsaved": len(result.unsaved),
    }


def row(record: Record) -> State:
    """A measured candidate as the page takes it."""
    from neptune_lab.pipeline import Choice

    taken = [r for r in record.resources if r.registers is not None]
    return {
        "choice": str(Choice.from_json(record.candidate)),
        "candidate": dict(record.candidate),
        "us": record.us,
        "low": record.low,
        "high": record.high,
        "registers": max((r.registers or 0 for r in taken), default=None),
        "spills": max((r.spills or 0 for r in taken), default=None),
        "shared": max((r.shared or 0 for r in taken), default=None),
    }


def space_of(op: Operator, target: Target) -> State:
    """How many combinations of options there are, and how many are left after each rule; no rules of a large space."""
    from neptune_lab.autotune import limits
    from neptune_lab.autotune.space import space

    whole = space(op, target)
    made: State = {"size": whole.size, "levels": []}
    if whole.size > COUNTED:
        return made
    left, counts = whole.size, whole.refused()
    for name, says in _rules((*limits.RULES, *limits.GLUON_RULES)):
        if counts[name]:
            left -= counts[name]
            made["levels"].append({"rule": name.replace("_", " "), "says": says, "left": left})
    return made


def _rules(rules: Iterable[Callable[..., Any]]) -> list[tuple[str, str]]:
    """Each rule's name, and its first sentence."""
    return [(rule.__name__, " ".join((rule.__doc__ or "").split()).partition(". ")[0].rstrip(".")) for rule in rules]


__all__ = ["run", "space_of"]
