"""The inputs of a call in the operator's order: some may be given by name, and captured ones left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import LaunchError
from neptune_lab.loop_ir.tree import nearest

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
    _held: tuple[Any, ...] = ()

    def hold(self) -> CapturedInputs:
        """Makes tensors of the values now: torch.compile cannot trace that."""
        from neptune_lab.runtime import to_tensor

        self._held = tuple(to_tensor(array, "cpu") for array in self.operator.captured.values())
        return self

    def in_order(self, tensors: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The tensors of a call in the operator's order; the captured ones stay out if none of them is given.

        Args:
            tensors: the first inputs.
            named: others by their names.

        Raises:
            LaunchError: an input is not given or given twice, or there is none of that name.
        """
        op, names = self.operator, [t.name for t in self.operator.inputs]
        placed = names[: len(tensors)]
        for name in named:
            if name not in names:
                raise LaunchError(f"{op.name} has no input {name!r}", help=nearest(name, names, "inputs"))
            if name in placed:
                raise LaunchError(
                    f"{op.name} got {name} twice: as argument {names.index(name) + 1} and by its name",
                    help=f"the inputs in order: {', '.join(names)}",
                )
        without = () if any(name in named for name in op.captured) else op.captured
        wanted = [name for name in names[len(tensors) :] if name not in without]
        missing = [name for name in wanted if name not in named]
        if missing:
            raise LaunchError(
                f"{op.name} got no {', '.join(missing)}", help=f"give each of its inputs: {', '.join(names)}"
            )
        return (*tensors, *(named[name] for name in wanted))

    def appended(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """The tensors of a call, followed by the captured ones if the call left these out.

        The values are those at the time of the definition, copied once to the first tensor's device.
        """
        captured = self.operator.captured
        if not captured or not tensors or len(tensors) != len(self.operator.inputs) - len(captured):
            return tensors
        from neptune_lab.runtime import to_tensor
        from neptune_lab.runtime.refusals import is_traced

        device = getattr(tensors[0], "device", "cpu")
        if self._held and is_traced(tensors):
            return (*tensors, *(tensor.to(device) for tensor in self._held))
        if device not in self._on:
            self._on[device] = tuple(to_tensor(array, device) for array in captured.values())
        return (*tensors, *self._on[device])


def for_other_sizes(first: Operator, other: Operator, tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors of a call in the order of the operator that the same function has at other sizes, where it may
    capture other tensors, or the same ones in another order.

    Args:
        first: the operator that is called.
        other: the operator for the call's sizes.
        tensors: the inputs of `first`, in order; all that it captured may be left out.

    Raises:
        LaunchError: the wrong number of tensors, or `other` captured a tensor that is no input of `first`.
    """
    own, names = len(first.inputs) - len(first.captured), [*first.captured]
    if len(tensors) == own:
        return tensors
    if len(tensors) != len(first.inputs):
        raise LaunchError(
            f"{first.name} got {len(tensors)} arguments, expected {own}: "
            f"{', '.join(t.name for t in first.inputs[:own])}",
            help="give the operator's inputs in this order",
        )
    return *tensors[:own], *(tensors[own + names.index(_same_captured(first, other, name))] for name in other.captured)


def _same_captured(first: Operator, other: Operator, name: str) -> str:
    """The name in `first` of a tensor that `other` captured: names may be those of the order of first use."""
    for known, tensor in first.holds.items():
        if tensor is other.holds.get(name):
            return known
    shapes = ", ".join(str(t.shape) for t in other.inputs[: len(other.inputs) - len(other.captured)])
    raise LaunchError(
        f"{first.name} got the tensors that it captured, and at the shapes {shapes} it reads {name} of shape "
        f"{other.captured[name].shape}, which is none of them",
        help=f"leave out {', '.join(first.captured)}, or make an operator for these sizes: nl.from_torch(...)",
    )


__all__ = ["CapturedInputs", "for_other_sizes"]
