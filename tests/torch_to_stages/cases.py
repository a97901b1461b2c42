"""Functions that use each ATen operation that has a lowering, a line of functions.txt each, and their inputs."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# Inputs by name: what a case's text can read.  Sizes differ from case to case (a, b, c).
KINDS = {
    "x": lambda a, b, c: torch.randn(a, b),
    "y": lambda a, b, c: torch.randn(a, b),
    "p": lambda a, b, c: torch.rand(a, b) + 0.2,
    "v": lambda a, b, c: torch.randn(b),
    "w": lambda a, b, c: torch.randn(b, c),
    "t": lambda a, b, c: torch.randn(a, b, c),
    "u": lambda a, b, c: torch.randn(a, c, b),
    "m": lambda a, b, c: torch.rand(a, b) < 0.5,
    "o": lambda a, b, c: torch.rand(a, b) < 0.5,
    "n": lambda a, b, c: torch.randint(-9, 9, (a, b), dtype=torch.int32),
    "i": lambda a, b, c: torch.randint(0, b, (a,)),
    "j": lambda a, b, c: torch.randint(0, b, (a, 3)),
    "q": lambda a, b, c: torch.randn(a, 4, b, c),
    "k": lambda a, b, c: torch.randn(a, 2, b + 1, c),
}


@dataclass(frozen=True)
class Case:
    """Functions of named inputs, as texts: one function returns the results of all, since each trace takes time."""

    texts: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The inputs that the texts read, in order."""
        used = {n.id for text in self.texts for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
        return [n for n in KINDS if n in used]

    def function(self) -> Any:
        """The texts as a function to a tuple."""
        return eval(f"lambda {', '.join(self.names)}: ({', '.join(self.texts)},)", {"torch": torch})

    def inputs(self, seed: int) -> tuple[torch.Tensor, ...]:
        """Random inputs in sizes that depend on the seed."""
        generator = torch.Generator().manual_seed(seed)
        a, b, c = (int(torch.randint(low, low + 3, (1,), generator=generator)) for low in (2, 3, 2))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return tuple(KINDS[name](a, b, c) for name in self.names)


_EVERY = tuple(Path(__file__).with_name("functions.txt").read_text(encoding="utf-8").splitlines())
_TOGETHER = 24
CASES = tuple(Case(_EVERY[n : n + _TOGETHER]) for n in range(0, len(_EVERY), _TOGETHER))
