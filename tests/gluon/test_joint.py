"""One kernel of both nests of a backward pass: numbers, simulated, and which programs are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import EmitError
from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile.walk import written_tensors
from neptune_lab.htile_to_gluon.joint import joined
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.operators import attention, training
from neptune_lab.pipeline.joint import joint_kernel

SCRIPT = Path(__file__).parent.parent / "gluon_offline.py"
JOINT = nl.CodeOptions(code="gluon", deterministic=False)


def backward(op, **options) -> nl.Kernel:
    """The backward pass of attention in one kernel."""
    width = op.inputs[0].shape[-1]
    config = nl.TileConfig(block_q=128, block_kv=64 if width == 128 else 128)
    passes = training(op, ("q", "k", "v")).backward
    return nl.compile(passes, "rolling_update", config=config, target="h100", validate="none", code=JOINT, **options)


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


def simulated(op, score_mod: Callable[..., torch.Tensor] | None = None, source: Callable[[str], str] = str) -> float:
    """The largest relative error of a gradient.

    Args:
        score_mod: the scores' definition, from scores, heads, queries and keys.
        source: changes the module's text.
    """
    kernel = backward(op)
    program = joined(kernel.htile).program
    plain = {
        s.name: interpreted(program, k, s.arguments)
        for s, k in zip(kernel.triton.kernels, program.kernels, strict=True)
        if s.language == "triton"
    }
    q, k, v = (torch.from_numpy(a.astype(np.float32)) for a in op.random_inputs(0).values())
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    score = wide[0] @ wide[1].repeat_interleave(group, 1).mT * q.shape[-1] ** -0.5
    if score_mod is not None:
        h, i, j = torch.meshgrid(*(torch.arange(n) for n in score.shape[1:]), indexing="ij")
        score = score_mod(score, h, i, j)
    out = score.softmax(-1) @ wide[2].repeat_interleave(group, 1)
    given = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad(out, wide, given.double())
    dtype = getattr(torch, op.inputs[0].dtype)
    lse2 = (score.logsumexp(-1) * np.log2(np.e)).float().detach()
    arguments = {"q": q, "k": k, "v": v, "out": out.detach(), "d_out": given, "lse2": lse2}
    ready = [arguments[n].to(torch.float32 if n == "lse2" else dtype).contiguous() for n in kernel.htile.inputs]
    found = Simulator(source(kernel.source), plain=plain)(kernel.triton.entry, *ready)
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True))


def causal(score, h, i, j):
    return score.masked_fill(j > i, -torch.inf)


def windowed(score, h, i, j):
    return causal(score, h, i, j).masked_fill(i - j >= 200, -torch.inf)


def alibi(score, h, i, j):
    return causal(score + 2.0 ** (-4.0 * (h + 1)) * (j - i), h, i, j)


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "causal, 128": (lambda: attention.causal(1, 2, 256, 128), causal),
    "causal, 64": (lambda: attention.causal(1, 2, 384, 64), causal),
    "full, 128": (lambda: attention.full(2, 1, 256, 128, dtype="bfloat16"), None),
    "full, 64": (lambda: attention.full(1, 2, 256, 64), None),
    "fewer queries than keys": (lambda: attention.full(1, 1, q_len=128, kv_len=384, head_dim=128), None),
    "groups": (lambda: attention.gqa(1, 4, 256, 128, kv_heads=2), causal),
    "window": (lambda: attention.window(1, 1, 512, 128, window=200), windowed),
    "alibi": (lambda: attention.alibi(1, 2, 256, 64), alibi),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str):
    make, score_mod = CASES[name]
    op = make()
    assert simulated(op, score_mod) < (2e-2 if op.inputs[0].dtype == "bfloat16" else 3e-3)


def test_the_nests_have_to_compute_the_same_tiles():
    """Another number, another tensor, another mask in one of them; and fewer pairs."""
    kernel = backward(attention.causal(1, 2, 512, 128))
    program = kernel.htile
    joint = joint_of(program)

    def changed(of: ir.Kernel, change: Callable[[Any], Any]) -> ir.Program:
        def visit(node: Any) -> Any:
            node = change(node)
            if isinstance(node, tuple):
                return tuple(map(visit, node))
            fields = getattr(node, "__dataclass_fields__", {})
            kept = {n: getattr(node, n) for n in fields if n not in ("_hash",)}
            new = {
                n: visit(value)
                for n, value in kept.items()
                if isinstance(value, tuple) or hasattr(value, "__dataclass_fields__")
            }
            return replace(node, **new) if any(new[n] is not kept[n] for n in new) else node

        made = replace(of, body=visit(of.body))
        assert made != of
        return replace(program, kernels=tuple(made if k is of else k for k in program.kernels))

    def scale(node):
        is_scale = isinstance(node, ir.Literal) and isinstance(node.value, float) and 0.12 < node.value < 0.13
        return replace(node, value=0.2) if is_scale else node

    def mask(node):
        return replace(node, op="lt") if isinstance(node, ir.Elementwise) and node.op == "le" else node

    def tensor(node):
        return replace(node, tensor="lse2") if isinstance(node, ir.Access) and node.tensor == "d_lse" else node

    def later(node):
        return replace(node, start=ir.Arith("+", node.start, ir.Int(1))) if isinstance(node, ir.For) else node

    assert joint_of(changed(joint.other, later)).value == joint.value  # (the other nest may visit less)
    for of, change, message in (
        (joint.kernel, scale, "do not compute the same tiles"),
        (joint.other, scale, "do not compute the same tiles"),
        (joint.kernel, mask, "do not compute the same tiles"),
        (joint.kernel, tensor, "do not compute the same tiles"),
        (joint.kernel, later, "does not visit all pairs"),
    ):
        with pytest.raises(UnsupportedKernel, match=message):
            joint_of(changed(of, change))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a cap, whose derivative needs the scores": (
        lambda: attention.softcap(1, 1, 256, 128),
        "registers at the same time",
    ),
    "a part of a tile": (lambda: attention.causal(1, 1, 300, 128), "can be one kernel"),
    "a width between": (lambda: attention.causal(1, 1, 256, 96), "powers of two"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_such_kernel_is_refused(name: str):
    make, reason = REFUSED[name]
    op = make()
    with pytest.raises(EmitError, match=reason):
        backward(op)
    assert joint_kernel(training(op, ("q", "k", "v")).backward, "h100") is None


def test_a_tile_that_is_read_too_early_gives_wrong_numbers():
    """The barriers of the tiles that both consumers read are needed."""

    def hurried(text: str) -> str:
        assert "pred=done > 0)" in text
        return text.replace("pred=done > 0)", "pred=False)").replace("gl.warp_specialize", "gl.warp_specialize")

    op = attention.causal(1, 1, 256, 128)
    assert not simulated(op, causal, hurried) < 3e-3


@pytest.mark.nightly
@pytest.mark.xdist_group("gluon")
def test_kernels_compile_for_hopper(tmp_path: Path):
    """Without products that wait for each other, and with few spilled registers."""
    paths = []
    for name, op in {
        "a": attention.causal(1, 4, 1024, 128, dtype="bfloat16"),
        "b": attention.full(1, 4, 1024, 128),
        "c": attention.causal(1, 4, 1024, 64),
        "d": attention.full(1, 4, 1024, 64, dtype="bfloat16"),
    }.items():
        paths.append(tmp_path / f"{name}.py")
        paths[-1].write_text(backward(op).source)
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), *map(str, paths)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    for kernels in json.loads(said).values():
        (facts,) = kernels.values()
        assert not facts["serialized"]
        assert facts["spills"] <= 160
        assert facts["shared"] <= 232448
