"""What an edit changed: the schedule as it was opened and before the last edit, to compare the present one with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from neptune_lab.errors import NeptuneError
from neptune_widgets.pane import Later, Message, answers, kept_data, pane_data
from neptune_widgets.panes import traffic
from neptune_widgets.session import Session, Version

if TYPE_CHECKING:
    from neptune_lab import Kernel

Json = dict[str, Any]

# The latest sides of each explorer, with the versions that they are of.
_MADE: WeakKeyDictionary[Session, dict[str, tuple[Version, Json]]] = WeakKeyDictionary()
# What was counted of each explorer's versions, by schedule and kernel; and of how many it is kept.
_TRAFFIC: WeakKeyDictionary[Session, dict[tuple[int, int], tuple[Version, Json]]] = WeakKeyDictionary()
_KEPT = 4


def versions(session: Session) -> dict[str, Version]:
    """What the present schedule can be compared with, by name: "before" the last edit, and as "opened".

    Neither is there if it is the present schedule; "opened" is missing if it is what was there before.
    """
    found: dict[str, Version] = {}
    for name, version in (("before", session.before), ("opened", session.opened)):
        known = (session.source, *(v.source for v in found.values()))
        if version is not None and not any(version.source.same(other) for other in known):
            found[name] = version
    return found


@pane_data
def names(session: Session) -> Json:
    """Which versions there are; the page asks for one when it is shown."""
    return dict.fromkeys(versions(session))


@kept_data
def data(session: Session) -> Json:
    """All versions with their traffic, for a page that is saved."""
    return {
        name: {**side(session, name), "traffic": _counted(session, version)()}
        for name, version in versions(session).items()
    }


@answers("changes")
def answer(session: Session, message: Message) -> Message:
    """The version that the message names; its traffic, which takes seconds to count, is a question of its own."""
    name = str(message["version"])
    if name not in versions(session):
        return {"kind": "changes", "version": name, "side": None}
    return {"kind": "changes", "version": name, "side": side(session, name)}


@answers("changes_traffic")
def version_traffic(session: Session, message: Message) -> Message | Later:
    """Bytes and operations of the version that the message names."""
    name = str(message["version"])
    version = versions(session).get(name)
    if version is None:
        return {"kind": "changes_traffic", "version": name, "traffic": None}
    count = _counted(session, version)
    return lambda: {"kind": "changes_traffic", "version": name, "traffic": count()}


def _counted(session: Session, version: Version) -> Callable[[], Json]:
    """Counts the traffic of a version once; what is returned does not read the session's schedule."""
    made = _TRAFFIC.setdefault(session, {})

    def count() -> Json:
        key = id(version.schedule), id(version.kernel)
        if key not in made:
            # The version is kept with it, so that no other one gets its ids.
            made[key] = (version, traffic.counted(version.schedule, version.kernel))
            while len(made) > _KEPT:
                made.pop(next(iter(made)))
        return made[key][1]

    return count


def side(session: Session, name: str) -> Json:
    """A version as the page takes it: its record and its steps."""
    from neptune_lab.pipeline import schedule_trace
    from neptune_lab.trace import to_json

    version = versions(session)[name]
    made = _MADE.setdefault(session, {})
    if name not in made or made[name][0].source is not version.source:
        kernel = version.kernel
        trace = schedule_trace(version.schedule) if kernel is None else kernel.trace
        found = {
            "trace": json.loads(to_json(trace)),
            "steps": [step.as_record() for step in version.schedule.steps],
            "traffic": None,
        }
        made[name] = (version, found)
    return made[name][1]


@answers("resources")
def resources(session: Session, message: Message) -> Later:
    """What the machine code of the present kernel and of a version needs, at a GPU."""
    gpu, name = str(message["gpu"]), str(message["version"])
    found = {"now": session.kernel, name: versions(session)[name].kernel if name in versions(session) else None}

    def made() -> Message:
        kernels = {key: None if kernel is None else _needs(kernel, gpu) for key, kernel in found.items()}
        return {"kind": "resources", "gpu": gpu, "version": name, "kernels": kernels}

    return made


def _needs(kernel: Kernel, gpu: str) -> Json:
    """Per launch, or why they are not known."""
    try:
        code = kernel.machine_code(gpu)
    except NeptuneError as error:
        return {"error": error.reason, "launches": []}
    return {
        "error": "",
        "launches": [
            {
                "kernel": made.name,
                "registers": made.resources.registers,
                "spilled": made.resources.local_bytes,
                "shared": made.resources.shared_bytes,
                "warps": made.resources.warps,
                "blocks": made.resources.occupancy.blocks,
            }
            for made in code.kernels
        ],
    }
