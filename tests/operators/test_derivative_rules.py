"""The rules of derivatives: every operation has one, which is the slope of its values."""

from __future__ import annotations

import numpy as np
import pytest

from neptune_lab.loop_ir.nodes import Const, Load, Op, Var
from neptune_lab.operators.reverse_mode.derivatives import RULES, Arithmetic, partial
from neptune_lab.scalar_ops import NUMPY, in_loops
from neptune_lab.scalar_ops import rows as rows_of_table


def test_every_operation_has_a_derivative():
    for row in rows_of_table("loop"):
        if row.kind in ("number", "float", "choice"):
            assert row.name in RULES or row.formula is not None or row.name in ("floor", "ceil", "round"), row.name


@pytest.mark.parametrize("name", sorted(set(RULES) - {"guard"}))
def test_each_rule_is_the_slope_of_its_operation(name):
    row = in_loops(name)
    assert row is not None
    x = Load("x", (Var("i"),))
    others = {"pow": (x, Const(3.0, "float32")), "select": (Op("lt", (x, Const(0.5, "float32"))), x, Op("neg", (x,)))}
    args = others.get(name) or (x, *[Const(0.3, "float32")] * (row.arity - 1))
    slope = partial(Op(name, tuple(args)), x, Arithmetic("float32", lambda _: "float32"))
    assert slope is not None

    def value(expr, at):
        match expr:
            case Const(number, _):
                return np.float64(number)
            case Load():
                return np.float64(at)
            case Op(operation, parts):
                return NUMPY[operation](*(value(part, at) for part in parts))
        raise AssertionError(expr)

    for at in (0.31, 0.77, 1.9):
        step = 1e-6
        expected = (value(Op(name, tuple(args)), at + step) - value(Op(name, tuple(args)), at - step)) / (2 * step)
        assert value(slope, at) == pytest.approx(expected, rel=1e-5, abs=1e-6)
