"""A mod called on every position: its result checked, its mistakes told with the line that made them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.arrays import Array, constant, unread
from neptune_lab.operators.base import name_of
from neptune_lab.operators.operations import kind_of, to_tvm
from neptune_lab.operators.repeated_calls import first_value, value_of_repeated
from neptune_lab.operators.scalar import Scalar
from neptune_lab.strict.console import source_line

_OURS = Path(__file__).parents[1]
_USUAL = "mods take Python's operators, torch's elementwise functions and elements of captured tensors"
_ONE_POSITION = (
    "the arguments of a mod are numbers of one position, without axes: index captured tensors with them, as in "
    "`table[kv]`, and take lengths from tensors outside of the mod"
)


def call_mod(argument: str, mod: Callable[..., Any], *args: Any) -> Any:
    """The mod's value on `args` (TVM expressions, or NumPy arrays), unwrapped and of the right kind.

    Args:
        argument: "score_mod" or "mask_mod", for messages; it decides the kind, float32 (float64) or bool.
        mod: the user's function.
        args: what it is called with.
    """
    named = name_of(mod) if callable(mod) else f"a tensor of shape {mod.shape}" if isinstance(mod, Array) else repr(mod)
    shown = f"{argument}={named}"
    signature = "(score, b, h, q, kv)" if argument == "score_mod" else "(b, h, q, kv)"
    _check_arguments(shown, signature, mod, args)
    result = _result_of(shown, mod, args)
    wanted = "float" if argument == "score_mod" else "bool"
    value = result.value if isinstance(result, Scalar) else result
    if isinstance(result, Array):
        raise DefinitionError(
            f"{shown}: {unread(result)}",
            help="index it with the mod's arguments, such as bias[q, kv], or reduce it, such as .sum()",
        )
    if not isinstance(result, Scalar | bool | int | float | np.bool_ | np.integer | np.floating):
        raise DefinitionError(
            f"{shown} returned {type(result).__name__}: expected a {wanted} made from its arguments",
            help="return an expression of the arguments, such as score * 2, or q >= kv for a mask",
        )
    kind = kind_of(value)
    if (kind == "bool") != (wanted == "bool"):
        help = "compare: `q >= kv`" if wanted == "bool" else "select: `torch.where(condition, score, other)`"
        raise DefinitionError(f"{shown} returned {kind}: expected {wanted}", help=help)
    symbolic = not isinstance(args[0], np.ndarray)
    return to_tvm(value, "float32" if wanted == "float" else "bool") if symbolic else np.asarray(value)


def _check_arguments(shown: str, signature: str, mod: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raises DefinitionError unless the mod is a function that takes these arguments."""
    if not callable(mod):
        usual = "write it as a function or lambda with these arguments"
        reads = "a function can read it: lambda b, h, q, kv: mask[q, kv]"
        is_mask = isinstance(mod, Array) and "score" not in signature
        raise DefinitionError(f"{shown}: expected a function of {signature}", help=reads if is_mask else usual)
    try:
        inspect.signature(mod).bind(*args)
    except ValueError:
        pass  # a builtin without a signature: the call will tell
    except TypeError as error:
        raise DefinitionError(
            f"{shown}: expected a function of {signature}, but {error}: it takes {inspect.signature(mod)}",
            help="write it as a function or lambda with these arguments",
        ) from error


def _result_of(shown: str, mod: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What the mod returns, as it is.

    Raises:
        DefinitionError: the mod raises an error, whose line in the mod the message names; or it is no function of its
            arguments.
    """

    def call() -> Any:
        return constant(mod(*(Scalar(a) for a in args)))

    try:
        if isinstance(args[0], np.ndarray):
            return first_value(call)[0]
        return value_of_repeated(call)
    except DefinitionError as error:
        where = _line_of(error.__traceback__)
        raise DefinitionError(f"{shown}: {error.reason}{where}", help=error.help) from error
    except IndexError as error:  # an array that stands in no variable
        where = _line_of(error.__traceback__)
        help = _ONE_POSITION if "tuple index" in str(error) else "give the array a variable of its own and index it"
        raise DefinitionError(f"{shown}: {error}{where}", help=help) from error
    except Exception as error:
        where = _line_of(error.__traceback__)
        called = re.search(r"HigherOrderOperator (\w+)", str(error))
        if isinstance(error, NotImplementedError) and called is not None:
            raise DefinitionError(
                f"{shown}: a mod calls torch's operator {called[1]}, which takes functions{where}",
                help="call them in the mod, and choose between their results with `torch.where`",
            ) from error
        text = str(error).replace("'Scalar'", "'value at one position'")
        raise DefinitionError(
            f"{shown}: {type(error).__name__}: {text}{where}",
            help=_USUAL if text == str(error) else _ONE_POSITION,
        ) from error


def _line_of(traceback: TracebackType | None) -> str:
    """ ", in FILE, line N: `the line`" of the innermost call that is the user's; "" where there is none."""
    found = ""
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if not path.is_relative_to(_OURS) and not {"torch", "numpy", "tvm"} & set(path.parts):
            line = source_line(str(path), traceback.tb_lineno)
            found = f", in {path}, line {traceback.tb_lineno}" + (f": `{line}`" if line else "")
        traceback = traceback.tb_next
    return found
