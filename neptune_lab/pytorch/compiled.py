"""The kernel for a call's shapes and mods: from memory, from disk, or compiled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from neptune_lab.collector import uncollected
from neptune_lab.errors import DefinitionError, NeptuneError, TileError
from neptune_lab.hashed import digest_of
from neptune_lab.pytorch import lengths, stored
from neptune_lab.pytorch.arguments import Problem
from neptune_lab.pytorch.kernel_choice import given_in, kernel_for
from neptune_lab.pytorch.lengths import families_of, for_lengths, laid_out
from neptune_lab.pytorch.mods import Reading
from neptune_lab.pytorch.refusals import refuse_captured_kinds
from neptune_lab.runtime import KernelSpec, LoadedKernel, device_facts, load
from neptune_lab.runtime.early import compiling
from neptune_lab.runtime.strided import of_any_strides
from neptune_lab.runtime.torch_op import torch_op
from neptune_lab.strict.forks import ReentrantLock

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from neptune_lab.operators import Operator


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel in memory.

    Args:
        kernel: takes q, k, v, their scales and the captured tensors.
        captured: for each captured tensor, its index in `Reading.tensors`, and the dtype that the kernel takes.
    """

    kernel: LoadedKernel
    captured: tuple[tuple[int, torch.dtype], ...]

    @property
    def op(self) -> OpOverload:
        """The kernel as a torch operator, for tensors of any strides."""
        return torch_op(self.kernel, launch=of_any_strides(self.kernel))


# Kernels by what they compute; the oldest are dropped first.
_by_definition: OrderedDict[str, tuple[stored.StoredKernel, Compiled]] = OrderedDict()
# Kernels for all lengths, by the id of their entries, which are kept so that no other object gets the id.
_by_entry: OrderedDict[int, tuple[stored.StoredKernel, Compiled]] = OrderedDict()
_MOST = 256
_lock = ReentrantLock()


def forget() -> None:
    """Forgets the kernels in memory and the lengths that were seen, as in a new process."""
    with _lock:
        _by_definition.clear()
        _by_entry.clear()
        lengths.forget()


