"""HTile IR, the tile programs between loop-scalar IR and Triton (paper, section 5): nodes, text, checks, meaning."""

from __future__ import annotations

from neptune_lab.htile.interpret import interpret
from neptune_lab.htile.parser import from_text
from neptune_lab.htile.printer import PrintedLine, print_program, to_text
from neptune_lab.htile.shapes import dtype_of, shape_of
from neptune_lab.htile.verify import verify

__all__ = ["PrintedLine", "dtype_of", "from_text", "interpret", "print_program", "shape_of", "to_text", "verify"]
