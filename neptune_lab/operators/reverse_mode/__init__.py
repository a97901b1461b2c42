"""The backward pass of an operator, derived from its definition.

    >>> from neptune_lab.operators import attention, training
    >>> passes = training(attention.causal(batch=1, heads=2, seq=8, head_dim=4), wrt=["q"])
    >>> passes.kept, [t.name for t in passes.backward.inputs], [str(t) for t in passes.backward.outputs]
    (('lse2', 'out'), ['q', 'k', 'v', 'lse2', 'out', 'd_out'], ['d_q: float16[1, 2, 8, 4]'])

`backward` gives the second of the two passes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.base import Arrays, Operator
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_switch, check_texts
from neptune_lab.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program
    from neptune_lab.operators.reverse_mode.assemble import Differentiation, Passes


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The two passes of an operator.

    Args:
        forward: the operator with `kept` as further outputs.
        backward: from the inputs, `kept` and the cotangents of the operator's outputs (`d_out` for `out`) to the
            cotangents of `wrt` (`d_q` for `q`).
        kept: names of the forward pass's outputs that the backward pass reads.
        wrt: names of the inputs with respect to which it is differentiated.
        of: the operator.
        derivation: where each stage of the backward pass comes from, and what else could be kept.
    """

    forward: Operator
    backward: Operator
    kept: tuple[str, ...]
    wrt: tuple[str, ...]
    of: Operator
    derivation: Differentiation


def backward(op: Operator, wrt: Sequence[str] | None = None, keep: Collection[str] | None = None) -> Operator:
    """The operator that computes gradients: reverse mode on the stages of the definition.

    Args:
        op: any operator whose sizes are numbers.
        wrt: names of inputs; None: all float inputs that have a gradient.
        keep: stages of the definition whose values the forward pass gives; None: chosen (`keep.kept_by_default`).

    Returns:
        From the inputs, the kept values and a cotangent per float output to a gradient per name in `wrt`, each of its
        input's shape and dtype.

    Raises:
        DefinitionError: there is no such input or stage, an input is not of floats, no output depends on it in a way
            that has a derivative, or a traced function stops a gradient.
    """
    return training(op, wrt, keep).backward


def training(
    op: Operator,
    wrt: Sequence[str] | None = None,
    keep: Collection[str] | None = None,
    *,
    grouped: bool | None = None,
) -> Training:
    """The forward pass that keeps what the backward pass reads, and the backward pass.

    Args:
        op: any operator whose sizes are numbers.
        wrt: names of inputs; None: all float inputs that have a gradient.
        keep: stages of the definition whose values the forward pass gives; None: chosen (`keep.kept_by_default`).
        grouped: whether the gradients of heads that share keys are added up in the kernel that computes them; None: if
            that leaves enough programs.

    Returns:
        Both passes; the first gives what the second reads.

    Raises:
        DefinitionError: as `backward`.
    """
    from neptune_lab.operators.reverse_mode.assemble import assemble

    if not isinstance(op, Operator):
        raise DefinitionError(
            f"expected an operator, got {shown(op)}", help="such as operators.attention.causal(seq=128)"
        )
    if op.family is not None:
        raise DefinitionError(
            f"{op.name} has sizes with a name, and its backward pass is for numbers",
            help="differentiate the operator at numbers: backward(op.at(n=128))",
        )
    if grouped is not None:
        check_switch("grouped", grouped, DefinitionError)
    chosen = _chosen(op, wrt)
    refuse_stopped_gradients(op, chosen)
    parts = assemble(op.name, op.marked, chosen, keep, every=wrt is not None, grouped=grouped, ties=op.ties())
    forward = _forward(op, parts.forward)
    return Training(forward, _backward(op, forward, parts, parts.wrt), parts.kept, parts.wrt, op, parts.derivation)


