"""What a run of the fuzzer found, counted."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

FAILURES = ("wrong", "foreign", "crashed", "late", "unclear")

# A run of 10,000 cases meets every primitive and every pass so often.
OFTEN = 25


@dataclass(frozen=True)
class Failure:
    """A case that failed: the seed that draws it again."""

    seed: str
    verdict: str
    detail: str


@dataclass
class Report:
    """Counts of a run; `add` takes the records that workers send and that the state file holds."""

    seed: str
    verdicts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    fused: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, record: dict[str, Any]) -> None:
        """One case's record."""
        verdict = record["verdict"]
        self.verdicts[verdict] += 1
        self.kinds[record.get("kind", "?")] += 1
        self.fused += bool(record.get("fused")) and verdict == "accepted"
        self.met.update(record.get("met", {}))
        self.seconds += record.get("seconds", 0.0)
        if verdict == "refused":
            self.refusals[record["detail"].partition(":")[0]] += 1
        if verdict in FAILURES:
            self.failures.append(Failure(f"{self.seed}:{record['n']}", verdict, record["detail"]))

    def text(self) -> str:
        """The counts, and a line for each failure."""
        tried = self.verdicts.total()
        counts = ", ".join(f"{self.verdicts[v]} {v}" for v in ("accepted", "refused", *FAILURES))
        lines = [f"seed {self.seed}: {tried} tried, {counts}; {self.fused} accepted and fused"]
        lines.append(f"CPU {self.seconds:.0f} s in cases, {self.seconds / max(tried, 1):.3f} s per case")
        lines.append("kinds: " + ", ".join(f"{k} {n}" for k, n in sorted(self.kinds.items())))
        if self.refusals:
            lines.append("refused by: " + ", ".join(f"{k} {n}" for k, n in self.refusals.most_common()))
        for what in ("primitive", "pass", "refused"):
            found = {k.removeprefix(f"{what} "): n for k, n in self.met.items() if k.startswith(f"{what} ")}
            names = ", ".join(f"{k} {n}" for k, n in sorted(found.items()))
            lines.append(f"{'refused steps' if what == 'refused' else f'{what} met'}: {names}")
        if rare := _rare(self.met):
            lines.append(f"met less than {OFTEN} times: {rare}")
        lines += [f"{f.verdict} {f.seed}: {f.detail.splitlines()[0][:300]}" for f in self.failures[:40]]
        if len(self.failures) > 40:
            lines.append(f"and {len(self.failures) - 40} more failures")
        return "\n".join(lines)


def _rare(met: Counter[str]) -> str:
    """The primitives and passes that were met less than `OFTEN` times, with how often."""
    from neptune_lab.htile_passes import ALL_PASSES
    from neptune_lab.loop_schedule import PRIMITIVES

    names = [f"primitive {name}" for name in PRIMITIVES] + [f"pass {name}" for name in ALL_PASSES]
    return ", ".join(f"{name} {met[name]}" for name in names if met[name] < OFTEN)
