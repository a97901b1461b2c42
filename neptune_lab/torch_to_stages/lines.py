"""The user's line behind each operation of a traced function."""

from __future__ import annotations

import ast
import contextlib
import linecache
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from neptune_lab.strict.console import source_line

_OURS = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)
_RUNTIME = str(Path(_OURS) / "runtime")
_TRITON = str(Path(torch.__file__).parents[1] / "triton")
_TRACE = re.compile(r'File "(?P<path>.*)", line (?P<line>\d+), in (?P<function>.*)')


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's Python.

    Args:
        path: of the file, or the name that IPython gives to a cell.
        line: counted from 1.
        function: the function that contains it.
    """

    path: str
    line: int
    function: str

    @property
    def text(self) -> str:
        """The line without its indentation; "" if its file cannot be read."""
        return linecache.getline(self.path, self.line).strip()

    def __str__(self) -> str:
        text = source_line(self.path, self.line)
        text = f": `{text}`" if text else ""
        return f"{_place(self.path)}, line {self.line}{text}"

    def to_json(self) -> dict[str, str | int]:
        """Plain JSON data."""
        return {"path": self.path, "line": self.line, "function": self.function, "text": self.text}

    def assigned_name(self) -> str:
        """The variable that the line assigns; "" if it does not assign a single one.

        >>> SourceLine("<none>", 1, "f").assigned_name()
        ''
        """
        first = self.text.partition("#")[0].strip()
        name, equals, rest = first.partition("=")
        if not equals or rest.startswith("=") or not name.strip(" +-*/").isidentifier():
            return ""
        try:
            ast.parse(name.strip(" +-*/"), mode="eval")
        except SyntaxError:
            return ""
        return name.strip(" +-*/")


class RecordedLines(TorchFunctionMode):
    """While it is active, torch's tracer notes on each node the user's line that called torch, and its callers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls `func` with the user's line as the stack trace of the nodes that it makes."""
        found = _user_frames(sys._getframe(1))
        if found:
            lines = ((f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in reversed(found))
            fx_traceback.set_stack_trace([f'  File "{path}", line {n}, in {name}\n' for path, n, name in lines])
        return func(*args, **(kwargs or {}))


def line_of_node(node: torch.fx.Node) -> SourceLine | None:
    """The line that `RecordedLines` noted on a node, or on the nearest one before it; None if there is none."""
    lines = lines_of_node(node)
    return lines[-1] if lines else None


def lines_of_node(node: torch.fx.Node) -> tuple[SourceLine, ...]:
    """That line, after the lines of the traced function and of those that it calls, whose calls led there."""
    matches = _TRACE.finditer(node.meta.get("stack_trace") or "")
    return tuple(SourceLine(m["path"], int(m["line"]), m["function"]) for m in matches)


def line_of_caller() -> SourceLine | None:
    """The user's line that is running now; None if there is none."""
    frame = _user_frame(sys._getframe(1))
    return None if frame is None else SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def line_of_error(traceback: TracebackType | None) -> SourceLine | None:
    """The innermost line of a traceback that is neither torch's nor this package's, up to the launch of a kernel; None
    if there is none."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename.startswith(_RUNTIME):
            break
        if is_users(code.co_filename):
            found = SourceLine(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found


def _user_frames(frame: FrameType | None) -> list[FrameType]:
    """The user's frames up to where this package called the traced function, the innermost first; if there is none, the
    one that called this package."""
    found = []
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        if is_users(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    outside = _user_frame(frame)
    return found or ([] if outside is None else [outside])


def _user_frame(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_users(path: str) -> bool:
    """Whether a file is neither torch's, Triton's nor this package's, nor contextlib or the part of IPython that runs
    cells."""
    if path.startswith(
        (_OURS, _TORCH, _TRITON, "<frozen", "<eval_with_key>", "<string>", "<__array", contextlib.__file__)
    ):
        return False
    return Path(path).parts[-2:-1] != ("neptune_widgets",) and Path(path).parts[-3:-1] != ("IPython", "core")


def _place(path: str) -> str:
    """A file's path, or the name that tracebacks give to a cell: "cell In[3]"."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cell = None if shell is None else shell.compile.format_code_name(path)
    return path if cell is None else f"cell {cell[1]}"
