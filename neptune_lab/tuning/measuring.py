"""Converts an operator and a candidate to plain data for a measuring process, and its answer to a record."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.errors import MeasureError, NeptuneError
from neptune_lab.hashed import digest_of
from neptune_lab.operators import Operator
from neptune_lab.pipeline import Choice, compile_choice
from neptune_lab.records import Record, definition_of_operator, workload_key
from neptune_lab.runtime import DeviceFacts, KernelSpec
from neptune_lab.runtime.measurement import Measurement
from neptune_lab.runtime.task import Draw, Task

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program
    from neptune_lab.target import Target


def task_of(op: Operator, *, cold: bool | None = None, seed: int = 0) -> Task:
    """The operator as a workload to measure.

    Args:
        cold: flush L2 before each timed launch; None: as `starts_cold` says.
        seed: of the drawn inputs.
    """
    draws, values = _inputs(op, seed)
    return Task(
        workload_key(op),
        definition_of_operator(op),
        draws,
        values,
        seed,
        starts_cold(op) if cold is None else cold,
    )


def starts_cold(op: Operator) -> bool:
    """Whether the operator is measured with a cold L2 by default: one query against a cache of keys and values.

    In decoding, the layers in between have replaced what L2 held of them; inputs of other operators were just written.
    """
    return op.params.get("q_len") == 1


def _inputs(op: Operator, seed: int) -> tuple[dict[str, Draw], dict[str, np.ndarray]]:
    """How inputs are drawn, and the values of those that are captured or have a generator of their own."""
    recorder = _Recorder()
    drawn: Sequence[Any] = ()
    with contextlib.suppress(_Unrecorded):
        drawn = op.draw(recorder)  # type: ignore[arg-type]
    free = [t.name for t in op.inputs if t.name not in op.captured]
    if len(drawn) == len(free) and all(id(array) in recorder.draws for array in drawn):
        return {n: recorder.draws[id(a)] for n, a in zip(free, drawn, strict=True)}, dict(op.captured)
    return {}, op.random_inputs(seed)


class _Unrecorded(Exception):
    """An operator draws inputs in a way that `Draw` cannot express."""


class _Recorder:
    """Replaces a random generator and records the calls: large inputs are drawn on the GPU, not here."""

    def __init__(self) -> None:
        self.draws: dict[int, Draw] = {}
        self._kept: list[np.ndarray] = []  # so that an id stays the array's own

    def _note(self, draw: Draw, size: Any) -> np.ndarray:
        array = np.broadcast_to(np.zeros((), np.float64 if draw.kind == "normal" else np.int64), size or ())
        self._kept.append(array)
        self.draws[id(array)] = draw
        return array

    def standard_normal(self, size: Any = None) -> np.ndarray:
        return self._note(Draw("normal"), size)

    def integers(self, low: int, high: int | None = None, size: Any = None) -> np.ndarray:
        ends = (0, int(low)) if high is None else (int(low), int(high))
        return self._note(Draw("integers", *ends), size)

    def __getattr__(self, name: str) -> Any:
        raise _Unrecorded(name)


# -- compiling in another process ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """Returns a program that was built already."""

    program: Program

    def __call__(self) -> Program:
        return self.program


def _not_here(*_: Any) -> Any:
    raise MeasureError(
        "this operator was sent to be compiled only: it has no reference and no inputs",
        help="call the operator that it was made from",
    )


class _Portable(Operator):
    """An operator that holds no functions but those of this module, so it can be pickled."""

    def __reduce__(self) -> Any:
        return _portable_of, ({field.name: getattr(self, field.name) for field in fields(self)},)


def _portable_of(values: dict[str, Any]) -> _Portable:
    return _Portable(**values)


def portable(op: Operator) -> Operator:
    """The operator with what compiling needs, for pickling: a program is plain data, the function that builds it is
    not."""
    kept = {field.name: getattr(op, field.name) for field in fields(op)}
    plain = {"build": _Given(op.program), "compute": _not_here, "draw": _not_here, "ties": dict, "gradient_stops": None}
    return _portable_of(kept | plain)


def emit(op: Operator, candidate: Choice, target: Target | None = None) -> KernelSpec | str:
    """Compiles a candidate to Triton's source, or returns the refusal of a stage.

    Args:
        target: the GPU to emit for; None: the local one.
    """
    try:  # its numbers are compared with the reference on the device, before it is timed
        return compile_choice(op, candidate, validate="none", target=target).spec
    except NeptuneError as error:
        return error.reason


# -- records ---------------------------------------------------------------------------------


def source_hash(text: str) -> str:
    """The digest that identifies an emitted module in records."""
    return digest_of(text)[:20]


def record_of(
    about: tuple[str, Mapping[str, Any]],
    task: Task,
    candidate: dict[str, Any],
    source: str,
    facts: DeviceFacts,
    measured: Measurement,
    command: str,
) -> Record:
    """A measurement as a record; `about` is the operator's name and what it was made from."""
    return Record(
        workload=task.key,
        operator=about[0],
        params=about[1],
        device=facts.name,
        capability=".".join(map(str, facts.capability or ())),
        torch=facts.torch,
        triton=facts.triton,
        source=source_hash(source),
        candidate=candidate,
        cold=task.cold,
        us=measured.us,
        low=measured.low,
        high=measured.high,
        error=measured.error,
        resources=measured.resources,
        failure=measured.failure,
        when=now(),
        command=command,
    )


def now() -> str:
    """The current time in the form of records."""
    return datetime.now(UTC).isoformat(timespec="seconds")
