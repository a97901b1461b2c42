"""One kernel for all lengths of q, k and v, once a second length arrives, as torch's automatic dynamic shapes.

Calls that differ in lengths alone (of q, of k and v, and of captured tensors along them) are a family.  Its first
lengths get a kernel of their own.  Lengths that differ from them get a kernel that takes every length, if the compiler
can make one; otherwise each length gets its own kernel, as before.  Calls with one query and several keys (decoding)
are a family of their own, and one key is a prompt of length 1; if their keys are one more than those of an earlier
call, a cache grows, and the first call gets the kernel for every length.  So does the first call of several queries
beside another number of keys (tokens that assisted generation proposes, parts of a prompt), where calls of its sizes
have had several lengths.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError
from neptune_lab.pytorch import stored
from neptune_lab.pytorch.arguments import Problem
from neptune_lab.pytorch.length_layouts import Layouts, layouts_of
from neptune_lab.pytorch.length_plans import Plan, Shapes, compiled, laid_out, operator_at, plan_of
from neptune_lab.pytorch.masks import reads_elements
from neptune_lab.pytorch.mods import Reading
from neptune_lab.runtime.sized import sizes_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from neptune_lab.operators import Operator
    from neptune_lab.runtime import KernelSpec

_MOST = 256
# The template of lengths that are too short for a kernel with splits.
_WITHOUT_SPLITS = "rolling_update"
# What a kernel for all lengths is made from: dtypes, and fields of `Problem` and `Extras`.
_DTYPES = frozenset({"float16", "bfloat16", "float32"})
_OF_PROBLEM = frozenset({"q", "k", "v", "dtype", "scale", "extras", "strides"})
_OF_EXTRAS = frozenset({"lse", "max_scores", "dynamic", "formats", "options"})
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
        seen: the lengths of the calls, as far as they are few.
        entries: by which lengths vary, which dimensions of captured tensors do, and whether they are long, and by the
            template of another kernel for short ones: the kernel; None: it was refused, for the reason in `refusals`.
    """

    layouts: Layouts
    lengths: tuple[int, int]
    keys: int
    shapes: Shapes
    together: bool
    grows: bool
    varied: tuple[bool, bool] = (False, False)
    seen: set[tuple[int, int]] = field(default_factory=set)
    entries: dict[Any, Any] = field(default_factory=dict)
    refusals: dict[Any, str] = field(default_factory=dict)


_families: OrderedDict[Any, Family] = OrderedDict()


def for_lengths(problem: Problem, score_mod: Any, mask_mod: Any, reading: Reading) -> stored.StoredKernel | None:
    """The kernel for all lengths that serves a call; None if the call gets a kernel of its own lengths."""
    elements = bool(reading.tensors) and reads_elements(score_mod) and reads_elements(mask_mod)
    for key, family, plan in plans_of(problem, reading, elements=elements):
        if plan not in family.entries:
            family.entries[plan] = _made(problem, score_mod, mask_mod, reading, plan, (key, plan), family)
        entry = family.entries[plan]
        if entry is not None and not takes(entry.spec, entry.captured, problem, reading):
            entry = _of_short(problem, score_mod, mask_mod, reading, plan, key, family, entry.spec)
        if entry is not None and takes(entry.spec, entry.captured, problem, reading):
            return entry
    return None


def _of_short(
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    reading: Reading,
    plan: Plan,
    key: Any,
    family: Family,
    long: KernelSpec,
) -> stored.StoredKernel | None:
    """The kernel for the lengths below those that `long` takes; None if there is none, or the call's is no such one.

    Splits of the shortest samples have several tiles, so that a kernel with splits may be wrong where they have one;
    one without them is for shorter lengths too.
    """
    names = {plan.q: problem.q[2], plan.kv: problem.k[2]}
    ((name, least, _), *others) = long.ranges
    splits = f"{long.name}_combine" in long.text  # (the kernel that combines them)
    if others or not splits or problem.extras.forward_options or names.get(name, least) >= least:
        return None
    of = plan, _WITHOUT_SPLITS
    if of not in family.entries:
        made = _made(problem, score_mod, mask_mod, reading, plan, (key, of), family, _WITHOUT_SPLITS)
        if made is not None:  # (from there on, splits are faster)
            ranges = tuple((name, low, min(most, least - 1)) for name, low, most in made.spec.ranges)
            made = replace(made, spec=replace(made.spec, ranges=ranges))
        family.entries[of] = made
    return family.entries[of]


def plans_of(
    problem: Problem, reading: Reading, kind: str = "", *, elements: bool = False
) -> Iterator[tuple[Any, Family, Plan]]:
    """The families of a call whose lengths vary, the most likely one first, each with its key and its plan.

    Args:
        kind: of kernels: those of each kind have families of their own.
        elements: as in `plan_of`.
    """
    dynamic = problem.extras.dynamic
    if dynamic is False or not reading.exact or not _is_known(problem):
        return
    every = families_of(problem, reading, kind)
    lengths, shapes = (problem.q[2], problem.k[2]), _shapes_of(reading)
    for key, family in reversed(every) if dynamic else every:
        wanted = (not _decodes(*lengths), True) if dynamic else family.varied
        if not any(wanted):
            continue
        first, always = (family.lengths, family.shapes), bool(dynamic) or family.grows
        now, together = (lengths, shapes), family.together
        plan = plan_of(first, now, wanted, together=together, always=always, elements=elements)
        if plan is not None:
            yield key, family, plan


