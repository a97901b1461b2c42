"""`nl.attention` on tensors of 8 bits, against float64 of what they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_reference import DEVICE, causal, reference
from by_turns import in_turn, some_seeds

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.runtime.keys_last import copied, keys_last

E4, E5, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
HALF, BF16, FULL = torch.float16, torch.bfloat16, torch.float32
# Weights of 16 bits; weights of e4m3, which have three binary digits (docs/concepts/numbers.md derives the figure).
TOLERANCE, OF_EIGHTS = 5e-3, 3e-2
OF_SPLIT = 2e-2  # weights of e4m3, the first half of each tile of keys as two numbers


def window(b, h, q, kv):
    return (q >= kv) & (q - kv < 20)


def first_empty(b, h, q, kv):
    return kv < q


MASKS: dict[str, Any] = {"full": None, "causal": causal, "window": window, "first row empty": first_empty}
# Dtypes of q, k and v.
DTYPES = {
    "e4m3": (E4, E4, E4),
    "e5m2": (E5, E5, E5),
    "e4m3 and e5m2": (E4, E5, E4),
    "bf16, e4m3 cache": (BF16, E4, E4),
    "bf16, int8 cache": (BF16, INT8, INT8),
    "fp16, int8 cache": (HALF, INT8, INT8),
    "fp16, e5m2 cache": (HALF, E5, E5),
    "fp32, e4m3 cache": (FULL, E4, E4),
    "e4m3, bf16 cache": (E4, BF16, BF16),
    "int8 keys only": (BF16, INT8, BF16),
    "bf16, fp16, e4m3": (BF16, HALF, E4),
}
# Shapes (batch, heads, q_len, head_dim) and (batch, kv_heads, kv_len, head_dim).
SHAPES = {
    "plain": ((1, 2, 64, 32), (1, 2, 64, 32)),
    "grouped": ((2, 4, 48, 32), (2, 2, 48, 32)),
    "decode": ((2, 4, 1, 32), (2, 2, 130, 32)),
    "ragged": ((1, 2, 37, 24), (1, 2, 53, 24)),
}
SCALES = ("none", "number", "scalar", "heads", "batch and heads")


def drawn(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator)
    return (values * 40).round().clamp(-127, 127).to(DEVICE, dtype) if dtype == INT8 else values.to(DEVICE, dtype)


def scale_for(kind: str, tensor: torch.Tensor, generator: torch.Generator) -> Any:
    unit = 1 / 40 if tensor.dtype == INT8 else 1.0
    batch, heads = tensor.shape[:2]
    shapes = {"scalar": (), "heads": (heads,), "batch and heads": (batch, heads)}
    if kind in shapes:
        return (unit * (0.5 + torch.rand(shapes[kind], generator=generator))).to(DEVICE)
    return None if kind == "none" and unit == 1.0 else 1.25 * unit


def meant(tensor: torch.Tensor, scale: Any) -> torch.Tensor:
    """What a quantized tensor stands for, in float64."""
    if scale is None:
        return tensor.double()
    scale = torch.as_tensor(scale, dtype=torch.float32, device=tensor.device).double()
    return tensor.double() * scale.reshape((1,) * (2 - scale.ndim) + tuple(scale.shape))[:, :, None, None]


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert torch.equal(found.isfinite(), expected.isfinite())
    return float((found.double() - expected).norm() / expected.norm())


def case(seed: int, dtypes: Any, shapes: Any, kinds: Any) -> tuple[list[torch.Tensor], list[Any]]:
    generator = torch.Generator().manual_seed(seed)
    tensors = [drawn(s, d, generator) for s, d in zip((shapes[0], shapes[1], shapes[1]), dtypes, strict=True)]
    return tensors, [scale_for(kind, t, generator) for kind, t in zip(kinds, tensors, strict=True)]


def checked(tensors: Any, scales: Any, mask: Any, tolerance: float = TOLERANCE, **options: Any) -> torch.Tensor:
    """The call's result, after a check against float64."""
    named = dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True))
    found = nl.attention(*tensors, mask_mod=mask, enable_gqa=True, **named, **options)
    expected = reference(*map(meant, tensors, scales), mask_mod=mask).nan_to_num(0.0)
    assert found.dtype == (BF16 if tensors[0].dtype in (E4, E5) else tensors[0].dtype)
    assert error_of(found, expected) < tolerance
    return found


