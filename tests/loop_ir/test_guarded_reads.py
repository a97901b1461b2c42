"""Reads that conditions keep inside their buffer are judged without enumeration, and wrong guards are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import iteration_domain, tree
from neptune_lab.loop_ir.nodes import Block, Buffer, Const, Expr, Iter, Load, Op, Program, Store, Var
from neptune_lab.loop_ir.run import run
from neptune_lab.loop_ir.verify import verify

H, B, I, J = Var("h"), Var("b"), Var("i"), Var("j")
LARGE = 1600  # 3199 * 1600 points are more than are enumerated


def diagonal(n: int) -> Expr:
    """The row of column j on diagonal b, as the transpose of bias[i - j + n - 1] reads it."""
    return Op("sub", (B, Op("sub", (Const(n - 1), J))))


@dataclass(frozen=True)
class Guard:
    """low <= tested < high, around a read at row `index`; the read is on the other side if it is `turned`."""

    index: Expr
    tested: Expr
    low: Expr
    high: Expr
    turned: bool = False

    def around(self, read: Expr) -> Expr:
        sides = (Const(0.0, "float32"), read) if self.turned else (read, Const(0.0, "float32"))
        return Op("select", (Op("and", (self.low, self.high)), *sides))


def guard(n: int, *, low: int = 0, high: int | None = None, tested: Expr | None = None, turned: bool = False) -> Guard:
    tested = diagonal(n) if tested is None else tested
    limits = Op("ge", (tested, Const(low))), Op("lt", (tested, Const(n if high is None else high)))
    return Guard(diagonal(n), tested, *limits, turned)


def diagonals(
    n: int, guarded: Guard, *, name: str = "o", heads: int = 2, head: Expr = H, joint: bool = True
) -> Program:
    """o[h, b, j] = e[h, the row of column j on diagonal b, j] inside the tensor, with b split by 2; `joint`: e is
    computed in the same loop over heads."""
    e = Block(
        "e",
        tuple(Iter(v.name, k, "spatial", v) for v, k in ((H, heads), (I, n), (J, n))),
        Store("e", (H, I, J), Op("mul", (Load("x", (H, I, J)), Const(2.0, "float32")))),
    )
    row = Op("add", (Op("mul", (Var("b0"), Const(2))), Var("b1")))
    spatial = Iter("h", heads, "spatial", H), Iter("b", 2 * n - 1, "spatial", row), Iter("j", n, "spatial", J)
    store = Store(name, (H, B, J), guarded.around(Load("e", (head, guarded.index, J))))
    o = Block(name, spatial, store, predicates=(Op("lt", (row, Const(2 * n - 1))),))
    first, second = tree.loop_nest([("i", n), ("j", n)], e), tree.loop_nest([("b0", n), ("b1", 2), ("j", n)], o)
    shapes = {"x": (heads, n, n), "e": (heads, n, n), name: (heads, 2 * n - 1, n)}
    around = tree.loop_nest([("h", heads)], first)
    body = (replace(around, body=(first, second)),) if joint else (around, tree.loop_nest([("h", heads)], second))
    return Program("p", ("x", name), (name,), tuple(Buffer(k, v, "float32") for k, v in shapes.items()), body)


@pytest.mark.parametrize("joint", [True, False])
def test_a_guarded_read_of_a_large_tensor_is_legal(joint: bool):
    verify(diagonals(LARGE, guard(LARGE), joint=joint))


@pytest.mark.parametrize("joint", [True, False])
def test_numbers_do_not_need_enumeration(joint: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iteration_domain, "LIMIT", 8)
    n = 7
    program = diagonals(n, guard(n), name=f"o_{joint}", joint=joint)
    verify(program)
    x = np.random.default_rng(0).standard_normal((2, n, n)).astype(np.float32)
    found = run(program, {"x": x})[f"o_{joint}"]
    wanted = np.zeros((2, 2 * n - 1, n), np.float32)
    for i in range(n):
        for j in range(n):
            wanted[:, i - j + n - 1, j] = 2 * x[:, i, j]
    np.testing.assert_array_equal(found, wanted)


WRONG = {
    "one more row": lambda n: guard(n, high=n + 1),
    "one row before": lambda n: guard(n, low=-1),
    "another expression": lambda n: guard(n, tested=Op("add", (diagonal(n), Const(1)))),
    "another variable": lambda n: guard(n, tested=J),
    "the other side": lambda n: guard(n, turned=True),
}


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("n", [9, LARGE])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_guard_is_refused(name: str, n: int, joint: bool):
    with pytest.raises(ScheduleError, match="outside" if n == 9 else "cannot be shown that e.* is inside 'e'"):
        verify(diagonals(n, WRONG[name](n), joint=joint))


def test_what_is_read_inside_a_buffer_must_be_written():
    """In one loop over heads, the heads after this one are not written yet; and a writer may leave a row out."""
    ahead = Op("sub", (Const(1), H))
    with pytest.raises(ScheduleError, match="'e' has not written inside loop 'h'"):
        verify(diagonals(LARGE, guard(LARGE), head=ahead))
    verify(diagonals(LARGE, guard(LARGE), head=ahead, joint=False))
    whole = diagonals(LARGE, guard(LARGE), joint=False)

    def shorter(block: Block) -> Block:
        return replace(block, predicates=(Op("lt", (I, Const(LARGE - 1))),)) if block.name == "e" else block

    with pytest.raises(ScheduleError, match="'e' has not written"):
        verify(tree.map_blocks(whole, shorter))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_accepted_without_enumeration_stays_inside(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Random guards; numpy lists the rows that each lets through."""
    monkeypatch.setattr(iteration_domain, "LIMIT", 8)
    rng = np.random.default_rng(seed)
    accepted = 0
    for case in range(40):
        n = int(rng.integers(4, 8))
        shift, sign = int(rng.integers(-1, 2)), int(rng.choice([1, 1, 1, -1]))
        tested = diagonal(n) if sign > 0 else Op("neg", (diagonal(n),))
        tested = Op("add", (tested, Const(shift))) if shift else tested
        above, below = str(rng.choice(["ge", "gt"])), str(rng.choice(["lt", "le"]))
        low, high = int(rng.integers(-2, 2)), n + int(rng.integers(-2, 2))
        limits = Op(above, (tested, Const(low))), Op(below, (tested, Const(high)))
        guarded = Guard(diagonal(n), tested, *limits, turned=bool(rng.random() < 0.2))
        b, j = np.arange(2 * n - 1)[:, None], np.arange(n)[None, :]
        row = b - (n - 1 - j)
        value = sign * row + shift
        holds = (value >= low + (above == "gt")) & (value < high + (below == "le"))
        rows = row[holds != guarded.turned]
        try:
            verify(diagonals(n, guarded, name=f"o_{seed}_{case}"))
        except ScheduleError:
            continue
        accepted += 1
        assert not len(rows) or (rows.min() >= 0 and rows.max() < n), guarded
    assert accepted
