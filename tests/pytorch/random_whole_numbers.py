"""Random whole numbers that mods compute of positions, captured integers of each dtype, conditions and constants."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

N = 12
_G = torch.Generator().manual_seed(3)


def _captured(dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
    return torch.randint(low, high, (N,), generator=_G, dtype=dtype)


SCOPE: dict[str, Any] = {
    "torch": torch,
    "i8": _captured(torch.int8, -128, 128),
    "u8": _captured(torch.uint8, 0, 256),
    "i16": _captured(torch.int16, -(2**15), 2**15),
    "i32": _captured(torch.int32, -5, 6),
    "i64": _captured(torch.int64, -(2**31), 2**31),
    "flags": torch.arange(N) % 3 == 0,
}
_CONSTANTS = [1, 2, 3, 7, -1, -3, 100, 127, 255, 1000, 2**10 - 1, 2**10, 2**15, 2**16, 2**20, 2**24 + 1, 2**30]

_ROUNDINGS = ["floor", "trunc"]


class Terms:
    """Draws expressions as text."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def condition(self, depth: int) -> str:
        if depth <= 0:
            return self.rng.choice(["flags[kv]", "(q >= kv)", "(kv > 3)", "(h == 0)", "flags[q]"])
        number, condition = (lambda: self.number(depth - 1)), (lambda: self.condition(depth - 1))
        return self.rng.choice(
            [
                lambda: f"({number()} {self.rng.choice(['<', '<=', '==', '!='])} {number()})",
                lambda: f"({condition()} {self.rng.choice('&|^')} {condition()})",
                lambda: f"(~{condition()})",
            ]
        )()

    def constant(self) -> int:
        return self.rng.choice([*_CONSTANTS, self.rng.randint(-(10**6), 10**6)])

    def number(self, depth: int) -> str:
        rng = self.rng
        if depth <= 0:
            names = ["i8[kv]", "u8[kv]", "i16[kv]", "i32[kv]", "i32[q]", "i64[kv]"]
            return rng.choice(["kv", "kv", "q", "h", *names])
        inner, condition = (lambda: self.number(depth - 1)), (lambda: self.condition(depth - 1))
        constant = self.constant
        of_condition = lambda: f"({condition()} * {constant()})"  # noqa: E731
        return rng.choice(
            [
                *[lambda: f"({inner()} {rng.choice('+-**&|^')} {inner()})"] * 4,
                *[lambda: f"({inner()} {rng.choice(['+', '-', '*', '*', '//', '%'])} {constant()})"] * 2,
                lambda: f"torch.where({condition()}, {rng.choice([inner(), constant()])}, {constant()})",
                lambda: rng.choice(["(-{})", "{}.abs()", "torch.sign({})", "(~{})"]).format(inner()),
                *[lambda: f"({of_condition()} {rng.choice('+-*|^')} {rng.choice([of_condition, inner])()})"] * 2,
                lambda: f"torch.{rng.choice(['maximum', 'minimum'])}({inner()}, {inner()})",
                lambda: f"torch.{rng.choice(['fmod', 'remainder'])}({inner()}, {rng.choice([3, 7, -5, 100])})",
                lambda: f"torch.div({inner()}, {rng.choice([3, -7])}, rounding_mode={rng.choice(_ROUNDINGS)!r})",
                lambda: f"({inner()} {rng.choice(['<<', '>>'])} {rng.choice([1, 7, 15, 31, 33])})",
                lambda: f"{inner()}.{rng.choice(['int()', 'long()', 'to(torch.int8)', 'to(torch.uint8)'])}",
                lambda: f"torch.{rng.choice(['ones', 'zeros'])}_like({inner()})",
            ]
        )()

    def term(self) -> str:
        """A number of a few values that changes with every bit."""
        return f"(({self.number(self.rng.choice([2, 3, 3, 4]))}) % {self.rng.choice([5, 7, 11, 64])}) * 0.3"


def score_mod_of(text: str) -> Callable[..., Any]:
    """The mod that adds an expression."""
    return eval(f"lambda s, b, h, q, kv: s + {text}", SCOPE)  # the text is this module's own


__all__ = ["N", "Terms", "score_mod_of"]
