"""What the small operators beside this are written with, and the table of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te

from neptune_lab.operators import custom
from neptune_lab.operators.base import Operator

Tensors = tuple[list[Any], list[Any]]
ODD: dict[str, Callable[[], Tensors]] = {}

C = te.compute


def odd(define: Callable[[], Tensors]) -> Callable[[], Tensors]:
    ODD[define.__name__] = define
    return define


def operator(name: str) -> Operator:
    """The operator called `name`."""
    return custom(name, *ODD[name]())


def rx(extent: int, name: str) -> Any:
    return te.reduce_axis((0, extent), name=name)


def X(shape: tuple[int, ...], name: str = "x", dtype: str = "float32") -> Any:
    return te.placeholder(shape, dtype, name=name)
