"""Keeps TVM from simplifying floats: `x - x` is 0 for TVM, but NaN if x is NaN or infinite."""

# TVM's type annotations are narrower than what its functions accept.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.ir import Call
from tvm_ffi import structural_equal

from neptune_lab.loop_ir.gradient_marks import STOP
from neptune_lab.loop_ir.tvm_compat.words import node_names

_PREFIX = "neptune_lab."
# TVM may simplify these on integers, unless an operand comes from a tensor: then they may wrap around.
_OPERATORS = node_names()
_LOGIC = ("and", "or", "not")


def hidden(inputs: list[Any], outputs: list[Any]) -> list[Any]:
    """`outputs` with each operator on floats, or on elements of integer tensors, replaced by a call that is opaque to
    TVM.

    `create_prim_func` simplifies each body over the reals: (x + 1e30) - 1e30 to x, x == x to true, not (x < 1) to
    x >= 1, 0 / x to 0.  In float32 each of these differs for some x.  Index arithmetic is left to TVM.
    """
    made: list[tuple[Any, Any]] = [(t, t) for t in inputs]

    def tensor(old: Any) -> Any:
        for known, new in made:
            if known.same_as(old):
                return new
        op = old.op
        new = old
        if isinstance(op, te.ComputeOp):
            old_bodies = list(op.body)
            bodies = [expr(body) for body in old_bodies]
            if any(a is not b for a, b in zip(bodies, old_bodies, strict=True)):
                made_op = te.operation._ffi_api.ComputeOp(op.name, op.tag, op.attrs, op.axis, bodies)
                new = made_op.output(old.value_index)
        made.append((old, new))
        return new

    def expr(e: Any) -> Any:
        kind = type(e).__name__
        if kind in _OPERATORS:
            operands = (e.a,) if kind == "Not" else (e.a, e.b)
            args = [expr(x) for x in operands]
            name = _OPERATORS[kind]
            if name in _LOGIC or not any(map(_is_computed, operands)):
                same = all(a is b for a, b in zip(args, operands, strict=True))
                return e if same else type(e)(*args)
            return tirx.call_pure_extern(e.ty.dtype, _PREFIX + name, *args)
        if kind == "Call":
            old_args = list(e.args)
            args = [tensor(a) if isinstance(a, te.Tensor) else expr(a) for a in old_args]
            same = all(a is b for a, b in zip(args, old_args, strict=True))
            return e if same else Call(e.op, args, e.attrs, e.ty_args, e.span, e.ty)
        if kind == "Cast":
            value = expr(e.value)
            return e if value is e.value else tirx.Cast(e.ty.dtype, value)
        if kind == "Select":
            args = [expr(x) for x in (e.condition, e.true_value, e.false_value)]
            return tirx.Select(*args)
        if kind == "Reduce":
            source = [expr(x) for x in e.source]
            return tirx.Reduce(e.combiner, source, e.axis, e.condition, e.value_index, e.init)
        return e

    for stage in in_order(outputs):  # what a stage reads is made before it: no recursion from stage to stage
        tensor(stage)
    return [tensor(t) for t in outputs]


def in_order(outputs: list[Any]) -> list[Any]:
    """Every tensor that the outputs read, each after those that it reads."""
    found: dict[tuple[Any, int], Any] = {}  # by operation and result: TVM does not compare tensors without axes
    waiting = [(t, False) for t in reversed(outputs)]
    while waiting:
        tensor, read = waiting.pop()
        key = (tensor.op, tensor.value_index)
        if key in found:
            continue
        if read:
            found[key] = tensor
        else:
            waiting.append((tensor, True))
            waiting += [(t, False) for t in reversed(tensor.op.input_tensors)]
    return list(found.values())


def stopped(e: Any) -> Any:
    """A float as a constant for derivatives (`loop_ir.gradient_marks`)."""
    return tirx.call_pure_extern(e.ty.dtype, _PREFIX + STOP, e)


def operator_of(call: Any) -> str | None:
    """The operator that a call made by `hidden` or `stopped` replaces; None for another call."""
    if str(call.op.name) != "tirx.call_pure_extern":
        return None
    name = str(call.args[0].value)
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else None


def _is_computed(e: Any) -> bool:
    """Whether an operand is a float, or an integer that depends on a tensor's element."""
    if "float" in str(e.ty.dtype):
        return True
    kind = type(e).__name__
    if kind in _OPERATORS:
        return _is_computed(e.a) or (kind != "Not" and _is_computed(e.b))
    if kind == "Cast":
        return _is_computed(e.value)
    if kind == "Select":
        return any(map(_is_computed, (e.condition, e.true_value, e.false_value)))
    if kind == "Call":
        return any(isinstance(a, te.Tensor) or _is_computed(a) for a in e.args)
    return False


def are_alike(one: Any, other: Any) -> bool:
    """Whether two expressions are the same, over the same variables."""
    return structural_equal(one, other)
