"""HTile as text: the style of the paper's Figures 5 and 7, a node id a line."""

from __future__ import annotations

import pytest
from htile_programs import CASES, F32, at, attention, lit, op, tile

from neptune_lab.htile import print_program, to_text
from neptune_lab.htile.nodes import Elementwise, Literal, Name, Scalar
from neptune_lab.htile.printer import expr_doc
from neptune_lab.htile.walk import stores
from neptune_lab.wrapping import Loose, call, flat, lines, seq


def text(expr) -> str:
    return flat(expr_doc(expr))


def test_golden(golden):
    golden("htile_attention.txt", to_text(attention().program))


def test_lines_carry_node_ids_and_fit():
    for make in CASES.values():
        program = make().program
        lines = print_program(program)
        assert all(len(line.text) <= 110 for line in lines)
        ids = {line.node_id for line in lines}
        for kernel in program.kernels:
            assert {kernel.node_id} | {store.node_id for store in stores(kernel.body)} <= ids
            for store in stores(kernel.body):
                assert {line.origin for line in lines if line.node_id == store.node_id} == {store.origin}


def test_brackets_where_the_tree_needs_them():
    x, y = at("x", tile("i0", 4, "i")), lit(2.0)
    assert text(op("mul", op("add", x, y), y)) == "(x[i0*4:i0*4+4] + 2.0) * 2.0"
    assert text(op("sub", x, op("sub", y, y))) == "x[i0*4:i0*4+4] - (2.0 - 2.0)"
    assert text(op("add", op("mul", x, y), y)) == "x[i0*4:i0*4+4] * 2.0 + 2.0"
    assert text(op("neg", op("add", y, y))) == "-(2.0 + 2.0)"
    assert text(op("mul", op("neg", y), y)) == "-(2.0) * 2.0"
    less = Elementwise("lt", (Scalar(Name("i0")), Literal(3, "int32")), "bool")
    assert text(Elementwise("and", (less, less), "bool")) == "i0 < 3 and i0 < 3"
    assert text(Elementwise("eq", (less, less), "bool")) == "(i0 < 3) == (i0 < 3)"
    assert text(Elementwise("not", (Elementwise("or", (less, less), "bool"),), "bool")) == "not (i0 < 3 or i0 < 3)"
    assert text(op("max", x, lit(float("-inf"), F32))) == "max(x[i0*4:i0*4+4], -inf)"


def test_a_long_statement_gets_one_pair_of_brackets_where_they_help():
    statement = seq("total", " = ", Loose(seq("first", " + ", "second")))
    assert lines(statement, 19) == ["total = (", "    first + second", ")"]
    too_long = seq("y", " = ", Loose(call("exp2", "x[0:16] * 0.125")))
    assert lines(too_long, 12) == ["y = exp2(", "    x[0:16] * 0.125,", ")"]


@pytest.mark.nightly
def test_deeply_nested_text_is_laid_out():
    """Each level is tried in several ways: without what was found before, 60 of them would not end."""
    from neptune_lab.wrapping import Loose, call, flat, lines, seq

    doc = call("load", "table")
    for level in range(60):
        doc = seq(Loose(doc), " * ", call("where", f"mask{level}", doc if level < 3 else f"x{level}"))
    found = lines(doc, 80)
    assert "".join(line.strip() for line in found).count("mask59") == flat(doc).count("mask59") == 1


def test_a_call_beside_an_opened_one_stays_closed_if_it_fits():
    base = call("where", seq(call("abs", "m[i0*4:i0*4+4]"), " > 1.2676506002282294e+30"), "1.0", "4.0")
    long = seq("x * ", call("where", "some_condition", base), " - m * ", call("where", "another_condition", base))
    assert lines(call("exp2", long), 80) == [
        "exp2(",
        "    x * where(",
        "        some_condition,",
        "        where(abs(m[i0*4:i0*4+4]) > 1.2676506002282294e+30, 1.0, 4.0),",
        "    ) - m * where(",
        "        another_condition,",
        "        where(abs(m[i0*4:i0*4+4]) > 1.2676506002282294e+30, 1.0, 4.0),",
        "    ),",
        ")",
    ]
