"""Shape and dtype of tile expressions: the rules that verifier and emitter share.

There is no implicit promotion: an operator's operands have the dtype that the node states, so every rounding is a
`Cast` in the program.
"""

from __future__ import annotations

import math
from typing import assert_never

from neptune_lab.errors import TileError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import region, tile_dims
from neptune_lab.scalar_ops import ScalarOp, in_htile, rows
from neptune_lab.strict.dtypes import DTYPES, EIGHTS, FLOATS, INTEGERS

COMPARISONS = frozenset(row.name for row in rows("htile") if row.kind == "comparison")
LOGICAL = frozenset(row.name for row in rows("htile") if row.kind == "logic" and row.arity == 2)

Shape = tuple[int, ...]


def arity(op: str) -> int:
    """How many operands the elementwise operator `op` takes; TileError for an unknown one."""
    return operation(op).arity


def operation(op: str) -> ScalarOp:
    """The row of the elementwise operator `op` in the table of scalar operations; TileError for an unknown one."""
    row = in_htile(op)
    if row is None:
        raise TileError(f"{op!r} is not an elementwise operator of HTile IR")
    return row


def find_tensor(program: ir.Program, name: str) -> ir.Tensor:
    """The tensor called `name`; TileError if there is none."""
    try:
        return program.tensor(name)
    except KeyError:
        known = ", ".join(tensor.name for tensor in program.tensors)
        raise TileError(f"tensor {name!r} is not declared; declared are {known}") from None


def shape_of_access(access: ir.Access) -> Shape:
    """Extents of the tile that `access` selects."""
    return tuple(dim.extent if isinstance(dim, ir.Slice) else 1 for dim in tile_dims(access.index))


def broadcast(*shapes: Shape) -> Shape:
    """The common shape: extents agree or are 1, ranks agree; rank 0 combines with everything.

    Raises:
        TileError: the shapes do not broadcast.

    >>> broadcast((128, 1), (1, 64), ())
    (128, 64)
    """
    result: Shape = ()
    for shape in shapes:
        if not shape or not result:
            result = shape or result
            continue
        if len(shape) != len(result):
            raise TileError(
                f"operands of shapes {result} and {shape} differ in rank; expected equal ranks",
                help="insert NewAxis in the index of the operand of smaller rank",
            )
        if any(a != b and 1 not in (a, b) for a, b in zip(result, shape, strict=True)):
            raise TileError(f"operands of shapes {result} and {shape} do not broadcast; expected equal extents, or 1")
        result = tuple(b if a == 1 else a for a, b in zip(result, shape, strict=True))
    return result


