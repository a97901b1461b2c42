"""Python processes that run one call at a time, and that may crash or hang without harm to their parent.

A process is started from the command line, not forked (CUDA forbids that) and not by `multiprocessing` (which would run
the user's script again). Calls and answers are pickled through two pipes of their own, so that output of libraries does
not mix with them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from neptune_lab.errors import MeasureError

_START = "from neptune_lab.runtime.process import serve; serve({reader}, {writer}, {preload})"
_TAIL = 400
_KILLED = "free some memory: the system kills processes when it runs out"
# Python handles Ctrl-C only in the main thread, and the system may give the signal to a thread that waits: so no wait
# in the main thread is longer than this, in seconds.
WAKE_SECONDS = 0.2


class ProcessKilled(MeasureError):
    """The process was killed from outside (by the system when memory ran out, or by a user), not by what it ran."""


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
        self._ended_here = False

    def call(self, function: str, *args: Any, timeout: float | None = None, restart: bool = True) -> Any:
        """What `function` ("package.module:name") returns for picklable arguments.

        Args:
            timeout: seconds to wait, from sending the arguments to the whole answer; then the process is ended.
            restart: start another process in place of one that was killed since the last call; otherwise ProcessKilled.

        Raises:
            MeasureError: it raised, crashed, took too long, or could not be started. The process was ended; the next
                call starts another.
            ProcessKilled: it was killed from outside.
        """
        reader, writer = self._ready(restart)
        late = threading.Event()
        # A stopped process also blocks a send or a receive, and neither has a time-out.
        timer = threading.Timer(timeout, self._end, [late]) if timeout is not None else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            writer.send((function, args))
            while not reader.poll(WAKE_SECONDS):
                pass
            kind, result = reader.recv()
        except (EOFError, OSError) as error:
            if late.is_set():
                self.close()
                raise MeasureError(
                    f"took longer than {timeout:g} s",
                    help="end other programs, or choose smaller sizes; the process was ended",
                ) from error
            raise self._died() from error
        finally:
            if timer is not None:
                timer.cancel()
        if kind == "raised" or late.is_set():
            self.close()
        if kind == "raised":
            raise MeasureError(result, help="the message ends with the file and line that raised the error")
        return result

    def _ready(self, restart: bool) -> tuple[Connection, Connection]:
        """The two pipe ends of a running process."""
        if self._process is not None and self._process.poll() is not None and not self._ended_here:
            self.close()
            if not restart:
                raise ProcessKilled("the process was killed between two calls", help=_KILLED)
        try:
            return self.start()
        except OSError as error:
            self.close()
            raise MeasureError(
                f"no process can be started: {error.strerror or error}", help="end other programs, and try again"
            ) from error

    def _end(self, late: threading.Event) -> None:
        late.set()
        self.kill()

    def kill(self) -> None:
        """Ends the process from any thread; a call that waits for it there raises MeasureError."""
        self._ended_here = True
        process = self._process  # `close` may forget it meanwhile, in another thread
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process at once, from the thread that calls it, or when none does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for connection in self._connections or ():
            connection.close()
        if self._errors is not None:
            self._errors.close()
        self._process = self._connections = self._errors = None
        self._ended_here = False

    def start(self) -> tuple[Connection, Connection]:
        """Starts the process if it does not run; its two pipe ends."""
        if self._connections is not None:
            return self._connections
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        with contextlib.ExitStack() as opened:  # closes the pipes if one cannot be opened
            from_parent, to_child = _pipe(opened)
            from_child, to_parent = _pipe(opened)
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
            opened.pop_all()
        os.close(from_parent)
        os.close(to_parent)
        self._connections = (Connection(from_child, writable=False), Connection(to_child, readable=False))
        if self._ended_here:  # `kill` came while there was no process yet
            self._process.kill()
        return self._connections

    def _died(self) -> MeasureError:
        """The error of a process that ended during a call, with the end of its output."""
        process, errors = self._process, self._errors
        status: int | None = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=5)
        said = b""
        if errors is not None:
            errors.seek(0)
            said = errors.read()[-_TAIL:]
        outside = status == -signal.SIGKILL and not self._ended_here
        self.close()
        text = " ".join(said.decode(errors="replace").split())
        kind = ProcessKilled if outside else MeasureError
        said = f"the process ended with status {status}" + (f": {text}" if text else "")
        return kind(said, help=_KILLED if outside else "the message ends with what the process printed last")


class ProcessPool:
    """Child processes for calls from several threads, one call at a time in each.

    Args:
        envs: the environment variables of each process.
        preload: as for `ChildProcess`.
    """

    def __init__(self, envs: Sequence[Mapping[str, str]], preload: Sequence[str] = ()) -> None:
        self._children = [ChildProcess(env, preload) for env in envs]
        self._ended = threading.Event()
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        for child in self._children:
            self._idle.put(child)

    def start(self) -> None:
        """Starts the processes now, rather than at their first calls."""
        for child in self._children:
            child.start()

    @contextlib.contextmanager
    def child(self) -> Iterator[ChildProcess]:
        """The next idle process, for the calling thread alone."""
        child = self._idle.get()
        try:
            yield child
        finally:
            self._idle.put(child)

    def call(self, function: str, *args: Any, timeout: float) -> Any:
        """As `ChildProcess.call`, in the next idle process, and once more if that is killed from outside."""
        with self.child() as child:
            self.check_running()
            try:
                return child.call(function, *args, timeout=timeout)
            except ProcessKilled:
                self.check_running()
                return child.call(function, *args, timeout=timeout)

    def check_running(self) -> None:
        """Raise MeasureError after `kill`."""
        if self._ended.is_set():
            raise not_measured()

    def kill(self) -> None:
        """Ends the processes, whichever thread waits for them; `call` starts none again."""
        self._ended.set()
        for child in self._children:
            child.kill()

    def close(self) -> None:
        """Ends the processes, when no thread waits for them."""
        for child in self._children:
            child.close()


def not_measured() -> MeasureError:
    """The error of a candidate that comes too late."""
    return MeasureError(
        "the candidate was not measured: the run has ended", help="start the run again: it continues where it ended"
    )


def _pipe(opened: contextlib.ExitStack) -> tuple[int, int]:
    """The two ends of a pipe, which `opened` closes."""
    ends = os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


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
