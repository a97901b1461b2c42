"""Triton's interpreter without repeated work.

When a kernel begins, the interpreter replaces functions of `triton.language` by its own, and at the kernel's end it
restores them. It also does so at every call of a device function (`tl.max`, `tl.sum`, helpers of our kernels), where it
lists all names of the modules and finds that all are replaced. That took a third of a launch. Here, it replaces them
once per kernel and module.

It also computes every sum and product of integers a second time, in int64, to assert that int32 does not overflow, and
then drops the assertion unless it debugs. That took a third of the rest.

After each kernel, it copies the memory of CPU tensors onto itself, also 4 GiB that a view spans. Here, it does not.

For each tensor that it makes, it writes a table of all dtypes, to look one of them up. Here, each is looked up once.
It also describes the tensor's shape anew, as text and as a tuple of constants, although a kernel has few shapes. Here,
each shape is described once.

For each operation on two blocks, it compares their shapes as tuples of its own constants, one by one. Here, as numbers.

It cuts float32 to bfloat16, which a GPU rounds to the nearest. Here, it rounds too, so that numbers are those of a GPU.

With Triton 3.6, a number that the program computes, such as the end of a loop, is `int` of an array of one element,
which NumPy 2.5 refuses. Here it is the element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np


class _PatchedOnce:
    """Triton's `_patch_lang`, which a kernel calls when it begins, and each device function that it calls."""

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        # By the globals of a function, which say what Triton replaces for it.
        self._patched: dict[int, Any] = {}

    def __call__(self, function: Any) -> Any:
        """An object whose `restore()` undoes the patches; Triton calls it only at the end of a kernel."""
        from triton.language import core

        key = id(function.__globals__)
        if key not in self._patched:
            self._patched[key] = scope = self._patch(function)
            if (set_attr := getattr(scope, "set_attr", None)) is not None:
                set_attr(core.tensor, "__index__", _number)
        return _Restored(self._patched, self._patched[key])


def _number(tensor: Any) -> int:
    """The integer that a tensor of one element holds."""
    return int(tensor.handle.data.item())


class _Restored:
    """Undoes the patches at the end of a kernel; the next kernel applies them again."""

    def __init__(self, patched: dict[int, Any], scope: Any) -> None:
        self._all, self._scope = patched, scope

    def restore(self) -> None:
        self._all.clear()
        self._scope.restore()


