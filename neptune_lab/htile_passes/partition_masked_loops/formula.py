"""A mask's condition as a formula: `and` and `or` of affine inequalities in tile starts and lanes.

`iota[j0*64:j0*64+64] <= iota[i0*64:i0*64+64]` becomes the atom `i0*64 + y - j0*64 - x >= 0` with lanes x and y from 0
to 63.  Negation moves down to the atoms; a minimum, maximum or absolute value becomes an `and` or an `or`; what is not
affine (a loaded document id, a remainder) is an `Unknown`, which is never proven true or false.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal as Lit
from typing import TypeAlias

from neptune_lab.htile.affine import Affine, affine, expression, floor_divide
from neptune_lab.htile.nodes import (
    Arith,
    Cast,
    Elementwise,
    IndexExpr,
    Int,
    Iota,
    Literal,
    Name,
    Scalar,
    Slice,
    TileExpr,
)
from neptune_lab.htile.printer import expr_doc, index_text
from neptune_lab.scalar_ops import NEGATION
from neptune_lab.strict.dtypes import INTEGERS
from neptune_lab.wrapping import flat


@dataclass(frozen=True, slots=True)
class Lane:
    """A position inside a tile: in affine forms, `name` is a variable from 0 to `extent` - 1."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True)
class Atom:
    """`form >= 0`."""

    form: Affine
    lanes: tuple[Lane, ...]

    @property
    def least(self) -> Affine:
        """The form at the lanes where it is least; if that is not negative, the atom is true on the whole tile."""
        return self._at(-1)

    @property
    def greatest(self) -> Affine:
        """The form at the lanes where it is greatest; if that is negative, the atom is false on the whole tile."""
        return self._at(1)

    def _at(self, side: int) -> Affine:
        return _extreme(self.form, {lane.name: lane.extent - 1 for lane in self.lanes}, side)

    def __str__(self) -> str:
        """`0 <= i0*64 - j0*64 + [0..63] - [0..63]`."""
        lanes = {lane.name: f"[0..{lane.extent - 1}]" for lane in self.lanes}
        tile, text = Affine((), self.form.constant), ""
        for atom, k in self.form.terms:
            if isinstance(atom, Name) and atom.name in lanes:
                text += f" {'+' if k > 0 else '-'} {'' if abs(k) == 1 else f'{abs(k)}*'}{lanes[atom.name]}"
            else:
                tile += Affine(((_renamed(atom, lanes), k),), 0)
        return f"0 <= {index_text(expression(tile))}{text}"


def _extreme(form: Affine, last: Mapping[str, int], side: int) -> Affine:
    """A bound of a form: its least value over the lanes with side=-1, its greatest with side=1.

    Formal statement: floor(n / d) does not fall where n rises, so it is least where n is.

    Args:
        last: the largest value of each lane; the least is 0.
    """
    out = Affine((), form.constant)
    for atom, k in form.terms:
        toward = side if k > 0 else -side
        match atom:
            case Name(name=name) if name in last:
                out += k * (last[name] if toward > 0 else 0)
            case Arith(op="//", a=a, b=Int(value=divisor)) if divisor > 0:
                out += floor_divide(_extreme(affine(a), last, toward), divisor) * k
            case _:
                out += Affine(((atom, k),), 0)
    return out


def _renamed(index: IndexExpr, names: Mapping[str, str]) -> IndexExpr:
    match index:
        case Name(name=name) if name in names:
            return Name(names[name])
        case Arith(a=a, b=b):
            return replace(index, a=_renamed(a, names), b=_renamed(b, names))
        case _:
            return index


