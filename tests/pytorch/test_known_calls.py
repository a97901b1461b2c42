"""Calls whose kernel is known are found by numbers and states alone, and never where something differs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.attention.flex_attention import and_masks

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import flex_attention, known_calls
from neptune_lab.pytorch.mod_state import state_of
from neptune_lab.pytorch.mods import read

HEADS, N, WIDTH = 2, 24, 16
LIMIT = 5
TABLE = torch.arange(N) % 3 == 0


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    flex_attention.forget()
    yield
    flex_attention.forget()


def drawn(n: int = N, m: int | None = None, heads: int = HEADS, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (1, HEADS, m or n, WIDTH), (1, heads, n, WIDTH), (1, heads, n, WIDTH)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def wanted(q, k, v, mask=None):
    return torch.nan_to_num(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True))


def close(out, want) -> bool:
    return bool(torch.allclose(out, want, atol=1e-5))


def causal(b, h, q, kv):
    return q >= kv


def banded(width):
    def mod(b, h, q, kv):
        return (q >= kv) & (q - kv < width)

    return mod


def looked_up(table, limit=3):
    return lambda b, h, q, kv, limit=limit: table[kv] | (q - kv < limit)


def of_globals(b, h, q, kv):
    return torch.where(TABLE[kv], q >= kv, q - kv < LIMIT)


MODS = {
    "none": lambda: None,
    "closed": lambda: causal,
    "a number": lambda: banded(7),
    "a tensor": lambda: looked_up(TABLE),
    "globals and a library": lambda: of_globals,
    "a mod in a mod": lambda: and_masks(causal, banded(9)),
}


@pytest.fixture
def only_known(monkeypatch):
    """From here on, a call that takes the long way fails."""

    def forbid():
        monkeypatch.setattr(flex_attention, "_attend", lambda *_: pytest.fail("a call that is known goes the long way"))

    return forbid


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", MODS)
def test_the_second_call_is_known(name: str, only_known):
    q, k, v = drawn()
    mod = MODS[name]()
    zero = torch.tensor(0)
    mask = None if mod is None else mod(zero, zero, torch.arange(N)[:, None], torch.arange(N)[None])
    assert close(nl.attention(q, k, v, mask_mod=mod), wanted(q, k, v, mask))
    only_known()
    q, k, v = drawn(seed=1)
    assert close(nl.attention(q, k, v, mask_mod=MODS[name]()), wanted(q, k, v, mask))


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "options",
    [{"return_lse": True}, {"scale": 0.5}, {"scale": 1}, {"enable_gqa": True}, {"dynamic": False}],
    ids=str,
)
def test_options_are_known(options, only_known):
    q, k, v = drawn(heads=1 if "enable_gqa" in options else HEADS)
    first = nl.attention(q, k, v, **options)
    only_known()
    second = nl.attention(q, k, v, **options)
    pairs = zip(first, second, strict=True) if "return_lse" in options else [(first, second)]
    assert all(torch.equal(a, b) for a, b in pairs)


def test_views_are_known(only_known):
    x = torch.randn(1, N, 3 * HEADS, WIDTH)
    views = [t.transpose(1, 2) for t in x.chunk(3, 2)]
    out = nl.attention(*views)
    assert close(out, wanted(*views))
    only_known()
    assert torch.equal(nl.attention(*views), out)
    assert nl.attention(*views).stride() == out.stride()


@pytest.mark.nightly
def test_what_a_mod_reads_is_compared_at_each_call(monkeypatch):
    q, k, v = drawn()
    places = torch.arange(N)

    def check(mod):
        mask = mod(0, 0, places[:, None], places[None])
        assert close(nl.attention(q, k, v, mask_mod=mod), wanted(q, k, v, mask))

    for width in (7, 3, 7, 2.5):
        check(banded(width))
    for table, limit in ((TABLE, 3), (~TABLE, 3), (TABLE, 4)):
        check(looked_up(table, limit))
    check(of_globals)
    monkeypatch.setitem(globals(), "LIMIT", 9)
    check(of_globals)
    TABLE.logical_not_()
    try:
        check(of_globals)
    finally:
        TABLE.logical_not_()
    check(looked_up(torch.cat([TABLE, TABLE])))


def test_what_cannot_be_a_launch_is_refused_after_it_was_known():
    q, k, v = drawn()
    for _ in range(2):
        nl.attention(q, k, v)
    assert nl.attention(q.clone().requires_grad_(), k, v).requires_grad
    with pytest.raises(LaunchError, match="v has 2 heads and length 23"):
        nl.attention(q, k, v[:, :, :-1])
    with pytest.raises(LaunchError, match="transform"):
        torch.vmap(nl.attention)(q[None], k[None], v[None])
    for function in (nl.attention, nl.scaled_dot_product_attention):
        with pytest.raises(LaunchError, match=r"inside torch.jit.trace(.|\n)*torch.export"):
            torch.jit.trace(lambda q, function=function: function(q, k, v), q)
    with forward_ad.dual_level(), pytest.raises(LaunchError, match="v carries a forward gradient"):
        nl.attention(q, k, forward_ad.make_dual(v, v))
    with pytest.raises(LaunchError, match="k is a str"):
        nl.attention(q, "k", v)
    for options in ({"enable_gqa": 1}, {"scale": "1"}, {"return_lse": 0}, {"dynamic": 1}):
        with pytest.raises(LaunchError):
            nl.attention(q, k, v, **options)
    with FakeTensorMode() as mode:
        fake = nl.attention(*(mode.from_tensor(t) for t in (q, k, v)))
    assert type(fake).__name__ == "FakeTensor"


@pytest.mark.nightly
def test_a_captured_tensor_that_records_gradients_is_none_of_a_known_call():
    q, k, v = drawn()
    bias = torch.zeros(N)
    mod = lambda s, b, h, i, j: s + bias[j]  # noqa: E731
    for _ in range(2):
        assert not nl.attention(q, k, v, score_mod=mod).requires_grad
    bias.requires_grad_()
    assert nl.attention(q, k, v, score_mod=mod).requires_grad


def gradients_wanted(tensors, mask, given):
    wide = [t.detach().double().requires_grad_() for t in tensors]
    return torch.autograd.grad(wanted(*wide, mask), wide, given.double())


@pytest.mark.nightly
def test_the_second_call_that_records_gradients_is_known(only_known):
    """Also with captured tensors, of which only one needs a gradient, and after a call without gradients."""
    places = torch.arange(N)
    mask = places[:, None] >= places
    bias = torch.zeros(N)
    mod = lambda s, b, h, i, j: s + bias[j]  # noqa: E731
    nl.attention(*drawn(), score_mod=mod, mask_mod=causal)
    nl.attention(drawn()[0].requires_grad_(), *drawn()[1:], score_mod=mod, mask_mod=causal)
    only_known()
    for seed in (1, 2):
        q, k, v = (t.requires_grad_() for t in drawn(seed=seed))
        given = drawn(seed=9)[0]
        found = torch.autograd.grad(nl.attention(q, k, v, score_mod=mod, mask_mod=causal), (q, k, v), given)
        for ours, theirs in zip(found, gradients_wanted((q, k, v), mask, given), strict=True):
            assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    bias.requires_grad_()
    q, k, v = drawn()
    nl.attention(q, k, v, score_mod=mod, mask_mod=causal).sum().backward()
    assert q.grad is None
    assert bias.grad is not None
    with torch.no_grad():
        assert not nl.attention(q, k, v, score_mod=mod, mask_mod=causal).requires_grad


@pytest.mark.nightly
def test_new_lengths_are_known(only_known):
    nl.attention(*drawn(20), mask_mod=causal, dynamic=True)
    only_known()
    for n in (21, 2, 90):
        q, k, v = drawn(n)
        mask = torch.arange(n)[:, None] >= torch.arange(n)
        assert close(nl.attention(q, k, v, mask_mod=causal, dynamic=True), wanted(q, k, v, mask)), n


@pytest.mark.nightly
def test_tensors_that_vary_with_the_lengths_are_compared(monkeypatch):
    long_way = []
    attend = flex_attention._attend
    monkeypatch.setattr(flex_attention, "_attend", lambda *given: long_way.append(1) or attend(*given))

    def call(n, columns):
        q, k, v = drawn(n)
        table = torch.rand(columns, generator=torch.Generator().manual_seed(n)) > 0.3
        out = nl.attention(q, k, v, mask_mod=looked_up(table), dynamic=True)
        mask = looked_up(table)(0, 0, torch.arange(n)[:, None], torch.arange(n)[None])
        assert close(out, wanted(q, k, v, mask)), n

    call(20, 20)
    call(31, 31)
    assert len(long_way) == 1
    call(31, 40)  # the table has more columns than there are keys: another kernel
    assert len(long_way) == 2


@pytest.mark.nightly
def test_full_tables_are_emptied(monkeypatch):
    monkeypatch.setattr(known_calls, "_MOST", 2)
    for n in (8, 9, 10, 11):
        q, k, v = drawn(n)
        for _ in range(2):
            assert close(nl.attention(q, k, v, dynamic=False), wanted(q, k, v))
    (group,) = known_calls._groups.values()
    assert 1 <= len(group.known) <= 2


@pytest.mark.nightly
def test_full_tables_of_groups_are_emptied(monkeypatch):
    monkeypatch.setattr(known_calls, "_MOST", 2)
    q, k, v = drawn(8)
    for scale in (0.5, 0.25, 0.125, 0.5):
        assert close(nl.attention(q, k, v, scale=scale), wanted(q * (scale * WIDTH**0.5), k, v))
        assert 1 <= len(known_calls._groups) <= 2


# -- states ------------------------------------------------------------------------------------------------------


def in_a_tuple(*mods):
    return lambda b, h, q, kv: mods[0](b, h, q, kv) & mods[1](b, h, q, kv)


def scaled(factor):
    return lambda s, b, h, q, kv: s * factor


STATES = [
    (banded(3), banded(4)),
    (banded(3), banded(3.0)),
    (banded(1), banded(True)),
    (banded(0.0), banded(-0.0)),
    (scaled(torch.tensor(1.0)), scaled(torch.tensor([1.0]))),
    (scaled(torch.tensor(1.0)), scaled(torch.tensor(1.0).double())),
    (scaled(torch.tensor(1.0)), scaled(1.0)),
    (looked_up(TABLE, 3), looked_up(TABLE, 4)),
    (in_a_tuple(causal, banded(3)), in_a_tuple(banded(3), causal)),
    (in_a_tuple(causal, banded(3)), in_a_tuple(causal, banded(4))),
    (lambda b, h, q, kv: q >= kv, lambda b, h, q, kv: q > kv),
    (lambda b, h, q, kv: q >= kv + 1, lambda b, h, q, kv: q >= kv + 2),
    (lambda b, h, q, kv, n=1: q >= kv + n, lambda b, h, q, kv, n=2: q >= kv + n),
]


@pytest.mark.parametrize("pair", STATES)
def test_states_differ_where_readings_do(pair):
    one, other = pair
    assert read(one).key != read(other).key
    assert None not in (state_of(one, []), state_of(other, []))
    assert state_of(one, []) != state_of(other, [])
    assert state_of(one, []) == state_of(one, [])


def test_one_tensor_twice_is_not_two():
    a, b = torch.zeros(3), torch.zeros(3)
    make = lambda x, y: lambda s, b_, h, q, kv: s + x[h] + y[h]  # noqa: E731
    assert state_of(make(a, a), []) != state_of(make(a, b), [])
    tensors: list[torch.Tensor] = []
    state_of(make(b, a), tensors)
    assert [id(t) for t in tensors] == [id(b), id(a)]


class Holder:
    width = 3


def with_attribute(b, h, q, kv):
    return q - kv < with_attribute.width


with_attribute.width = 3


def recursive(b, h, q, kv):
    return recursive(b, h, q, kv)


def keyword(b, h, q, kv, *, n=1):
    return q - kv < n


def marked(b, h, q, kv):
    return MARKED[kv] > MARKED.edge


MARKED = torch.zeros(N)
MARKED.edge = 1

HIDDEN = {
    "an object": banded(Holder()),
    "a list": banded([1, 2]),
    "attributes": with_attribute,
    "a partial": partial(banded(3)),
    "a method": Holder().__init__,
    "itself": recursive,
    "a keyword with a default": keyword,
    "a library's function": lambda b, h, q, kv: getattr(q, "abs")() >= kv,  # noqa: B009
    "a tensor with attributes": marked,
    "a module that is handed on": lambda b, h, q, kv: HELPER(torch, q) >= kv,
}
HELPER = lambda module, x: module.abs(x)  # noqa: E731


@pytest.mark.parametrize("name", HIDDEN)
def test_what_may_change_unseen_is_not_simple(name: str):
    assert state_of(HIDDEN[name], []) is None


def test_a_library_that_was_changed_is_not_simple(monkeypatch):
    mod = lambda b, h, q, kv: torch.where(q >= kv, q, kv) == q  # noqa: E731
    assert state_of(mod, []) is not None
    monkeypatch.setattr(torch, "where", lambda *_: None)
    assert state_of(mod, []) is None
    monkeypatch.undo()
    builtin = lambda b, h, q, kv: abs(q - kv) < 3  # noqa: E731
    assert state_of(builtin, []) is not None
    monkeypatch.setattr("builtins.abs", lambda x: x)
    assert state_of(builtin, []) is None
