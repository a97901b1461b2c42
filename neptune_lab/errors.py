"""Every error that neptune_lab raises on purpose.

One root, one class per stage, so that callers (the command line, the widgets, a tuner) can tell "this schedule
is illegal" from "this program is broken" without reading text.  A message names the argument or node, what was
found, what was expected, and a fix; `node` is the stable node id, if there is one, so that a view can
show the error at its line.
"""

from __future__ import annotations

import sys
import types
from copy import copy
from pickle import PicklingError
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing import Any, Self

    from neptune_lab.repair.render import Step


def printable(text: str) -> str:
    """`text` with control characters escaped, except line ends and tabs.

    A terminal acts on escape sequences: they could hide a line, or rewrite one that was printed before.

    >>> print(printable("fast\\x1b[2Jer\\u202e"))
    fast\\x1b[2Jer\\u202e
    """
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)


# Characters of a message, and of its help.
LONGEST = 1500


def brief(text: str) -> str:
    """`text`, or its start and end if it is longer than `LONGEST` characters.

    A path, a list or a source text that is quoted whole would hide what is wrong with it.

    >>> len(brief("[" + 5000 * "1, " + "]")) < 1600
    True
    """
    if len(text) <= LONGEST:
        return text
    start, end = 2 * LONGEST // 3, LONGEST // 3
    return f"{text[:start]} … ({len(text) - start - end:,} characters left out) … {text[-end:]}"


class NeptuneError(Exception):
    """Root of all errors of this package.

    Args:
        message: one clear sentence or two: what, where, and why.
        node: stable id of the node the error belongs to (a block, a loop, a line), or None.
        help: a fix, or None for the `usual_help` of the class.
    """

    usual_help: ClassVar[str | None] = None

    def __init__(self, message: str, *, node: str | None = None, help: str | None = None) -> None:
        message = brief(printable(message))
        help = self.usual_help if help is None else brief(printable(help))
        super().__init__(message if help is None else f"{message}\n  help: {help}")
        self.reason = message
        self.node = node
        self.help = help

    def with_fix(self, fix: str) -> Self:
        """The same error, whose help names another fix before its own; in place of the usual one."""
        made = copy(self)
        made.help = fix if self.help in (None, self.usual_help) else f"{fix}; or {self.help}"
        made.args = (f"{self.reason}\n  help: {made.help}",)
        return made

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the lines of the user's code alone, since the message says what was wrong there.

        `%xmode Verbose` shows every frame, and what the error was raised from.
        """
        formatter = sys.modules["IPython"].get_ipython().InteractiveTB
        lines = users_frames(self.__traceback__)
        if lines is None or formatter.mode == "Verbose":
            return formatter.structured_traceback(type(self), self, self.__traceback__, tb_offset=1)
        alone = copy(self)
        alone.__suppress_context__ = True
        return formatter.structured_traceback(type(self), alone, lines, tb_offset=0)

    def __copy__(self) -> Self:
        """The same error, raised from nothing yet; libraries that register how any error is pickled
        (tblib, which dask imports) would also copy what this one was raised from."""
        made = type(self).__new__(type(self), *self.args)
        made.__dict__.update(self.__dict__)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles what the error holds; `__init__` of a subclass may take other arguments than `args`."""
        return _restored, (type(self), self.args), self.__dict__


def users_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of this package and of installed ones; None if no others are in it."""
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    kept = None
    for one in reversed(frames):
        package = str(one.tb_frame.f_globals.get("__name__")).partition(".")[0]
        file = one.tb_frame.f_code.co_filename
        installed = any(folder in file for folder in ("site-packages", "dist-packages", sys.base_prefix + "/lib"))
        if package not in ("neptune_lab", "neptune_widgets") and not installed:
            kept = types.TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


def _restored(kind: type[NeptuneError], args: tuple[Any, ...]) -> NeptuneError:
    """An error with these `args`, without `__init__`."""
    error = kind.__new__(kind)
    error.args = args
    return error


class DefinitionError(NeptuneError):
    """The compiler does not support an operator's definition or its arguments (shapes, dtypes, mods)."""


class ScheduleError(NeptuneError):
    """A schedule step or request is illegal; the schedule is unchanged."""


class RepairError(NeptuneError):
    """There is no repair term: `step` names the step of the algebra that failed, `expression` the expression.

    Steps, in order: "read", "separate", "invert", "derive", "prove Eq. 3", "prove Eq. 4", "guard", "range" (in a
    program: right over the reals, and not in floats); and of a vector repair: "close" (no finite family), "count" (the
    number of terms is not known); "time": the algebra took longer than `repair.time_limit` allows, or was stopped.
    `passed` has the steps of `repair.solve` before the one that failed, ready to show; empty if another function
    refused.
    """

    def __init__(
        self, message: str, *, step: str, expression: str, node: str | None = None, help: str | None = None
    ) -> None:
        super().__init__(message, node=node, help=help)
        self.step = step
        self.expression = expression
        self.passed: tuple[Step, ...] = ()


class TileError(NeptuneError):
    """The scheduled program cannot be written in HTile IR."""

    usual_help = "try other tile sizes; nl.compile(operator) without a template falls back to separate kernels"


class EmitError(NeptuneError):
    """An HTile program cannot be written in Triton."""


class ValidationError(NeptuneError):
    """A compiled program differs from its definition, which is a mistake of the compiler.

    Args:
        stage: the earliest form of the program that differs, such as "the scheduled loops" or "Triton".
        script: path of a Python file that repeats it; None if it could not be written.
    """

    def __init__(
        self, message: str, *, stage: str, script: str | None, node: str | None = None, help: str | None = None
    ) -> None:
        super().__init__(message, node=node, help=help)
        self.stage = stage
        self.script = script


class TextError(NeptuneError):
    """The text of a program cannot be read; `line` and `column` count from 1 (None: the file is not text)."""

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        column: int | None = None,
        node: str | None = None,
        help: str | None = None,
    ) -> None:
        super().__init__(message if line is None else f"line {line}, column {column}: {message}", node=node, help=help)
        self.line = line
        self.column = column


class MachineCodeError(NeptuneError):
    """A kernel cannot be compiled ahead for a GPU: no such target, or Triton, the assembler or a disassembler fails."""


class LaunchError(NeptuneError):
    """A kernel was called with arguments it does not take (shape, dtype, device, contiguity)."""


class NotPickledError(LaunchError, PicklingError):
    """An operator, a kernel or a function of a kernel was pickled, as torch's caches try with what a graph holds: they
    go on without, if the error is Python's own."""


class MeasureError(NeptuneError):
    """A measurement failed or was not possible."""


class TuneError(NeptuneError):
    """A wrong request to the tuner: an invalid candidate, an empty search space, or a wrong option."""


class TraceError(NeptuneError):
    """A saved record cannot be read (not a record, or of another schema)."""


class FileError(NeptuneError):
    """A file cannot be written: the disk is full or read-only, the folder is missing, or the path is not a file's."""
