"""A cache of the outcomes of primitives, which are functions of a program and plain arguments.

The same steps are applied again when an operator is compiled a second time, when parts of it are tried, and when an
edit is undone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Const, Program, walk
from neptune_lab.loop_schedule.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neptune_lab.loop_schedule.primitives import Primitive

_Key: TypeAlias = tuple[str, str, Program, tuple[str, ...], bool]
_outcomes: OrderedDict[_Key, Outcome] = OrderedDict()
_MOST = 512

_resized: ContextVar[bool] = ContextVar("resized", default=False)


@contextmanager
def at_other_sizes() -> Iterator[None]:
    """Inside, steps that were applied and checked before are applied again at other sizes, and their program is run.

    The numeric checks of a derived h are omitted, since h does not depend on sizes. The caller verifies the last
    program instead of each one.
    """
    before = _resized.set(True)
    try:
        yield
    finally:
        _resized.reset(before)


def resized() -> bool:
    """Whether this is inside `at_other_sizes`."""
    return _resized.get()


def cached_outcome(primitive: Primitive, program: Program, arguments: Mapping[str, Any]) -> Outcome:
    """`primitive.apply(program, **arguments)`, from the cache if it was called with the same program and arguments.

    Args:
        primitive: the primitive.
        program: the program before the step.
        arguments: of the primitive, checked by their kinds.

    Returns:
        The outcome.

    Raises:
        NeptuneError: the primitive refuses. Refusals are not cached.
    """
    # 1, 1.0 and True are equal in Python, and so are 0.0 and -0.0; their texts differ.
    key = (primitive.name, repr(sorted(arguments.items())), program, _constants(program), resized())
    known = _outcomes.pop(key, None)
    if known is None:
        known = primitive.apply(program, **arguments)
        if known.program is program:  # callers compare by identity to see whether anything changed
            return known
    _outcomes[key] = known
    if len(_outcomes) > _MOST:
        _outcomes.popitem(last=False)
    return known


def clear_outcomes() -> None:
    """Empties the cache, for tests that change the compiler."""
    _outcomes.clear()


def _constants(program: Program) -> tuple[str, ...]:
    """Every constant of the program as text, in order."""
    constants: list[str] = []
    for block in tree.blocks(program):
        stores = [block.body] if block.init is None else [block.body, block.init]
        exprs = [e for s in stores for e in (*s.indices, s.value)]
        for expr in (*exprs, *block.predicates, *(it.binding for it in block.iters)):
            constants += [repr(e.value) for e in walk(expr) if isinstance(e, Const)]
    return tuple(constants)


__all__ = ["at_other_sizes", "cached_outcome", "clear_outcomes", "resized"]
