"""One kernel for all lengths of q, k and v, once a second length arrives, as torch's automatic dynamic shapes.

Calls that differ in lengths alone (of q, of k and v, and of captured tensors along them) are a family.  Its first
lengths get a kernel of their own.  Lengths that differ from them get a kernel that takes every length, if the compiler
can make one; otherwise each length gets its own kernel, as before.  Calls with one query (decoding) are a family of
their own; if their keys are one more than those of an earlier call, a cache grows, and the first call gets the kernel
for every length.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.errors import NeptuneError
from neptune_lab.pytorch import stored
from neptune_lab.pytorch.arguments import Problem
from neptune_lab.pytorch.length_layouts import Layouts, layouts_of, moves, strides_at
from neptune_lab.pytorch.mods import Reading
from neptune_lab.runtime.sized import sizes_in
from neptune_lab.tensor_spec import Strides, dense_strides, resized_strides

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neptune_lab.operators import Operator

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

# Lengths below and from this on have kernels of their own: few tiles are best in one loop, many can be split.
LONG = 1024
# The lengths that template and tiles are chosen for.
_SHORT_HINT, _LONG_HINT = LONG // 2, 4 * LONG
_MOST = 256
# The widest window: such a kernel is run at every number of tiles up to twice its width and more.
_FARTHEST = 512
# What a kernel for all lengths is made from: dtypes, and fields of `Problem` and `Extras`.
_DTYPES = frozenset({"float16", "bfloat16", "float32"})
_OF_PROBLEM = frozenset({"q", "k", "v", "dtype", "scale", "extras", "strides"})
_OF_EXTRAS = frozenset({"lse", "max_scores", "dynamic", "formats", "options"})
# Options of which such a kernel has values of its own.
_OWN_OPTIONS = frozenset({"code", "loads"})
# Fields of `Extras.formats`; a transposed v has its length at another place.
_OF_FORMATS = frozenset({"dtype", "q_dtype", "k_dtype", "v_dtype", "q_scale", "k_scale", "v_scale", "weights_dtype"})


@dataclass(slots=True)
class Family:
    """Calls that differ in lengths alone.

    Args:
        layouts: of q, k and v.
        lengths: of q, and of k and v, at the first call.
        keys: the length of k and v at the last call.
        shapes: of the captured tensors, at the first call.
        together: whether both lengths were equal at each call.
        grows: whether the first call already had one key more than another: its captured tensors grow with it.
        varied: which of the two lengths have varied.
        entries: by which lengths vary, which dimensions of captured tensors do, and whether they are long: the kernel;
            None: it was refused, for the reason in `refusals`.
    """

    layouts: Layouts
    lengths: tuple[int, int]
    keys: int
    shapes: Shapes
    together: bool
    grows: bool
    varied: tuple[bool, bool] = (False, False)
    entries: dict[Any, stored.StoredKernel | None] = field(default_factory=dict)
    refusals: dict[Any, str] = field(default_factory=dict)


_families: OrderedDict[Any, Family] = OrderedDict()


@dataclass(frozen=True, slots=True)
class _Plan:
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
        return dict.fromkeys(self.roles, _LONG_HINT if self.long else _SHORT_HINT)


def for_lengths(problem: Problem, score_mod: Any, mask_mod: Any, reading: Reading) -> stored.StoredKernel | None:
    """The kernel for all lengths that serves a call; None if the call gets a kernel of its own lengths."""
    dynamic = problem.extras.dynamic
    if dynamic is False or not reading.exact or not _is_known(problem):
        return None
    every = families_of(problem, reading)
    for key, family in reversed(every) if dynamic else every:
        entry = _of_family(problem, score_mod, mask_mod, reading, key, family)
        if entry is not None:
            return entry
    return None


def _of_family(
    problem: Problem, score_mod: Any, mask_mod: Any, reading: Reading, key: Any, family: Family
) -> stored.StoredKernel | None:
    """The kernel for all lengths of a family that serves a call."""
    lengths, shapes = (problem.q[2], problem.k[2]), _shapes_of(reading)
    dynamic = problem.extras.dynamic
    wanted = (lengths[0] > 1, True) if dynamic else family.varied
    if not any(wanted):
        return None
    plan = _plan(family, lengths, shapes, wanted, always=bool(dynamic) or family.grows)
    if plan is None:
        return None
    if plan not in family.entries:
        family.entries[plan] = _made(problem, score_mod, mask_mod, reading, plan, (key, plan), family)
    entry = family.entries[plan]
    if entry is None:
        return None
    formats = dict(problem.extras.formats)
    scales = (formats[name] for name in ("q_scale", "k_scale", "v_scale") if name in formats)
    given = problem.q, problem.k, problem.v, *scales, *(shapes[index] or (1,) for index in entry.captured)
    return None if sizes_in(entry.spec, given) is None else entry


def _is_known(problem: Problem) -> bool:
    """Whether everything that `problem` says is in the kernel that `_operator` makes.

    Fields that this module does not read must have their defaults, so that a call with a new field gets a kernel of its
    own lengths until this module reads the field.
    """
    extras = problem.extras
    others = [(getattr(problem, f.name), f.default) for f in fields(problem) if f.name not in _OF_PROBLEM]
    others += [
        (value, extras._field_defaults.get(name, MISSING))
        for name, value in extras._asdict().items()
        if name not in _OF_EXTRAS
    ]
    known = problem.dtype in _DTYPES and dict(extras.formats).keys() <= _OF_FORMATS
    known = known and not _OWN_OPTIONS & dict(extras.options).keys()
    return known and problem.k[0] == problem.q[0] and all(value == usual for value, usual in others)


def families_of(problem: Problem, reading: Reading) -> list[tuple[Any, Family]]:
    """The families of a call and their keys, one for each of its layouts, with the lengths of this call noted."""
    return [(key, _noted(key, layouts, problem, reading)) for key, layouts in _keys(problem, reading)]


def _noted(key: Any, layouts: Layouts, problem: Problem, reading: Reading) -> Family:
    lengths = problem.q[2], problem.k[2]
    family = _families.get(key)
    if family is None:
        grows = _grows(key[0][0], lengths)
        shapes, together = _shapes_of(reading), lengths[0] == lengths[1]
        family = Family(layouts, lengths, lengths[1], shapes, together, grows, (False, grows))
        _families[key] = family
        if len(_families) > _MOST:
            _families.popitem(last=False)
    family.keys = lengths[1]
    family.together &= lengths[0] == lengths[1]
    before, (q, kv) = family.lengths, family.varied
    family.varied = q or lengths[0] != before[0], kv or lengths[1] != before[1]
    return family


def known_family(problem: Problem, reading: Reading) -> Family | None:
    """The family of a call that was noted."""
    return next((_families[key] for key, _ in _keys(problem, reading) if key in _families), None)


def _grows(problem: Any, lengths: tuple[int, int]) -> bool:
    """Whether a call with one query has one key more than an earlier call, under any mods and strides: its
    cache will grow on."""
    earlier = (family.keys for ((other, _), *_), family in _families.items() if other == problem)
    return lengths[0] == 1 and lengths[1] - 1 in earlier


def _shapes_of(reading: Reading) -> Shapes:
    return tuple(tuple(getattr(tensor, "shape", ())) for tensor in reading.tensors)


def refusals() -> list[str]:
    """Why families of calls have a kernel for each length."""
    return [reason for family in _families.values() for reason in family.refusals.values()]


def forget() -> None:
    """Forgets all lengths that were seen."""
    _families.clear()


def _keys(problem: Problem, reading: Reading) -> list[tuple[Any, Layouts]]:
    """What a call says beside its lengths: sizes and options, strides, mods, and whether it has one query."""
    (batch, heads, q_len, width), (_, kv_heads, _, _) = problem.q, problem.k
    sizes = batch, heads, kv_heads, width, problem.v[3], problem.dtype, problem.scale, problem.extras
    mods, every = without_shapes(reading.key), layouts_of((problem.q, problem.k, problem.v), problem.strides)
    return [(((sizes, layouts), mods, q_len == 1), layouts) for layouts in every]


def without_shapes(key: Any) -> Any:
    """The key of a reading with the number of dimensions in place of each tensor's shape.

    >>> without_shapes((("tensor", 0, (2, 8), "int32"), "x"))
    (('tensor', 0, 2, 'int32'), 'x')
    """
    match key:
        case ("tensor", int(index), shape, dtype):
            return "tensor", index, len(shape), dtype
        case tuple():
            return tuple(without_shapes(item) for item in key)
    return key


def _plan(
    family: Family, lengths: tuple[int, int], shapes: Shapes, wanted: tuple[bool, bool], *, always: bool
) -> _Plan | None:
    """The sizes of a call, or None if a dimension varies that has no length.

    Args:
        always: whether dimensions that could be a length are sizes although they have not varied.
    """
    if wanted == (True, True) and family.together:
        q = kv = "n"
    else:
        q, kv = "m" if wanted[0] else "", "n" if wanted[1] else ""
    names = (q, kv)
    captured: list[tuple[int, tuple[tuple[int, str], ...]]] = []
    for index, (first, now) in enumerate(zip(family.shapes, shapes, strict=True)):
        dims: list[tuple[int, str]] = []
        for dim, (a, b) in enumerate(zip(first, now, strict=True)):
            if a == b and not always:
                continue
            found = [n for n, x, y in zip(names, family.lengths, lengths, strict=True) if n and (a, b) == (x, y)]
            if found:
                dims.append((dim, found[-1]))
            elif a != b:
                return None
        if dims:
            captured.append((index, tuple(dims)))
    return _Plan(q, kv, tuple(captured), max(lengths) >= LONG)


def _made(
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    reading: Reading,
    plan: _Plan,
    key: Any,
    family: Family,
) -> stored.StoredKernel | None:
    """The kernel of a plan, from the disk or compiled; None if the compiler refuses."""
    digest = stored.key_of(("lengths", key))
    entry = stored.find(digest)
    if entry is not None:
        return entry
    from neptune_lab.operators.attention_definition import captured_by
    from neptune_lab.operators.attention_sizes import sizes_of
    from neptune_lab.pipeline import Choice
    from neptune_lab.pipeline.for_sizes import compile_for_sizes

    make = partial(_operator, problem, score_mod, mask_mod, reading, plan, family.layouts)
    limits = _extents(problem, reading, plan)
    options = dict(problem.extras.options)
    try:
        choice = Choice.of(options.pop("template", None), options, "kernel_options")
        kernel = compile_for_sizes(
            make,
            plan.roles,
            plan.hint,
            template=choice.template,
            config=choice.config,
            code=choice.code,
            small=partial(make, small=True),
            shown=False,
            limits=limits,
            farthest=0 if limits else _FARTHEST,  # (positions of a table are no width of a window)
        )
    except NeptuneError as error:
        family.refusals[plan] = str(error)
        return None
    own = make({plan.q: problem.q[2], plan.kv: problem.k[2]})
    captures = captured_by(sizes_of(own.params), score_mod, mask_mod, live=True)
    index_of = {id(tensor): index for index, tensor in enumerate(reading.tensors)}
    by_name = {name: index_of[owner] for owner, name in captures.names.items() if owner in index_of}
    captured = tuple(by_name[tensor.name] for tensor in stored.captured_inputs(kernel.spec.inputs))
    entry = stored.StoredKernel(kernel.spec, captured, (), "")
    stored.put(digest, entry)
    return entry


def _extents(problem: Problem, reading: Reading, plan: _Plan) -> list[int]:
    """The extents of captured tensors that are no length, sample or head: a length above one of them would read past
    the end."""
    varied = {(index, dim) for index, dims in plan.captured for dim, _ in dims}
    every = ((i, d, n) for i, tensor in enumerate(reading.tensors) for d, n in enumerate(tensor.shape))
    return [n for index, dim, n in every if (index, dim) not in varied and n not in (problem.q[0], problem.q[1])]


def _operator(
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    reading: Reading,
    plan: _Plan,
    layouts: Layouts,
    sample: Mapping[str, int],
    *,
    small: bool = False,
) -> Operator:
    """The call's operator at other lengths; with `small`, of one group of heads and one sample, or two of which the
    strides are multiples of the length."""
    from neptune_lab.operators import attention
    from neptune_lab.operators.capture import with_shapes

    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = problem.q, problem.k
    formats = {name: value for name, value in problem.extras.formats if name != "dtype"}
    moving = moves(layouts)
    if small:
        batch, heads, kv_heads = min(batch, 2) if moving else 1, heads // kv_heads, 1
        formats |= {
            n: (1, min(heads if n[0] == "q" else 1, of[1])) for n, of in formats.items() if n.endswith("_scale")
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


__all__ = [
    "LONG",
    "Family",
    "families_of",
    "for_lengths",
    "forget",
    "known_family",
    "laid_out",
    "refusals",
    "without_shapes",
]
