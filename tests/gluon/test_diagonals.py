"""Biases of relative positions in Gluon: reads along diagonals, and gradients summed in the kernel of both nests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import EmitError
from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.interpret import interpret
from neptune_lab.htile.walk import rewrite
from neptune_lab.htile_passes import PASSES, apply
from neptune_lab.htile_to_gluon.joint import joined, parts
from neptune_lab.htile_to_gluon.joint.diagonals import diagonals_of
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.operators import Operator, attention, training
from tests.gluon.joint_kernels import IN_ORDER, SCRIPT, backward, interpreted

HEADS, QUERIES, KEYS = 2, 128, 256
Mask = Callable[..., torch.Tensor]


def with_bias(queries: int = QUERIES, keys: int = KEYS, mask: Mask | None = None, batch: int = 1) -> Operator:
    """Attention with a bias of relative positions."""
    bias = torch.linspace(-1, 1, HEADS * (queries + keys - 1)).to(torch.bfloat16).view(HEADS, -1)

    def score_mod(score, b, h, q, kv):
        return score + bias[h, q - kv + keys - 1]

    options = {"empty_rows": "zero", "live": True}
    return attention.general(batch, HEADS, queries, keys, 128, score_mod, mask, "bfloat16", **options)


@cache
def both_nests() -> nl.Kernel:
    return backward(with_bias(), IN_ORDER, None)


def references(op: Operator, mask: Mask | None = None) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    """Inputs of the backward pass, and its results in float64."""
    drawn = {n: torch.from_numpy(a.astype(np.float32)).bfloat16() for n, a in op.random_inputs(0).items()}
    wide = [t.double().requires_grad_() for t in drawn.values()]
    i, j = torch.arange(wide[0].shape[2])[:, None], torch.arange(wide[1].shape[2])
    score = wide[0] @ wide[1].mT * 128**-0.5 + wide[3][:, i - j + len(j) - 1]
    if mask is not None:
        score = score.masked_fill(~mask(0, 0, i, j), -torch.inf)
    out = score.softmax(-1) @ wide[2]
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = torch.autograd.grad(out, wide, d_out.double())
    top = score.detach().amax(-1)
    rows = {"top": top.float(), "log2_sum": (score.detach() - top[..., None]).exp().sum(-1).log2().float()}
    return {**drawn, "out": out.detach().bfloat16(), "d_out": d_out, **rows}, [out.detach(), *expected]


def simulated(kernel: nl.Kernel, op: Operator, mask: Mask | None) -> dict[str, float]:
    """The relative error of each gradient."""
    program = joined(kernel.htile, in_order=True).program
    plain = {
        s.name: interpreted(program, k, s.arguments)
        for s, k in zip(kernel.triton.kernels, program.kernels, strict=True)
        if s.language == "triton"
    }
    given, (_, *expected) = references(op, mask)
    # What is read before it is stored is not a number.
    source = re.sub(r"torch\.empty\((\([^)]*\)), dtype=torch.float32", r"torch.full(\1, torch.nan", kernel.source)
    found = Simulator(source, plain=plain)(kernel.triton.entry, *(given[n] for n in kernel.htile.inputs))
    names = kernel.htile.outputs
    by_name = dict(zip(("d_q", "d_k", "d_v", names[-1]), expected[: len(names)], strict=False))
    return {n: float((a.double() - by_name[n]).norm() / by_name[n].norm()) for n, a in zip(names, found, strict=True)}


def test_the_sums_of_diagonals_are_made_in_the_kernel_of_both_nests():
    kernel = both_nests()
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", "triton", "triton"]
    shapes = {t.shape for t in joined(kernel.htile, in_order=True).program.tensors if t.space == "global"}
    assert (1, HEADS, QUERIES, KEYS) not in shapes, "no value per pair goes through memory"


@pytest.mark.nightly
def test_a_relative_bias_that_has_no_gradient_is_read_in_the_kernel_of_both_nests():
    op = with_bias()
    kernel = backward(op, IN_ORDER)
    errors = simulated(kernel, op, None)
    assert len(errors) == 3
    assert all(error < 1e-2 for error in errors.values()), errors


def causal(b, h, q, kv):
    return kv <= q


def banded(b, h, q, kv):
    """Of the keys of a row block, the first queries see none, nor do the last."""
    return (kv <= q) & (q - kv < 100)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("lengths", "mask", "batch"),
    [((QUERIES, KEYS), None, 1), ((256, 256), causal, 1), ((384, 384), banded, 1), ((QUERIES, 128), None, 2)],
    ids=["full", "causal", "a band", "two samples"],
)
def test_gradients_of_a_relative_bias_in_one_kernel(lengths: tuple[int, int], mask: Mask | None, batch: int):
    op = with_bias(*lengths, mask, batch)
    known = {(KEYS, 1): both_nests, (128, 2): backward_of_two_samples}.get((lengths[1], batch))
    kernel = backward(op, IN_ORDER, None) if known is None or mask else known()
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", "triton", "triton"]
    errors = simulated(kernel, op, mask)
    assert all(error < 1e-2 for error in errors.values()), errors


def drawn_mask(rng: np.random.Generator) -> Mask | None:
    """A mask of positions that hides other tiles from each row block, or none."""
    width, shift = int(rng.integers(1, 300)), int(rng.integers(-150, 150))
    masks: list[Mask | None] = [
        None,
        lambda b, h, q, kv: kv <= q + shift,
        lambda b, h, q, kv: kv >= q + shift,
        lambda b, h, q, kv: (kv <= q + shift) & (q + shift - kv < width),
        lambda b, h, q, kv: (kv <= q) | (kv < width),
    ]
    return masks[rng.integers(len(masks))]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(36))
def test_gradients_of_random_calls_with_a_relative_bias(seed: int):
    """In one kernel, or refused."""
    rng = np.random.default_rng(seed)
    lengths = 64 * int(rng.integers(2, 6)), 128 * int(rng.integers(1, 4))
    mask = drawn_mask(rng)
    op = with_bias(*lengths, mask, int(rng.integers(1, 3)))
    try:
        kernel = backward(op, IN_ORDER, None)
    except EmitError:
        return
    seen = torch.ones(lengths, dtype=torch.bool)
    if mask is not None:
        seen = mask(0, 0, torch.arange(lengths[0])[:, None], torch.arange(lengths[1]))
    if seen.any(1).all():  # (the reference has no rows without keys)
        errors = simulated(kernel, op, mask)
        assert all(error < 1e-2 for error in errors.values()), errors


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lengths", [(QUERIES, KEYS), (100, 500)], ids=["whole tiles", "tiles past the end"])
def test_a_forward_pass_reads_a_relative_bias_along_diagonals(lengths: tuple[int, int]):
    """An element outside of the bias, which no query and key have, is not loaded."""
    op, code = with_bias(*lengths), nl.CodeOptions(code="gluon")
    config = nl.TileConfig(block_q=128, block_kv=128)
    passes = training(op).forward
    kernel = nl.compile(passes, "rolling_update", config=config, target="h100", validate="none", code=code)
    (source,) = kernel.triton.kernels
    assert source.language == "gluon"
    assert ("other=0.0" in source.text) == (lengths == (100, 500)), "only what may be outside is masked"
    given, (expected, *_) = references(op)
    out, top, log2_sum = Simulator(kernel.source)(kernel.triton.entry, *(given[n] for n in kernel.htile.inputs))
    assert (out.double() - expected).norm() / expected.norm() < 1e-2
    np.testing.assert_allclose(top + log2_sum, given["top"] + given["log2_sum"], atol=1e-2)


@cache
def in_parts() -> ir.Program:
    """Both nests, and the loop that sums diagonals in parts."""
    return apply(PASSES["partition_masked_loops"], both_nests().htile).program


def summing() -> ir.Kernel:
    """The kernel that sums diagonals, before both nests are one kernel."""
    found = diagonals_of(in_parts())
    assert found is not None
    return found.kernel


def changed(kernel: ir.Kernel, change: Callable[[ir.Stmt], ir.Stmt | None]) -> ir.Program:
    """The program with statements of its kernel of sums replaced, or left out."""
    program = in_parts()
    body = tuple(made for stmt in kernel.body if (made := change(stmt)) is not None)
    other = replace(kernel, body=body)
    return replace(program, kernels=tuple(other if k is kernel else k for k in program.kernels))


def without_a_part(stmt: ir.Stmt) -> ir.Stmt | None:
    return None if isinstance(stmt, ir.For) and stmt.part == "interior" else stmt


def one_step_longer(stmt: ir.Stmt) -> ir.Stmt:
    if isinstance(stmt, ir.For) and stmt.part == "interior":
        return replace(stmt, stop=ir.Arith("+", stmt.stop, ir.Int(1)))
    return stmt


def doubled(stmt: ir.Stmt) -> ir.Stmt:
    last = summing().body[-1]
    if stmt is not last:
        return stmt
    assert isinstance(stmt, ir.Store)
    assert isinstance(stmt.value, ir.Cast)
    twice = ir.Elementwise("add", (stmt.value.arg, stmt.value.arg), "float32")
    return replace(stmt, value=ir.Cast(twice, stmt.value.dtype))


def edge_of_another_length(stmt: ir.Stmt) -> ir.Stmt:
    """A condition that leaves out elements that exist."""
    if not isinstance(stmt, ir.For) or "edge" not in stmt.part:
        return stmt
    (store,) = stmt.body
    assert isinstance(store, ir.Store)
    assert isinstance(store.value, ir.Elementwise)
    kept, added = store.value.args
    assert isinstance(added, ir.Elementwise)
    condition, read, zero = added.args
    assert isinstance(condition, ir.Elementwise)
    if condition.op != "lt":
        return stmt
    shifted = ir.Elementwise(condition.op, (condition.args[0], ir.Literal(7, "int32")), "bool")
    made = replace(added, args=(shifted, read, zero))
    return replace(stmt, body=(replace(store, value=replace(store.value, args=(kept, made))),))


@pytest.mark.parametrize(
    "change", [without_a_part, one_step_longer, doubled, edge_of_another_length], ids=lambda f: f.__name__
)
def test_only_whole_diagonals_summed_once_are_summed_on_chip(change: Callable[[ir.Stmt], ir.Stmt | None]):
    program = changed(summing(), change)
    assert program != in_parts()
    assert diagonals_of(program) is None


def test_a_tensor_of_pairs_that_another_kernel_reads_is_stored():
    program = both_nests().htile
    again = replace(summing(), node_id="again", name="again")
    assert diagonals_of(replace(program, kernels=(*program.kernels, again))) is None


@pytest.mark.parametrize(
    ("stored", "summed"),
    [
        ("d_score_bfloat16_chip", "d_score_2"),
        ("d_score", "d_score_2"),
        ("weights", "weights_2"),
        ("d_weights_in_bfloat16", None),
    ],
)
def test_the_tile_that_is_summed_has_the_values_that_were_stored(stored: str, summed: str | None):
    """The other nest has them too, before they are rounded; products of scores are not looked for."""
    program = both_nests().htile
    found = diagonals_of(program)
    assert found is not None
    assert isinstance(found.stored.value, ir.Access)
    value = replace(found.stored.value, tensor=stored)
    kernels = tuple(
        replace(k, body=tuple(_with_value(s, found.stored, value) for s in k.body)) for k in program.kernels
    )
    program = replace(program, kernels=kernels)
    if summed is None:
        with pytest.raises(UnsupportedKernel, match="is not the left operand of the sum"):
            joint_of(program)
    else:
        made = joint_of(program).diagonals
        assert made is not None
        assert made.tile == summed


def _with_value(stmt: ir.Stmt, stored: ir.Store, value: ir.TileExpr) -> ir.Stmt:
    if isinstance(stmt, ir.For):
        return replace(stmt, body=tuple(_with_value(s, stored, value) for s in stmt.body))
    return replace(stmt, value=value) if stmt is stored else stmt


@pytest.mark.nightly
@pytest.mark.parametrize("lengths", [(160, 256), (128, 320)], ids=["queries past the end", "keys past the end"])
def test_pairs_of_parts_of_tiles_are_stored(lengths: tuple[int, int]):
    op = with_bias(*lengths)
    kernel = backward(op, IN_ORDER, None)
    program = joined(kernel.htile, in_order=True).program
    assert (1, HEADS, *lengths) in {t.shape for t in program.tensors if t.space == "global"}
    errors = simulated(kernel, op, None)
    assert all(error < 1e-2 for error in errors.values()), errors


@pytest.mark.parametrize("places", [16, 128])
def test_sums_of_parts_are_sums_of_diagonals(places: int):
    """For diagonals before, on and after the first tile of each sixteen rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, HEADS, QUERIES, KEYS))
    program = both_nests().htile
    found = joint_of(program).diagonals
    assert found is not None
    (*outer, place) = found.output.target.index
    assert isinstance(place, ir.Slice)
    start = ir.Arith("*", ir.Name(summing().grid[0].var), ir.Int(places))
    output = replace(
        found.output,
        target=replace(found.output.target, index=(*outer, ir.Slice(start, places, place.axis))),
    )
    length = QUERIES + KEYS - 1
    grid = (replace(found.kernel.grid[0], extent=-(-length // places)), *found.kernel.grid[1:])
    found = replace(found, output=output, kernel=replace(found.kernel, grid=grid))
    pairs = program.tensor(found.pairs)
    kernel, tile = parts.sum_of_parts(program, found, pairs, "parts")
    shape = parts.parts_shape(pairs.shape)
    made = ir.Tensor("parts", shape, "float32", "input")
    out = replace(program.tensor(output.target.tensor), space="output")
    alone = ir.Program("sums", (made, tile, out), ("parts",), (out.name,), (kernel,))
    given = np.zeros(shape, np.float32)
    for w in range(KEYS // 16):
        for t in range(QUERIES // 64):
            square = x[..., t * 64 : t * 64 + 64, w * 16 : w * 16 + 16]
            for n in range(-15, 64):
                sums = np.trace(square, offset=-n, axis1=-2, axis2=-1)
                given[..., w, t * 80 + 16 + n] = sums
    want = np.stack([np.trace(x[0], offset=KEYS - 1 - p, axis1=-2, axis2=-1) for p in range(length)], -1)
    np.testing.assert_allclose(interpret(alone, {"parts": given})[out.name], want, rtol=2e-2, atol=5e-2)


def fewer_samples(store: ir.Store) -> ir.Store:
    def cut(expr: ir.TileExpr) -> ir.TileExpr:
        first = expr.index[0] if isinstance(expr, ir.Access) else None
        if not isinstance(expr, ir.Access) or not isinstance(first, ir.Slice):
            return expr
        return replace(expr, index=(replace(first, extent=1), *expr.index[1:]))

    return replace(store, value=rewrite(store.value, cut))


def largest_sample(store: ir.Store) -> ir.Store:
    assert isinstance(store.value, ir.Reduce)
    return replace(store, value=replace(store.value, op="max"))


def one_row_only(store: ir.Store) -> ir.Store:
    head, _, *rest = store.target.index
    return replace(store, target=replace(store.target, index=(head, ir.Int(0), *rest)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", [fewer_samples, largest_sample, one_row_only], ids=lambda f: f.__name__)
def test_only_sums_over_all_samples_are_made_on_chip(change: Callable[[ir.Store], ir.Store]):
    program = backward_of_two_samples().htile
    found = diagonals_of(program)
    assert found is not None
    assert found.samples == 2
    kernel = next(k for k in program.kernels if k.name == found.before[0])
    (store,) = kernel.body
    assert isinstance(store, ir.Store)
    other = replace(kernel, body=(change(store),))
    assert diagonals_of(replace(program, kernels=tuple(other if k is kernel else k for k in program.kernels))) is None


@cache
def backward_of_two_samples() -> nl.Kernel:
    return backward(with_bias(QUERIES, 128, batch=2), IN_ORDER, None)


@pytest.mark.nightly
@pytest.mark.xdist_group("gluon")
def test_sums_of_diagonals_compile_for_hopper(tmp_path: Path):
    """Without products that wait for each other, and with few spilled registers."""
    path = tmp_path / "biased.py"
    path.write_text(both_nests().source)
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), str(path)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    (facts,) = json.loads(said)[str(path)].values()
    assert not facts["serialized"]
    assert facts["spills"] <= 400
