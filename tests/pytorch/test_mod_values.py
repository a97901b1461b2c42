"""What a mod reads of Python and of captured tensors: a change is seen at the next call, and dtypes are torch's."""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch
from attention_reference import DEVICE, flex, reference, tensors

import neptune_lab as nl
from neptune_lab.errors import DefinitionError
from neptune_lab.pytorch.mods import read

WIDTH = 3
SETTINGS = ModuleType("settings")
SLOPES = torch.tensor([0.5, 0.25], device=DEVICE)


def right(score_mod=None, mask_mod=None, shape=(1, 2, 32, 16)):
    """The call, with FlexAttention's result asserted."""
    q, k, v = tensors(shape)
    found, expected = nl.attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod), flex(q, k, v, score_mod, mask_mod)
    assert torch.equal(found.isnan(), expected.isnan())
    assert (found - expected).nan_to_num().abs().max() < 2e-5
    return found


def changed(mask_mod, change):
    """The result follows `change()`; what is expected is computed without torch.compile and its caches."""
    q, k, v = tensors((1, 2, 32, 16))

    def checked():
        found = nl.attention(q, k, v, mask_mod=mask_mod)
        assert (found - reference(q, k, v, None, mask_mod)).abs().max() < 2e-5
        return found

    before = checked()
    change()
    assert (checked() - before).abs().max() > 1e-3


def test_an_attribute_of_the_function_itself():
    def win(b, h, q, kv):
        return (q >= kv) & (q - kv < win.width)

    win.width = 4
    changed(win, lambda: setattr(win, "width", 20))


def test_an_attribute_of_another_function():
    def settings():
        pass

    settings.width = 4

    def outer(b, h, q, kv):
        return (lambda n: (q >= kv) & (q - kv < n))(settings.width)

    changed(outer, lambda: setattr(settings, "width", 20))


def test_a_module_that_another_function_reads(monkeypatch):
    """The mod itself names no attribute of it."""
    monkeypatch.setattr(SETTINGS, "width", 4, raising=False)

    def near(where, q, kv):
        return q - kv < where.width

    changed(lambda b, h, q, kv: (q >= kv) & near(SETTINGS, q, kv), lambda: setattr(SETTINGS, "width", 20))


def test_an_attribute_of_a_partial():
    def near(q, kv):
        return q - kv < part.width

    part = functools.partial(near)
    part.width = 4
    changed(lambda b, h, q, kv: (q >= kv) & part(q, kv), lambda: setattr(part, "width", 20))


def test_a_number_of_a_library_that_someone_set(monkeypatch):
    monkeypatch.setattr(torch, "neptune_test_width", 4, raising=False)
    mod = lambda b, h, q, kv: (q >= kv) & (q - kv < torch.neptune_test_width)  # noqa: E731
    changed(mod, lambda: setattr(torch, "neptune_test_width", 20))


def test_an_attribute_that_someone_gave_a_tensor():
    table = torch.zeros(32, device=DEVICE)
    table.width = 4
    mod = lambda b, h, q, kv: (q >= kv) & (q - kv < table.width) & (table[q] == 0)  # noqa: E731
    assert not read(mod).exact


@pytest.mark.one_in(10)
@pytest.mark.parametrize("kind", ["list", "dict", "nested", "global", "cell", "class", "getattr", "globals", "import"])
def test_every_way_to_a_number(kind, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "settings_of_the_test", SETTINGS)
    monkeypatch.setattr(SETTINGS, "width", 4, raising=False)
    items, named, deep, holder = [4], {"w": 4}, ([{"w": [4]}],), type("Holder", (), {"width": 4})
    width = 4

    def cell():
        nonlocal width
        width = 20

    def imported(b, h, q, kv):
        import settings_of_the_test

        return (q >= kv) & (q - kv < settings_of_the_test.width)

    def set_global():
        monkeypatch.setitem(globals(), "WIDTH", 20)

    def set_module():
        setattr(SETTINGS, "width", 20)  # noqa: B010

    def near(q, kv, n):
        return (q >= kv) & (q - kv < n)

    ways = {
        "list": (lambda b, h, q, kv: near(q, kv, items[0]), lambda: items.insert(0, 20)),
        "dict": (lambda b, h, q, kv: near(q, kv, named["w"]), lambda: named.update(w=20)),
        "nested": (lambda b, h, q, kv: near(q, kv, deep[0][0]["w"][0]), lambda: deep[0][0]["w"].insert(0, 20)),
        "global": (lambda b, h, q, kv: near(q, kv, WIDTH), set_global),
        "cell": (lambda b, h, q, kv: near(q, kv, width), cell),
        "class": (lambda b, h, q, kv: near(q, kv, holder.width), lambda: setattr(holder, "width", 20)),
        "getattr": (lambda b, h, q, kv: near(q, kv, getattr(SETTINGS, "wid" + "th")), set_module),
        "globals": (lambda b, h, q, kv: near(q, kv, globals()["WIDTH"]), set_global),
        "import": (imported, set_module),
    }
    changed(*ways[kind])


class Alibi:
    __slots__ = ("slope",)

    def __init__(self):
        self.slope = SLOPES

    def score(self, s, b, h, q, kv):
        return s + self.slope[h] * (kv - q)


@dataclass(frozen=True)
class Frozen:
    slope: torch.Tensor
    factor: float = 0.5


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("slope", SLOPES)

    def score(self, s, b, h, q, kv):
        return s + self.slope[h] * (kv - q)


