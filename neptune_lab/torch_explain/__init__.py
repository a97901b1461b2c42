"""What becomes of a model: the partition of each of its graphs, in words; `nl.explain` shows it."""

from neptune_lab.runtime.device import ask_for_interpreter

ask_for_interpreter()  # before the imports below, since torch's tracer imports Triton

from neptune_lab.torch_explain.capture import explained  # noqa: E402
from neptune_lab.torch_explain.explanation import Explanation, byte_text, count  # noqa: E402
from neptune_lab.torch_explain.parts import Part, Reason  # noqa: E402

__all__ = ["Explanation", "Part", "Reason", "byte_text", "count", "explained"]
