"""What the notebooks of the course share: ways to show things, exercises that check themselves, and recorded runs.

One module per notebook holds its exercises (`tour`, `rolling_update`, …); nothing here computes what the compiler's own
record does not say.
"""

from __future__ import annotations

from neptune_widgets.course.exercise import Exercise, NotYet, Verdict, exercise
from neptune_widgets.course.measured import Run, measured
from neptune_widgets.course.show import show_changes, show_code, show_figure, show_graph, show_maths, show_text

__all__ = [
    "Exercise",
    "NotYet",
    "Run",
    "Verdict",
    "exercise",
    "measured",
    "show_changes",
    "show_code",
    "show_figure",
    "show_graph",
    "show_maths",
    "show_text",
]
