"""Known calls go to a kernel's direct launcher, without the checks that found them: only where it takes their tensors.

Direct launchers need a GPU (`tests/runtime/test_direct.py` tests them without one); here a kernel's `_launch_any` is in
their place, which gives the same.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.errors import LaunchError
from neptune_lab.pytorch import flex_attention, known_calls
from neptune_lab.pytorch.extras import Extras
from neptune_lab.runtime import LoadedKernel

N = 24


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    flex_attention.forget()
    yield
    flex_attention.forget()


@pytest.fixture
def straight(monkeypatch) -> list[tuple[Any, ...]]:
    """The tensors of each direct launch; every call has to be known."""
    seen: list[tuple[Any, ...]] = []

    def direct_on(self: LoadedKernel, device: torch.device) -> Any:
        def launch(*tensors: torch.Tensor) -> Any:
            seen.append(tensors)
            return self._launch_any(*tensors)

        return launch

    monkeypatch.setattr(LoadedKernel, "direct_on", direct_on)
    return seen


def causal(b, h, q, kv):
    return q >= kv


def drawn(n: int = N, seed: int = 0, **options: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 2, n, 16, generator=generator, **options) for _ in range(3)]


def wanted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradients(out: torch.Tensor, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(out, tensors, torch.ones_like(out).cumsum(-1))


@pytest.mark.nightly
def test_lengths_and_layouts_of_one_kernel(straight):
    """The tensors of each call, and the length that the next one may continue."""
    nl.attention(*drawn(20), mask_mod=causal, dynamic=True)
    for n in (21, 7, 21, 21, 7):
        given = drawn(n, seed=len(straight))
        out = nl.attention(*given, mask_mod=causal, dynamic=True)
        assert torch.allclose(out, wanted(*given), atol=1e-5)
        assert all(one is other for one, other in zip(straight[-1], given, strict=True))
        (group,) = known_calls._groups.values()
        (found,) = group.for_lengths.values()
        assert found.alike is not None
        (stream,) = known_calls._streams.values()
        assert (stream.group, stream.known, stream.lengths, stream.tells) == (group, found.known, found, found.alike)
        assert found.known.family is not None
        assert found.known.family.keys == n
    assert len(straight) == 5
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in drawn(21)]
    out = nl.attention(*strided, mask_mod=causal, dynamic=True)  # not what was known of length 21
    assert torch.allclose(out, wanted(*strided), atol=1e-5)
    assert len(straight) == 5
    recording = [t.requires_grad_() for t in drawn(21)]
    assert nl.attention(*recording, mask_mod=causal, dynamic=True).requires_grad
    with torch.no_grad():
        assert not nl.attention(*recording, mask_mod=causal, dynamic=True).requires_grad
    assert nl.attention(*recording, mask_mod=causal, dynamic=True).requires_grad
    given = drawn(9)[0], *drawn(21)[1:]  # another kernel, for two lengths
    out = nl.attention(*given, mask_mod=causal, dynamic=True)
    mask = torch.arange(9)[:, None] >= torch.arange(21)
    assert torch.allclose(out, F.scaled_dot_product_attention(*given, attn_mask=mask), atol=1e-5)
    with pytest.raises(LaunchError, match="v has 2 heads and length 8"):
        nl.attention(drawn(7)[0], drawn(7)[1], drawn(8)[2], mask_mod=causal, dynamic=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("strided", [False, True])
def test_gradients(straight, strided: bool):
    def tensors(seed: int) -> list[torch.Tensor]:
        made = drawn(seed=seed)
        if strided:
            made = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in made]
        return [t.requires_grad_() for t in made]

    nl.attention(*tensors(0), mask_mod=causal)
    for seed in (1, 2):
        given = tensors(seed)
        out = nl.attention(*given, mask_mod=causal)
        assert len(straight) == seed
        for ours, theirs in zip(gradients(out, given), gradients(wanted(*given), given), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-4)
    some = tensors(3)
    some[1].requires_grad_(False)
    out = nl.attention(*some, mask_mod=causal)
    assert torch.allclose(out.detach(), wanted(*some), atol=1e-5)
    assert [t is None for t in torch.autograd.grad(out.sum(), some[::2])] == [False, False]
    with torch.no_grad():
        assert not nl.attention(*given, mask_mod=causal).requires_grad


def cotangents(shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Cotangents that a backward kernel takes as they are, or as copies."""
    drawn_one = torch.randn(shape, generator=torch.Generator().manual_seed(7))
    turned = drawn_one.transpose(1, 2).contiguous().transpose(1, 2)
    negated = torch._neg_view(-drawn_one)
    return {"dense": drawn_one, "turned": turned, "negated": negated, "expanded": torch.ones(()).expand(shape)}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("kind", ["dense", "turned", "negated", "expanded"])
