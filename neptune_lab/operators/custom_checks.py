"""Checks of a user's own tensor expressions (custom.py): what a definition that the compiler takes looks like."""

# TVM's annotations are narrower than what its functions accept.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError, ScheduleError
from neptune_lab.operators.extents import DEEPEST

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program

FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*FLOATS, "int8", "int32", "bool")
_OPERANDS = ("a", "b", "value", "condition", "true_value", "false_value")  # of TVM's expressions, beside lists of them


def listed_tensors(argument: str, tensors: Sequence[Any]) -> list[Any]:
    """The argument as a list, or DefinitionError."""
    from tvm import te

    listed = list(tensors) if isinstance(tensors, list | tuple) else None
    if not listed or not all(isinstance(t, te.Tensor) for t in listed):
        shown = "nothing" if listed == [] else type(tensors).__name__ if listed is None else "something else among them"
        raise DefinitionError(
            f"{argument}: expected a list of TVM tensors, at least one, got {shown}",
            help="such as inputs=[x] and outputs=[total]",
        )
    return listed


def check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise DefinitionError(f"{what} {name!r}: its name is not a Python identifier", help='give it one: name="x"')


def check_graph(inputs: list[Any], outputs: list[Any]) -> None:
    """The compiler can take every tensor that the outputs depend on.

    Formal statement: the inputs are exactly the placeholders that the outputs depend on; the outputs are computed;
    names are distinct identifiers; no tensor is listed twice; every operation passes `_check_operation`.
    """
    from tvm import te

    for tensor in inputs:
        if not isinstance(tensor.op, te.PlaceholderOp):
            raise DefinitionError(
                f"input {tensor.op.name!r} is computed",
                help="list what te.placeholder made; stages are found by themselves",
            )
    for tensor in outputs:
        if isinstance(tensor.op, te.PlaceholderOp):
            raise DefinitionError(
                f"output {tensor.op.name!r} is a placeholder", help="list tensors that te.compute made"
            )
    owners: dict[str, Any] = {}
    for op in _operations(outputs):
        name = str(op.name)
        check_name("tensor", name)
        if name in owners:
            raise DefinitionError(
                f"two tensors are called {name!r}", help="give each placeholder and stage its own name"
            )
        owners[name] = op
        _check_operation(op)
    listed = [str(t.op.name) for t in inputs]
    for kind, names in (("input", listed), ("output", [str(t.op.name) for t in outputs])):
        for name in names:
            if names.count(name) > 1:
                raise DefinitionError(f"{kind} {name!r} is listed twice", help="list each tensor once")
    for name, op in owners.items():
        if isinstance(op, te.PlaceholderOp) and not any(op.same_as(t.op) for t in inputs):
            raise DefinitionError(
                f"placeholder {name!r} is used but not among the inputs", help=f"add {name} to inputs"
            )
    for name in listed:
        if name not in owners:
            raise DefinitionError(f"input {name!r} reaches no output", help=f"leave {name} out of inputs")


def _operations(outputs: list[Any]) -> list[Any]:
    """Every operation that the outputs depend on, producers first, each once."""
    from neptune_lab.loop_ir.tvm_compat.as_written import in_order

    return list(dict.fromkeys(tensor.op for tensor in in_order(outputs)))


def _check_operation(op: Any) -> None:
    """A placeholder, or a stage of one result, with a static shape and a known dtype.

    Formal statement: a reduction folds every term of its domain, beginning with its reducer's identity.
    """
    from tvm import te, tirx

    name = str(op.name)
    if not isinstance(op, te.PlaceholderOp | te.ComputeOp):
        kind = type(op).__name__.removesuffix("Op").lower()
        raise DefinitionError(f"stage {name!r} is a te.{kind}", help="the compiler takes te.placeholder and te.compute")
    if op.num_outputs != 1:
        raise DefinitionError(
            f"stage {name!r} has {op.num_outputs} results, such as an argmax with its maximum",
            help="make each result a stage of its own",
        )
    tensor = op.output(0)
    for size in tensor.shape:
        if not isinstance(size, int) and not isinstance(size, tirx.IntImm):
            raise DefinitionError(
                f"{name!r} has the dynamic size {size} in its shape {tuple(tensor.shape)}",
                help="sizes are static: make the operator once for each size",
            )
        if int(size) < 1:
            raise DefinitionError(
                f"{name!r} has the shape {tuple(map(int, tensor.shape))}: expected sizes from 1",
                help="give each dimension at least one element",
            )
    if str(tensor.dtype) not in DTYPES:
        raise DefinitionError(f"{name!r} has dtype {tensor.dtype}", help=f"one of {', '.join(DTYPES)}")
    if not isinstance(op, te.ComputeOp):
        return
    body = op.body[0]
    if (depth := _nested(body)) > DEEPEST:
        raise DefinitionError(
            f"stage {name!r} nests {depth} operations in one another; expected at most {DEEPEST}",
            node=name,
            help="add up halves, (a + b) + (c + d) in place of ((a + b) + c) + d, or make a part a stage of its own",
        )
    if isinstance(body, tirx.Reduce):
        _check_axes(name, body.axis)
        if not (isinstance(body.condition, tirx.IntImm) and int(body.condition)):
            raise DefinitionError(
                f"stage {name!r} reduces under the condition {body.condition}",
                help="select the reducer's identity in the term: te.if_then_else(condition, term, identity)",
            )
        if len(body.init):
            raise DefinitionError(
                f"stage {name!r} reduces from a start value of its own", help="combine the start value in a later stage"
            )


