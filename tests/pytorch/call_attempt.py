"""One random call, by its seed: drawn, judged, and shrunk if it is bad."""

from __future__ import annotations

from dataclasses import dataclass

from call_cases import draw
from call_judge import Verdict, judge, shrunk

BAD = ("wrong", "unclear", "crashed")


@dataclass(frozen=True)
class Judged:
    """A seed's verdict, and the case in few lines if it is bad."""

    seed: int
    verdict: Verdict
    text: str = ""

    @property
    def fatal(self) -> bool:
        """Ends the process that judged it: an error on a GPU stays with its process."""
        return self.verdict.word == "crashed"


def attempt(task: tuple[int, bool]) -> Judged:
    """Draws a case and judges it.

    Args:
        task: the seed, and whether a bad case is shrunk.
    """
    seed, shrink = task
    case = draw(seed)
    verdict = judge(case)
    if verdict.word not in BAD:
        return Judged(seed, verdict)
    if shrink:
        case = shrunk(case)
        verdict = judge(case)
    return Judged(seed, verdict, str(case))
