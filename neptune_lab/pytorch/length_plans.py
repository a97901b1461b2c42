"""The operator of a call at other lengths, and its kernel for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.pytorch.arguments import Problem
from neptune_lab.pytorch.length_layouts import Layouts, moves, strides_at
from neptune_lab.pytorch.mods import Reading
from neptune_lab.tensor_spec import LONG, LONG_HINT, SHORT_HINT, Strides, dense_strides, resized_strides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Choice, Kernel

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

# The dimension of q's length in a tensor of one element for each query and key; that of the keys is the next one.
_LENGTHS_FROM = 2
# The widest window: such a kernel is run at every number of tiles up to twice its width and more.
_FARTHEST = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """Which dimensions are sizes that are known at the launch.

    Args:
        q, kv: names of the lengths; "" for one that stays.
        captured: for each captured tensor that has such dimensions, by its index: (dimension, name).
        long: whether a length is at least `LONG`.
    """

    q: str
    kv: str
    captured: tuple[tuple[int, tuple[tuple[int, str], ...]], ...]
    long: bool

    @property
    def roles(self) -> dict[str, str]:
        """The role of each size in `compile_for_sizes`."""
        if self.q == self.kv:
            return {self.q: "both"}
        return {name: role for name, role in ((self.q, "rows"), (self.kv, "columns")) if name}

    @property
    def hint(self) -> dict[str, int]:
        """The sizes that the schedule is chosen for."""
        return dict.fromkeys(self.roles, LONG_HINT if self.long else SHORT_HINT)


def plan_of(
    first: tuple[tuple[int, int], Shapes],
    now: tuple[tuple[int, int], Shapes],
    wanted: tuple[bool, bool],
    *,
    together: bool,
    always: bool,
    elements: bool = False,
) -> Plan | None:
    """The sizes of a call, or None if a dimension varies that has no length.

    Args:
        first, now: the lengths, and the shapes of the captured tensors, at the first call and at this one.
        wanted: which of the lengths vary.
        together: whether they were equal at each call.
        always: whether dimensions that could be a length are sizes although they have not varied.
        elements: whether the mods only read tensors (batch, heads, q_len, kv_len), of which a dimension may be 1.  The
            kernel is then the same whether both lengths are one or two, so they are two: one kernel serves both.
    """
    if elements:
        return _of_elements(first, now, ("m" if wanted[0] else "", "n" if wanted[1] else ""))
    if wanted == (True, True) and together:
        q = kv = "n"
    else:
        q, kv = "m" if wanted[0] else "", "n" if wanted[1] else ""
    names = (q, kv)
    captured: list[tuple[int, tuple[tuple[int, str], ...]]] = []
    for index, (before, after) in enumerate(zip(first[1], now[1], strict=True)):
        dims: list[tuple[int, str]] = []
        for dim, (a, b) in enumerate(zip(before, after, strict=True)):
            if a == b and not always:
                continue
            found = [n for n, x, y in zip(names, first[0], now[0], strict=True) if n and (a, b) == (x, y)]
            if found:
                dims.append((dim, found[-1]))
            elif a != b:
                return None
        if dims:
            captured.append((index, tuple(dims)))
    return Plan(q, kv, tuple(captured), max(now[0]) >= LONG)


def _of_elements(
    first: tuple[tuple[int, int], Shapes], now: tuple[tuple[int, int], Shapes], names: tuple[str, str]
) -> Plan | None:
    """The sizes of a call whose mods read tensors of four dimensions, each a length or 1 from `_LENGTHS_FROM` on."""
    captured: list[tuple[int, tuple[tuple[int, str], ...]]] = []
    for index, (before, after) in enumerate(zip(first[1], now[1], strict=True)):
        own = (*[""] * _LENGTHS_FROM, *names)
        every = zip(before, after, (0,) * _LENGTHS_FROM + first[0], (0,) * _LENGTHS_FROM + now[0], own, strict=True)
        dims: list[tuple[int, str]] = []
        for dim, (a, b, x, y, name) in enumerate(every):
            if name and (a, b) == (x, y) != (1, 1):
                dims.append((dim, name))
            elif a != b:
                return None
        if dims:
            captured.append((index, tuple(dims)))
    return Plan(names[0], names[1], tuple(captured), max(now[0]) >= LONG)


def compiled(
    make: Callable[..., Operator],
    problem: Problem,
    reading: Reading,
    plan: Plan,
    *,
    roles: Mapping[str, str] | None = None,
    template: str | None = None,
    options: Mapping[str, Any] | None = None,
    choice: Choice | None = None,
    bounded: bool = False,
) -> Kernel:
    """The kernel for all lengths.

    Args:
        make: the operator at a sample of the sizes; with `small`, of at most so many samples and groups of heads.
        roles: of the sizes; None: those of a call's forward pass.
        template, choice: what the kernel is made by, if that is known.
        options: the call's `kernel_options` for this pass.
        bounded: as for `compile_for_sizes`.

    Raises:
        ScheduleError, TileError, EmitError: the compiler has no such kernel.
    """
    from functools import partial

    from neptune_lab.pipeline import Choice, CodeOptions
    from neptune_lab.pipeline.for_sizes import compile_for_sizes
    from neptune_lab.pytorch.kernel_choice import given_in

    choice = choice or Choice(template)
    limits = _extents(problem, reading, plan)
    return compile_for_sizes(
        make,
        plan.roles if roles is None else roles,
        plan.hint,
        template=choice.template,
        config=choice.config,
        code=None if choice.code == CodeOptions() else choice.code,
        given=given_in(options or {}),
        small=partial(make, small=1),
        several=partial(make, small=2),
        shown=False,
        limits=limits,
        farthest=0 if limits else _FARTHEST,  # (positions of a table are no width of a window)
        bounded=bounded,
    )


def _extents(problem: Problem, reading: Reading, plan: Plan) -> list[int]:
    """The extents of captured tensors that are no length, sample or head: a length above one of them would read past
    the end."""
    varied = {(index, dim) for index, dims in plan.captured for dim, _ in dims}
    every = ((i, d, n) for i, tensor in enumerate(reading.tensors) for d, n in enumerate(tensor.shape))
    return [n for index, dim, n in every if (index, dim) not in varied and n not in (problem.q[0], problem.q[1])]


def operator_at(
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    reading: Reading,
    plan: Plan,
    layouts: Layouts,
    sample: Mapping[str, int],
    *,
    small: int = 0,
) -> Operator:
    """The call's operator at other lengths; with `small`, of at most so many groups of heads and samples, or of two
    samples if strides are multiples of the length."""
    from neptune_lab.operators import attention
    from neptune_lab.operators.capture import with_shapes

    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = problem.q, problem.k
    formats = {name: value for name, value in problem.extras.formats if name != "dtype"}
    moving = moves(layouts)
    if small:
        group, kv_heads = heads // kv_heads, min(kv_heads, small)
        batch, heads = min(batch, 2 if moving else small), group * kv_heads
        formats |= {
            n: (1, min(heads if n[0] == "q" else kv_heads, of[1])) for n, of in formats.items() if n.endswith("_scale")
        }
    shapes: dict[int, tuple[int, ...]] = {}
    for index, dims in plan.captured:
        shape = list(reading.tensors[index].shape)
        for dim, name in dims:
            shape[dim] = sample[name]
        shapes[id(reading.tensors[index])] = tuple(shape)
    with with_shapes(shapes):
        made = attention.general(
            batch,
            heads,
            sample.get(plan.q, q_len),
            sample.get(plan.kv, kv_len),
            head_dim,
            score_mod,
            mask_mod,
            problem.dtype,
            problem.scale,
            kv_heads=kv_heads,
            v_head_dim=problem.v[3],
            return_lse=problem.extras.lse,
            return_max=problem.extras.max_scores,
            empty_rows="zero",
            live=True,
            **formats,
        )
        assert made.program is not None  # built here, while the shapes are replaced
    if problem.strides is not None and (moving or not small):
        made = laid_out(made, _strides_of(problem, layouts, made))
    return replace(made, captured={}) if shapes else made


def _strides_of(problem: Problem, layouts: Layouts, op: Operator) -> tuple[Strides | None, ...]:
    """The strides of q, k and v at the lengths of an operator, which may have fewer samples and heads."""
    assert problem.strides is not None
    found: list[Strides | None] = []
    given = zip(op.inputs, (problem.q, problem.k, problem.v), problem.strides, layouts, strict=False)
    for tensor, shape, own, layout in given:
        whole = (*shape[:2], tensor.shape[2], shape[3])
        strides = strides_at(layout, own, tensor.shape[2])
        if strides is None or tensor.shape == whole:
            found.append(strides)
        elif any(isinstance(step, tuple) for step in layout or ()):
            found.append(resized_strides(tensor.shape, whole, strides))
        else:  # (with its gaps, a smaller tensor would be dense at one length)
            found.append(None)
    return tuple(found)


def laid_out(op: Operator, strides: tuple[Strides | None, ...]) -> Operator:
    """The operator for the strides of q, k and v; `out` has the order of q's dimensions."""
    q, k, v = strides
    shape = next(tensor.shape for tensor in op.outputs if tensor.name == "out")
    return op.with_strides(q=q, k=k, v=v, out=None if q is None else dense_strides(shape, q))


__all__ = ["Plan", "Shapes", "compiled", "laid_out", "operator_at", "plan_of"]
