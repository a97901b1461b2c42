"""Operators: the definition runs natively and equals its reference; mods; refusals."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.nodes import Block, Loop, Program
from neptune_lab.loop_ir.tvm_compat import run_native
from neptune_lab.operators import OPERATORS, attention, attention_reference, find, math, softmax
from neptune_lab.operators.base import Operator

SIZES = {"batch": 2, "heads": 2, "q_len": 3, "kv_len": 5, "head_dim": 4}


def run(op: Operator, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The definition's result, run natively, and the reference's."""
    inputs = op.random_inputs(seed)
    arrays = {b.name: inputs.get(b.name, np.zeros(b.shape, b.dtype)) for b in op.program.buffers}
    return run_native(op.program, arrays)[op.outputs[0].name], op.reference(*inputs.values())


def blocks(program: Program) -> list[tuple[str, str, tuple[str, ...]]]:
    """(block, buffer, loops around it) in program order."""
    found = []

    def visit(stmt, around):
        if isinstance(stmt, Loop):
            for inner in stmt.body:
                visit(inner, (*around, stmt.var))
        else:
            found.append((stmt.name, stmt.writes, around))

    for stmt in program.body:
        visit(stmt, ())
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_figure1_equals_its_reference(dtype: str, tolerance: float) -> None:
    result, reference = run(softmax.figure1(3, 5, dtype))
    assert result.dtype == dtype
    np.testing.assert_allclose(result, reference, rtol=tolerance)


def test_figure1_has_the_names_of_the_figure() -> None:
    op = softmax.figure1()
    assert blocks(op.program) == [
        ("s_max", "xmax", ("i", "j")),
        ("s_exp", "xexp", ("i", "j")),
        ("s_sum", "xsum", ("i", "j")),
    ]
    assert op.program.params == ("inp", "xsum")
    assert [b.origin for b in _all(op.program)] == ["s_max", "s_exp", "s_sum"]
    assert [[it.name for it in b.iters] for b in _all(op.program)] == [["i", "j"]] * 3
    assert "xmax = te.compute" in op.source


def test_attention_has_one_block_a_stage_in_the_order_of_the_definition() -> None:
    op = attention.causal(**SIZES)
    assert blocks(op.program) == [
        ("qk", "qk", ("b", "h", "i", "j", "d")),
        ("score", "score", ("b", "h", "i", "j")),
        ("s_max", "s_max", ("b", "h", "i", "j")),
        ("s_exp", "s_exp", ("b", "h", "i", "j")),
        ("s_sum", "s_sum", ("b", "h", "i", "j")),
        ("p", "p", ("b", "h", "i", "j")),
        ("acc", "acc", ("b", "h", "i", "d", "j")),
        ("out", "out", ("b", "h", "i", "d")),
    ]
    dtypes = {b.name: b.dtype for b in op.program.buffers}
    assert {n for n, d in dtypes.items() if d == "float16"} == {"q", "k", "v", "p", "out"}
    assert {n for n, d in dtypes.items() if d == "float32"} == {"qk", "score", "s_max", "s_exp", "s_sum", "acc"}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("make", [attention.full, attention.causal, attention.general])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("float32", 2e-6)])
def test_attention_equals_its_reference(make, dtype: str, tolerance: float, seed: int) -> None:
    result, reference = run(make(**SIZES, dtype=dtype), seed)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
