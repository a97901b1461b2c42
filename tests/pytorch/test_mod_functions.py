"""Functions and methods of torch in mods, and what is said of those that kernels have not."""

from __future__ import annotations

import linecache
import math

import pytest
import torch
import torch.nn.functional as F
from attention_reference import DEVICE, causal, flex, tensors

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError
from neptune_lab.loop_ir.run_in_python import run_in_python
from neptune_lab.operators import attention as operators

TABLE = torch.randn(32, 4, generator=torch.Generator().manual_seed(1)).to(DEVICE)
BIAS = torch.randn(80, generator=torch.Generator().manual_seed(2)).to(DEVICE)
PERMUTATION = torch.arange(32, device=DEVICE)


def test_the_reference_is_the_same_without_a_graph():
    """These tests call FlexAttention without the graph that it makes for its users: this is what they leave out."""
    q, k, v = tensors((1, 2, 32, 16))

    def score_mod(s, b, h, q, kv):
        return F.gelu(s) + BIAS[PERMUTATION[kv]] / 3

    found, expected = (flex(q, k, v, score_mod, causal, traced=traced) for traced in (False, True))
    assert torch.equal(found, expected)


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "mask_mod",
    [
        lambda b, h, q, kv: (q - kv).abs() < 5,
        lambda b, h, q, kv: (q - 3).clamp(0, 20) >= kv - torch.clamp(kv, min=4, max=9),
        lambda b, h, q, kv: torch.minimum(q, kv) * 2 > torch.maximum(q, kv),
        lambda b, h, q, kv: (q >= kv).to(q.device) & ((q.float() / 2).to(torch.int32) >= kv.long() // 3),
        lambda b, h, q, kv: (q > kv) ^ (kv < 10),
        lambda b, h, q, kv: torch.logical_xor(q > 3, kv > 4) | torch.logical_and(q > 1, kv < 2),
        lambda b, h, q, kv: ((q & 5) >= (kv >> 2)) | ((kv << 1) > q) | ((q ^ 3) < (kv | 4)),
        lambda b, h, q, kv: (q & -3) + ((kv - 20) & 13) >= ((kv - 20) ^ 6),
        lambda b, h, q, kv: ~(q > kv) | (~q + kv < 0),
        lambda b, h, q, kv: ~torch.isnan(TABLE[kv, 0]) & (q**2 >= kv),
    ],
)
def test_masks(mask_mod):
    q, k, v = tensors((1, 2, 32, 16))
    assert (nl.attention(q, k, v, mask_mod=mask_mod) - flex(q, k, v, None, mask_mod)).abs().max() < 2e-5