def takes(spec: KernelSpec, captured: Sequence[int], problem: Problem, reading: Reading) -> bool:
    """Whether a kernel for all lengths takes those of a call; `captured` as in `stored.StoredKernel`."""
    formats = dict(problem.extras.formats)
    scales = (formats[name] for name in ("q_scale", "k_scale", "v_scale") if name in formats)
    shapes = _shapes_of(reading)
    given = problem.q, problem.k, problem.v, *scales, *(shapes[index] or (1,) for index in captured)
    return sizes_in(spec, given) is not None


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
    known = known and dict(extras.options).get("loads", "pointers") == "pointers"
    return known and problem.k[0] == problem.q[0] and all(value == usual for value, usual in others)


def families_of(problem: Problem, reading: Reading, kind: str = "") -> list[tuple[Any, Family]]:
    """The families of a call and their keys, one for each of its layouts, with the lengths of this call noted."""
    return [(key, _noted(key, layouts, problem, reading)) for key, layouts in _keys(problem, reading, kind)]


def _noted(key: Any, layouts: Layouts, problem: Problem, reading: Reading) -> Family:
    lengths = problem.q[2], problem.k[2]
    family = _families.get(key)
    if family is None:
        grows = _grows(key[0][0], lengths)
        shapes, together = _shapes_of(reading), lengths[0] == lengths[1]
        both = not together and lengths[0] > 1 and _vary(key[0][0])
        family = Family(layouts, lengths, lengths[1], shapes, together, grows, (both, both or grows))
        _families[key] = family
        if len(_families) > _MOST:
            _families.popitem(last=False)
    family.keys = lengths[1]
    if len(family.seen) <= _MOST:
        family.seen.add(lengths)
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


def _vary(problem: Any) -> bool:
    """Whether lengths of calls of these sizes have varied, under any mods and strides.  Some queries beside a cache, or
    beside other keys, then have other numbers too: the first such call gets the kernel for all lengths."""
    return any(any(family.varied) for ((other, _), *_), family in _families.items() if other == problem)


def _shapes_of(reading: Reading) -> Shapes:
    return tuple(tuple(getattr(tensor, "shape", ())) for tensor in reading.tensors)


def refusals() -> list[str]:
    """Why families of calls have a kernel for each length."""
    return [reason for family in _families.values() for reason in family.refusals.values()]


def forget() -> None:
    """Forgets all lengths that were seen."""
    _families.clear()


def _keys(problem: Problem, reading: Reading, kind: str = "") -> list[tuple[Any, Layouts]]:
    """What a call says beside its lengths: sizes and options, strides, mods, whether it decodes, the kind."""
    (batch, heads, q_len, width), (_, kv_heads, kv_len, _) = problem.q, problem.k
    sizes = batch, heads, kv_heads, width, problem.v[3], problem.dtype, problem.scale, problem.extras
    mods, every = without_shapes(reading.key), layouts_of((problem.q, problem.k, problem.v), problem.strides)
    return [(((sizes, layouts), mods, _decodes(q_len, kv_len), kind), layouts) for layouts in every]


def _decodes(q_len: int, kv_len: int) -> bool:
    """Whether a call is a step of decoding, rather than a prompt."""
    return q_len == 1 < kv_len


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


def _made(
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    reading: Reading,
    plan: Plan,
    key: Any,
    family: Family,
    template: str | None = None,
) -> stored.StoredKernel | None:
    """The kernel of a plan, from the disk or compiled, by a template if one is given; None if the compiler refuses."""
    digest = stored.key_of(("lengths", key))
    entry = stored.find(digest)
    if entry is not None:
        return entry
    make = partial(operator_at, problem, score_mod, mask_mod, reading, plan, family.layouts)
    try:
        options = problem.extras.forward_options
        kernel = compiled(make, problem, reading, plan, template=template, options=options, bounded=True)
    except NeptuneError as error:
        family.refusals[plan] = str(error)
        return None
    captured = captured_indices(make, kernel.spec, problem, score_mod, mask_mod, reading, plan)
    entry = stored.StoredKernel(kernel.spec, captured, (), "")
    stored.put(digest, entry)
    return entry


def captured_indices(
    make: Callable[..., Operator],
    spec: KernelSpec,
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    reading: Reading,
    plan: Plan,
) -> tuple[int, ...]:
    """For each input after q, k, v and their scales, its tensor's index in `Reading.tensors`."""
    from neptune_lab.operators.attention_definition import captured_by
    from neptune_lab.operators.attention_sizes import sizes_of

    own = make({plan.q: problem.q[2], plan.kv: problem.k[2]})
    captures = captured_by(sizes_of(own.params), score_mod, mask_mod, live=True)
    index_of = {id(tensor): index for index, tensor in enumerate(reading.tensors)}
    by_name = {name: index_of[owner] for owner, name in captures.names.items() if owner in index_of}
    return tuple(by_name[tensor.name] for tensor in stored.captured_inputs(spec.inputs))


__all__ = [
    "Family",
    "captured_indices",
    "families_of",
    "for_lengths",
    "forget",
    "known_family",
    "laid_out",
    "plans_of",
    "refusals",
    "takes",
    "without_shapes",
]
