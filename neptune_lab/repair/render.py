"""Prints expressions and derivations as text, LaTeX and presentation MathML.

The internal symbols are `Dummy` objects, which are unique even if they have the same name; these printers show their
names, and a producer's current value as r' (r is its previous value).  `read.py` makes names printable, so that no name
of a user's symbol can break the markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any, cast
from xml.sax.saxutils import escape

from sympy import Basic, Eq, Mul, Rational, Symbol
from sympy.core.alphabets import greeks
from sympy.core.function import AppliedUndef
from sympy.printing.latex import LatexPrinter
from sympy.printing.mathml import MathMLPresentationPrinter
from sympy.printing.str import StrPrinter


class _Text(StrPrinter):
    """`str` with another order: t first, and terms that are added before those that are subtracted."""

    def __init__(self) -> None:
        super().__init__({"order": "none"})

    def _print_Dummy(self, expr: Any) -> str:
        return expr.name

    def _print_Infinity(self, expr: Any) -> str:
        return "∞"

    def _print_NegativeInfinity(self, expr: Any) -> str:
        return "-∞"

    def _as_ordered_terms(self, expr: Any, order: str | None = None) -> list[Any]:
        terms = expr.as_ordered_terms(order="lex")
        return sorted(terms, key=lambda term: (not _is_value(term), term.could_extract_minus_sign()))

    def _print_Mul(self, expr: Any) -> str:
        number, rest = _with_decimal(expr).as_coeff_Mul()
        factors = sorted(rest.as_ordered_factors(), key=lambda factor: not _is_value(factor))
        return super()._print_Mul(Mul(*([] if number == 1 else [number]), *factors, evaluate=False))

    def _print_Rational(self, expr: Any) -> str:
        return _decimal(expr) or super()._print_Rational(expr)

    def _print_Piecewise(self, expr: Any) -> str:
        *cases, (last, _) = (pair.args for pair in expr.args)
        chosen = self._print(last)
        for value, condition in reversed(cases):
            chosen = f"select({self._print(condition)}, {self._print(value)}, {chosen})"
        return chosen

    def _print_Relational(self, expr: Any) -> str:
        return f"{self._print(expr.lhs)} {'=' if isinstance(expr, Eq) else expr.rel_op} {self._print(expr.rhs)}"


def _is_value(expr: Any) -> bool:
    """Whether this is a value of the consuming reduction, by its name."""
    return expr.is_Symbol and expr.name.split("_")[0] in ("t", "x", "y")


def _with_decimal(product: Any) -> Any:
    """A product with a long fraction replaced by a symbol that is printed as a decimal."""
    number, rest = product.as_coeff_Mul()
    short = _decimal(abs(number)) if number.is_Rational else None
    return product if short is None else Mul(-1 if number < 0 else 1, Symbol(short), rest)


def _decimal(number: Any) -> str | None:
    """A decimal that is exactly the same number, if its fraction is long (a scale such as 0.0883...); else None."""
    short = repr(float(number))
    return short if number.q > 1000 and "e" not in short and Rational(short) == number else None


class _Latex(LatexPrinter):
    def _print_Symbol(self, expr: Any, style: str = "plain") -> str:
        base = expr.name.rstrip("'")
        word = base.partition("_")[0]
        if len(word) > 1 and word.isascii() and word.isalnum() and not word[-1].isdigit() and word not in greeks:
            text = rf"\mathit{{{base}}}".replace("_", r"\_")  # a word, not a product of letters
        else:
            text = super()._print_Symbol(Symbol(base), style)
        return text + "'" * (len(expr.name) - len(base))

    _print_Dummy = _print_Symbol

    def _print_Mul(self, expr: Any) -> str:
        return super()._print_Mul(_with_decimal(expr))

    def _print_Rational(self, expr: Any) -> str:
        return _decimal(expr) or super()._print_Rational(expr)


class _MathML(MathMLPresentationPrinter):
    def _print_Symbol(self, sym: Any, style: str = "plain") -> Any:
        base = sym.name.rstrip("'")
        node = super()._print_Symbol(Symbol(base), style)
        if base == sym.name:
            return node
        primed = self.dom.createElement("msup")
        mark = self.dom.createElement("mo")
        mark.appendChild(self.dom.createTextNode("&#x2032;" * (len(sym.name) - len(base))))
        primed.appendChild(node)
        primed.appendChild(mark)
        return primed

    _print_Dummy = _print_Symbol

    def _print_Function(self, e: Any) -> Any:
        if not isinstance(e, AppliedUndef):
            return super()._print_Function(e)
        row = self.dom.createElement("mrow")
        row.appendChild(self._print_Symbol(Symbol(e.func.__name__)))
        row.appendChild(self._paren_comma_separated(*e.args))
        return row

    def _print_Mul(self, expr: Any) -> Any:
        return super()._print_Mul(_with_decimal(expr))

    def _print_Rational(self, e: Any) -> Any:
        short = _decimal(e)
        if short is None:
            return super()._print_Rational(e)
        node = self.dom.createElement("mn")
        node.appendChild(self.dom.createTextNode(short))
        return node


def text(expr: Basic) -> str:
    """An expression as plain text.

    >>> from sympy import Dummy, Eq, exp
    >>> t, r, q = Dummy("t"), Dummy("r"), Dummy("r'")
    >>> text(Eq(q, t * r**2 / q**2)), text(t * exp(r - q))
    ("r' = t*r**2/r'**2", "t*exp(r - r')")

    Args:
        expr: a SymPy expression.

    Returns:
        Text such as "t*exp(r - r')".
    """
    return _Text().doprint(expr)


def latex(expr: Basic) -> str:
    """An expression as LaTeX, without delimiters.

    >>> from sympy import Dummy, exp
    >>> latex(Dummy("t") * exp(Dummy("r1") - Dummy("r1'")))
    "t e^{r_{1} - r_{1}'}"

    Args:
        expr: a SymPy expression.

    Returns:
        The LaTeX source.
    """
    return _Latex().doprint(expr)


def mathml(expr: Basic) -> str:
    """Presentation MathML of one expression, without the `<math>` element.

    >>> from sympy import Dummy
    >>> mathml(Dummy("r'"))
    '<msup><mi>r</mi><mo>&#x2032;</mo></msup>'

    Args:
        expr: a SymPy expression.

    Returns:
        The elements as text.
    """
    # SymPy writes HTML's entity names, which XML does not know.
    return re.sub(r"&(\w+);", _as_number, _MathML().doprint(expr))


def _as_number(entity: re.Match[str]) -> str:
    if entity[1] in ("amp", "lt", "gt", "quot", "apos"):
        return entity[0]
    return "".join(f"&#x{ord(char):04x};" for char in unescape(entity[0]))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a derivation: a few words, and the equation or expression that they describe, if any."""

    note: str
    expr: Basic | None = None

    @property
    def text(self) -> str:
        if self.expr is None:
            return self.note
        return f"{self.note}: {text(self.expr)}" if self.note else text(self.expr)

    def replace(self, mapping: Mapping[Symbol, Symbol]) -> Line:
        """The same line over other symbols; an equation is not evaluated to true or false."""
        if isinstance(self.expr, Eq):
            sides = (side.xreplace(dict(mapping)) for side in self.expr.args)
            return Line(self.note, Eq(*sides, evaluate=False))
        return self if self.expr is None else Line(self.note, self.expr.xreplace(dict(mapping)))