@pytest.mark.parametrize("needs", [(True, True, True), (True, False, True)])
def test_backward_passes_like_an_earlier_one_are_launched_directly(straight, kind: str, needs: tuple[bool, ...]):
    """From the second pass on, and only with tensors that the first one had: others give the same as ever."""
    for n in range(4):
        given = [t.requires_grad_(need) for t, need in zip(drawn(seed=n), needs, strict=True)]
        out = nl.attention(*given, mask_mod=causal)
        before = len(straight)
        cotangent = cotangents(out.shape)["dense" if n < 2 else kind]
        inputs = [t for t in given if t.requires_grad]
        ours = torch.autograd.grad(out, inputs, cotangent)
        assert len(straight) - before == (n > 0 and (n < 2 or kind == "dense"))
        theirs = torch.autograd.grad(wanted(*given), inputs, cotangent.clone())
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.nightly
def test_what_sees_a_backward_pass_still_does(straight):
    """Gradients of gradients, batches of cotangents and saved tensors that hooks change, after a direct launch."""
    given = drawn(requires_grad=True)
    for _ in range(3):
        out = nl.attention(*given, mask_mod=causal)
        gradients(out, given)
    out = nl.attention(*given, mask_mod=causal)
    ones = torch.ones_like(out)
    (first, *_) = torch.autograd.grad(out, given, ones, create_graph=True)
    with pytest.raises(LaunchError, match="gradient of a gradient"):
        first.sum().backward()
    before = len(straight)
    some = torch.stack([ones, 2 * ones])
    batched = torch.autograd.grad(out, given, some, is_grads_batched=True, retain_graph=True)
    for ours, theirs in zip(batched, torch.autograd.grad(out, given, ones), strict=True):
        assert torch.allclose(ours[1], 2 * theirs, atol=1e-4)
    assert len(straight) == before + 1
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to_sparse(), lambda t: t.to_dense().mT.contiguous().mT):
        out = nl.attention(*given, mask_mod=causal)
    for ours, theirs in zip(gradients(out, given), gradients(wanted(*given), given), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.nightly
def test_both_results_have_gradients(straight):
    for _ in range(2):
        given = drawn(requires_grad=True)
        out, lse = nl.attention(*given, mask_mod=causal, return_lse=True)
    assert len(straight) == 1
    q, k, _ = given
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -torch.inf)
    theirs = gradients(wanted(*given) * scores.logsumexp(-1, keepdim=True), given)
    for ours, other in zip(gradients(out * lse[..., None], given), theirs, strict=True):
        assert torch.allclose(ours, other, atol=1e-3)


@pytest.mark.nightly
def test_what_the_kernel_takes_otherwise_goes_the_long_way(straight, monkeypatch):
    """Captured tensors, whose strides are not compared, and tensors that a kernel gets as copies."""
    bias = torch.arange(2.0 * N).view(2, N)
    mod = lambda s, b, h, i, j: s + bias[h, j]  # noqa: E731
    for _ in range(3):
        nl.attention(*drawn(requires_grad=True), score_mod=mod, mask_mod=causal).sum().backward()
    assert not straight
    monkeypatch.setattr(LoadedKernel, "fits", lambda self, tensors: False)
    for _ in range(3):
        nl.attention(*drawn(requires_grad=True), mask_mod=causal)
    assert not straight


