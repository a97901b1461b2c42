"""Launches on a GPU: any alignment, stream and graph."""

from __future__ import annotations

import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention

pytestmark = pytest.mark.gpu


def scaled_dot_product(q, k, v):
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v.double()


@pytest.fixture(scope="module")
def decode():
    """Two kernels, with intermediates between them."""
    op = attention.full(batch=1, heads=4, q_len=1, kv_len=1024, head_dim=64)
    return nl.compile(op, "split_k_update")


def tensors(shift: int = 0):
    """Inputs whose addresses are `shift` elements past a multiple of 16 bytes."""
    made = []
    for length in (1, 1024, 1024):
        whole = torch.randn(4 * length * 64 + shift, dtype=torch.float16, device="cuda")
        made.append(whole[shift:].view(1, 4, length, 64))
    return made


def close(out, inputs):
    return (out.double() - scaled_dot_product(*inputs)).abs().max() < 2e-3


@pytest.mark.parametrize("shifts", [(0, 0), (0, 1, 0), (3, 0), (1, 2, 3)])
def test_any_alignment_at_any_launch(decode, shifts):
    for shift in shifts:
        inputs = tensors(shift)
        assert close(decode(*inputs), inputs)


def test_streams_do_not_share_intermediates(decode):
    inputs = [tensors() for _ in range(8)]
    streams = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    outs = []
    for given, stream in zip(inputs, streams, strict=True):
        with torch.cuda.stream(stream):
            outs.append(decode(*given))
    torch.cuda.synchronize()
    assert all(close(out, given) for out, given in zip(outs, inputs, strict=True))


def test_a_graph_replays_beside_other_launches(decode):
    inputs, others = tensors(), tensors()
    op = decode.as_torch_op()
    decode(*inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(*inputs)
    for _ in range(3):
        for tensor in inputs:
            tensor.normal_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        graph.replay()
        with torch.cuda.stream(side):
            other = decode(*others)
        torch.cuda.synchronize()
        assert close(out, inputs)
        assert close(other, others)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_tensors_say_which_gpu(decode):
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        inputs = [t.to(device) for t in tensors()]
        out = decode(*inputs)
        assert out.device == torch.device(device)
        assert close(out, inputs)
