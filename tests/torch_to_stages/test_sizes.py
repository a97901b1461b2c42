"""`from_torch` with sizes that have a name: one kernel at all their values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, TileError
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.pipeline import for_sizes
from neptune_lab.pipeline.position_reach import reach

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, M = nl.dim("n"), nl.dim("m")
SIZES = ((1, 1), (2, 3), (7, 65), (64, 128), (130, 99), (257, 515))


def norm(x: Any, w: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    mask = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device))
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), -1) @ v


def alibi(q: Any, k: Any, v: Any) -> Any:
    i = torch.arange(q.shape[-2], device=q.device)[:, None]
    j = torch.arange(k.shape[-2], device=q.device)
    return torch.softmax(q @ k.mT * 0.25 - 0.1 * (i - j).abs(), -1) @ v


HEADS = (1, 2, 64, 16)
FUNCTIONS = {
    "both sizes of a norm": (norm, ((8, 64), (64,)), ({0: M, 1: N}, {0: N})),
    "causal attention": (attention, (HEADS,) * 3, ({2: N},) * 3),
    "rows of a norm": (norm, ((8, 64), (64,)), ({-2: N}, None)),
    "columns of a softmax": (softmax, ((8, 64),), ({1: N},)),
    "alibi with two lengths": (alibi, (HEADS,) * 3, ({2: N}, {2: M}, {2: M})),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", [name if n < 2 else pytest.param(name, marks=pytest.mark.nightly) for n, name in enumerate(FUNCTIONS)]
)
def test_one_kernel_at_all_sizes(name):
    function, shapes, sizes = FUNCTIONS[name]
    op = nl.from_torch(function, *map(torch.zeros, shapes), dynamic_shapes=sizes)
    kernel = nl.compile(op)
    assert set(kernel.least.values()) == {1}
    for n, m in SIZES:
        given = []
        for shape, own in zip(shapes, sizes, strict=True):
            extents = list(shape)
            for dim, size in (own or {}).items():
                extents[dim] = {"n": n, "m": m}[size.name]
            given.append(torch.randn(extents, device=DEVICE))
        wanted = function(*(tensor.double() for tensor in given))
        assert (kernel(*given) - wanted).abs().max() < 1e-5


def test_the_operator_shows_the_names():
    op = nl.from_torch(norm, torch.zeros(8, 64), torch.zeros(64), dynamic_shapes={"x": {0: nl.dim("rows", 100)}})
    assert [str(tensor) for tensor in (*op.inputs, *op.outputs)] == [
        "x: float32[rows, 64]",
        "w: float32[64]",
        "out: float32[rows, 64]",
    ]
    assert op.at(rows=7).inputs[0].shape == (7, 64)
    assert op.at().inputs[0].shape == (100, 64)
    assert op.python[0].lines  # the user's lines stay


def many_rows(x: Any) -> Any:
    return torch.softmax(x, -1) if x.shape[0] < 100_000 else torch.softmax(x, -1) * 2


def joined(x: Any) -> Any:
    return torch.softmax(torch.cat([x, x], -1), -1)


def ahead(x: Any) -> Any:
    return torch.softmax(x + torch.arange(x.shape[-1], dtype=torch.float32).cumsum(0), -1)


def scaled(x: Any) -> Any:
    return torch.softmax(x * math.sqrt(x.shape[-1]), -1)


HELD = torch.randn(64)


def with_held(x: Any) -> Any:
    return torch.softmax(x + HELD, -1)


def halves(x: Any) -> Any:
    return x[:, : x.shape[1] // 2].sum(1)


@pytest.mark.parametrize(
    ("function", "sizes", "match"),
    [
        (
            many_rows,
            ({0: N},),
            r"the size n: it depends on whether n < 100000, in .*test_sizes.py, line \d+: `return ",
        ),
        (joined, ({1: N},), "dimension 1 of out is 16384 at n=8192"),
        (ahead, ({1: N},), r"holds the tensor cumsum of shape \(4096,\), which is another one at n=8192"),
        (scaled, ({1: N},), r"the size n: it takes n as a number of Python, .*, in .*test_sizes.py, line"),
        (halves, ({1: N},), r"the size n: it depends on whether \(n // 2\) <= n"),
        (with_held, ({1: N},), "control flow depends on the size n: .*must match the size of tensor b"),
        (softmax, ({2: N},), r"expected a dimension of the shape \(8, 64\)"),
        (softmax, ({0: 5},), "has 0: 5; expected a dimension"),
        (softmax, ({},), "dynamic_shapes names no size"),
        (softmax, ({0: N}, {0: N}), "2 entries, for 1 arguments"),
        (softmax, {"y": {0: N}}, "names the argument 'y'; the arguments are x"),
        (softmax, ({0: nl.dim("n", 8), 1: nl.dim("n", 9)},), "has hints 9 and 8"),
    ],
)
def test_refusals_name_the_cause(function, sizes, match):
    with pytest.raises(DefinitionError, match=match):
        nl.from_torch(function, torch.zeros(8, 64), dynamic_shapes=sizes)


def test_sizes_whose_hints_make_a_huge_tensor_are_refused():
    """(`dynamic=True` then names fewer of them.)"""
    with pytest.raises(DefinitionError, match=r"at n=4096, m=4096, l=4096 .* more than 4 GiB"):
        nl.from_torch(softmax, torch.ones(2, 3, 4), dynamic_shapes=({0: N, 1: M, 2: nl.dim("l")},))


def test_draw_is_for_one_shape():
    with pytest.raises(DefinitionError, match="draw makes arrays of one shape"):
        nl.from_torch(softmax, torch.zeros(8, 64), draw=lambda rng: (), dynamic_shapes=({0: N},))


def test_rows_of_a_table_tell_no_positions_from_each_other():
    """Whether an index of 64 bits fits 32 is asked with large numbers, and of what is read only."""
    op = nl.from_torch(lambda ids, table: table[ids].softmax(-1), torch.zeros(8, dtype=torch.int64), torch.zeros(9, 4))
    assert max(reach(block.body.value) for block in blocks(op.program)) == 1


def test_a_refusal_of_the_chosen_schedule_names_a_way_around(monkeypatch: pytest.MonkeyPatch):
    def refused(*_: Any, **__: Any) -> Any:
        raise TileError("a tile is refused", help="split a loop")

    monkeypatch.setattr(for_sizes, "lower", refused)
    op = nl.from_torch(softmax, torch.zeros(8, 64), dynamic_shapes=({0: N},))
    with pytest.raises(TileError, match="a tile is refused\n  help: compile it for one size; or split a loop"):
        nl.compile(op)
