"""Assembly of one float per thread, as `inline_asm_elementwise` takes it, on arrays.

    { .reg .f32 e; mul.f32 e, $1, 0f40000000; add.f32 $0, e, $1; }   =>   3 x

$0 is the result, $1 and on are the operands.  Only what our helpers use is known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neptune_lab.gluon_simulator.tiles import Tile, tile

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs.f32": np.abs,
    "add.f32": np.add,
    "sub.f32": np.subtract,
    "mul.f32": np.multiply,
    "div.full.f32": np.divide,
    "ex2.approx.ftz.f32": np.exp2,
    "tanh.approx.f32": np.tanh,
    "setp.lt.f32": np.less,
    "selp.f32": lambda a, b, condition: np.where(condition, a, b),
}


def inline_asm_elementwise(text: str, constraints: str, operands: Sequence[Any], **_: Any) -> Tile:
    """The result of instructions on each element of float32 tiles of one shape.

    Raises:
        NotImplementedError: an instruction is not known.
    """
    registers: dict[str, Any] = {f"${n}": np.float32(operand) for n, operand in enumerate(operands, 1)}
    for instruction in text.strip("{} ").split(";"):
        name, rest = (*instruction.split(maxsplit=1), "", "")[:2]
        if not name or name == ".reg":
            continue
        if name not in _OPERATIONS or constraints.replace("=", "") != ",".join("f" * (1 + len(operands))):
            raise NotImplementedError(f"the simulator does not know {name!r} with {constraints!r}")
        to, *of = [part.strip() for part in rest.split(",")]
        registers[to] = _OPERATIONS[name](*(_value(part, registers) for part in of))
    return tile(np.float32(registers["$0"]))


def _value(operand: str, registers: dict[str, Any]) -> Any:
    """What a register holds, or a constant."""
    if re.fullmatch("0f[0-9A-Fa-f]{8}", operand):
        return np.float32(struct.unpack(">f", bytes.fromhex(operand[2:]))[0])
    return registers[operand]


__all__ = ["inline_asm_elementwise"]
