"""Triton's interpreter does no work twice, and is afterwards what it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.operators import attention, norms
from neptune_lab.runtime.device import interpreting
from neptune_lab.runtime.interpreter import lean_interpreter

pytestmark = pytest.mark.skipif(not interpreting(), reason="kernels run on the GPU here")


def patches(kernel: nl.Kernel, monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the interpreter looked through a module's names in one launch, by the module's globals."""
    from triton.runtime import interpreter

    found: Counter[int] = Counter()
    patch = interpreter._patch_lang

    def counted(function: Any) -> Any:
        found[id(function.__globals__)] += 1
        return patch(function)

    with monkeypatch.context() as context:
        context.setattr(interpreter, "_patch_lang", counted)
        assert kernel.relative_error() < 1e-3
        assert interpreter._patch_lang is counted
    return found


def test_once_per_module_whatever_it_calls(monkeypatch: pytest.MonkeyPatch):
    kernel = nl.compile(attention.causal(heads=2, seq=48, head_dim=16), block_q=16, block_kv=16)
    found = patches(kernel, monkeypatch)
    assert set(found.values()) == {1}
    assert 1 <= len(found) <= 3


def test_again_for_each_kernel_of_a_module(monkeypatch: pytest.MonkeyPatch):
    op = attention.causal(heads=2, seq=48, head_dim=16)
    kernel = nl.compile(op, "split_k_update", block_q=16, block_kv=16, config=nl.SplitKConfig(splits=3))
    assert kernel.source.count("@triton.jit") > 1
    assert max(patches(kernel, monkeypatch).values()) == 2


def test_no_integer_is_computed_twice_for_an_assertion_that_is_dropped(monkeypatch: pytest.MonkeyPatch):
    """In debug mode it is not dropped, and so it is computed."""
    from triton.runtime import interpreter

    builder: Any = interpreter.interpreter_builder
    kernel = nl.compile(norms.l2_norm(8, 40))
    asked: list[bool] = []
    check = type(interpreter.interpreter_semantic).binary_op_sanitize_overflow_impl

    def looked(semantic: Any, *arguments: Any) -> None:
        asked.append(semantic.builder.options.sanitize_overflow)
        check(semantic, *arguments)

    monkeypatch.setattr(type(interpreter.interpreter_semantic), "binary_op_sanitize_overflow_impl", looked)
    before = builder.options
    assert kernel.relative_error() < 1e-3
    assert builder.options is before
    assert set(asked) == {False}
    asked.clear()
    monkeypatch.setattr(builder, "options", replace(before, debug=True))
    assert kernel.relative_error() < 1e-3
    assert set(asked) == {True}


def test_the_end_of_a_loop_is_a_number_whatever_triton_makes_of_it(monkeypatch: pytest.MonkeyPatch):
    """Triton 3.6 takes `int` of an array of one element, which NumPy 2.5 refuses."""
    from triton.language import core
    from triton.runtime import interpreter

    def refused(tensor: Any) -> int:
        raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

    patch = interpreter._patch_lang

    def as_of_3_6(function: Any) -> Any:
        scope = patch(function)
        scope.set_attr(core.tensor, "__index__", refused)
        return scope

    monkeypatch.setattr(interpreter, "_patch_lang", as_of_3_6)
    kernel = nl.compile(attention.causal(heads=2, seq=48, head_dim=16), block_q=16, block_kv=16)
    assert kernel.relative_error() < 1e-3


def test_every_dtype_is_what_triton_makes_of_it():
    """Alone, in a block, and as what a pointer points to; a second time as the first."""
    import triton.language as tl
    from triton.runtime import interpreter

    look_up = interpreter._get_np_dtype
    scalars = [tl.dtype(name) for name in tl.dtype.SINT_TYPES + tl.dtype.UINT_TYPES + tl.dtype.FP_TYPES]
    pointers = [tl.pointer_type(scalar) for scalar in scalars]
    every = [*scalars, *pointers, *(tl.block_type(t, [16]) for t in (*scalars, *pointers))]
    wanted = [look_up(t) for t in every]
    with lean_interpreter():
        assert interpreter._get_np_dtype is not look_up
        assert [interpreter._get_np_dtype(t) for t in every] == wanted
        assert [interpreter._get_np_dtype(t) for t in reversed(every)] == wanted[::-1]
    assert interpreter._get_np_dtype is look_up


