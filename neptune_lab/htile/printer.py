"""HTile programs as text, in the style of the paper's Figures 5 and 7; a stable node id a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from neptune_lab.htile.layout import Doc, Loose, call, lines, seq
from neptune_lab.htile.nodes import (
    Access,
    Arith,
    Cast,
    Dot,
    Elementwise,
    For,
    Gather,
    Index,
    IndexExpr,
    Int,
    Iota,
    Kernel,
    Literal,
    Name,
    NewAxis,
    Permute,
    Program,
    Reduce,
    Scalar,
    Slice,
    Stmt,
    Store,
    TileExpr,
)
from neptune_lab.htile.walk import simplify

WIDTH = 110

_INFIX = {
    "or": ("or", 1),
    "and": ("and", 2),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "add": ("+", 5),
    "sub": ("-", 5),
    "mul": ("*", 6),
    "div": ("/", 6),
    "floordiv": ("//", 6),
    "floormod": ("%", 6),
}
_PREFIX = {"neg": ("-", 7), "not": ("not ", 3)}
_ATOM = 9
_INDEX_LEVEL = {"+": 5, "-": 5, "*": 6, "//": 6, "%": 6}


@dataclass(frozen=True, slots=True)
class Line:
    """One rendered line.

    Args:
        node_id: id of the kernel, loop or store that the line belongs to; "" for a declaration, which is no statement.
        text: the line, indented, without its newline.
        origin: the loop-IR block (a kernel's own lines: its name; a declaration: "").
    """

    node_id: str
    text: str
    origin: str


def print_program(program: Program) -> tuple[Line, ...]:
    """`program` as lines: its tensors, then its kernels; a long statement owns several lines."""
    out = [Line("", text, "") for text in _declarations(program)]
    for kernel in program.kernels:
        out.append(Line("", "", ""))
        out += _kernel(kernel)
    return tuple(out)


def to_text(program: Program) -> str:
    """`print_program` as one text, a newline after each line."""
    return "".join(f"{line.text}\n" for line in print_program(program))


def _declarations(program: Program) -> list[str]:
    space = max((len(t.space) for t in program.tensors), default=0)
    name = max((len(t.name) for t in program.tensors), default=0)
    return [
        f"program {program.name}({', '.join(program.inputs)}) -> {', '.join(program.outputs)}",
        *(f"  {t.space:<{space}}  {t.name:<{name}}  {t.dtype}{list(t.shape)}" for t in program.tensors),
    ]


def _kernel(kernel: Kernel) -> list[Line]:
    grid = ", ".join(f"{axis.var}: {axis.extent}" for axis in kernel.grid)
    hints = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    extra = "".join(f"  {key}={value}" for key, value in hints.items() if value is not None)
    header = f"kernel {kernel.name}  grid ({grid}){extra}"
    return [Line(kernel.node_id, header, kernel.name), *_body(kernel.body, "    ")]


def _body(body: tuple[Stmt, ...], indent: str) -> list[Line]:
    out: list[Line] = []
    for stmt in body:
        match stmt:
            case For(var=var):
                start, stop = index_text(stmt.start), index_text(stmt.stop)
                bounds = stop if start == "0" else f"{start}, {stop}"
                part = f"  # {stmt.part}" if stmt.part else ""
                out.append(Line(stmt.node_id, f"{indent}for {var} in range({bounds}):{part}", stmt.origin))
                out += _body(stmt.body, indent + "    ")
            case Store():
                out += [Line(stmt.node_id, text, stmt.origin) for text in lines(_store(stmt), WIDTH, indent)]
            case _:
                assert_never(stmt)
    return out


def _store(store: Store) -> Doc:
    assignment = seq(flat_access(store.target), " = ", Loose(expr_doc(store.value)))
    return assignment if store.mask is None else seq(assignment, "  where ", expr_doc(store.mask))


def flat_access(access: Access) -> str:
    """An access on one line: `s_max[b, h, i0*128:i0*128+128, NewAxis]`."""
    return f"{access.tensor}[{', '.join(_index(index) for index in access.index)}]"


def _index(index: Index) -> str:
    match index:
        case Slice(start=start, extent=extent):
            text = index_text(start)
            stop = str(start.value + extent) if isinstance(start, Int) else f"{text}+{extent}"
            return f"{text}:{stop}"
        case NewAxis():
            return "NewAxis"
        case Int() | Name() | Arith():
            return index_text(index)
        case _:
            assert_never(index)


def index_text(expr: IndexExpr) -> str:
    """An index expression as text, without blanks.

    >>> index_text(Arith("+", Arith("*", Name("i0"), Int(128)), Name("j")))
    'i0*128+j'
    """
    return _index_text(simplify(expr))[0]


def _index_text(expr: IndexExpr) -> tuple[str, int]:
    match expr:
        case Int(value=value):
            return str(value), _ATOM if value >= 0 else 7
        case Name(name=name):
            return name, _ATOM
        case Arith(op="min" | "max" as op, a=a, b=b):
            return f"{op}({_index_text(a)[0]}, {_index_text(b)[0]})", _ATOM
        case Arith(op=op, a=a, b=b):
            level = _INDEX_LEVEL[op]
            (left, left_level), (right, right_level) = _index_text(a), _index_text(b)
            left = left if left_level >= level else f"({left})"
            right = right if right_level > level else f"({right})"
            return f"{left}{op}{right}", level
        case _:
            assert_never(expr)


def expr_doc(expr: TileExpr) -> Doc:
    """A tile expression as text that knows where it may break."""
    return _expr(expr)[0]


def _expr(expr: TileExpr) -> tuple[Doc, int]:
    match expr:
        case Access():
            return flat_access(expr), _ATOM
        case Gather(tensor=name, indices=indices):
            return call("gather", name, *(expr_doc(index) for index in indices)), _ATOM
        case Iota(index=index):
            return f"iota[{', '.join(_index(part) for part in index)}]", _ATOM
        case Scalar(value=value):
            text, level = _index_text(simplify(value))
            return text, level
        case Literal(value=value):
            return literal_text(value), _ATOM if isinstance(value, bool) or value >= 0 else 7
        case Elementwise(op=op, args=args):
            return _elementwise(op, args)
        case Cast(arg=arg, dtype=dtype):
            return call(dtype, expr_doc(arg)), _ATOM
        case Permute(arg=arg, order=order):
            return call("permute", expr_doc(arg), f"({', '.join(map(str, order))})"), _ATOM
        case Reduce(op=op, arg=arg, dim=dim):
            return call("reduce", op, expr_doc(arg), f"dim={dim}"), _ATOM
        case Dot(a=a, b=b, acc=acc):
            args_doc: tuple[Doc, ...] = (expr_doc(a), expr_doc(b))
            if acc is not None:
                args_doc += (seq("acc=", expr_doc(acc)),)
            return call("dot", *args_doc), _ATOM
        case _:
            assert_never(expr)


def _elementwise(op: str, args: tuple[TileExpr, ...]) -> tuple[Doc, int]:
    if op in _INFIX:
        symbol, level = _INFIX[op]
        left, right = _expr(args[0]), _expr(args[1])
        associative = op in ("add", "mul", "and", "or")
        # A comparison takes no comparison as an operand without brackets: Python would chain them.
        left_ok = left[1] > level if level == 4 else left[1] >= level
        same = isinstance(args[1], Elementwise) and args[1].op == op
        right_ok = right[1] > level or (associative and right[1] == level and same and op in ("and", "or"))
        a = left[0] if left_ok else seq("(", left[0], ")")
        b = right[0] if right_ok else seq("(", right[0], ")")
        return seq(a, f" {symbol} ", b), level
    if op in _PREFIX:
        symbol, level = _PREFIX[op]
        doc, inner = _expr(args[0])
        return seq(symbol, doc if inner >= level else seq("(", doc, ")")), level
    return call(op, *(expr_doc(arg) for arg in args)), _ATOM


def literal_text(value: float | int | bool) -> str:
    """A constant as text: `inf`, `-inf`, `True`, and the shortest decimal that reads back as the same number."""
    return str(value) if isinstance(value, bool | int) else repr(float(value))
