"""Name, shape and dtype of an input or output, the same for definitions, kernels and measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.strict.typed import Extent, Name, OneOf

DType: TypeAlias = Annotated[str, OneOf(DTYPES)]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, static shape and dtype of an input or output; `dtype` as torch spells it after its dot ("float16")."""

    name: Name
    shape: tuple[Extent, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


__all__ = ["DType", "TensorSpec"]
