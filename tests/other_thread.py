"""Work in one thread while another compiles: torch's flag of that is one for all threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def while_another_compiles(work: Callable[[], T]) -> T:
    """What `work` gives, in a thread of its own, while torch.compile compiles in this one."""
    results: list[T] = []

    def checked() -> T:
        assert torch.compiler.is_compiling()  # (of the other thread)
        return work()

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            results.append(pool.submit(checked).result(300))
        return graph

    torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
    return results[0]
