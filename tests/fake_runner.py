"""Stands for `neptune_lab.runtime.measurement` where there is no GPU: Triton's interpreter and a made-up clock.

What happens to a kernel follows from the number of warps that it is launched with, which the interpreter ignores.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time

from neptune_lab.runtime import measurement
from neptune_lab.runtime.measurement import facts

__all__ = ["compile_ahead", "facts", "measure", "prepare", "remeasure"]

COMPILER_CRASHES, CRASHES, HANGS, RAISES, WRONG = 1, 2, 4, 8, 16
# Microseconds of a launch, by its warps.
FAST, SLOW = 32, 0
TIMES = {FAST: 10.0, SLOW: 20.0}


def warps(spec) -> int:
    found = re.search(r"num_warps=(\d+)", spec.text)
    return int(found[1]) if found else SLOW  # a launch that leaves it to Triton


def clock(us):
    def sampler(run, cold):
        run()
        return lambda count: [us + (100.0 if cold else 0.0)] * count

    return sampler


def prepare(task):
    if task.definition["outputs"] == os.environ.get("FAKE_NO_MEMORY", "").split():
        raise MemoryError("CUDA out of memory")
    measurement.prepare(task)


def compile_ahead(spec):
    if warps(spec) == COMPILER_CRASHES:
        os.kill(os.getpid(), signal.SIGSEGV)
    # The interpreter compiles nothing ahead, and `measurement` imports torch to say so.
    return None if os.environ.get("TRITON_INTERPRET") == "1" else measurement.compile_ahead(spec)


def measure(task, spec):
    log = os.environ.get("FAKE_RUNNER_LOG")
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{warps(spec)}\n")
    match warps(spec):
        case n if n == CRASHES:
            os.kill(os.getpid(), signal.SIGSEGV)
        case n if n == HANGS:
            time.sleep(600)
        case n if n == RAISES:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        case n if n == WRONG:
            text = re.sub(r"(tl\.store\(out_base.*?\], )", r"\g<1>1 + ", spec.text)
            assert text != spec.text
            spec = type(spec)(spec.name, spec.entry, text, spec.inputs, spec.outputs)
    return measurement.measure(task, spec, clock=clock(TIMES.get(warps(spec), 50.0)))


def remeasure(task, specs):
    return tuple(measurement.measure(task, spec, clock=clock(TIMES[warps(spec)] - 1.0)) for spec in specs)


def sleep(begun):
    """Makes the file `begun`, and sleeps."""
    open(begun, "x").close()
    time.sleep(3600)


def abort():
    """Ends the process with something to say."""
    faulthandler.enable()
    os.abort()
