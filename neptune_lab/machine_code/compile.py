"""Machine code of a generated module for a GPU that need not be here: Triton compiles it in a child process."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from neptune_lab.errors import MachineCodeError, MeasureError
from neptune_lab.hashed import digest_of
from neptune_lab.machine_code.ahead import DISK, Failure, Launch, compiled
from neptune_lab.machine_code.architectures import Architecture, architecture_of
from neptune_lab.machine_code.code import KernelCode, KernelResources, MachineCode, Stage
from neptune_lab.machine_code.counts import count
from neptune_lab.machine_code.line_maps import Mapped, numbered, of_assembly, of_llvm, of_mlir, of_sass
from neptune_lab.machine_code.occupancy import occupancy
from neptune_lab.runtime import KernelSpec, cache_directory
from neptune_lab.runtime.process import ChildProcess
from neptune_lab.strict.forks import after_fork

# Without a target.
DEFAULT = "sm_90"
# Compiling one kernel of ours takes seconds; the assembler takes minutes where tiles are far too large.
TIMEOUT_SECONDS = 600.0
_KEPT = 64
_GLUON = "gluon.jit"
_HELP = "compile with smaller tiles or fewer num_stages (block_q, block_kv), or choose another target"

_lock = threading.Lock()
_child: list[ChildProcess] = []
_made: OrderedDict[str, MachineCode] = OrderedDict()
# Held for a moment, never while something is compiled.
_state = threading.Lock()
# How often `cancel` was called, for everybody and by who asks; who asked for what the child compiles; and whether the
# child was killed and not closed since.
_cancels = 0
_own_cancels: WeakKeyDictionary[object, int] = WeakKeyDictionary()
_running: object = None
_killed = False
_asking: ContextVar[object] = ContextVar("who asks for machine code", default=None)


def _forked() -> None:
    global _lock, _state
    _lock, _state = threading.Lock(), threading.Lock()


after_fork(_forked)  # no thread is there that would free them


def machine_code(spec: KernelSpec, target: Any = None) -> MachineCode:
    """Compiles a module ahead of time; no GPU is needed.

    Results are kept in memory by the module's text, its inputs and the target, and Triton keeps its own on disk.

    Args:
        spec: the module, its launcher and inputs.
        target: an architecture ("sm_90", "gfx942"), the name of a known GPU, or a `Target`; None: sm_90.

    Returns:
        Every stage of each kernel, and its resources.

    Raises:
        MachineCodeError: the target is none, the module is for another one, Triton or the assembler fails, or `cancel`
            was called meanwhile.
    """
    global _killed
    asking = _asking.get()
    architecture = architecture_of(DEFAULT if target is None else target)
    if _GLUON in spec.text and not architecture.runs_gluon:
        raise MachineCodeError(
            f"{spec.name} is written in Gluon, which is for sm_90; target={architecture.name!r} cannot run it",
            help='use target="sm_90", or compile with code=nl.CodeOptions(code="triton")',
        )
    key, cancels = _key(spec, architecture), _count(asking)
    with _lock:
        if _count(asking) != cancels:
            raise _cancelled(spec, architecture)
        if key not in _made:
            _begin(asking)
            if _killed:
                _child[0].close()
                _killed = False
            try:
                _made[key] = _compile(spec, architecture)
            except MachineCodeError as error:
                if _count(asking) != cancels:
                    raise _cancelled(spec, architecture) from error
                raise
            finally:
                _begin(None)
            while len(_made) > _KEPT:
                _made.popitem(last=False)
        _made.move_to_end(key)
        return _made[key]


@contextmanager
def asked_by(who: object) -> Iterator[None]:
    """What `machine_code` compiles inside, in this thread, is what `cancel(who)` ends.

    Args:
        who: an object that can be weakly referenced.
    """
    before = _asking.set(who)
    try:
        yield
    finally:
        _asking.reset(before)


def cancel(who: object = None) -> None:
    """Ends what is being compiled, from any thread: each `machine_code` that runs or waits raises MachineCodeError.

    Args:
        who: of `asked_by`: what others asked for goes on; None: everything ends.
    """
    global _cancels, _killed
    with _state:
        if who is None:
            _cancels += 1
        else:
            _own_cancels[who] = _own_cancels.get(who, 0) + 1
        if _lock.locked() and _child and (who is None or _running is who):
            _killed = True
            _child[0].kill()


def _count(asking: object) -> int:
    return _cancels + (0 if asking is None else _own_cancels.get(asking, 0))


def _begin(asking: object) -> None:
    """Notes who asked for what is compiled now."""
    global _running
    with _state:
        _running = asking


def _cancelled(spec: KernelSpec, architecture: Architecture) -> MachineCodeError:
    return MachineCodeError(f"compiling {spec.name} for {architecture.name} was cancelled", help="compile it again")


def _key(spec: KernelSpec, architecture: Architecture) -> str:
    inputs = ";".join(f"{t.shape} {t.dtype} {t.strides}" for t in spec.inputs)
    parts = (version("triton"), architecture.name, spec.entry, inputs, spec.text)
    return digest_of(*parts)


def _compile(spec: KernelSpec, architecture: Architecture) -> MachineCode:
    """Compiles a kernel in a process of its own, which sees no GPU.

    Raises:
        MachineCodeError: Triton or a tool of its compiler refuses it, or the process ends.
    """
    if not _child:
        _child.append(
            ChildProcess(
                {
                    "TRITON_INTERPRET": "0",
                    "TRITON_DISABLE_LINE_INFO": "0",
                    "TRITON_CACHE_DIR": os.fspath(_folder()),
                    "CUDA_VISIBLE_DEVICES": "",
                }
            )
        )
    inputs = tuple((tuple(t.shape), t.dtype) for t in spec.inputs)
    try:
        made = _child[0].call(
            f"{compiled.__module__}:{compiled.__name__}",
            spec.text,
            spec.entry,
            inputs,
            architecture.name,
            architecture.lanes,
            timeout=TIMEOUT_SECONDS,
        )
    except MeasureError as error:
        raise MachineCodeError(
            f"{spec.name} cannot be compiled for {architecture.name}: {error.reason}", help=_HELP
        ) from error
    if isinstance(made, Failure) and made.tool == DISK:
        raise MachineCodeError(
            f"{spec.name} cannot be compiled for {architecture.name}: Triton's cache in {_folder()} cannot be written: "
            f"{made.reason}",
            help="make room there, or set NEPTUNE_LAB_CACHE to a folder that can be written, and start Python again",
        )
    if isinstance(made, Failure):
        raise MachineCodeError(
            f"{made.tool} fails on {made.kernel or spec.name} for {architecture.name}: {_short(made.reason)}",
            help=_HELP,
        )
    return MachineCode(architecture.name, version("triton"), tuple(_kernel(x, architecture) for x in made))


def _folder() -> Path:
    return cache_directory() / "machine_code"


def _short(reason: str) -> str:
    """The lines of a tool's output that say what is wrong, in one line."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"error|fail|not supported", line, re.IGNORECASE)]
    return " ".join(" ".join((telling or lines or ["no reason given"])[:2]).split())[:400]


