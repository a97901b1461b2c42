"""An operator made again with other arguments: sizes, dtypes and options that are edited in the page.

Values from a page are numbers, switches and shapes, checked against the argument that they replace; nothing of them is
run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError, NeptuneError
from neptune_lab.input_specs import parse_inputs
from neptune_lab.strict.console import shown
from neptune_lab.strict.dtypes import COMPUTED, FLOATS
from neptune_lab.tensor_spec import TensorSpec
from neptune_widgets.sizes import again, function_name

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.operators.recipe import Argument, Recipe

# Of arguments that are text, what a page may choose. Another text stays as it is: it could be a path.
_DTYPES = tuple(sorted(FLOATS & COMPUTED))
_CHOICES = {"empty_rows": ("nan", "zero")}
# Parameters of the library's functions that are no sizes or options of what is computed.
_NO_FIELDS = ("score_mod", "mask_mod", "live")
# What a page may ask for: a size, and elements of a tensor, since torch traces a function on tensors of these shapes.
_LARGEST, _MOST_ELEMENTS = 2**31 - 1, 2**28
_HOW = "Show the function that makes it, with its sizes by name: nl.explore(make, rows=4096), with def make(rows): …"


@dataclass(frozen=True, slots=True)
class Field:
    """An argument as a field of the page.

    Args:
        name: of the argument.
        kind: "int", "number", "switch", "choice", or "tensor" for a text such as "float16[4,8]".
        value: as the page shows it.
        choices: of a choice.
        optional: whether it may be left empty, which is None.
    """

    name: str
    kind: str
    value: bool | int | float | str | None
    choices: tuple[str, ...] = ()
    optional: bool = False

    def as_json(self) -> dict[str, Any]:
        """As the page takes it."""
        return {n: getattr(self, n) for n in ("name", "kind", "value", "optional")} | {"choices": list(self.choices)}


@lru_cache(maxsize=32)
def recipe_of(operator: Operator) -> Recipe | None:
    """How the operator can be made again: by its own recipe, or by its parameters if the library made it."""
    from neptune_lab.operators import OPERATORS
    from neptune_lab.operators.recipe import Recipe

    if operator.recipe is not None:
        return operator.recipe
    name = function_name(operator)
    same = again(operator, {})
    if name is None or same is None or same.program != operator.program:
        return None
    make = OPERATORS[name]
    taken = {n: p.default for n, p in _parameters(make).items() if n not in _NO_FIELDS}
    if "q_len" in operator.params:
        taken.pop("seq", None)
    arguments = {n: operator.params.get(n, default) for n, default in taken.items()}
    for n, default in taken.items():
        # A scale that follows from the head's width must follow from the new one.
        if default is None and arguments[n] is not None:
            made = again(operator, {n: None})
            if made is not None and made.program == operator.program:
                arguments[n] = None
    return Recipe(
        {n: v for n, v in arguments.items() if v is None or isinstance(v, bool | int | float | str)},
        lambda values: make(**values),
    )


def named(make: Callable[..., Any], arguments: Mapping[str, Any]) -> Operator:
    """The operator that a function of the user's makes, which can be made again with other arguments.

    Args:
        make: a function that returns an operator.
        arguments: its arguments by name.

    Raises:
        DefinitionError: it returns something else, or lacks an argument.
    """
    from neptune_lab.operators import Operator
    from neptune_lab.operators.recipe import Recipe

    name = getattr(make, "__name__", type(make).__name__)
    of_tensors = "a function of tensors, or a module, is for nl.from_torch(function, *inputs)"

    def made(values: Mapping[str, Any]) -> Operator:
        if missing := _missing(make, {**arguments, **values}):
            raise DefinitionError(
                f"{name} needs {', '.join(missing)}: expected a function that makes an operator, and its arguments",
                help=f"give them by name, {missing[0]}=...; {of_tensors}",
            )
        found = make(**{**arguments, **values})
        if not isinstance(found, Operator):
            raise DefinitionError(
                f"{name} returned {type(found).__name__}, expected an operator",
                help=f"return what nl.operators makes; {of_tensors}",
            )
        return replace(found, recipe=recipe)

    given = {n: p.default for n, p in _parameters(make).items()} | dict(arguments)  # in the order of the function
    plain = {n: v for n, v in given.items() if v is None or isinstance(v, bool | int | float | str)}
    recipe = Recipe(plain, lambda values: named(make, {**arguments, **values}))
    return made({})


def _missing(make: Callable[..., Any], given: Mapping[str, Any]) -> list[str]:
    """Parameters of a function, or of a module's `forward`, that have no default and are not given."""
    alone = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = _parameters(getattr(make, "forward", make)).items()
    return [n for n, p in needed if p.default is inspect.Parameter.empty and p.kind not in alone and n not in given]


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return {}


