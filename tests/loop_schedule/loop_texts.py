"""Figures of loop programs for goldens: what is drawn is also printed in full and read back."""

from __future__ import annotations

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.parser import from_text
from neptune_lab.loop_ir.printer import to_text
from neptune_lab.loop_ir.render import as_figure


def same(program: Program) -> str:
    """The full text of a program, which is read back as the same."""
    text = to_text(program)
    read = from_text(text)
    assert read == program
    assert repr(read.body) == repr(program.body)  # 1 and 1.0 are equal
    assert to_text(read) == text
    return text


def figure(program: Program) -> str:
    """The figure of a program whose full text is read back."""
    same(program)
    return as_figure(program)
