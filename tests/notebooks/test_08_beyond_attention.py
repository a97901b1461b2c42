"""What lies beyond attention."""

from __future__ import annotations

from notebook_checks import EveryNotebook


class TestBeyondAttention(EveryNotebook):
    name = "08_beyond_attention"