@pytest.mark.one_in(36)
@pytest.mark.parametrize(("dtypes", "scales"), in_turn(DTYPES, SCALES, every=3, first=1))
def test_dtypes_and_scales(dtypes: str, scales: str):
    checked(*case(0, DTYPES[dtypes], SHAPES["grouped"], [scales] * 3), causal)


@pytest.mark.one_in(18)
@pytest.mark.parametrize(("dtypes", "mask", "shape"), in_turn(["e4m3", "bf16, int8 cache"], MASKS, SHAPES, every=3))
def test_masks_and_shapes(dtypes: str, mask: str, shape: str):
    if shape == "decode" and mask == "first row empty":
        pytest.skip("the only row is empty")
    checked(*case(1, DTYPES[dtypes], SHAPES[shape], ["number", "heads", "batch and heads"]), MASKS[mask])


@pytest.mark.one_in(9)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("q_dtype", [E4, BF16])
def test_weights_of_8_bits(q_dtype: torch.dtype, shape: str):
    tensors, scales = case(2, (q_dtype, E4, E4), SHAPES[shape], ["heads"] * 3)
    mask = None if shape == "decode" else causal
    checked(tensors, scales, mask, OF_SPLIT, weights_dtype=E4)
    checked(tensors, scales, mask, OF_EIGHTS, weights_dtype=E4, kernel_options={"rounded_weights": "single"})


@pytest.mark.nightly
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_of_8_bits_of_which_half_are_float16(shape: str):
    tensors, scales = case(2, (E4, E4, E4), SHAPES[shape], ["heads"] * 3)
    mask = None if shape == "decode" else causal
    checked(tensors, scales, mask, OF_SPLIT, weights_dtype=E4, kernel_options={"rounded_weights": "mixed"})


@pytest.mark.nightly
def test_weights_of_8_bits_keep_small_ones():
    """A key with half of the weight, and 512 that share the rest: each has 2**-10 of it, less than 8 bits hold."""
    q = torch.ones(1, 1, 1, 16, device=DEVICE).to(E4)
    k = torch.zeros(1, 1, 513, 16, device=DEVICE)
    k[:, :, 0] = 1.0
    v = torch.where(k > 0, 0.0, 1.0).to(E4)
    scale = torch.log(torch.tensor(512.0)).item() / 16
    out = nl.attention(q, k.to(E4), v, scale=scale, weights_dtype=E4)
    assert (out.float() - 0.5).abs().max() < 0.01


LARGE = [0.0, 1e3, 4e6, 1.7e7, 6.8e7, -6.8e7, 1.1e9, -3e9, 3e20, -1e35]


@pytest.mark.nightly
@pytest.mark.parametrize("weights", [None, E4])
def test_rows_of_large_scores(weights: Any):
    """The keys with the largest score share the weight, however large it is: no weight saturates, and none is 0."""
    generator = torch.Generator().manual_seed(10)
    largest = torch.tensor(LARGE)[:, None]
    others = largest - largest.abs() * 1e-3 - 100.0
    table = torch.where(torch.rand(len(LARGE), 96, generator=generator) < 0.4, largest, others).to(DEVICE)
    q = torch.zeros(1, 1, len(LARGE), 16, device=DEVICE).to(E4)
    k, v = (drawn((1, 1, 96, 16), E4, generator) for _ in range(2))
    found = nl.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[i, j], weights_dtype=weights)
    chosen = (table == largest.to(DEVICE)).double()
    expected = chosen @ v[0, 0].double() / chosen.sum(1, keepdim=True)
    assert error_of(found[0, 0], expected) < TOLERANCE


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", some_seeds(4, of=12))
def test_random_calls(seed: int):
    generator = torch.Generator().manual_seed(100 + seed)

    def one_of(values: Any) -> Any:
        return list(values)[int(torch.randint(len(values), (), generator=generator))]

    shape = SHAPES[one_of(SHAPES)]
    mask = MASKS[one_of({"full": 0, "causal": 0, "window": 0})] if shape[0][2] > 1 else None
    tensors, scales = case(seed, DTYPES[one_of(DTYPES)], shape, [one_of(SCALES) for _ in range(3)])
    checked(tensors, scales, mask)