def _by_dtype(look_up: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Triton's `_get_np_dtype` with the answers for scalars kept; other types are made anew for each tensor."""
    from triton.language import core

    known: dict[str, Any] = {}

    def found(dtype: Any) -> Any:
        if type(dtype) is core.block_type:
            dtype = dtype.element_ty
        if type(dtype) is not core.dtype:
            return look_up(dtype)
        name = str(dtype.name)
        if name not in known:
            known[name] = look_up(dtype)
        return known[name]

    return found


def _rounding(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's `_convert_float`, which rounds float32 to the nearest bfloat16, of two the even one."""

    def converted(given: Any, from_dtype: Any, to_dtype: Any, mode: Any) -> Any:
        names = str(from_dtype.name), str(to_dtype.name)
        if names == ("bf16", "fp32"):
            return np.asarray(given).view(np.uint16).astype(np.uint32) << 16
        if names != ("fp32", "bf16") or getattr(mode, "name", "RTNE") != "RTNE":
            return convert(given, from_dtype, to_dtype, mode)
        floats = np.ascontiguousarray(given, np.float32)
        bits = floats.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(floats), (bits >> 16) | 0x40, rounded).astype(np.uint16).reshape(np.shape(given))

    return converted


def _numbers_of(shape: Any) -> tuple[Any, ...]:
    """The sizes of a shape: a list, a tuple or Triton's own tuple, of numbers or of constants."""
    return tuple([getattr(size, "value", size) for size in getattr(shape, "values", shape)])


@cache
def _blocks_once(describe: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """The constructor of `tl.block_type`, which gives blocks of one scalar type and shape the attributes of the first.

    Types of pointers are new objects in each launch, and their blocks are described as before.
    """
    from triton.language import core

    known: dict[Any, dict[str, Any]] = {}

    def described(block: Any, element_ty: Any, shape: Any) -> None:
        if type(element_ty) is not core.dtype:
            describe(block, element_ty, shape)
            return
        key = str(element_ty.name), _numbers_of(shape)
        found = known.get(key)
        if found is None:
            describe(block, element_ty, shape)
            found = known[key] = dict(vars(block))
        vars(block).update(found)

    return described


@cache
def _tensors_once(make: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """The constructor of `tl.tensor`, which gives tensors of one shape the shape and the size of the first."""
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def made(tensor: Any, handle: Any, type: Any) -> None:
        key = _numbers_of(type.shape) if type.is_block() else ()
        found = known.get(key)
        if found is not None:
            vars(tensor).update(found, handle=handle, type=type, dtype=type.scalar)
            return
        make(tensor, handle, type)
        if set(vars(tensor)) == {"handle", "type", "dtype", "shape", "numel"}:  # (as in the versions that we know)
            known[key] = {"shape": tensor.shape, "numel": tensor.numel}

    return made


@cache
def _broadcast_by_numbers(broadcast: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Triton's `broadcast_impl_value`, which leaves two blocks of one shape as they are."""

    def broadcasted(semantic: Any, left: Any, right: Any) -> Any:
        own, other = left.type, right.type
        if own.is_block() and other.is_block() and _numbers_of(own.shape) == _numbers_of(other.shape):
            return left, right
        return broadcast(semantic, left, right)

    return broadcasted


def _on_host(args: tuple[Any, ...]) -> bool:
    """Whether every tensor, also in tuples and descriptors, is in the host's memory."""
    for arg in args:
        if isinstance(arg, tuple) and not _on_host(arg):
            return False
        device = getattr(getattr(arg, "base", arg), "device", None)
        if getattr(device, "type", "cpu") != "cpu":
            return False
    return True


def _copied_back(restore: Callable[..., None]) -> Callable[..., None]:
    """Triton's `_restore_args_dev`, for tensors that were copied to the host."""

    def restored(executor: Any, args: Any, copies: Any, named: dict[str, Any], named_copies: Any) -> None:
        if not _on_host((*args, *named.values())):
            restore(executor, args, copies, named, named_copies)

    return restored


@contextmanager
def lean_interpreter() -> Iterator[None]:
    """Inside, a kernel in the interpreter does no work twice, and gives the same numbers. One thread at a time."""
    from triton.language import core
    from triton.runtime import interpreter

    # Other versions of Triton may have neither, and may not need it.
    patch = getattr(interpreter, "_patch_lang", None)
    look_up = getattr(interpreter, "_get_np_dtype", None)
    convert = getattr(interpreter, "_convert_float", None)
    executor: Any = getattr(interpreter, "GridExecutor", None)
    restore = getattr(executor, "_restore_args_dev", None)
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if patch is not None:
        interpreter._patch_lang = _PatchedOnce(patch)
    if look_up is not None:
        interpreter._get_np_dtype = _by_dtype(look_up)
    if convert is not None:
        interpreter._convert_float = _rounding(convert)
    if restore is not None:
        executor._restore_args_dev = _copied_back(restore)
    blocks: Any = core.block_type
    tensors: Any = core.tensor
    describe, make = blocks.__init__, tensors.__init__
    semantic: Any = type(getattr(interpreter, "interpreter_semantic", None))
    broadcast = getattr(semantic, "broadcast_impl_value", None)
    if broadcast is not None:
        semantic.broadcast_impl_value = _broadcast_by_numbers(broadcast)
    blocks.__init__, tensors.__init__ = _blocks_once(describe), _tensors_once(make)
    if getattr(options, "sanitize_overflow", False) and not getattr(options, "debug", True):
        builder.options = replace(options, sanitize_overflow=False)
    try:
        yield
    finally:
        if patch is not None:
            interpreter._patch_lang = patch
        if look_up is not None:
            interpreter._get_np_dtype = look_up
        if convert is not None:
            interpreter._convert_float = convert
        if restore is not None:
            executor._restore_args_dev = restore
        if broadcast is not None:
            semantic.broadcast_impl_value = broadcast
        blocks.__init__, tensors.__init__ = describe, make
        if options is not None:
            builder.options = options
