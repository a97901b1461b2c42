"""Random programs of PyTorch whose gradients are compared: text of 2 to 6 reductions, and the inputs that it takes.

    python -m fuzz.torch_programs 17     # prints the program of seed 17

Dimensions have different sizes, so that a program that mixes them up fails.  Values stay near 1, and choices (maxima,
conditions) are of numbers that are far enough apart for two ways of rounding to agree.
"""

from __future__ import annotations

import random
import re
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

SIZES = {"a": 3, "b": 4, "c": 5, "d": 2}
Dims = tuple[str, ...]

# What keeps the shape of {x}; {y} can be broadcast to it.
_MAPS = (
    *("torch.tanh({x})", "torch.sigmoid({x} * {y})", "{x} + {y}", "{y} - {x}", "{x} * {y}", "{x} / (1 + {y} ** 2)"),
    *("torch.sin({x} + 0.3 * {y})", "F.softplus({x})", "F.gelu({x})", "F.silu({x})", "torch.sqrt({x} ** 2 + 1)"),
    *("torch.log1p({x} ** 2)", "torch.exp(-{x} ** 2)", "torch.maximum({x}, {y})", "torch.minimum({x}, 0.7 * {y})"),
    *(
        "{x}.abs()",
        "{x}.clamp(-1.1, 0.9)",
        "F.elu({x})",
        "F.leaky_relu({x}, 0.2)",
        "torch.where({x} > {y}, {x}, {y} * 2)",
    ),
    *(
        "torch.hypot({x}, 1 + {y})",
        "torch.atan2({x}, 2 + {y}.abs())",
        "torch.lerp({x}, {y}, 0.3)",
        "({x} ** 2 + 0.5) ** 0.75",
    ),
    *("{x}.masked_fill({y} > 1, 0.25)", "torch.logaddexp({x}, {y})", "{x} * {y}.detach()", "2.0 ** torch.tanh({x})"),
)
# What keeps the shape and mixes the last dimension, of size {n}.
_ROWS = (
    *("torch.softmax({x}, -1)", "torch.log_softmax({x}, -1)", "{x} - {x}.mean(-1, keepdim=True)"),
    *("{x} - {x}.amax(-1, keepdim=True)", "{x} / (1 + {x}.norm(dim=-1, keepdim=True))", "F.layer_norm({x}, ({n},))"),
    *("F.rms_norm({x}, ({n},), None, 0.01)", "F.normalize({x}, dim=-1)", "{x} * {x}.std(-1, keepdim=True)"),
    *("{x} - torch.logsumexp({x}, -1, keepdim=True)", "torch.softmax(torch.softmax({x} * 3, -1) + {x}, -1)"),
    *("{x}.cumsum(-1)", "{x} * torch.softmax({x}, -1).sum(-1, keepdim=True)", "torch.softmax({x} / 0.3, -2)"),
    *("torch.softmax({x}.masked_fill(torch.arange({n}) > {k}, float('-inf')), -1)", "{x}.logcumsumexp(-1)"),
    *("{x} * ({x} > {x}.mean(-1, keepdim=True))", "torch.linalg.vector_norm({x}, 3, -1, keepdim=True) * {x}"),
    *(
        "torch.log_softmax({x} * 2, -2) * 0.3",
        "{x} - {x}.min(-1, keepdim=True).values",
        "{x} * {x}.var(-1, keepdim=True)",
    ),
    *("torch.softmax({x}, -1).log()", "{x} * torch.softmax({x}, -1).square().sum(-1, keepdim=True).sqrt()"),
    "torch.exp({x} - {x}.amax(-1, keepdim=True)) / torch.exp({x} - {x}.amax(-1, keepdim=True)).sum(-1, keepdim=True)",
)
# What drops the last dimension.
_FOLDS = (
    *("{x}.sum(-1)", "{x}.mean(-1)", "{x}.amax(-1)", "{x}.amin(-1)", "torch.logsumexp({x}, -1)", "{x}.norm(dim=-1)"),
    *("{x}.max(-1).values", "{x}.var(-1)", "{x}.std(-1, correction=0)", "({x} * 0.5 + 1).prod(-1)", "{x}[..., {k}]"),
    *(
        "torch.linalg.vector_norm({x}, 1, -1)",
        "{x}.square().mean(-1).rsqrt()",
        "(torch.softmax({x}, -1) * {x}).sum(-1)",
    ),
    *("torch.logsumexp(torch.logsumexp({x}[..., None] + {x}[..., None, :], -1), -1)", "{x}.argmax(-1) * {x}.mean(-1)"),
)
# What changes places and keeps the shape; {i}: positions of the last dimension, some of them twice.
_PLACES = (
    *(
        "{x}.flip(-1)",
        "{x}.roll(1, -1)",
        "{x}[..., {i}]",
        "{x}.index_select(-1, {i})",
        "torch.cat([{x}[..., 1:], {x}[..., :1]], -1)",
    ),
    *(
        "torch.where(torch.arange({n}) <= {k}, {x}, {y})",
        "{x} * torch.arange({n}) / {n}",
        "{x}.gather(-1, {i}.expand({x}.shape))",
    ),
    *(
        "torch.where(torch.arange({n}) % 2 == 0, {x}, -0.5)",
        "{x}.index_add(-1, {i}, {x} * 0.5)",
        "torch.zeros_like({x}).scatter_add(-1, {i}.expand({x}.shape), {x})",
    ),
    *(
        "F.pad({x}[..., 1:], (1, 0), value=0.5)",
        "{x}.repeat_interleave(2, -1)[..., ::2]",
        "{x}.tril() if {x}.dim() > 1 else {x}",
    ),
)
# In place, on a copy.
_WRITES = (
    *(
        "{z}.mul_({y})",
        "{z}.add_({y}, alpha=0.5)",
        "{z}[..., 0] = 0.5",
        "{z}[..., {k}].mul_(2)",
        "{z}[..., 1:] += {z}[..., :-1] * 0.3",
    ),
    *(
        "{z}.tanh_()",
        "{z}.masked_fill_({z} > 1, 0.3)",
        "{z}.sub_({z}.mean(-1, keepdim=True))",
        "{z}[..., {k}] = {y}[..., 0] if {y}.shape == {z}.shape else 1.0",
    ),
)
_NARROW = ("half", "bfloat16")


