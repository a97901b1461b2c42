"""Arguments of `nl.tune`, checked before a process is started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neptune_lab.errors import TuneError
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import INT32_MAX, check_integer, check_number, check_switch, is_integer

# More GPUs than a machine has: a larger number is a mistake, such as a device's memory.
MOST_GPUS = 1024


def check_arguments(
    op: Any,
    seconds: Any,
    trials: Any,
    scheduler: Any,
    gpus: Any,
    cold: Any,
    seed: Any,
) -> None:
    """Raise TuneError if `tune` does not take an argument; the message has its name and value."""
    from neptune_lab.operators import Operator

    if not isinstance(op, Operator):
        raise TuneError(
            f"op={shown(op)}: expected an Operator", help="make one first, such as operators.attention.causal(seq=128)"
        )
    check_number("seconds", seconds, TuneError, positive=True)
    check_integer("trials", trials, 1, INT32_MAX, TuneError, optional=True)
    check_integer("seed", seed, 0, 2**63 - 1, TuneError)
    if cold is not None:
        check_switch("cold", cold, TuneError)
    if scheduler is not None and not isinstance(scheduler, str):
        raise TuneError(
            f"scheduler={shown(scheduler)}: expected an address such as 'tcp://host:8786', or None",
            help="leave it out to tune on this machine, or start Dask's scheduler and give its address",
        )
    check_gpus(gpus)


def check_functions(progress: Any, cancel: Any) -> None:
    """Raise TuneError unless `progress` is a switch or a function, and `cancel` a function or None."""
    if not isinstance(progress, bool) and not callable(progress):
        raise TuneError(
            f"progress={shown(progress)}: expected True, False, or a function that takes a TuneProgress",
            help="for example progress=print",
        )
    if cancel is not None and not callable(cancel):
        raise TuneError(
            f"cancel={shown(cancel)}: expected a function without arguments that returns whether to end, or None",
            help="for example cancel=event.is_set, with event = threading.Event()",
        )


def check_gpus(gpus: Any) -> None:
    """Raise TuneError unless `gpus` is None or a few numbers of GPUs, each once."""
    if gpus is None:
        return
    fits = isinstance(gpus, Sequence) and not isinstance(gpus, str) and len(gpus) > 0
    if not fits or not all(is_integer(n) and 0 <= n < MOST_GPUS for n in gpus) or len(set(gpus)) != len(gpus):
        raise TuneError(
            f"gpus={shown(gpus)}: expected the numbers of GPUs from 0 on, each once",
            help="such as [0, 1], or None for all",
        )
