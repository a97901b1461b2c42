"""The Python code that makes again what an explorer shows: the operator, its steps, the compilation."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING

from neptune_widgets.sizes import again, function_name

if TYPE_CHECKING:
    from neptune_lab import Kernel
    from neptune_lab.operators import Operator
    from neptune_widgets.session import Session


def as_python(session: Session) -> str:
    """Code to paste into a cell.

    Args:
        session: what is shown.

    Returns:
        Lines of Python. An operator that is not of the library is only named, since its definition is elsewhere.
    """
    lines = ["import neptune_lab as nl", "", _operator(session.operator), "sch = nl.Schedule(op)"]
    steps = session.schedule.to_python().rstrip("\n")
    lines += [steps] if steps else []
    if session.kernel is not None:
        lines.append(f"kernel = nl.compile(sch{_options(session.kernel)})")
    return "\n".join(lines) + "\n"


def _operator(operator: Operator) -> str:
    from neptune_lab.operators import OPERATORS

    name = function_name(operator)
    made = again(operator, {})
    if name is None or made is None or made.program != operator.program:
        return f"op = ...  # your operator {operator.name}"
    taken = inspect.signature(OPERATORS[name]).parameters
    given = {
        n: value
        for n, value in operator.params.items()
        if n in taken and not (value == taken[n].default and type(value) is type(taken[n].default))
    }
    return f"op = nl.operators.{name}({', '.join(f'{n}={value!r}' for n, value in given.items())})"


def _options(kernel: Kernel) -> str:
    """The arguments of the compilation that differ from their defaults."""
    code, target = kernel.code, kernel.target
    changed = {f.name: getattr(code, f.name) for f in fields(code) if getattr(code, f.name) != f.default}
    passes = changed.pop("disable_passes", ()) if set(changed) == {"disable_passes"} else ()
    said = f", code=nl.CodeOptions({', '.join(f'{n}={v!r}' for n, v in changed.items())})" if changed else ""
    said += f", disable_passes={passes!r}" if passes else ""
    if target is None:
        return said
    return f"{said}, target={target.name!r}" if target == type(target)(target.name) else f"{said}, target=nl.{target!r}"


__all__ = ["as_python"]