@dataclass(frozen=True)
class Program:
    """A function as text, whose inputs are drawn by their shapes and dtypes."""

    seed: int
    lines: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: dict[str, Dims]
    dtypes: dict[str, str] = field(default_factory=dict)
    captured: dict[str, Dims] = field(default_factory=dict)

    @property
    def floats(self) -> list[str]:
        """The inputs that can have gradients."""
        return [n for n in self.shapes if self.dtypes.get(n, "float32") not in ("int64", "bool")]

    @property
    def narrow(self) -> bool:
        """Whether some numbers have 16 bits."""
        return any(f".{w}()" in line for line in self.lines for w in _NARROW) or "float16" in str(self.dtypes)

    def text(self, wide: bool = False) -> str:
        """Its source; wide: numbers of 16 bits are float64, as all others."""
        lines = [f"def f({', '.join(self.shapes)}):", *(f"    {line}" for line in self.lines)]
        lines.append(f"    return {', '.join(self.outputs)}")
        source = "\n".join(lines) + "\n"
        for name in (*_NARROW, "float") if wide else ():
            source = source.replace(f".{name}()", ".double()")
        return source

    def function(self, wide: bool = False) -> Any:
        """The source as a function."""
        captured = {n: self._drawn(n, dims) for n, dims in self.captured.items()}
        found: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        found |= {n: t.double() if wide else t for n, t in captured.items()}
        exec(self.text(wide), found)
        return found["f"]

    def inputs(self) -> dict[str, torch.Tensor]:
        """Random tensors, by name."""
        return {
            n: self._drawn(n, dims).to(getattr(torch, self.dtypes.get(n, "float32"))) for n, dims in self.shapes.items()
        }

    def _drawn(self, name: str, dims: Dims) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 100 + sum(map(ord, name)))
        shape = [SIZES[d] for d in dims]
        if self.dtypes.get(name) == "int64":
            return torch.randint(0, 2, shape, generator=generator)
        drawn = torch.randn(shape, generator=generator)
        return drawn > 0 if self.dtypes.get(name) == "bool" else drawn


