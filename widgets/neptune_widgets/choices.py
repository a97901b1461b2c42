"""Legal arguments: what each parameter of a step can be, tried on the program before the step.

Candidates come from the program (its blocks, loops, buffers, extents); what is offered was applied and not refused,
all other arguments being as they are. A new step gets a first set of arguments that goes through.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_widgets.session import normal

if TYPE_CHECKING:
    from neptune_lab import Schedule
    from neptune_lab.loop_schedule import Primitive, Step
    from neptune_lab.loop_schedule.declare import Parameter as Declared
    from neptune_lab.pipeline.facts import BlockFacts

# Seconds that one answer may take; the next one goes on from there, so that what is offered depends on no clock.
PATIENCE = 1.0
# Sets of arguments that are tried for one step.
MOST_TRIALS = 4000


class Unfinished(Exception):
    """There was no time to try everything: ask again with the same `Trials`."""


@dataclass(slots=True)
class Trials:
    """Steps that were tried after one and the same schedule, and whether they went through.

    Args:
        legal: the result by step.
        limited: whether there were more than `MOST_TRIALS` to try, so that a legal value may be missing.
    """

    legal: dict[Step, bool] = field(default_factory=dict)
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a primitive as the editor shows it; `choices` are None where anything may be written."""

    name: str
    kind: str
    required: bool
    choices: Any = None
    value: Any = None

    def as_json(self) -> dict[str, Any]:
        """As the page takes it."""
        return {n: getattr(self, n) for n in ("name", "kind", "required", "choices", "value")}


def parameters(primitive: Primitive) -> tuple[Parameter, ...]:
    """A primitive's parameters, without choices."""
    return tuple(Parameter(p.name, p.kind.control, p.required) for p in primitive.parameters)


def choices(
    schedule: Schedule, primitive: str, now: Mapping[str, Any] | None = None, trials: Trials | None = None
) -> tuple[Parameter, ...]:
    """The parameters of a step to come after `schedule`, each with its legal values.

    Args:
        schedule: the schedule before the step.
        primitive: its name.
        now: the step's arguments where it is there already; a new step gets a suggestion. If they are illegal, each
            parameter has the values that mend the step, the others being as they are.
        trials: what was tried before after the same schedule; filled.

    Raises:
        ScheduleError: there is no such primitive.
        Unfinished: the time of one answer is over.
    """
    from neptune_lab.loop_schedule import PRIMITIVES

    if primitive not in PRIMITIVES:
        raise ScheduleError(f"there is no primitive {primitive!r}", help=f"one of {', '.join(PRIMITIVES)}")
    search = _Search(schedule, PRIMITIVES[primitive], Trials() if trials is None else trials)
    values = dict(now or {})
    if values and not search.legal(values):
        mending = search.parameters(values)
        if any(p.choices for p in mending if p.kind != "loops"):
            return mending
    if not values or not search.legal(values):
        block = {"block": values["block"]} if "block" in values else {}
        values = search.suggestion(values) or search.suggestion(block) or values
    return search.parameters(values)


