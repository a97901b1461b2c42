"""Data-parallel training with `attention`: two processes over gloo have the gradients of one process."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

STEPS = 2


class Model(torch.nn.Module):
    """A projection, attention whose mod reads a parameter, and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(8, 48), torch.nn.Linear(16, 8)
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import neptune_lab as nl

        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        slopes = self.slopes
        out = nl.attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask_mod=lambda b, h, i, j: i >= j)
        return self.out(out.transpose(1, 2).flatten(2))


def _trained(model: Any, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def _batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 12, 8, generator=generator) for _ in range(STEPS)]


def _made() -> Model:
    torch.manual_seed(0)
    return Model()


def _process(rank: int, port: int, kind: str, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        half = [x[2 * rank : 2 * rank + 2] for x in _batches()]
        if kind == "ddp":
            made = _trained(torch.nn.parallel.DistributedDataParallel(_made()), half)
        else:
            from torch.distributed.fsdp import fully_shard

            model = _made()
            fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
            made = [p.full_tensor() for p in _trained(model, half)]  # type: ignore[attr-defined]
        if rank == 0:
            results.put([p.numpy() for p in made])
    finally:
        dist.destroy_process_group()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["ddp", pytest.param("fsdp", marks=pytest.mark.nightly)])
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_train_as_one(kind: str):
    wanted = _trained(_made(), _batches())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    mp.start_processes(_process, (port, kind, results), nprocs=2, start_method="spawn")
    for ours, theirs in zip(results.get(), wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs, rtol=1e-4, atol=1e-6)
