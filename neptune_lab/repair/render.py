"""Print the algebra as text, LaTeX and presentation MathML.

The symbols inside are `Dummy` objects, unique whatever they are called; these printers show them by name, and a
producer's current value as r' (r is its previous value).  Names are made printable in `read.py`, so nothing that a
user calls a symbol can break the markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from sympy import Basic, Mul, Symbol
from sympy.printing.latex import LatexPrinter
from sympy.printing.mathml import MathMLPresentationPrinter
from sympy.printing.str import StrPrinter


class _Text(StrPrinter):
    """`str`, but h reads as t*a(r, r'): the running value t comes before the factors that repair it."""

    def __init__(self) -> None:
        super().__init__({"order": "none"})

    def _print_Dummy(self, expr: Any) -> str:
        return expr.name

    def _print_Add(self, expr: Any, order: str | None = None) -> str:
        return super()._print_Add(expr, order="lex")

    def _print_Mul(self, expr: Any) -> str:
        ordered = sorted(expr.as_ordered_factors(), key=_factor_rank)
        return super()._print_Mul(Mul(*ordered, evaluate=False))

    def _print_Relational(self, expr: Any) -> str:
        sign = {"Eq": "=", "Ne": "!="}.get(type(expr).__name__.replace("Equality", "Eq"), expr.rel_op)
        return f"{self._print(expr.lhs)} {'=' if sign == '==' else sign} {self._print(expr.rhs)}"


def _factor_rank(factor: Any) -> int:
    if factor.is_Number:
        return 0
    return 1 if factor.is_Symbol and factor.name in ("t", "x", "y") else 2


class _Latex(LatexPrinter):
    def _print_Symbol(self, expr: Any, style: str = "plain") -> str:
        base = expr.name.rstrip("'")
        return super()._print_Symbol(Symbol(base), style) + "'" * (len(expr.name) - len(base))

    _print_Dummy = _print_Symbol


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


def text(expr: Basic) -> str:
    """Plain text.

    >>> from sympy import Dummy, Eq, exp
    >>> t, r, q = Dummy("t"), Dummy("r"), Dummy("r'")
    >>> text(Eq(q, t * r**2 / q**2)), text(t * exp(r - q))
    ("r' = t*r**2/r'**2", "t*exp(r - r')")
    """
    return _Text().doprint(expr)


def latex(expr: Basic) -> str:
    """LaTeX without delimiters.

    >>> from sympy import Dummy, exp
    >>> latex(Dummy("t") * exp(Dummy("r1") - Dummy("r1'")))
    "t e^{r_{1} - r_{1}'}"
    """
    return _Latex().doprint(expr)


def mathml(expr: Basic) -> str:
    """Presentation MathML of one expression, without the `<math>` element.

    >>> from sympy import Dummy
    >>> mathml(Dummy("r'"))
    '<msup><mi>r</mi><mo>&#x2032;</mo></msup>'
    """
    printed = _MathML().doprint(expr)
    return printed.replace("&InvisibleTimes;", "&#x2062;").replace("&ApplyFunction;", "&#x2061;")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a derivation: a few words, and the equation or expression that they are about (or None)."""

    note: str
    expr: Basic | None = None

    @property
    def text(self) -> str:
        if self.expr is None:
            return self.note
        return f"{self.note}: {text(self.expr)}" if self.note else text(self.expr)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the derivation, ready to show.

    Attributes:
        title: name of the step, such as "Invert g0 in C".
        lines: what was done, line by line.
        ok: whether the step is proven (a guard step that has something to say is still ok).
    """

    title: str
    lines: tuple[Line, ...]
    ok: bool = True

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
        """One `<math>` element with a row a line; the title is left to the caller's heading."""
        rows = []
        for line in self.lines:
            body = "" if line.expr is None else mathml(line.expr)
            rows.append(f"<mtr><mtd><mtext>{escape(line.note)}</mtext></mtd><mtd>{body}</mtd></mtr>")
        return (
            '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">'
            f'<mtable columnalign="left left">{"".join(rows)}</mtable></math>'
        )


def _latex_escape(note: str) -> str:
    special = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    return "".join(special.get(char, f"\\{char}" if char in "_%&#${}" else char) for char in note)
