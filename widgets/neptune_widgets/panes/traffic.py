"""Bytes and operations of every form of the program, at every known GPU: counted when the pane is opened, and for
pages that are saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from neptune_widgets.pane import Message, answers, kept_data
from neptune_widgets.session import Session

if TYPE_CHECKING:
    from neptune_lab import Kernel, Schedule
    from neptune_lab.target import Target
    from neptune_lab.traffic import Traffic

Json = dict[str, Any]

# What was counted last in each explorer, with the schedule and the kernel that it is of.
_COUNTED: WeakKeyDictionary[Session, tuple[Schedule, Kernel | None, Json]] = WeakKeyDictionary()


@answers("traffic")
def answer(session: Session, message: Message) -> Message:
    """What `data` gives, when the pane is opened."""
    return {"kind": "traffic", "traffic": data(session)}


@kept_data
def data(session: Session) -> Json:
    """The forms of the session's program at every known GPU."""
    schedule, kernel = session.schedule, session.kernel
    found = _COUNTED.get(session)
    if found is None or found[0] is not schedule or found[1] is not kernel:
        found = (schedule, kernel, counted(schedule, kernel))
        _COUNTED[session] = found
    return found[2]


def counted(schedule: Schedule, kernel: Kernel | None) -> Json:
    """Counts every form at every known GPU.

    Args:
        schedule: its definition and the phases of its steps are the forms.
        kernel: the last form; None: there is none.

    Returns:
        `forms`: name, step and phase of each, in order. `counts`: what was counted, each result once. `gpus`: name,
        rates and memories of each, and per form the position of its counts, the roofline's microseconds and what bounds
        them. `here`: the GPU that is chosen first.
    """
    from neptune_lab.pipeline.schedule_traffic import schedule_traffic
    from neptune_lab.target import GPUS, Target

    pool: dict[str, int] = {}
    counts: list[Json] = []
    gpus: list[Json] = []
    forms: list[Json] = []
    for name in GPUS:
        target = Target(name)
        found = schedule_traffic(schedule, None if kernel is None else kernel.at_hint, target).forms
        forms = [{"name": form.name, "step": form.step, "phase": form.phase} for form in found]
        places = []
        for form in found:
            one = _counts(form)
            key = repr(one)
            if key not in pool:
                pool[key] = len(counts)
                counts.append(one)
            places.append(pool[key])
        gpus.append({**_gpu(target), "counts": places, **_rooflines(found)})
    return {"forms": forms, "counts": counts, "gpus": gpus, "here": str(_here())}


def _here() -> Target:
    """The GPU that kernels run on if its rates are known; otherwise the default."""
    from neptune_lab.target import DEFAULT, GPUS, Target

    here = Target.current()
    return here if here.name in GPUS else DEFAULT


def _gpu(target: Target) -> Json:
    levels = [level._asdict() for level in target.memory_levels]
    return {"name": str(target), "sm_count": target.sm_count, "tflops": target.tflops, "gbps": target.gbps} | {
        "levels": levels
    }


def _counts(form: Traffic) -> Json:
    """The form's record without what differs between forms and GPUs that have the same counts."""
    record = form.as_record()
    return {k: v for k, v in record.items() if k not in ("name", "step", "phase", "roofline", "us", "bound")}


def _rooflines(forms: tuple[Traffic, ...]) -> Json:
    lines = [form.roofline for form in forms]
    return {"us": [line and line.us for line in lines], "bound": [line and line.bound for line in lines]}