def refuse_stopped_gradients(op: Operator, wrt: Collection[str]) -> None:
    """Raises DefinitionError if the traced function stops or changes a gradient that flows from one of these inputs,
    and its definition does not show that."""
    if op.gradient_stops is not None and (line := op.gradient_stops(wrt)) is not None:
        raise DefinitionError(
            f"the gradient of {op.name} is not that of its operations: it has a derivative of its own (a "
            "torch.autograd.Function, an embedding's padding_idx, torch.inference_mode, or a write to what is "
            f"detached), in {line}",
            help="compute that value before, and pass it in; x.detach() and torch.no_grad are taken if nothing writes "
            "in place to what is detached, or inside torch.no_grad",
        )


def _chosen(op: Operator, wrt: Sequence[str] | None) -> tuple[str, ...]:
    """The inputs with respect to which it is differentiated."""
    dtypes = {t.name: t.dtype for t in op.inputs}
    if wrt is None:
        return tuple(name for name, dtype in dtypes.items() if "float" in dtype)
    expected, example = "a list of different names of inputs", 'such as ["q"]'
    names = check_texts("wrt", wrt, expected, DefinitionError, help=example)
    if not names or len(set(names)) < len(names):
        raise DefinitionError(f"wrt={shown(wrt)}: expected {expected}", help=example)
    for name in names:
        if name not in dtypes:
            raise DefinitionError(f"wrt: {op.name} has no input {name!r}", help=f"one of {', '.join(dtypes)}")
        if "float" not in dtypes[name]:
            raise DefinitionError(
                f"wrt: {name!r} is of dtype {dtypes[name]}, and only floats have a gradient",
                help="leave it out of wrt",
            )
    return names


def _specs(program: Program, names: Sequence[str]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, program.buffer(name).shape, program.buffer(name).dtype) for name in names)


def _run(program: Program, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    from neptune_lab.loop_ir.run import run_wide

    return run_wide(program, dict(zip(program.inputs, arrays, strict=True)))


def _text(program: Program) -> str:
    from neptune_lab.loop_ir.render import definition

    return "".join(f"{line.text}\n" for line in definition(program))


def _forward(op: Operator, program: Program) -> Operator:
    """The operator with the kept values as further outputs; its own reference gives the others."""
    own = len(op.outputs)

    def compute(*arrays: np.ndarray) -> Arrays:
        results = _run(program, arrays)
        kept = tuple(results[name].astype(np.float64) for name in program.outputs[own:])
        return (*op.compute(*arrays), *kept)

    return replace(
        op,
        name=f"{op.name}_forward" if len(program.outputs) > own else op.name,
        outputs=(*op.outputs, *_specs(program, program.outputs[own:])),
        build=lambda: program,
        compute=compute,
        recipe=None,
        resized=None,
        lines={},
        python=(),
    )


def _backward(op: Operator, forward: Operator, passes: Passes, wrt: tuple[str, ...]) -> Operator:
    """The operator of a backward pass; its random inputs have the values that the forward pass keeps."""
    program = passes.backward
    inputs = _specs(program, program.inputs)

    def compute(*arrays: np.ndarray) -> Arrays:
        results = _run(program, arrays)
        return tuple(results[name].astype(np.float64) for name in program.outputs)

    def draw(rng: np.random.Generator) -> Arrays:
        own = op.random_inputs(int(rng.integers(2**31)))
        results = _run(forward.program, [a.astype(np.float64) if "float" in str(a.dtype) else a for a in own.values()])
        given = {**own, **{name: results[name] for name in forward.program.outputs}}
        return tuple(given[t.name] if t.name in given else rng.standard_normal(t.shape) for t in inputs)

    return Operator(
        name=f"{op.name}_backward",
        title=f"{op.title}, backward",
        doc=f"derived from the definition of {op.name} by reverse mode",
        params={"of": op.name, "wrt": list(wrt), "operator": op.params},
        inputs=inputs,
        outputs=_specs(program, program.outputs),
        source=_text(program),
        build=lambda: program,
        compute=compute,
        draw=draw,
        parts=passes.parts if len(passes.parts) > 1 else (),
    )


__all__ = ["Training", "backward", "training"]
