"""A kernel's HTile program, played store by store: NumPy interprets it, and what each store writes is a frame.

Of each kernel one program instance is played; what the others write to global memory is one frame after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from neptune_lab.choice import CodeOptions
from neptune_lab.errors import ScheduleError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.interpret import Array, interpret
from neptune_lab.htile.walk import evaluate, reads, region, stores
from neptune_lab.loop_ir.frames import Frame, Kind, PlayedRun, PlayedTensor, Shown
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.pipeline.lower import passed, translated_and_verified

_MOST_FRAMES = 2_000


@dataclass
class _Executed:
    """A store as it ran, with the elements that it wrote and, by tensor, those of inputs that it read."""

    store: ir.Store
    env: dict[str, int]
    written: list[Shown]
    read: dict[str, list[Shown]] = field(default_factory=dict)


def play_tiles(schedule: Schedule, inputs: Mapping[str, np.ndarray]) -> PlayedRun:
    """The frames of the HTile program after all passes.

    Args:
        schedule: a small one, whose repairs are proved.
        inputs: arrays by name.

    Raises:
        ScheduleError, TileError: it has no HTile program, or one of more than 2,000 frames; an input has another shape.
    """
    translated = translated_and_verified(schedule)
    passes = passed(translated, CodeOptions(), each=False)
    tiles = passes[-1].program if passes else translated
    executed: list[_Executed] = []

    def observe(store: ir.Store, env: Mapping[str, int], positions: tuple[Array, ...], values: Array) -> None:
        index = zip(*(p.tolist() for p in positions), strict=True) if positions else [()]
        flat = np.atleast_1d(values).tolist()
        written = [Shown(i, v, "", "", None) for i, v in zip(index, flat, strict=True)]
        executed.append(_Executed(store, dict(env), written, _inputs_read(tiles, store, env, inputs)))

    interpret(tiles, inputs, observer=observe)
    frames: list[Frame] = []
    played: list[list[_Executed]] = []
    for number, kernel in enumerate(tiles.kernels):
        own = {s.node_id for s in stores(kernel.body)}
        of_kernel = [e for e in executed if e.store.node_id in own]
        by_instance: dict[tuple[int, ...], list[_Executed]] = {}
        for e in of_kernel:
            by_instance.setdefault(tuple(e.env[a.var] for a in kernel.grid), []).append(e)
        if not by_instance:
            continue
        shown = max(by_instance, key=lambda i: len(by_instance[i]))
        where = ", ".join(f"{a.var} = {n}" for a, n in zip(kernel.grid, shown, strict=True) if a.extent > 1)
        for e in by_instance[shown]:
            loops = ", ".join(f"{v} = {n}" for v, n in e.env.items() if v not in {a.var for a in kernel.grid})
            name = " · ".join(filter(None, (e.store.target.tensor, loops, where)))
            frames.append(Frame(name, number, (), None, e.store.node_id))
            played.append([e])
        others = [e for i, own_stores in by_instance.items() if i != shown for e in own_stores]
        kept = [e for e in others if tiles.tensor(e.store.target.tensor).space != "chip"]
        if kept:
            count = len(by_instance) - 1
            what = f"the other {count} instances" if count > 1 else "the other instance"
            frames.append(Frame(what, number, (), None, kernel.node_id))
            played.append(kept)
    if len(frames) > _MOST_FRAMES:
        raise ScheduleError(
            f"the kernel runs {len(frames):,} stores; at most {_MOST_FRAMES:,} are played",
            help="make the sizes smaller: nl.explore(op, sample=small_op)",
        )
    return PlayedRun("", tuple(frames), _tensors(tiles, played))


def _inputs_read(
    program: ir.Program, store: ir.Store, env: Mapping[str, int], inputs: Mapping[str, np.ndarray]
) -> dict[str, list[Shown]]:
    """The elements of inputs that a store reads by tiles."""
    found: dict[str, list[Shown]] = {}
    for access in reads(store):
        tensor = program.tensor(access.tensor)
        if tensor.space != "input":
            continue
        ranges = []
        for entry, size in zip(region(access), tensor.shape, strict=True):
            if isinstance(entry, ir.Slice):
                start = evaluate(entry.start, env)
                ranges.append([n for n in range(start, start + entry.extent) if 0 <= n < size])
            else:
                ranges.append([evaluate(entry, env)])
        array = inputs[access.tensor]
        places = np.stack(np.meshgrid(*ranges, indexing="ij"), -1).reshape(-1, len(ranges)).tolist() if ranges else [[]]
        found.setdefault(access.tensor, []).extend(
            Shown(tuple(p), array[tuple(p)].item(), "", "", None) for p in places
        )
    return found


def _tensors(program: ir.Program, played: list[list[_Executed]]) -> tuple[PlayedTensor, ...]:
    """The tensors by what each frame writes to them, or reads of them; those that no frame touches are left out."""
    frames: dict[str, list[dict[tuple[int, ...], Shown]]] = {}
    for n, group in enumerate(played):
        for e in group:
            for name, some in [*e.read.items(), (e.store.target.tensor, e.written)]:
                frames.setdefault(name, [{} for _ in played])[n].update({s.index: s for s in some})

    def kind(tensor: ir.Tensor) -> Kind:
        if tensor.space == "input":
            return "input"
        if tensor.space != "chip":
            return "result"
        times: dict[tuple[int, ...], int] = {}
        for frame in frames[tensor.name]:
            for index in frame:
                times[index] = times.get(index, 0) + 1
        return "running" if max(times.values(), default=0) > 1 else "tile"

    ordered = sorted(frames, key=lambda name: program.tensor(name).space != "input")
    return tuple(
        PlayedTensor(
            name,
            kind(program.tensor(name)),
            program.tensor(name).shape,
            (),
            False,
            tuple(tuple(f.values()) for f in frames[name]),
        )
        for name in ordered
    )


__all__ = ["play_tiles"]
