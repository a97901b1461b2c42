"""Assembly of one float per thread, or of four, as `inline_asm_elementwise` takes it, on arrays.

    { .reg .f32 e; mul.f32 e, $1, 0f40000000; add.f32 $0, e, $1; }   =>   3 x

$0 is the result, $1 and on are the operands.  Of four floats per thread, adjacent ones, $0 and on are results of four
bytes each, and the floats follow.  Only what our helpers use is known.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neptune_lab.gluon_simulator.tiles import E4M3, Tile, tile

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


def _eights(values: Any) -> Any:
    """Rounded to e4m3, where the largest stands for all above it, as bytes."""
    return tile(values).to(E4M3).view(np.ndarray).view(np.uint8)


def _above(values: Any) -> Any:
    """Values, or 0 for those below it; NaN stays."""
    return np.maximum(values, np.float32(0))


def _pair(high: Any, low: Any, dtype: Any) -> Any:
    """Two numbers side by side."""
    return np.stack([low, high], -1).view(dtype)[..., 0]


def _halves(pair: Any) -> Any:
    return pair[..., None].view(np.float16)


# Of registers of two halves (uint32), or of two bytes (uint16).
_PACKED: dict[str, Callable[..., Any]] = {
    "cvt.rn.f16x2.f32": lambda high, low: _pair(np.float16(high), np.float16(low), np.uint32),
    "cvt.rn.satfinite.e4m3x2.f32": lambda high, low: _pair(_eights(high), _eights(low), np.uint16),
    "cvt.rn.satfinite.e4m3x2.f16x2": lambda pair: _eights(_halves(pair)).view(np.uint16)[..., 0],
    "cvt.rn.satfinite.relu.e4m3x2.f32": lambda high, low: _pair(_eights(_above(high)), _eights(_above(low)), np.uint16),
    "cvt.rn.satfinite.relu.e4m3x2.f16x2": lambda pair: _eights(_above(_halves(pair))).view(np.uint16)[..., 0],
    "sub.f16x2": lambda a, b: (_halves(a) - _halves(b)).view(np.uint32)[..., 0],
    "and.b32": np.bitwise_and,
    "mov.b32": lambda low, high: _pair(high, low, np.uint32),
}


def _packed(text: str, results: int, values: np.ndarray[Any, Any]) -> tuple[Tile, ...]:
    """Tiles of bytes, of instructions on four adjacent floats at a time."""
    fours = np.ascontiguousarray(values, np.float32).reshape(*values.shape[:-1], -1, 4)
    registers: dict[str, Any] = {f"${n + results}": fours[..., n] for n in range(4)}
    for instruction in text.strip("{} ").split(";"):
        name, rest = (*instruction.split(maxsplit=1), "", "")[:2]
        if not name or name == ".reg":
            continue
        if name not in _PACKED:
            raise NotImplementedError(f"the simulator does not know {name!r} of four elements")
        to, *of = [part.strip(" {}") for part in rest.split(",")]
        registers[to] = _PACKED[name](*(np.uint32(int(x, 16)) if x.startswith("0x") else registers[x] for x in of))
    made = (registers[f"${n}"][..., None].view(np.int8).reshape(values.shape) for n in range(results))
    return tuple(map(tile, made))


def inline_asm_elementwise(
    text: str, constraints: str, operands: Sequence[Any], pack: int = 1, **_: Any
) -> Tile | tuple[Tile, ...]:
    """The result of instructions on each element of float32 tiles of one shape, or on four at a time.

    Raises:
        NotImplementedError: an instruction is not known.
    """
    if pack == 4:
        results = constraints.count("=")
        if constraints != ",".join(["=r"] * results + ["f"] * 4) or len(operands) != 1:
            raise NotImplementedError(f"the simulator does not know {constraints!r} of four elements")
        made = _packed(text, results, np.asarray(operands[0]))
        return made if results > 1 else made[0]
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
