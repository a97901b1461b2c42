"""Descriptors that a launcher keeps by address, since Triton makes them anew at each launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Descriptors of a tensor that are kept.
MOST = 256


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

    __slots__ = ("_described", "_dtype", "_kept", "_maker", "_meta", "_ready")

    def __init__(
        self, maker: Any, described: tuple[Any, ...], metas: list[Any] | None, number: int, dtype: Any = None
    ) -> None:
        self._maker, self._described, self._kept, self._dtype = maker, described, dict[int, Any](), dtype
        self._ready = metas is not None
        self._meta = metas[number] if metas is not None else None

    def __call__(self, tensor: Any, address: int) -> Any:
        found = self._kept.get(address)
        if found is None:
            if tensor is None:
                tensor = _Address(address, self._dtype)
            found = self._maker(tensor, *self._described)
            found.base = _Address(address, tensor.dtype)
            if self._ready:
                from triton.backends.nvidia.driver import make_tensordesc_arg

                found = make_tensordesc_arg(found, self._meta)
            if len(self._kept) >= MOST:
                self._kept.clear()
            self._kept[address] = found
        return found


class _Sized:
    """What Triton reads of a descriptor, without the checks of its own class."""

    __slots__ = ("base", "padding", "round_f32_to_tf32", "shape", "strides")

    def __init__(self, base: _Address, shape: list[int], strides: list[int]) -> None:
        self.base, self.shape, self.strides = base, shape, strides
        self.padding, self.round_f32_to_tf32 = "zero", False


class SizedDescriptors:
    """Descriptors of one tensor of a launcher whose shapes depend on sizes: by address and sizes.

    A call with new sizes makes one of each tensor, so Triton's class checks the first one only: alignment, which the
    launcher tests, and what is the same at all sizes.

    Args:
        maker, metas, number: as for `Descriptors`.
        described: (shape, strides, block, layout) at given sizes.
    """

    __slots__ = ("_described", "_kept", "_made", "_maker", "_meta")

    def __init__(
        self, maker: Any, described: Callable[..., tuple[Any, ...]], metas: list[Any] | None, number: int
    ) -> None:
        self._maker, self._described, self._kept = maker, described, dict[Any, Any]()
        self._meta = metas[number] if metas is not None else None
        self._made: Any = None
        if metas is not None:
            from triton.backends.nvidia.driver import make_tensordesc_arg

            self._made = make_tensordesc_arg

    def __call__(self, tensor: Any, *place: int) -> Any:
        """The argument of a launch.

        Args:
            place: the tensor's address, and the sizes.
        """
        kept = self._kept
        found = kept.get(place)
        if found is None:
            shape, strides, *rest = self._described(*place[1:])
            if self._made is None or not kept:
                found = self._maker(tensor, shape, strides, *rest)
                found.base = _Address(place[0], tensor.dtype)
            else:
                found = _Sized(_Address(place[0], tensor.dtype), shape, strides)
            if self._made is not None:
                found = self._made(found, self._meta)
            if len(kept) >= MOST:
                kept.clear()
            kept[place] = found
        return found


__all__ = ["Descriptors", "SizedDescriptors"]
