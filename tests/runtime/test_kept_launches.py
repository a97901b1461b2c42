"""Launches with descriptors are kept by all that their arguments depend on: addresses, sizes and the stream."""

from __future__ import annotations

import random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from neptune_lab.runtime import kept_launches, torch_state
from neptune_lab.runtime.direct import Compiled, direct
from neptune_lab.runtime.kept_launches import encoding

META = {"swizzle": 3, "elem_size": 2, "elem_type": 9, "block_size": [1, 64, 64], "fp4_padded": False}

MODULE = """
import torch

def entry(q, k):
    n = q.shape[1]
    m = k.shape[0]
    sums = torch.empty((4, n), dtype=torch.float32, device=q.device)
    out = torch.empty((4, n, 8), dtype=torch.float16, device=q.device)
    together = _heads_together(n, 4, 0)
    first[((n + 7) // 8, 4)](
        Described(q, [4, n, 8], [n * 8, 8, 1], [1, 8, 8], LAYOUT),
        Described(k, [m, n * 8], [n * 8, 1], [8, 8], LAYOUT),
        Described(out, [4, n, 8], [n * 8, 8, 1], [1, 8, 8], LAYOUT),
        sums, n, together, num_warps=4)
    second[(4,)](Described(sums, [4, n], [n, 1], [4, 8], LAYOUT), out)
    return out
"""


class Made:
    """Triton's class of a descriptor, as far as `make_tensordesc_arg` reads it."""

    padding, round_f32_to_tf32 = "zero", False

    def __init__(self, base: Any, shape: Any, strides: Any, block: Any, layout: Any) -> None:
        assert base.data_ptr() % 16 == 0
        self.base, self.shape, self.strides, self.block, self.layout = base, shape, strides, block, layout


class NaNs(Made):
    padding = "nan"


class CudaLauncher:
    """As Triton's: `launch` makes the parts of descriptors, and calls the function in C (`launcher`)."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, False
    arg_annotations, kernel_signature = ["kinds"], b"signature"

    def __init__(self, seen: list[Any], metas: list[Any]) -> None:
        def launcher(*arguments: Any) -> None:
            seen.append(arguments)

        tensordesc_meta = metas

        def inner(*arguments: Any) -> Any:
            raise AssertionError((launcher, tensordesc_meta, "is not called by a direct launcher"))

        self.launch = inner


@pytest.fixture
def gpu(monkeypatch):
    """A GPU without one: `seen` are the launches, `encoded` the descriptors that Triton's function encoded."""
    from triton.backends.nvidia import driver
    from triton.runtime.driver import driver as active

    world = SimpleNamespace(seen=[], encoded=[], stream=77, together=[], slow=[])

    def encode(*given: Any) -> Any:
        world.encoded.append(given)
        return ("descriptor", *(tuple(g) if isinstance(g, list) else g for g in given))

    names = "fill_tma_descriptor", "fill_tma_descriptor_tiled"  # Triton 3.6 and 3.7
    utils = SimpleNamespace(**dict.fromkeys(names, encode))
    shown = SimpleNamespace(utils=utils, get_current_stream=lambda index: world.stream)
    monkeypatch.setattr(type(active), "active", property(lambda self: shown))
    monkeypatch.setattr(triton.runtime, "driver", active)
    monkeypatch.setattr(driver, "CudaLauncher", CudaLauncher)
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    monkeypatch.setattr(torch_state, "current_gpu", lambda: None)
    return world


def launcher(
    world: Any, maker: Any = Made, metas: tuple[Any, ...] = (META, META, META), heads: str = "_heads_together"
) -> Any:
    module = ModuleType("module")

    def together(blocks: int, heads: int, programs: int) -> int:
        world.together.append(blocks)
        return blocks % 3 + 1

    vars(module).update({"Described": maker, "LAYOUT": "layout", heads: together})
    kernels = {}
    for name, own, options in (("first", list(metas), {"num_warps": 4}), ("second", [META], {})):
        kernel = SimpleNamespace(run=CudaLauncher(world.seen, own), function=name, packed_metadata=(4, 1, 0))
        kernels[name] = Compiled(kernel, options)

    def slow(*tensors: Any) -> str:
        world.slow.append(tensors)
        return "slow"

    made = direct(MODULE.replace("_heads_together", heads), "entry", module, kernels, torch.device("cpu"), slow)
    assert made is not None
    return made


def wanted(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, seen: tuple[Any, ...], stream: int) -> tuple[Any, ...]:
    """The arguments of the first launch, computed from the tensors."""
    n, m = q.shape[1], k.shape[0]

    def described(address: int, shape: list[int], strides: list[int], meta: dict[str, Any]) -> list[Any]:
        kind = {8: 10, 9: 8, 10: 9}.get(meta["elem_type"], meta["elem_type"])
        own = tuple(shape), tuple(strides)
        return [("descriptor", address, 3, 2, kind, tuple(meta["block_size"]), *own, 0), *shape, *strides]

    return (
        (n + 7) // 8, 4, 1, stream, "first", False, False, None, None, (4, 1, 0), None, None, None,
        *described(q.data_ptr(), [4, n, 8], [n * 8, 8, 1], META),
        *described(k.data_ptr(), [m, n * 8], [n * 8, 1], META),
        *described(out.data_ptr(), [4, n, 8], [n * 8, 8, 1], META),
        seen[-3], n, n % 3 + 1,
    )  # fmt: skip


def drawn(n: int, m: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4, n, 8, dtype=torch.float16), torch.zeros(m, n * 8, dtype=torch.float16)


