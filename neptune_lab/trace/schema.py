"""Versions of the record's JSON form: older ones are upgraded on reading, newer ones are refused.

The schema is one number, `record.SCHEMA`, which each change of a field increases. A change needs a function in
`UPGRADES`, so that every version reads all records since `OLDEST`; tests/saved/ has a record of each schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neptune_lab.errors import TraceError
from neptune_lab.strict.console import shown
from neptune_lab.trace.record import SCHEMA

# Schema 1 was never released.
OLDEST = 2


def _without_templates(data: dict[str, Any]) -> None:
    """Schema 3 says which template applied a step; before, no step said so."""
    steps = data.get("steps")
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict):
            step["template"] = ""


def _without_python(data: dict[str, Any]) -> None:
    """Schema 4 has the user's Python that an operator was traced from; before, no operator was traced."""
    operator = data.get("operator")
    if isinstance(operator, dict):
        operator["python"] = []


def _without_sizes(data: dict[str, Any]) -> None:
    """Schema 5 names sizes that are known at the launch only; before, a record had those of its sample."""
    operator = data.get("operator")
    if not isinstance(operator, dict):
        return
    for tensors in (operator.get("inputs"), operator.get("outputs")):
        for tensor in tensors if isinstance(tensors, list) else ():
            if isinstance(tensor, dict):
                tensor["sizes"] = []


# UPGRADES[n] changes the parsed data of schema n, in place, into that of schema n + 1. The data may be anything that
# JSON can hold, and its fields are checked only afterwards.
UPGRADES: dict[int, Callable[[dict[str, Any]], None]] = {2: _without_templates, 3: _without_python, 4: _without_sizes}


def upgrade(data: dict[str, Any]) -> None:
    """Changes a record's parsed data, in place, into that of this version's schema.

    Raises:
        TraceError: there is no schema number, or one that this version does not read.
    """
    if "schema" not in data:
        raise TraceError(
            "not a record: expected an object with a field 'schema'",
            help="open a file that neptune_lab.trace.save wrote",
        )
    schema = data["schema"]
    if not isinstance(schema, int) or isinstance(schema, bool) or not OLDEST <= schema <= SCHEMA:
        read = f"schema {SCHEMA}" if OLDEST == SCHEMA else f"schemas {OLDEST} to {SCHEMA}"
        raise TraceError(f"the record has schema {shown(schema)}, this version reads {read}", help=_help(data))
    for number in range(schema, SCHEMA):
        UPGRADES[number](data)
        data["schema"] = number + 1


def _help(data: dict[str, Any]) -> str:
    schema, versions = data["schema"], data.get("versions")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < OLDEST:
        return "compile the operator again with this version, and save its record"
    writer = versions.get("neptune-lab") if isinstance(versions, dict) else None
    wrote = f"neptune-lab {shown(writer)} wrote it" if isinstance(writer, str) else "a newer neptune-lab wrote it"
    return f"{wrote}: read it with that version or a later one (pip install --upgrade neptune-lab)"
