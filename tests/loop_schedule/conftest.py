"""Puts the small operators (small_operators.py) on the path; tests/loop_ir and tests/loop_to_htile do the same."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
