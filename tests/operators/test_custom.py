"""A user's own tensor expressions: what comes in works like any operator, and each refusal names its tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from definitions import assert_defined_as_referenced
from tvm import te, tirx

from neptune_lab import Schedule, compile
from neptune_lab.errors import DefinitionError
from neptune_lab.operators import Operator, custom

compute: Any = te.compute  # its own hints take it for a list


def matrix(name: str = "x", dtype: str = "float32", shape: tuple = (3, 5)) -> Any:
    return te.placeholder(shape, dtype, name=name)


def shifted_sum(x: Any) -> list[Any]:
    """sum(exp(x - max)) of each row."""
    j = te.reduce_axis((0, x.shape[1]), name="j")
    r = compute((x.shape[0],), lambda i: te.max(x[i, j], axis=j), name="r")
    return [compute((x.shape[0],), lambda i: te.sum(te.exp(x[i, j] - r[i]), axis=j), name="s")]


def test_an_own_operator_is_an_operator_like_any_other() -> None:
    x = matrix()
    op = custom("my_op", [x], shifted_sum(x), reference=lambda x: np.exp(x - x.max(1, keepdims=True)).sum(1))
    assert str(op) == "my_op(x: float32[3, 5]) -> s: float32[3]"
    assert_defined_as_referenced(op)
    assert op.source.startswith("r[i] = max(x[i, j] for j in range(5))\ns[i] = sum(exp(x[i, j] - r[i]) for j")
    assert "reference=lambda x" in op.source
    schedule = Schedule(op)
    schedule.rolling_update("s", "r.j")
    assert schedule.check()


def test_without_a_reference_the_definition_itself_is_run_in_float64() -> None:
    x, y = matrix("x", "float16"), matrix("y", "int32", (5,))
    scaled = compute((3, 5), lambda i, j: x[i, j].astype("float32") * y[j].astype("float32") / 3.0, name="scaled")
    whole = compute((5,), lambda j: y[j] + 1, name="whole")
    op = custom("scale", [x, y], [scaled, whole])
    inputs = op.random_inputs(1)
    assert inputs["y"].dtype == np.int32
    assert set(inputs["y"]) <= set(range(8))
    first, second = op.reference(*inputs.values())
    np.testing.assert_allclose(first, inputs["x"].astype(np.float64) * inputs["y"] / 3, rtol=1e-15)
    np.testing.assert_array_equal(second, inputs["y"] + 1)


def test_inputs_are_drawn_as_asked() -> None:
    x = matrix()
    op = custom("drawn", [x], shifted_sum(x), draw=lambda rng: [np.full((3, 5), rng.integers(9, 10))])
    np.testing.assert_array_equal(op.random_inputs(0)["x"], np.full((3, 5), 9, dtype=np.float32))
    wrong = custom("drawn", [x], shifted_sum(x), draw=lambda rng: [np.zeros(3)])
    with pytest.raises(
        DefinitionError, match=r"draw of drawn gives arrays of shapes \[\(3,\)\], expected \[\(3, 5\)\]"
    ):
        wrong.random_inputs(0)


def test_a_reference_of_another_shape_is_refused() -> None:
    x = matrix()
    with pytest.raises(DefinitionError, match=r"the reference of f gives s of shape \(\), expected \(3,\)"):
        custom("f", [x], shifted_sum(x), reference=np.sum).reference(np.zeros((3, 5)))
    with pytest.raises(DefinitionError, match="the reference of f gives 2 arrays, expected 1"):
        custom("f", [x], shifted_sum(x), reference=lambda x: (x, x)).reference(np.zeros((3, 5)))


def part_of_a_row() -> Any:
    x = matrix(shape=(3, 24))
    j, k = te.reduce_axis((2, 20), name="j"), te.reduce_axis((3, 19), name="k")
    r = compute((3,), lambda i: te.max(x[i, j], axis=j), name="r")
    s = compute((3,), lambda i: te.sum(te.if_then_else(k > 4, te.exp(x[i, k] - r[i]), 0.0), axis=k), name="s")
    return [x], [s], lambda x: np.exp(x[:, 5:19] - x[:, 2:20].max(1, keepdims=True)).sum(1)


def strided_part() -> Any:
    x = matrix(shape=(3, 24))
    j, k = te.reduce_axis((2, 20), name="j"), te.reduce_axis((-1, 8), name="k")
    r = compute((3,), lambda i: te.max(x[i, j - 2] + j.var.astype("float32"), axis=j), name="r")
    s = compute((3,), lambda i: te.sum(te.exp(x[i, 2 * k + 2] - r[i]), axis=k), name="s")
    return [x], [s], lambda x: np.exp(x[:, :18:2] - (x[:, :18] + np.arange(2, 20)).max(1, keepdims=True)).sum(1)


def repeated_sum() -> Any:
    x = matrix(shape=(3, 24))
    j, k = te.reduce_axis((0, 24), name="j"), te.reduce_axis((0, 24), name="k")
    a = compute((3,), lambda i: te.sum(x[i, 0], axis=j), name="a")
    return (
        [x],
        [compute((3,), lambda i: te.sum(x[i, k] + a[i], axis=k), name="s")],
        (lambda x: (x + 24 * x[:, :1]).sum(1)),
    )


def repeated_product() -> Any:
    x = matrix(shape=(3, 6))
    j = te.reduce_axis((0, 5), name="j")
    product = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="product")
    return [x], [compute((3, 6), lambda i, t: product(x[i, t], axis=j), name="s")], lambda x: x**5


def repeated_maximum() -> Any:
    """Of one row, whose elements no loop of a tile moves."""
    x = matrix(shape=(1, 6))
    j, k = te.reduce_axis((0, 4), name="j"), te.reduce_axis((0, 4), name="k")
    r = compute((1,), lambda i: te.max(x[i, j // 4], axis=j), name="r")
    return (
        [x],
        [compute((1,), lambda i: te.min(x[i, k // 4 + 1] - r[i], axis=k), name="s")],
        lambda x: x[:, 1] - x[:, 0],
    )


def repeated_in_one_of_two() -> Any:
    x = matrix(shape=(3, 24))
    j, k = te.reduce_axis((0, 7), name="j"), te.reduce_axis((0, 24), name="k")
    return [x], [compute((3,), lambda i: te.sum(x[i, k], axis=[j, k]), name="s")], lambda x: 7 * x.sum(1)


def carried_value_second() -> Any:
    """A reducer that te.comm_reducer takes with its operands exchanged."""
    x, j = matrix(shape=(3, 12)), te.reduce_axis((0, 12), name="j")
    largest = te.comm_reducer(lambda a, b: te.max(b, a), lambda t: tirx.const(float("-inf"), t), name="largest")
    return [x], [compute((3,), lambda i: largest(x[i, j], axis=j), name="r")], lambda x: x.max(1)


def softmax_of_parts() -> Any:
    """The maximum of each part of a row, which a sum over all parts reads."""
    x = matrix(shape=(3, 4, 5))
    j, k, c = te.reduce_axis((0, 5), name="j"), te.reduce_axis((0, 5), name="k"), te.reduce_axis((0, 4), name="c")
    r = compute((3, 4), lambda i, part: te.max(x[i, part, j], axis=j), name="r")
    return (
        [x],
        [compute((3,), lambda i: te.sum(te.exp(x[i, c, k] - r[i, c]), axis=[c, k]), name="s")],
        lambda x: np.exp(x - x.max(2, keepdims=True)).sum((1, 2)),
    )


def quotients_by_a_map() -> Any:
    """A repair that reads a map of a complete reduction, as do the elements that its producer folds."""
    x = matrix(shape=(3, 12))
    j, k, l = (te.reduce_axis((0, 12), name=name) for name in "jkl")
    low = compute((3,), lambda i: te.min(x[i, 11 - j], axis=j), name="low")
    size = compute((3,), lambda i: te.abs(low[i]) + 0.5, name="size")
    s = compute((3,), lambda i: te.sum(te.abs(x[i, k]) / size[i], axis=k), name="s")
    o = compute((3,), lambda i: te.max((x[i, l] - s[i]) / size[i], axis=l), name="o")

    def wanted(x: np.ndarray) -> np.ndarray:
        size = np.abs(x.min(1)) + 0.5
        return (x.max(1) - np.abs(x).sum(1) / size) / size

    return [x], [o], wanted


def loop_called_t() -> Any:
    x = matrix(shape=(3, 12))
    j, k = te.reduce_axis((0, 12), name="j"), te.reduce_axis((0, 12), name="t0")
    low = tirx.const(float("-inf"), "float32")
    r = compute((3, 12), lambda i, t: te.max(te.if_then_else(j <= t, x[i, j], low), axis=j), name="r")
    return (
        [x],
        [
            compute(
                (3, 12), lambda i, t: te.sum(te.if_then_else(k <= t, te.exp(x[i, k] - r[i, t]), 0.0), axis=k), name="s"
            )
        ],
        lambda x: np.exp(np.logaddexp.accumulate(x, 1) - np.maximum.accumulate(x, 1)),
    )


DEFINED = [
    part_of_a_row,
    strided_part,
    repeated_sum,
    carried_value_second,
    softmax_of_parts,
    quotients_by_a_map,
    repeated_product,
    repeated_maximum,
    repeated_in_one_of_two,
    loop_called_t,
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("template", "block_kv"), [(None, None), (None, 4), ("rolling_update", 4)])
@pytest.mark.parametrize("definition", DEFINED, ids=lambda d: d.__name__)
def test_kernels_compute_what_the_tensor_expressions_say(
    definition, template: str | None, block_kv: int | None
) -> None:
    """Compared with NumPy: the reference that `custom` derives comes from the same conversion as the kernel."""
    inputs, outputs, wanted = definition()
    kernel = compile(custom("defined", inputs, outputs), template, block_kv=block_kv)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(tuple(map(int, inputs[0].shape)))
    found = kernel(torch.tensor(x, dtype=torch.float32)).double().numpy()
    np.testing.assert_allclose(found, wanted(x), rtol=2e-5, atol=1e-5)


def test_a_maximum_of_bfloat16_begins_at_minus_infinity() -> None:
    x = matrix(dtype="bfloat16", shape=(3, 8))
    j = te.reduce_axis((0, 8), name="j")
    kernel = compile(custom("top", [x], [compute((3,), lambda i: te.max(x[i, j], axis=j), name="top")]))
    values = torch.randn(3, 8).bfloat16()
    values[1] = -torch.inf
    torch.testing.assert_close(kernel(values), values.amax(1))


def test_a_stage_without_axes_may_be_read_by_several() -> None:
    x = te.placeholder((7,), "float32", name="x")
    j = te.reduce_axis((0, 7), name="j")
    top = te.compute((), lambda *_: te.max(x[j], axis=j), name="top")
    k = te.reduce_axis((0, 7), name="k")
    total = te.compute((), lambda *_: te.sum(te.exp(x[k] - top()), axis=k), name="total")
    out = te.compute((7,), lambda i: te.exp(x[i] - top()) / total(), name="out")
    assert compile(custom("shares", [x], [out])).relative_error() < 1e-6


def test_a_long_chain_of_stages_is_taken_and_a_deep_expression_refused() -> None:
    """Python's recursion ends at 1,000 calls, of which a level takes several."""
    x = te.placeholder((2,), "float32", name="x")
    stage = x
    for n in range(600):
        stage = compute((2,), (lambda read: lambda i: read[i] + 1.0)(stage), name=f"s{n}")
    assert custom("chain", [x], [stage]).source.count("\n") >= 599

    def nested(times: int) -> Operator:
        def term(i: Any) -> Any:
            value = x[i]
            for _ in range(times):
                value = value + x[i]
            return value

        return custom("deep", [x], [compute((2,), term, name="deep_sum")])

    assert Schedule(nested(99)).check()
    with pytest.raises(DefinitionError, match=r"stage 'deep_sum' nests \d+ operations(.|\n)*add up halves"):
        nested(1000)
