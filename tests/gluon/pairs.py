"""Backward passes of biases with an element per pair, simulated, and their programs of tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch

import neptune_lab as nl
from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile import nodes as ir
from neptune_lab.htile_to_gluon.joint import joined
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.operators import Operator, attention, training
from neptune_lab.pipeline.compile import compile_choice
from neptune_lab.pipeline.joint import joint_choice
from tests.gluon.joint_kernels import IN_ORDER, backward, interpreted

Mask = Callable[..., torch.Tensor]
NOT_A_NUMBER = """
def _unset(shape, dtype, device):
    return torch.full(shape, torch.nan if dtype.is_floating_point else 0, dtype=dtype, device=device)
"""


def with_bias(
    queries: int,
    keys: int,
    width: int,
    batch: int = 1,
    heads: int = 1,
    mask: Mask | None = None,
    *,
    transposed: bool = False,
    of_samples: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Operator:
    """Attention with a bias that has an element per head and pair, or per sample, head and pair."""
    bias = torch.linspace(-1, 1, heads * queries * keys).to(dtype)
    bias = bias.view(heads, keys, queries) if transposed else bias.view(heads, queries, keys)
    of_each = torch.stack([bias * (n + 1) for n in range(batch)])

    def score_mod(score, b, h, q, kv):
        if of_samples:
            return score + of_each[b, h, q, kv]
        return score + (bias[h, kv, q] if transposed else bias[h, q, kv])

    options: dict[str, Any] = {"empty_rows": "zero", "live": True}
    return attention.general(batch, heads, queries, keys, width, score_mod, mask, "bfloat16", **options)


def simulated(
    kernel: nl.Kernel,
    op: Operator,
    mask: Mask | None = None,
    *,
    transposed: bool = False,
    added: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> float:
    """The largest relative error of a gradient; `added`: what is added to scores, of the bias."""
    # (the largest of floats in Python would pass over NaN)
    return float(torch.tensor(errors(kernel, op, mask, transposed=transposed, added=added)).max())


def errors(
    kernel: nl.Kernel,
    op: Operator,
    mask: Mask | None = None,
    *,
    transposed: bool = False,
    added: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[float]:
    """The relative error of each gradient."""
    program = joined(kernel.htile, in_order=kernel.code.deterministic).program
    plain = {
        s.name: interpreted(program, k, s.arguments)
        for s, k in zip(kernel.triton.kernels, program.kernels, strict=True)
        if s.language == "triton"
    }
    dtypes = {tensor.name: getattr(torch, tensor.dtype) for tensor in op.inputs}
    drawn = {n: torch.from_numpy(a.astype(np.float32)).to(dtypes[n]) for n, a in op.random_inputs(0).items()}
    wide = [t.double().requires_grad_() for t in drawn.values()]
    bias = added(wide[3]) if added is not None else wide[3].mT if transposed else wide[3]
    score = wide[0] @ wide[1].mT * wide[0].shape[-1] ** -0.5 + bias
    if mask is not None:
        i, j = (torch.arange(n) for n in score.shape[-2:])
        score = score.masked_fill(~mask(0, 0, i[:, None], j), -torch.inf)
    out = score.softmax(-1) @ wide[2]
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = torch.autograd.grad(out, wide, d_out.double())
    top = score.detach().amax(-1)
    rows = {"top": top.float(), "log2_sum": (score.detach() - top[..., None]).exp().sum(-1).log2().float()}
    given = {**drawn, "out": out.detach().bfloat16(), "d_out": d_out, **rows}
    # What is read before it is stored is not a number.
    source = kernel.source.replace("torch.empty(", "_unset(").replace(
        "import torch\n", f"import torch\n{NOT_A_NUMBER}", 1
    )
    found = Simulator(source, plain=plain)(kernel.triton.entry, *(given[n] for n in kernel.htile.inputs))
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, expected, strict=False)]


def causal(b, h, q, kv):
    return kv <= q


@cache
def both_nests() -> nl.Kernel:
    return backward(with_bias(256, 256, 64, 2), IN_ORDER, None)


Added = Callable[[Any, Any, Any, Any, Any], Any]


def with_two_biases(second: Added, columns: int = 256) -> Operator:
    """Attention with a bias that is read at two places."""
    bias = torch.linspace(-1, 1, 2 * 256 * columns).view(2, 256, columns).bfloat16()

    def score_mod(score, b, h, q, kv):
        return score + bias[h, q, kv] + second(bias, b, h, q, kv)

    return attention.general(1, 2, 256, 256, 128, score_mod, None, "bfloat16", empty_rows="zero", live=True)


def as_chosen(op: Operator, *, deterministic: bool = True) -> nl.Kernel:
    """The backward pass in one kernel with the tiles that are chosen for it."""
    passes = training(op).backward
    choice = joint_choice(passes, deterministic=deterministic)
    assert choice is not None
    return compile_choice(passes, choice, target="h200", validate="none")


def relative(mask: Mask | None) -> Operator:
    bias = torch.zeros(1, 511, dtype=torch.bfloat16)
    options: dict[str, Any] = {"empty_rows": "zero", "live": True}
    return attention.general(1, 1, 256, 256, 64, lambda s, b, h, q, kv: s + bias[h, q - kv + 255], mask, **options)


def changed(name: str, change: Callable[[ir.Store], ir.Store], program: ir.Program | None = None) -> ir.Program:
    """The program with the statements of a kernel changed."""
    program = program or both_nests().htile

    def of(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(replace(s, body=of(s.body)) if isinstance(s, ir.For) else change(s) for s in body)

    return replace(
        program, kernels=tuple(replace(k, body=of(k.body)) if k.name == name else k for k in program.kernels)
    )


def nests() -> tuple[str, str]:
    """The names of the nest over keys, which stores pairs, and of the other."""
    joint = joint_of(both_nests().htile)
    return joint.other.name, joint.kernel.name


def stores_pairs(store: ir.Store) -> bool:
    return store.target.tensor == "d_score_bfloat16"


@cache
def one_sample() -> nl.Kernel:
    return backward(with_bias(256, 256, 64), IN_ORDER, None)
