"""Emitted Gluon kernels compile for Hopper, here without a GPU: no spills, no product that waits for another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import by_name
import pytest
import torch

from neptune_lab.operators import attention, math
from neptune_lab.scalar_ops import rows

# One worker compiles all kernels, at once.
pytestmark = pytest.mark.xdist_group("gluon")

SCRIPT = Path(__file__).parent.parent / "gluon_offline.py"
BIG = {"heads": 2, "seq": 512, "head_dim": 128}


def causal(b, h, q, kv):
    return q >= kv


def eights(mask_mod=causal, **more):
    """Attention of e4m3 tensors with a scale per head, and weights of e4m3."""
    formats = dict.fromkeys(("q_dtype", "k_dtype", "v_dtype", "weights_dtype"), "float8_e4m3fn")
    formats |= dict.fromkeys(("q_scale", "k_scale", "v_scale"), (1, 2)) | {"dtype": "bfloat16", "v_transposed": True}
    return attention.general(1, 2, 512, 512, 128, mask_mod=mask_mod, **formats, **more)


def capped(s, b, h, q, kv):
    return math.tanh(s / 20.0) * 20.0


def biased(**more):
    """Attention with a bias of relative positions."""
    bias = torch.zeros(2, 1023, dtype=torch.bfloat16)
    sizes = {"batch": 1, "heads": 2, "q_len": 512, "kv_len": 512, "head_dim": 128, "dtype": "bfloat16"}
    return attention.general(**sizes, score_mod=lambda s, b, h, q, kv: s + bias[h, q - kv + 511], **more)


KERNELS = {
    "causal": (lambda: attention.causal(**BIG), {}),
    "persistent": (lambda: attention.softcap(**BIG), {"persistent": True, "tie": True, "tanh": "hardware"}),
    "window": (lambda: attention.window(**{**BIG, "seq": 1024}, window=300), {"block_kv": 64, "ring_stages": 4}),
    "lse": (lambda: attention.causal(**{**BIG, "head_dim": 64}, dtype="bfloat16", return_lse=True), {"block_q": 64}),
    "e4m3": (eights, {}),
    "e4m3, capped": (lambda: eights(score_mod=capped, return_lse=True), {"persistent": True}),
    "e4m3, half of the weights float16": (
        lambda: eights(None),
        {"block_kv": 256, "persistent": True, "rounded_weights": "mixed"},
    ),
    "keys of 192": (lambda: attention.causal(**{**BIG, "head_dim": 192}, v_head_dim=128), {"block_kv": 64}),
    "relative bias": (biased, {}),
    "relative bias, causal": (lambda: biased(mask_mod=lambda b, h, q, kv: q >= kv), {}),
    "one consumer": (lambda: attention.causal(**BIG), {"one_consumer": True}),
    "one consumer, persistent": (
        lambda: attention.window(**{**BIG, "seq": 1000}, window=300),
        {"one_consumer": True, "persistent": True, "tie": True},
    ),
    "wide": (lambda: attention.causal(**{**BIG, "head_dim": 256}), {"block_kv": 64}),
}
# Bytes, of three registers: the weights of the other keys wait for those of float16.
FEW_SPILLS = {"e4m3, half of the weights float16": 48}
# ptxas takes 20 s of CPU for the others, which `make nightly` compiles.
BY_DAY = ("causal",)


def every_function():
    """Attention whose scores go through every function of the table."""

    def score(s, b, h, q, kv):
        inside = math.maximum(abs(s), 0.5)
        for row in rows("loop"):
            if row.kind == "float" and row.arity == 1:
                s = s + getattr(math, row.name)(inside) / 64.0
        return s

    return attention.general(batch=1, heads=1, q_len=128, kv_len=128, head_dim=64, score_mod=score)


def facts_of(kernels, directory):
    """By name, what the compiler says of the one Gluon kernel of each module."""
    paths = {}
    for name, (make, options) in kernels.items():
        options = {"block_q": 128, "block_kv": 128, **options}
        kernel = by_name.compile(make(), "rolling_update", code="gluon", **options)
        paths[name] = kernel.export(directory / f"{name}.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(directory / "cache")
    command = [sys.executable, str(SCRIPT), *map(str, paths.values())]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout)
    return {name: next(iter(answers[str(path)].values())) for name, path in paths.items()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return facts_of({name: KERNELS[name] for name in BY_DAY}, tmp_path_factory.mktemp("gluon"))


@pytest.fixture(scope="module")
def compiled_by_night(tmp_path_factory):
    kernels = {name: kernel for name, kernel in KERNELS.items() if name not in BY_DAY}
    small = {"block_q": 64, "block_kv": 16}  # ptxas takes 20 s of CPU for all functions on 128 by 64 scores
    return facts_of({**kernels, "functions": (every_function, small)}, tmp_path_factory.mktemp("gluon"))


@pytest.mark.parametrize(
    ("when", "name"),
    [
        ("compiled", name) if name in BY_DAY else pytest.param("compiled_by_night", name, marks=pytest.mark.nightly)
        for name in KERNELS
    ],
)
def test_no_spills_and_products_overlap(when, name, request):
    facts = request.getfixturevalue(when)[name]
    assert facts["spills"] <= FEW_SPILLS.get(name, 0)
    assert not facts["serialized"]
    assert facts["products"] > 0


@pytest.mark.nightly
def test_every_function_compiles(compiled_by_night):
    assert compiled_by_night["functions"]["products"] > 0


def test_warps_trade_registers(compiled):
    assert 240 in compiled["causal"]["registers"]
    assert 24 in compiled["causal"]["registers"]


def test_a_causal_kernel_multiplies_and_copies_as_written(compiled):
    """Per consumer two products in the loop, one before and one after it, each of 8 instructions of 16 columns deep; by
    the copy engine q twice, k and v once before or after the loop and once in it, in two halves of 64 columns."""
    facts = compiled["causal"]
    assert facts["products"] == 2 * 4 * 8
    assert facts["copies in"] == 2 * (2 + 2 + 2)
    assert facts["shared"] < 227 * 1024


@pytest.mark.nightly
def test_one_consumer_is_compiled_once_and_its_groups_do_not_meet_in_the_loop(compiled_by_night):
    """All threads meet where Triton makes barriers, and before an output takes the place of the queries."""
    facts = compiled_by_night["one consumer"]
    assert facts["products"] == 4 * 8
    assert facts["meetings"] <= 4


@pytest.mark.nightly
def test_columns_of_zeros_are_not_multiplied(compiled_by_night):
    """Two products of scores of 192 columns and two of values of 64 keys, of 16 each, per consumer."""
    facts = compiled_by_night["keys of 192"]
    assert facts["products"] == 2 * 2 * (192 // 16 + 64 // 16)
