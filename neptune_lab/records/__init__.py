"""Tuning records: `best(op)` is the fastest known choice for an operator on a device.

The user's own records (a file in the cache directory) take precedence over those that the package ships.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import MeasureError
from neptune_lab.records.definition import definition_of, definition_of_operator, workload_key
from neptune_lab.records.nearest import closest
from neptune_lab.records.record import SCHEMA, Record, dump, read
from neptune_lab.records.store import RecordsWarning, Store
from neptune_lab.runtime import DeviceFacts, device_facts
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_kind
from neptune_lab.target import Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

SHIPPED = Path(__file__).parent / "shipped"

__all__ = [
    "SCHEMA",
    "SHIPPED",
    "Record",
    "RecordsWarning",
    "Store",
    "best",
    "definition_of",
    "definition_of_operator",
    "dump",
    "nearest",
    "read",
    "shipped",
    "shipped_for",
    "workload_key",
]


def best(op: Operator, device: DeviceFacts | str | None = None, *, store: Store | None = None) -> Record | None:
    """The fastest recorded choice for the operator's definition, shapes and dtypes on a device.

    A record made with the installed versions of torch and Triton takes precedence over others, and the user's own
    records over those of the package. If the user's records cannot be read, they are skipped with a `RecordsWarning`.

    Args:
        device: facts, or a GPU's name ("NVIDIA H200"); None: the local GPU.
        store: the user's records; None: those in the cache directory.
        op: the operator.

    Returns:
        The record, or None if there is none.
    """
    if device is None:
        device = device_facts()
    name = _name_of(device)
    workload = workload_key(_operator(op))
    own = _store(store).look_up(workload=workload, device=name)
    for records in (own, tuple(r for r in shipped() if r.workload == workload and r.device == name)):
        timed = [r for r in records if r.us is not None]
        if not isinstance(device, str):
            here = (device.torch, device.triton)
            timed = [r for r in timed if (r.torch, r.triton) == here] or timed
        if timed:
            return min(timed, key=lambda r: r.us or 0.0)
    return None


def nearest(
    op: Operator, device: DeviceFacts | str | None = None, *, store: Store | None = None, own: bool = True
) -> Record | None:
    """The fastest record as `best`, or if there is none, one of the same operator at sizes near these.

    The best choice for a batch of one is a good start for a batch of four. It may fail to compile at these sizes; the
    caller must handle that. A GPU of which there are no records follows those of its compute capability.

    Args:
        op, device, store: as in `best`.
        own: whether records of these very sizes count; otherwise, they are as if they had not been measured.

    Returns:
        The record, or None.
    """
    record = best(op, device, store=store) if own else None
    if record is not None:
        return record
    if device is None:
        device = device_facts()
    name = device if isinstance(device, str) else device.name
    workload = None if own else workload_key(_operator(op))
    for found in (_store(store).look_up(device=name), shipped_for(device)):
        record = closest((r for r in found if r.workload != workload), op.name, op.params)
        if record is not None:
            return record
    return None


def shipped_for(device: DeviceFacts | str) -> tuple[Record, ...]:
    """The package's records of a GPU; of a GPU without any, those of its compute capability.

    Args:
        device: facts, or the GPU's name.
    """
    name = device if isinstance(device, str) else device.name
    own = tuple(r for r in shipped() if r.device == name)
    if own:
        return own
    known = Target.known(name) if isinstance(device, str) else None
    capability = device.capability if not isinstance(device, str) else known.capability if known else None
    return tuple(r for r in shipped() if capability and r.capability == ".".join(map(str, capability)))


def _operator(op: Any) -> Operator:
    if not (hasattr(op, "program") and hasattr(op, "params")):
        raise MeasureError(f"op={shown(op)}: expected an Operator", help="such as operators.attention.causal(seq=128)")
    return op


def _name_of(device: DeviceFacts | str) -> str:
    kinds = (DeviceFacts, str)
    check_kind("device", device, kinds, "a GPU's name, facts or None", MeasureError, help='such as "NVIDIA H200"')
    return device if isinstance(device, str) else device.name


def _store(store: Any) -> Store:
    if store is None:
        return Store()
    check_kind("store", store, Store, "a Store or None", MeasureError, help='such as records.Store("records.sqlite")')
    return store


@cache
def shipped() -> tuple[Record, ...]:
    """The records that come with the package."""
    return tuple(record for path in sorted(SHIPPED.glob("*.json")) for record in read(path))