def _keep(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    if len(known) > _MOST:
        known.popitem(last=False)


@uncollected
def compiled_for(
    problem: Problem, score_mod: Any, mask_mod: Any, reading: Reading, device: torch.device, place: Any = None
) -> Compiled:
    """The kernel for `problem` with these mods on `device`.

    Args:
        reading: the values that the mods, and `place`, reach.
        place: where the keys are in a cache of pages (`operators.paging`).

    Raises:
        LaunchError: a mod captures a tensor that is nested or sparse, or has no values.
        DefinitionError: a mod cannot be compiled, or captures a value that cannot be an input.
        ScheduleError, TileError, EmitError: a stage of the compiler refused.
    """
    refuse_captured_kinds(reading.tensors, device)
    on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with _lock, on_device, _mode(reading):  # TVM and the caches serve one call at a time
        key = None
        if reading.exact:
            key = stored.key_of((problem, reading.key))
            entry = stored.find(key)
            known = entry is not None and entry.records == known_records(entry.workloads)
            if entry is not None and known and not problem.extras.dynamic:
                families_of(problem, reading)
                return _loaded(entry)
            # (a cache of pages has a size of its own, whatever the lengths)
            sized = for_lengths(problem, score_mod, mask_mod, reading) if place is None else None
            if sized is not None:
                return _sized(sized)
        return _compiled(problem, score_mod, mask_mod, reading, key, device, place)


def _mode(reading: Reading) -> AbstractContextManager[None]:
    """How gradients are recorded while mods are called: as in the call, if they may ask for it."""
    if reading.exact:
        return nullcontext()
    from neptune_lab.operators.stopped_gradients import as_called

    return as_called()


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a call.

    Args:
        op: the operator, for the strides of q, k and v.
        similar: forms of it whose tuning records also apply; the first is `op` in another form, the others have other
            strides.
        captured: for each captured input, its tensor's index in `Reading.tensors`.
        lookups: reads of captured tensors, for messages.
    """

    op: Operator
    similar: tuple[Operator, ...]
    captured: tuple[int, ...]
    lookups: Callable[[], list[str]]


def definition_of(problem: Problem, score_mod: Any, mask_mod: Any, reading: Reading, place: Any = None) -> Definition:
    """The definition of `problem` with these mods; arguments and errors are those of `compiled_for`."""
    from neptune_lab.operators import attention
    from neptune_lab.operators.attention_definition import captured_by
    from neptune_lab.operators.attention_sizes import sizes_of

    (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = problem.q, problem.k
    sizes: Any = {"kv_heads": kv_heads, "v_head_dim": problem.v[3], "dtype": problem.dtype, "scale": problem.scale}
    sizes |= {"kv_batch": problem.k[0], "return_lse": problem.extras.lse, "return_max": problem.extras.max_scores}
    sizes |= {"pages": problem.pages, "place": place}
    sizes |= dict(problem.extras.formats)
    make = partial(attention.general, batch, heads, q_len, kv_len, head_dim, score_mod, mask_mod, **sizes)
    plain = make(empty_rows="zero", live=True)
    alike = _as_tuned(make, plain)
    apart: tuple[Operator, ...] = ()
    if _packs_groups(problem, plain, alike):
        apart = plain, alike  # (if one of them is tuned later, it is compiled)
        plain = alike = make(empty_rows="zero", live=True, pack_groups=True)
    captures = captured_by(sizes_of(plain.params), score_mod, mask_mod, live=True, place=place)
    index_of = {id(tensor): index for index, tensor in enumerate(reading.tensors)}
    by_name = {name: index_of[owner] for owner, name in captures.names.items() if owner in index_of}
    captured = tuple(by_name[tensor.name] for tensor in stored.captured_inputs(plain.inputs))

    op, similar = plain, (alike,)
    if problem.strides is not None:
        op, similar = laid_out(plain, problem.strides), (laid_out(alike, problem.strides), plain, alike)
    return Definition(op, (*similar, *apart), captured, lambda: captures.lookups(op.program))


def _packs_groups(problem: Problem, *forms: Operator) -> bool:
    """Whether the queries of a group of heads are rows of one product: where that is faster, unless the call asks for
    Gluon, which has no such kernel, or a form of it was tuned at these sizes."""
    from neptune_lab.pipeline import packs_groups

    extras = problem.extras
    if extras.lse or extras.max_scores or extras.formats or problem.k[0] != problem.q[0]:
        return False
    return given_in(extras.forward_options).language != "gluon" and packs_groups(*forms)


def _compiled(
    problem: Problem,
    score_mod: Any,
    mask_mod: Any,
    reading: Reading,
    key: str | None,
    device: torch.device,
    place: Any = None,
) -> Compiled:
    """The kernel of a problem: from memory, from the disk, or compiled now, and kept in both.

    Args:
        key: of the disk, by the mods' state; None: it cannot be told.
        place: as in `attention.general`.
    """
    from neptune_lab.records import workload_key

    made = definition_of(problem, score_mod, mask_mod, reading, place)
    workloads = tuple(map(workload_key, (made.op, *made.similar)))
    records = known_records(workloads)
    definition = stored.key_of((workloads, records, made.captured, tuple(problem.extras.forward_options.items())))
    if definition not in _by_definition:
        entry = stored.find(definition)
        if entry is None:
            try:
                spec = _spec(made.op, made.similar, problem.extras.forward_options, device)
            except TileError as error:
                raise _explained(error, made.lookups()) from error
            entry = stored.StoredKernel(spec, made.captured, workloads, records)
            stored.put(definition, entry)
        _keep(_by_definition, definition, (entry, _loaded(entry)))
    entry, compiled = _by_definition[definition]
    if key is not None:
        stored.put(key, entry)
    return compiled


def _explained(error: TileError, lookups: list[str]) -> NeptuneError:
    """The error, in terms of the mod if `lookups`, its reads of captured tensors, may have caused it."""
    if not lookups:
        return error
    return DefinitionError(
        f"a mod looks up {', '.join(lookups)}: kernels read a captured tensor at the positions b, h, q and kv, and "
        f"this index cannot be made a tile ({error.reason})",
        help="look it up once before the call, `table = bias[index]` with one element for each (q, kv) or "
        "(b, h, q, kv), and read `table[q, kv]` in the mod",
    )


def _as_tuned(make: Callable[[], Operator], op: Operator) -> Operator:
    """The operator in the form in which presets are tuned, whose records also apply to `op`."""
    try:
        alike = make()
        alike.program  # noqa: B018  # its definition may be refused, which is made here
        return alike
    except DefinitionError:  # in that form, captured values must fit into 32 bits
        return op


def _spec(op: Operator, similar: tuple[Operator, ...], options: dict[str, Any], device: torch.device) -> KernelSpec:
    """Compiles with the choice that `nl.compile` makes on a GPU, of which the caller's `options` replace parts.  While
    the kernel is compared with the definition, Triton compiles it.

    Args:
        similar: the first is `op` in another form, the others have other strides.
    """
    from neptune_lab.pipeline import validated

    kernel = kernel_for(op, options, similar)
    with compiling(kernel.spec, device):
        return validated(kernel).spec


def _sized(entry: stored.StoredKernel) -> Compiled:
    """The kernel of an entry for all lengths, loaded once."""
    if id(entry) not in _by_entry:
        _keep(_by_entry, id(entry), (entry, _loaded(entry)))
    return _by_entry[id(entry)][1]


def _loaded(entry: stored.StoredKernel) -> Compiled:
    dtypes = (getattr(torch, tensor.dtype) for tensor in stored.captured_inputs(entry.spec.inputs))
    return Compiled(load(entry.spec), tuple(zip(entry.captured, dtypes, strict=True)))


def known_records(workloads: tuple[str, ...]) -> str:
    """Digest of the tuning records for the workloads on this device; it changes if a record is added."""
    from neptune_lab.records import Store, shipped

    device, store = device_facts().name, Store()
    records = [record for workload in workloads for record in store.look_up(workload=workload, device=device)]
    records += [r for r in shipped() if r.workload in workloads and r.device == device]
    return digest_of([(r.source, r.us, r.when) for r in records])[:16]
