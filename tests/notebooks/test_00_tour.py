"""The tour."""

from __future__ import annotations

from notebook_checks import EveryNotebook


class TestTour(EveryNotebook):
    name = "00_tour"
