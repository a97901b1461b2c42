"""The machine code of the kernel: compiled for a target when the page asks, in a thread."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from neptune_lab.errors import MachineCodeError, NeptuneError
from neptune_lab.machine_code import ARCHITECTURES, Architecture, architecture_of, asked_by, kinds
from neptune_lab.machine_code import cancel as cancel_compile
from neptune_widgets.pane import Later, Message, answers, pane_data
from neptune_widgets.session import Session

if TYPE_CHECKING:
    from neptune_lab import Kernel
    from neptune_lab.machine_code import KernelCode, KernelResources, MachineCode, Stage

DEFAULT = "sm_90"
# Which targets and stages were asked for in each explorer; a saved page has these.
_ASKED: WeakKeyDictionary[Session, dict[tuple[str, str], None]] = WeakKeyDictionary()
_ADDRESS = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?", re.MULTILINE)


@pane_data
def data(session: Session) -> dict[str, Any]:
    """The targets that the kernel can be compiled for, with their stages; none without a kernel."""
    kernel = session.kernel
    if kernel is None:
        return {"default": DEFAULT, "targets": []}
    first = 1 if _gluon(kernel) else 0  # Gluon begins with layouts: it has no TTIR
    return {
        "default": DEFAULT,
        "targets": [{"name": a.name, "stages": list(a.stages[first:])} for a in _targets(kernel)],
    }


@answers("machine")
def answer(session: Session, message: Message) -> Message | Later:
    """One stage for one target, with the resources."""
    target, stage = architecture_of(message["target"]).name, str(message["stage"])
    kernel = session.kernel
    if kernel is None:
        return _refused(target, stage, MachineCodeError("there is no kernel to compile"))
    keep(session, target, stage)

    def made() -> Message:
        with asked_by(session):
            return _code(kernel, target, stage)

    return made


@answers("machine_cancel")
def cancel(session: Session, message: Message) -> Message:
    """Ends what Triton compiles for this explorer; the questions that wait are answered by an error that says so."""
    cancel_compile(session)
    return {"kind": "machine_cancel"}


def keep(session: Session, target: Any, stage: str | None = None) -> None:
    """Remembers a target for saved pages.

    Args:
        session: of the explorer.
        target: as of `Kernel.machine_code`.
        stage: one of the target's; None: the machine code itself.

    Raises:
        MachineCodeError: no such target.
    """
    architecture = architecture_of(target)
    _ASKED.setdefault(session, {})[architecture.name, stage or architecture.stages[-1]] = None


def kept(session: Session) -> list[Message]:
    """The answers for the targets that were asked for, of the present kernel; a target that fails has its error."""
    kernel = session.kernel
    if kernel is None:
        return []
    names = {a.name for a in _targets(kernel)}
    return [_code(kernel, *key) for key in _ASKED.get(session, {}) if key[0] in names]


def _gluon(kernel: Kernel) -> bool:
    return "gluon.jit" in kernel.source


def _targets(kernel: Kernel) -> list[Architecture]:
    """The architectures that a kernel can be compiled for."""
    return [a for a in ARCHITECTURES.values() if a.runs_gluon or not _gluon(kernel)]


def _code(kernel: Kernel, target: str, stage: str) -> Message:
    """A stage of every kernel of the module, ready for the page."""
    try:
        made = kernel.machine_code(target)
        made.text(stage)  # refuses a stage that no kernel has
    except NeptuneError as error:
        return _refused(target, stage, error)
    kernels = [_kernel(made, k, s) for k in made.kernels for s in k.stages if s.name == stage]
    return {"kind": "machine", "target": target, "stage": stage, "triton": made.triton, "kernels": kernels}


def _refused(target: str, stage: str, error: NeptuneError) -> Message:
    told = {"message": error.reason, "help": error.help}
    return {"kind": "machine", "target": target, "stage": stage, "error": told}


def _kernel(made: MachineCode, kernel: KernelCode, stage: Stage) -> dict[str, Any]:
    """A kernel's text, with the Triton lines of each line as a place in `frames`, and what it needs."""
    frames: dict[tuple[int, ...], int] = {}
    of = [frames.setdefault(lines, len(frames)) for lines in stage.lines]
    last = stage.name == made.last
    marks = kinds(stage.text, made.last == "sass") if last else ()
    return {
        "name": kernel.name,
        "grid": list(kernel.grid),
        "text": _narrow(stage.text) if stage.name == "sass" else stage.text,
        "frames": [list(lines) for lines in frames],
        "of": of,
        "kinds": {str(n): kind for n, kind in enumerate(marks) if kind},
        "resources": _resources(kernel.resources),
    }


def _resources(resources: KernelResources) -> dict[str, Any]:
    made = asdict(resources)
    made["occupancy"] |= {"limited_by": list(resources.occupancy.limited_by)}
    return made


def _narrow(text: str) -> str:
    """SASS with the room between address and instruction that a predicate needs, and no more."""
    return _ADDRESS.sub(lambda m: f"/*{m[1]}*/ {(m[2] or '').strip():<5} ", text)


__all__ = ["keep", "kept"]