def test_a_wrapper_that_a_transform_left_is_its_tensor(straight):
    q, k, v = drawn(requires_grad=True)
    nl.attention(q, k, v, mask_mod=causal)
    left: list[torch.Tensor] = []
    torch.func.grad(lambda x: (left.append(x), x.sum())[1])(q)
    assert left[0] is not q
    out = nl.attention(left[0], k, v, mask_mod=causal)
    assert len(straight) == 1
    assert torch.allclose(out, wanted(q, k, v), atol=1e-5)


def kernel_of(name: str, seen: list[Any], ranges: tuple[Any, ...] = ()) -> Any:
    """A kernel, as far as known calls read it."""
    sizes = ("", "", "n", "") if ranges else None
    tensor = SimpleNamespace(shape=(1, 2, N, 16), sizes=sizes, steps=None, strides=None)
    spec = SimpleNamespace(ranges=ranges, inputs=[tensor] * 3)
    launch = lambda *tensors: seen.append((name, tensors)) or name  # noqa: E731
    return SimpleNamespace(kernel=SimpleNamespace(spec=spec, launch=launch, direct_on=lambda _: None), captured=())


def call(q: Any, k: Any, v: Any, dynamic: bool | None = True) -> Any:
    return known_calls.launched(q, k, v, None, causal, False, None, False, dynamic)


def mixed(*lengths: int) -> list[torch.Tensor]:
    return [torch.zeros(1, 2, n, 16) for n in lengths]


def test_streams_stay_with_the_lengths_of_their_kernel():
    seen: list[Any] = []
    family: Any = SimpleNamespace(keys=0)
    of_all = kernel_of("all", seen, (("n", 1, 1500),))
    given = None, causal, False, None, Extras(dynamic=True)
    known_calls.keep((*drawn(), *given), of_all, (), family)
    for n in (30, 31, 7):
        q, k, v = drawn(n)
        assert call(q, k, v) == "all"
        assert seen[-1][1][0] is q
        assert family.keys == n
    assert len(known_calls._streams) == 1
    for lengths in ((7, 8, 8), (8, 7, 7), (7, 7, 8), (1, 1, 1), (1024, 1024, 1024), (1501, 1501, 1501)):
        assert call(*mixed(*lengths)) is None, lengths
        assert call(*drawn(9)) == "all"
    assert call(*drawn(30), dynamic=None) is None
    assert known_calls.launched(*drawn(30), None, None, False, None, False, True) is None
    assert known_calls.launched(*drawn(30), None, causal, False, 0.5, False, True) is None
    known_calls.keep((*drawn(9), *given), kernel_of("own", seen), (), None)
    assert [call(*drawn(n)) for n in (9, 10, 10, 10, 9)] == ["own", "all", "all", "all", "own"]
    assert [call(*drawn(n)) for n in (11, 12, 12, 12)] == ["all"] * 4
    ((stream,), (group,)) = known_calls._streams.values(), known_calls._groups.values()
    assert stream.lengths is not None
    assert len(group.known) == 1  # (a stream of new lengths notes none)
    assert [call(*drawn(n)) for n in (9, 12)] == ["own", "all"]
    known_calls.forget()
    assert call(*drawn(9)) is None


def test_calls_of_one_shape_are_told_by_a_look_at_each_tensor(monkeypatch: pytest.MonkeyPatch):
    """From the third one on, and until one is of another shape."""
    seen: list[Any] = []
    given = None, causal, False, None, Extras(dynamic=True)
    for n in (30, 31):
        known_calls.keep((*drawn(n), *given), kernel_of(str(n), seen), (), None)

    def told() -> list[int]:
        return [stream.keys for stream in known_calls._streams.values()]

    for expected in ([], [30], [30]):
        assert call(*drawn(30)) == "30"
        assert told() == expected
    monkeypatch.setattr(known_calls, "_groups", {})  # (nothing else finds a call)
    assert call(*drawn(30)) == "30"
    assert [call(*mixed(*lengths)) for lengths in ((31, 30, 30), (30, 31, 31), (30, 30, 31))] == [None] * 3
    monkeypatch.undo()
    for n in (31, 30, 31, 30):  # not for calls whose shapes take turns
        assert call(*drawn(n)) == str(n)
        assert told() == []
    assert call(*drawn(30)) == "30"
    assert told() == [30]
    other = drawn(30)
    other[1] = torch._neg_view(other[1])
    assert call(*other) == "30"  # by the launcher that copies it
    assert told() == []
    assert seen[-1][1][1] is other[1]


