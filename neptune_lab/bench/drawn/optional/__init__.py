"""Peers that are measured if they are installed: the package, its module, and the adapters of what it computes.

An adapter imports its package inside, and is given a problem with its tensors.  Its answer is checked like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

from neptune_lab.bench.contestants import Contestant
from neptune_lab.bench.drawn.optional import cudnn_attention, flex_flash, helion_attention, rows, tilelang_attention
from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.peers import Ready

# Why it does not compute a problem, empty if it does; and how it is prepared, of a problem and its inputs.
Refuses: TypeAlias = Callable[[Problem], str]
Prepares: TypeAlias = Callable[[Problem, Any], Ready]


@dataclass(frozen=True)
class Peer:
    """An optional peer.

    Args:
        module: that must be importable.
        kind: "compiler" or "library".
        attention, rows: (refuses, prepares) of each kind of problem; None: it has none.
    """

    module: str
    kind: str
    attention: tuple[Refuses, Prepares] | None = None
    rows: tuple[Refuses, Prepares] | None = None


# By the name of the package.
PEERS: Mapping[str, Peer] = {
    "nvidia-cudnn-frontend": Peer("cudnn", "library", (cudnn_attention.refuses, cudnn_attention.prepared)),
    "quack-kernels": Peer("quack", "library", rows=(rows.quack_refuses, rows.quack)),
    "liger-kernel": Peer("liger_kernel", "library", rows=(rows.liger_refuses, rows.liger)),
    "helion": Peer("helion", "compiler", (helion_attention.refuses, helion_attention.prepared)),
    "tilelang": Peer("tilelang", "compiler", (tilelang_attention.refuses, tilelang_attention.prepared)),
    flex_flash.NAME: Peer(flex_flash.MODULE, "compiler", (flex_flash.refuses, flex_flash.prepared)),
}
# Peers whose answer has the dtype of the inputs, where ours is float32 (losses); its error is judged by that dtype.
IN_INPUTS_DTYPE = frozenset({"liger-kernel"})


def installed(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    if module in sys.modules:
        return True
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that is not there
        return False


def absent(found: Callable[[str], bool] = installed) -> dict[str, str]:
    """The optional peers that are not run, each with the reason."""
    return {name: "not installed" for name, peer in PEERS.items() if not found(peer.module)}


def contestants(problem: Problem, given: Any, found: Callable[[str], bool] = installed) -> tuple[Contestant, ...]:
    """The optional peers of a problem that are installed.

    Args:
        given: the problem's inputs: `attention.Inputs`, or the tensors of rows.
        found: whether a module is installed.
    """
    made = []
    for name, peer in PEERS.items():
        adapter = peer.rows if problem.kind == "rows" else peer.attention
        if adapter is not None and found(peer.module):
            made.append(_contestant(name, peer.kind, problem, given, *adapter))
    return tuple(made)


def _contestant(name: str, kind: str, problem: Problem, given: Any, refuses: Refuses, prepares: Prepares) -> Contestant:
    return Contestant(name, kind, lambda *_: refuses(problem), lambda *_: prepares(problem, given))


__all__ = ["IN_INPUTS_DTYPE", "PEERS", "Peer", "absent", "contestants", "installed"]
