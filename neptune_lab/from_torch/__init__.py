"""Operators from plain PyTorch: `from_torch` traces a function and makes stages of its ATen operations."""

from neptune_lab.runtime.device import ask_for_interpreter

ask_for_interpreter()  # before the imports below, since torch's tracer imports Triton

from neptune_lab.from_torch.operator import from_torch  # noqa: E402

__all__ = ["from_torch"]