@pytest.mark.parametrize("heads", ["_heads_together", "_heads_in_order"])
def test_a_launch_gets_the_arguments_of_its_own_tensors(gpu, heads: str):
    """Other addresses, lengths and streams in any order: what is kept is never that of another tensor."""
    launch, draw = launcher(gpu, heads=heads), random.Random(0)
    pool = [drawn(n, m) for n in (5, 6, 7, 64) for m in (1, 2) for _ in range(3)]
    kept = []  # (so that results have other addresses)
    for _ in range(300):
        q, _ = draw.choice(pool)
        other = draw.choice([k for p, k in pool if p.shape == q.shape])  # (another length of k)
        gpu.stream = draw.choice((77, 78))
        out = launch(q, other)
        first, second = gpu.seen[-2:]
        assert first == wanted(q, other, out, first, gpu.stream)
        sums, n = first[-3], q.shape[1]
        of_sums = "descriptor", sums, 3, 2, 8, (1, 64, 64), (4, n), (n, 1), 0
        assert second[13:] == (of_sums, 4, n, n, 1, out.data_ptr())
        kept = [*kept, out][-draw.randint(1, 9) :]
    assert len(gpu.seen) == 600
    assert not gpu.slow


def test_lengths_at_one_address_are_told_apart(gpu):
    """Slices of one cache begin at one address, and so may results, where memory is used again."""
    launch = launcher(gpu)
    cache, other, sums, result = (torch.zeros(4, 640, dtype=torch.float32) for _ in range(4))
    launch.__globals__["_nl_made"] = lambda shape, strides, dtype: sums if len(shape) == 1 else result
    for n, m in ((5, 1), (5, 2), (6, 1), (5, 1), (7, 3), (6, 3), (5, 2)):
        q = cache.view(torch.float16).view(-1)[: 4 * n * 8].view(4, n, 8)
        k = other.view(torch.float16).view(-1)[: m * n * 8].view(m, n * 8)
        launch(q, k)
        assert gpu.seen[-2] == wanted(q, k, result, gpu.seen[-2], 77)
        assert gpu.seen[-1][14:18] == (4, n, n, 1)


def test_what_is_known_is_not_encoded_again(gpu, monkeypatch):
    launch = launcher(gpu)
    q, k = drawn(6, 2)
    memory = [torch.zeros(4 * 6 * 4), torch.zeros(4, 6, 8, dtype=torch.float16)]
    turns = iter(memory * 9)
    launch.__globals__["_nl_made"] = lambda *_: next(turns)
    for _ in range(4):
        launch(q, k)
    assert (len(gpu.encoded), gpu.together) == (8, [6, 6])  # (what came once is not kept)
    assert gpu.seen[0::2] == [gpu.seen[0]] * 4
    memory[1] = torch.zeros(4, 6, 8, dtype=torch.float16)
    turns = iter(memory * 9)
    launch(q, k)  # another address of the result
    assert (len(gpu.encoded), gpu.together) == (12, [6, 6, 6])
    gpu.stream = 5
    launch(q, k)
    assert gpu.seen[-1][3] == gpu.seen[-2][3] == 5


def test_a_full_table_is_emptied(gpu, monkeypatch):
    monkeypatch.setattr(kept_launches, "MOST", 3)
    launch = launcher(gpu)
    tables = [launch.__globals__[f"_nl_{n}_table"] for n in (0, 1)]
    given = [drawn(n, 1) for n in range(1, 12)]
    memory = [torch.zeros(4 * 99), torch.zeros(4, 99, 8, dtype=torch.float16)]
    launch.__globals__["_nl_made"] = lambda shape, strides, dtype: memory[len(shape) > 1]
    sizes = []
    for q, k in given:
        for _ in range(3):
            launch(q, k)
            assert gpu.seen[-2] == wanted(q, k, memory[1], gpu.seen[-2], 77)
        sizes.append(max(map(len, tables)))
    assert sizes[:5] == [1, 2, 3, 1, 2]
    assert max(sizes) == 3
    marks = launch.__globals__["_nl_0_seen"]
    assert 1 <= sum(marks) <= 4


@pytest.mark.parametrize("case", ["fp4", "parts", "NaN"])
def test_other_kinds_are_made_by_triton(gpu, case: str):
    """Descriptors that are passed in parts, of 4 bits, or that do not read zeros past the end."""
    metas: Any = {"fp4": ({**META, "fp4_padded": True},) * 3, "parts": (None,) * 3, "NaN": (META,) * 3}[case]
    launch = launcher(gpu, NaNs if case == "NaN" else Made, metas)
    for n in (8, 16, 8):
        q, k = drawn(n, 2)
        out = launch(q, k)
        arguments = gpu.seen[-2][13:]
        if case == "parts":
            assert arguments[0].data_ptr() == q.data_ptr()
            assert not isinstance(arguments[0], torch.Tensor)  # it would keep the tensor's memory
            assert arguments[1:7] == (4, n, 8, n * 8, 8, 1)
        else:
            place, shape, padding = arguments[0][1], arguments[0][6], arguments[0][-1]
            assert (place, padding) == (q.data_ptr(), int(case == "NaN"))
            assert shape == ((4, n, 16) if case == "fp4" else (4, n, 8))
        assert arguments[-2:] == (n, n % 3 + 1)
        assert out.shape == (4, n, 8)


def test_the_kind_is_what_triton_would_encode(gpu):
    from triton.backends.nvidia import driver

    encode, *found = encoding(META) or pytest.fail("it is encoded by hand")
    driver.make_tensordesc_arg(Made(torch.zeros(8), [4, 8], [8, 1], [1, 8], "layout"), META)
    _, swizzle, size, kind, block, *_ = gpu.encoded[-1]
    assert found == [swizzle, size, kind, block]
    assert encode(1) == ("descriptor", 1)
    assert encoding(None) is encoding({**META, "fp4_padded": True}) is None
