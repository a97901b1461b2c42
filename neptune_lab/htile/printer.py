"""HTile programs as text, in the style of the paper's Figures 5 and 7; `parser.from_text` reads it back.

A declaration gives each dimension of a tensor the axis of its slices: `float16[1, 4, i1: 256, d: 64]`.  An axis or
dtype is stated only if `unstated.infer_unstated` would infer another, as in `x[0:64:j1]` and `literal(1.0, float16)`.
A name in backquotes is not a word of the language.  `strides (65536, 64, 256, 1)` follows the shape of a tensor that is
not contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import assert_never

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.labels import Labels
from neptune_lab.htile.unstated import Declared, declared, elide_all, elide_inferable
from neptune_lab.htile.walk import simplify
from neptune_lab.scalar_ops import ATOM, NEGATE, rows
from neptune_lab.tensor_spec import strides_text
from neptune_lab.wrapping import Doc, Loose, call, lines, number_text, operation, seq

WIDTH = 110

# Reserved words: tensors and variables with these names need backquotes.
_RESERVED = frozenset({"iota", "inf", "nan", "True", "False", "NewAxis", "and", "or", "not", "for", "kernel"})
_INDEX_LEVEL = {row.symbol: row.level for row in rows("htile") if row.kind in ("number", "integer") and row.arity == 2}


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """One rendered line.

    Args:
        node_id: id of the kernel, loop or store that the line belongs to; "" for a declaration.
        text: the line, indented, without its newline.
        origin: the loop-IR block; for a kernel's header its name, for a declaration "".
    """

    node_id: str
    text: str
    origin: str


def print_program(program: ir.Program) -> tuple[PrintedLine, ...]:
    """`program` as lines: its tensors, then its kernels; a long statement takes several lines."""
    known = declared(program)
    out = [PrintedLine("", text, "") for text in _declarations(program, known)]
    of_store = known.of_stores()
    for kernel in program.kernels:
        out.append(PrintedLine("", "", ""))
        out += _kernel(kernel, of_store)
    return tuple(out)


def to_text(program: ir.Program) -> str:
    """`print_program` as one text, with labels on statements whose node id or origin is not the usual one.

    For a verified program it is complete: `parser.from_text(to_text(program)) == program`.
    """
    labels = Labels()
    marks: dict[str, str] = {}

    def mark(body: tuple[ir.Stmt, ...], around: tuple[ir.For, ...]) -> None:
        for stmt in body:
            marks[stmt.node_id] = labels.of(stmt, around)
            if isinstance(stmt, ir.For):
                mark(stmt.body, (*around, stmt))

    for kernel in program.kernels:
        marks[kernel.node_id] = labels.of_kernel(kernel)
        mark(kernel.body, ())
    printed = print_program(program)
    following = [line.node_id for line in printed[1:]] + [""]
    text = []
    for line, after in zip(printed, following, strict=True):
        label = marks.get(line.node_id, "") if line.node_id != after else ""
        code, _, part = line.text.partition("  # ")
        text.append(f"{code}{'  ' if label else ''}{label}{'  # ' if part else ''}{part}\n")
    return "".join(text)


def _declarations(program: ir.Program, known: Declared) -> list[str]:
    space = max((len(t.space) for t in program.tensors), default=0)
    name = max((len(t.name) for t in program.tensors), default=0)

    def shape(tensor: ir.Tensor, axes: tuple[str, ...]) -> str:
        sizes = map(str, tensor.shape) if tensor.sizes is None else map(index_text, tensor.sizes)
        return ", ".join(f"{a}: {n}" if a else n for n, a in zip(sizes, axes, strict=True))

    return [
        f"program {program.name}({', '.join(program.inputs)}) -> {', '.join(program.outputs)}",
        *(f"  size    {size.name}  # known at the launch; compiled at {size.sample}" for size in program.sizes),
        *(
            f"  {t.space:<{space}}  {t.name:<{name}}  {t.dtype}[{shape(t, axes)}]{strides_text(t.strides)}"
            for t, axes in zip(program.tensors, known.axes, strict=True)
        ),
    ]


def _kernel(kernel: ir.Kernel, known: Callable[[ir.Store], Declared]) -> list[PrintedLine]:
    extents = [str(axis.extent) if axis.size is None else index_text(axis.size) for axis in kernel.grid]
    grid = ", ".join(f"{axis.var}: {extent}" for axis, extent in zip(kernel.grid, extents, strict=True))
    hints = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    extra = "".join(f"  {key}={value}" for key, value in hints.items() if value is not None)
    if (found := kernel.finds) is not None:
        vectors = f"{found.rows}: {found.row_extent}, {found.columns}: {found.column_extent}"
        extra += f"  finds({found.first}, {found.last}, {vectors})"
    header = f"kernel {kernel.name}  grid ({grid}){extra}"
    return [PrintedLine(kernel.node_id, header, kernel.name), *_body(kernel.body, "    ", known)]


def _body(body: tuple[ir.Stmt, ...], indent: str, known: Callable[[ir.Store], Declared]) -> list[PrintedLine]:
    out: list[PrintedLine] = []
    for stmt in body:
        match stmt:
            case ir.For(var=var):
                start, stop = _index_text(stmt.start)[0], _index_text(stmt.stop)[0]
                bounds = stop if start == "0" else f"{start}, {stop}"
                part = f"  # {stmt.part}" if stmt.part else ""
                line = f"{indent}for {var} in range({bounds}){bounded_by(stmt)}:{part}"
                out.append(PrintedLine(stmt.node_id, line, stmt.origin))
                out += _body(stmt.body, indent + "    ", known)
            case ir.Store():
                texts = _store_lines(stmt, known(stmt), indent)
                out += [PrintedLine(stmt.node_id, text, stmt.origin) for text in texts]
            case _:
                assert_never(stmt)
    return out


def bounded_by(loop: ir.For) -> str:
    """The elements that bound a loop or list the values of its variable, as text behind its range."""
    words = (("within", loop.within), ("without", loop.without), ("listed", loop.listed))
    return "".join(f" {word} {', '.join(map(flat_access, two))}" for word, two in words if two is not None)


# Most passes change few stores, and the record prints the program after each pass.
@lru_cache(maxsize=4096)
def _store_lines(store: ir.Store, known: Declared, indent: str) -> tuple[str, ...]:
    return tuple(lines(_store(elide_inferable(store, known)), WIDTH, indent))


def _store(store: ir.Store) -> Doc:
    assignment = seq(_access(store.target), " = ", Loose(_expr(store.value)[0]))
    return assignment if store.mask is None else seq(assignment, "  where ", _expr(store.mask)[0])


def _name(name: str) -> str:
    return f"`{name}`" if name in _RESERVED else name


def flat_access(access: ir.Access) -> str:
    """An access on one line: `s_max[b, h, i0*128:i0*128+128, NewAxis]`."""
    elided = elide_all(access)
    assert isinstance(elided, ir.Access)
    return _access(elided)


def _access(access: ir.Access) -> str:
    return f"{_name(access.tensor)}[{', '.join(_index(index) for index in access.index)}]"


def _index(index: ir.Index) -> str:
    match index:
        case ir.Slice(start=start, extent=extent, axis=axis):
            text = _index_text(start)[0]
            stop = str(start.value + extent) if isinstance(start, ir.Int) else f"{text}+{extent}"
            return f"{text}:{stop}{f':{axis}' if axis else ''}"
        case ir.NewAxis():
            return "NewAxis"
        case ir.Int() | ir.Name() | ir.Arith():
            return _index_text(index)[0]
        case _:
            assert_never(index)


def index_text(expr: ir.IndexExpr) -> str:
    """An index expression as text, without blanks.

    >>> index_text(ir.Arith("+", ir.Arith("*", ir.Name("i0"), ir.Int(128)), ir.Name("j")))
    'i0*128+j'
    """
    return _index_text(simplify(expr))[0]


def _index_text(expr: ir.IndexExpr) -> tuple[str, int]:
    match expr:
        case ir.Int(value=value):
            return str(value), ATOM if value >= 0 else NEGATE
        case ir.Name(name=name):
            return _name(name), ATOM
        case ir.Arith(op="min" | "max" as op, a=a, b=b):
            return f"{op}({_index_text(a)[0]}, {_index_text(b)[0]})", ATOM
        case ir.Arith(op=op, a=a, b=b):
            level = _INDEX_LEVEL[op]
            (left, left_level), (right, right_level) = _index_text(a), _index_text(b)
            left = left if left_level >= level else f"({left})"
            right = right if right_level > level else f"({right})"
            return f"{left}{op}{right}", level
        case _:
            assert_never(expr)


def expr_doc(expr: ir.TileExpr) -> Doc:
    """A tile expression, without axes and dtypes of literals, as text that may be broken into lines."""
    return _expr(elide_all(expr))[0]


def _expr(expr: ir.TileExpr) -> tuple[Doc, int]:
    """The text and its precedence; axes and dtypes that are "" are not printed."""
    match expr:
        case ir.Access():
            return _access(expr), ATOM
        case ir.Gather(tensor=name, indices=indices):
            return call("gather", _name(name), *(_expr(index)[0] for index in indices)), ATOM
        case ir.Iota(index=index):
            return f"iota[{', '.join(_index(part) for part in index)}]", ATOM
        case ir.Scalar(value=ir.Name(name)):
            return _name(name), ATOM
        case ir.Scalar(value=value):
            return f"index({_index_text(value)[0]})", ATOM
        case ir.Literal(value=value, dtype=""):
            return number_text(value), ATOM if isinstance(value, bool) or value >= 0 else NEGATE
        case ir.Literal(value=value, dtype=dtype):
            return f"literal({number_text(value)}, {dtype})", ATOM
        case ir.Elementwise(op=op, args=args):
            return _elementwise(op, args)
        case ir.Cast(arg=arg, dtype=dtype):
            return call(dtype, _expr(arg)[0]), ATOM
        case ir.Permute(arg=arg, order=order):
            return call("permute", _expr(arg)[0], f"({', '.join(map(str, order))})"), ATOM
        case ir.Grouped(arg=arg, size=size):
            return call("grouped", _expr(arg)[0], str(size)), ATOM
        case ir.Reduce(op=op, arg=arg, dim=dim):
            return call("reduce", op, _expr(arg)[0], f"dim={dim}"), ATOM
        case ir.Dot(a=a, b=b, acc=acc):
            args_doc: tuple[Doc, ...] = (_expr(a)[0], _expr(b)[0])
            if acc is not None:
                args_doc += (seq("acc=", _expr(acc)[0]),)
            return call("dot", *args_doc), ATOM
        case _:
            assert_never(expr)


def _elementwise(op: str, args: tuple[ir.TileExpr, ...]) -> tuple[Doc, int]:
    operands = [_expr(arg) for arg in args]
    return operation(op, operands, op == "neg" and isinstance(args[0], ir.Literal) and operands[0][1] == ATOM)