class _Draw:
    """The state of one drawing: what exists, and the lines so far."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: dict[str, Dims] = {}
        self.lines: list[str] = []
        self.count = 0

    def keep(self, expression: str, dims: Dims) -> str:
        name = f"s{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {expression}")
        self.values[name] = dims
        return name

    def other(self, dims: Dims) -> str:
        """A value that can be broadcast to these dimensions."""
        fits = [n for n, own in self.values.items() if own == dims[len(dims) - len(own) :]]
        spread = [
            n for n, own in self.values.items() if own and own[-1:] != dims[-1:] and own == dims[:-1][-len(own) :]
        ]
        texts = [*fits, *(f"{n}[..., None]" for n in spread)]
        return self.rng.choice(texts)

    def filled(self, template: str, name: str, **more: str) -> str:
        dims = self.values[name]
        n = SIZES[dims[-1]]
        indices = [self.rng.randrange(n) for _ in range(n)]
        return template.format(
            x=name, y=self.other(dims), n=n, k=self.rng.randrange(1, n), i=f"torch.tensor({indices})", **more
        )

    def pick(self, least: int = 1) -> str | None:
        """A value of enough dimensions; the newest ones more often."""
        names = [n for n, dims in self.values.items() if len(dims) >= least]
        if not names:
            return None
        return names[-1] if self.rng.random() < 0.6 else self.rng.choice(names)

    def product(self) -> None:
        """A product of two values that share a dimension, or of one with itself."""
        x = self.pick(2)
        if x is None:
            return
        own = self.values[x]
        pairs = [n for n, dims in self.values.items() if len(dims) >= 1 and own[-1] in dims]
        y = self.rng.choice(pairs)
        dims, shared = self.values[y], own[-1]
        if (y == x or self.rng.random() < 0.4) and len(own) >= 2 and own == dims:
            way = self.rng.randrange(3)
            if way == 0:  # attention of a value with itself or another
                self.keep(f"torch.softmax({x} @ {y}.mT, -1) @ {x}", own)
            elif way == 1:
                self.keep(f"({x} @ {y}.mT).sum(-1)", own[:-1])
            else:
                self.keep(f"({x} * {y}).sum(-1, keepdim=True) * {y}", own)
            return
        left = [d for d in own if d != shared]
        right = [d for d in dims if d != shared]
        out = tuple(dict.fromkeys([*left, *right]))
        if 0 < len(out) <= 3:
            self.keep(f"torch.einsum('{''.join(own)},{''.join(dims)}->{''.join(out)}', {x}, {y})", out)


def draw_program(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(f"program {seed}")
    state = _Draw(rng)
    shapes: dict[str, Dims] = {}
    base = tuple(rng.sample("abcd", rng.choice((2, 2, 3))))
    for name in "xyzw"[: rng.randint(1, 4)]:
        way = rng.randrange(5)
        kept = (
            base
            if not shapes or way == 0
            else (base[rng.randrange(len(base)) :] if way < 3 else tuple(rng.sample("abcd", 2)))
        )
        shapes[name] = kept
    way = rng.choices(("float32", "all", "some"), (8, 1, 1))[0]
    narrow = rng.choice(("float16", "bfloat16"))
    dtypes = {n: narrow for n in shapes if way == "all" or (way == "some" and rng.random() < 0.5)}
    captured: dict[str, Dims] = {}
    if way != "all" and rng.random() < 0.3:
        captured["table"] = base[-2:] if rng.random() < 0.5 else base[-1:]
    used = list(shapes)
    state.values = {n: dims for n, dims in shapes.items() if way != "some" or n not in dtypes} | captured
    for name in dtypes if way == "some" else ():
        state.keep(f"{name}.float()", shapes[name])
    if rng.random() < 0.25:  # whole numbers, and a mask
        kind = rng.choice(("int64", "bool"))
        name = "n" if kind == "int64" else "m"
        shapes[name], dtypes[name] = base, kind
        state.keep(f"{name} * {used[0]}" if kind == "int64" else f"torch.where({name}, {used[0]}, 0.1)", base)
    folds, wanted = 0, rng.randint(2, 6)
    while folds < wanted and state.count < 14:
        step = rng.choices(
            ("map", "row", "fold", "place", "product", "write", "cast", "condition"), (5, 5, 3, 2, 3, 1, 0.5, 1)
        )[0]
        name = state.pick(2 if step in ("row", "condition") else 1)
        if name is None:
            break
        dims = state.values[name]
        if step == "map":
            state.keep(state.filled(rng.choice(_MAPS), name), dims)
        elif step == "row":
            state.keep(state.filled(rng.choice(_ROWS), name), dims)
            folds += 1
        elif step == "fold" and (len(dims) > 1 or folds + 1 >= wanted):
            state.keep(state.filled(rng.choice(_FOLDS), name), dims[:-1])
            folds += 1
        elif step == "place":
            state.keep(state.filled(rng.choice(_PLACES), name), dims)
        elif step == "product":
            state.product()
            folds += 1
        elif step == "write":
            z = state.keep(f"{name} * 1.5", dims)
            state.lines.append(state.filled(rng.choice(_WRITES), name, z=z))
        elif step == "cast":
            state.keep(f"{name}.{rng.choice(_NARROW)}().float()", dims)
        elif step == "condition":
            rows, columns = SIZES[dims[-2]], SIZES[dims[-1]]
            seen = f"torch.arange({columns}) <= torch.arange({rows})[:, None] + {rng.randrange(2)}"
            hidden = rng.choice(("0.0", "-1.5", "float('-inf')"))
            masked = f"torch.where({seen}, {name}, {hidden})"
            state.keep(f"torch.softmax({masked}, -1)" if "inf" in hidden else masked, dims)
            folds += "inf" in hidden
        if rng.random() < 0.1 and len(state.values[names := [*state.values][-1]]) == 2:
            state.keep(f"{names}.T", state.values[names][::-1])
    made = [n for n in state.values if n.startswith("s")] or used
    outputs = [made[-1]]
    for _ in range(rng.choice((0, 0, 1, 2))):
        outputs.append(rng.choice([*made, *(f"{n} * 1" for n in used)]))
    outputs = [f"({o}) + ({o}).sum() * 0.1" if rng.random() < 0.1 else o for o in dict.fromkeys(outputs)]
    lines, read = _needed(state.lines, outputs)
    if not read & {*shapes} - {*dtypes}:
        outputs.append(f"{next((n for n in used if n not in dtypes), used[0])} * 2")
        lines, read = _needed(state.lines, outputs)
    shapes, captured = ({n: dims for n, dims in given.items() if n in read} for given in (shapes, captured))
    return Program(
        seed, tuple(lines), tuple(outputs), shapes, {n: d for n, d in dtypes.items() if n in shapes}, captured
    )


def _needed(lines: list[str], outputs: list[str]) -> tuple[list[str], set[str]]:
    """The lines that the outputs depend on, and every name that is read."""
    names = lambda text: set(re.findall(r"\b[a-z]+\d*\b", text))  # noqa: E731
    read, kept = names(" ".join(outputs)), []
    for line in reversed(lines):
        if names(line.split()[0].split(".")[0].split("[")[0]) & read:
            kept.append(line)
            read |= names(line)
    return kept[::-1], read


if __name__ == "__main__":
    print(draw_program(int(sys.argv[1])).text())
