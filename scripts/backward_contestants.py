"""The contestants of `backward_speed.py`: attention whose gradients are checked against float64."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from speed_checks import DEVICE, causal, worst

import neptune_lab as nl

# Rows of scores that are computed at a time in float64.
CHUNK = 2048
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-4}


@dataclass(frozen=True)
class Measured:
    """One contestant at one size: the largest relative error, microseconds and MiB (None: wrong, or on a CPU).

    Args:
        mib, step_mib: the peak of the backward pass, and of both passes.
        device_us, host_us: of the backward pass, by --parts.
    """

    size: str
    name: str
    error: float
    us: float | None = None
    tflops: float | None = None
    mib: int | None = None
    both_us: float | None = None
    note: str = ""
    step_mib: int | None = None
    device_us: float | None = None
    host_us: float | None = None


def contestants(every: Any, masked: bool, grouped: bool) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Forward passes by name; after q, k and v there may be a bias."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    (query, key, value), biases = every[:3], every[3:]
    length = query.shape[2]

    def biased(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + biases[0][h, q - kv + length - 1]

    score_mod: Any = biased if biases else None
    mask = causal if masked else None
    more: Any = {"mask_mod": mask, "enable_gqa": grouped}
    yield "ours", lambda: nl.attention(query, key, value, score_mod, **more)
    yield (
        "any_order",
        lambda: nl.attention(query, key, value, score_mod, **more, kernel_options={"deterministic": False}),
    )
    if DEVICE == "cpu":
        return
    backends = (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION))
    for name, backend in () if score_mod else backends:

        def attend(backend: Any = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(query, key, value, is_causal=masked, enable_gqa=grouped)

        yield name, attend
    blocks = create_block_mask(causal, None, None, length, length, device=DEVICE) if masked else None
    dynamo: Any = torch._dynamo.config
    dynamo.recompile_limit = 64  # (of sizes in one process)
    flex = torch.compile(flex_attention, dynamic=False)
    yield "flex", lambda: flex(query, key, value, score_mod, block_mask=blocks, enable_gqa=grouped)


def expected(every: Any, given: torch.Tensor, masked: bool) -> tuple[torch.Tensor, ...]:
    """The gradients of the first key head in float64, and of the bias of its query heads if there is one sample."""
    group, length = every[0].shape[1] // every[1].shape[1], every[0].shape[2]
    heads = [t.detach()[:1, :n].double().requires_grad_() for t, n in zip(every[:3], (group, 1, 1), strict=True)]
    if len(every) > 3:
        heads.append(every[3].detach()[:group].double().requires_grad_())
    q, k, v, *bias = heads
    keys = torch.arange(length, device=DEVICE)
    sums = [torch.zeros_like(head) for head in heads]
    for start in range(0, length, CHUNK):
        rows = keys[start : start + CHUNK, None]
        scores = q[:, :, start : start + CHUNK] @ k.mT * q.shape[-1] ** -0.5
        if bias:
            scores = scores + bias[0][:, rows - keys + length - 1]
        if masked:
            scores = scores.masked_fill(rows < keys, -torch.inf)
        part = torch.autograd.grad(scores.softmax(-1) @ v, heads, given[:1, :group, start : start + CHUNK].double())
        sums = [total + more for total, more in zip(sums, part, strict=True)]
    return tuple(sums if every[0].shape[0] == 1 else sums[:3])


@dataclass(frozen=True)
class Checked:
    """A contestant whose gradients are right: its passes, the largest relative error, and MiB (0 on a CPU): the peak of
    the backward pass, and of both."""

    name: str
    backward: Callable[[], Any]
    both: Callable[[], Any]
    error: float
    mib: int
    step_mib: int


def checked(
    size: str, name: str, attend: Callable[[], torch.Tensor], every: Any, given: torch.Tensor, wanted: Any
) -> Checked | Measured:
    """The contestant, or what is wrong with it."""
    try:
        out = attend()
        found = torch.autograd.grad(out, every, given, retain_graph=True)
    except Exception as refused:  # noqa: BLE001  # peers fail in ways of their own
        return Measured(size, name, float("nan"), note=f"{type(refused).__name__}: {refused}".splitlines()[0][:150])
    errors: list[float] = []
    for n, (ours, theirs) in enumerate(zip(found, wanted, strict=False)):
        same = ours[: theirs.shape[0]] if n > 2 else ours[:1, : theirs.shape[1]]
        errors.append(float((same.double() - theirs).norm() / theirs.norm()))
    if not worst(errors) <= LIMITS[given.dtype]:
        return Measured(size, name, worst(errors), note="WRONG")

    def backward() -> Any:
        return torch.autograd.grad(out, every, given, retain_graph=True)

    def both() -> Any:
        return torch.autograd.grad(attend(), every, given)

    del found
    return Checked(name, backward, both, worst(errors), peak(backward), peak(both))


def peak(call: Callable[[], Any]) -> int:
    """MiB that a call holds at most above what is allocated around it, the most of a few calls; 0 on a CPU."""
    if DEVICE == "cpu":
        return 0
    found: list[int] = []
    for _ in range(3):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        around = [torch.cuda.memory_allocated()]
        call()
        torch.cuda.synchronize()
        highest = torch.cuda.max_memory_allocated()
        # (another thread, and the collector of cycles, may free memory of earlier calls during this one)
        gc.collect()
        around.append(torch.cuda.memory_allocated())
        found.append((highest - min(around)) >> 20)
    return max(found)


@dataclass(frozen=True)
class Ready:
    """The contestants of a size, compiled and checked; `found`: what is wrong with those that are not among them."""

    size: str
    right: list[Checked]
    found: list[Measured]


def ready(size: str, dtype: torch.dtype, only: list[str]) -> Ready:
    """Compiles and checks the contestants of a size."""
    masked, biased = "c" in size, "b" in size
    batch, heads, length, width = size.rstrip("cb").split("x")
    queries, _, keys = heads.partition("/")
    counts = int(queries), int(keys or queries), int(keys or queries)
    every = [
        torch.randn(int(batch), n, int(length), int(width), device=DEVICE, dtype=dtype).requires_grad_() for n in counts
    ]
    given = torch.randn_like(every[0])
    if biased:
        every.append(torch.randn(counts[0], 2 * int(length) - 1, device=DEVICE).requires_grad_())
    wanted = expected(every, given, masked)
    right: list[Checked] = []
    found: list[Measured] = []
    for name, attend in contestants(every, masked, counts[0] != counts[1]):
        if name in only:
            one = checked(size, name, attend, every, given, wanted)
            if isinstance(one, Measured):
                found.append(one)
            else:
                right.append(one)
    return Ready(size, right, found)
