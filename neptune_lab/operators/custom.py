"""Operators from a user's own tensor expressions, which are checked first.

>>> from tvm import te
>>> x = te.placeholder((4, 8), "float32", name="x")
>>> j = te.reduce_axis((0, 8), name="j")
>>> total = te.compute((4,), lambda i: te.sum(x[i, j], axis=j), name="total")
>>> op = custom("row_sum", [x], [total], reference=lambda x: x.sum(axis=1))
>>> str(op)
'row_sum(x: float32[4, 8]) -> total: float32[4]'
"""

# TVM's annotations are narrower than what its functions accept.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import Arrays, Operator, Params, TensorSpec, source_of
from neptune_lab.operators.custom_checks import (
    FLOATS,
    check_graph,
    check_name,
    check_reach,
    check_reducers,
    listed_tensors,
)

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program

_SMALL = 8  # random integers are below it


def custom(
    name: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    reference: Callable[..., Any] | None = None,
    title: str | None = None,
    doc: str = "custom",
    params: Params | None = None,
    template: str | None = None,
    draw: Callable[[np.random.Generator], Sequence[Any]] | None = None,
) -> Operator:
    """An operator from TVM's tensor expressions.

    A stage is one `te.compute` of one expression: elementwise, or one reduction with one of the reducers that the
    compiler knows.  Shapes and the number of stages are static.  Dtypes are float16, bfloat16, float32, float64, int8,
    int32 and bool.

    Args:
        name: a Python identifier; kernels are named after it.
        inputs: all `te.placeholder`s, in the order of the kernel's arguments.
        outputs: the resulting tensors, each made by `te.compute`.
        reference: a function from one array per input (int64 for int32, float64 for all other dtypes) to the output, or
            a tuple of the outputs.  If None, the reference is the unscheduled definition, run in float64.
        title: a one-line description; the name if None.
        doc: where the definition comes from.
        params: what the operator was made from, as plain JSON, for the record.
        template: the template that `nl.compile` uses by default, "rolling_update" or "split_k_update"; if None, it is
            chosen by shape.
        draw: a function from a random generator to one array per input, in order; if None, floats are standard normal,
            integers are drawn from 0 to 7, and booleans are true or false.

    Returns:
        The operator, from `inputs` to `outputs`.

    Raises:
        DefinitionError: the compiler cannot take the definition; the message names the tensor or stage: lists that are
            empty, or hold something else than tensors; names that are not identifiers, or that two tensors share;
            placeholders that are not listed, or not used; shapes that are not static, or of more than 2**40 elements;
            other dtypes; `te.scan`, `te.extern`, and stages with several results; reductions with a condition or a
            start value, with an unknown reducer or one that starts from something else than its identity, or over an
            axis without elements; reads outside a tensor that no condition guards.
    """
    in_tensors, out_tensors = listed_tensors("inputs", inputs), listed_tensors("outputs", outputs)
    check_name("operator", name)
    check_graph(in_tensors, out_tensors)

    from neptune_lab.loop_ir.tvm_compat import from_te

    program = from_te(name, in_tensors, out_tensors)
    check_reducers(program)
    check_reach(program)
    in_specs, out_specs = tuple(map(_spec, in_tensors)), tuple(map(_spec, out_tensors))
    return Operator(
        name=name,
        title=title or name,
        doc=doc,
        params=dict(params or {}),
        inputs=in_specs,
        outputs=out_specs,
        source=_source(program, reference),
        template=template,
        build=lambda: program,
        compute=_as_defined(program) if reference is None else _checked_reference(name, reference, out_specs),
        draw=(lambda rng: tuple(_random(rng, spec) for spec in in_specs))
        if draw is None
        else _drawn(name, draw, in_specs),
    )


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(str(tensor.op.name), tuple(int(n) for n in tensor.shape), str(tensor.dtype))


def _as_defined(program: Program) -> Callable[..., Arrays]:
    """The reference that runs the unscheduled definition in float64."""

    def compute(*arrays: np.ndarray) -> Arrays:
        from neptune_lab.loop_ir.run import run_wide

        results = run_wide(program, dict(zip(program.inputs, arrays, strict=True)))
        return tuple(results[name].astype(np.float64) for name in program.outputs)

    return compute


def _checked_reference(
    name: str, reference: Callable[..., Any], outputs: tuple[TensorSpec, ...]
) -> Callable[..., Arrays]:
    """The user's reference, with results in float64; raises DefinitionError if their number or shapes are wrong."""

    def compute(*arrays: np.ndarray) -> Arrays:
        returned = reference(*arrays)
        unchecked = returned if isinstance(returned, tuple | list) else (returned,)
        if len(unchecked) != len(outputs):
            raise DefinitionError(
                f"the reference of {name} gives {len(unchecked)} arrays, expected {len(outputs)}",
                help="return one array per output, as a tuple",
            )
        results = tuple(np.asarray(array, dtype=np.float64) for array in unchecked)
        for spec, array in zip(outputs, results, strict=True):
            if array.shape != spec.shape:
                raise DefinitionError(
                    f"the reference of {name} gives {spec.name} of shape {array.shape}, expected {spec.shape}",
                    help="return the array in the shape that the output has",
                )
        return results

    return compute


def _random(rng: np.random.Generator, spec: TensorSpec) -> np.ndarray:
    if spec.dtype in FLOATS:
        return rng.standard_normal(spec.shape)
    return rng.integers(0, 2 if spec.dtype == "bool" else _SMALL, spec.shape)


def _drawn(
    name: str, draw: Callable[[np.random.Generator], Sequence[Any]], inputs: tuple[TensorSpec, ...]
) -> Callable[[np.random.Generator], Arrays]:
    """The user's `draw`; raises DefinitionError if the number or the shapes of its arrays are wrong."""

    def checked(rng: np.random.Generator) -> Arrays:
        arrays = tuple(np.asarray(array) for array in draw(rng))
        shapes, expected = [a.shape for a in arrays], [t.shape for t in inputs]
        if shapes != expected:
            raise DefinitionError(
                f"draw of {name} gives arrays of shapes {shapes}, expected {expected}",
                help="return one array per input, in order, of these shapes",
            )
        return arrays

    return checked


def _source(program: Program, reference: Callable[..., Any] | None) -> str:
    """One line per stage, then the source text of the user's reference."""
    from neptune_lab.loop_ir.render import definition

    stages = "".join(f"{line.text}\n" for line in definition(program))
    return stages if reference is None else f"{stages}\n{source_of(reference)}"