@pytest.mark.one_in(18)
@pytest.mark.parametrize(
    "score_mod",
    [
        lambda s, *_: F.gelu(s),
        lambda s, *_: F.gelu(s, approximate="tanh"),
        lambda s, *_: F.relu(s) + F.silu(s) + F.leaky_relu(s, 0.1),
        lambda s, *_: torch.tan(s * 0.3) + s.clamp(-1, 1) + s.relu(),
        lambda s, *_: s.tanh() * s.sigmoid() + s.square() - s.abs().sqrt() + torch.reciprocal(s.abs() + 1),
        lambda s, *_: torch.sign(s) + torch.round(s * 3) + torch.trunc(s * 2),
        lambda s, b, h, q, kv: s.float() * (q.float() + 1).log().to(s.dtype),
        lambda s, b, h, q, kv: torch.where(q >= kv, s, -10.0) + torch.where(kv > 4, 1.0, s),
        lambda s, b, h, q, kv: s + torch.finfo(s.dtype).eps * q,
        lambda s, b, h, q, kv: (s.mul_(2), s.add_(kv), s)[2],
        lambda s, b, h, q, kv: (F.relu(s, inplace=True), s.clamp_(max=1.5), s)[2] + s,
        lambda s, b, h, q, kv: s + BIAS[(q - kv) + 32],
        lambda s, b, h, q, kv: s + BIAS[q + kv],
        lambda s, b, h, q, kv: s + BIAS[kv // 7],
        lambda s, b, h, q, kv: s + BIAS[PERMUTATION[kv]],
    ],
)
def test_scores(score_mod):
    q, k, v = tensors((1, 2, 32, 16))
    assert (nl.attention(q, k, v, score_mod=score_mod) - flex(q, k, v, score_mod)).abs().max() < 2e-5


KEPT = {}


def keeps_a_value(s, b, h, q, kv):
    return s + KEPT.setdefault("distance", q - kv)


COMPLEX = torch.ones(32, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("score_mod", "match"),
    [
        (keeps_a_value, r"kept from another call of it(.|\n)*in each call"),
        (lambda s, b, h, q, kv: s + torch.cumprod(TABLE[q], 0)[0], r"torch.cumprod is not one(.|\n)*help"),
        (lambda s, b, h, q, kv: s + BIAS.expand(9, 80).sum(), r"all 720 elements of .* BIAS(.|\n)*before the call"),
        (lambda s, b, h, q, kv: s + (TABLE[q] > 0), r"shape \(4,\) is used whole: .* needs 1 more ind"),
        (lambda s, b, h, q, kv: s + int(q), r"as a Python number, in .*test_mod_functions.py, line \d+: `"),
        (lambda s, b, h, q, kv: s + math.sqrt(q), "as a Python number"),
        (lambda s, b, h, q, kv: s if q > 3 else -s, r"needs one truth value(.|\n)*math.where"),
        (
            lambda s, b, h, q, kv: torch.softmax(s, 0),
            r"torch.softmax is not one of the functions(.|\n)*or use some of abs",
        ),
        (lambda s, b, h, q, kv: s + q.add_(0.5), "a mod changes a int in place by add_"),
        (lambda s, b, h, q, kv: s + TABLE.add_(1)[q, 0], "a mod changes a tensor in place by add_"),
        (lambda s, b, h, q, kv: s.tolist(), r"Tensor.tolist is not one"),
        (lambda s, b, h, q, kv: s * 3**-h, r"whole number to a power(.|\n)*2.0 \*\* h"),
        (lambda s, b, h, q, kv: torch.where(q > kv), "torch.where with a condition alone"),
        (lambda s, b, h, q, kv: s + undefined, r"NameError: .* in .*line \d+"),  # noqa: F821
        (lambda s, b, h, q, kv: s + (q & s), "`&` takes whole numbers or conditions; got int and float"),
        (lambda s, b, h, q, kv: s + (1 << s), "`<<` takes whole numbers or conditions; got int and float"),
        (lambda s, b, h, q, kv: s + q.to(torch.complex64), "converts a value to complex64"),
        (
            lambda s, b, h, q, kv: s + torch.special.ndtri(s),
            r"torch.special.ndtri is not one of the functions(.|\n)*table\[b, h",
        ),
        (lambda s, b, h, q, kv: torch.nn.functional.dropout(s), "drops elements with probability 0.5"),
        (lambda s, b, h, q, kv: s * (q < 2**70), "1180591620717411303424, which int64 does not hold"),
        (lambda s, b, h, q, kv: q > kv, r"returned bool: expected float(.|\n)*`torch.where\("),
        (lambda s, b, h, q, kv: s + q // 0, r"divisor of a `//` or `%` is 0(.|\n)*line \d+(.|\n)*help"),
        (
            lambda s, b, h, q, kv: torch.cond(torch.tensor(True), lambda: s, lambda: -s),
            r"torch's operator cond, which takes functions(.|\n)*`torch.where`",
        ),
        (lambda s, b, h, q, kv: s + q % (kv * 0), "divisor of a `//` or `%` is 0"),
        (lambda s, b, h, q, kv: s // 0.0, "divisor of a `//` or `%` is 0"),
        (lambda s, b, h, q, kv: torch.fmod(s, 0), "divisor of a `//` or `%` is 0"),
        (lambda s, b, h, q, kv: s + q // (h - h), "divides by 0: the divisor of a `//` or `%` is 0 at every position"),
        (lambda s, b, h, q, kv: s + TABLE[q + 99, 0], r"index 0 of .* reaches(.|\n)*`index\.clamp\(0, \d+\)`"),
        (lambda *_: None, "returned NoneType"),
        (lambda s, b, h, q, kv: s + torch.rand(()), r"draws random numbers \(torch's rand\)(.|\n)*noise\[q, kv\]"),
        (lambda s, b, h, q, kv: s + torch.empty(8).normal_()[h], r"draws random numbers \(torch's normal\)"),
        (lambda s, b, h, q, kv: s * s.shape[0], r"tuple index out of range(.|\n)*without axes"),
        (lambda s, b, h, q, kv: s + len(q), r"type 'value at one position' has no len\(\)(.|\n)*without axes"),
        (lambda s, b, h, q, kv: {0: s}[q], r"unhashable type: 'value at one position'(.|\n)*table\[kv\]"),
        (lambda s, b, h, q, kv: s + COMPLEX[q].real, r"COMPLEX of dtype complex64(.|\n)*x\.real"),
        (lambda s, b, h, q, kv: s + torch.ones(9, dtype=torch.complex64)[h].real, r"complex numbers(.|\n)*x\.real"),
        (torch.ones(3, 4), r"score_mod=a tensor of shape \(3, 4\): expected a function"),
    ],
)
def test_refusals_name_the_cause_the_line_and_a_way_out(score_mod, match):
    q, k, v = tensors((1, 2, 32, 16))
    with pytest.raises(DefinitionError, match=match):
        nl.attention(q, k, v, score_mod=score_mod)


def test_a_long_line_is_cut_in_a_message():
    namespace: dict[str, object] = {}
    text = "mod = lambda s, b, h, q, kv: s + int(q)" + " + kv" * 40
    linecache.cache["<long>"] = len(text), None, [text], "<long>"
    exec(compile(text, "<long>", "exec"), namespace)
    q, k, v = tensors((1, 1, 4, 8))
    with pytest.raises(DefinitionError, match=r"line 1: `mod = lambda .{100,110}… \(cut\)`"):
        nl.attention(q, k, v, score_mod=namespace["mod"])


@pytest.mark.nightly
def test_shifts_of_positions_have_64_bits():
    """Bounds show that the first needs them; nothing bounds the second."""
    q, k, v = tensors((1, 1, 16, 16), (1, 1, 24, 16))
    for mod in (
        lambda s, b, h, q, kv: s + (1 << (kv * 2)) % 97 * 0.1,
        lambda s, b, h, q, kv: s + (3 << (q * kv // 3)) % 97 * 0.1,
    ):
        assert (nl.attention(q, k, v, score_mod=mod) - flex(q, k, v, mod)).abs().max() < 2e-5


def test_no_shift_is_left_to_the_machine():
    """Python refuses to shift by less than 0, so a program that does has no guard."""
    op = operators.general(
        1, 1, 5, 7, 4, lambda s, b, h, q, kv: s + ((5 << (q - kv)) + ((kv - 9) >> (q - kv))) * 0.1, dtype="float32"
    )
    inputs = op.random_inputs()
    found, expected = run_in_python(op.program, inputs)["out"], op.reference(*inputs.values())
    assert abs(found - expected).max() < 1e-5


def test_one_batch_of_keys_for_all():
    q, k, v = tensors((3, 2, 16, 16), (1, 2, 24, 16))
    expected = flex(q, *(t.expand(3, -1, -1, -1) for t in (k, v)))
    assert (nl.attention(q, k, v) - expected).abs().max() < 2e-5


def test_transforms():
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v = tensors((1, 1, 16, 16))
    with pytest.raises(LaunchError, match=r"torch.vmap(.|\n)*into the batch"):
        torch.vmap(lambda x: nl.attention(x, k, v))(torch.stack([q, q]))
    with pytest.raises(LaunchError, match=r"transform of torch.func(.|\n)*torch.autograd.grad"):
        torch.func.grad(lambda x: nl.attention(x, k, v).sum())(q)
    for function in (lambda q: nl.attention(q, k, v), lambda q: nl.scaled_dot_product_attention(q, k, v)):
        with pytest.raises(LaunchError, match=r"proxy of torch.fx.symbolic_trace(.|\n)*torch.export"):
            torch.fx.symbolic_trace(function)
    graph = make_fx(lambda q, k, v: nl.attention(q, k, v))(q, k, v)
    assert torch.equal(graph(q, k, v), nl.attention(q, k, v))
