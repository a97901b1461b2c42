"""neptune_lab: an interactive explorer of the Neptune tensor compiler.

The public names load on first use (PEP 562): `import neptune_lab` alone loads neither TVM nor SymPy nor torch, and a
saved trace opens on a machine that has none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from neptune_lab.collector import uncollected as _uncollected
from neptune_lab.strict.console import no_attribute as _no_attribute
from neptune_lab.strict.parser import mend_parser as _mend_parser

if TYPE_CHECKING:
    from neptune_widgets import course
    from neptune_widgets.explanation import explain
    from neptune_widgets.explorer import explore
    from neptune_widgets.magic import load_ipython_extension
    from neptune_widgets.solver import solver
    from neptune_widgets.timing import time

    from neptune_lab import errors, operators, repair, trace
    from neptune_lab.loop_schedule import Schedule, templates
    from neptune_lab.operators.dims import dim
    from neptune_lab.pipeline import CodeOptions, Kernel, SplitKConfig, TileConfig, compile
    from neptune_lab.pipeline.bisect import bisect
    from neptune_lab.pytorch import attention, paged_attention, register_attention, scaled_dot_product_attention
    from neptune_lab.target import Target
    from neptune_lab.torch_to_stages import from_torch
    from neptune_lab.trace import load_trace
    from neptune_lab.tuning.tune import tune

    __version__: str

__all__ = [
    "CodeOptions",
    "Kernel",
    "Schedule",
    "SplitKConfig",
    "Target",
    "TileConfig",
    "attention",
    "bisect",
    "compile",
    "course",
    "dim",
    "errors",
    "explain",
    "explore",
    "from_torch",
    "load_ipython_extension",
    "load_trace",
    "operators",
    "paged_attention",
    "register_attention",
    "repair",
    "scaled_dot_product_attention",
    "solver",
    "templates",
    "time",
    "trace",
    "tune",
]

# The place of each public name: "module:attribute", or "module" if the name is a module.
_HOMES = {
    "CodeOptions": "neptune_lab.pipeline:CodeOptions",
    "Kernel": "neptune_lab.pipeline:Kernel",
    "Schedule": "neptune_lab.loop_schedule:Schedule",
    "SplitKConfig": "neptune_lab.pipeline:SplitKConfig",
    "Target": "neptune_lab.target:Target",
    "TileConfig": "neptune_lab.pipeline:TileConfig",
    "attention": "neptune_lab.pytorch:attention",
    "bisect": "neptune_lab.pipeline.bisect:bisect",
    "compile": "neptune_lab.pipeline:compile",
    "course": "neptune_widgets.course",
    "dim": "neptune_lab.operators.dims:dim",
    "errors": "neptune_lab.errors",
    "explain": "neptune_widgets.explanation:explain",
    "explore": "neptune_widgets.explorer:explore",
    "from_torch": "neptune_lab.torch_to_stages:from_torch",
    "load_ipython_extension": "neptune_widgets.magic:load_ipython_extension",
    "load_trace": "neptune_lab.trace:load_trace",
    "operators": "neptune_lab.operators",
    "paged_attention": "neptune_lab.pytorch:paged_attention",
    "register_attention": "neptune_lab.pytorch:register_attention",
    "repair": "neptune_lab.repair",
    "scaled_dot_product_attention": "neptune_lab.pytorch:scaled_dot_product_attention",
    "solver": "neptune_widgets.solver:solver",
    "templates": "neptune_lab.loop_schedule.templates",
    "time": "neptune_widgets.timing:time",
    "trace": "neptune_lab.trace",
    "tune": "neptune_lab.tuning.tune:tune",
}

# Packages that pip installs only on systems with wheels of them.
_COMPILER = {"tvm", "tvm_ffi", "torch", "triton"}
_WITHOUT = " (it has wheels for Linux; load_trace, explore of a saved record, repair and solver work without it)"

_mend_parser()


def _installed_version() -> str:
    """The installed package's version, which the build takes from git; "0+unknown" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("neptune-lab")
    except PackageNotFoundError:  # a source tree on PYTHONPATH alone
        return "0+unknown"


def __getattr__(name: str) -> object:
    if name == "__version__":
        return globals().setdefault(name, _installed_version())
    if name not in _HOMES:
        raise _no_attribute(f"module {__name__!r}", name, __all__, listed=True)
    module, _, attribute = _HOMES[name].partition(":")
    try:
        value = _uncollected(import_module)(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if missing.partition(".")[0] == __name__:
            raise  # a mistake of ours, not a package that is not installed
        extra = "[widgets]" if module.startswith("neptune_widgets") else ""
        raise ImportError(
            f"{__name__}.{name} needs {missing!r}, which is not installed here: pip install 'neptune-lab{extra}'"
            f"{_WITHOUT if missing.partition('.')[0] in _COMPILER else ''}",
            name=missing,
        ) from error
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value  # __getattr__ is not called for it again
    return value


def __dir__() -> list[str]:
    """What completion lists: the public names, whether they are loaded or not, and none that only this file uses."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
