"""Ctrl-C ends a wait at once, also where the system gives the signal to another thread than the one that waits."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

# The signal goes to a thread that sleeps: it does not end what the main thread waits in.
BEFORE = """
import queue, signal, threading, time
from neptune_lab.tuning.clock import MonotonicClock
from neptune_lab.bench.workers import run_apart
from neptune_lab.runtime.process import ChildProcess

def interrupt():
    started.wait()
    time.sleep(1)  # the wait has begun
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(3600)

started = threading.Event()
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    clock, child = MonotonicClock(), ChildProcess()
    child.start()
    started.set()
    try:
        {wait}
    except KeyboardInterrupt:
        child.close()
        print("interrupted", flush=True)
"""
WAITS = {
    "a call in another process": "child.call('time:sleep', 3600)",
    "the result of a candidate": "clock.get(queue.SimpleQueue(), clock.now() + 3600)",
    "the tasks of a benchmark": "list(run_apart(time.sleep, [3600], workers=1, timeout_s=3600))",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", WAITS)
def test_a_signal_that_another_thread_gets_ends_it(what, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BEFORE.replace("{wait}", WAITS[what]))
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert said.strip() == "interrupted"
