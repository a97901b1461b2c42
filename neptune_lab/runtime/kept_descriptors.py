"""Descriptors that a launcher keeps by address, since Triton makes them anew at each launch."""

from __future__ import annotations

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


__all__ = ["Descriptors"]
