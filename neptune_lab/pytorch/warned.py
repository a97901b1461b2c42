"""Warnings that a process prints once each, at the line that called into this package."""

from __future__ import annotations

import sys
import warnings

import torch

_warned: set[str] = set()
_INSIDE = "neptune_lab.pytorch", "torch._dynamo"  # modules between a user's line and a warning


def warn_once(about: str, message: str) -> None:
    """Warns, unless this process has warned of `about` before."""
    if about not in _warned:
        _warned.add(about)
        _warn(message)


@torch.compiler.assume_constant_result  # Dynamo calls it once, while it traces
def _warn(message: str) -> None:
    """Warns at the line that called into this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
