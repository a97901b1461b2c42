"""TVM is imported without errors of its libraries, and is then as `import tvm` leaves it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from neptune_lab.loop_ir.tvm_compat.loading import load_tvm

SAYS = """
import os, tvm
names = sorted(map(str, tvm.ir.Op.list_op_names()))
print(names, [str(tvm.ir.Op.get(name).get_attr("TScriptPrinterName")) for name in names])
print(sorted(tvm.backend.loader._LOADED_BACKENDS), sorted(tvm.base._LOADED_LIBS), tvm.runtime.disco)
print(os.environ.get("TVM_DEVICE_BACKEND_AUTOLOAD"))
"""
LOAD = "from neptune_lab.loop_ir.tvm_compat.loading import load_tvm\nload_tvm()\n"


def said(script: str, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "TVM_DEVICE_BACKEND_AUTOLOAD"} | variables
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_nothing_of_it_stays():
    load_tvm()
    import tvm
    from tvm.ir import Op
    from tvm.tirx.script.builder import ir

    assert "TVM_DEVICE_BACKEND_AUTOLOAD" not in os.environ
    assert sys.modules.get("tvm.runtime.disco", tvm) is not None
    assert Op.get.__module__ == Op.__module__
    assert ir._register_op_attr.__module__ == Op.__module__
    assert "cuda" in tvm.backend.loader._LOADED_BACKENDS


@pytest.mark.nightly
@pytest.mark.parametrize("variables", [{}, {"TVM_DEVICE_BACKEND_AUTOLOAD": "0"}], ids=["all backends", "none"])
def test_it_is_as_tvm_leaves_itself(variables):
    assert said(LOAD + SAYS, **variables) == said(SAYS, **variables)
