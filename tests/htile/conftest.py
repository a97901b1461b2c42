"""Puts the hand-written programs (htile_programs.py) on the path; tests/triton does the same."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
