"""Operators: plain definitions in TVM's tensor expressions, each with a float64 reference.

A definition says *what* is computed, stage by stage, and nothing about order, fusion or tiles.  Making an operator
needs NumPy only; TVM is loaded when its `program` is first asked for.

    >>> from neptune_lab.operators import attention
    >>> op = attention.causal(batch=1, heads=2, seq=8, head_dim=4)
    >>> op.name, [t.name for t in op.inputs], op.outputs[0].shape
    ('attention_causal', ['q', 'k', 'v'], (1, 2, 8, 4))
"""

from __future__ import annotations

from collections.abc import Callable

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import attention, math, softmax
from neptune_lab.operators.base import Operator, TensorSpec

# What the command line calls them; every value makes an Operator from keyword arguments.
OPERATORS: dict[str, Callable[..., Operator]] = {
    "attention.causal": attention.causal,
    "attention.general": attention.general,
    "attention.global": attention.global_,
    "softmax.figure1": softmax.figure1,
}

__all__ = ["OPERATORS", "Operator", "TensorSpec", "attention", "find", "math", "softmax"]


def find(name: str) -> Callable[..., Operator]:
    """The function that makes the operator called `name`, such as "attention.causal"."""
    if name not in OPERATORS:
        raise DefinitionError(f"there is no operator {name!r}", help=f"one of {', '.join(OPERATORS)}")
    return OPERATORS[name]
