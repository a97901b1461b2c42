"""A Python process that runs one call at a time, and that may crash or hang without harm to its parent.

It is started from the command line, not forked (CUDA forbids that) and not by `multiprocessing` (which would run the
user's script again). Calls and answers travel pickled over two pipes of their own, so that what libraries print does
not come between.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from neptune_lab.errors import MeasureError

_START = "from neptune_lab.runtime.process import serve; serve({reader}, {writer}, {preload})"
_TAIL = 400


class ChildProcess:
    """Calls functions by name in another process; started at the first call, and again after a failure.

    Args:
        env: environment variables to set there, such as CUDA_VISIBLE_DEVICES.
        preload: modules to import there before the first call.
    """

    def __init__(self, env: Mapping[str, str] | None = None, preload: Sequence[str] = ()) -> None:
        self._env, self._preload = dict(env or {}), tuple(preload)
        self._process: subprocess.Popen[bytes] | None = None
        self._connections: tuple[Connection, Connection] | None = None
        self._errors: Any = None

    def call(self, function: str, *args: Any, timeout: float | None = None) -> Any:
        """What `function` ("package.module:name") returns for picklable arguments.

        Args:
            timeout: seconds to wait; then the process is ended.

        Raises:
            MeasureError: it raised, crashed or took too long. The process was ended; the next call starts another.
        """
        reader, writer = self.start()
        try:
            writer.send((function, args))
            if not reader.poll(timeout):
                self.close()
                raise MeasureError(f"took longer than {timeout:g} s")
            kind, result = reader.recv()
        except (EOFError, OSError) as error:
            raise MeasureError(self._died()) from error
        if kind == "raised":
            self.close()
            raise MeasureError(result)
        return result

    def kill(self) -> None:
        """Ends the process from any thread; a call that waits for it there raises MeasureError."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Ends the process, at once and whatever it does; from the thread that calls, or when none does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for connection in self._connections or ():
            connection.close()
        if self._errors is not None:
            self._errors.close()
        self._process = self._connections = self._errors = None

    def start(self) -> tuple[Connection, Connection]:
        """Starts the process where it does not run; the two ends to speak with it."""
        if self._connections is not None:
            return self._connections
        from_parent, to_child = os.pipe()
        from_child, to_parent = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        # The child finds what the parent finds, wherever the parent was started from.
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(reader=from_parent, writer=to_parent, preload=self._preload)],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=(from_parent, to_parent),
            env={**os.environ, "PYTHONPATH": path, **self._env},
            # Ctrl-C is the parent's: it ends its children when it has kept what they found.
            start_new_session=True,
        )
        os.close(from_parent)
        os.close(to_parent)
        self._connections = (Connection(from_child, writable=False), Connection(to_child, readable=False))
        return self._connections

    def _died(self) -> str:
        """What became of a process that broke off, with the end of what it printed."""
        process, errors = self._process, self._errors
        status: int | None = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=5)
        said = b""
        if errors is not None:
            errors.seek(0)
            said = errors.read()[-_TAIL:]
        self.close()
        text = " ".join(said.decode(errors="replace").split())
        return f"the process ended with status {status}" + (f": {text}" if text else "")


def serve(reader: int, writer: int, preload: Sequence[str]) -> None:
    """The child's side: answers calls until the parent is gone."""
    calls, answers = Connection(reader, writable=False), Connection(writer, readable=False)
    for module in preload:
        importlib.import_module(module)
    while True:
        try:
            function, args = calls.recv()
        except EOFError:
            return
        module, _, name = function.partition(":")
        try:
            answer = ("returned", getattr(importlib.import_module(module), name)(*args))
        except Exception as error:  # noqa: BLE001 - whatever a call raises is its parent's to judge
            last = traceback.extract_tb(error.__traceback__)[-1]
            said = getattr(error, "reason", str(error)).strip().splitlines() or [""]
            answer = ("raised", f"{type(error).__name__}: {said[0]} ({os.path.basename(last.filename)}:{last.lineno})")
        answers.send(answer)
