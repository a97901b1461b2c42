"""Attention in which the queries of all heads that share keys are rows of one matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neptune_lab.errors import DefinitionError
from neptune_lab.htile import interpret
from neptune_lab.htile.nodes import For
from neptune_lab.operators import attention
from neptune_lab.pipeline import Choice, SplitKConfig, TileConfig, compile_choice

SLOPES = np.exp2(-np.arange(1, 13).astype(np.float32))


def causal(b, h, q, kv):
    return kv <= q + 43


def window(b, h, q, kv):
    return (kv <= q + 43) & (q + 43 - kv < 20)


def biased(score, b, h, q, kv):
    return score + SLOPES[h] * (kv - q)


def hides_early_rows(b, h, q, kv):
    return kv < q * 9 - 8


MODS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"mask_mod": causal},
    "window and bias of each head": {"mask_mod": window, "score_mod": biased},
    "queries that see nothing": {"mask_mod": hides_early_rows, "empty_rows": "zero"},
    "scales of heads": {"scaled": True},
}
CHOICES = {
    "rolling": Choice("rolling_update", TileConfig(block_q=16, block_kv=16)),
    "split": Choice("split_k_update", SplitKConfig(block_q=16, block_kv=16, splits=2)),
}


def made(group: int, queries: int, dtype: str = "float32", packed: bool = True, scaled: bool = False, **mods: Any):
    if scaled:
        mods |= {"q_scale": (1, 2 * group), "k_scale": (1, 2), "v_scale": (2, 2)}
    return attention.general(2, 2 * group, queries, 49, 8, dtype=dtype, kv_heads=2, pack_groups=packed, **mods)


@pytest.mark.one_in(56)
@pytest.mark.parametrize("schedule", CHOICES)
@pytest.mark.parametrize("mods", MODS)
@pytest.mark.parametrize(("group", "queries"), [(2, 9), (3, 6), (4, 5), (6, 1), (2, 40)])
def test_kernels_compute_what_those_of_each_head_do(group: int, queries: int, mods: str, schedule: str):
    op, apart = (made(group, queries, packed=packed, **MODS[mods]) for packed in (True, False))
    assert (op.inputs, op.outputs) == (apart.inputs, apart.outputs)
    inputs = op.random_inputs()
    kernel = compile_choice(op, CHOICES[schedule], validate="none")
    found = interpret(kernel.htile, inputs, dtype="float64")["out"]
    np.testing.assert_allclose(found, apart.reference(*inputs.values()), rtol=1e-6, atol=1e-6)


@pytest.mark.nightly
def test_keys_are_read_once_for_a_group():
    """A program of 16 rows has 4 queries of 4 heads; the queries are loaded once, and the loop ends at their mask."""
    kernel = compile_choice(made(4, 8, "float16", mask_mod=causal), CHOICES["rolling"], validate="none")
    assert [axis.extent for axis in kernel.htile.kernels[0].grid] == [2, 2, 2]
    assert "q_tile" in {tensor.name for tensor in kernel.htile.tensors}
    loops = [stmt for stmt in kernel.htile.kernels[0].body if isinstance(stmt, For)]
    assert [loop.part for loop in loops] == ["interior", "right edge"]


def test_single_heads_stay_as_they_are():
    one, other = (attention.general(1, 4, 8, 16, 8, pack_groups=packed).program for packed in (True, False))
    assert one == other


@pytest.mark.parametrize("option", ["return_lse", "return_max"])
def test_what_rows_of_groups_do_not_have(option: str):
    given: dict[str, Any] = {option: True}
    with pytest.raises(DefinitionError, match="pack_groups=True has no return_lse and return_max"):
        attention.general(1, 4, 8, 16, 8, kv_heads=2, pack_groups=True, **given)
