"""The record of a backward pass's derivation: both passes, what is kept between them, and where each stage comes from.

A stage is named by its node in the graph of its pass, whose line in the pass's definition is `def:<stage>`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neptune_lab.trace.record import Graph, OperatorRecord


@dataclass(frozen=True, slots=True)
class OnePass:
    """A pass: its definition, its dataflow graph, and the stages of each part that is compiled on its own."""

    operator: OperatorRecord
    graph: Graph
    parts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """A rule of reverse mode.

    Args:
        name: as of `Use.rules`.
        says: derivatives, or a sentence.
        place: file and name of the function that applies it.
        source: that function.
    """

    name: str
    says: tuple[str, ...]
    place: str
    source: str


@dataclass(frozen=True, slots=True)
class UseRecord:
    """A part of a cotangent: the stage of the forward pass whose term was differentiated, and by which rules.

    `stage` is `reader`, or the stage of the forward pass's definition that computes the like.
    """

    reader: str
    stage: str
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OriginRecord:
    """Where a stage of the backward pass comes from.

    Args:
        stage: its name.
        role: "again", "cotangent", "part", "rounded" or "count".
        of: the stage or input that it belongs to.
        forward: `of`, or the stage of the forward pass's definition that computes the like.
        uses: for a cotangent, what it is the sum of.
        copy_of: the stage of an earlier part that computes the same.
    """

    stage: str
    role: str
    of: str
    forward: str
    uses: tuple[UseRecord, ...] = ()
    copy_of: str = ""


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """A value of the forward pass that the backward pass reads from memory or computes again.

    Args:
        name: of the value.
        forward: the stage that makes it, or that computes the like.
        shape: of the value.
        dtype: of its elements.
        bytes: in memory.
        kept: whether the forward pass gives it.
        result: whether the operator returns it, so that it takes no further memory.
        readers: the stages of the backward pass that read it from memory.
        again: the stages that compute it from the inputs and the other kept values.
        operations: that these take, on the whole tensor.
        why: why it is kept or not.
    """

    name: str
    forward: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    kept: bool
    result: bool
    readers: tuple[str, ...]
    again: tuple[str, ...]
    operations: int
    why: str


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Both passes of an operator: `values` in the order of the stages, `rules` that any stage names, once each."""

    title: str
    wrt: tuple[str, ...]
    forward: OnePass
    backward: OnePass
    values: tuple[ValueRecord, ...]
    origins: tuple[OriginRecord, ...]
    rules: tuple[RuleRecord, ...]
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> tuple[ValueRecord, ...]:
        """The values that the forward pass gives."""
        return tuple(value for value in self.values if value.kept)