def _kernel(launch: Launch, architecture: Architecture) -> KernelCode:
    stages = tuple(Stage(name, *_mapped(name, launch.texts)) for name in architecture.stages if name in launch.texts)
    last = stages[-1].text
    registers, scalars, local = _registers(launch, architecture)
    warps = launch.warps
    held = occupancy(architecture, registers, launch.shared, warps)
    return KernelCode(
        launch.kernel,
        launch.grid,
        stages,
        KernelResources(
            registers,
            scalars,
            local,
            launch.shared,
            launch.tensor_memory,
            warps,
            warps * architecture.lanes,
            held,
            count(last, architecture.cuda),
        ),
    )


def _mapped(stage: str, texts: dict[str, str]) -> Mapped:
    text = texts[stage]
    if stage in ("ttir", "ttgir"):
        return of_mlir(text)
    if stage == "llir":
        return of_llvm(text)
    if stage == "sass":
        return of_sass(text, numbered(texts["ptx"])[1])
    return of_assembly(text)


def _registers(launch: Launch, architecture: Architecture) -> tuple[int, int, int]:
    """Registers and scalar registers, and bytes of local memory per thread."""
    if architecture.cuda:
        return _number(r"\bREG:(\d+)", launch.usage), 0, _number(r"\bSTACK:(\d+)", launch.usage)
    text = launch.texts["amdgcn"]
    registers = _number(r"^\s*\.vgpr_count:\s*(\d+)", text)
    return (
        registers,
        _number(r"^\s*\.sgpr_count:\s*(\d+)", text),
        _number(r"^\s*\.private_segment_fixed_size:\s*(\d+)", text),
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise MachineCodeError(
            f"the compiler's output has no {pattern!r}", help="this version of Triton prints other resource tables"
        )
    return int(found[1])
