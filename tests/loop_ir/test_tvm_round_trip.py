"""To TVM and back: nothing that the loop-scalar IR can say is lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import small_operators as small  # pyright: ignore[reportMissingImports]
from tvm import s_tir, te

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Buffer, Const, Iter, Load, Loop, Op, Program, Store, Var
from neptune_lab.loop_ir.run import run
from neptune_lab.loop_ir.tvm_compat import from_te, from_tvm, outward, to_tvm, tvmscript
from neptune_lab.loop_ir.walks import walk
from neptune_lab.loop_schedule import Schedule
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import attention, softmax


def round_trip(program: Program) -> Program:
    return from_tvm(to_tvm(program), name=program.name, outputs=program.outputs, like=program)


def assert_unchanged(program: Program) -> None:
    again = round_trip(program)
    assert again.body == program.body
    assert again.params == program.params
    assert {b.name: b for b in again.buffers} == {b.name: b for b in program.buffers}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "op", [softmax.figure1(3, 5), attention.causal(1, 2, q_len=4, kv_len=5, head_dim=2)], ids=["figure1", "attention"]
)
def test_every_program_on_the_way(template: str, op):
    sch = TEMPLATES[template](Schedule(op), block_q=2, block_kv=2)
    programs = dict.fromkeys(p.program for a in sch.history for p in a.outcome.phases)
    assert len(programs) > 5
    for program in (op.program, *programs):
        assert_unchanged(program)


@pytest.mark.parametrize(
    "definition",
    [
        small.weighted,
        small.two_producers,
        small.l2_norm,
        small.rms_max,
        lambda: small.pair(lambda c, r: te.exp(c - r)),
    ],
)
def test_chains(definition: Callable[[], small.Definition]):
    sch = small.schedule(definition())
    sch.split("r.j", (None, 2))
    for block in ("s", "o"):
        if sch.has_block(block):
            sch.rolling_update(block, "r.j0")
            assert_unchanged(sch.program)


def unary(value) -> Program:
    """y[i] = value, over x, with notes on its loop."""
    block = Block("y", (Iter("i", 4, "spatial", Var("i")),), Store("y", (Var("i"),), value), origin="y")
    buffers = (Buffer("x", (4,), "float32"), Buffer("y", (4,), "float32"))
    loop = Loop("i", 4, (block,), "blockIdx.x", (("num_warps", 4), ("note", "text")))
    return Program("unary", ("x", "y"), ("y",), buffers, (loop,))


X = Load("x", (Var("i"),))
HALF = Const(0.5, "float32")
CALLS = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
    "neg": np.negative,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CALLS)
def test_functions_keep_name_and_meaning(name: str):
    program = unary(Op(name, (X,)))
    assert_unchanged(program)
    x = np.array([0.3, 1.7, 2.5, 4.0], "float32")
    np.testing.assert_allclose(run(program, {"x": x})["y"], CALLS[name](x), rtol=1e-5)


@pytest.mark.parametrize(
    "value",
    [
        Op("pow", (X, HALF)),
        Op("select", (Op("lt", (Var("i"), Const(2))), X, HALF)),
        Op("select", (Op("not", (Op("eq", (Var("i"), Const(2))),)), X, Const(float("-inf"), "float32"))),
        Op("guard", (X, HALF, Const(0.0, "float32"))),
        Op("max", (Op("min", (X, HALF)), Op("div", (HALF, X)))),
    ],
)
def test_operators(value):
    assert_unchanged(unary(value))


def test_guard_stands_in_at_the_point_only():
    program = unary(Op("guard", (X, Const(float("-inf"), "float32"), Const(7.0, "float32"))))
    x = np.array([0.5, -np.inf, np.inf, -1], "float32")
    assert run(program, {"x": x})["y"].tolist() == [0.5, 7, np.inf, -1]


def test_tvmscript_is_at_hand():
    text = tvmscript(softmax.figure1().program)
    assert 'T.sblock("s_max")' in text
    assert "T.exp(" in text


def test_definitions_that_are_not_taken():
    x = te.placeholder((4,), "float32", name="x")
    with pytest.raises(DefinitionError, match="operator nothing has no output"):
        from_te("nothing", [x], [])
    y = small.compute((4,), lambda i: te.trunc(x[i]), name="y")
    with pytest.raises(DefinitionError, match=r"the call .*trunc.* is not supported"):
        from_te("rounded", [x], [y])


def test_the_identity_of_max_is_infinite():
    """TVM starts a max at the lowest finite number; a fully masked row needs -inf."""
    values = run(softmax.figure1(1, 3, "float32").program, {"inp": np.full((1, 3), -np.inf, "float32")})
    assert values["xmax"].tolist() == [-np.inf]


def test_the_absolute_value_of_an_integer_stays_one():
    op = attention.general(1, 1, 4, 5, 2, score_mod=lambda s, b, h, q, kv: s - abs(q - kv) * 0.5 + abs(q))
    found = [e for b in tree.blocks(op.program) for e in walk(b.body.value) if isinstance(e, Op) and e.name == "abs"]
    assert {str(e.args[0]) for e in found} == {str(Op("sub", (Var("i"), Var("j")))), str(Var("i"))}
    assert_unchanged(op.program)


def test_blocks_have_the_buffers_of_their_program():
    """Also if a buffer has been converted again since, by another thread or after it left its cache."""
    program = small.operator(small.two_sums()).build()
    for _ in range(2):
        s_tir.Schedule(to_tvm(program))  # (which verifies the function)
        assert_unchanged(program)
        outward._buffer.cache_clear()
