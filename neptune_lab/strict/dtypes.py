"""Names of the dtypes that programs, kernels and files may have."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

# Floats of 8 bits, which tensors hold and a matrix unit multiplies; nothing else is computed in them.
EIGHTS = ("float8_e4m3fn", "float8_e5m2")
# Floats of 16 bits, which a matrix unit multiplies.
HALVES = ("float16", "bfloat16")
FLOATS = frozenset({*EIGHTS, *HALVES, "float32", "float64"})
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
DTYPES = FLOATS | INTEGERS | {"bool"}
# The largest finite number of each float.
LARGEST_FINITE: Mapping[str, float] = MappingProxyType(
    {
        "float8_e4m3fn": 448.0,
        "float8_e5m2": 57344.0,
        "float16": 65504.0,
        "bfloat16": (2 - 2.0**-7) * 2.0**127,
        "float32": (2 - 2.0**-23) * 2.0**127,
        "float64": sys.float_info.max,
    }
)
# What values may be computed in.
COMPUTED = DTYPES - frozenset(EIGHTS)


def itemsize(dtype: str) -> int:
    """Bytes per element.

    >>> itemsize("bfloat16"), itemsize("float8_e4m3fn"), itemsize("bool")
    (2, 1, 1)
    """
    bits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    return int(bits) // 8 if bits else 1


def usual(value: float | int | bool) -> str:
    """The dtype of a literal in a program's text that nothing gives another one."""
    return "bool" if isinstance(value, bool) else "int32" if isinstance(value, int) else "float32"


def wrapped(number: int, dtype: str) -> int:
    """The number as an integer dtype holds it.

    >>> wrapped(200, "int8"), wrapped(300, "uint8")
    (-56, 44)
    """
    bits = int(dtype.lstrip("uint"))
    start = 0 if dtype.startswith("u") else 2 ** (bits - 1)
    return (number + start) % 2**bits - start
