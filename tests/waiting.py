"""Waits of tests: they end when something is true, and a machine may take as long as it likes for that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# Seconds; the end of a wait whose condition never becomes true. A test that passes never waits so long.
LONG = 300.0


def wait_until(condition: Callable[[], object]) -> None:
    """Returns once `condition` is true, which another thread or process brings about."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"not true after {LONG:g} s"
        time.sleep(0.01)


async def until(condition: Callable[[], object]) -> None:
    """Returns once `condition` is true, which a callback of this event loop brings about."""
    async with asyncio.timeout(LONG):
        while not condition():
            await asyncio.sleep(0.001)