def shape_of(expr: ir.TileExpr, program: ir.Program) -> Shape:
    """Static shape of the tile `expr`; TileError if its operands do not fit."""
    match expr:
        case ir.Access():
            return _shape_of_checked_access(expr, program)
        case ir.Gather(tensor=name, indices=indices):
            tensor = find_tensor(program, name)
            if len(indices) != len(tensor.shape):
                raise TileError(
                    f"{name} of shape {tensor.shape} is gathered by {len(indices)} indices; expected "
                    f"{len(tensor.shape)}"
                )
            return broadcast(*(shape_of(index, program) for index in indices))
        case ir.Iota(index=index):
            slices = [part for part in index if isinstance(part, ir.Slice)]
            if len(slices) != 1:
                raise TileError(f"Iota has {len(slices)} slices; expected exactly one, and NewAxis around it")
            return tuple(part.extent if isinstance(part, ir.Slice) else 1 for part in index)
        case ir.Scalar() | ir.Literal():
            return ()
        case ir.Elementwise(op=op, args=args):
            if len(args) != arity(op):
                raise TileError(f"{op} has {len(args)} operands; expected {arity(op)}")
            return broadcast(*(shape_of(arg, program) for arg in args))
        case ir.Cast(arg=arg):
            return shape_of(arg, program)
        case ir.Permute(arg=arg, order=order):
            shape = shape_of(arg, program)
            if sorted(order) != list(range(len(shape))):
                raise TileError(f"permute order {order} of a tile of shape {shape}; expected each dimension once")
            return tuple(shape[n] for n in order)
        case ir.Grouped(arg=arg, size=size):
            shape = shape_of(arg, program)
            if not shape or size < 1 or shape[-1] % size:
                raise TileError(f"groups of {size} neighbours of a tile of shape {shape}; expected a divisor")
            return (*shape[:-1], shape[-1] // size, size)
        case ir.Reduce(op=op, arg=arg, dim=dim):
            shape = shape_of(arg, program)
            if not 0 <= dim < len(shape):
                raise TileError(f"reduce({op}) over dim {dim} of a tile of shape {shape}; expected 0 <= dim < rank")
            return shape[:dim] + shape[dim + 1 :]
        case ir.Dot(a=a, b=b, acc=acc):
            return _shape_of_dot(shape_of(a, program), shape_of(b, program), acc, program)
        case _:
            assert_never(expr)


def _shape_of_checked_access(access: ir.Access, program: ir.Program) -> Shape:
    tensor = find_tensor(program, access.tensor)
    dims = region(access)
    if len(dims) != len(tensor.shape):
        raise TileError(
            f"{tensor.name} of shape {tensor.shape} is accessed with {len(dims)} indices; expected {len(tensor.shape)}"
        )
    for dim in dims:
        if isinstance(dim, ir.Slice) and dim.extent < 1:
            raise TileError(f"{tensor.name} is sliced with extent {dim.extent}; expected 1 or more")
    return shape_of_access(access)


def _shape_of_dot(a: Shape, b: Shape, acc: ir.TileExpr | None, program: ir.Program) -> Shape:
    if len(a) < 2 or len(b) != len(a):
        raise TileError(f"dot of shapes {a} and {b}; expected two tiles of one rank, 2 or more")
    if a[-1] != b[-2] or a[:-2] != b[:-2]:
        raise TileError(f"dot of shapes {a} and {b}; expected [..., m, k] and [..., k, n]")
    shape = a[:-1] + b[-1:]
    if acc is not None and shape_of(acc, program) not in (shape, ()):
        raise TileError(f"dot accumulates {shape} into a tile of shape {shape_of(acc, program)}; expected {shape}")
    return shape


def identity_of(op: ir.Reducer, dtype: str) -> float | int | None:
    """What a reducer leaves as it is; None if it has no such value on a dtype.

    >>> identity_of("max", "float16"), identity_of("min", "uint8"), identity_of("max", "bool")
    (-inf, 255, None)
    """
    match op:
        case "sum" | "prod":
            return 0 if op == "sum" else 1
        case "max" | "min" if dtype in FLOATS:
            return -math.inf if op == "max" else math.inf
        case "max" | "min" if dtype in INTEGERS:
            bits = int(dtype.lstrip("uint"))
            low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return low if op == "max" else high
        case _:
            return None


def identity_literal(op: ir.Reducer, dtype: str) -> ir.Literal:
    """The identity of a reducer, as a constant; TileError if it has none on the dtype."""
    value = identity_of(op, dtype)
    if value is None:
        raise TileError(f"no identity of reducer {op!r} on {dtype}", help="fold in float32: convert the term")
    return ir.Literal(float(value) if dtype in FLOATS else value, dtype)


def dtype_of(expr: ir.TileExpr, program: ir.Program) -> str:
    """Dtype of the tile `expr`; TileError if its operands' dtypes break the rules of this module."""
    match expr:
        case ir.Access(tensor=name):
            return find_tensor(program, name).dtype
        case ir.Gather(tensor=name, indices=indices):
            for index in indices:
                if dtype_of(index, program) != "int32":
                    raise TileError(
                        f"{name} is gathered by an index of dtype {dtype_of(index, program)}; expected int32",
                        help="make the conversion a Cast",
                    )
            return find_tensor(program, name).dtype
        case ir.Iota() | ir.Scalar():
            return "int32"
        case ir.Literal(dtype=dtype):
            return _checked_dtype(dtype)
        case ir.Elementwise(op=op, args=args, dtype=dtype):
            _check_elementwise(op, [dtype_of(arg, program) for arg in args], _checked_dtype(dtype))
            return dtype
        case ir.Cast(arg=arg, dtype=dtype):
            dtype_of(arg, program)
            return _checked_dtype(dtype)
        case ir.Permute(arg=arg) | ir.Grouped(arg=arg):
            return dtype_of(arg, program)
        case ir.Reduce(op=op, arg=arg):
            dtype = dtype_of(arg, program)
            if dtype == "bool" and op in ("sum", "prod"):
                raise TileError(
                    f"reduce({op}) of a bool tile", help="cast it to int32 first, or reduce with max or min"
                )
            if dtype in EIGHTS:
                raise TileError(f"reduce({op}) of a {dtype} tile", help="cast it to float32 first")
            return dtype
        case ir.Dot(a=a, b=b, acc=acc):
            left, right = dtype_of(a, program), dtype_of(b, program)
            if left != right or left not in ir.DOT_DTYPES:
                raise TileError(
                    f"dot of {left} and {right}; expected two tiles of one dtype, one of {', '.join(ir.DOT_DTYPES)}",
                    help="cast one operand",
                )
            if acc is not None and dtype_of(acc, program) != "float32":
                raise TileError(f"dot accumulates into {dtype_of(acc, program)}; expected float32")
            return "float32"
        case _:
            assert_never(expr)


def _checked_dtype(dtype: str) -> str:
    if dtype not in DTYPES:
        raise TileError(f"unknown dtype {dtype!r}; known are {', '.join(sorted(DTYPES))}")
    return dtype


def _check_elementwise(op: str, operands: list[str], dtype: str) -> None:
    """Raises TileError unless an operation's operands and result have the dtypes that it takes."""
    # Formal statement: op : d x ... x d -> d for one numeric d; comparisons d x d -> bool; where bool x d x d -> d.
    kind = operation(op).kind
    signature = f"{op}({', '.join(operands)}) -> {dtype}"
    if kind != "choice" and not {dtype, *operands}.isdisjoint(EIGHTS):
        raise TileError(f"{signature}: nothing is computed in floats of 8 bits", help="cast the operands to float32")
    if kind == "comparison":
        ok = dtype == "bool" and len(set(operands)) == 1
        expected = "operands of one dtype and a bool result"
    elif kind == "logic":
        ok = dtype == "bool" and set(operands) == {"bool"}
        expected = "bool operands and a bool result"
    elif kind == "choice":
        ok = operands[0] == "bool" and set(operands[1:]) == {dtype}
        expected = "a bool condition and two operands of the result's dtype"
    elif kind == "float":
        ok = dtype in FLOATS and set(operands) == {dtype}
        expected = "float operands of the result's dtype"
    elif kind in ("integer", "bits"):
        ok = dtype in INTEGERS and set(operands) == {dtype}
        expected = "integer operands of the result's dtype"
    else:
        ok = dtype != "bool" and set(operands) == {dtype}
        expected = "numeric operands of the result's dtype"
    if not ok:
        raise TileError(f"{signature}; expected {expected}", help="make the conversion a Cast")