def test_blocks_and_tensors_are_described_as_triton_does():
    """The first of a shape, and those after it; of scalars, of what pointers point to, and without a shape."""
    import triton.language as tl

    shapes: list[Any] = [[16], [16, 32], tl.tuple([32, 16]), [tl.constexpr(16), tl.constexpr(32)]]
    scalars = [tl.float32, tl.int1, tl.pointer_type(tl.float16)]

    def described() -> list[Any]:
        blocks = [tl.block_type(scalar, shape) for scalar in scalars for shape in shapes]
        tensors = [tl.tensor(object(), of) for of in (*blocks, *scalars)]
        handles = {id(tensor.handle) for tensor in tensors}
        assert len(handles) == len(tensors)
        of_blocks = [(str(b), b.name, [*b.shape], b.numel, b.element_ty, b.with_element_ty(tl.int8)) for b in blocks]
        of_tensors = [(str(t), [n.value for n in t.shape], t.numel.value, t.type, t.dtype) for t in tensors]
        return [of_blocks, of_tensors, [{*vars(t)} for t in tensors], [{*vars(b)} for b in blocks]]

    before = tl.block_type.__init__, tl.tensor.__init__
    wanted = described()
    with lean_interpreter():
        assert tl.block_type.__init__ is not before[0]
        assert described() == wanted
        assert described() == wanted
    assert (tl.block_type.__init__, tl.tensor.__init__) == before


def test_two_blocks_meet_as_triton_has_them_meet():
    """Of one shape, of other numbers of dimensions, along dimensions of 1, and a block and a scalar."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, interpreter_semantic

    def block(*shape: int) -> Any:
        kind = tl.block_type(tl.float32, list(shape)) if shape else tl.float32
        numbers = np.arange(np.prod(shape, dtype=int), dtype=np.float32)
        return tl.tensor(TensorHandle(numbers.reshape(shape or (1,)), tl.float32), kind)

    def met() -> list[Any]:
        pairs = [((4, 2), (4, 2)), ((2,), (4, 2)), ((4, 1), (1, 2)), ((4, 2), ()), ((), (4, 2)), ((), ())]
        both = [interpreter_semantic.broadcast_impl_value(block(*a), block(*b)) for a, b in pairs]
        return [(str(t.type), t.handle.data.tolist()) for pair in both for t in pair]

    before = type(interpreter_semantic).broadcast_impl_value
    wanted = met()
    with lean_interpreter():
        assert type(interpreter_semantic).broadcast_impl_value is not before
        assert met() == wanted
        with pytest.raises(ValueError, match="incompatible dimensions"):
            interpreter_semantic.broadcast_impl_value(block(4), block(2))
    assert type(interpreter_semantic).broadcast_impl_value is before


def test_only_memory_of_a_device_is_copied_back(monkeypatch: pytest.MonkeyPatch):
    from triton.runtime import interpreter

    executor: Any = interpreter.GridExecutor
    here, elsewhere = torch.ones(2), torch.ones(2, device="meta")
    asked: list[Any] = []

    def spy(_: Any, args: Any, *more: Any) -> None:
        asked.append(args)

    monkeypatch.setattr(executor, "_restore_args_dev", spy)
    with lean_interpreter():
        for args in ((here, 3, (here,)), (3, elsewhere), ((None, elsewhere),)):
            executor._restore_args_dev(None, args, args, {}, {})
    assert executor._restore_args_dev is spy
    assert len(asked) == 2


def test_triton_language_is_restored():
    import triton.language as tl

    def state() -> dict[str, Any]:
        names = {name: getattr(tl, name) for name in ("load", "store", "arange", "dot", "reduce", "range", "where")}
        of_tensors = ("T", "__bool__", "__index__")
        return names | {name: getattr(tl.tensor, name, None) for name in of_tensors}

    before = state()
    kernel = nl.compile(norms.l2_norm(8, 40))
    for _ in range(2):
        assert kernel.relative_error() < 1e-3
    assert state() == before


def test_float32_is_rounded_to_bfloat16():
    made = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (8, 128), generator=made, dtype=torch.int64).to(torch.int32)
    bits[0, :4] = torch.tensor([0x3F808000, 0x3F818000, 0x7F7FFFFF, 1])  # two ties, and numbers at the ends
    given = bits.view(torch.float32)
    given[1, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    kernel = nl.compile(nl.from_torch(lambda x: (x.bfloat16().float(), x.bfloat16()), given))
    for found, expected in zip(kernel(given), (given.bfloat16().float(), given.bfloat16()), strict=True):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(0), expected.nan_to_num(0))
