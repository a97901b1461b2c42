"""Counts the candidates that each rule leaves, as numbers and as a chart (MCFuser's Figure 7).

Its example is a GEMM chain with M = N = 1024 and K = H = 512 on an A100.  The paper's counts and ours:

| after | the paper | here |
| --- | --- | --- |
| nothing | 26 expressions, 109,051,904 candidates | the same |
| rule 1 | 5 expressions | 5 (`expressions.bind` says how we read the rule) |
| rule 2 | 3 expressions | 3 |
| rule 3 | 99% of tile sizes gone | 99.96%: 1764 of 4,194,304 combinations, 5292 candidates |
| rule 4 | 40% of the rest gone, about 10**4 candidates | 39.6% gone, 3195 candidates |

The figure for rule 4 is reproduced if Eq. 1 counts elements, as it is printed, against a limit of 163 KiB; with two
bytes per element, 57% are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neptune_lab.autotune.expressions import Chain
from neptune_lab.autotune.rules import (
    TilingSpace,
    whole_space,
    within_shared_memory,
    without_duplicates,
    without_padding,
    without_partial_intermediates,
)


@dataclass(frozen=True, slots=True)
class Level:
    """The space after a rule: the rule's name, and counts of expressions, of tile choices, and of candidates."""

    rule: str
    expressions: int
    tile_choices: int
    candidates: int


def prune(chain: Chain, shared_memory: int) -> tuple[tuple[str, TilingSpace], ...]:
    """The space of a chain, whole and after each rule in turn.

    Args:
        chain: the computations that are tiled.
        shared_memory: bytes that a block can have (`DeviceFacts.shared_memory`).
    """
    space = whole_space(chain)
    levels = [("all", space)]
    for name, rule in (
        ("rule 1: duplicates", without_duplicates),
        ("rule 2: partial intermediates", without_partial_intermediates),
        ("rule 3: padding", without_padding),
        ("rule 4: shared memory", lambda s: within_shared_memory(s, shared_memory)),
    ):
        space = rule(space)
        levels.append((name, space))
    return tuple(levels)


def waterfall(chain: Chain, shared_memory: int) -> tuple[Level, ...]:
    """The counts of `prune`, one level per rule."""
    return tuple(
        Level(name, len(space.expressions), space.tile_choices, space.count)
        for name, space in prune(chain, shared_memory)
    )


def figure(levels: tuple[Level, ...]) -> dict[str, Any]:
    """The counts as a plotly figure in its JSON form; `plotly.graph_objects.Figure(...)` draws it."""
    counts = [level.candidates for level in levels]
    labels = [f"{level.candidates:,} ({level.expressions} expressions)" for level in levels]
    return {
        "data": [{"type": "bar", "x": [level.rule for level in levels], "y": counts, "text": labels}],
        "layout": {
            "title": {"text": "Candidates left after each rule"},
            "yaxis": {"type": "log", "title": {"text": "candidates"}},
            "showlegend": False,
        },
    }
