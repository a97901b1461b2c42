"""Names of the dtypes that programs, kernels and files may have."""

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
# Floats of 16 bits, which a matrix unit multiplies.
HALVES = ("float16", "bfloat16")
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
DTYPES = FLOATS | INTEGERS | {"bool"}


def usual(value: float | int | bool) -> str:
    """The dtype of a literal in a program's text that nothing gives another one."""
    return "bool" if isinstance(value, bool) else "int32" if isinstance(value, int) else "float32"
