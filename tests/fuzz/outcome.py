"""What becomes of a case."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What became of a case.

    Args:
        verdict: "accepted", "refused", "wrong", "foreign" (an exception that is not ours) or "unclear" (a refusal of
            ours without a node or a help); the runner adds "crashed" and "late".
        fused: whether reductions were fused.
        detail: the class and the text of the error, or what is wrong.
        met: how often each primitive and each pass took part.
    """

    verdict: str
    fused: bool = False
    detail: str = ""
    met: Counter[str] = field(default_factory=Counter)


class Wrong(Exception):
    """A result that breaks the promise."""
