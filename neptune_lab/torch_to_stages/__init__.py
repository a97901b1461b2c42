"""Operators from plain PyTorch: `from_torch` traces a function and makes stages of its ATen operations; `from_graph`
takes a graph of them."""

from neptune_lab.runtime.device import ask_for_interpreter

ask_for_interpreter()  # before the import below, since torch's tracer imports Triton

from neptune_lab.torch_to_stages.operator import from_graph, from_torch  # noqa: E402

__all__ = ["from_graph", "from_torch"]
