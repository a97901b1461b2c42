"""What a primitive made of a program, remembered: primitives are functions of a program and plain arguments.

The same steps are applied again when an operator is compiled a second time, when parts of it are tried, and when an
edit is taken back.
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
    """Inside, steps that were applied and checked are applied once more at other sizes, to be run there.

    The numeric checks of a derived h are left out, since h does not depend on sizes. The caller verifies the last
    program instead of each one.
    """
    before = _resized.set(True)
    try:
        yield
    finally:
        _resized.reset(before)


def resized() -> bool:
    """Whether steps are applied once more, at other sizes."""
    return _resized.get()


def outcome_of(primitive: Primitive, program: Program, arguments: Mapping[str, Any]) -> Outcome:
    """`primitive.apply(program, **arguments)`, or what it gave before for the same program and arguments.

    Raises:
        NeptuneError: the primitive refuses; a refusal is not remembered.
    """
    # Python takes 1, 1.0 and True for equal, and 0.0 and -0.0: their texts differ.
    key = (primitive.name, repr(sorted(arguments.items())), program, _constants(program), resized())
    known = _outcomes.pop(key, None)
    if known is None:
        known = primitive.apply(program, **arguments)
        if known.program is program:  # callers ask by identity whether anything changed
            return known
    _outcomes[key] = known
    if len(_outcomes) > _MOST:
        _outcomes.popitem(last=False)
    return known


def forget_outcomes() -> None:
    """Every step is applied again: for tests that change the compiler."""
    _outcomes.clear()


def _constants(program: Program) -> tuple[str, ...]:
    """Every constant of the program as text, in order."""
    found: list[str] = []
    for block in tree.blocks(program):
        stores = [block.body] if block.init is None else [block.body, block.init]
        exprs = [e for s in stores for e in (*s.indices, s.value)]
        for expr in (*exprs, *block.predicates, *(it.binding for it in block.iters)):
            found += [repr(e.value) for e in walk(expr) if isinstance(e, Const)]
    return tuple(found)


__all__ = ["at_other_sizes", "forget_outcomes", "outcome_of", "resized"]
