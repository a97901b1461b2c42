"""The primitives as methods of `Schedule`, made from their declarations; `methods.pyi` shows them to type checkers.

After a primitive was added or changed, `pytest tests/loop_schedule/test_methods.py --update-golden` writes that file.
"""

from __future__ import annotations

from neptune_lab.loop_schedule.as_method import method_of
from neptune_lab.loop_schedule.primitives import PRIMITIVES

PrimitiveMethods = type(
    "PrimitiveMethods",
    (),
    {
        "__doc__": "A method for each primitive; `Schedule` inherits them.",
        "__module__": __name__,
        "__slots__": (),
        **{name: method_of(primitive) for name, primitive in PRIMITIVES.items()},
    },
)

__all__ = ["PrimitiveMethods"]
