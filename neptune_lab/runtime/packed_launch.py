"""Launchers that compute the places of packed tokens first: a call on packed sequences is one function, which makes its
tensors at once and reads the stream once.

    def attention(q, k, v, k_sequence, k_place):
        n = q.shape[2]
        out = torch.empty((1, 4, n, 64), dtype=torch.float16, device=q.device)
        attention_kernel[((n+63)//64, 4, 1)](q, k, v, k_sequence, out, n)
        return out

becomes, before `direct` writes it anew,

    def attention(q, k, v, _of_q):
        n = q.shape[2]
        _ends = _of_q.shape[0]
        k_sequence = torch.empty((n,), dtype=torch.int32, device=q.device)
        _places[((n + 255) // 256, 1)](_of_q, _of_q, *[k_sequence] * 6, n, n, _ends, 0, 0)
        out = ...

Positions that no kernel reads, as here (a causal mask compares tokens of one sequence), are not computed.  Kernels that
find the tiles of keys that a tile of queries sees are left out: that of places finds them from the offsets
(`packed_tiles`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neptune_lab.runtime.direct import Compiled, Source, direct_of
from neptune_lab.runtime.packed_tiles import Tiles, size_of, tiles_in
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.runtime.token_places import TOKENS

# The offsets of the queries and of the keys, the number of offsets, and the kernel of places.
_OF_Q, _OF_K, _ENDS, _KERNEL = "_of_q", "_of_k", "_ends", "_places"
# Names of sequences that the launcher does not take.
_SPARE = "_q_sequence", "_k_sequence"


def with_places(
    source: Source,
    spec: KernelSpec,
    places: Mapping[str, int],
    kernel: Any,
    slow: Callable[..., Any],
    *,
    alike: bool,
) -> Callable[..., Any] | None:
    """A launcher that takes offsets, last, in place of what `token_places` makes of them; None if it cannot be written.

    Args:
        source: of the direct launcher that takes places.
        spec: of its kernel, whose inputs are q, k, v, and others.
        places: which of its arguments are places, by their index in what `token_places` returns.
        kernel: of places, compiled for the offsets' dtypes.
        slow: called with the same arguments where `direct` calls the launcher that takes every tensor.
        alike: whether the keys are packed as the queries; the launcher takes one tensor of offsets then, or else two.
    """
    function = source.function
    every = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    arguments = [argument.arg for argument in function.args.args]
    if {*every, *arguments} & {_OF_Q, _OF_K, _ENDS, _KERNEL, *_SPARE}:  # (a mod reads a tensor that is called so)
        return None
    sizes = [size_of(tensor, 2) for tensor in spec.inputs[:2]]
    named = {index: name for name, index in places.items()}
    sequences = named.get(0, ""), named.get(0 if alike else 1, "")
    tiles = tiles_in(spec.tiles, spec.inputs, function, sequences, sizes) or Tiles("", "", 0, 0, function.body)
    names = {node.id for stmt in tiles.left for node in ast.walk(stmt) if isinstance(node, ast.Name)}
    made = {index: name for index, name in named.items() if name in names}
    offsets = [_OF_Q] if alike else [_OF_Q, _OF_K]
    for side in range(len(offsets)):
        made.setdefault(side, _SPARE[side])
    lines = [f"{_ENDS} = {_OF_Q}.shape[0]"]
    for index, name in made.items():
        lines.append(f"{name} = torch.empty(({sizes[index % 2]},), dtype=torch.int32, device={arguments[0]}.device)")
    rows = [made.get(row, made[row % 2]) for row in ((0, 0, 2, 2) if alike else range(4))]
    bounds = [tiles.first or made[0], tiles.last or made[0]]
    programs = f"[({_programs(sizes[: len(offsets)])}, {len(offsets) + bool(tiles.rows)})]"
    numbers = [*sizes, _ENDS, str(tiles.rows), str(tiles.columns)]
    lines.append(f"{_KERNEL}{programs}({', '.join([_OF_Q, offsets[-1], *rows, *bounds, *numbers])})")
    first = next(n for n, statement in enumerate(tiles.left) if not _is_head(statement))
    written = ast.FunctionDef(
        name=function.name,
        args=_arguments([name for name in arguments if name not in places] + offsets),
        body=[*tiles.left[:first], *ast.parse("\n".join(lines)).body, *tiles.left[first:]],
        decorator_list=[],
    )
    kernels = {**source.kernels, _KERNEL: Compiled(kernel, {})}
    return direct_of(Source(written, source.module, kernels, source.device), slow)


def _is_head(statement: ast.stmt) -> bool:
    """Whether it is a docstring, or reads a size."""
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Assign(value=ast.Subscript(value=ast.Attribute(attr="shape"))):
            return True
    return False


def _programs(sizes: Sequence[str]) -> str:
    """The number of programs that compute places of so many tokens."""
    if all(size.isdigit() for size in sizes):
        return str(-(-max(map(int, sizes)) // TOKENS.value))
    most = sizes[0] if len(set(sizes)) == 1 else f"max({', '.join(sizes)})"
    return f"({most} + {TOKENS.value - 1}) // {TOKENS.value}"


def _arguments(names: Sequence[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )


__all__ = ["with_places"]
