"""Mods that stop gradients have autograd's; what would lose one without a word is refused: functions with a derivative
of their own, tangents, and what has no backward."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_reference import DEVICE, tensors
from torch.autograd import forward_ad

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError

TABLE = torch.tensor([0.5, -1.0, 2.0, 0.25], device=DEVICE)
MANY = torch.ones(30, 10, device=DEVICE)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * grads[0]


def _read_without_gradient(table):
    def mod(score, b, h, q, kv):
        with torch.no_grad():
            slope = table[h]
        return score * slope

    return mod


def _views_without_gradient(table):
    def mod(score, b, h, q, kv):
        with torch.no_grad():
            doubled = table * 2
        return score * doubled[h]

    return mod


# By name: a mod of a table that stops a gradient of the table.
OF_TABLES: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "a captured tensor": lambda table: lambda score, b, h, q, kv: score * table.detach()[h],
    "an element": lambda table: lambda score, b, h, q, kv: score * table[h].detach(),
    "torch.detach": lambda table: lambda score, b, h, q, kv: score * torch.detach(table[h]),
    "data": lambda table: lambda score, b, h, q, kv: score * table.data[h],
    "a number": lambda table: lambda score, b, h, q, kv: score * table[2].item(),
    "a sum": lambda table: lambda score, b, h, q, kv: score * table.sum().detach(),
    "one of several": lambda table: lambda s, b, h, q, kv: s * torch.cat([TABLE, table * 2]).detach()[h],
    "one of many": lambda table: lambda s, b, h, q, kv: s * (MANY + table[2]).detach()[h, q],
    "a Function": lambda table: lambda score, b, h, q, kv: score * _Doubled.apply(table[h]),
    "a Function of a tensor": lambda table: lambda score, b, h, q, kv: score * _Doubled.apply(table)[h],
    "an element under no_grad": _read_without_gradient,
    "an array under no_grad": _views_without_gradient,
}


@torch.no_grad()
def _decorated(score, b, h, q, kv):
    return score - 0.5 * kv


# By name: a mod that stops a gradient of the score.
OF_SCORES: dict[str, Callable[..., Any]] = {
    "a score": lambda score, b, h, q, kv: score + score.detach() * TABLE[h],
    "data of a score": lambda score, b, h, q, kv: score * score.data,
    "straight through": lambda score, b, h, q, kv: score + (torch.round(score) - score).detach(),
    "a Function that changes nothing": lambda score, b, h, q, kv: _Doubled.apply(score),
    "a decorator": _decorated,
}
OWN = "a Function", "a Function of a tensor", "a Function that changes nothing"
REFUSED = r"a derivative of its own(.|\n)*test_stopped_gradients.py, line \d+"


def _inputs(*recording: str) -> dict[str, torch.Tensor]:
    made = dict(zip(("q", "k", "v"), tensors((1, 4, 3, 8), (1, 4, 5, 8)), strict=True)) | {"table": TABLE.clone()}
    return {name: tensor.requires_grad_(name in recording) for name, tensor in made.items()}


def _gradients(call: Callable[..., torch.Tensor], given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    own = {name: t.detach().clone().requires_grad_(t.requires_grad) for name, t in given.items()}
    call(**own).square().sum().backward()
    return [t.grad for t in own.values() if t.grad is not None]


def _attended(mod: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Attention with a mod, by torch's operations."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        scores = q @ k.mT * 8**-0.5
        index = torch.meshgrid(*(torch.arange(n, device=DEVICE) for n in scores.shape), indexing="ij")
        return mod(table)(scores, *index).softmax(-1) @ v

    return call


def _ours(mod: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    return lambda q, k, v, table: nl.attention(q, k, v, score_mod=mod(table))


def _same_gradients(mod: Callable[..., Any], *recording: str) -> None:
    given = _inputs(*recording)
    torch.testing.assert_close(_gradients(_ours(mod), given), _gradients(_attended(mod), given), rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [name for name in OF_SCORES if name not in OWN])
def test_a_score_mod_that_stops_a_gradient_of_the_score(name: str):
    _same_gradients(lambda _: lambda *args: OF_SCORES[name](*args) + args[0], "q", "k", "v")


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in OF_TABLES if name not in OWN])
def test_a_score_mod_that_stops_a_gradient_of_a_captured_tensor(name: str):
    _same_gradients(lambda table: lambda *args: OF_TABLES[name](table)(*args) + table[args[2]], "q", "v", "table")


@pytest.mark.nightly
def test_a_derivative_of_its_own_is_refused_where_a_tensor_records():
    of_score = OF_SCORES["a Function that changes nothing"]
    _same_gradients(OF_TABLES["a Function"], "q", "v")
    for name in ("a Function", "a Function of a tensor"):
        with pytest.raises(DefinitionError, match=REFUSED):
            _ours(OF_TABLES[name])(**_inputs("q", "v", "table"))
    _same_gradients(lambda _: of_score, "v")
    with pytest.raises(DefinitionError, match=REFUSED):
        _ours(lambda _: of_score)(**_inputs("k"))


def test_a_mod_that_is_first_called_without_gradients_has_them():
    """A backward pass builds definitions too, where torch records nothing."""
    op = nl.operators.attention.general(1, 2, 3, 5, 8, score_mod=lambda score, b, h, q, kv: score * 2.0)
    with torch.no_grad():
        assert op.marked is op.program
    assert nl.operators.training(op).wrt == ("q", "k", "v")


@pytest.mark.nightly
def test_a_mod_that_asks_whether_gradients_are_recorded_is_told():
    q, k, v = tensors()

    def tilted(score, b, h, q, kv):
        return score + kv * (0.5 if torch.is_grad_enabled() else -0.5)

    for _ in range(2):
        with torch.no_grad():
            without = nl.attention(q, k, v, score_mod=tilted)
        assert torch.allclose(without, nl.attention(q, k, v, lambda s, b, h, q, kv: s - 0.5 * kv), atol=1e-6)
        within = nl.attention(q, k, v, score_mod=tilted)
        assert torch.allclose(within, nl.attention(q, k, v, lambda s, b, h, q, kv: s + 0.5 * kv), atol=1e-6)


@pytest.mark.nightly
def test_mods_that_differ_in_what_they_stop_share_no_backward_pass():
    given = _inputs("v", "table")
    compiled: Any = lambda mod: torch.compile(_ours(mod), backend="aot_eager", fullgraph=True)  # noqa: E731
    torch._dynamo.reset()
    follows = lambda table: lambda score, b, h, q, kv: score * table[h]  # noqa: E731
    torch.testing.assert_close(
        _gradients(compiled(follows), given), _gradients(_attended(follows), given), rtol=1e-4, atol=1e-5
    )
    stops = OF_TABLES["an element"]
    part = lambda table: lambda *args: stops(table)(*args) + table[0] * args[4]  # noqa: E731
    torch.testing.assert_close(
        _gradients(compiled(part), given), _gradients(_attended(part), given), rtol=1e-4, atol=1e-5
    )


def _positions_without_gradient(score, b, h, q, kv):
    with torch.no_grad():
        near = (q - kv).abs() < 3
    return torch.where(near, score, score * TABLE[h].clone())


@pytest.mark.parametrize(
    "mods",
    [
        {"score_mod": _positions_without_gradient},
        {"mask_mod": lambda b, h, q, kv: TABLE.detach()[h] * kv < 2},
    ],
)
def test_other_mods_stop_none(mods: dict[str, Any]):
    op = nl.operators.attention.general(1, 4, 3, 5, 8, dtype="float32", live=True, **mods)
    assert op.gradient_stops is None or op.gradient_stops([t.name for t in op.inputs]) is None


def test_a_call_that_records_nothing_takes_such_a_mod():
    q, k, v = tensors((1, 4, 3, 8), (1, 4, 5, 8))
    found = nl.attention(q, k, v, score_mod=OF_SCORES["a score"])
    expected = torch.softmax((q @ k.mT * 8**-0.5) * (1 + TABLE[:, None, None]), -1) @ v
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_what_no_result_depends_on_has_a_gradient_of_zeros():
    given = _inputs("q", "k", "v", "table")
    mod = lambda table: lambda score, b, h, q, kv: score * 0 + table[h] * 0  # noqa: E731
    torch.testing.assert_close(_gradients(_ours(mod), given), _gradients(_attended(mod), given), rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
def test_a_number_that_changes_between_calls_keeps_the_graph_whole():
    q, k, v = tensors((1, 4, 3, 8), (1, 4, 5, 8))

    def call(factor: float) -> torch.Tensor:
        return nl.attention(q, k, v, score_mod=lambda score, b, h, q, kv: score * factor)

    torch._dynamo.reset()
    compiled: Any = torch.compile(call, backend="eager", fullgraph=True)
    for factor in (1.0, 2.0, -3.0):  # (of which torch makes a tensor after the first)
        expected = torch.softmax(q @ k.mT * 8**-0.5 * factor, -1) @ v
        torch.testing.assert_close(compiled(factor), expected, rtol=1e-4, atol=1e-5)


def test_tangents_of_captured_tensors_are_refused():
    q, k, v = tensors((1, 4, 3, 8), (1, 4, 5, 8))
    with forward_ad.dual_level():
        slopes = forward_ad.make_dual(TABLE, TABLE)
        with pytest.raises(LaunchError, match=r"shape \(4,\) carries a forward gradient"):
            nl.attention(q, k, v, score_mod=lambda score, b, h, q, kv: score * slopes[h])


def _paged(score_mod: Any = None, mask_mod: Any = None) -> torch.Tensor:
    q, cache = torch.ones(1, 4, 1, 8, device=DEVICE), torch.ones(2, 4, 4, 8, device=DEVICE)
    pages = torch.tensor([[1, 0]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([6], dtype=torch.int32, device=DEVICE)
    return nl.paged_attention(q, cache, cache, pages, lengths, score_mod=score_mod, mask_mod=mask_mod)


def test_caches_of_pages_refuse_captured_tensors_with_gradients():
    slopes = TABLE.clone().requires_grad_()
    with pytest.raises(LaunchError, match=r"shape \(4,\) records gradients"):
        _paged(lambda score, b, h, q, kv: score * slopes[h])
    assert not _paged(mask_mod=lambda b, h, q, kv: slopes[h] < 3).requires_grad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(TABLE, TABLE)
        with pytest.raises(LaunchError, match="carries a forward gradient"):
            _paged(lambda score, b, h, q, kv: score * dual[h])


def test_they_are_refused_in_graphs_too():
    slopes = TABLE.clone().requires_grad_()
    compiled = torch.compile(lambda: _paged(lambda score, b, h, q, kv: score * slopes[h]), backend="eager")
    with pytest.raises(Exception, match=r"shape \(4,\) records gradients"):
        compiled()


@pytest.mark.nightly
def test_a_profiler_goes_on():
    slopes = torch.ones(2, requires_grad=True)
    profile = cProfile.Profile()
    profile.enable()
    try:
        nl.attention(*tensors((1, 2, 8, 8)), score_mod=lambda s, b, h, q, kv: s * slopes[h])
        torch.ones(1).tolist()
    finally:
        profile.disable()
    assert any("tolist" in str(entry.code) for entry in profile.getstats())
