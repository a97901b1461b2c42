"""Imports TVM without the errors that it raises and catches on the way.

For the first error of a process, TVM's libraries read the symbols of all libraries that are loaded, to print where it
was raised.  With torch's, that takes 0.6 s, and most processes that compile meet no other error of TVM's.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_AUTOLOAD = "TVM_DEVICE_BACKEND_AUTOLOAD"
# TVM goes without this module, whose library it loads later, if importing it fails.
_OPTIONAL = "tvm.runtime.disco"


def load_tvm() -> None:
    """Imports TVM as `import tvm` does."""
    if "tvm" in sys.modules:
        return
    asked = os.environ.get(_AUTOLOAD)
    sys.modules[_OPTIONAL] = None
    os.environ[_AUTOLOAD] = "0"
    try:
        import tvm  # noqa: F401
    finally:
        del sys.modules[_OPTIONAL]
        os.environ.pop(_AUTOLOAD)
        if asked is not None:
            os.environ[_AUTOLOAD] = asked
    from tvm.backend import _autoload_backends as backends

    if asked == "0":
        return
    with _silent_lookups():
        backends._AUTO_LOAD_DONE = False
        backends._autoload_backends()


@contextmanager
def _silent_lookups() -> Iterator[None]:
    """Inside, TVM's libraries raise no error where its backends look up an operator that does not exist, or name one
    that has this name already: they catch every exception."""
    from tvm.ir import Op
    from tvm.tirx.script.builder import ir

    get, register, known = Op.__dict__["get"], ir._register_op_attr, frozenset(map(str, Op.list_op_names()))

    def found(name: str) -> Op:
        if name not in known:
            raise AttributeError(f"operator {name} is not registered")
        return get.__func__(name)

    def registered(name: str, attribute: str, value: object = None, level: int = 10) -> object:
        if name in known and get.__func__(name).get_attr(attribute) == value:
            raise AttributeError(f"operator {name} has this {attribute} already")
        return register(name, attribute, value, level=level)

    Op.get, ir._register_op_attr = staticmethod(found), registered
    try:
        yield
    finally:
        Op.get, ir._register_op_attr = get, register


__all__ = ["load_tvm"]
