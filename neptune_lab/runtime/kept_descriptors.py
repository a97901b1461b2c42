"""Descriptors that a launcher keeps by address, since Triton makes them anew at each launch.

A launcher looks into `kept` itself, which takes less time than a call: `kept.get(address) or made(tensor, address)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Descriptors of a tensor that are kept.
MOST = 256
# What a descriptor for the copy engine is encoded from, beside its address, shape and strides.
_ENCODED = frozenset({"swizzle", "elem_size", "elem_type", "block_size", "fp4_padded"})


class _Address:
    """What a kept descriptor has in place of a tensor, which it would keep alive."""

    __slots__ = ("address", "dtype")

    def __init__(self, address: int, dtype: Any) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self.address


class Descriptors:
    """Descriptors of one tensor of a launcher, by address: they depend on nothing else.

    Args:
        maker: makes a descriptor of a tensor and `described`.
        metas: of the kernel's descriptors; None: Triton makes its arguments of a descriptor at each launch.
        number: of this descriptor.
        dtype: of the tensor if it is a part of an allocation, at an address; None: there is a tensor at each call.
    """

    __slots__ = ("_described", "_dtype", "_maker", "_meta", "_ready", "kept")

    def __init__(
        self, maker: Any, described: tuple[Any, ...], metas: list[Any] | None, number: int, dtype: Any = None
    ) -> None:
        self._maker, self._described, self._dtype = maker, described, dtype
        self._ready = metas is not None
        self._meta = metas[number] if metas is not None else None
        self.kept: dict[int, Any] = {}

    def __call__(self, tensor: Any, address: int) -> Any:
        """A descriptor that is not kept yet."""
        if tensor is None:
            tensor = _Address(address, self._dtype)
        found = self._maker(tensor, *self._described)
        found.base = _Address(address, tensor.dtype)
        if self._ready:
            from triton.backends.nvidia.driver import make_tensordesc_arg

            found = make_tensordesc_arg(found, self._meta)
        if len(self.kept) >= MOST:
            self.kept.clear()
        self.kept[address] = found
        return found


class _Sized:
    """What Triton reads of a descriptor, without the checks of its own class."""

    __slots__ = ("base", "padding", "round_f32_to_tf32", "shape", "strides")

    def __init__(self, base: _Address, shape: list[int], strides: list[int]) -> None:
        self.base, self.shape, self.strides = base, shape, strides
        self.padding, self.round_f32_to_tf32 = "zero", False


class SizedDescriptors:
    """Descriptors of one tensor of a launcher whose shapes depend on sizes: by address and sizes.

    A call with new sizes makes one of each tensor.  Triton's class checks the first one only (alignment, which the
    launcher tests at each call, and what is the same at all sizes); the others are encoded by Triton's function in C.

    Args:
        maker, metas, number: as for `Descriptors`.
        described: (shape, strides, block, layout) at given sizes.
    """

    __slots__ = ("_described", "_encode", "_maker", "_meta", "_ready", "kept")

    def __init__(
        self, maker: Any, described: Callable[..., tuple[Any, ...]], metas: list[Any] | None, number: int
    ) -> None:
        self._maker, self._described = maker, described
        self._ready = metas is not None
        self._meta = metas[number] if metas is not None else None
        self._encode: tuple[Any, ...] | None = None
        self.kept: dict[tuple[int, ...], Any] = {}

    def __call__(self, tensor: Any, *place: int) -> Any:
        """The argument of a launch, where it is not kept yet.

        Args:
            place: the tensor's address, and the sizes.
        """
        kept, encode = self.kept, self._encode
        if encode is not None:
            shape, strides, *_ = self._described(*place[1:])
            encoded, swizzle, size, kind, block = encode
            found = [encoded(place[0], swizzle, size, kind, block, shape, strides, 0), *shape, *strides]
        else:
            found = self._checked(tensor, place)
        if len(kept) >= MOST:
            kept.clear()
        kept[place] = found
        return found

    def _checked(self, tensor: Any, place: tuple[int, ...]) -> Any:
        """The argument as Triton makes it, from a descriptor of its own class if it is the first one."""
        shape, strides, *rest = self._described(*place[1:])
        base = _Address(place[0], tensor.dtype)
        if self._ready and self.kept:
            found: Any = _Sized(base, shape, strides)
        else:
            found = self._maker(tensor, shape, strides, *rest)
            found.base = base
        if not self._ready:
            return found
        from triton.backends.nvidia.driver import make_tensordesc_arg

        self._encode = _encoding(self._meta)
        return make_tensordesc_arg(found, self._meta)


def _encoding(meta: Any) -> tuple[Any, ...] | None:
    """Triton's function that encodes a descriptor, and what `make_tensordesc_arg` of Triton 3.6 and 3.7 gives it that
    does not depend on the tensor; None for a descriptor that is passed in parts, or of another kind."""
    from triton.backends.nvidia import driver
    from triton.runtime.driver import driver as config

    if not isinstance(meta, dict) or not meta.keys() >= _ENCODED or meta["fp4_padded"]:
        return None
    names = "fill_tma_descriptor_tiled", "fill_tma_descriptor"
    active: Any = config.active
    utils = active.utils
    encode = next((getattr(utils, name) for name in names if hasattr(utils, name)), None)
    kind = driver.TMA_DTYPE_DEVICE_TO_HOST.get(meta["elem_type"])
    if encode is None or kind is None:
        return None
    return encode, meta["swizzle"], meta["elem_size"], kind, meta["block_size"]


__all__ = ["Descriptors", "SizedDescriptors"]
