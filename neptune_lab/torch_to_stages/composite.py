"""torch's composite operations, which it looks up and sets anew in each of its passes over a graph.

Both took four fifths of the time of tracing; neither changes from pass to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch._export import utils as export_utils
from torch._subclasses import fake_impls
from torch.export import exported_program

# Another version of torch may not have them.
_LOOK_UP: Callable[[], None] | None = getattr(export_utils, "_materialize_cpp_cia_ops", None)
_SET: Any = getattr(exported_program, "_override_composite_implicit_decomp", None)
_STAYS: Any = getattr(export_utils, "_special_op_to_preserve_cia", None)
_RULES: Any = getattr(fake_impls, "op_implementations_dict", None)


@dataclass(frozen=True, eq=False)
class _Kernels:
    """What torch sets for an operation that stays in a graph: its kernels before and inside a pass, and its rule for
    fake tensors, if it had none."""

    before: dict[Any, Any]
    inside: dict[Any, Any]
    rule: Any


_known: dict[Any, _Kernels] = {}


@contextmanager
def composite_operations_once() -> Iterator[None]:
    """Inside, torch looks up its composite operations once, and sets those that stay as it did the first time.

    The caller holds a lock: torch's passes write to the operations themselves.
    """
    once: list[tuple[Any, str, Any, Any]] = []
    if _LOOK_UP is not None:
        once.append((export_utils, "_materialize_cpp_cia_ops", _LOOK_UP, cache(_LOOK_UP)))
    if _SET is not None and _STAYS is not None and _RULES is not None:
        once.append((exported_program, "_override_composite_implicit_decomp", _SET, _set_as_before))
    for module, name, _, quick in once:
        setattr(module, name, quick)
    try:
        yield
    finally:  # torch's own, also if several threads export at once
        for module, name, own, _ in once:
            setattr(module, name, own)


@contextmanager
def _set_as_before(operations: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """torch's context, by operation: those whose kernels are what they were before the first pass need no new ones."""
    known = {op: _known[op] for op, definition in operations.items() if definition is _STAYS and _is_as_before(op)}
    new = {op: definition for op, definition in operations.items() if op not in known}
    before = {op: (dict(op.py_kernels), op in _RULES) for op in new}
    with _SET(new):
        for op, (kernels, has_rule) in before.items():
            if new[op] is _STAYS and not has_rule:
                _known[op] = _Kernels(kernels, dict(op.py_kernels), _RULES.get(op))
        try:
            for op, kernels in known.items():
                _give(op, kernels.inside)
                _RULES[op] = kernels.rule
            yield
        finally:
            for op, kernels in known.items():
                _give(op, kernels.before)
                _RULES.pop(op, None)


def _is_as_before(op: Any) -> bool:
    known = _known.get(op)
    return known is not None and known.rule is not None and op not in _RULES and op.py_kernels == known.before


def _give(op: Any, kernels: dict[Any, Any]) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


__all__ = ["composite_operations_once"]
