"""Launches by launch.c: what the driver is given, by functions of Python in its place."""

from __future__ import annotations

import ast
import ctypes
import shutil
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_uint, c_uint32, c_uint64, c_void_p
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from modules_by_path import module_at

from neptune_lab.runtime import native_launch as own
from neptune_lab.runtime.native_launch import Argument, built, native_launch

SMALL_BIT = 1 << 21


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        *((f"{of}_{axis}", c_uint) for of in ("grid", "block") for axis in "xyz"),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class World:
    """A driver: `launches` and `maps` are what it was given, `parameters` how a kernel's parameters are read."""

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.maps: list[Any] = []
        self.parameters: list[Any] = []
        self.second_word = 0  # of the descriptor that a launch got
        self.context, self.taken, self.code, self.version = 1, [], 0, 13020
        words = POINTER(c_uint64)
        self.functions = [
            CFUNCTYPE(c_int, POINTER(Config), c_void_p, POINTER(c_void_p), c_void_p)(self.launch),
            CFUNCTYPE(
                c_int,
                words,
                c_int,
                c_uint32,
                c_void_p,
                words,
                words,
                POINTER(c_uint32),
                POINTER(c_uint32),
                *[c_int] * 4,
            )(self.encode),
            CFUNCTYPE(c_int, POINTER(c_void_p))(self.current),
            CFUNCTYPE(c_int, c_void_p)(lambda context: self.taken.append(context) or 0),
            CFUNCTYPE(c_int, POINTER(c_void_p), c_int)(self.retain),
            CFUNCTYPE(c_int, c_int, POINTER(c_char_p))(self.named),
            CFUNCTYPE(c_int, POINTER(c_int))(self.versioned),
        ]

    def launch(self, config: Any, function: int, parameters: Any, extra: Any) -> int:
        if self.code:
            return self.code
        c = config[0]
        dependent = ctypes.cast(c.attributes, POINTER(c_int))[0] if c.count else None
        grid, block = (c.grid_x, c.grid_y, c.grid_z), (c.block_x, c.block_y, c.block_z)
        given = [
            ctypes.cast(parameters[n], POINTER(kind))[0] for n, kind in enumerate([*self.parameters, *[c_uint64] * 2])
        ]
        if self.maps:
            self.second_word = ctypes.cast(parameters[0], POINTER(c_uint64))[1]
        self.launches.append((function, grid, block, c.shared, c.stream, dependent, given))
        return 0

    def encode(self, made: Any, kind: int, rank: int, address: int, *rest: Any) -> int:
        shape, strides, block, ones, interleave, swizzle, promotion, fill = rest
        made[0], made[1] = address, SMALL_BIT | 5
        given = shape[:rank], strides[: rank - 1], block[:rank], ones[:rank]
        self.maps.append((address, kind, *given, (interleave, swizzle, promotion, fill)))
        return self.code

    def current(self, into: Any) -> int:
        into[0] = self.context
        return 0

    def retain(self, into: Any, device: int) -> int:
        into[0] = 40 + device
        return 0

    def named(self, code: int, into: Any) -> int:
        into[0] = b"out of something"
        return 0

    def versioned(self, into: Any) -> int:
        into[0] = self.version
        return 0

    def bind(self, module: ModuleType) -> None:
        module.bind(*(ctypes.cast(function, c_void_p).value for function in self.functions))


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A copy of the module, which has variables of its own."""
    found = built().__file__
    assert found is not None
    copy = tmp_path_factory.mktemp("native") / "neptune_launch.so"
    shutil.copy(found, copy)
    return module_at(copy)


@pytest.fixture
def world(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.bind(module)
    monkeypatch.setattr(own, "native", lambda: module)
    monkeypatch.setattr(own, "encoding", lambda meta: meta)
    return made


def kernel(*signature: str) -> Any:
    source = SimpleNamespace(signature=dict(enumerate(signature)))
    return SimpleNamespace(src=source, packed_metadata=(4, 1, 1000), function=0xABC)


RUN = SimpleNamespace(launch_cooperative_grid=False, launch_pdl=False)
PLAIN = [Argument("_p_q"), Argument("n"), Argument("m")]
META = (None, 3, 2, 6, [1, 64, 128])


def described(address: str, shape: str, strides: str) -> Argument:
    parts = ast.parse(f"f({shape}, {strides}, [1, 64, 128], LAYOUT)", mode="eval").body
    assert isinstance(parts, ast.Call)
    return Argument(address, SimpleNamespace(), parts.args)


def test_addresses_and_sizes(world: World):
    world.parameters = [c_uint64, c_int, c_uint64]
    made = native_launch(kernel("*fp16", "i32", "i64"), RUN, None, 0, PLAIN)
    assert made is not None
    launch, texts = made
    assert texts == ["_p_q", "n", "m"]
    launch(7, 2, 1, 0x55, (1 << 62) + 16, -3, 1 << 40)
    assert world.launches == [(0xABC, (7, 2, 1), (128, 1, 1), 1000, 0x55, None, [(1 << 62) + 16, -3, 1 << 40, 0, 0])]


def test_one_number_for_several_arguments_and_a_launch_after_another_kernel(world: World):
    world.parameters = [c_int, c_uint64]
    run = SimpleNamespace(launch_cooperative_grid=False, launch_pdl=True)
    made = native_launch(kernel("i32", "i64"), run, None, 0, [Argument("n"), Argument("n")])
    assert made is not None
    launch, texts = made
    assert texts == ["n"]
    launch(1, 1, 1, 0, 9)
    ((*_, stream, dependent, given),) = world.launches
    assert (stream, dependent, given) == (
        None,
        6,
        [9, 9, 0, 0],
    )  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


@pytest.mark.parametrize(("version", "rows", "bit"), [(13020, 50, SMALL_BIT), (13010, 50, 0), (13010, 600, SMALL_BIT)])
def test_descriptors(world: World, module: ModuleType, version: int, rows: int, bit: int):
    """Up to driver 13.1, a tensor below 128 KiB needs a bit of 0."""
    world.version = version
    world.bind(module)
    world.parameters = [c_uint64, *[c_int] * 3, *[c_uint64] * 3, c_int]
    given = [described("_p_q", "[3, n, 128]", "[n * 128, 128, 1]"), Argument("n")]
    made = native_launch(kernel("tensordesc<fp16[1, 64, 128],L>", "i32"), RUN, [META], 0, given)
    assert made is not None
    launch, texts = made
    assert texts == ["_p_q", "n", "n * 128"]
    launch(1, 1, 1, 0, 4096, rows, rows * 128)
    ((*_, arguments),) = world.launches
    assert arguments == [4096, 3, rows, 128, rows * 128, 128, 1, rows, 0, 0]
    encoded = 4096, 6, [128, rows, 3], [256, rows * 256], [128, 64, 1], [1, 1, 1], (0, 3, 2, 0)
    assert world.maps == [encoded]
    assert world.second_word == 5 | bit


def test_what_it_does_not_launch(world: World):
    sizes = [Argument("n")]
    other = kernel("i32")
    other.packed_metadata = (4, 2, 0)
    cooperative = SimpleNamespace(launch_cooperative_grid=True, launch_pdl=False)
    nan = described("_p_q", "[3, n, 128]", "[n * 128, 128, 1]")
    nan.maker.padding = "nan"
    tensor = described("_p_q", "[3, n, 128]", "[n * 128, 128, 1]")
    kind = "tensordesc<fp16[1, 64, 128],L>"
    assert native_launch(SimpleNamespace(), RUN, None, 0, sizes) is None
    assert native_launch(other, RUN, None, 0, sizes) is None  # clusters
    assert native_launch(kernel("i32"), cooperative, None, 0, sizes) is None
    assert native_launch(kernel("i32", "constexpr"), RUN, None, 0, sizes) is None
    assert native_launch(kernel("fp32"), RUN, None, 0, sizes) is None
    assert native_launch(kernel(kind), RUN, [META], 0, [nan]) is None
    assert native_launch(kernel(kind), RUN, [None], 0, [tensor]) is None  # passed in parts
    assert native_launch(kernel(kind), RUN, [(None, 3, 2, 6, [64, 128])], 0, [tensor]) is None  # of two axes
    assert native_launch(kernel("*fp16"), RUN, [META], 0, [tensor]) is None
    assert native_launch(kernel(*["i32"] * 200), RUN, None, 0, [Argument(f"n{i}") for i in range(200)]) is None


def test_errors_of_calls(world: World):
    made = native_launch(kernel("*fp16", "i32", "i64"), RUN, None, 0, PLAIN)
    assert made is not None
    launch, _ = made
    for wrong, error in (
        ((1, 1, 1, 0, 1, 2), TypeError),
        ((1, 1, 1, 0, 1, 2, None), TypeError),
        ((1, 1, 1, 0, 1, 1 << 31, 3), OverflowError),
        ((1, 1, 1, 0, 1 << 63, 2, 3), OverflowError),
        ((1 << 31, 1, 1, 0, 1, 2, 3), OverflowError),
        ((-1, 1, 1, 0, 1, 2, 3), OverflowError),
    ):
        with pytest.raises(error):
            launch(*wrong)
    launch(1, 0, 1, 0, 1, 2, 3)  # no programs
    assert world.launches == []
    world.code = 2
    with pytest.raises(RuntimeError, match="launching a kernel: out of something"):
        launch(1, 1, 1, 0, 1, 2, 3)
    given = described("_p_q", "[3, n, 128]", "[n * 128, 128, 1]")
    made = native_launch(kernel("tensordesc<fp16[1, 64, 128],L>"), RUN, [META], 0, [given])
    assert made is not None
    with pytest.raises(RuntimeError, match="encoding a tensor descriptor: out of something"):
        made[0](1, 1, 1, 0, 16, 5, 640)


def test_a_thread_without_a_context_gets_that_of_the_device(world: World):
    world.parameters = [c_int]
    made = native_launch(kernel("i32"), RUN, None, 3, [Argument("n")])
    assert made is not None
    world.context = 0
    made[0](1, 1, 1, 0, 5)
    assert (world.taken, len(world.launches)) == ([43], 1)


def test_without_a_compiler_triton_launches(monkeypatch: pytest.MonkeyPatch):
    def fails() -> ModuleType:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(own, "built", fails)
    own._native.cache_clear()
    try:
        assert native_launch(kernel("i32"), RUN, None, 0, [Argument("n")]) is None
    finally:
        own._native.cache_clear()
