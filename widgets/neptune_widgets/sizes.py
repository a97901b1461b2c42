"""An operator made again at smaller sizes: a few elements for tag tables, a few tiles for numeric checks."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import NeptuneError

if TYPE_CHECKING:
    from collections.abc import Collection

    from neptune_lab.operators import Operator
    from neptune_lab.trace import OperatorRecord

# Sizes that a lecture hall can read.
TINY = {
    "batch": 1,
    "heads": 2,
    "kv_heads": 1,
    "q_len": 4,
    "kv_len": 8,
    "head_dim": 2,
    "v_head_dim": 2,
    "window": 3,
    "prefix": 2,
    "rows": 2,
    "cols": 8,
    "m": 4,
    "n": 8,
    "k": 2,
    "h": 2,
    "seq": 8,
    "features": 4,
    "latent": 4,
    "rope": 2,
}
# Sizes that no tile of a template depends on, for checks.
_SMALL = {"batch": 1, "heads": 2, "head_dim": 16, "v_head_dim": 16}
# Extents without a name, for tag tables.
_FEW = (2, 4, 8)


def tiny(operator: Operator | Differentiated) -> dict[str, int]:
    """The sizes for a tag table, by parameter; heads are few, and where they share keys, two share them."""
    wanted = {name: min(value, TINY[name]) for name, value in _integers(operator).items() if name in TINY}
    if "heads" in wanted and "kv_heads" not in wanted:
        wanted["heads"] = 1
    if "kv_heads" in wanted:
        wanted["heads"] = min(2, _group(operator))
    return wanted


def few_tiles(operator: Operator, tile: int) -> dict[str, int]:
    """The sizes that two whole tiles of `tile` elements fill, with the tail that the real size has.

    Where heads share keys, as many share them as before: the schedule may have them in the rows of a tile.
    """
    wanted = {}
    for name, value in _integers(operator).items():
        enough = tile if name in ("window", "prefix") else 2 * tile + value % tile
        wanted[name] = min(value, _SMALL.get(name, enough))
    if "kv_heads" in wanted:
        wanted["kv_heads"] = min(operator.params["kv_heads"], 2)
        wanted["heads"] = _group(operator) * wanted["kv_heads"]
    return wanted


def _integers(operator: Operator | Differentiated) -> dict[str, int]:
    found = operator.params.items()
    return {name: value for name, value in found if isinstance(value, int) and not isinstance(value, bool)}


def _group(operator: Operator | Differentiated) -> int:
    """How many heads of q share a head of k and v."""
    return operator.params["heads"] // operator.params["kv_heads"]


def function_name(operator: Operator | OperatorRecord | Differentiated) -> str | None:
    """Under which name OPERATORS has it; None where it is no operator of the library."""
    from neptune_lab.operators import OPERATORS

    names = (name for name in OPERATORS if operator.name in (name.replace(".", "_"), name.rpartition(".")[2]))
    return next(names, None)


def again(operator: Operator | OperatorRecord | Differentiated, sizes: dict[str, Any]) -> Operator | None:
    """The operator made anew at other sizes; None where its parameters do not tell all (a mod is a function)."""
    from neptune_lab.operators import OPERATORS

    name = function_name(operator)
    if name is None or any(operator.params.get(mod) for mod in ("score_mod", "mask_mod")):
        return None
    taken = inspect.signature(OPERATORS[name]).parameters
    try:
        return OPERATORS[name](**{n: v for n, v in {**operator.params, **sizes}.items() if n in taken})
    except (NeptuneError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Differentiated:
    """The operator whose backward pass another one is.

    Args:
        name: of the operator.
        params: what it was made of.
    """

    name: str
    params: dict[str, Any]


def differentiated(operator: Operator) -> Differentiated | None:
    """The operator whose backward pass this one is; None if it is none."""
    name, params = operator.params.get("of"), operator.params.get("operator")
    return Differentiated(name, params) if isinstance(name, str) and isinstance(params, dict) else None


def pass_again(operator: Operator, sizes: dict[str, Any]) -> Operator | None:
    """As `again`; a backward pass is derived anew, of its operator at these sizes."""
    from neptune_lab.operators import training

    definition = differentiated(operator)
    made = again(definition or operator, sizes)
    if definition is None or made is None:
        return made
    try:
        return training(made, operator.params["wrt"]).backward
    except NeptuneError:
        return None


def remade_smaller(operator: Operator) -> Operator | None:
    """The operator of a function, traced or called again with small arguments; None where it takes none.

    Equal extents stay equal, and larger ones larger. Extents of tensors that the function holds stay as they are. If
    the function refuses, those of last dimensions stay too, which functions often split into parts.
    """
    from neptune_lab import Schedule
    from neptune_lab.tensor_spec import TensorSpec

    recipe = operator.recipe
    if recipe is None:
        return None
    # Of a function of tensors, a number may be anything; of a function that makes an operator, it is a size.
    tensors = {n: v for n, v in recipe.arguments.items() if isinstance(v, TensorSpec)}
    numbers = {n: v for n, v in recipe.arguments.items() if isinstance(v, int) and not isinstance(v, bool) and v > 0}
    held = {extent for array in operator.captured.values() for extent in array.shape}
    last = {spec.shape[-1] for spec in tensors.values() if spec.shape}
    every = {extent for spec in tensors.values() for extent in spec.shape} if tensors else {*numbers.values()}
    blocks = Schedule(operator).blocks
    for kept in dict.fromkeys((frozenset(held), frozenset(held | last))):
        few = small_extents(every - kept)
        changed: dict[str, Any] = {
            n: replace(spec, shape=tuple(few.get(extent, extent) for extent in spec.shape))
            for n, spec in tensors.items()
        } or {n: few.get(value, value) for n, value in numbers.items()}
        if changed.items() <= recipe.arguments.items():
            continue
        try:
            found = recipe.make({**recipe.arguments, **changed})
        except Exception:  # noqa: BLE001 - a function of the user's, at sizes that it may not be written for
            continue
        if Schedule(found).blocks == blocks:
            return found
    return None


def small_extents(extents: Collection[int]) -> dict[int, int]:
    """For each extent a small one, in the same order.

    >>> small_extents({1, 2, 32, 256}), small_extents({3, 4096}), small_extents({64})
    ({1: 1, 2: 2, 32: 4, 256: 8}, {1: 1, 3: 3, 4096: 8}, {1: 1, 64: 8})
    """
    above_one = sorted(extent for extent in extents if extent > 1)
    count = len(above_one)
    few = _FEW[-count:] if count <= len(_FEW) else range(2, 2 * count + 2, 2)
    return {1: 1} | {extent: min(extent, small) for extent, small in zip(above_one, few, strict=False)}


__all__ = [
    "Differentiated",
    "again",
    "differentiated",
    "few_tiles",
    "function_name",
    "pass_again",
    "remade_smaller",
    "small_extents",
    "tiny",
]
