"""Gluon kernels for sizes that are known at the launch, simulated warp by warp at drawn lengths, against float64."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import EmitError, TileError
from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile_to_gluon.launch_helpers import COUNTED, HEADS_TOGETHER
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.operators import Operator, attention, math
from neptune_lab.pipeline import CodeOptions, Kernel, for_sizes, gluon_for_sizes
from neptune_lab.pipeline.for_sizes import compile_for_sizes
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.pipeline.validate.at_sizes import wrong_at
from neptune_lab.runtime.arrays import to_tensor
from neptune_lab.target import as_target

Sizes = dict[str, int]
BOTH = {"n": "both"}
TWO = {"m": "rows", "n": "columns"}
TILES = TileConfig(block_q=128, block_kv=64)


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv):
    return (q >= kv) & (q - kv < 40)


def capped(s, b, h, q, kv):
    return math.tanh(s / 20.0) * 20.0


def family(mask=None, score=None, *, heads=2, kv_heads=2, width=64, **more) -> Callable[[Sizes], Operator]:
    """Attention at given lengths; of queries and keys alike if there is one."""

    def make(sizes: Sizes) -> Operator:
        m, n = sizes.get("m", sizes["n"]), sizes["n"]
        return attention.general(
            2, heads, m, n, width, score, mask, kv_heads=kv_heads, empty_rows="zero", live=True, **more
        )

    return make


def documents(mask=None, heads=2) -> Callable[[Sizes], Operator]:
    """Attention inside of documents of which the first query and key are drawn by the length."""

    def make(sizes: Sizes) -> Operator:
        n = sizes["n"]
        document = np.sort(np.random.default_rng(n).integers(0, 4, n)).astype(np.int32)

        def inside(b, h, q, kv):
            same = document[q] == document[kv]
            return same if mask is None else same & mask(b, h, q, kv)

        return attention.general(1, heads, n, n, 64, None, inside, empty_rows="zero", live=True)

    return make


def strided(make: Callable[[Sizes], Operator], parts: int) -> Callable[[Sizes], Operator]:
    """With tensors (batch, length, heads, width) in memory: one of `parts` of a projection."""

    def of(shape: tuple[int, ...]) -> tuple[int, ...]:
        _, heads, length, width = shape
        return length * parts * heads * width, width, parts * heads * width, 1

    def made(sizes: Sizes) -> Operator:
        op = make(sizes)
        return op.with_strides(**{t.name: of(t.shape) for t in op.inputs})

    return made


FAMILIES = {
    "causal": (family(causal), BOTH),
    "full": (family(), BOTH),
    "window": (family(window), BOTH),
    "grouped heads": (family(causal, heads=4), BOTH),
    "capped": (family(causal, capped), BOTH),
    "two lengths": (family(), TWO),
    "two lengths, causal": (family(causal), TWO),
    "keys alone": (lambda sizes: family()({"m": 300, **sizes}), {"n": "columns"}),
    "transposed": (strided(family(causal), 1), BOTH),
    "parts of a projection": (strided(family(), 3), BOTH),
    "log-sum-exp": (family(causal, return_lse=True), BOTH),
    "documents": (documents(), BOTH),
    "documents, causal": (documents(causal), BOTH),
    "width 80": (family(causal, width=80), BOTH),
    "bfloat16": (family(causal, dtype="bfloat16"), BOTH),
}


@cache
def kernel(name: str, *, persistent: bool) -> Kernel:
    make, roles = FAMILIES[name]
    code = CodeOptions(code="gluon", persistent=persistent)
    hint = dict.fromkeys(roles, 2048)
    more = {"code": code, "target": as_target("h200"), "shown": False}
    return compile_for_sizes(make, roles, hint, template="rolling_update", config=TILES, **more)


def error_of(module: EmittedModule, operator: Operator, multiprocessors: int = 5) -> float:
    """The largest relative error of an output of the simulated module."""
    inputs = operator.random_inputs(0)
    tensors = []
    for spec, array in zip(operator.inputs, inputs.values(), strict=True):
        tensor = to_tensor(array).to(getattr(torch, spec.dtype))
        if spec.strides is not None:
            memory = torch.full((1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.strides, strict=True)),), 7.0)
            tensor = memory.to(tensor.dtype).as_strided(spec.shape, spec.strides).copy_(tensor)
        tensors.append(tensor)
    triton = triton_numpy.for_tensors(lambda tensor: tensor.numpy())
    made = Simulator(module.text, multiprocessors, triton=triton)(module.entry, *tensors)
    wanted = operator.reference(*inputs.values())
    pairs = zip(
        made if isinstance(made, tuple) else (made,), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    )
    return max(np.linalg.norm(got.double().numpy() - want) / np.linalg.norm(want) for got, want in pairs)


# By day, of a kernel that other tests of the day need too.
BY_DAY = (("causal", True),)


@pytest.mark.parametrize(
    ("name", "persistent"),
    [
        pytest.param(name, persistent, marks=[] if (name, persistent) in BY_DAY else pytest.mark.nightly)
        for name in FAMILIES
        for persistent in (True, False)
    ],
)
def test_drawn_lengths(name: str, persistent: bool):
    made = kernel(name, persistent=persistent)
    assert made.triton.kernels[-1].language == "gluon"  # (of those before, which find bounds of documents, none is)
    assert "Gluon against the definition" in str(made.validated)
    make, roles = FAMILIES[name]
    draw = random.Random(name)
    for _ in range(2 if (name, persistent) in BY_DAY else 4):
        sizes = {size: draw.choice([draw.randint(1, 70), draw.randint(1, 500)]) for size in roles}
        error = error_of(made.triton, make(sizes), draw.choice([1, 3, 7, 132]))
        assert error < (2e-2 if name == "bfloat16" else 2e-3), sizes


def test_values_past_the_end_are_not_of_the_next_head():
    made = kernel("causal", persistent=True)
    operator = family(causal)({"n": 150})
    q, k, v = (torch.from_numpy(array) for array in operator.random_inputs(0).values())
    k[:, 1], v[:, 1] = float("nan"), float("nan")
    out = Simulator(made.source, 5)(made.triton.entry, q, k, v)
    wanted = operator.reference(q.numpy(), k.numpy(), v.numpy())
    assert np.isnan(out[:, 1].numpy()).all()
    assert np.linalg.norm(out[:, 0].double().numpy() - wanted[:, 0]) < 2e-3 * np.linalg.norm(wanted[:, 0])


def without_last_mask(module: EmittedModule) -> EmittedModule:
    """The module with keys past the end taken for keys, in the last tile."""
    mask = "j[None, :] < n, "
    assert mask in module.text
    return replace(module, text=module.text.replace(mask, "j[None, :] < n + 64, "))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["full", pytest.param("two lengths", marks=pytest.mark.nightly)])
def test_the_check_finds_a_kernel_without_the_mask_of_the_last_tile(name: str):
    made = kernel(name, persistent=False)
    make, roles = FAMILIES[name]
    broken = without_last_mask(made.triton)
    assert wrong_at(made.triton, make(dict.fromkeys(roles, 130))) is None
    assert wrong_at(broken, make(dict.fromkeys(roles, 130))) is not None
    assert wrong_at(broken, make(dict.fromkeys(roles, 128))) is None  # (tiles divide the keys)


@pytest.mark.nightly
def test_a_wrong_kernel_is_refused(monkeypatch):
    before = for_sizes.emitted
    monkeypatch.setattr(for_sizes, "emitted", lambda *given: without_last_mask(before(*given)))
    kernel.cache_clear()
    with pytest.raises(TileError, match="the kernel for all sizes is wrong at"):
        kernel("full", persistent=False)
    kernel.cache_clear()


def by_default(make: Callable[[Sizes], Operator], monkeypatch) -> Kernel:
    """The kernel that a Hopper GPU gets without options."""
    hopper = as_target("h200")
    monkeypatch.setattr(gluon_for_sizes, "chooses_by_default", lambda: True)
    return compile_for_sizes(make, BOTH, {"n": 4096}, target=hopper, small=family(causal), shown=False)


@pytest.mark.nightly
def test_a_hopper_gpu_gets_it_by_default(monkeypatch):
    made = by_default(family(causal, heads=16, kv_heads=16), monkeypatch)
    assert made.code.code == "gluon"
    assert made.code.tie
    assert not made.code.ahead
    assert made.triton.notes == ()


@pytest.mark.nightly
def test_another_gpu_gets_triton():
    make = family(causal)
    given = {"target": as_target("sm_80"), "small": make, "shown": False}
    made = compile_for_sizes(make, BOTH, {"n": 256}, template=None, **given)
    assert {k.language for k in made.triton.kernels} == {"triton"}


@pytest.mark.nightly
def test_what_gluon_does_not_take_is_triton_and_says_so(monkeypatch):
    before = for_sizes.emitted

    def emitted(tiles, code, target):
        if code.code == "gluon":
            raise EmitError("code='gluon': it has no loop")
        return before(tiles, code, target)

    monkeypatch.setattr(for_sizes, "emitted", emitted)
    made = by_default(family(causal, heads=16, kv_heads=16), monkeypatch)
    assert {k.language for k in made.triton.kernels} == {"triton"}
    assert made.triton.notes[-1].endswith("is emitted in Triton: for all sizes, code='gluon': it has no loop.")


@pytest.mark.nightly
def test_tiles_of_other_documents_are_not_visited():
    """Their keys and values may be NaN."""
    made = kernel("documents", persistent=False)
    operator = documents()({"n": 400})
    q, k, v, document = (to_tensor(array) for array in operator.random_inputs(0).values())
    document[:] = torch.arange(400) // 200
    k[:, :, 256:320], v[:, :, 256:320] = float("nan"), float("nan")
    simulator = Simulator(made.source, 5, triton=triton_numpy.for_tensors(lambda tensor: tensor.numpy()))
    out = simulator(made.triton.entry, q, k, v, document)
    assert torch.isnan(out[:, :, 200:]).all()
    assert torch.isfinite(out[:, :, :128]).all()


@pytest.mark.nightly
def test_a_hopper_gpu_gets_it_for_documents(monkeypatch):
    monkeypatch.setattr(gluon_for_sizes, "chooses_by_default", lambda: True)
    made = compile_for_sizes(
        documents(heads=32), BOTH, {"n": 4096}, target=as_target("h200"), small=documents(), shown=False
    )
    assert [k.language for k in made.triton.kernels] == ["triton", "triton", "gluon"]


@pytest.mark.nightly
def test_gluon_that_is_asked_for_is_refused_with_a_reason():
    def after(b, h, q, kv):
        return abs(q - kv) < 100

    more = {"code": CodeOptions(code="gluon"), "target": as_target("h200"), "shown": False}
    with pytest.raises(EmitError, match="neither the first nor the last tile of its loop is certain to exist"):
        compile_for_sizes(family(after), BOTH, {"n": 2048}, template="rolling_update", config=TILES, **more)


@pytest.mark.nightly
def test_an_operator_with_a_named_size_is_compiled_in_gluon():
    n = nl.dim("n", 2048)
    code = CodeOptions(code="gluon")
    op = attention.causal(heads=2, seq=n, head_dim=64)
    made = nl.compile(op, "rolling_update", block_q=128, code=code, target="h200")
    assert error_of(made.triton, attention.causal(heads=2, seq=77, head_dim=64)) < 2e-3


@pytest.mark.nightly
def test_a_named_size_is_compiled_as_the_kernel_of_one_size_would_be():
    """In Gluon where the choice that is known without measuring is; by shape if no choice is asked for."""

    def op(seq):
        return attention.causal(heads=32, seq=seq, head_dim=128)

    n = nl.dim("n")
    for more in ({"tuned": True}, {}):
        one = nl.compile(op(4096), target="h200", validate="none", **more)
        assert nl.compile(op(n), target="h200", **more).code.code == one.code.code == ("gluon" if more else "triton")


def test_heads_that_run_together_divide_the_heads():
    space: dict[str, Callable[..., int]] = {"functools": functools}  # pyright: ignore[reportAssignmentType]
    exec(HEADS_TOGETHER, space)
    together = space["_heads_together"]
    draw = random.Random(0)
    for _ in range(200):
        blocks, heads, programs = draw.randint(1, 90), draw.randint(1, 40), draw.choice([0, 1, 5, 132])
        elements = 2 * heads * blocks * 128 * draw.choice([64, 128, 256])
        found = together(blocks, heads, -(-elements // COUNTED), programs)
        assert heads % found == 0
        assert found * blocks >= min(programs, heads * blocks)  # (a section has a tile for each program)
