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

from neptune_lab.hashed import full_text
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.nodes import Block, Const, Program
from neptune_lab.loop_ir.walks import walk
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
    key = (primitive.name, full_text(sorted(arguments.items())), program, _constants(program), resized())
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


# Keyed by identity: blocks whose constants differ in type alone are equal. A step shares most blocks with the program
# before it. An entry keeps its block alive, so that its id stays unique.
_known_blocks: dict[int, tuple[Block, tuple[str, ...]]] = {}
_MOST_BLOCKS = 4096


def _constants(program: Program) -> tuple[str, ...]:
    """Every constant of the program as text, in order."""
    constants: list[str] = []
    for block in tree.blocks(program):
        known = _known_blocks.get(id(block))
        if known is None or known[0] is not block:
            if len(_known_blocks) >= _MOST_BLOCKS:
                _known_blocks.clear()
            known = _known_blocks[id(block)] = block, _constants_of(block)
        constants += known[1]
    return tuple(constants)


def _constants_of(block: Block) -> tuple[str, ...]:
    stores = [block.body] if block.init is None else [block.body, block.init]
    exprs = [e for s in stores for e in (*s.indices, s.value)]
    every = (*exprs, *block.predicates, *(it.binding for it in block.iters))
    return tuple([repr(e.value) for expr in every for e in walk(expr) if type(e) is Const])


__all__ = ["at_other_sizes", "cached_outcome", "clear_outcomes", "resized"]
