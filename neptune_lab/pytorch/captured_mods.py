"""Mods of a program that Dynamo traces, and the tensors that they capture, as parts of a graph's call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neptune_lab.pytorch.dynamo import Traced, Tracing, hint_of, value_of
from neptune_lab.pytorch.graph_mods import GraphMod, mod_of_graph

# Words in the names that Dynamo gives to inputs of a graph by where they come from.
_PATHS = "modules", "closure", "cell_contents", "self_"
# Names and dtypes of the arguments of a mod.
POSITIONS = tuple((name, torch.int32) for name in ("b", "h", "q", "kv"))
SCORE = ("score", torch.float32), *POSITIONS
Arguments = tuple[tuple[str, torch.dtype], ...]


def traced_mod(tracing: Tracing, name: str, arguments: Arguments, device: torch.device) -> Traced | None:
    """The mod that is a local variable of the traced frame; None if that is None."""
    known, value = tracing.constant(name)
    return None if known and value is None else tracing.trace(name, [dtype for _, dtype in arguments], device)


@dataclass(frozen=True)
class Captured:
    """What the mods of a call capture, each once.

    Args:
        proxies: of the program's graph.
    """

    proxies: tuple[Any, ...]

    @classmethod
    def of(cls, *mods: Traced | None) -> Captured:
        """What the mods compute with; inputs that a graph does not use are left out."""
        found: dict[Any, Any] = {}
        for mod in mods:
            if mod is not None:
                inputs = [node for node in mod.graph.nodes if node.op == "placeholder"]
                own = inputs[len(inputs) - len(mod.captured) :]
                found |= {p.node: p for p, node in zip(mod.captured, own, strict=True) if node.users}
        return cls(tuple(found.values()))

    def mod(self, mod: Traced | None, arguments: Arguments) -> GraphMod | None:
        """A traced mod over the tensors of `proxies`."""
        if mod is None:
            return None
        index = {proxy.node: n for n, proxy in enumerate(self.proxies)}
        captured = [(_name(proxy.node.name), index.get(proxy.node, 0)) for proxy in mod.captured]
        return mod_of_graph(mod.graph, [name for name, _ in arguments], captured)

    @property
    def fakes(self) -> dict[str, torch.Tensor]:
        """The captured tensors, without values."""
        values = ((_name(p.node.name), value_of(p)) for p in self.proxies)
        return {f"the tensor {name} that a mod captures": v for name, v in values if isinstance(v, torch.Tensor)}

    def examples(self) -> list[torch.Tensor] | None:
        """Tensors of zeros like the captured ones, on the CPU; None if a size depends on values."""
        found = []
        for value in map(value_of, self.proxies):
            shape = sizes_of(value.shape) if isinstance(value, torch.Tensor) else ()
            if None in shape:
                return None
            found.append(torch.zeros(shape, dtype=_dtype(value)))  # type: ignore[arg-type]
        return found

    def tensors(self, tracing: Tracing, device: torch.device) -> list[Any]:
        """`proxies`, a tensor in place of each symbolic number, which the kernel then reads at each call."""
        return [
            p if isinstance(value_of(p), torch.Tensor) else tracing.tensor_of(p, _dtype(value_of(p)), device)
            for p in self.proxies
        ]


def _dtype(value: Any) -> torch.dtype:
    if isinstance(value, torch.Tensor):
        return value.dtype
    return torch.float32 if isinstance(value, float | torch.SymFloat) else torch.int64


def _name(name: str) -> str:
    """The name of a captured tensor, from that of its node: without what tells apart tensors of one name, so that the
    layers of a model share a kernel, and "captured" for the path of a graph's input.

    >>> _name("l_bias_"), _name("twice_3"), _name("l_self_modules_layers_modules_0_slope"), _name("l_mod_closure_0_")
    ('bias', 'twice', 'captured', 'captured')
    """
    plain = re.sub(r"(_\d+)+$", "", name.lower().removeprefix("l_").strip("_"))
    return plain if plain.isidentifier() and not any(word in plain for word in _PATHS) else "captured"


def is_symbolic(size: Any) -> bool:
    """Whether a size is a symbol."""
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None


def sizes_of(sizes: Sequence[Any]) -> tuple[int | None, ...]:
    """A shape or strides in the call that is traced; None for a size that depends on values."""
    return tuple(map(hint_of, sizes))


def leave(tracing: Tracing, error: Exception) -> None:
    """Sets `outside`, so that the call leaves the graph; raises `error` if the graph must be whole."""
    if tracing.whole:
        raise error
    tracing.assign("outside", True)


__all__ = [
    "POSITIONS",
    "SCORE",
    "Captured",
    "is_symbolic",
    "leave",
    "sizes_of",
    "traced_mod",
]