@dataclass
class _Search:
    """Trials on one program; each set of arguments is tried once."""

    schedule: Schedule
    primitive: Primitive
    trials: Trials
    end: float = 0.0
    made: int = 0

    def __post_init__(self) -> None:
        from neptune_lab.pipeline.facts import block_facts

        self.end = time.monotonic() + PATIENCE
        self.blocks: dict[str, BlockFacts] = {b.name: b for b in block_facts(self.schedule.program)}

    def legal(self, values: Mapping[str, Any]) -> bool:
        """Whether the step goes through with these arguments; False for those beyond the limit of trials."""
        step = normal(self.primitive.name, values)
        tried = self.trials.legal
        if step not in tried:
            if len(tried) >= MOST_TRIALS:
                self.trials.limited = True
                return False
            if self.made and time.monotonic() > self.end:  # at least one trial per answer, so that it ends
                raise Unfinished
            self.made += 1
            try:
                self.schedule.copy().apply(step)
                tried[step] = True
            except NeptuneError:
                tried[step] = False
        return tried[step]

    def parameters(self, values: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Every parameter with the values that it can have, the others being as they are."""
        return tuple(self.parameter(p, values) for p in self.primitive.parameters)

    def suggestion(self, known: Mapping[str, Any]) -> dict[str, Any] | None:
        """The first arguments that go through, with as many of the known ones as there are."""
        required = [p for p in self.primitive.parameters if p.required]
        for values in self._combinations(required, {}, known):
            if self.legal(values):
                return values
        return None

    def _combinations(
        self, open_: list[Declared], values: dict[str, Any], known: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        if not open_:
            yield values
            return
        first, *rest = open_
        name = first.name
        several = [known[name]] if name in known else self.candidates(first, values)
        for value in several:
            yield from self._combinations(rest, {**values, name: value}, known)

    def parameter(self, declared: Declared, values: Mapping[str, Any]) -> Parameter:
        """One parameter with the values that it can have, the others being as they are."""
        name, kind, required = declared.name, declared.kind.control, declared.required
        value = values.get(name)
        if kind in ("text", "sentence"):
            return Parameter(name, kind, required, None, value)
        if kind == "tiles":
            return Parameter(name, kind, required, self._tiles(values), value)
        if kind == "loops":
            block = self.blocks.get(values.get("block", ""))
            return Parameter(name, kind, required, [v for v, _, _ in block.loops] if block else [], value)
        options = [c for c in self.candidates(declared, values) if self.legal({**values, name: c})]
        if value is not None and value not in options and self.legal(values):
            options.insert(0, value)
        return Parameter(name, kind, required, options, value)

    def candidates(self, declared: Declared, values: Mapping[str, Any]) -> list[Any]:
        """What a parameter might be, before anything is tried."""
        block = self.blocks.get(values.get("block", ""))
        match declared.kind.control:
            case "block":
                return list(self.blocks)
            case "loop" if not declared.kind.own:
                return self._every_loop()
            case "loop" if block:
                return [f"{block.name}.{var}" for var, _, _ in block.loops]
            case "buffer":
                return list(block.reads) if block else []
            case "factors":
                return [[None, size] for size in self._sizes(self._extent(values.get("loop", "")))]
            case "tiles" if block:
                serial = sorted((x for x in block.loops if x[2] == "serial"), key=lambda x: -x[1])
                return [{var: min(extent, 64)} for var, extent, _ in serial]
            case "loops" if block:
                return self._loops([v for v, _, _ in block.loops])
            case "int" if not declared.kind.offered:
                return self._sizes(self._extent(values.get("loop", "")))
            case _:
                return list(declared.kind.offered)

    def _every_loop(self) -> list[str]:
        """Each loop once, by the first block that is in it."""
        found: dict[tuple[int, ...], str] = {}
        for b in self.blocks.values():
            for depth, (var, _, _) in enumerate(b.loops, 1):
                found.setdefault(b.nest[:depth], f"{b.name}.{var}")
        return list(found.values())

    def _extent(self, loop: str) -> int:
        block, _, var = loop.partition(".")
        around = self.blocks[block].loops if block in self.blocks else ()
        return next((extent for v, extent, _ in around if v == var), 0)

    def _loops(self, around: list[str]) -> list[list[str]]:
        """Two loops the other way round, then two neighbours as they are."""
        return [[b, a] for a, b in combinations(around, 2)] + [list(pair) for pair in pairwise(around)]

    def _tiles(self, values: Mapping[str, Any]) -> dict[str, list[int]]:
        """For each loop of the block the sizes that go through, the other loops' sizes being as they are."""
        block, now = self.blocks.get(values.get("block", "")), dict(values.get("tiles") or {})
        found: dict[str, list[int]] = {}
        for var, extent, _ in block.loops if block else ():
            options = self._sizes(extent)
            # Where the smallest and the largest tile go through, so do those between: the guard is the same.
            if not all(self.legal({**values, "tiles": {**now, var: s}}) for s in (options[0], options[-1])):
                options = [s for s in options if self.legal({**values, "tiles": {**now, var: s}})]
            if var in now and now[var] not in options and self.legal(values):
                options = sorted([*options, now[var]])
            if options:
                found[var] = options
        return found

    @staticmethod
    def _sizes(extent: int) -> list[int]:
        """Powers of two up to the extent, and its divisors where they are few; ascending."""
        powers = [1 << n for n in range(extent.bit_length()) if 1 << n <= extent]
        divisors = [n for n in range(1, extent + 1) if extent % n == 0] if extent <= 4096 else []
        return sorted({*powers, *(divisors if len(divisors) <= 12 else ())})


__all__ = ["Parameter", "Trials", "Unfinished", "choices", "parameters"]
