"""The tensors that a direct launcher makes: those that it returns, and one allocation for all others."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Bytes that each part of the allocation for intermediate tensors is a multiple of.
_PART = 256


class Unknown(Exception):
    """A launcher has a statement that `direct` does not rewrite."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A tensor that a launcher makes.

    Args:
        strides: None: contiguous.
    """

    shape: ast.Tuple
    strides: ast.expr | None
    dtype: Any


def allocation_of(call: ast.Call) -> Allocation:
    """What a call of `torch.empty` or `torch.empty_strided` makes; raises `Unknown` for another call."""
    import torch

    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    match call.func, call.args, keywords.get("dtype"):
        case (
            ast.Attribute(value=ast.Name(id="torch"), attr="empty" | "empty_strided"),
            [ast.Tuple() as shape, *strides],
            ast.Attribute(value=ast.Name(id="torch"), attr=dtype),
        ) if keywords.keys() == {"dtype", "device"}:
            return Allocation(shape, strides[0] if strides else None, getattr(torch, dtype))
    raise Unknown


@dataclass(slots=True)
class Memory:
    """The lines that make tensors on one device, and the names that they read.

    `p_x`, with the prefix, is the variable for the address of the tensor x.
    """

    prefix: str
    device: Any
    names: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import torch

        self.names |= {f"{self.prefix}made": maker(self.device), f"{self.prefix}uint8": torch.uint8}

    def together(self, parts: Mapping[str, Allocation]) -> list[str]:
        """One allocation for several tensors."""
        if not parts:
            return []
        if any(part.strides is not None for part in parts.values()):
            raise Unknown
        prefix = self.prefix
        lines, offset, variable = [], 0, ""
        offsets: dict[str, str] = {}
        for name, part in parts.items():
            offsets[name] = f"{variable} + {offset}" if variable else str(offset)
            if all(isinstance(extent, ast.Constant) for extent in part.shape.elts):
                size = math.prod(ast.literal_eval(part.shape)) * part.dtype.itemsize
                offset += -(-size // _PART) * _PART
                continue
            size = " * ".join(f"({ast.unparse(extent)})" for extent in part.shape.elts)
            before, variable = variable, f"{prefix}o_{name}"
            start = f"{before} + {offset}" if before else str(offset)
            lines.append(f"{variable} = {start} + (({size}) * {part.dtype.itemsize} + {_PART - 1} & -{_PART})")
            offset = 0
        total = f"{variable} + {offset}" if variable else str(offset)
        return [
            *lines,
            f"{prefix}m = {prefix}made(({total},), (1,), {prefix}uint8)",
            f"{prefix}a = {prefix}m.data_ptr()",
            *(f"{prefix}p_{name} = {prefix}a + {start}" for name, start in offsets.items()),
        ]

    def alone(self, name: str, made: Allocation) -> list[str]:
        """A tensor of its own."""
        self.names[f"{self.prefix}t_{name}"] = made.dtype
        parts = made.shape, dense(made.shape) if made.strides is None else made.strides
        shape, strides = (self._tuple(f"{self.prefix}v_{name}_{n}", part) for n, part in enumerate(parts))
        return [
            f"{name} = {self.prefix}made({shape}, {strides}, {self.prefix}t_{name})",
            f"{self.prefix}p_{name} = {name}.data_ptr()",
        ]

    def _tuple(self, name: str, value: ast.expr) -> str:
        """A name for a tuple of constants; another one is written out."""
        try:
            self.names[name] = ast.literal_eval(value)
        except ValueError:
            return ast.unparse(value)
        return name


def maker(device: Any) -> Callable[..., Any]:
    """Makes a tensor of a shape, strides and a dtype on the device, which is the current one if it is a GPU."""
    import torch

    # (what Inductor's code makes its tensors by: without torch's dispatcher, in less than half of the time)
    dynamo: Any = getattr(torch._C, "_dynamo", None)
    own: Any = getattr(getattr(dynamo, "guards", None), "_empty_strided_cuda", None)
    if device.type == "cuda" and own is not None:
        return own
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)


def dense(shape: ast.Tuple) -> ast.Tuple:
    """The strides of a contiguous tensor.

    >>> made = ast.parse("(2, n + 1, 8)", mode="eval").body
    >>> ast.unparse(dense(made))
    '((n + 1) * 8, 8, 1)'
    """
    strides: list[ast.expr] = []
    step: ast.expr = ast.Constant(1)
    for extent in reversed(shape.elts):
        strides.insert(0, step)
        match extent, step:
            case ast.Constant(int(size)), ast.Constant(int(so_far)):
                step = ast.Constant(size * so_far)
            case _, ast.Constant(1):
                step = extent
            case _:
                step = ast.BinOp(extent, ast.Mult(), step)
    return ast.Tuple(strides, ast.Load())


__all__ = ["Allocation", "Memory", "Unknown", "allocation_of", "dense", "maker"]
