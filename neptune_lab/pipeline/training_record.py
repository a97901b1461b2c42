"""The record of the derivation of a backward pass, made from what reverse mode kept."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from neptune_lab.loop_ir import tree
from neptune_lab.operators.reverse_mode.origins import Origin
from neptune_lab.operators.reverse_mode.rules import rule
from neptune_lab.operators.reverse_mode.stages import Stage
from neptune_lab.pipeline.record import graph_record, operator_record, versions
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.trace.training import OnePass, OriginRecord, RuleRecord, TrainingRecord, UseRecord, ValueRecord
from neptune_lab.traffic import operations

if TYPE_CHECKING:
    from neptune_lab.operators import Operator, Training

_PACKAGE = Path(__file__).parents[1]


def training_record(passes: Training) -> TrainingRecord:
    """The record of both passes.

    Args:
        passes: from `operators.training`.

    Returns:
        Plain data, which needs nothing of the compiler to be shown.
    """
    derivation = passes.derivation
    forward, backward = _one_pass(passes.forward), _one_pass(passes.backward)
    defined = {node.id for node in forward.graph.nodes}

    def here(name: str) -> str:
        """The node of the forward pass that is `name`, or computes the like; "" if there is none."""
        found = name if name in defined else derivation.stands_for.get(name, "")
        return found if found in defined else ""

    origins = tuple(
        _origin(stage, derivation.origins[stage], here)
        for part in backward.parts
        for stage in part
        if stage in derivation.origins
    )
    read: dict[str, list[str]] = {}
    for edge in backward.graph.edges:
        read.setdefault(edge.source, []).append(edge.target)
    values = tuple(
        ValueRecord(
            v.stage.name,
            here(v.stage.name),
            v.stage.shape,
            v.stage.dtype,
            v.stage.size * itemsize(v.stage.dtype),
            v.kept,
            v.result,
            tuple(read.get(v.stage.name, ())) if v.kept else (),
            tuple(stage.name for stage in v.again),
            sum(map(_operations, v.again)),
            v.why,
        )
        for v in derivation.values
    )
    names = dict.fromkeys(name for origin in origins for use in origin.uses for name in use.rules)
    return TrainingRecord(
        passes.of.title, passes.wrt, forward, backward, values, origins, tuple(map(_rule, names)), versions()
    )


def _one_pass(op: Operator) -> OnePass:
    blocks = tuple(block.name for block in tree.blocks(op.program))
    return OnePass(operator_record(op), graph_record(op.program), op.parts or (blocks,))


def _origin(stage: str, origin: Origin, here) -> OriginRecord:
    uses = tuple(UseRecord(use.reader, here(use.reader), use.rules) for use in origin.uses)
    return OriginRecord(stage, origin.role, origin.of, here(origin.of), _once(uses), origin.copy_of)


def _once(uses: Iterable[UseRecord]) -> tuple[UseRecord, ...]:
    return tuple(dict.fromkeys(uses))


def _operations(stage: Stage) -> int:
    """Operations on values of a whole stage; a reduction has one more per term."""
    runs = stage.size
    for _, extent in stage.folded:
        runs *= extent
    return runs * (operations(stage.term) + (stage.reducer is not None))


@lru_cache(maxsize=64)
def _rule(name: str) -> RuleRecord:
    found = rule(name)
    lines, _ = inspect.getsourcelines(found.function)
    file = Path(inspect.getsourcefile(found.function) or "")
    place = f"{_PACKAGE.name}/{file.relative_to(_PACKAGE).as_posix()}, {found.function.__qualname__}"
    return RuleRecord(name, found.says, place, _dedented(lines))


def _dedented(lines: Sequence[str]) -> str:
    return inspect.cleandoc("\n" + "".join(lines)) if lines else ""


__all__ = ["training_record"]
