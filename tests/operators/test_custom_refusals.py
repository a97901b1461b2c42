"""Tensor expressions that the compiler does not take are refused by name, and those beside them are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import custom

compute: Any = te.compute  # its own hints take it for a list


def matrix(name: str = "x", dtype: str = "float32", shape: tuple = (3, 5)) -> Any:
    return te.placeholder(shape, dtype, name=name)


def shifted_sum(x: Any) -> list[Any]:
    """sum(exp(x - max)) of each row."""
    j = te.reduce_axis((0, x.shape[1]), name="j")
    r = compute((x.shape[0],), lambda i: te.max(x[i, j], axis=j), name="r")
    return [compute((x.shape[0],), lambda i: te.sum(te.exp(x[i, j] - r[i]), axis=j), name="s")]


def fold(reducer: Any, **options: Any) -> Any:
    """One reduction of `x` along its rows: the input and the output."""
    x = matrix()
    j = te.reduce_axis((0, 5), name="j")
    return [x], [compute((3,), lambda i: reducer(x[i, j], axis=j, **options), name="s")]


def unlisted() -> Any:
    x, y = matrix("x"), matrix("y")
    return [x], [compute((3, 5), lambda i, j: x[i, j] + y[i, j], name="o")]


def unused() -> Any:
    x, y = matrix("x"), matrix("y")
    return [x, y], [compute((3, 5), lambda i, j: x[i, j] + 1.0, name="o")]


def dynamic() -> Any:
    x = matrix(shape=(tirx.Var("n", "int32"), 4))
    return [x], [compute((2, 4), lambda i, j: x[i, j] + 1.0, name="o")]


def of_dtype(dtype: str) -> Any:
    x = matrix(dtype=dtype)
    return [x], [compute((3, 5), lambda i, j: x[i, j], name="o")]


def named(first: str, second: str) -> Any:
    x = matrix(first)
    return [x], [compute((3, 5), lambda i, j: x[i, j] + 1.0, name=second)]


def difference() -> Any:
    return fold(te.comm_reducer(lambda a, b: a - b, lambda t: tirx.const(0, t), name="difference"))


def argmax() -> Any:
    def pick(a: Any, b: Any) -> Any:
        return tirx.Select(a[1] > b[1], a[0], b[0]), tirx.Select(a[1] > b[1], a[1], b[1])

    reducer = te.comm_reducer(pick, lambda t0, t1: (tirx.const(-1, t0), te.min_value(t1)))
    x = matrix()
    j = te.reduce_axis((0, 5), name="j")
    return [x], list(compute((3,), lambda i: reducer((j.var, x[i, j]), axis=j), name="best"))


def conditional() -> Any:
    x = matrix()
    j = te.reduce_axis((0, 5), name="j")
    return [x], [compute((3,), lambda i: te.sum(x[i, j], axis=j, where=j > i), name="s")]


def started() -> Any:
    return fold(te.sum, init=tirx.const(1.0, "float32"))


def folded_from(identity: float, fold_of: Any = lambda a, b: a + b) -> Any:
    return fold(te.comm_reducer(fold_of, lambda t: tirx.const(identity, t), name="folded"))


def larger(a: Any, b: Any) -> Any:
    return tirx.max(a, b)


def over(start: Any, end: Any, name: str = "j") -> Any:
    x = matrix()
    j = te.reduce_axis((start, end), name=name)
    return [x], [compute((3,), lambda i: te.sum(x[i, j], axis=j), name="s")]


def scan() -> Any:
    x, state = matrix("x"), matrix("state")
    first = compute((1, 5), lambda _, j: x[0, j], name="first")
    step = compute((3, 5), lambda t, j: state[t - 1, j] + x[t, j], name="step")
    return [x], [te.scan(first, step, state, inputs=[x], name="running")]


def outside() -> Any:
    x = matrix()
    j = te.reduce_axis((0, 5), name="j")
    return [x], [compute((3,), lambda i: te.sum(x[i + 1, j], axis=j), name="s")]


def before() -> Any:
    x = matrix()
    return [x], [compute((3, 5), lambda i, j: x[i, j] - x[i, j - 1], name="o")]


def unknown_call() -> Any:
    x = matrix()
    return [x], [compute((3, 5), lambda i, j: tirx.nextafter(x[i, j], x[i, j]), name="o")]


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (unlisted, r"placeholder 'y' is used but not among the inputs(.|\n)*add y to inputs"),
        (unused, r"input 'y' reaches no output"),
        (dynamic, r"'x' has the dynamic size n in its shape \(n, 4\)"),
        (lambda: of_dtype("int64"), r"'x' has dtype int64(.|\n)*one of float16, bfloat16"),
        (lambda: named("x", "x"), r"two tensors are called 'x'"),
        (lambda: named("my x", "o"), r"tensor 'my x': its name is not a Python identifier"),
        (lambda: named("x", "for"), r"tensor 'for': its name is not a Python identifier"),
        (difference, r"stage 's': block 's' does not have the form X = X \(f\) term"),
        (argmax, r"stage 'best' has 2 results(.|\n)*a stage of its own"),
        (conditional, r"stage 's' reduces under the condition(.|\n)*select the reducer's identity"),
        (started, r"stage 's' reduces from a start value of its own"),
        (lambda: folded_from(1.0), r"'s' starts its sum from 1.0, which is not the identity, 0.0(.|\n)*a later stage"),
        (lambda: folded_from(0.0, larger), r"'s' starts its max from 0.0, which is not the identity, -inf"),
        (lambda: folded_from(-1e30, larger), r"'s' starts its max from -1e\+30, which is not the identity, -inf"),
        (lambda: folded_from(0.0, lambda a, b: a * b), r"'s' starts its prod from 0.0, which is not the identity, 1.0"),
        (lambda: over(0, 0), r"stage 's' reduces over 'j' from 0 to 0, which has no element"),
        (lambda: over(4, 2), r"stage 's' reduces over 'j' from 4 to 2, which has no element"),
        (lambda: over(0, tirx.Var("n", "int32")), r"stage 's' reduces over 'j', which has n elements from 0"),
        (lambda: over(0, 5, "my j"), r"stage 's' reduces over 'my j', which is not a Python identifier"),
        (lambda: over(2, 6), r"'s' reads 'x' outside: index j \+ 2 of axis 1 runs from 2 to 5, and the axis has 5"),
        (scan, r"stage 'running' is a te.scan"),
        (outside, r"'s' reads 'x' outside: index i \+ 1 of axis 0 runs from 1 to 3, and the axis has 3(.|\n)*guard"),
        (before, r"'o' reads 'x' outside: index j - 1 of axis 1 runs from -1 to 3"),
        (unknown_call, r"call .*nextafter.* is not supported"),
        (lambda: ([matrix()], [matrix()]), r"output 'x' is a placeholder"),
        (lambda: (shifted_sum(matrix()), shifted_sum(matrix())), r"input 's' is computed"),
        (lambda: ([matrix()], []), r"outputs: expected a list of TVM tensors, at least one, got nothing"),
        (lambda: ([3], [4]), r"inputs: expected a list of TVM tensors, at least one, got something else among them"),
        (lambda: (matrix(), shifted_sum(matrix())), r"inputs: expected a list of TVM tensors.*, got Tensor"),
    ],
)
def test_what_the_compiler_does_not_take_is_refused_by_name(definition, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        custom("f", *definition())


def test_guarded_reads_and_indices_that_stay_inside_are_taken() -> None:
    x = matrix()
    difference = compute(
        (3, 5), lambda i, j: x[i, j] - tirx.if_then_else(j > 0, x[i, j - 1], tirx.const(0.0, "float32")), name="o"
    )
    data = np.arange(15.0).reshape(3, 5) ** 2
    np.testing.assert_allclose(custom("f", [x], [difference]).reference(data), np.diff(data, axis=1, prepend=0.0))
    rolled = compute((3, 5), lambda i, j: x[2 - i, (j + 4) % 5], name="o")
    np.testing.assert_allclose(custom("f", [x], [rolled]).reference(data), np.roll(data[::-1], 1, axis=1))


def test_names_and_lists_are_checked() -> None:
    x = matrix()
    out = shifted_sum(x)
    with pytest.raises(DefinitionError, match="operator 'my-op': its name is not a Python identifier"):
        custom("my-op", [x], out)
    with pytest.raises(DefinitionError, match="input 'x' is listed twice"):
        custom("f", [x, x], out)
    with pytest.raises(DefinitionError, match="output 's' is listed twice"):
        custom("f", [x], out * 2)
