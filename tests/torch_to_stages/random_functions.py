"""Random functions of PyTorch: chains of the operations that have a lowering, over random shapes.

python -m torch_to_stages.random_functions 17     # prints the function of seed 17
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

# What a step computes from x (rows, columns), y (the same), w (columns, columns) and r (rows, 1); all keep the shape.
_MAPS = (
    *("torch.tanh(x)", "torch.sigmoid(x)", "x * 0.5 + y", "x - y", "x * torch.sigmoid(y)", "torch.relu(x)", "x.abs()"),
    *("torch.where(x > y, x, y)", "x.clamp(-1, 1)", "torch.exp(-x.abs())", "x / (1 + y.abs())", "torch.maximum(x, y)"),
    *("torch.nn.functional.gelu(x)", "x.flip(1)", "x.roll(1, 1)", "x * torch.arange(x.shape[1]) / x.shape[1]"),
    *("torch.where(torch.arange(x.shape[1]) <= torch.arange(x.shape[0])[:, None], x, 0.0)", "x + w[0]", "x.neg()"),
    *("torch.cat([x[:, 1:], y[:, :1]], 1)", "x.masked_fill(y > 1, 0.25)", "x.repeat_interleave(2, 0)[::2] + y"),
)
_ROWS = (
    *(
        "torch.softmax(x, -1)",
        "torch.log_softmax(x, -1)",
        "x - x.mean(-1, keepdim=True)",
        "x - x.amax(-1, keepdim=True)",
    ),
    *(
        "x / (x.abs().sum(-1, keepdim=True) + 1)",
        "torch.nn.functional.layer_norm(x, x.shape[1:])",
        "x * x.std(-1, keepdim=True)",
    ),
    *("x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-3)", "x - torch.logsumexp(x, -1, keepdim=True)"),
    *("torch.nn.functional.normalize(x, dim=-1)", "x * (x > x.mean(-1, keepdim=True))"),
    *(
        "torch.softmax(x / 0.07, -1)",
        "torch.exp(x * 14.3 - (x * 14.3).amax(-1, keepdim=True))",
        "torch.log_softmax(x / 0.7, -1)",
        "x.asinh() * x.norm(3, -1, keepdim=True)",
        "torch.xlogy(torch.relu(x), 1 + y.abs())",
    ),
)
_PRODUCTS = ("x @ w", "torch.softmax(x @ y.T, -1) @ y", "torch.einsum('ij,kj->ik', x, w)", "(x @ x.T) @ y")
_ENDS = ("x", "x.sum(-1)", "x.amax(0)", "x.mean()", "(x, x.sum(0))", "{'a': x, 'b': x.var(-1)}", "x.T", "x.reshape(-1)")


@dataclass(frozen=True)
class TextFunction:
    """A function as text."""

    source: str

    def function(self) -> Any:
        """The text as a function."""
        found: dict[str, Any] = {"torch": torch}
        exec(self.source, found)
        return found["f"]


@dataclass(frozen=True)
class RandomFunction(TextFunction):
    """A function of x, y and w as text, and its inputs."""

    rows: int
    columns: int
    seed: int

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Standard normal tensors."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = (self.rows, self.columns), (self.rows, self.columns), (self.columns, self.columns)
        return tuple(torch.randn(*shape, generator=generator) for shape in shapes)


def random_function(seed: int) -> RandomFunction:
    """The function of a seed: two to five steps, each of an earlier result."""
    draw = random.Random(seed)
    lines = ["def f(x, y, w):"]
    names = ["x"]
    for n in range(draw.randint(2, 5)):
        family = draw.choices((_MAPS, _ROWS, _PRODUCTS), (4, 4, 1))[0]
        step = draw.choice(family)
        source = names[-1] if draw.random() < 0.8 else draw.choice(names)
        other = draw.choice(["y", *names])
        lines.append(f"    s{n} = (lambda x, y, w: {step})({source}, {other}, w)")
        names.append(f"s{n}")
    used = " + ".join(f"0.1 * {v}.mean()" for v in ("y", "w", "x"))
    lines.append(f"    x = {names[-1]} + {used}")
    lines.append(f"    return {draw.choice(_ENDS)}")
    return RandomFunction("\n".join(lines) + "\n", draw.choice((3, 8, 16)), draw.choice((4, 16, 24)), seed)


if __name__ == "__main__":
    print(random_function(int(sys.argv[1])).source)
