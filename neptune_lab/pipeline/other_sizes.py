"""Kernels of an operator for calls whose sizes differ from its own, as torch's automatic dynamic shapes.

The first call with other sizes compiles a kernel for all sizes that differ between the calls.  If the compiler has no
such kernel, each combination of sizes has a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from neptune_lab.choice import CodeOptions
from neptune_lab.errors import DefinitionError, LaunchError, NeptuneError, ScheduleError
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.operators import Operator
from neptune_lab.operators.dims import Family, named
from neptune_lab.operators.resized import Resized, Shape, names_of, only
from neptune_lab.pipeline.for_sizes import compile_family
from neptune_lab.pipeline.kept_by_sizes import MOST, KeptBySizes, Shapes
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.size_choice import roles_of
from neptune_lab.runtime.sized import sizes_in
from neptune_lab.target import Target
from neptune_lab.tensor_spec import LONG, LONG_HINT, SHORT_HINT

Compile = Callable[[Operator], Kernel]


class OtherSizes:
    """The kernels of an operator at other sizes than its own.

    Args:
        op: with `resized`.
        compile: makes a kernel of an operator, with the caller's options.
        compile_named: the same for an operator whose sizes have names.
    """

    def __init__(self, op: Operator, compile: Compile, compile_named: Compile) -> None:
        assert op.resized is not None
        self._op, self._resized, self._compile, self._compile_named = op, op.resized, compile, compile_named
        given = op.inputs[: len(op.inputs) - len(op.captured)]
        self._seen: list[Shapes] = [tuple(t.shape for t in given)]
        self._by_shapes = KeptBySizes(self._found)
        self._for_all: list[Kernel] = []
        self.refusals: dict[Any, str] = {}

    @property
    def at_first(self) -> Operator:
        """The operator at its first sizes, which are numbers, with `resized`."""
        return replace(self._op.at(), resized=self._resized) if self._op.family else self._op

    def kernel(self, tensors: Sequence[Any]) -> Kernel:
        """The kernel for tensors of these shapes.

        Raises:
            LaunchError: the function does not take such tensors.
            ScheduleError, TileError, EmitError: a stage of the compiler refused.
        """
        return self._by_shapes.of(tuple(tuple(tensor.shape) for tensor in tensors[: len(self._seen[0])]))

    def _found(self, shapes: Shapes) -> Kernel:
        """The kernel for tensors of these shapes: one for all sizes that is there, a new one, or one of their own."""
        for kernel in self._for_all:
            if _takes(kernel, shapes):
                return kernel
        own, first = operator_at(self._op, shapes), self._seen[0]
        if self._resized.dynamic is not False:
            self._seen.append(shapes)
            kernel = self._with_names(shapes)
            if kernel is not None:
                return kernel
            self._seen = [first, *self._seen[1:][-MOST:]]
        return self._compile(own)

    def _with_names(self, shapes: Shapes) -> Kernel | None:
        """A kernel for all sizes that have differed; None if the compiler has none that takes these shapes."""
        names = names_of(self._seen, [t.name for t in (*self._op.inputs, *self._op.outputs)])
        long = max(n for shape in shapes for n in shape) >= LONG
        if (names, long) in self.refusals:
            return None
        hints = {n: e for of, shape in zip(names, shapes, strict=True) for n, e in zip(of, shape, strict=True) if n}
        try:
            kernel = _compiled(replace(self._resized.named(shapes, names, hints), resized=None), self._compile_named)
        except NeptuneError as error:
            self.refusals[names, long] = str(error)
            return None
        self._for_all.append(kernel)
        return kernel if _takes(kernel, shapes) else None


def operator_at(op: Operator, shapes: Sequence[Shape]) -> Operator:
    """The operator for tensors of these shapes, and for no others.

    Args:
        op: with `resized`.
        shapes: of the inputs that are not captured.

    Raises:
        LaunchError: the function does not take such tensors.
    """
    assert op.resized is not None
    expected = [len(t.shape) for t in op.inputs[: len(op.inputs) - len(op.captured)]]
    if [len(shape) for shape in shapes] != expected:
        raise LaunchError(
            f"{op.name} got tensors of {[len(s) for s in shapes]} dimensions; expected {expected}",
            help="the sizes are free, and the numbers of dimensions are not",
        )
    for argument, shape in zip(op.inputs, shapes, strict=False):
        if 0 in shape:
            raise LaunchError(
                f"argument {argument.name} has shape {tuple(shape)}: a tensor without elements",
                help="give sizes from 1 on",
            )
    try:
        return replace(op.resized.at(shapes), resized=None)
    except DefinitionError as error:
        raise LaunchError(
            f"{op.name} does not take tensors of the shapes {', '.join(map(str, shapes))}: {error.reason}",
            help=error.help,
        ) from error


def with_other_sizes(
    op: Operator,
    compile: Compile,
    template: str | None,
    config: TileConfig | None,
    code: CodeOptions | None,
    target: Target | None,
) -> Kernel:
    """The kernel of an operator, which takes tensors of other sizes too.

    Args:
        op: with `resized`.
        compile: makes a kernel of an operator, with the caller's options.
        template, config, code, target: the options that a kernel for all sizes has too.
    """

    def of_names(op: Operator) -> Kernel:
        return compile_family(op, template, config, code, target, shown=False)

    if op.family is None:
        kernel = compile(replace(op, resized=None))
    else:
        kernel = _from_the_first(op, compile, of_names)
    return replace(kernel, other_sizes=OtherSizes(op, compile, of_names))


def _takes(kernel: Kernel, shapes: Sequence[Shape]) -> bool:
    captured = [t.shape for t in kernel.spec.inputs[len(shapes) :]]
    return sizes_in(kernel.spec, [*shapes, *captured]) is not None


def _compiled(op: Operator, compile: Compile) -> Kernel:
    """The kernel of an operator whose sizes got their names by themselves, its template and tiles chosen for sizes that
    are usual for their roles.

    Raises:
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    family = op.family
    assert family is not None
    roles = roles_of(family.make, family.hint, None, None)
    refusal: ScheduleError | None = None
    for short in (SHORT_HINT, LONG_HINT):
        hint = {
            name: value if not roles[name] else LONG_HINT if value >= LONG else short
            for name, value in family.hint.items()
        }
        try:
            return compile(replace(named(Family(hint, family.make, family.small)), resized=op.resized))
        except ScheduleError as error:  # one tile would hold a whole row at the hint
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def compiled_for_usual_sizes(make: Callable[[Mapping[str, int]], Operator], hint: Mapping[str, int]) -> Kernel:
    """The kernel of operators that differ in sizes alone, its template and tiles chosen for sizes that are usual.

    Args:
        make: the operator at given sizes, by name.
        hint: sizes of one of them.

    Raises:
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    return _compiled(named(Family(hint, make)), lambda op: compile_family(op, None, None, None, None, shown=False))


def _from_the_first(op: Operator, compile: Compile, compile_named: Compile) -> Kernel:
    """The kernel of an operator all of whose sizes have names: for all of them that a kernel can have, else for the
    examples' sizes.

    A size along which elements of a tensor are adjacent, and that no loop cuts, is part of each tile: such as the width
    of a head.
    """
    family, resized = op.family, op.resized
    assert family is not None
    assert isinstance(resized, Resized)
    roles = roles_of(family.make, family.hint, None, None)
    own = op.inputs[: len(op.inputs) - len(op.captured)]
    names = tuple(t.sizes or ("",) * len(t.shape) for t in own)
    last = {t.sizes[-1] for t in (*op.inputs, *op.outputs) if t.sizes}
    shapes = [t.shape for t in own]
    tried: list[set[str]] = []
    for kept in ({n for n, role in roles.items() if role or n not in last}, {n for n, role in roles.items() if role}):
        if not kept or kept in tried:
            continue
        tried.append(kept)
        try:
            return _compiled(resized.named(shapes, only(names, kept), {n: family.hint[n] for n in kept}), compile_named)
        except NeptuneError:
            continue
    return compile(replace(resized.at(shapes), resized=None))


__all__ = ["OtherSizes", "compiled_for_usual_sizes", "operator_at", "with_other_sizes"]