def fields(operator: Operator) -> list[Field]:
    """The arguments that a page may change; none if the operator cannot be made again."""
    recipe = recipe_of(operator)
    if recipe is None:
        return []
    made = (_field(name, value, _annotation(operator, name)) for name, value in recipe.arguments.items())
    return [field for field in made if field is not None]


def _annotation(operator: Operator, name: str) -> str:
    """What an argument of a function of the library may be, as text."""
    from neptune_lab.operators import OPERATORS

    function = None if operator.recipe is not None else function_name(operator)
    parameter = _parameters(OPERATORS[function]).get(name) if function is not None else None
    return "" if parameter is None else str(parameter.annotation)


def _field(name: str, value: Argument, annotation: str) -> Field | None:
    optional = value is None or "None" in annotation
    match value:
        case TensorSpec():
            return Field(name, "tensor", f"{value.dtype}[{','.join(map(str, value.shape))}]")
        case bool():
            return Field(name, "switch", value)
        case str():
            choices = _CHOICES.get(name) or (_DTYPES if value in _DTYPES else ())
            return Field(name, "choice", value, choices) if value in choices else None
        case float():
            return Field(name, "number", value, optional=optional)
        case int() | None if value is not None or "int" in annotation or "float" in annotation:
            return Field(name, "number" if "float" in annotation else "int", value, optional=optional)
    return None


def why_fixed(operator: Operator) -> str:
    """Why a page cannot change the operator's sizes, and what to do; "" if it can."""
    if fields(operator):
        return ""
    mods = [name for name in ("score_mod", "mask_mod") if operator.params.get(name)]
    if mods:
        return f"Its {' and '.join(mods)} cannot be called again from here. {_HOW}"
    if operator.python:
        return (
            "It was traced from arguments that are neither tensors nor numbers, or with a `draw` for these shapes. "
            "Give its tensors one by one, and leave `draw` out."
        )
    return f"It was made of tensors with fixed shapes. {_HOW}"


def remade(operator: Operator, values: Mapping[str, Any]) -> Operator:
    """The operator with other arguments.

    Args:
        operator: what is made again.
        values: of its `fields`, as a page sends them; those that are missing stay.

    Raises:
        DefinitionError: it cannot be made again, has no such argument, or refuses the value.
    """
    recipe, known = recipe_of(operator), {field.name: field for field in fields(operator)}
    if recipe is None or not known:
        raise DefinitionError(f"{operator.name} cannot be made again", help=why_fixed(operator))
    for name in values:
        if name not in known:
            raise DefinitionError(f"there is no argument {shown(name)} to change", help=f"one of {', '.join(known)}")
    given = {name: _value(known[name], value) for name, value in values.items()}
    return recipe.make({**recipe.arguments, **given})


def _value(field: Field, value: Any) -> Argument:
    """What the page sent for a field, as the argument; DefinitionError if it is of another kind."""
    if value is None and field.optional:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
    match field.kind:
        case "switch" if isinstance(value, bool):
            return value
        case "int" if number and isinstance(value, int):
            return value
        case "number" if number:
            return value
        case "choice" if value in field.choices:
            return value
        case "tensor" if isinstance(value, str) and re.fullmatch(r"[\w.]+\s*\[[\s\d_,]*\]", value.strip()):
            spec = parse_inputs(f"{field.name}={value.strip()}")[field.name]
            assert isinstance(spec, TensorSpec)
            if prod(spec.shape) > _MOST_ELEMENTS:
                raise DefinitionError(
                    f"{field.name}={value.strip()}: {prod(spec.shape):,} elements, expected at most {_MOST_ELEMENTS:,}",
                    help="torch traces the function on such tensors: make an operator of these shapes in a cell",
                )
            return spec
    expected = {
        "switch": "True or False",
        "int": f"a whole number of at most {_LARGEST:,}",
        "number": f"a number of at most {_LARGEST:,}",
        "choice": f"one of {', '.join(field.choices)}",
        "tensor": "a dtype and sizes",
    }[field.kind]
    example = "such as float16[1,4,256,64]" if field.kind == "tensor" else f"it was {field.value}"
    raise DefinitionError(f"{field.name}={shown(value)}: expected {expected}", help=example)


def sample_again(sample: Operator | None, old: Operator, new: Operator) -> Operator | None:
    """The small sample of an operator that was made again: with the arguments that were the sample's own, else the new
    ones; None if it cannot be made."""
    if sample is None or sample.recipe is None or old.recipe is None or new.recipe is None:
        return None
    own = {n: v for n, v in sample.recipe.arguments.items() if v != old.recipe.arguments.get(n)}
    for name, spec in own.items():
        wanted = new.recipe.arguments.get(name)
        if isinstance(spec, TensorSpec) and isinstance(wanted, TensorSpec):
            own[name] = replace(spec, dtype=wanted.dtype)
    try:
        return new.recipe.make({**new.recipe.arguments, **own})
    except NeptuneError:
        return None


__all__ = ["Field", "fields", "named", "recipe_of", "remade", "sample_again", "why_fixed"]