@pytest.mark.nightly
def test_new_values_of_scales_need_no_compilation(all_compilations):
    tensors, scales = case(3, (E4, E4, E4), SHAPES["plain"], ["heads", "number", "scalar"])
    for factor in (1.0, 0.25, 3.0):
        checked(tensors, [scale * factor for scale in scales], causal)
    assert len(all_compilations) == 1


@pytest.mark.nightly
def test_lse_is_that_of_the_scaled_scores():
    for weights in (None, E4):
        tensors, scales = case(4, (E4, E4, E4), SHAPES["grouped"], ["heads"] * 3)
        named = dict(zip(("q_scale", "k_scale", "v_scale"), scales, strict=True))
        _, lse = nl.attention(*tensors, enable_gqa=True, return_lse=True, weights_dtype=weights, **named)
        q, k, _ = map(meant, tensors, scales)
        expected = (q @ k.repeat_interleave(2, 1).mT / 32**0.5).logsumexp(-1)
        torch.testing.assert_close(lse.double(), expected, rtol=0, atol=2e-5)


def test_a_mod_gets_the_scaled_score():
    tensors, scales = case(5, (BF16, E4, E4), SHAPES["plain"], ["none", "heads", "heads"])
    slopes = torch.tensor([0.5, -0.25], device=DEVICE)

    def capped(score, b, h, q, kv):
        return 2.0 * torch.tanh(score / 2.0) + slopes[h] * (q - kv) * 0.1

    found = nl.attention(*tensors, score_mod=capped, k_scale=scales[1], v_scale=scales[2])
    assert error_of(found, reference(*map(meant, tensors, scales), score_mod=capped)) < TOLERANCE


@pytest.mark.one_in(2)
@pytest.mark.parametrize("weights", [None, E4])
def test_nan_stays_nan(weights: Any):
    q, k, v = case(6, (E4, E4, E4), SHAPES["plain"], ["none"] * 3)[0]
    q.view(torch.uint8)[0, 0, 5, 3] = 0x7F
    v.view(torch.uint8)[0, 1, 9, 2] = 0xFF
    out = nl.attention(q, k, v, mask_mod=causal, weights_dtype=weights)
    expected = reference(q, k, v, mask_mod=causal).isnan()
    assert torch.equal(out.isnan(), expected)
    assert expected.any()
    assert not expected.all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("weights", [None, E4])
def test_the_largest_numbers(weights: Any):
    q, k, v = (torch.full((1, 1, 32, 32), 448.0, device=DEVICE).to(E4) for _ in range(3))
    out = nl.attention(q, k, v, v_scale=1000.0, weights_dtype=weights, q_scale=1e-3, k_scale=1e-3)
    torch.testing.assert_close(out.float(), torch.full_like(out, 448e3).float(), rtol=2**-7, atol=0)


@pytest.mark.nightly
def test_packed_sequences():
    tensors, scales = case(7, (BF16, E4, E4), ((1, 2, 40, 32), (1, 2, 40, 32)), ["none", "heads", "heads"])
    ends = torch.tensor([0, 11, 40], dtype=torch.int32, device=DEVICE)
    found = nl.attention(*tensors, cu_seqlens_q=ends, k_scale=scales[1], v_scale=scales[2])
    expected = reference(*map(meant, tensors, scales), mask_mod=lambda b, h, q, kv: (q < 11) == (kv < 11))
    assert error_of(found, expected) < TOLERANCE


