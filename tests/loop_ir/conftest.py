"""Puts the small operators (tests/loop_schedule/small_operators.py) on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "loop_schedule"))
