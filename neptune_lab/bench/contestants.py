"""All contestants of a setup, our kernels and the peers, prepared on the same tensors and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from neptune_lab.bench.ablation import Variant, variants
from neptune_lab.bench.clock import LOST
from neptune_lab.bench.kernels import Compiled, Kernels
from neptune_lab.bench.measured import BOUND, DEFAULT, NO_RECORD, OURS, ContestantResult
from neptune_lab.bench.peers import Quick, Ready, Tensors, peers
from neptune_lab.bench.reference import Reference
from neptune_lab.bench.setups import Setup
from neptune_lab.runtime import load, resources


@dataclass(frozen=True)
class Contestant:
    """One column of a setup.

    Args:
        name, kind: as in `measured.Entry`.
        refuses: why it does not support a setup, given the device's bytes; empty if it does.
        make: prepares it; raises if that fails.
        variant: how our kernel is compiled; None for a peer.
        quiet: times its own candidates while it compiles.
    """

    name: str
    kind: str
    refuses: Callable[[Setup, int], str]
    make: Callable[[Setup, Tensors, Quick], Ready]
    variant: Variant | None = None
    quiet: bool = False


def contestants(setup: Setup, kernels: Kernels, autotuned: Sequence[str] = ()) -> tuple[Contestant, ...]:
    """Ours first, then the peers."""
    own = tuple(
        Contestant(v.name, v.kind, lambda setup, memory: "", _ours(kernels, v), variant=v) for v in variants(setup)
    )
    others = tuple(Contestant(p.name, p.kind, p.refuses, p.make, quiet=p.quiet) for p in peers(setup, autotuned))
    return (*own, *others)


class Refused(Exception):
    """Our kernel could not be compiled; the text is the reason."""


def _ours(kernels: Kernels, variant: Variant) -> Callable[[Setup, Tensors, Quick], Ready]:
    def make(setup: Setup, tensors: Tensors, quick: Quick) -> Ready:
        return launchable(kernels(setup, variant), tensors)

    return make


def launchable(made: Compiled, tensors: Tensors) -> Ready:
    """Our compiled kernel on these tensors.

    Raises:
        Refused: it could not be compiled.
    """
    if made.spec is None:
        raise Refused(made.note)
    kernel = load(made.spec)
    return Ready(lambda: kernel(*tensors), made.note, made.options, lambda: resources(kernel.module))


@dataclass(frozen=True)
class Attempt:
    """A contestant that was prepared and checked: its result without a time, and how to call it.

    Args:
        entry: its result, without a time.
        ready: None if it is not timed: it was refused, failed, or is wrong.
        fatal: this process has lost the GPU.
    """

    entry: ContestantResult
    ready: Ready | None = field(default=None, repr=False)
    fatal: bool = False


def attempt(
    contestant: Contestant,
    setup: Any,
    tensors: Tensors,
    reference: Reference | None,
    quick: Quick,
    memory: int,
    bound: float = BOUND,
) -> Attempt:
    """Prepares a contestant, runs it once, and compares its answer.

    Args:
        contestant: what is prepared.
        setup: what the contestant's functions take, such as a `Setup`.
        tensors: the inputs.
        reference: the right answer; None: the answer is not checked.
        quick: times a call, for contestants that choose among candidates.
        memory: bytes of the device.
        bound: the largest relative error that counts as right.

    Returns:
        The result without a time; a contestant that is refused, fails or is wrong has its reason as a note.
    """
    entry = ContestantResult(contestant.name, contestant.kind, "ok")
    if why := contestant.refuses(setup, memory):
        return Attempt(replace(entry, status="skipped", note=why))
    try:
        ready = contestant.make(setup, tensors, quick)
        answer = ready.call()
        if tensors[0].is_cuda:
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - peers are foreign code; any error is their result
        said = str(error).strip().splitlines() or [""]
        lost = LOST in str(error)
        return Attempt(replace(entry, status="failed", note=f"{type(error).__name__}: {said[0]}"[:300]), fatal=lost)
    entry = replace(entry, note=ready.note, options=dict(ready.options), resources=ready.resources())
    if reference is None:
        return Attempt(entry, ready)
    error = reference.error(answer)
    if not error <= bound:
        note = f"wrong: relative error {error:.1e} in its worst block, at most {bound:g} counts. {entry.note}".strip()
        return Attempt(replace(entry, status="wrong", error=_finite(error), note=note))
    return Attempt(replace(entry, error=error), ready)


def _finite(error: float) -> float | None:
    """The error; None if it is infinite or NaN, which JSON does not have."""
    return error if error < float("inf") else None


def repeats(made: Mapping[str, Compiled]) -> set[str]:
    """The ablations whose kernel is, word for word, the one with default options: their change has no effect."""
    usual = made.get(DEFAULT)
    if usual is None or usual.spec is None:
        return set()
    text = usual.spec.text
    return {
        n for n, m in made.items() if n not in (OURS, NO_RECORD, DEFAULT) and m.spec is not None and m.spec.text == text
    }
