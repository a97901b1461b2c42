"""Makes a method of `Schedule` from a primitive's declaration: signature, docstring, and text for the stub file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter, Signature
from typing import Any

from neptune_lab.loop_schedule.declare import Primitive
from neptune_lab.loop_schedule.steps import call

_RETURNS = {"nothing": "None", "one": "str", "several": "tuple[str, ...]"}


def signature(primitive: Primitive) -> Signature:
    """The signature of the method.

    Args:
        primitive: the primitive.

    Returns:
        `self`, then the primitive's parameters, passed as their kinds say.
    """
    named = any(p.kind.passed_as == "named" for p in primitive.parameters)
    before = Parameter.POSITIONAL_ONLY if named else Parameter.POSITIONAL_OR_KEYWORD
    made = [Parameter("self", before)]
    for p in primitive.parameters:
        annotation = p.kind.annotation + (" | None" if p.default is None else "")
        match p.kind.passed_as:
            case "several":
                made.append(Parameter(p.name, Parameter.VAR_POSITIONAL, annotation=annotation))
                before = Parameter.KEYWORD_ONLY
            case "named":
                made.append(Parameter(p.name, Parameter.VAR_KEYWORD, annotation=annotation))
            case _:
                made.append(Parameter(p.name, before, default=p.default, annotation=annotation))
    return Signature(made, return_annotation=_RETURNS[primitive.makes])


def _call_of(primitive: Primitive) -> str:
    """How the method is called, as `sch.bind(loop, thread)`: its signature without types, and an example of arguments
    that are passed by names of loops."""
    own = [p.replace(annotation=Parameter.empty) for p in signature(primitive).parameters.values() if p.name != "self"]
    plain = [p.replace(kind=Parameter.POSITIONAL_OR_KEYWORD) if p.kind is Parameter.POSITIONAL_ONLY else p for p in own]
    examples = [f", {p.kind.example}" for p in primitive.parameters if p.kind.passed_as == "named"]
    return "".join([f"sch.{primitive.name}{Signature(plain)}", *examples])


def docstring(primitive: Primitive) -> str:
    """The docstring of the method.

    Args:
        primitive: the primitive.

    Returns:
        The primitive's docstring, with a section Returns before Raises if the method returns names.
    """
    doc = inspect.getdoc(primitive.apply) or ""
    if not primitive.made:
        return doc
    returns = f"Returns:\n    {primitive.made}"
    before, raises, after = doc.partition("Raises:\n")
    return "\n\n".join(filter(None, (before.rstrip(), returns, raises + after)))


def method_of(primitive: Primitive) -> Callable[..., Any]:
    """The method: applies the step of its call, and returns the names that the step created.

    Args:
        primitive: the primitive.

    Returns:
        A function for a class that has `apply(step)`. A call with other arguments than its signature's raises
        TypeError.
    """
    method_signature = signature(primitive)

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = method_signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{method.__qualname__}(): {error}\n  help: it is called as {_call_of(primitive)}"
            ) from None
        bound.apply_defaults()
        made = self.apply(call(primitive, bound.arguments))
        return {"nothing": None, "one": made[0] if made else None, "several": made}[primitive.makes]

    method.__name__ = primitive.name
    method.__qualname__ = f"Schedule.{primitive.name}"
    method.__doc__ = docstring(primitive)
    method.__signature__ = method_signature  # type: ignore[attr-defined]
    return method


_HEAD = """# Written from the primitives' declarations: pytest tests/loop_schedule/test_methods.py --update-golden

from collections.abc import Iterable

class PrimitiveMethods:
"""


def stub(primitives: Iterable[Primitive]) -> str:
    """The text of `methods.pyi`.

    Args:
        primitives: the primitives, in the order of their methods.

    Returns:
        A class with a method per primitive: its signature and docstring.
    """
    return _HEAD + "\n".join(_stub_of(primitive) for primitive in primitives)


def _stub_of(primitive: Primitive) -> str:
    lines: list[str] = []
    positional_only = False
    for p in signature(primitive).parameters.values():
        if positional_only and p.kind is not Parameter.POSITIONAL_ONLY:
            lines.append("/")
        positional_only = p.kind is Parameter.POSITIONAL_ONLY
        lines.append(str(p.replace(annotation=Parameter.empty, default=Parameter.empty)))
        if p.annotation is not Parameter.empty:
            lines[-1] += f": {p.annotation}"
        if p.default is not Parameter.empty:
            lines[-1] += f" = {_quoted(p.default)}"
    parameters = "".join(f"        {line},\n" for line in lines)
    doc = docstring(primitive)
    text = "\n".join(f"        {line}".rstrip() for line in doc.splitlines()).lstrip()
    close = '"""' if "\n" not in doc else '\n        """'
    return f'    def {primitive.name}(\n{parameters}    ) -> {_RETURNS[primitive.makes]}:\n        """{text}{close}\n'


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


__all__ = ["docstring", "method_of", "signature", "stub"]
