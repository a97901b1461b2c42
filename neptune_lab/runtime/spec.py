"""The runtime's view of a generated module, independent of the compiler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from neptune_lab.strict.typed import OMIT_DEFAULT, Extent, Line, Name, Words
from neptune_lab.tensor_spec import TensorSpec, signature

# Name, smallest and largest of each size that is known at the launch only.
Ranges: TypeAlias = tuple[tuple[Name, Extent, Extent], ...]


@dataclass(frozen=True, slots=True)
class TileLaunches:
    """Launches that find, for each tile of one vector, the tiles of another from the first to the last that may have an
    equal element.

    Args:
        kernels: that are launched for nothing else.
        first, last: the launcher's tensors for the number of the first one, and of the last one plus 1.
        rows, columns: the inputs, of one dimension each.
        row_extent, column_extent: the elements of a tile; the tiles of a vector follow on each other from its start.
    """

    kernels: tuple[Name, ...]
    first: Name
    last: Name
    rows: Name
    columns: Name
    row_extent: Extent
    column_extent: Extent


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A generated module and how it is called.

    Args:
        name: name of the program, for messages and for the file that the module is written to.
        entry: the function of the module that takes the inputs in order and returns the outputs.
        text: the module, complete: it needs torch and Triton only.
        inputs, outputs: in calling order.
        ranges: of the sizes that are known at the launch only.
        tiles: launches that a caller who knows what they find may leave out (`packed_tiles`).
    """

    name: Line
    entry: Name
    text: Annotated[str, Words(4 << 20)]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Ranges = field(default=(), metadata=OMIT_DEFAULT)
    tiles: tuple[TileLaunches, ...] = field(default=(), metadata=OMIT_DEFAULT)

    @property
    def signature(self) -> str:
        """Its function, inputs and outputs in a line."""
        tensors = (*self.inputs, *self.outputs)
        return signature(self.entry, tensors, [t.name for t in self.inputs], [t.name for t in self.outputs])

    def __repr__(self) -> str:
        """Its signature alone; `hashed.full_text` has all of it, for digests."""
        lines = self.text.count("\n")
        return f"<KernelSpec {self.signature}, {lines} lines; print its text to see them>"