def _nested(body: Any) -> int:
    """How many operations of an expression are in one another; indices of reads do not count."""
    from tvm import te

    deepest, waiting = 0, [(body, 0)]
    while waiting:
        e, depth = waiting.pop()
        deepest = max(deepest, depth)
        parts = [*getattr(e, "args", ()), *getattr(e, "source", ())]
        parts += [getattr(e, name) for name in _OPERANDS if hasattr(e, name)]
        if not any(isinstance(part, te.Tensor) for part in parts):
            waiting += [(part, depth + 1) for part in parts]
    return deepest


def _check_axes(stage: str, axes: Sequence[Any]) -> None:
    """Every reduction axis has a static start and end, at least one element, and a name that its loop can have."""
    from tvm import tirx

    for axis in axes:
        name, start, extent = str(axis.var.name), axis.dom.min, axis.dom.extent
        if not name.isidentifier():
            raise DefinitionError(
                f"stage {stage!r} reduces over {name!r}, which is not a Python identifier",
                node=stage,
                help='name the axis: te.reduce_axis((0, 8), name="j")',
            )
        if not all(isinstance(size, int | tirx.IntImm) for size in (start, extent)):
            raise DefinitionError(
                f"stage {stage!r} reduces over {name!r}, which has {extent} elements from {start}",
                node=stage,
                help="sizes are static: make the operator once for each size",
            )
        if int(extent) < 1:
            raise DefinitionError(
                f"stage {stage!r} reduces over {name!r} from {start} to {int(start) + int(extent)}, "
                "which has no element",
                node=stage,
                help="give te.reduce_axis((start, end)) an end above its start",
            )


def check_reducers(program: Program) -> None:
    """Every reduction has a reducer that the compiler knows, and starts from that reducer's identity.

    Formal statement: x (f) init is x for every x; partial results of tiles and splits each begin with it.
    """
    from neptune_lab.loop_ir.reduction import identity, match_reduction
    from neptune_lab.loop_ir.tree import blocks

    for block in blocks(program):
        if block.is_reduction:
            try:
                reduction = match_reduction(block)
            except ScheduleError as error:
                raise DefinitionError(
                    f"stage {block.name!r}: {error.reason}", node=block.name, help=error.help
                ) from error
            neutral = identity(reduction.reducer, program.buffer(block.writes).dtype)
            if reduction.identity.value != neutral.value:
                raise DefinitionError(
                    f"stage {block.name!r} starts its {reduction.reducer} from {reduction.identity.value}, which is "
                    f"not the identity, {neutral.value}",
                    node=block.name,
                    help=f"give te.comm_reducer the identity {neutral.value}, and combine the start value in a later "
                    "stage",
                )


def check_reach(program: Program) -> None:
    """No stage reads outside a tensor: an out-of-bounds read would return garbage silently.

    Formal statement: every index of a read that no condition guards lies within its axis.  Only indices whose bounds
    are exact are checked: each loop variable occurs once, and there is no remainder.
    """
    from neptune_lab.loop_ir.nodes import Load, Op, Var
    from neptune_lab.loop_ir.render import expression
    from neptune_lab.loop_ir.simplify import bounds
    from neptune_lab.loop_ir.tree import blocks
    from neptune_lab.loop_ir.walks import walk

    shapes = {b.name: b.shape for b in program.buffers}
    for block in blocks(program):
        extents = {it.name: it.extent for it in block.iters}
        guarded = {
            part
            for e in walk(block.body.value)
            if isinstance(e, Op) and e.name == "select"
            for branch in e.args[1:]
            for part in walk(branch)
        }
        for read in walk(block.body.value):
            if not isinstance(read, Load) or read in guarded:
                continue
            for axis, (index, extent) in enumerate(zip(read.indices, shapes[read.buffer], strict=True)):
                parts = list(walk(index))
                loops = [e.name for e in parts if isinstance(e, Var)]
                reach = bounds(index, extents)
                if reach is None or len(loops) > len(set(loops)):
                    continue
                if any(isinstance(e, Op) and e.name == "floormod" for e in parts):
                    continue
                if reach[0] < 0 or reach[1] >= extent:
                    raise DefinitionError(
                        f"stage {block.name!r} reads {read.buffer!r} outside: index {expression(index)} of axis {axis} "
                        f"runs from {reach[0]} to {reach[1]}, and the axis has {extent} elements",
                        node=block.name,
                        help="shorten the loop, or guard the read: tvm.tirx.if_then_else(inside, read, 0.0)",
                    )


__all__ = ["DTYPES", "FLOATS", "check_graph", "check_name", "check_reach", "check_reducers", "listed_tensors"]
