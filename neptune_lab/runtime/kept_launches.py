"""Launches whose arguments a launcher keeps: Triton would encode their tensor descriptors anew at each launch.

A descriptor depends on an address, a shape and strides, and those of a launcher on its sizes.  So all arguments of a
launch follow from the addresses and sizes that it reads, and they are the key of its table:

    attention_kernel[(n // 64,)](TensorDescriptor(q, [16, n, 128], [n*128, 128, 1], [1, 64, 128], _SHARED), n, heads)

becomes, where `heads` is another number that follows from n,

    _key = (_p_q, n, _s)
    _all = _kept(_key)
    if _all is None:
        heads = _heads_together(n // 64, 16)
        _e0 = n * 128
        _l0 = [16, n, 128]
        _l1 = [_e0, 128, 1]
        _all = (n // 64, 1, 1, _s, _encode(_p_q, 3, 2, 6, _block, _l0, _l1, 0), 16, n, 128, _e0, 128, 1, n, heads)
        _mark = hash(_key) & 4095
        if _seen[_mark]:
            if len(_table) >= 512:
                _table.clear()
                _seen[:] = _none
            _table[_key] = _all
        _seen[_mark] = 1
    _launch(*_all)

A launch is kept when it comes for the second time: a stream of new lengths would only fill memory.

Dtypes, devices, numbers of dimensions and the order of strides are the launcher's own: it takes no other tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Launches of a kernel that are kept; a full table is emptied.
MOST = 512
# Marks of launches that came once, by the last bits of their keys' hashes: two may share one.
MARKS = 4096
# What a descriptor for the copy engine is encoded from, beside its address, shape and strides.
_ENCODED = frozenset({"swizzle", "elem_size", "elem_type", "block_size", "fp4_padded"})


class _Address:
    """What a kept descriptor has in place of a tensor, which it would keep alive."""

    __slots__ = ("address", "dtype")

    def __init__(self, address: int, dtype: Any) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self.address


@dataclass(slots=True)
class KeptLaunch:
    """The lines of one launch, and the names that they read beside the launcher's own.

    Args:
        prefix: of names that only this launch has.
        metas: the kinds of the kernel's descriptors, which are then written in parts, as Triton's launch function takes
            them; None: that function makes them of descriptors.
    """

    prefix: str
    metas: Sequence[Any] | None
    names: dict[str, Any] = field(default_factory=dict)
    descriptors: int = 0
    _before: list[str] = field(default_factory=list)
    _written: dict[str, str] = field(default_factory=dict)

    def descriptor(self, maker: Any, address: str, tensor: str, parts: list[ast.expr], dtype: Any) -> str:
        """The text of a descriptor among the arguments of the launch.

        Args:
            maker: makes a descriptor of a tensor and `parts`: its shape and strides, and what does not depend on sizes.
            address: the variable of the tensor's address; `tensor`: its own, or "" for a part of an allocation.
            dtype: of such a part.
        """
        number, self.descriptors = self.descriptors, self.descriptors + 1
        meta = None if self.metas is None else self.metas[number]
        match parts:
            case [ast.List(shape), ast.List(strides), _, *layout] if len(layout) <= 1 and fills_with_zeros(maker):
                encode = encoding(meta)
            case _:
                shape, strides, encode = [], [], None
        if encode is not None:
            call, swizzle, size, kind, block = encode
            self.names |= {f"{self.prefix}encode": call, f"{self.prefix}block_{number}": block}
            of = [[self._variable("e", element) for element in elements] for elements in (shape, strides)]
            lists = ", ".join(self._variable("l", ast.parse(f"[{', '.join(texts)}]").body[0].value) for texts in of)  # type: ignore[attr-defined]
            made = f"{self.prefix}encode({address}, {swizzle}, {size}, {kind}, {self.prefix}block_{number}, {lists}, 0)"
            return ", ".join([made, *of[0], *of[1]])
        self.names[f"{self.prefix}made_{number}"] = _descriptor_maker(
            maker, meta, ready=self.metas is not None, dtype=dtype
        )
        given = ", ".join([tensor or "None", address, *map(ast.unparse, parts)])
        return f"{'*' if self.metas is not None else ''}{self.prefix}made_{number}({given})"

    def _variable(self, kind: str, value: ast.expr) -> str:
        """A variable for a value that several descriptors read; a name or a constant is its own."""
        text = ast.unparse(value)
        if isinstance(value, ast.Name | ast.Constant):
            return text
        if text not in self._written:
            self._written[text] = f"{self.prefix}{kind}{len(self._written)}"
            self._before.append(f"{self._written[text]} = {text}")
        return self._written[text]

    def lines(self, launch: str, arguments: str, own: set[str], derived: Mapping[str, str]) -> list[str]:
        """The launch.

        Args:
            launch: the variable of Triton's launch function; `arguments`: their text.
            own: the launcher's variables: addresses, sizes and the stream.
            derived: the numbers that follow from sizes, with their texts, in order.
        """
        prefix = self.prefix
        read = names_in(" + ".join([f"f({arguments})", *(line.partition("=")[2] for line in self._before)]))
        needed: list[str] = []
        for name in reversed([*derived]):
            if name in read:
                needed.insert(0, f"{name} = {derived[name]}")
                read = read - {name} | names_in(derived[name])
        key = ", ".join(sorted(read & own))
        table: dict[Any, Any] = {}
        self.names |= {f"{prefix}table": table, f"{prefix}kept": table.get}
        self.names |= {f"{prefix}seen": bytearray(MARKS), f"{prefix}none": bytes(MARKS)}
        return [
            f"{prefix}key = ({key},)",
            f"{prefix}all = {prefix}kept({prefix}key)",
            f"if {prefix}all is None:",
            *(f"    {line}" for line in (*needed, *self._before)),
            f"    {prefix}all = ({arguments},)",
            f"    {prefix}mark = hash({prefix}key) & {MARKS - 1}",
            f"    if {prefix}seen[{prefix}mark]:",
            f"        if len({prefix}table) >= {MOST}:",
            f"            {prefix}table.clear()",
            f"            {prefix}seen[:] = {prefix}none",
            f"        {prefix}table[{prefix}key] = {prefix}all",
            f"    {prefix}seen[{prefix}mark] = 1",
            f"{launch}(*{prefix}all)",
        ]


def names_in(text: str) -> set[str]:
    """The names that an expression reads."""
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def fills_with_zeros(maker: Any) -> bool:
    """Whether a descriptor reads zeros past the end of its tensor, and rounds nothing, unless it is told to."""
    return getattr(maker, "padding", "zero") == "zero" and not getattr(maker, "round_f32_to_tf32", False)


def _descriptor_maker(maker: Any, meta: Any, *, ready: bool, dtype: Any) -> Callable[..., Any]:
    """Makes a descriptor by Triton's class, which keeps no tensor alive; `ready`: as the launch function takes it."""

    def made(tensor: Any, address: int, *parts: Any) -> Any:
        base = _Address(address, dtype if tensor is None else tensor.dtype)
        found = maker(base if tensor is None else tensor, *parts)
        found.base = base
        if not ready:
            return found
        from triton.backends.nvidia.driver import make_tensordesc_arg

        return make_tensordesc_arg(found, meta)

    return made


def encoding(meta: Any) -> tuple[Any, int, int, int, Any] | None:
    """Triton's function that encodes a descriptor, and what `make_tensordesc_arg` of Triton 3.6 and 3.7 gives it that
    does not depend on the tensor; None for a descriptor that is passed in parts, or of another kind."""
    if not isinstance(meta, dict) or not meta.keys() >= _ENCODED or meta["fp4_padded"]:
        return None
    from triton.backends.nvidia import driver
    from triton.runtime.driver import driver as config

    names = "fill_tma_descriptor_tiled", "fill_tma_descriptor"
    active: Any = config.active
    utils = active.utils
    encode = next((getattr(utils, name) for name in names if hasattr(utils, name)), None)
    kind = driver.TMA_DTYPE_DEVICE_TO_HOST.get(meta["elem_type"])
    if encode is None or kind is None:
        return None
    return encode, int(meta["swizzle"]), int(meta["elem_size"]), int(kind), meta["block_size"]


__all__ = ["MOST", "KeptLaunch", "encoding", "fills_with_zeros", "names_in"]
