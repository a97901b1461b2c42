"""Backward passes of attention in one kernel of both nests, and their gradients in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import neptune_lab as nl
from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile.walk import written_tensors
from neptune_lab.htile_to_gluon.joint import joined
from neptune_lab.operators import training

SCRIPT = Path(__file__).parent.parent / "gluon_offline.py"
JOINT = nl.CodeOptions(code="gluon", deterministic=False)
IN_ORDER = nl.CodeOptions(code="gluon", joint=True)


def backward(op, code=JOINT, wrt=("q", "k", "v"), **options) -> nl.Kernel:
    """The backward pass of attention in one kernel."""
    width = op.inputs[0].shape[-1]
    config = nl.TileConfig(block_q=128, block_kv=64 if width == 128 else 128)
    passes = training(op, wrt).backward
    return nl.compile(passes, "rolling_update", config=config, target="h100", validate="none", code=code, **options)


def interpreted(program: ir.Program, kernel: ir.Kernel, names: tuple[str, ...]) -> Callable[..., None]:
    """A kernel in Triton, by the interpreter of tiles; `names` of its arguments."""
    written = written_tensors(kernel)
    spaces: dict[str, Any] = {name: "output" if name in written else "input" for name in names}
    tensors = tuple(
        replace(t, space=spaces.get(t.name, t.space)) for t in program.tensors if t.name in spaces or t.space == "chip"
    )
    inputs, outputs = (tuple(n for n in names if (n in written) == is_out) for is_out in (False, True))
    alone = ir.Program(kernel.name, tensors, inputs, outputs, (kernel,))

    def run(*arguments: torch.Tensor) -> None:
        given = dict(zip(names, arguments, strict=True))
        found = interpret(alone, {n: given[n].float().numpy() for n in inputs})
        for name in outputs:
            given[name].copy_(torch.from_numpy(found[name]))

    return run


def simulated(
    op,
    score_mod: Callable[..., torch.Tensor] | None = None,
    source: Callable[[str], str] = str,
    code: nl.CodeOptions = JOINT,
    shift: float = 0.0,
) -> float:
    """The largest relative error of a gradient.

    Args:
        score_mod: the scores' definition, from scores, heads, queries and keys.
        source: changes the module's text.
        shift: added to queries and subtracted from keys, so that all scores are far below 0.
    """
    kernel = backward(op, code)
    program = joined(kernel.htile, in_order=code.deterministic).program
    plain = {
        s.name: interpreted(program, k, s.arguments)
        for s, k in zip(kernel.triton.kernels, program.kernels, strict=True)
        if s.language == "triton"
    }
    q, k, v = (torch.from_numpy(a.astype(np.float32)) for a in op.random_inputs(0).values())
    dtype = getattr(torch, op.inputs[0].dtype)
    q, k = ((t + s).to(dtype).float() for t, s in ((q, shift), (k, -shift)))
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    score = wide[0] @ wide[1].repeat_interleave(group, 1).mT * q.shape[-1] ** -0.5
    if score_mod is not None:
        h, i, j = torch.meshgrid(*(torch.arange(n) for n in score.shape[1:]), indexing="ij")
        score = score_mod(score, h, i, j)
    out = score.softmax(-1) @ wide[2].repeat_interleave(group, 1)
    given = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad(out, wide, given.double())
    lse2 = (score.logsumexp(-1) * np.log2(np.e)).float().detach()
    arguments = {"q": q, "k": k, "v": v, "out": out.detach(), "d_out": given, "lse2": lse2}
    ready = [arguments[n].to(torch.float32 if n == "lse2" else dtype).contiguous() for n in kernel.htile.inputs]
    found = Simulator(source(kernel.source), plain=plain)(kernel.triton.entry, *ready)
    # (the largest of floats in Python would pass over NaN)
    return float(torch.stack([(a.double() - b).norm() / b.norm() for a, b in zip(found, expected, strict=True)]).max())
