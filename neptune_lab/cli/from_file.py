"""A function or module of a Python file, as `FILE.py:NAME` names it on the command line."""

from __future__ import annotations

import difflib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from neptune_lab.errors import DefinitionError, TextError
from neptune_lab.files import quoted
from neptune_lab.input_specs import parse_inputs

_INPUTS = '--inputs "q=float16[1,4,256,64] k=… v=…"'


@dataclass(frozen=True, slots=True)
class FromFile:
    """A function of PyTorch with the arguments to trace it with.

    Args:
        function: the function, or a `torch.nn.Module`.
        arguments: positional ones.
        title: its name in the file.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    title: str


def names_a_file(text: str) -> bool:
    """Whether OPERATOR on the command line names a function of a file.

    >>> names_a_file("model.py:attention"), names_a_file("attention.causal")
    (True, False)
    """
    return text.endswith(".py") or ".py:" in text


def from_file(text: str, inputs: str | None) -> FromFile:
    """The function that a command line names.  Its file runs, as `python FILE.py` would run it, but under another name.

    Args:
        text: `FILE.py:NAME`, where NAME is a function, a `torch.nn.Module`, or a class of modules that takes no
            arguments.
        inputs: of `--inputs`.

    Returns:
        The function, and arguments of the stated shapes and dtypes.

    Raises:
        DefinitionError: there is no such file or name, the file raises an error, the name is no function, or the inputs
            are missing, not written as `parse_inputs` reads them, or not those of the function.
    """
    path, _, name = text.rpartition(":") if ".py:" in text else (text, "", "")
    if not Path(path).is_file():
        raise DefinitionError(
            f"there is no file {path}", help="give the path of a Python file, as in model.py:attention"
        )
    if not name:
        raise DefinitionError(
            f"{text} names no function", help=f"add one after a colon, as in {path}:attention {_INPUTS}"
        )
    if inputs is None:
        raise DefinitionError(f"{text} needs --inputs", help=f"add the shape and the dtype of each, as in {_INPUTS}")
    try:
        specs = parse_inputs(inputs)
    except TextError as error:
        raise DefinitionError(f"--inputs, {error.reason}", help=error.help) from error

    # Before the file runs, since this sets Triton's interpreter up.
    from neptune_lab.torch_to_stages.arguments import callable_of, example_arguments

    function = callable_of(_function_of(_module(Path(path)), path, name), name, path)
    return FromFile(function, example_arguments(function, specs), name)


def _module(path: Path) -> ModuleType:
    """The file as a module; what it imports is looked for in its folder first."""
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "neptune_lab_user_file"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import does: a dataclass of the file looks its module up
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
        where = f"{path}" if line is None else f"{path}, line {line}"
        if isinstance(error, SystemExit):
            raise DefinitionError(
                f"{where}: the file ends the program (sys.exit) when it is imported",
                help=f'put what only `python {quoted(path)}` should run below `if __name__ == "__main__":`',
            ) from error
        words = error.msg if isinstance(error, SyntaxError) else error
        raise DefinitionError(
            f"{where}: {type(error).__name__}: {words}", help=f"the file itself must run: python {quoted(path)}"
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _function_of(module: ModuleType, path: str, name: str) -> object:
    if not hasattr(module, name):
        functions = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        near = difflib.get_close_matches(name, functions, 1) or functions[:8]
        raise DefinitionError(
            f"{path} defines no {name!r}",
            help=f"it has {', '.join(near)}" if near else "name a function or a module of the file",
        )
    return getattr(module, name)


__all__ = ["FromFile", "from_file", "names_a_file"]
