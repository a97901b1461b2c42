"""Whether 32 bits hold what a definition computes of positions and integers, where PyTorch's integers have 64."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from neptune_lab.loop_ir.dtypes import dtype_of
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Program, Var, children
from neptune_lab.loop_ir.simplify import Bounds
from neptune_lab.loop_ir.tree import blocks
from neptune_lab.loop_ir.walks import loads, transform, walk
from neptune_lab.scalar_ops import OPERATIONS
from neptune_lab.strict.dtypes import INTEGERS

Limits: TypeAlias = tuple[int, int]

# The range that is stated for integers of 32 bits that mods capture: offsets, lengths and labels.
OFFSETS: Limits = (-(2**23), 2**23 - 1)

# Stands for an element that PyTorch has in 32 bits or fewer; it has no bounds.
_OWN = Var("PyTorch's int32")


def exceeds_int32(
    program: Program, sizes: Mapping[int, int] = MappingProxyType({}), captured: Limits | None = None
) -> bool:
    """Whether an integer that PyTorch computes in 64 bits and the definition in 32 may leave these.

    Formal statement: every operation of int32 has bounds within int32 over the program's loops, unless it combines
    elements that PyTorch has in 32 bits itself (those of inputs, and what is converted from floats and int64): it wraps
    there too.  A definition converts such an element before it meets a position of 64 bits.

    With `captured`, operations of elements and positions count as PyTorch's of 64 bits, those without bounds are taken
    to be small (except shifts), and elements have these limits.

    Args:
        program: a definition.
        sizes: other extents for the iteration variables that have these.
        captured: the limits of elements of int32 inputs; None for those of their dtypes.
    """
    narrow = {b.name for b in program.buffers if b.dtype in INTEGERS and b.dtype != "int64"}
    conditions = {b.name for b in program.buffers if b.dtype == "bool"} if captured else frozenset[str]()
    limits_of: dict[str, Limits | None] = dict.fromkeys(narrow, captured)  # None: PyTorch's own in 32 bits
    for block in blocks(program):
        extents = {it.name: sizes.get(it.extent, it.extent) for it in block.iters}
        value = block.body.value if block.init is None else _term(block)
        known = Bounds(extents)

        def limited(part: Expr, extents: dict[str, int] = extents) -> Expr:
            if isinstance(part, Load) and part.buffer in conditions:
                extents[name := f"read of {part.buffer}"] = 2
                return Op("ne", (Var(name), Const(0)))
            if not isinstance(part, Load) or part.buffer not in narrow:
                return part
            limits = limits_of[part.buffer]
            if limits is None:
                return _OWN
            extents[name := f"read of {part.buffer}"] = limits[1] - limits[0] + 1
            return Op("add", (Var(name), Const(limits[0])))

        bounded = transform(value, limited)
        indices = [transform(index, limited) for load in loads(value) for index in load.indices]
        # Definitions repeat their parts: one of each is enough.
        for part in dict.fromkeys(part for whole in (bounded, *indices) for part in walk(whole)):
            if isinstance(part, Op) and dtype_of(part, program) == "int32" and not _is_own(part):
                found = known.of(part)
                if found is None and (captured is None or (part.name == "shl" and not any(loads(part)))):
                    return True
                if found is not None and not _in_32_bits(found):
                    return True
        if block.body.buffer in narrow:
            found = None if _is_own(bounded) else _stored_limits(block, bounded, known, extents)
            if found is None and not _is_own(bounded) and captured is None:
                return True
            if found is not None and found[0] <= found[1] and not _in_32_bits(found):
                return True
            limits_of[block.body.buffer] = found or captured
    return False


def _term(block: Block) -> Expr:
    """What a reduction combines with its value so far."""
    assert isinstance(block.body.value, Op)
    return block.body.value.args[1]


def _is_own(expr: Expr) -> bool:
    """Whether an integer is computed of elements that PyTorch has in 32 bits; conditions do not count."""
    match expr:
        case Cast(_, arg):
            return _is_own(arg) or any(loads(arg))
        case Op("select", (_, a, b)):
            return _is_own(a) or _is_own(b)
        case Op(name, _) if OPERATIONS[name].kind in ("comparison", "logic"):
            return False
        case Load():
            return False
    return expr == _OWN or any(map(_is_own, children(expr)))


def _in_32_bits(limits: Limits) -> bool:
    return -(2**31) <= limits[0] <= limits[1] < 2**31


def _stored_limits(block: Block, term: Expr, known: Bounds, extents: Mapping[str, int]) -> Limits | None:
    """Limits of what a block of a definition stores: of a reduction, of its last value; None if they are not known."""
    limits = known.of(term)
    if block.init is None or limits is None:
        return limits
    count = prod(extents[it.name] for it in block.iters if it.kind == "reduce")
    match block.body.value:
        case Op("max" | "min", _):
            return limits
        case Op("add", _):
            return min(count * limits[0], limits[0], 0), max(count * limits[1], limits[1], 0)
        case Op("mul", _) if limits[0] >= -1 and limits[1] <= 1:
            return min(limits[0], 0), 1
    return None


__all__ = ["OFFSETS", "exceeds_int32"]
