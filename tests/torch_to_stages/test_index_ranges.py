"""Integers that are out of range, as positions and labels of a call on the CPU: refused where PyTorch refuses them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.errors import LaunchError

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
# By name: a function, the integers that it takes, and one in place of the last that it refuses.
CASES: dict[str, tuple[Any, list[int], int]] = {
    "embedding": (lambda x, ids: F.embedding(ids, x), [0, 3], 4),
    "a negative id": (lambda x, ids: F.embedding(ids, x), [0, 3], -1),
    "index_select": (lambda x, ids: x.index_select(1, ids), [0, 5], -1),
    "gather": (lambda x, ids: x.gather(1, ids[:, None]), [0, 5, 1, 2], 6),
    "an index": (lambda x, ids: x[ids], [-4, 3], 4),
    "a second index": (lambda x, ids: x[:, ids.int()], [-6, 5], -7),
    "scatter_add": (lambda x, ids: x.scatter_add(1, ids[:, None], x * 2), [0, 5, 1, 2], -1),
    "index_add": (lambda x, ids: x.index_add(0, ids, x[:2]), [0, 3], 4),
    "an index that is written": (lambda x, ids: x.index_put((ids,), x[:1]), [-4, 3], -5),
    "a bag": (lambda x, ids: F.embedding_bag(ids, x, torch.tensor([0, 1])), [0, 1, 3], 4),
    "labels": (lambda x, ids: F.cross_entropy(x, ids), [0, 5, -100, 2], 6),
    "labels of nll_loss": (lambda x, ids: F.nll_loss(x, ids, ignore_index=9), [0, 5, 9, 2], -100),
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", CASES)
def test_integers_out_of_range_are_refused(name: str):
    function, right, wrong = CASES[name]
    ids = torch.tensor(right)
    op = nl.from_torch(function, X, ids)
    kernel = nl.compile(op, validate="none")
    torch.testing.assert_close(kernel(X, ids), function(X, ids), rtol=1e-5, atol=1e-5)
    ids[-1] = wrong
    with pytest.raises((IndexError, RuntimeError)):
        function(X, ids)
    for call in (kernel, kernel.with_gradients()):
        with pytest.raises(LaunchError, match=rf"argument ids holds {wrong}; expected .*test_index_ranges.py, line"):
            call(X, ids)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("held", "wrong"), [([[0, 4]], 4), ([[-1, 3]], -1)])
def test_indices_of_the_function_itself_are_refused_too(held: list[list[int]], wrong: int):
    for ids in (torch.tensor(held), None):  # from outside, and made inside

        def function(x, ids=ids):
            return x.scatter_add(0, torch.tensor(held) if ids is None else ids, x * 2)

        with pytest.raises(nl.errors.DefinitionError, match=f"indices hold {wrong}; expected integers from 0 to 3, in"):
            nl.from_torch(function, X)


@pytest.mark.nightly
def test_what_no_position_is_made_of_is_not_looked_at():
    """A part of the integers, and what is computed of them, may be positions while others are not."""
    ids = torch.tensor([1, 99, -99])
    for function in (lambda x, ids: x[ids[:1]], lambda x, ids: x[ids.clamp(0, 3)], lambda x, ids: x[:3] * ids[:, None]):
        kernel = nl.compile(nl.from_torch(function, X, ids), validate="none")
        torch.testing.assert_close(kernel(X, ids), function(X, ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [[0.5, 3.5], [-0.5, 3.0]])
def test_floats_are_compared_with_no_range(given: list[float]):
    """A conversion to integers rounds them towards 0."""
    rows = torch.tensor(given)
    kernel = nl.compile(nl.from_torch(lambda x, rows: F.embedding(rows.long(), x), X, rows), validate="none")
    torch.testing.assert_close(kernel(X, rows), X[rows.long()], rtol=1e-5, atol=1e-5)
