"""Operators: plain definitions in TVM's tensor expressions, each with a float64 reference.

A definition says *what* is computed, stage by stage, and nothing about order, fusion or tiles.  Making an operator
needs NumPy only; TVM is loaded at the first access to its `program`.

    >>> from neptune_lab.operators import attention
    >>> op = attention.causal(batch=1, heads=2, seq=8, head_dim=4)
    >>> op.name, [t.name for t in op.inputs], op.outputs[0].shape
    ('attention_causal', ['q', 'k', 'v'], (1, 2, 8, 4))
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from types import ModuleType
from typing import NoReturn

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import attention, gemm_chain, math, mla, norms, performer, rows, softmax
from neptune_lab.operators.base import Operator, TensorSpec
from neptune_lab.operators.custom import custom
from neptune_lab.operators.presets import PRESETS
from neptune_lab.operators.reverse_mode import Training, backward, training
from neptune_lab.strict.console import no_attribute, shown

# What the command line calls them; every value makes an Operator from keyword arguments.
OPERATORS: dict[str, Callable[..., Operator]] = {
    "attention.alibi": attention.alibi,
    "attention.causal": attention.causal,
    "attention.general": attention.general,
    "attention.full": attention.full,
    "attention.gqa": attention.gqa,
    "attention.prefix": attention.prefix,
    "attention.softcap": attention.softcap,
    "attention.window": attention.window,
    "gemm_chain": gemm_chain.gemm_chain,
    "mla": mla.mla,
    "norms.l2_norm": norms.l2_norm,
    "norms.layer_norm": norms.layer_norm,
    "norms.layer_norm_statistics": norms.layer_norm_statistics,
    "norms.rms_norm_max": norms.rms_norm_max,
    "norms.rms_norm_quantize": norms.rms_norm_quantize,
    "performer": performer.performer,
    "rows.cross_entropy": rows.cross_entropy,
    "rows.log_sum_exp": rows.log_sum_exp,
    "rows.softmax": rows.softmax,
    "softmax.figure1": softmax.figure1,
}

__all__ = [
    "OPERATORS", "PRESETS", "Operator", "TensorSpec", "Training", "attention", "backward", "custom", "find",
    "gemm_chain", "math", "mla", "norms", "performer", "rows", "softmax", "training",
]  # fmt: skip


def _list_operators(module: ModuleType) -> None:
    """Lets completion list the functions of `module` alone, and the error of one that it has not name the nearest."""

    def own() -> set[str]:
        made = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        return made.union(vars(module).get("__all__", ()))

    def missing(name: str) -> NoReturn:
        raise no_attribute(f"module {module.__name__!r}", name, own())

    # Set here: of functions that are written there, type checkers would infer that the module has any name.
    module.__getattr__ = missing  # type: ignore[method-assign]
    module.__dir__ = lambda: sorted({*(n for n in vars(module) if n.startswith("__")), *own()})  # type: ignore[method-assign]


for _module in (attention, gemm_chain, mla, norms, performer, rows, softmax):
    _list_operators(_module)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


def find(name: str) -> Callable[..., Operator]:
    """The function that makes an operator or preset.

    Args:
        name: of an operator or preset, such as "attention.causal" or "causal_pf".

    Returns:
        A function from sizes and options to an `Operator`.

    Raises:
        DefinitionError: there is none of that name; the help lists the nearest names.
    """
    if not isinstance(name, str):
        raise DefinitionError(
            f"name={shown(name)}: expected the name of an operator, such as 'attention.causal'",
            help="`neptune-lab list` lists the names",
        )
    if name in PRESETS:
        return attention.preset_function(name)
    if name in gemm_chain.PRESETS:
        return gemm_chain.preset_function(name)
    if name not in OPERATORS:
        names = (*OPERATORS, *PRESETS, *gemm_chain.PRESETS)
        near = get_close_matches(name, names, 1)
        meant = f"did you mean {near[0]!r}? The names: " if near else "one of "
        raise DefinitionError(f"there is no operator {name!r}", help=meant + ", ".join(names))
    return OPERATORS[name]
