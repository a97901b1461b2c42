"""In an environment without extras: import, compile, run and check a kernel; extras are named where they are needed."""

import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import neptune_lab as nl
from neptune_lab.tuning.dask_workers import DaskWorkers

assert Path(nl.__file__).is_relative_to(sys.prefix), nl.__file__
assert nl.__version__ == version("neptune-lab") == sys.argv[1]
kernel = nl.compile(nl.operators.attention.causal(batch=1, heads=1, seq=8, head_dim=4), block_q=4, block_kv=4)
assert kernel.relative_error() < 1e-2, kernel.relative_error()
with tempfile.TemporaryDirectory() as folder:
    nl.trace.save(kernel.trace, Path(folder, "record.json"))
    assert nl.load_trace(Path(folder, "record.json")) == kernel.trace
assert kernel.trace.versions["neptune-lab"] == nl.__version__


def refused(call: Callable[[], object]) -> str:
    """The help that the call is refused with."""
    try:
        call()
    except ImportError as error:
        return str(error)
    except nl.errors.MeasureError as error:
        return str(error.help)
    raise AssertionError("the extra's packages are installed without the extra")


assert "pip install 'neptune-lab[widgets]'" in refused(lambda: nl.explore(kernel))
assert refused(lambda: DaskWorkers("tcp://127.0.0.1:1")) == "pip install 'neptune-lab[tune]'"
