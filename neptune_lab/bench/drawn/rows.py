"""A drawn row operator: its tensors, the float64 answer, our kernel, torch.compile and PyTorch's own function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from neptune_lab.bench.contestants import Contestant
from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.measured import COMPILE, EAGER, OURS
from neptune_lab.bench.peers import Ready, compile_for
from neptune_lab.bench.reference import Reference
from neptune_lab.bench.tensors import device_name
from neptune_lab.operators import Operator, find
from neptune_lab.pipeline import compile

Tensors = tuple[torch.Tensor, ...]


def _wide(x: torch.Tensor) -> torch.Tensor:
    """In float32 at least, in which the operators with an output per row sum and answer."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# What a user of PyTorch calls, as a function of the operator's tensors.
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": lambda x: torch.softmax(x, 1),
    "log_sum_exp": lambda x: torch.logsumexp(_wide(x), 1),
    "cross_entropy": lambda x, labels: functional.cross_entropy(_wide(x), labels, reduction="none"),
    "layer_norm": lambda x, gamma, beta: functional.layer_norm(x, (x.shape[1],), gamma, beta, 1e-5),
    "l2_norm": lambda x: torch.linalg.vector_norm(_wide(x), dim=1),
    "rms_norm_max": lambda x: functional.rms_norm(_wide(x), (x.shape[1],), eps=1e-6).amax(1),
}


def operator(problem: Problem) -> Operator:
    """The problem's operator."""
    module = "rows" if problem.operator in ("softmax", "log_sum_exp", "cross_entropy") else "norms"
    return find(f"{module}.{problem.operator}")(**problem.sizes, dtype=problem.dtype)


def inputs(problem: Problem) -> Tensors:
    """Standard normal tensors, and labels in int32, from a seed that is the problem's number."""
    device = device_name()
    generator = torch.Generator(device).manual_seed(problem.index)
    made = []
    for spec in operator(problem).inputs:
        dtype = getattr(torch, spec.dtype)
        if dtype.is_floating_point:
            made.append(torch.randn(spec.shape, dtype=dtype, device=device, generator=generator))
        else:
            most = problem.sizes["cols"]
            made.append(torch.randint(0, most, spec.shape, dtype=dtype, device=device, generator=generator))
    return tuple(made)


def _for_torch(tensors: Tensors, wide: bool) -> Tensors:
    """Labels in int64, as PyTorch takes them; `wide`: all other tensors in float64."""
    return tuple((t.double() if wide else t) if t.is_floating_point() else t.long() for t in tensors)


def reference(problem: Problem, tensors: Tensors) -> Reference:
    """The float64 answer, part by part, so that a large matrix has no copy of four times its size."""
    function = FUNCTIONS[problem.operator]
    rows, cols = problem.sizes["rows"], problem.sizes["cols"]
    at_once = max(1, min(rows, (1 << 26) // cols))
    most = max(1, (1 << 28) // (at_once * cols))
    starts = list(range(0, rows, at_once))
    chosen = starts if len(starts) <= most else [*starts[: most - 1], starts[-1]]
    blocks = []
    for start in chosen:
        part = slice(start, start + at_once)
        per_row = (
            t[part] if t.shape[0] == rows and (t.dim() == 2 or not t.is_floating_point()) else t for t in tensors
        )
        blocks.append((0, (part,), function(*_for_torch(tuple(per_row), wide=True))))
    return Reference(tuple(blocks), f"{len(chosen)} of {len(starts)} blocks of {at_once} rows")


def contestants(problem: Problem, tensors: Tensors) -> tuple[Contestant, ...]:
    """Ours through `nl.compile`, then torch.compile and eager."""
    function, given = FUNCTIONS[problem.operator], _for_torch(tensors, wide=False)

    def ours(*_: Any) -> Ready:
        kernel = compile(operator(problem))
        return Ready(lambda: kernel(*tensors))

    def compiled(*_: Any) -> Ready:
        run = compile_for(given, function)
        return Ready(lambda: run(*given))

    return (
        Contestant(OURS, "ours", lambda *_: "", ours),
        Contestant(COMPILE, "compiler", lambda *_: "", compiled),
        Contestant(EAGER, "library", lambda *_: "", lambda *_: Ready(lambda: function(*given))),
    )