def test_reference_is_attention_as_torch_has_it(causal: bool) -> None:
    op = (attention.causal if causal else attention.full)(batch=2, heads=2, seq=6, head_dim=4, dtype="float32")
    inputs = op.random_inputs(3)
    q, k, v = (torch.from_numpy(a).double() for a in inputs.values())
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    np.testing.assert_allclose(op.reference(*inputs.values()), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_reference_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    op = attention.general(1, 2, 7, 5, 4, score_mod=lambda s, b, h, q, kv: s + h * q - kv, mask_mod=window)
    inputs = list(op.random_inputs(0).values())
    whole = op.reference(*inputs)
    monkeypatch.setattr(attention_reference, "_REFERENCE_VALUES", 12)
    np.testing.assert_array_equal(op.reference(*inputs), whole)


def test_causal_aligns_the_diagonal_to_the_end() -> None:
    op = attention.causal(q_len=1, kv_len=4, head_dim=4)
    q, k, v = op.random_inputs(0).values()
    everything = attention.full(q_len=1, kv_len=4, head_dim=4)
    np.testing.assert_array_equal(op.reference(q, k, v), everything.reference(q, k, v))


def test_fully_masked_rows_are_nan_in_both() -> None:
    result, reference = run(attention.causal(q_len=4, kv_len=2, head_dim=4))
    assert np.isnan(reference[0, 0, :2]).all()
    np.testing.assert_array_equal(np.isnan(result), np.isnan(reference))
    np.testing.assert_allclose(result, reference, rtol=2e-3, atol=2e-3)


# -- mods ------------------------------------------------------------------------------------------------------------


def window(b, h, q, kv):
    return (q >= kv) & (q - kv <= 2)


def softcap_torch(score, b, h, q, kv):
    return torch.tanh(score / 20.0) * 20.0


def softcap_numpy(score, b, h, q, kv):
    return np.tanh(score / 20.0) * 20.0


def softcap(score, b, h, q, kv):
    return math.tanh(score / 20.0) * 20.0


def alibi(score, b, h, q, kv):
    return score + 2.0 ** (-8 * (h + 1) / 4) * (kv - q)


def everything(score, b, h, q, kv):
    near = ~((q - kv) % 3 == 1) | (h != 0) & (kv > 2)
    swapped = torch.where(near, torch.minimum(score, 1 + q), np.maximum(score, -kv))
    return 1 - math.where(q // 2 < kv, swapped, math.exp(-abs(score))) + 0.5 * (score % 2) - score // 1 + b


def functions(score, b, h, q, kv):
    x = abs(score) + 1
    return (
        math.exp(-x) + math.exp2(-x) + math.log(x) + math.log2(x) + math.sqrt(x) + math.rsqrt(x)
        + math.sigmoid(x) + math.minimum(x, 2) + math.maximum(x, q) + torch.erf(x) + np.sin(x) + torch.cos(x)
        + torch.floor(x) + np.ceil(x) + 2.0**kv + 1 / x + True * x
    )  # fmt: skip


MODS = [softcap, softcap_torch, softcap_numpy, alibi, everything, functions]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("score_mod", MODS)
def test_a_score_mod_means_the_same_in_program_and_reference(score_mod) -> None:
    op = attention.general(**SIZES, score_mod=score_mod, mask_mod=window, dtype="float32")
    result, reference = run(op)
    np.testing.assert_allclose(result, reference, rtol=3e-5, atol=3e-5)
    assert np.isfinite(reference).all()


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "mask_mod",
    [
        lambda b, h, q, kv: q >= kv,
        lambda b, h, q, kv: (q >= kv) & (q - kv <= 2),
        lambda b, h, q, kv: (kv == 0) | ~(kv < 2) & (h == 1),
        lambda b, h, q, kv: (q // 2 >= kv // 2) | (kv % 2 != q % 2),
        lambda b, h, q, kv: torch.logical_and(q >= kv, torch.logical_not(kv > 3)),
        lambda b, h, q, kv: True,
    ],
)
def test_a_mask_mod_means_the_same_in_program_and_reference(mask_mod) -> None:
    op = attention.general(**SIZES, mask_mod=mask_mod, dtype="float32")
    result, reference = run(op)
    np.testing.assert_allclose(result, reference, rtol=2e-6, atol=2e-6)
    q, k, v = (torch.from_numpy(a).double() for a in op.random_inputs(0).values())
    mask = np.zeros((2, 2, 3, 5), dtype=bool)
    for b, h, i, j in np.ndindex(mask.shape):  # on torch's own integers, as FlexAttention calls it
        mask[b, h, i, j] = mask_mod(*(torch.tensor(x) for x in (b, h, i, j)))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.from_numpy(mask))
    np.testing.assert_allclose(reference, expected.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": 0}, r"heads=0: expected a positive integer"),
        ({"q_len": 2.5}, r"q_len=2.5: expected a positive integer"),
        ({"batch": True}, r"batch=True"),
        ({"dtype": "int8"}, r"dtype='int8': expected one of float16, bfloat16, float32"),
        ({"scale": "big"}, r"scale='big': expected a finite number"),
        ({"scale": float("nan")}, r"scale=nan"),
        ({"dtype": "fp16"}, r"dtype='fp16': (.|\n)*write it as text: dtype='float16'"),
        ({"dtype": torch.bfloat16}, r"dtype=torch.bfloat16: (.|\n)*dtype='bfloat16'"),
        ({"mask_mod": 3}, r"mask_mod=3: expected a function of \(b, h, q, kv\)"),
        (
            {"mask_mod": lambda q, kv: q >= kv},
            r"mask_mod=<lambda>: expected a function of \(b, h, q, kv\), but too many .*: it takes \(",
        ),
        ({"mask_mod": lambda b, h, q, kv: q - kv}, r"mask_mod=<lambda> returned int: expected bool"),
        ({"mask_mod": lambda b, h, q, kv: None}, r"mask_mod=<lambda> returned NoneType"),
        ({"mask_mod": lambda b, h, q, kv: q >= kv and kv > 1}, r"truth of a value(.|\n)*`&`, `\|`"),
        ({"mask_mod": lambda b, h, q, kv: q & kv}, r"mask_mod=<lambda> returned int: expected bool(.|\n)*q >= kv"),
        ({"mask_mod": lambda b, h, q, kv: q >= torch.ones(2)}, r"shape \(2,\) is used whole"),
        ({"mask_mod": lambda b, h, q, kv: torch.cumsum(q, 0) >= kv}, r"torch.cumsum is not one of the functions"),
        ({"mask_mod": lambda b, h, q, kv: np.add.reduce(q) >= kv}, r"numpy.add.reduce is not one of the functions"),
        ({"mask_mod": lambda b, h, q, kv: q >= "kv"}, r"with a str"),
        ({"mask_mod": lambda b, h, q, kv: len(q) >= kv}, r"mask_mod=<lambda>: object of type 'Scalar' has no len"),
        ({"score_mod": lambda s, b, h, q, kv: s > 0}, r"score_mod=<lambda> returned bool: expected float"),
    ],
)
def test_attention_refuses_and_names_the_argument(arguments: dict, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        attention.general(**{**SIZES, **arguments})


def test_lengths_are_given_once() -> None:
    with pytest.raises(DefinitionError, match="give seq, or q_len and kv_len"):
        attention.causal(seq=4, kv_len=3)
    with pytest.raises(DefinitionError, match="give seq, or q_len and kv_len"):
        attention.causal()
    with pytest.raises(DefinitionError, match="kv_len=None: expected a positive integer"):
        attention.full(q_len=4)
    with pytest.raises(DefinitionError, match="rows=-1"):
        softmax.figure1(rows=-1)


def test_the_reference_checks_its_arguments() -> None:
    op = softmax.figure1()
    with pytest.raises(DefinitionError, match=r"softmax_figure1 takes 1 inputs \(inp\), got 2"):
        op.reference(np.zeros((2, 4)), np.zeros((2, 4)))
    with pytest.raises(DefinitionError, match=r"inp has shape \(4,\), softmax_figure1 takes \(2, 4\)"):
        op.reference(np.zeros(4))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_says_what_it_is(name: str) -> None:
    arguments = SIZES if name.startswith("attention") else {}
    op = find(name)(**arguments)
    assert op.name.isidentifier()
    assert json.loads(json.dumps(op.params)) == op.params
    assert op.program.inputs == tuple(t.name for t in op.inputs)
    assert op.program.outputs == tuple(t.name for t in op.outputs)
    for spec in (*op.inputs, *op.outputs):
        buffer = op.program.buffer(spec.name)
        assert (buffer.shape, buffer.dtype) == (spec.shape, spec.dtype)
    assert all(isinstance(b, Block) and b.origin == b.name for b in _all(op.program))
    once, again = op.random_inputs(5), op.random_inputs(5)
    assert all((once[n] == again[n]).all() for n in once)
    assert {n: (a.shape, str(a.dtype)) for n, a in once.items()} == {t.name: (t.shape, t.dtype) for t in op.inputs}
    assert "te.compute" in op.source
    with pytest.raises(DefinitionError, match="there is no operator"):
        find(name + "?")


@pytest.mark.nightly
def test_making_an_operator_loads_neither_tvm_nor_torch() -> None:
    code = (
        "import sys; from neptune_lab.operators import attention;"
        "op = attention.causal(seq=4, head_dim=4); op.reference(*op.random_inputs().values());"
        "print([m for m in ('tvm', 'torch', 'sympy', 'triton') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def _all(program: Program) -> list[Block]:
    def visit(stmt):
        if isinstance(stmt, Block):
            return [stmt]
        return [b for inner in stmt.body for b in visit(inner)]

    return [b for stmt in program.body for b in visit(stmt)]
