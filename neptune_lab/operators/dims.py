"""Sizes with a name in place of a number: one kernel runs at every value.

`attention.causal(heads=8, seq=nl.dim("n"))` makes an operator whose inputs have the shape [1, 8, n, 64]; its
`at(n=100)` is the operator of one size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec

from neptune_lab.errors import DefinitionError
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_integer
from neptune_lab.tensor_spec import LARGEST, TensorSpec

if TYPE_CHECKING:
    from neptune_lab.operators.base import Operator

Own = ParamSpec("Own")

# The usual value of a size, by the argument that it is given for.
_USUAL = {"batch": 4, "heads": 16, "kv_heads": 8}
_USUAL_LENGTH = 4096
# Rows of an operator whose kernel is checked: more than programs take at once.
_FEW_ROWS = 64
_ALL: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Dim:
    """A size that is known at the launch only, for an argument of an operator that takes a size.

    Args:
        name: of the size, in programs and code.
        hint: the value that template and tile sizes are chosen for; None: a usual one.
    """

    name: str
    hint: int | None = None


def dim(name: str, hint: int | None = None) -> Any:
    """A size that is known at the launch only: `attention.causal(seq=nl.dim("n"))`.

    Operators take it wherever they take a number of samples, heads, rows, columns or positions, several times if these
    are equal.  `nl.compile` then makes one kernel for every value.  To a type checker the result may stand for an int.

    Args:
        name: a Python identifier.
        hint: the value that template and tile sizes are chosen for, and that the definition, the schedule and random
            inputs have; None: 4096, of samples 4, of heads 16.

    Returns:
        The size.

    Raises:
        DefinitionError: `name` is no identifier, or `hint` is no positive integer.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise DefinitionError(
            f"name={shown(name)}: the name of a size is a Python identifier", help='such as nl.dim("n")'
        )
    check_integer("hint", hint, 1, LARGEST, DefinitionError, optional=True)
    return Dim(name, hint)


@dataclass(frozen=True, slots=True)
class Family:
    """Operators that differ in sizes alone.

    Args:
        hint: the sizes by name, with the values that one schedule is chosen for.
        make: the operator at given values of all sizes.
        small: the same with few samples, heads and rows, of which kernels are checked faster; None: `make`.
    """

    hint: Mapping[str, int]
    make: Callable[[Mapping[str, int]], Operator]
    small: Callable[[Mapping[str, int]], Operator] | None = None

    def at(self, sizes: Mapping[str, Any]) -> Operator:
        """The operator at numbers; sizes that are not given have their hints."""
        unknown = [name for name in sizes if name not in self.hint]
        if unknown:
            names = ", ".join(self.hint)
            raise DefinitionError(
                f"there is no size {unknown[0]!r}",
                help=f"the sizes with a name are {names}" if names else 'give it a name: seq=nl.dim("n")',
            )
        for name, value in sizes.items():
            check_integer(name, value, 1, LARGEST, DefinitionError)
        return self.make({**self.hint, **sizes})


def takes_dims(make: Callable[Own, Operator]) -> Callable[Own, Operator]:
    """`make`, whose arguments may also be sizes with a name."""
    own = signature(make)

    @wraps(make)
    def with_dims(*args: Own.args, **kwargs: Own.kwargs) -> Operator:
        if not any(isinstance(value, Dim) for value in (*args, *kwargs.values())):
            return make(*args, **kwargs)
        hint = _hints([*zip(own.parameters, args, strict=False), *kwargs.items()])

        given = own.bind(*args, **kwargs).arguments
        given |= given.pop("options", {})

        def at(sizes: Mapping[str, int], few: Mapping[str, int] = _ALL) -> Operator:
            numbers = {name: sizes[v.name] if isinstance(v, Dim) else v for name, v in given.items()}
            return make(**{**numbers, **few})  # type: ignore[call-arg]

        few = _smaller_counts(given)
        return named(Family(hint, at, partial(at, few=few) if few else None))

    return with_dims


def _smaller_counts(given: Mapping[str, Any]) -> dict[str, int]:
    """Smaller numbers for arguments that count samples, heads or rows: one sample, one group of heads, few rows."""
    few: dict[str, int] = {}
    heads, kv_heads = given.get("heads", 1), given.get("kv_heads")
    if isinstance(given.get("batch"), int):
        few["batch"] = 1
    if isinstance(heads, int) and kv_heads is None and "heads" in given:
        few["heads"] = 1
    elif isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads and heads % kv_heads == 0:
        few |= {"heads": heads // kv_heads, "kv_heads": 1}
    if isinstance(given.get("rows"), int):
        few["rows"] = min(given["rows"], _FEW_ROWS)
    return {name: value for name, value in few.items() if value != given[name]}


def _hints(arguments: Sequence[tuple[str, Any]]) -> dict[str, int]:
    """The sizes by name; DefinitionError if one name has two hints."""
    given: dict[str, int] = {}
    usual: dict[str, int] = {}
    for argument, value in arguments:
        if not isinstance(value, Dim):
            continue
        usual.setdefault(value.name, _USUAL.get(argument, _USUAL_LENGTH))
        if value.hint is not None and given.setdefault(value.name, value.hint) != value.hint:
            raise DefinitionError(
                f"{argument}: size {value.name!r} has hints {given[value.name]} and {value.hint}",
                help="a size has one value: give one hint, or two names",
            )
    return {**usual, **given}


def named(family: Family) -> Operator:
    """The operator at the hints, with the names of its sizes in the shapes of its tensors."""
    own = family.make(family.hint)
    names: dict[tuple[str, int], str] = {}
    for name, value in family.hint.items():
        other = family.make({**family.hint, name: value + _multiple(family, name)})
        for a, b in zip(_tensors(own), _tensors(other), strict=True):
            for n, (one, two) in enumerate(zip(a.shape, b.shape, strict=True)):
                if one != two:
                    names[a.name, n] = name

    def with_sizes(tensor: TensorSpec) -> TensorSpec:
        sizes = tuple(names.get((tensor.name, n), "") for n in range(len(tensor.shape)))
        return replace(tensor, sizes=sizes if any(sizes) else None)

    inputs, outputs = (tuple(map(with_sizes, tensors)) for tensors in (own.inputs, own.outputs))
    return replace(own, inputs=inputs, outputs=outputs, family=family)


def _multiple(family: Family, name: str) -> int:
    """How much larger a size may be: 1, or as much again if it must be a multiple of something."""
    try:
        family.make({**family.hint, name: family.hint[name] + 1})
    except DefinitionError:
        return family.hint[name]
    return 1


def _tensors(op: Operator) -> tuple[TensorSpec, ...]:
    return (*op.inputs, *op.outputs)


__all__ = ["Dim", "Family", "dim", "named", "takes_dims"]