@dataclass(frozen=True, slots=True)
class Unknown:
    """A condition about which nothing can be proven."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Junction:
    """The conjunction ("and") or disjunction ("or") of `parts`; without parts, "and" is true and "or" false."""

    op: Lit["and", "or"]
    parts: tuple[Formula, ...]

    def __str__(self) -> str:
        if not self.parts:
            return "true" if self.op == "and" else "false"
        return f" {self.op} ".join(f"({p})" if isinstance(p, Junction) else str(p) for p in self.parts)


Formula: TypeAlias = Atom | Unknown | Junction


def atoms(formula: Formula) -> Iterator[Atom | Unknown]:
    """The leaves of a formula, from left to right."""
    if isinstance(formula, Junction):
        for part in formula.parts:
            yield from atoms(part)
    else:
        yield formula


def formula_of(condition: TileExpr, negated: bool = False) -> Formula:
    """The formula of a bool tile, or of its negation.

    >>> str(formula_of(Elementwise("lt", (Scalar(Name("h")), Literal(2, "int32")), "bool")))
    '0 <= 1-h'
    """
    match condition:
        case Literal(value=value):
            return Junction("and" if bool(value) != negated else "or", ())
        case Elementwise(op="not", args=(arg,)):
            return formula_of(arg, not negated)
        case Elementwise(op="and" | "or" as op, args=args):
            return Junction("and" if (op == "and") != negated else "or", tuple(formula_of(a, negated) for a in args))
        case Elementwise(op="lt" | "le" | "gt" | "ge" | "eq" | "ne" as op, args=(a, b)):
            compared = _compared(NEGATION[op] if negated else op, a, b)
            if compared is not None:
                return compared
    text = flat(expr_doc(condition))
    return Unknown(f"not ({text})" if negated else text)


def _compared(op: str, a: TileExpr, b: TileExpr) -> Formula | None:
    x, y = integer(a), integer(b)
    if x is None or y is None:
        return None
    match op:
        case "lt" | "le":
            return _not_negative(y, x, 1 if op == "lt" else 0)
        case "gt" | "ge":
            return _not_negative(x, y, 1 if op == "gt" else 0)
        case _:
            slack, join = (0, "and") if op == "eq" else (1, "or")
            parts = (_not_negative(x, y, slack), _not_negative(y, x, slack))
            return None if parts[0] is None or parts[1] is None else Junction(join, (parts[0], parts[1]))


@dataclass(frozen=True, slots=True)
class Integer:
    """The least ("min") or greatest ("max") of affine forms; usually there is one form."""

    op: Lit["min", "max"]
    forms: tuple[Affine, ...]
    lanes: tuple[Lane, ...]


def _not_negative(x: Integer, y: Integer, slack: int) -> Formula | None:
    """`x - y - slack >= 0`."""
    total = _sum(x, _negative(y))
    if total is None:
        return None
    parts = tuple(Atom(form - slack, total.lanes) for form in total.forms)
    return parts[0] if len(parts) == 1 else Junction("and" if total.op == "min" else "or", parts)


def integer(expr: TileExpr) -> Integer | None:
    """An integer tile as affine forms; None if it is not affine."""
    match expr:
        case Literal(value=value, dtype=dtype) if dtype in INTEGERS:
            return Integer("min", (affine(Int(int(value))),), ())
        case Scalar(value=value):
            return Integer("min", (affine(value),), ())
        case Iota(index=index):
            dim, part = next((n, part) for n, part in enumerate(index) if isinstance(part, Slice))
            # Tiles broadcast, so two iotas along one dimension with one extent share a lane.
            lane = Lane(f"lane.{dim}.{part.extent}", part.extent)
            return Integer("min", (affine(part.start) + affine(Name(lane.name)),), (lane,))
        case Cast(arg=arg, dtype=dtype) if dtype in ("int32", "int64"):
            return integer(arg)
        case Elementwise(op="floordiv", args=(arg, Literal(value=divisor, dtype=dtype))) if dtype in INTEGERS:
            whole = integer(arg)
            return None if whole is None else _quotient(whole, int(divisor))
        case Elementwise(op=op, args=args, dtype=dtype) if dtype in ("int32", "int64"):
            known = [x for arg in args if (x := integer(arg)) is not None]
            return _operation(op, known) if len(known) == len(args) else None
        case _:
            return None


def _operation(op: str, args: list[Integer]) -> Integer | None:
    match op, args:
        case "add", [x, y]:
            return _sum(x, y)
        case "sub", [x, y]:
            return _sum(x, _negative(y))
        case "neg", [x]:
            return _negative(x)
        case "mul", [x, y]:
            return _scaled(x, y) or _scaled(y, x)
        case "abs", [x]:
            return _extremum("max", x, _negative(x))
        case ("min" | "max") as extremum, [x, y]:
            return _extremum(extremum, x, y)
        case _:
            return None


def _quotient(x: Integer, divisor: int) -> Integer | None:
    """`x // divisor`; the quotient of the least form is the least quotient."""
    if divisor <= 0:
        return None
    return Integer(x.op, tuple(floor_divide(form, divisor) for form in x.forms), x.lanes)


def _scaled(x: Integer, by: Integer) -> Integer | None:
    if len(by.forms) != 1 or by.forms[0].terms:
        return None
    factor = by.forms[0].constant
    times = Integer(x.op, tuple(form * abs(factor) for form in x.forms), x.lanes)
    return times if factor >= 0 else _negative(times)


def _negative(x: Integer) -> Integer:
    return Integer("max" if x.op == "min" else "min", tuple(-form for form in x.forms), x.lanes)


def _sum(x: Integer, y: Integer) -> Integer | None:
    op = _common(x, y)
    if op is None:
        return None
    return Integer(op, tuple(a + b for a in x.forms for b in y.forms), _lanes(x, y))


def _extremum(op: Lit["min", "max"], x: Integer, y: Integer) -> Integer | None:
    if any(len(z.forms) > 1 and z.op != op for z in (x, y)):
        return None
    return Integer(op, x.forms + y.forms, _lanes(x, y))


def _common(x: Integer, y: Integer) -> Lit["min", "max"] | None:
    """The kind of `x + y`, None if the kinds differ; a single form is of either kind."""
    if len(x.forms) == 1:
        return y.op
    return x.op if len(y.forms) == 1 or x.op == y.op else None


def _lanes(x: Integer, y: Integer) -> tuple[Lane, ...]:
    return tuple(dict.fromkeys(x.lanes + y.lanes))
