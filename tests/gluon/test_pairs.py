"""Biases with an element per pair in the kernel of both nests: read by the copy engine, and their gradients stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.choice import Choice
from neptune_lab.errors import EmitError
from neptune_lab.htile_to_gluon.joint import joined
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.operators import Operator, attention, training
from neptune_lab.pipeline.compile import compile_choice
from neptune_lab.pipeline.hopper import gluon_kernel
from neptune_lab.pipeline.joint import default_joint_choice, joint_choice
from tests.gluon.joint_kernels import IN_ORDER, backward
from tests.gluon.pairs import (
    Added,
    Mask,
    as_chosen,
    both_nests,
    causal,
    errors,
    relative,
    simulated,
    with_bias,
    with_two_biases,
)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("lengths", "width", "transposed"),
    [
        ((128, 256), 128, False),
        ((256, 256), 64, True),
        ((320, 264), 64, False),
        ((160, 200), 128, False),
    ],
    ids=["whole tiles, 128", "keys first", "parts of tiles, 64", "parts of tiles, 128"],
)
def test_gradients(lengths: tuple[int, int], width: int, transposed: bool):
    op = with_bias(*lengths, width, transposed=transposed)
    kernel = backward(op, IN_ORDER, None)
    transposing = ["triton"] if transposed else []
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", *transposing, "triton"], "no sum over one"
    assert simulated(kernel, op, transposed=transposed) < 1e-2


def test_samples_share_a_bias():
    """Programs of the samples that read a tile come one after the other, and the sum over samples after both nests."""
    kernel = both_nests()
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", "triton", "triton"]
    program = joined(kernel.htile, in_order=True).program
    assert [axis.var for axis in program.kernels[1].grid] == ["j0", "b", "h"]
    assert simulated(kernel, with_bias(256, 256, 64, 2)) < 1e-2


@pytest.mark.nightly
def test_a_bias_of_each_sample_gets_its_gradient_from_the_kernel_of_both():
    op = with_bias(128, 256, 128, 2, of_samples=True)
    choice = joint_choice(training(op).backward, deterministic=True)
    assert choice is not None
    kernel = compile_choice(training(op).backward, choice, target="h100", validate="none")
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", "triton"], "nothing is copied"
    assert simulated(kernel, op) < 1e-2


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("second", "added"),
    [
        (lambda t, b, h, q, kv: t[0, q, kv], lambda t: t + t[0]),
        (lambda t, b, h, q, kv: t[h, kv, q], lambda t: t + t.mT),
    ],
    ids=["of the first head", "keys first"],
)
def test_tiles_of_pairs_at_two_places_are_two(second: Added, added: Callable[[torch.Tensor], torch.Tensor]):
    op = with_two_biases(second)
    kernel = backward(op, IN_ORDER, ("q", "k", "v"))
    assert simulated(kernel, op, added=added) < 1e-2


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("lengths", "width", "batch", "mask", "of_samples", "after"),
    [
        ((256, 256), 64, 3, None, False, 1),
        ((320, 264), 64, 1, None, False, 1),
        ((256, 256), 64, 2, causal, False, 2),
        ((130, 264), 64, 2, None, False, 2),
        ((176, 264), 64, 2, None, False, 1),
        ((128, 256), 64, 2, None, True, 1),
        ((192, 256), 128, 2, None, False, 2),
        ((256, 256), 128, 2, causal, False, 2),
    ],
    ids=[
        "added up",
        "parts of tiles",
        "hidden tiles",
        "no room for counters",
        "added up, parts of tiles",
        "of each sample",
        "from registers",
        "from registers, hidden tiles",
    ],
)
def test_pairs_of_32_bits_are_stored_before_they_are_rounded(
    lengths: tuple[int, int], width: int, batch: int, mask: Mask | None, of_samples: bool, after: int
):
    """Nearer to float64 than gradients of a bias of 16 bits, which are 1.6e-3 from it."""
    op = with_bias(*lengths, width, batch, mask=mask, of_samples=of_samples, dtype=torch.float32)
    kernel = as_chosen(op, deterministic=False)
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", *["triton"] * after]
    assert kernel.code.deterministic
    *others, of_bias = errors(kernel, op, mask)
    assert max(others) < 1e-2
    assert of_bias < 1.2e-3


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "reason"),
    [(torch.float32, "bytes of shared memory"), (torch.int32, "reads int32 of bias for each pair; expected a float")],
    ids=str,
)
def test_pairs_that_are_refused_of_heads_of_128_columns(dtype: torch.dtype, reason: str):
    """Two consumers' products leave no room for pairs of 32 bits, and parts of tiles are not stored from registers."""
    with pytest.raises(EmitError, match=reason):
        backward(with_bias(256, 264, 128, dtype=dtype), IN_ORDER, None)