@pytest.mark.nightly
def test_tensors_in_objects():
    alibi, frozen, space = Alibi(), Frozen(SLOPES), SimpleNamespace(slope=SLOPES, inner=SimpleNamespace(factor=0.5))
    named = namedtuple("Named", "slope factor")(SLOPES, 0.5)
    right(alibi.score)
    right(Layer().to(DEVICE).score)
    right(lambda s, b, h, q, kv: s + alibi.slope[h] * kv)
    right(lambda s, b, h, q, kv: s + frozen.slope[h] * kv * frozen.factor)
    right(lambda s, b, h, q, kv: s + named.slope[h] * kv * named.factor)
    mod = lambda s, b, h, q, kv: s + space.slope[h] * kv * space.inner.factor  # noqa: E731
    before = right(mod)
    space.inner.factor = 0.25
    assert not torch.equal(right(mod), before)
    space.slope = SLOPES * 3
    right(mod)
    SETTINGS.slope = SLOPES
    right(lambda s, b, h, q, kv: s + SETTINGS.slope[h] * kv)
    assert alibi.slope is SLOPES


def test_an_index_beyond_32_bits_reads_no_element():
    q, k, v = tensors((1, 1, 32, 16))
    table = torch.arange(1.0, 33.0, device=DEVICE)
    at = torch.arange(32, device=DEVICE)
    read = table.clone()

    def looked_up(score, b, h, q, kv):
        return score + table[at[kv]]

    for change in (0, 2**32, -(2**33), 2**31):
        at[::2] = torch.arange(0, 32, 2, device=DEVICE) + change
        read[::2] = 0 if change else table[::2]
        expected = reference(q, k, v, lambda score, b, h, q, kv: score + read[kv])
        assert (nl.attention(q, k, v, looked_up) - expected).abs().max() < 1e-5


@pytest.mark.nightly
def test_int64_beyond_int32_is_compared_in_64_bits():
    ids = torch.zeros(32, dtype=torch.int64, device=DEVICE)
    mod = lambda b, h, q, kv: (ids[q] == ids[kv]) & (ids[kv] + q >= ids[q])  # noqa: E731
    right(None, mod)
    ids[::2] = 2**32
    right(None, mod)
    ids[3] = -(2**40)
    right(None, mod)
    right(lambda s, b, h, q, kv: s + ids[kv] * 1e-12 + (ids[q] // 3) * 1e-10)
    position = torch.tensor(2**33, device=DEVICE)
    right(None, lambda b, h, q, kv: (q + position >= ids[kv]) & (q - position < ids[kv]))


@pytest.mark.nightly
def test_float64_is_computed_in_64_bits():
    x = torch.rand(32, dtype=torch.float64, device=DEVICE)
    y = x + 1e-12 * (torch.arange(32, device=DEVICE) % 2)
    right(None, lambda b, h, q, kv: (x[kv] >= y[kv]) | (q > kv))
    right(lambda s, b, h, q, kv: s + torch.tanh(x[kv] * s) * torch.exp(-x[q]) + torch.maximum(x[q], x[kv]))
    right(lambda s, b, h, q, kv: torch.floor(s * x[kv] * 10) + x[q] ** 2.5)


def test_integers_without_a_sign():
    q, k, v = tensors((1, 1, 16, 16))
    ids = torch.full((16,), 200, dtype=torch.uint8, device=DEVICE)
    right(None, lambda b, h, q, kv: ids[q] + q >= kv + 200, (1, 1, 16, 16))
    big = ids.to(torch.uint64)
    with pytest.raises(DefinitionError, match=r"dtype uint64.*(.|\n)*to\(torch.int64\)"):
        nl.attention(q, k, v, mask_mod=lambda b, h, q, kv: big[q] == big[kv])


@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "mask_mod",
    [
        lambda *_: True,
        lambda b, h, q, kv: q >= 0,
        lambda *_: False,
        lambda b, h, q, kv: (q >= kv) & (q < kv),
        lambda b, h, q, kv: q < 0,
    ],
)
@pytest.mark.parametrize("q_len", [1, 20])
def test_masks_that_are_the_same_everywhere(mask_mod, q_len):
    q, k, v = tensors((1, 1, q_len, 16), (1, 1, 70, 16))
    full = bool(torch.as_tensor(mask_mod(0, 0, torch.tensor(5), torch.tensor(5))))
    expected = flex(q, k, v) if full else torch.zeros_like(q)
    assert (nl.attention(q, k, v, mask_mod=mask_mod) - expected).abs().max() < 2e-5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("value", [0, 1.5, -math.inf])
def test_scores_that_are_one_number(value):
    q, k, v = tensors((1, 1, 20, 16))
    expected = torch.zeros_like(v) if value == -math.inf else v.mean(2, keepdim=True).expand_as(v)
    assert (nl.attention(q, k, v, score_mod=lambda *_: value) - expected).abs().max() < 2e-5


def test_constants_below_the_least_normal_float32():
    q, k, v = tensors((1, 1, 20, 16))
    mod = lambda s, b, h, q, kv: torch.where(kv % 2 == 0, 1.0, 1e-40) * torch.clamp(s, min=-1e-38)  # noqa: E731
    assert (nl.attention(q, k, v, score_mod=mod) - flex(q, k, v, mod)).abs().max() < 2e-5


@pytest.mark.nightly
def test_scores_that_ignore_the_queries():
    q, k, v = tensors((1, 1, 20, 16))
    q[0, 0, 3] = math.nan
    mod = lambda s, b, h, q, kv: kv * 0.1 - q * 0.2  # noqa: E731
    assert (nl.attention(q, k, v, score_mod=mod) - flex(q, k, v, mod)).abs().max() < 2e-5
    for options in ({"scale": 0.0}, {"score_mod": lambda s, *_: s * 0}):
        found = nl.attention(q, k, v, **options)
        assert found[0, 0, 3].isnan().all(), "0 times NaN is NaN"
        assert (found - v.mean(2, keepdim=True)).nan_to_num().abs().max() < 2e-5