def equation(left: object, right: object) -> Basic:
    """left = right, not evaluated."""
    return cast(Basic, Eq(left, right, evaluate=False))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the derivation, ready to show.

    Attributes:
        title: name of the step, such as "Invert g0 in C".
        lines: what was done, line by line.
        ok: whether the step succeeded.
    """

    title: str
    lines: tuple[Line, ...]
    ok: bool = True

    def as_record(self) -> dict[str, Any]:
        """JSON form: the title, and the step as text, LaTeX and MathML."""
        return {"title": self.title, "ok": self.ok, "text": self.text, "latex": self.latex, "mathml": self.mathml}

    @property
    def text(self) -> str:
        """Title and lines, indented.

        >>> print(Step("Invert", (Line("so", None),)).text)
        Invert
          so
        """
        return "\n".join([self.title, *(f"  {line.text}" for line in self.lines)])

    @property
    def latex(self) -> str:
        """One `aligned` block; notes as text, equations as mathematics."""
        rows = [rf"& \textbf{{{_latex_escape(self.title)}}}"]
        for line in self.lines:
            note = rf"\text{{{_latex_escape(line.note)}}}" if line.note else ""
            body = "" if line.expr is None else latex(line.expr)
            rows.append("& " + (rf"{note}\quad {body}" if note and body else note or body))
        return "\\begin{aligned}\n" + " \\\\\n".join(rows) + "\n\\end{aligned}"

    @property
    def mathml(self) -> str:
        """One `<math>` element with one row per line; it does not contain the title."""
        rows = []
        for line in self.lines:
            body = "" if line.expr is None else mathml(line.expr)
            rows.append(f"<mtr><mtd><mtext>{escape(line.note)}</mtext></mtd><mtd>{body}</mtd></mtr>")
        return (
            '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">'
            f'<mtable columnalign="left left">{"".join(rows)}</mtable></math>'
        )


class Derived:
    """Base of classes that can be shown as a derivation: a subclass has `steps`."""

    __slots__ = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the derivation, ready to show."""
        raise NotImplementedError

    def to_text(self) -> str:
        """The derivation as plain text.

        Returns:
            One part per step.
        """
        return "\n".join(step.text for step in self.steps)

    def to_latex(self) -> str:
        """The derivation as LaTeX: one `aligned` block per step.

        Returns:
            The LaTeX source.
        """
        return "\n\n".join(rf"\[{step.latex}\]" for step in self.steps)

    def to_mathml(self) -> str:
        """The derivation as presentation MathML: one `<math>` element per step, in order.

        Returns:
            The elements as text.
        """
        return "\n".join(step.mathml for step in self.steps)


def _latex_escape(note: str) -> str:
    special = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    return "".join(special.get(char, f"\\{char}" if char in "_%&#${}" else char) for char in note)