@pytest.mark.parametrize("lengths", [(30, 30, 30), (30, 31, 32)])
def test_a_launcher_without_a_test_for_signs_gets_tensors_that_are_told(lengths: tuple[int, ...]):
    """By one look at each; all others get the launcher with the test."""
    seen: list[Any] = []

    def launcher(q: Any, k: Any, v: Any) -> str:
        seen.append("tests")
        return "out"

    launcher.unnegated = lambda q, k, v: seen.append("told") or "out"
    same = len(set(lengths)) == 1
    kernel = kernel_of("one", seen, () if same else (("n", 1, 1500),))
    kernel.kernel.direct_on = lambda _: launcher
    family: Any = None if same else SimpleNamespace(keys=0)
    known_calls.keep((*drawn(), *[None, causal, False, None, Extras(dynamic=True)]), kernel, (), family)
    if same:
        known_calls.keep((*drawn(30), *[None, causal, False, None, Extras(dynamic=True)]), kernel, (), None)
    for n in lengths:
        assert call(*drawn(n)) == "out"
    assert seen == (["tests", "tests", "told"] if same else ["tests", "told", "told"])
    negated = drawn(lengths[-1])
    negated[2] = torch._neg_view(negated[2])
    assert call(*negated) == "out"
    assert seen[-1] == "tests"


def test_what_a_mask_reads_is_told_by_the_same_look():
    """Its values may change, and nothing else of it."""
    seen: list[Any] = []

    def masked(table: torch.Tensor) -> Any:
        mask = lambda b, h, q, kv: table[q] == table[kv]  # noqa: E731
        return known_calls.launched(*drawn(30), None, mask, False, None, False, True)

    def told() -> int:
        return len(known_calls._streams)

    table = torch.arange(30.0) // 7
    kernel = kernel_of("one", seen)
    kernel.captured = ((0, table.dtype),)
    mask = lambda b, h, q, kv: table[q] == table[kv]  # noqa: E731
    known_calls.keep((*drawn(30), None, mask, False, None, Extras(dynamic=True)), kernel, (table,), None)
    for expected in (0, 1, 1):
        assert masked(table) == "one"
        assert told() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_calls, "_groups", {})  # (nothing else finds a call)
        other = torch.arange(30.0) // 4
        assert masked(other) == "one"
        assert seen[-1][1][3] is other
        wide = torch.zeros(60)
        for changed in (wide[::2], wide[:29], torch._neg_view(other), table.clone().requires_grad_(), table.to("meta")):
            assert masked(changed) is None
            assert masked(other) is None  # (no longer known, with no group)
            known_calls._streams.clear()
            patch.undo()
            assert [masked(table), masked(table)] == ["one", "one"]
            patch.setattr(known_calls, "_groups", {})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_a_kernel_takes_in_another_dtype_is_not_told_by_a_look(dtype: torch.dtype):
    """It is converted at each call."""
    seen: list[Any] = []
    table = torch.zeros(30, dtype=dtype)
    kernel = kernel_of("one", seen)
    kernel.captured = ((0, torch.float32),)
    mask = lambda b, h, q, kv: table[q] == table[kv]  # noqa: E731
    known_calls.keep((*drawn(30), None, mask, False, None, Extras(dynamic=True)), kernel, (table,), None)
    for _ in range(3):
        assert known_calls.launched(*drawn(30), None, mask, False, None, False, True) == "one"
    assert all(given[3].dtype is torch.float32 for _, given in seen)
    assert len(known_calls._streams) == (dtype is torch.float32)
