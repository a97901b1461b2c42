"""`nl.scaled_dot_product_attention` beside torch's: every form of arguments, and what both refuse."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attention_reference import DEVICE
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import flex_attention

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def draw(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]


def expected(q: Any, k: Any, v: Any, attn_mask: Any = None, **options: Any) -> torch.Tensor:
    """Torch's own definition, in float64."""
    mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.double()
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask, **options)


def check(
    q: Any, k: Any, v: Any, attn_mask: Any = None, tolerance: float | None = None, **options: Any
) -> torch.Tensor:
    found = nl.scaled_dot_product_attention(q, k, v, attn_mask, **options)
    wanted = expected(q, k, v, attn_mask, **options)
    assert (found.shape, found.dtype) == (wanted.shape, q.dtype)
    assert torch.equal(found.isnan(), wanted.isnan())
    differences = (found - wanted).nan_to_num(0.0).abs()
    assert differences.numel() == 0 or differences.max() < (tolerance or TOLERANCE[q.dtype])
    return found


def seen(*shape: int) -> torch.Tensor:
    """A bool mask with about half of the keys, and without any for the third query."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    if shape[-2] > 2:
        mask[..., 2, :] = False
    return mask.to(DEVICE)


def added(*shape: int) -> torch.Tensor:
    return draw(shape, seed=2)[0].masked_fill(~seen(*shape), -torch.inf)


FOUR = (2, 4, 20, 16), (2, 4, 24, 16), (2, 4, 24, 16)
GROUPED = (2, 4, 20, 16), (2, 2, 24, 16), (2, 2, 24, 8)
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "plain": (FOUR, None, {}),
    "a scale": (FOUR, None, {"scale": 0.3}),
    "a whole scale": (FOUR, None, {"scale": 2}),
    "a scale below zero": (FOUR, None, {"scale": -1.0}),
    "causal, more keys": (FOUR, None, {"is_causal": True}),
    "causal, more queries": ((FOUR[1], FOUR[0], FOUR[0]), None, {"is_causal": True}),
    "causal, one query": (((2, 4, 1, 16), *FOUR[1:]), None, {"is_causal": True}),
    "groups": (GROUPED, None, {"enable_gqa": True}),
    "groups, causal": (GROUPED, None, {"enable_gqa": True, "is_causal": True}),
    "groups, bool mask": (GROUPED, seen(2, 4, 20, 24), {"enable_gqa": True}),
    "groups of three dimensions": (((4, 20, 16), (2, 24, 16), (2, 24, 16)), None, {"enable_gqa": True}),
    "groups without need": (FOUR, None, {"enable_gqa": True}),
    "bool (L, S)": (FOUR, seen(20, 24), {}),
    "bool (B, 1, L, S)": (FOUR, seen(2, 1, 20, 24), {}),
    "bool (B, 1, 1, S)": (FOUR, seen(2, 1, 1, 24), {}),
    "bool (H, L, S)": (FOUR, seen(4, 20, 24), {}),
    "bool (L, 1)": (FOUR, seen(20, 1), {}),
    "bool (S)": (FOUR, seen(1, 24)[0], {}),
    "bool ()": (FOUR, torch.tensor(True, device=DEVICE), {}),
    "bool, nothing": (FOUR, torch.zeros(20, 24, dtype=torch.bool, device=DEVICE), {}),
    "floats (L, S)": (FOUR, added(20, 24), {}),
    "floats (B, H, L, S)": (FOUR, added(2, 4, 20, 24), {}),
    "floats (B, H, 1, S)": (FOUR, added(2, 4, 1, 24), {"scale": 0.5}),
    "floats (1, 1, L, 1)": (FOUR, draw((1, 1, 20, 1))[0], {}),
    "floats, +inf": (FOUR, torch.full((20, 24), torch.inf, device=DEVICE), {}),
    "floats, NaN in a row": (FOUR, added(20, 24).index_fill(0, torch.tensor(4, device=DEVICE), torch.nan), {}),
    "two dimensions": (((20, 16), (24, 16), (24, 8)), added(20, 24), {}),
    "three dimensions": (((4, 20, 16), (4, 24, 16), (4, 24, 16)), seen(4, 20, 24), {}),
    "five dimensions": (((2, 3, 2, 20, 16), (2, 3, 2, 24, 16), (2, 3, 2, 24, 16)), seen(3, 1, 20, 24), {}),
    "one batch of keys": (((3, 2, 20, 16), (1, 2, 24, 16), (1, 2, 24, 16)), seen(3, 1, 20, 24), {}),
    "one batch of queries": (((1, 2, 20, 16), (3, 2, 24, 16), (3, 2, 24, 16)), None, {}),
    "one batch of values": (((3, 2, 20, 16), (3, 2, 24, 16), (1, 2, 24, 16)), None, {}),
    "one head of keys": (((2, 4, 20, 16), (2, 1, 24, 16), (2, 1, 24, 16)), seen(20, 24), {}),
    "one head of queries": (((2, 1, 20, 16), (2, 4, 24, 16), (2, 4, 24, 16)), None, {}),
    "one head of values": (((2, 4, 20, 16), (2, 4, 24, 16), (2, 1, 24, 16)), None, {}),
    "keys of three dimensions": (((2, 4, 20, 16), (4, 24, 16), (4, 24, 16)), seen(2, 4, 20, 24), {}),
    "queries of two dimensions": (((20, 16), (2, 4, 24, 16), (2, 4, 24, 16)), None, {}),
    "batches of both": (((2, 1, 2, 20, 16), (1, 3, 2, 24, 16), (1, 3, 2, 24, 16)), None, {}),
    "no keys": (((2, 4, 20, 16), (2, 4, 0, 16), (2, 4, 0, 16)), None, {}),
    "no queries": (((2, 4, 0, 16), (2, 4, 24, 16), (2, 4, 24, 16)), None, {}),
    "no batch": (((0, 4, 20, 16), (0, 4, 24, 16), (0, 4, 24, 16)), None, {}),
    "no batch, its mask": (((0, 4, 20, 16), (0, 4, 24, 16), (0, 4, 24, 16)), seen(20, 24).expand(0, 4, 20, 24), {}),
    "one of two batches": (((0, 2, 4, 5, 16), (0, 2, 4, 6, 16), (0, 2, 4, 6, 16)), seen(2, 1, 5, 6), {}),
}


@pytest.mark.one_in(45)
@pytest.mark.parametrize("case", CASES)
def test_numbers_and_shapes_are_torchs(case):
    shapes, mask, options = CASES[case]
    check(*draw(*shapes), mask, **options)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mask", ["bool", "float32", "own"])
def test_masks_beside_16_bits(dtype, mask):
    check(
        *draw(*FOUR, dtype=dtype),
        {"bool": seen(20, 24), "float32": added(20, 24), "own": added(20, 24).to(dtype)}[mask],
    )


def test_each_element_of_an_expanded_mask_has_its_own_gradient():
    q, k, v = draw((2, 3, 5, 16), (2, 3, 6, 16), (2, 3, 6, 16))
    bias = draw((3, 1, 1))[0].expand(2, 3, 5, 6).detach().requires_grad_()
    wide = bias.detach().double().requires_grad_()
    (nl.scaled_dot_product_attention(q, k, v, bias) * q).sum().backward()
    (expected(q, k, v, wide) * q).sum().backward()
    assert bias.grad is not None
    assert wide.grad is not None
    assert (bias.grad - wide.grad).abs().max() < 1e-5


def test_a_mask_without_keys_has_a_gradient_of_zeros():
    q, bias = draw((2, 3, 5, 16))[0], draw((3, 5, 1))[0].requires_grad_()
    nl.scaled_dot_product_attention(q, q[:, :, :0], q[:, :, :0], bias).sum().backward()
    assert bias.grad is not None
    assert not bias.grad.any()


@pytest.mark.nightly
def test_a_mask_of_the_lowest_float16_is_no_mask():
    """Scores near 65504 have steps of 2**-8 in float32, of which the weights are made, as in torch."""
    bias = torch.full((20, 24), torch.finfo(torch.float16).min, dtype=torch.float16, device=DEVICE)
    check(*draw(*FOUR, dtype=torch.float16), bias, tolerance=5e-3)


def test_fully_masked_rows_are_zero_as_torchs():
    q, k, v = draw(*FOUR)
    for mask in (seen(20, 24), added(20, 24)):
        out = check(q, k, v, mask)
        assert (out[:, :, 2] == 0).all()
        assert (F.scaled_dot_product_attention(q, k, v, mask)[:, :, 2] == 0).all()


def test_new_values_of_a_mask_need_no_compilation(all_compilations):
    q, k, v = draw(*FOUR)
    mask = seen(20, 24)
    check(q, k, v, mask)
    mask.logical_not_()
    check(q, k, v, mask)
    check(q, k, v, seen(20, 24) & mask)
    check(q, k, v, mask.expand(2, 4, 20, 24))  # read where it is, without its copies
    assert len(all_compilations) == 1
    found = next(reversed(flex_attention._kernels.values()))
    assert found.kernel.spec.inputs[3].shape == (1, 1, 20, 24)


def test_shared_keys_are_not_copied():
    q, k, v = draw((3, 4, 20, 16), (1, 1, 24, 16), (1, 1, 24, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(q, k, v)
    found = next(reversed(flex_attention._kernels.values()))
    assert [t.shape[:2] for t in found.kernel.spec.inputs] == [(3, 4), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("change", "options", "match"),
    [
        (None, {"dropout_p": 0.1}, r"dropout_p=0.1: expected 0"),
        (None, {"dropout_p": False}, r"dropout_p=False: expected 0"),
        (None, {"is_causal": 1}, r"is_causal=1: expected True or False"),
        (None, {"enable_gqa": "yes"}, r"enable_gqa='yes': expected True or False"),
        (None, {"scale": "1"}, r"scale='1'"),
        (None, {"attn_mask": seen(20, 24), "is_causal": True}, r"got attn_mask and is_causal=True\n.*tril"),
        (None, {"attn_mask": [True]}, r"attn_mask is a list; expected a torch.Tensor"),
        (None, {"attn_mask": seen(20, 24).int()}, r"attn_mask has dtype torch.int32; expected torch.bool"),
        (None, {"attn_mask": added(20, 24).half()}, r"attn_mask has dtype torch.float16; expected .*torch.float32"),
        (None, {"attn_mask": seen(20, 24).to("meta")}, r"attn_mask is on meta; expected"),
        (None, {"attn_mask": seen(20, 23)}, r"attn_mask has shape \(20, 23\); expected .* to \(2, 4, 20, 24\)"),
        (None, {"attn_mask": seen(3, 20, 24)}, r"attn_mask has shape \(3, 20, 24\); expected"),
        (None, {"attn_mask": seen(1, 2, 4, 20, 24)}, r"attn_mask has shape \(1, 2, 4, 20, 24\); expected"),
        (lambda q, k, v: (q, k.half(), v), {}, r"key has dtype torch.float16; expected torch.float32, which query has"),
        (lambda q, k, v: (q.double(), k.double(), v.double()), {}, r"argument query has dtype torch.float64"),
        (lambda q, k, v: (q, k[:, :2], v[:, :2]), {}, r"key has 2 heads and value 2; expected 4(.|\n)*enable_gqa=True"),
        (
            lambda q, k, v: (q, k[:, :3], v[:, :3]),
            {"enable_gqa": True},
            r"key has 3 heads and value 3; expected divisors",
        ),
        (
            lambda q, k, v: (q, k[:, :2], v[:, :3]),
            {"enable_gqa": True},
            r"key has 2 heads and value 3; expected divisors",
        ),
        (lambda q, k, v: (q.repeat(2, 1, 1, 1), k, v), {}, r"batch dimensions \(4,\), \(2,\), \(2,\)"),
        (lambda q, k, v: (q[0, 0, 0], k, v), {}, r"argument query has shape \(16,\); expected"),
        (
            lambda q, k, v: (q, k[..., :8], v),
            {},
            r"argument key has head_dim 8; expected 16, which query has\n.*give query and key the",
        ),
        (lambda q, k, v: (q, k, v[:, :, :8]), {}, r"argument value has 4 heads and length 8; expected 4 and 24"),
        (lambda q, k, v: (q, None, v), {}, r"argument key is None"),
    ],
)
def test_refusals(change, options, match):
    q, k, v = draw(*FOUR)
    with pytest.raises(LaunchError, match=match):
        nl.scaled_dot_product_attention(*(change(q, k, v) if change else (q, k, v)), **options)


def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([torch.ones(2, 3, 8), torch.ones(2, 4, 8)], layout=torch.jagged)
    with pytest.raises(LaunchError, match=r"argument query is a nested tensor(.|\n)*pad them and hide"):
        nl.scaled_dot_product_attention(nested, nested, nested)


def test_the_signature_is_torchs():
    q, k, v = draw(*FOUR)
    with pytest.raises(TypeError):
        nl.scaled_dot_product_attention(q, k, v, None, 0.0, False, 0.5)  # pyright: ignore[reportCallIssue]
    positions = nl.scaled_dot_product_attention(q, k, v, None, 0.0, True)
    names = nl.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True, dropout_p=0)
    assert torch.equal(positions, names)


@pytest.mark.nightly
def test_under_torch_compile():
    q, k, v = draw(*FOUR)
    mask = seen(20, 24)

    def causal(q, k, v):
        return nl.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1

    def masked(q, k, v, mask):
        return nl.scaled_dot_product_attention(q * 2, k, v, mask) + 1

    out = torch.compile(causal, backend="eager", fullgraph=True)(q, k, v)
    assert (out - 1 - expected(q * 2, k, v, is_causal=True)).abs().max() < 1e-5
    out = torch.compile(masked, backend="eager")(q, k, v, mask)
    assert (out - 1 - expected(q * 2, k, v, mask)).abs().max() < 1e-5


def random_case(seed: int) -> tuple[list[Any], dict[str, Any]]:
    """Tensors and options: dimensions of 1, masks of every shape, groups."""
    rng = random.Random(seed)
    q_len, kv_len, width, batch = rng.randint(1, 40), rng.randint(1, 70), rng.choice([4, 16, 20]), rng.randint(1, 3)
    heads = rng.choice([1, 2, 4, 6])
    group = rng.choice([n for n in (1, 2, 3) if heads % n == 0])
    lead = [batch] if rng.random() < 0.8 else [batch, 2]
    options: dict[str, Any] = {"enable_gqa": True} if group > 1 else {}

    def some(sizes: list[int]) -> list[int]:
        return [1 if rng.random() < 0.2 else n for n in sizes]

    kv = some(lead)
    shapes = (*lead, heads, q_len, width), (*kv, heads // group, kv_len, width), (*kv, heads // group, kv_len, 12)
    if rng.random() < 0.3:
        options["is_causal"] = True
    elif rng.random() < 0.8:
        shape = some([*lead, heads, q_len, kv_len])[rng.randint(0, len(lead)) :]
        options["attn_mask"] = (seen if rng.random() < 0.5 else added)(*shape)
    if rng.random() < 0.3:
        options["scale"] = rng.uniform(-1, 1)
    return draw(*shapes, dtype=rng.choice([torch.float32, torch.float32, torch.float16]), seed=seed), options


@pytest.mark.one_in(18)
@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(12, 75))])
@pytest.mark.filterwarnings("ignore:attention copies")
def test_random_calls(seed):
    (q, k, v), options = random_case(seed)
    check(q, k, v, options.pop("attn_mask", None), **options)


@pytest.mark.parametrize("sizes", [(2, 0, 5), (2, 3, 0), (0, 3, 5)])
def test_calls_of_nothing_have_gradients_of_zeros(sizes):
    heads, q_len, kv_len = sizes
    q, k, v = (torch.ones(1, heads, n, 8, device=DEVICE, requires_grad=True) for n in (q_len, kv_len, kv_len))
    nl.scaled_dot_product_attention(q, k, v).sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert not tensor.grad.any()


def test_heads_without_columns_are_refused():
    q = torch.ones(1, 2, 3, 0, device=DEVICE)
    with pytest.raises(LaunchError, match=r"shape \(1, 2, 3, 0\)"):
        nl.scaled_dot_product_attention(q, q, torch.ones(1, 2, 3, 4, device=DEVICE))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("made", [causal_lower_right, causal_upper_left])
def test_a_causal_bias_of_torch_is_a_mask_though_its_memory_holds_nothing(made):
    q, k, v = draw((1, 2, 5, 8), (1, 2, 9, 8), (1, 2, 9, 8))
    bias = made(5, 9)
    found = nl.scaled_dot_product_attention(q, k, v, bias)
    torch.testing.assert_close(found.double(), expected(q, k, v, bias._materialize(q.device)), rtol=1e-5, atol=1e-5)
    with pytest.raises(LaunchError, match=r"causal bias for the lengths \(9, 9\); expected \(5, 9\)"):
        nl.scaled_dot_product_attention(q, k, v, made(9, 9))
    with pytest.raises(LaunchError, match="attn_mask and is_causal=True"):
        nl.scaled_dot_product_attention(q, k, v, bias, is_causal=True)


@pytest.mark.nightly
@pytest.mark.parametrize(("of_key", "of_value"), [(2, 4), (4, 1)])
def test_other_heads_of_key_than_of_value(of_key: int, of_value: int):
    q, k, v = (t.requires_grad_() for t in draw((1, 4, 8, 8), (1, of_key, 8, 8), (1, of_value, 8, 8)))
    found = nl.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    grads = torch.autograd.grad(found.square().sum(), (q, k, v))
    double = [t.detach().double().requires_grad_() for t in (q, k, v)]
    out = expected(*double, is_causal=True, enable_gqa=True)
    wanted = torch.autograd.grad(out.square().sum(), double)
    assert all((a - b).abs().max() < 1e-4 for a, b in zip((found, *grads), (out, *wanted), strict=True))
