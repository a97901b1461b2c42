"""The inputs of an operator that a mod or a traced function captured: a call may leave them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neptune_lab.operators import Operator


@dataclass(slots=True)
class CapturedInputs:
    """The captured values of an operator, as tensors on each device that asked for them.

    Args:
        operator: whose last inputs may be captured.
    """

    operator: Operator
    _on: dict[Any, tuple[Any, ...]] = field(default_factory=dict)

    def appended(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """The tensors of a call, followed by the captured ones if the call left these out.

        The values are those at the time of the definition, copied once to the first tensor's device.
        """
        captured = self.operator.captured
        if not captured or not tensors or len(tensors) != len(self.operator.inputs) - len(captured):
            return tensors
        from neptune_lab.runtime import to_tensor

        device = getattr(tensors[0], "device", "cpu")
        if device not in self._on:
            self._on[device] = tuple(to_tensor(array, device) for array in captured.values())
        return (*tensors, *self._on[device])


__all__ = ["CapturedInputs"]
