"""Puts what these tests share (definitions.py) on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