@pytest.mark.nightly
def test_inside_torch_compile():
    tensors, scales = case(8, (BF16, INT8, INT8), SHAPES["plain"], ["none", "heads", "heads"])

    def doubled(q, k, v):
        return nl.attention(q, k, v, k_scale=scales[1], v_scale=scales[2]) * 2

    torch.testing.assert_close(torch.compile(doubled, backend="eager")(*tensors), doubled(*tensors))


PLAIN = SHAPES["plain"]
REFUSALS = {
    "queries of int8": ({"dtypes": (INT8, INT8, INT8)}, "argument q has dtype torch.int8; expected"),
    "uint8": ({"dtypes": (BF16, torch.uint8, torch.uint8)}, "argument k has dtype torch.uint8; expected"),
    "float64": ({"dtypes": (E4, E4, torch.float64)}, "argument v has dtype torch.float64; expected"),
    "a text": ({"q_scale": "1"}, "q_scale"),
    "an infinite scale": ({"k_scale": float("inf")}, "k_scale"),
    "too many heads": ({"k_scale": torch.ones(3)}, r"argument k_scale has shape \(3,\); expected"),
    "three dimensions": ({"v_scale": torch.ones(1, 2, 1)}, r"argument v_scale has shape \(1, 2, 1\)"),
    "whole numbers": ({"v_scale": torch.ones((), dtype=torch.int32)}, "argument v_scale has dtype torch.int32"),
    "gradients": ({"v_scale": torch.ones((), requires_grad=True)}, "argument v_scale records gradients"),
    "weights of e5m2": ({"weights_dtype": E5}, "argument weights_dtype is torch.float8_e5m2; expected"),
    "weights unlike v": ({"dtypes": (E4, E4, BF16), "weights_dtype": E4}, "v has dtype torch.bfloat16"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str):
    options, match = REFUSALS[name]
    options = {n: t.to(DEVICE) if isinstance(t, torch.Tensor) and t.is_leaf is False else t for n, t in options.items()}
    dtypes = options.pop("dtypes", (E4, E4, E4))
    tensors = [torch.ones(PLAIN[0], device=DEVICE).to(dtype) for dtype in dtypes]
    with pytest.raises(LaunchError, match=match):
        nl.attention(*tensors, **options)


@pytest.mark.nightly
@pytest.mark.parametrize("weights", [None, E4])
def test_a_cache_seen_through_views(weights: Any):
    tensors, scales = case(9, (E4, E4, E4), ((2, 24, 4, 32), (2, 64, 2, 32)), ["number"] * 3)
    q, k, v = tensors[0].transpose(1, 2), tensors[1].transpose(1, 2)[:, :, :40], tensors[2].transpose(1, 2)[:, :, :40]
    out = checked((q, k, v), scales, causal, OF_EIGHTS if weights else TOLERANCE, weights_dtype=weights)
    assert out.stride() == q.stride()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("order", ["rows", "heads inside", "every other column"])
def test_values_are_copied_with_their_keys_last(order: str):
    batch, heads, length, columns = 2, 3, 130, 66
    bits = {
        "rows": torch.randint(-128, 127, (batch, heads, length, columns), dtype=torch.int8),
        "heads inside": torch.randint(-128, 127, (batch, length, heads, columns), dtype=torch.int8).transpose(1, 2),
        "every other column": torch.randint(-128, 127, (batch, heads, length, 2 * columns), dtype=torch.int8)[..., ::2],
    }[order].to(DEVICE)
    made = copied(bits.view(E4))
    assert made.is_contiguous()
    assert torch.equal(made.view(torch.int8), bits.transpose(2, 3))
    assert keys_last(made.transpose(2, 3)).data_ptr() == made.data_ptr()
