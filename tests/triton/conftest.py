"""Puts the hand-written HTile programs (tests/htile/htile_programs.py) on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "htile"))
