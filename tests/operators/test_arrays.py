"""Arrays inside mods: random views and functions of captured tensors equal torch's, in NumPy and in the program."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.render import as_figure
from neptune_lab.loop_ir.run import run
from neptune_lab.operators import attention

SHAPE = (4, 3, 5)
TABLE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SIZES: dict[str, Any] = {"batch": 1, "heads": 2, "q_len": 5, "kv_len": 7, "head_dim": 4, "dtype": "float32"}
STEPS = (
    *("x.transpose(0, -1)", "x.mT", "x.flatten()", "x[1:]", "x[..., :-1]", "x[::2]", "x[-1]", "x[None]"),
    *("x * 2 - 1", "x.abs()", "x.float().tanh()", "x > 0.1", "torch.where(x > 0, x, -x)", "x[..., 0]"),
    *("x.squeeze()", "x.unsqueeze(-1)", "x.sum(0)", "x.sum(-1, keepdim=True)", "x.amax(dim=-1)", "x.mean(0)"),
    *("x.prod(-1)", "x.max(-1).values", "x.min(0)[0]", "x + x[:1]", "torch.stack([x, x * 2])", "x.unbind()[0]"),
    *("torch.cat([x, x[:1]])", "x.reshape(-1)[:4]", "x.flatten()[:4] @ x.flatten()[-4:]", "x.select(0, 1)"),
    *("x.narrow(0, 0, 1)", "x.gather(0, x[:1].long() * 0)", "x[[0, 0]]"),
)  # fmt: skip


def drawn(seed: int) -> str:
    """A random chain of steps that torch takes, and then reads of single elements."""
    rng, text, x = random.Random(seed), "x", TABLE
    for _ in range(rng.randrange(1, 5)):
        step = rng.choice(STEPS).replace("x", f"({text})")
        try:
            made = eval(step, {"torch": torch}, {"x": TABLE})
        except (RuntimeError, IndexError, AttributeError, TypeError):
            continue
        if made.ndim and 0 < made.numel() <= 200:
            text, x = step, made
    indices = ", ".join(rng.choice([f"h % {n}", f"kv % {n}", f"-(q % {n}) - 1", f"(q + kv) % {n}"]) for n in x.shape)
    return f"({text})[{indices}] * 1.0"


@pytest.mark.one_in(24)
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n < 20 or n == 56 else pytest.mark.nightly) for n in range(60)]
)
def test_random_views_and_functions(seed: int):
    text = drawn(seed)
    value = eval(f"lambda x, h, q, kv: {text}", {"torch": torch})

    def mod(score, b, h, q, kv):
        return score + value(TABLE, h, q, kv)

    op = attention.general(**SIZES, score_mod=mod)
    h, q, kv = (t.reshape([-1 if n == a else 1 for n in range(3)]) for a, t in enumerate(map(torch.arange, (2, 5, 7))))
    bias = value(TABLE, h, q, kv).expand(2, 5, 7).double()
    inputs = op.random_inputs()
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(inputs[n]).double() for n in ("q", "k", "v")), attn_mask=bias[None]
    ).numpy()
    np.testing.assert_allclose(op.reference(*inputs.values()), expected, rtol=1e-4, atol=1e-5, err_msg=text)
    np.testing.assert_allclose(run(op.program, inputs)["out"], expected, rtol=1e-4, atol=1e-5, err_msg=text)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda h, q, kv: TABLE[h], r"an array of shape \(3, 5\) is used whole: an element of it needs 2 more"),
        (lambda h, q, kv: TABLE + 1, r"an array of shape \(4, 3, 5\) is used whole"),
        (lambda h, q, kv: TABLE[h, q % 3, kv % 5, 0], r"TABLE has shape \(4, 3, 5\), but a mod gives it 4 indices"),
        (lambda h, q, kv: TABLE[:, :2][h, q, 0], r"index 1 of the captured tensor TABLE reaches 4, but its shape"),
        (lambda h, q, kv: TABLE[:, 5:].sum(), r"index 1 of the captured tensor TABLE is an empty slice"),
        (lambda h, q, kv: TABLE[:, :q].sum(), r"slice whose ends differ by position"),
        (lambda h, q, kv: (TABLE + torch.ones(7)).sum(), r"combines arrays of the shapes \(4, 3, 5\), \(7,\)"),
        (lambda h, q, kv: TABLE.repeat(9).sum(), r"torch.Tensor.repeat is not one of the functions"),
        (lambda h, q, kv: TABLE.view(7, -1)[0, 0], r"of shape \(4, 3, 5\) as \(7, 8\)"),
        (lambda h, q, kv: TABLE.sum(3), r"axis 3 of an array of 3 axes"),
        (lambda h, q, kv: TABLE.expand(9, 4, 3, 5).sum(), r"all 540 elements of the captured tensor TABLE.*most 256"),
        (lambda h, q, kv: TABLE.expand(9, 4, 3, 5).flatten().cumsum(0)[kv], r"all 540 elements of .*most 256"),
        (lambda h, q, kv: torch.einsum("abcd->", TABLE.expand(9, 4, 3, 5)), r"all 540 elements of .*most 256"),
        (lambda h, q, kv: TABLE.cumprod(-1)[0, 0, 0], r"torch.Tensor.cumprod is not one of"),
        (lambda h, q, kv: TABLE[h / 2, 0, 0], r"index 0 of the captured tensor TABLE is a float"),
        (lambda h, q, kv: TABLE[0] @ TABLE[1], r"product `@` of the shapes \(3, 5\) and \(3, 5\)"),
        (lambda h, q, kv: TABLE[0, 0].norm(3), r"norm of order 3"),
        (lambda h, q, kv: kv[0], "indexes a value without axes"),
        (lambda h, q, kv: 1.0 if TABLE[0, 0] > 0 else 0.0, r"used whole"),
        (lambda h, q, kv: torch.ones(1000).sum() + torch.ones(1000)[kv], r"makes a tensor of 1000 elements"),
    ],
)  # fmt: skip
def test_refusals(value, message: str):
    with pytest.raises(DefinitionError, match=message) as raised:
        attention.general(**SIZES, score_mod=lambda s, b, h, q, kv: s + value(h, q, kv))
    assert raised.value.help


@pytest.mark.parametrize(
    "value",
    [
        lambda h, q, kv: TABLE[:, :2][h, q % 3, 0],
        lambda h, q, kv: TABLE[:, 1:][h, q % 3, 0],
        lambda h, q, kv: TABLE[:, 1:][h, -(q % 3) - 1, 0],
        lambda h, q, kv: TABLE.flatten()[(q * 20 + kv) % 61],
        lambda h, q, kv: TABLE[:2].view(6, 5)[(q % 3) * 3, 0],
    ],
)
def test_views_end_where_they_end(value):
    """Each is inside at the first and the last positions, where mods are tried; the loops' bounds show that it leaves
    the view between them."""
    op = attention.general(**SIZES, score_mod=lambda s, b, h, q, kv: s + value(h, q, kv))
    with pytest.raises(DefinitionError, match=r"of the captured tensor TABLE reaches \d+"):
        op.program


def test_views_of_positions_stay_plain_indices():
    """What is proven is not tested by the kernel, so a slice of a tensor is read in tiles."""
    bias = torch.zeros(9, 12)
    op = attention.general(**SIZES, score_mod=lambda s, b, h, q, kv: s + bias[2:, 1:][q, kv])
    assert "bias[i + 2, j + 1]" in as_figure(op.program)


def test_a_long_join_that_is_read_where_positions_say_is_refused():
    long = torch.zeros(300)
    with pytest.raises(DefinitionError, match="joins 315 tensors or elements"):
        attention.general(**SIZES, score_mod=lambda s, b, h, q, kv: s + torch.cat([long, TABLE[0].flatten()])[h])
