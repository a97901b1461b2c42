"""HTile IR: tile programs between the loop-scalar IR and Triton (paper, Figure 7, section 5).

A program is a list of kernels; a kernel is a grid of program instances and a body of loops and *tile stores*; a
tile store assigns one tile expression to one tile of one tensor.  Tensors on chip and in global memory are
accessed in the same way, with the same global indices, as in the paper; what differs is `Tensor.space`.

Meaning, which the NumPy interpreter defines and the Triton emitter keeps:

- A tile's dimensions are the inner loops of the loop nest that it was translated from, in loop order; extents are
  static.  A `Slice` iterates over one such loop (its `axis`), a scalar index selects, `NewAxis` adds an extent of 1.
- Shapes combine by broadcasting of extents of 1; ranks must agree (scalars, of rank 0, combine with everything).
- A slice may reach past the end of its tensor (sizes that do not divide the tile).  A *global* read there gives 0,
  a store there is dropped.  An *on-chip* tile holds an unspecified value there: before a reduction over such an axis,
  the program replaces it by the reducer's identity (`Elementwise("where", ...)`).
- A program may have sizes that are known when it is launched (`Program.sizes`): their names stand in index expressions,
  and in `Tensor.sizes` and `GridAxis.size`; `Tensor.shape` and `GridAxis.extent` are those of a sample.
- `Reduce` drops its dimension.  `Dot(a, b, acc)` is acc + a @ b over the last two dimensions, in float32.

Node ids are stable text; `origin` is the name of the loop-IR block that a node was translated from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal as Lit
from typing import TypeAlias, get_args

from neptune_lab.hashed import Hashed, hash_once, same_constant
from neptune_lab.tensor_spec import LARGEST, signature

# -- integer index expressions ------------------------------------------------------------------------------


@hash_once
@dataclass(frozen=True, slots=True)
class Int(Hashed):
    """An integer constant."""

    value: int


@hash_once
@dataclass(frozen=True, slots=True)
class Name(Hashed):
    """A grid variable or the variable of an enclosing `For`."""

    name: str


IndexOp = Lit["+", "-", "*", "//", "%", "min", "max"]


@hash_once
@dataclass(frozen=True, slots=True)
class Arith(Hashed):
    """`a op b` on integers; `//` and `%` floor, as in Python."""

    op: IndexOp
    a: IndexExpr
    b: IndexExpr


IndexExpr: TypeAlias = Int | Name | Arith


@hash_once
@dataclass(frozen=True, slots=True)
class Slice(Hashed):
    """`start : start + extent`; the inner loop called `axis` iterates over it."""

    start: IndexExpr
    extent: int
    axis: str


@hash_once
@dataclass(frozen=True, slots=True)
class NewAxis(Hashed):
    """A new dimension of extent 1 (the paper's dimension unsqueezing)."""


Index: TypeAlias = IndexExpr | Slice | NewAxis

# -- tile expressions ---------------------------------------------------------------------------------------


@hash_once
@dataclass(frozen=True, slots=True)
class Access(Hashed):
    """`tensor[index...]`: scalar indices are squeezed, slices stay, `NewAxis` unsqueezes."""

    tensor: str
    index: tuple[Index, ...]


@hash_once
@dataclass(frozen=True, slots=True)
class Gather(Hashed):
    """`tensor[indices...]`, element by element: for reads that no `Access` expresses (strided, diagonal, a table).

    Each index is an int32 tile; they broadcast to the result's shape.  An element outside the tensor reads as 0.
    The tensor is in global memory, and the kernel does not store to it.
    """

    tensor: str
    indices: tuple[TileExpr, ...]


@hash_once
@dataclass(frozen=True, slots=True)
class Iota(Hashed):
    """The integer positions `start, start + 1, ...` of exactly one slice, as an int32 tile; `index` holds that slice
    and any `NewAxis` around it."""

    index: tuple[Slice | NewAxis, ...]


@hash_once
@dataclass(frozen=True, slots=True)
class Scalar(Hashed):
    """The value of an index expression, as an int32 of rank 0."""

    value: IndexExpr


@hash_once
@dataclass(frozen=True, slots=True)
class Literal(Hashed):
    """A constant of rank 0; infinities are floats."""

    value: float | int | bool
    dtype: str

    __eq__ = same_constant


@hash_once
@dataclass(frozen=True, slots=True)
class Elementwise(Hashed):
    """An elementwise operator on broadcast operands; the result's dtype is stated, never inferred.

    `scalar_ops` lists the operators, such as add, lt, where and exp.  max, min and reductions with them are NaN if an
    operand is.  div_rn and sqrt_rn round as IEEE 754 requires; div and sqrt on a GPU may not.
    """

    op: str
    args: tuple[TileExpr, ...]
    dtype: str


@hash_once
@dataclass(frozen=True, slots=True)
class Cast(Hashed):
    """Conversion of every element to `dtype`."""

    arg: TileExpr
    dtype: str


@hash_once
@dataclass(frozen=True, slots=True)
class Permute(Hashed):
    """Dimensions reordered: result dimension n is dimension `order[n]` of `arg`."""

    arg: TileExpr
    order: tuple[int, ...]


@hash_once
@dataclass(frozen=True, slots=True)
class Grouped(Hashed):
    """The last dimension as two: groups of `size` neighbours, [..., n] as [..., n // size, size]; `size` divides n."""

    arg: TileExpr
    size: int


Reducer = Lit["sum", "max", "min", "prod"]


@hash_once
@dataclass(frozen=True, slots=True)
class Reduce(Hashed):
    """`arg` reduced over dimension `dim`, which is dropped."""

    op: Reducer
    arg: TileExpr
    dim: int


# Dtypes of a dot's operands.
DOT_DTYPES = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32")


@hash_once
@dataclass(frozen=True, slots=True)
class Dot(Hashed):
    """Matrix product of [..., m, k] and [..., k, n], accumulated in float32; added to `acc` if there is one."""

    a: TileExpr
    b: TileExpr
    acc: TileExpr | None = None


TileExpr: TypeAlias = Access | Gather | Iota | Scalar | Literal | Elementwise | Cast | Permute | Grouped | Reduce | Dot

# -- statements and programs --------------------------------------------------------------------------------

Space = Lit["input", "output", "global", "chip"]
SPACES: tuple[Space, ...] = get_args(Space)


@hash_once
@dataclass(frozen=True, slots=True)
class Tensor(Hashed):
    """A tensor and its memory space.

    Args:
        name: unique in the program, a Python identifier.
        shape: full shape, static.
        dtype: "float16", "bfloat16", "float32", "float64", "int32", "bool", ...
        space: "input" and "output" are arguments; "global" is allocated between kernels by the launcher; "chip"
            is a tile that lives in registers or shared memory inside one kernel.
        strides: elements from one index of each dimension to the next; None: contiguous.  A tile has none.
        sizes: the shape in terms of the program's sizes, of which `shape` is the sample's; None: `shape`.
        steps: the strides in terms of these, each a constant or a multiple of one size; None: `strides`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: Space
    strides: tuple[int, ...] | None = None
    sizes: tuple[IndexExpr, ...] | None = None
    steps: tuple[IndexExpr, ...] | None = None


@hash_once
@dataclass(frozen=True, slots=True)
class Store(Hashed):
    """`target = value`: a tile store. If there is a `mask`, elements whose mask is false are not stored."""

    node_id: str
    target: Access
    value: TileExpr
    origin: str
    mask: TileExpr | None = None


Part = Lit["", "left edge", "interior", "right edge", "visited", "whole"]


@hash_once
@dataclass(frozen=True, slots=True)
class For(Hashed):
    """A serial loop of a kernel: `for var in range(start, stop)`; `origin` names the block whose loop it was.

    `part` says which part of a partitioned loop this is; a part is not partitioned again.  `within`, if there is one,
    are two int32 elements, on chip or in global memory, where an earlier kernel stored them: iterations before the
    first, and from the second on, are left out.  `without`, if there is one, are two more: of those left by `within`,
    iterations from the first to before the second are left out too.  `listed`, if there is one, are two elements in
    global memory too: an entry of a list, whose last index is `place_in_list(var)`, and the number of entries.  The
    variable then takes the values of the entries, in their order; each is one that it takes without a list.  A loop has
    bounds or a list at most.
    """

    node_id: str
    var: str
    start: IndexExpr
    stop: IndexExpr
    body: tuple[Stmt, ...]
    origin: str
    part: Part = ""
    within: tuple[Access, Access] | None = None
    without: tuple[Access, Access] | None = None
    listed: tuple[Access, Access] | None = None


Stmt: TypeAlias = Store | For


def place_in_list(var: str) -> str:
    """The name of the place in its list of a loop's variable."""
    return f"{var}_place"


@hash_once
@dataclass(frozen=True, slots=True)
class GridAxis(Hashed):
    """One dimension of the launch grid: program_id(n) is called `var` and runs over `extent`, or over `size` if that is
    known at the launch."""

    var: str
    extent: int
    size: IndexExpr | None = None


@hash_once
@dataclass(frozen=True, slots=True)
class FoundTiles(Hashed):
    """For each tile of one vector, the tiles of another from the first to the last that may have an equal element.

    Args:
        first, last: the tensors that have the number of the first one, and of the last one plus 1.
        rows, columns: the inputs, of one dimension each.
        row_extent, column_extent: the elements of a tile; the tiles of a vector follow on each other from its start.
    """

    first: str
    last: str
    rows: str
    columns: str
    row_extent: int
    column_extent: int


@hash_once
@dataclass(frozen=True, slots=True)
class Kernel(Hashed):
    """One launch: at most three grid axes (x, y, z in this order), and a body.

    num_warps and num_stages are hints for the emitter's launcher (None: Triton's defaults).  `finds` is all that the
    kernel computes, by itself or with the other kernels that have the same: a launcher that has the tiles from
    elsewhere leaves these out.
    """

    node_id: str
    name: str
    grid: tuple[GridAxis, ...]
    body: tuple[Stmt, ...]
    num_warps: int | None = None
    num_stages: int | None = None
    finds: FoundTiles | None = None


@hash_once
@dataclass(frozen=True, slots=True)
class Size(Hashed):
    """A size that is known when the program is launched.

    Args:
        name: in index expressions.
        sample: its value in the shapes that the program states.
        most: its largest value.
    """

    name: str
    sample: int
    most: int = LARGEST


@hash_once
@dataclass(frozen=True, slots=True)
class Program(Hashed):
    """Kernels in launch order over shared tensors; `inputs` and `outputs` fix the calling order.

    `sizes` are the sizes that are known at the launch, each the size of a dimension of an input.
    """

    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    sizes: tuple[Size, ...] = ()

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`; KeyError if there is none."""
        return _by_name(self)[name]

    def __repr__(self) -> str:
        """Its signature alone; `hashed.full_text` has all of it, for digests."""
        shown = signature(self.name, self.tensors, self.inputs, self.outputs)
        kernels = f"{len(self.kernels)} kernel{'s' if len(self.kernels) != 1 else ''}"
        return f"<Tile program {shown}, {kernels}; print it to see its tiles>"

    def __str__(self) -> str:
        """The text of HTile."""
        from neptune_lab.htile.printer import to_text

        return to_text(self).rstrip("\n")


@lru_cache(maxsize=64)
def _by_name(program: Program) -> Mapping[str, Tensor]:
    return {tensor.name: tensor for tensor in reversed(program.tensors)}  # (of two with one name, the first)
