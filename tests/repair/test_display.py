"""The derivation reads well as text, LaTeX and MathML, and its record is plain data."""

from __future__ import annotations

import json
import pickle
from xml.dom import minidom

import sympy as sp

from neptune_lab.repair import solve, text

SOFTMAX = """\
Read: reducer and term
  f(x, y) = x + y
Separate: find C = g_c(c) with g(r, c) = g0(r, C)
  the term: g(r, c) = exp(c - r)
  the only r-free part is: C = c
  so the term is: g0(r, C) = exp(C - r)
Invert: solve t = g0(r, C) for C
  start from: t = exp(C - r)
  undo exp: C - r = log(t)
  subtract: C = r + log(t)
Derive: h(t, r, r') = g0(r', C) with the C just found (Eq. 5)
  insert: h(t, r, r') = g0(r', r + log(t))
  that is: h(t, r, r') = t*exp(r - r')
  a factor times t: a(r, r') = exp(r - r')
Prove Eq. 3: h(g(r, c), r, r') = g(r', c)
  put t = g0(r, C) into h: h(exp(C - r), r, r') = exp(C - r)*exp(r - r')
  the difference of the two simplifies to 0, so it is g0 at r': exp(C - r)*exp(r - r') = exp(C - r')
Prove Eq. 4: h(f(x, y), r, r') = f(h(x, r, r'), h(y, r, r'))
  of both: h(x + y, r, r') = (x + y)*exp(r - r')
  of each: h(x, r, r') + h(y, r, r') = x*exp(r - r') + y*exp(r - r')
  they are equal: h is additive in t
"""


def test_softmax_reads_as_the_paper_has_it():
    assert solve("sum", "exp(c - r)", "r").to_text().startswith(SOFTMAX)


def test_mathml_is_well_formed_and_escapes_names():
    r = sp.Symbol("r")
    term = solve("sum", sp.Symbol("<img src=x>") * sp.exp(sp.Symbol("c1") - r), [r])
    for step in term.steps:
        assert minidom.parseString(step.mathml).getElementsByTagName("mtr").length == len(step.lines)
        assert step.latex.startswith(r"\begin{aligned}")
        assert step.title in step.text
    assert "<img" not in term.to_mathml()
    assert "<mo>&#x2032;</mo>" in term.to_mathml()
    assert r"t e^{r - r'}" in term.to_latex()


def test_record_is_plain_data():
    record = solve("max", "c/sqrt(r + eps)", "r", assumptions={"r": "nonnegative", "eps": "positive"}).as_record()
    assert json.loads(json.dumps(record)) == record
    assert record["constants"] == ["eps"]
    assert record["h"] == "t*sqrt(eps + r)/sqrt(eps + r')"
    assert record["change_of_variables"] == {"variable": "C", "value": "c"}
    assert [step["ok"] for step in record["steps"]] == [True] * 8


def test_term_is_frozen_hashable_and_pickles():
    term = solve("sum", "c/r", "r")
    assert hash(term) == hash(solve("sum", "c/r", "r"))
    assert pickle.loads(pickle.dumps(term)).as_record() == term.as_record()


def test_decimals_stay_decimals():
    term = solve("sum", "exp(-c*0.08838834764831845 - r)", "r")
    assert "0.08838834764831845" in text(term.g)
    assert "/" not in text(term.g)
    assert "0.08838834764831845" in term.to_latex()
    assert "0.08838834764831845" in term.to_mathml()
