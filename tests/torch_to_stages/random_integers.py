"""Random functions of integers, whose constants and elements leave 32 bits.

python -m torch_to_stages.random_integers 17     # prints the function of seed 17
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

import torch
from torch_to_stages.random_functions import TextFunction

# What a step computes from x and y (rows, columns), of integers, and a constant {c}; all keep the shape.
_MAPS = (
    *("x + {c}", "x - {c}", "x * {c}", "x * y", "x + y", "x - y", "-x", "x.abs()", "x.clamp(-{c}, {c})", "x.sign()"),
    *("x % {d}", "x // {d}", "x << {n}", "x >> {n}", "x & 255"),
    *("torch.where(x > y, x, {c})", "torch.maximum(x, y)", "torch.minimum(x, y)", "x.masked_fill(y > 3, {c})"),
    *("(x > {c}) * x", "(x < y).int() * {c}", "(x == y) * {c} + y", "x.int()", "x.long()", "x.int().long()"),
    *("torch.arange(x.shape[1]) * {c} + x", "x * torch.arange(x.shape[0])[:, None]", "torch.full((1, 1), {c}) * x"),
    *(  # integers of 32 bits meet positions, whose 64 bits are PyTorch's
        *(
            "x + torch.arange(x.shape[1])",
            "torch.arange({n}, {n} + x.shape[1]) - x",
            "x * torch.arange(x.shape[1]).flip(0)",
        ),
        *("x.int() * torch.arange(x.shape[0])[:, None] * {c}", "torch.where(x > y, x, torch.arange(x.shape[1]) * {c})"),
        *("x + torch.arange(2**40, 2**40 + x.shape[1])", "x * torch.arange(1, 24).prod()", "x.int() + y.argmax()"),
        *("x + torch.arange(x.shape[0], dtype=torch.int32)[:, None] * {c}", "x.int().abs() + torch.arange(x.shape[1])"),
        *(
            "(x + torch.arange(x.shape[1]) < y) * {c} + y.int()",
            "torch.stack([x.int(), y.int()]).sum(0)",
            "x * 3 // {d}",
        ),
        *(
            "torch.minimum(x, torch.arange(x.shape[1]) * {c})",
            "x.clamp(min=y)",
            "x + torch.tensor({n})",
            "x * True - x.eq(y)",
        ),
    ),
    *("x.flip(0)", "x.roll(1, 1)", "x.T.reshape(x.shape)", "torch.cat([x[:, 1:], y[:, :1]], 1)", "x.float().long()"),
)
_ROWS = (
    *("x - x.amax(-1, keepdim=True)", "x + x.sum(-1, keepdim=True)", "x * x.amin(0)", "x - x.argmax(-1, keepdim=True)"),
    *(
        "x.argmin(-1, keepdim=True) * {c} + x",
        "(x > 0).sum(-1, keepdim=True) * {c} - x",
        "x + x.prod(-1, keepdim=True)",
    ),
)
_ENDS = ("x", "x.sum(-1)", "x.amax(0)", "x.sum()", "(x, x.amin(-1))", "x.prod(0)", "x.argmax(1)", "(x > {c}, x % {d})")
_CONSTANTS = (1, 3, 7, 255, 2**15, 2**16 + 1, 2**20, 2**30, 2**31 - 1, 2**31, 2**32, 2**40 + 1, 10**10)


@dataclass(frozen=True)
class RandomIntegers(TextFunction):
    """A function of x and y as text, and its inputs."""

    shape: tuple[int, int]
    dtypes: tuple[torch.dtype, torch.dtype]
    largest: int
    seed: int

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Integers up to the largest."""
        generator = torch.Generator().manual_seed(self.seed)
        return tuple(
            torch.randint(-self.largest, self.largest, self.shape, generator=generator).to(dtype)
            for dtype in self.dtypes
        )


def random_integers(seed: int) -> RandomIntegers:
    """The function of a seed: one to four steps, each of an earlier result."""
    draw = random.Random(seed)

    def filled(text: str) -> str:
        return text.format(c=draw.choice(_CONSTANTS), d=draw.choice(_CONSTANTS), n=draw.choice((1, 3, 15, 30)))

    lines, names = ["def f(x, y):"], ["x"]
    for n in range(draw.randint(1, 4)):
        step = filled(draw.choices(draw.choices((_MAPS, _ROWS), (4, 1))[0])[0])
        lines.append(f"    s{n} = (lambda x, y: {step})({names[-1]}, {draw.choice(['y', *names])})")
        names.append(f"s{n}")
    lines.append(f"    x = {names[-1]} + x * 0 + y * 0")
    lines.append(f"    return {filled(draw.choice(_ENDS))}")
    kinds = torch.int32, torch.int64
    dtypes = draw.choice(kinds), draw.choice(kinds)
    shape = draw.choice((3, 8)), draw.choice((4, 16, 24))
    return RandomIntegers("\n".join(lines) + "\n", shape, dtypes, draw.choice((9, 2**20, 2**30, 2**31)), seed)


if __name__ == "__main__":
    print(random_integers(int(sys.argv[1])).source)
