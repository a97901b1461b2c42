"""Reductions in a chain that the forward pass keeps are copied, so that the chain is rolled in one loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.operators import training
from neptune_lab.operators.reverse_mode.stages import stages_of

ROWS, COLUMNS = 300, 9000

CHAINS: dict[str, Callable[..., torch.Tensor]] = {
    "cross entropy": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "log-sum-exp": lambda x: torch.logsumexp(x, -1),
    "mean": lambda x, t: F.cross_entropy(x, t),
}


def inputs(name: str, rows: int, columns: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows, columns, generator=generator)
    labels = torch.randint(0, columns, (rows,), generator=generator)
    return [x] if name == "log-sum-exp" else [x, labels]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CHAINS)
def test_the_row_is_read_once(name: str):
    """A row that no tile holds is read in one loop, which makes the result and what is kept."""
    passes = training(nl.from_torch(CHAINS[name], *inputs(name, ROWS, COLUMNS)))
    kernel = nl.compile(passes.forward, "rolling_update", block_kv=512)
    heads = [line for line in kernel.triton.text.splitlines() if line.startswith("def function_forward_")]
    readers = [head for head in heads if "(x_ptr" in head]
    assert len(readers) == 1
    kept = {stage.name: stage for stage in stages_of(passes.forward.program)}
    assert all(kept[name].reducer is None for name in passes.kept if name.endswith(("_max", "_sum")))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CHAINS)
def test_numbers_stay(name: str):
    args = inputs(name, 5, 37)
    passes = training(nl.from_torch(CHAINS[name], *args))
    assert nl.compile(passes.forward, block_kv=16).relative_error() < 1e-5
    attend = nl.compile(nl.from_torch(CHAINS[name], *args)).with_gradients()
    own, wide = args[0].clone().requires_grad_(), args[0].double().requires_grad_()
    attend(own, *args[1:]).sum().backward()
    CHAINS[name](wide, *args[1:]).sum().backward()
    torch.testing.assert_close(own.grad, wide.grad, check_dtype=False, rtol=1e-5, atol=1e-6)


def test_a_reduction_without_a_chain_is_a_result_itself():
    x, w = torch.empty(6, 40), torch.empty(40)
    forward = training(nl.from_torch(lambda x, w: F.rms_norm(x, (40,), w, 1e-6), x, w)).forward
    made = {stage.name: stage for stage in stages_of(forward.program)}
    assert "sum" in {stage.reducer for stage in made.values() if stage.name in forward.program.outputs}
    assert not any(name.endswith("_rolled") for name in made)
