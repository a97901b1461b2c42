"""Kernels for all lengths of mods that compare positions with large numbers, and with quotients."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import TileError
from neptune_lab.loop_ir.nodes import Const, Op, Var
from neptune_lab.operators import attention
from neptune_lab.pipeline.position_reach import Told, _difference, farthest_told
from neptune_lab.pipeline.size_samples import Tiling
from neptune_lab.pytorch import flex_attention, lengths, stored
from neptune_lab.pytorch.arguments import Problem
from neptune_lab.pytorch.length_plans import Plan
from neptune_lab.pytorch.mods import read
from neptune_lab.runtime import KernelSpec
from neptune_lab.tensor_spec import LARGEST

pytestmark = pytest.mark.usefixtures("nothing_seen")


def check(mod: Any, *every: tuple[int, int], **options: Any) -> tuple[int, list[Any]]:
    """Calls of these lengths are right; the number of kernels, and the ranges of those for all lengths."""
    for m, n in every:
        generator = torch.Generator().manual_seed(m + n)
        q, k, v = (torch.randn(1, 1, length, 16, generator=generator) for length in (m, n, n))
        out = nl.attention(q, k, v, mask_mod=mod, **options)
        mask = mod(0, 0, torch.arange(m)[:, None], torch.arange(n)).expand(m, n)
        weights = (q.double() @ k.double().mT / 4).masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
        assert (out - weights @ v.double()).abs().max() < 1e-5, (m, n)
    entries = [entry for family in lengths._families.values() for entry in family.entries.values()]
    made = {id(known.kernel) for known in flex_attention._kernels.values()}
    return len(made), [entry.spec.ranges for entry in entries if entry is not None]


@pytest.mark.nightly
def test_a_window_wider_than_all_samples_has_a_kernel_up_to_its_width():
    """Longer sequences have kernels of their own: there, it hides keys."""
    window = lambda b, h, q, kv: (q >= kv) & (q - kv < 3000)  # noqa: E731
    found = check(window, (40, 40), (41, 41), (3000, 3000), (3001, 3001), (7, 7))
    assert found == (4, [(("n", 1, 3000),)] * 2)  # (of short and of long ones)


@pytest.mark.nightly
def test_decoding_compared_with_a_large_number():
    assert check(lambda b, h, q, kv: kv < 100_000, (1, 60), (1, 61), (1, 900)) == (2, [(("n", 1, 100_000),)])


@pytest.mark.nightly
def test_lengths_too_short_for_splits_have_a_kernel_without_them():
    """The kernel with splits is right from 513 keys on; those up to 64 are two tiles, both of them hidden in part."""
    mod = lambda b, h, q, kv: (kv < 4) | (q + 30 - kv < 11)  # noqa: E731
    kernels, ranges = check(mod, (30, 60), (30, 90), (30, 200), (30, 600), (30, 70))
    assert kernels == 3
    assert ranges == [(("n", 513, LARGEST),), (("n", 65, 512),)]


def told(q_len: int, mod: Any, *, bounded: bool = True) -> Told:
    """What is told of a mod over so many queries and all numbers of keys."""

    def make(sample: Any) -> Any:
        return attention.general(1, 1, q_len, sample["n"], 16, None, mod, "float32")

    return farthest_told(make, {"n": "columns"}, {"n": Tiling(32, 32, 1)}, (), 512, bounded=bounded)


def test_what_far_comparisons_leave():
    """A size that stays may be too large for a comparison to be decided; one that is near stays."""
    assert told(300, lambda b, h, q, kv: q - kv < 8000) == Told(0, 8000)
    assert told(300, lambda b, h, q, kv: (2 * kv < 8000) & (q - kv < 20) & (kv > 9999)) == Told(0, 4000)
    for mod in (lambda b, h, q, kv: (q - kv < 8000) & (kv < 600), lambda b, h, q, kv: (q - kv) % 8000 < 4):
        with pytest.raises(TileError, match="compares positions with"):
            told(300, mod)
    with pytest.raises(TileError, match="compares positions with 8000"):
        told(9000, lambda b, h, q, kv: q - kv < 8000)
    with pytest.raises(TileError, match="compares positions with 8000"):
        told(300, lambda b, h, q, kv: q - kv < 8000, bounded=False)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{"code": "triton"}, {"loads": "pointers", "block_q": 32}], ids=str)
def test_options_of_code_that_such_a_kernel_has(options: dict[str, Any]):
    found = check(lambda b, h, q, kv: q >= kv, (40, 40), (41, 41), (130, 130), kernel_options=options)
    assert (found[0], len(found[1])) == (2, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("every", [[(30, 60), (31, 61), (13, 70), (50, 49)], [(60, 60), (61, 61), (150, 150), (1, 1)]])
@pytest.mark.parametrize("block", [12, 100])
def test_blocks_have_one_kernel(block: int, every: list[tuple[int, int]]):
    """Two quotients by one number tell positions apart that are so far from each other, not so far times so far."""
    kernels, ranges = check(lambda b, h, q, kv: q // block == kv // block, *every)
    assert (kernels, len(ranges)) in ((2, 1), (len(every), 0))
    assert ranges or block == 100  # (two sizes, and blocks of more than two tiles)


def test_where_comparisons_are_decided():
    """Up to `most` positions, a comparison is true at all of them or at none; not at more."""
    rng = random.Random(0)
    for _ in range(200):
        q, kv, number = rng.choice([0, 1, 2, 3]), rng.choice([-3, -1, 0, 1]), rng.choice([-40, -7, 9, 25, 60])
        terms = [Var("q")] * abs(q) + [Var("kv")] * abs(kv)
        signs = [q > 0] * abs(q) + [kv > 0] * abs(kv)
        made: Any = Const(number, "int32")
        for term, positive in zip(terms, signs, strict=True):
            made = Op("add" if positive else "sub", (made, term))
        found = _difference(Op("lt", (made, Const(0, "int32"))))
        assert found is not None

        def values(extent: int, q: int = q, kv: int = kv, number: int = number) -> set[int]:
            every = itertools.product(range(extent), repeat=2)
            return {(value > 0) - (value < 0) for value in (q * i + kv * j + number for i, j in every)}

        if found.most > 100:
            assert len(values(50)) == 1
        else:
            assert len(values(found.most)) == 1
            assert len(values(found.most + 1)) > 1


def test_a_kernel_of_short_lengths_ends_where_splits_begin(monkeypatch: pytest.MonkeyPatch):
    plan = Plan("", "n", (), False)

    def spec(text: str, least: int) -> KernelSpec:
        return KernelSpec("f", "f", text, (), (), (("n", least, LARGEST),))

    made = stored.StoredKernel(spec("", 65), (), (), "")
    monkeypatch.setattr(lengths, "_made", lambda *_: made)

    def short(length: int, long: KernelSpec) -> Any:
        shapes = (1, 1, 30, 16), (1, 1, length, 16), (1, 1, length, 16)
        family = lengths.Family((None, None, None), (30, 60), 60, (), False, False)
        found = lengths._of_short(Problem(*shapes, "float32", None), None, None, read(), plan, "", family, long)
        return None if found is None else found.spec.ranges

    assert short(90, spec("def f_combine", 513)) == (("n", 65, 512),)
    assert short(600, spec("def f_combine", 513)) is None
    assert short(90, spec("", 513)) is None