def test_pairs_beside_those_that_are_visited_are_refused():
    with pytest.raises(EmitError, match="is read beside the pairs"):
        backward(with_two_biases(lambda t, b, h, q, kv: t[h, q, kv + 8], 264), IN_ORDER, ("q", "k", "v"))


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(36))
def test_gradients_of_random_calls(seed: int):
    """In one kernel, or refused."""
    rng = np.random.default_rng(seed)
    lengths = tuple(int(n) for n in 8 * rng.integers(16, 45, 2))
    width, transposed = int(rng.choice([64, 128])), bool(rng.integers(2))
    mask = [None, causal, lambda b, h, q, kv: kv <= q + 70, lambda b, h, q, kv: (kv <= q) | (kv < 70)][rng.integers(4)]
    counts = [int(n) for n in rng.integers(1, 3, 2)]
    dtype = [torch.bfloat16, torch.float32][rng.integers(2)]
    op = with_bias(*lengths, width, *counts, mask, transposed=transposed, dtype=dtype)
    try:
        kernel = as_chosen(op, deterministic=bool(rng.integers(2)))
    except EmitError:
        return
    seen = torch.ones(lengths, dtype=torch.bool)
    if mask is not None:
        seen = mask(0, 0, torch.arange(lengths[0])[:, None], torch.arange(lengths[1]))
    if seen.any(1).all():  # (the reference has no rows without keys)
        assert simulated(kernel, op, mask, transposed=transposed) < 1e-2


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("width", "batch", "transposed"),
    [(64, 2, False), (64, 1, False), (128, 1, True)],
    ids=["a sum over samples", "a copy", "keys first"],
)
def test_pairs_that_the_mask_hides_are_not_read(width: int, batch: int, transposed: bool):
    """Those of hidden tiles are not stored."""
    op = with_bias(256, 256, width, batch, mask=causal, transposed=transposed)
    kernel = backward(op, IN_ORDER, None)
    found = joint_of(kernel.htile)
    assert found.pairs is not None
    assert found.pairs.shown == (("le", "bool", ("iota", "key"), ("iota", "query")),)
    assert simulated(kernel, op, causal, transposed=transposed) < 1e-2


@pytest.mark.parametrize(
    ("op", "chosen"),
    [
        (lambda: with_bias(256, 256, 64), True),
        (lambda: relative(None), True),
        (lambda: relative(causal), False),
        (lambda: with_bias(256, 256, 64, mask=causal), True),
    ],
    ids=["pairs", "relative", "relative, causal", "pairs, causal"],
)
def test_heads_of_64_columns_are_one_kernel_without_a_mask_or_with_pairs(op: Callable[[], Operator], chosen: bool):
    assert (default_joint_choice(training(op()).backward) is not None) == chosen


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("width", "with_pairs", "chosen"), [(64, True, False), (64, False, True), (128, True, True)])
def test_narrow_heads_read_pairs_in_triton_in_the_forward_pass(width: int, with_pairs: bool, chosen: bool):
    op = with_bias(256, 256, width) if with_pairs else attention.full(1, 1, 256, width)
    asked = Choice("rolling_update", nl.TileConfig(block_q=128, block_kv=128), nl.CodeOptions(code="gluon"))

    def make(choice: Choice) -> nl.Kernel:
        return compile_choice(training(op).forward, choice, target="h200", validate="none")

    assert (gluon_kernel(make, asked) is not None) == chosen


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (lambda: with_bias(256, 300, 64), "do not begin at multiples of 16 bytes"),
        (lambda: with_bias(256, 300, 64, dtype=torch.float32), "takes? .* bytes of shared memory"),
    ],
    ids=["odd rows", "32 bits and 128 queries"],
)
def test_what_is_refused(op: Callable[[], Operator], reason: str):
    with pytest.raises(EmitError, match=reason):
        backward(op(), IN_ORDER, None)
