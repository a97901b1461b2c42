"""Random calls of `nl.attention` that record gradients of some tensors, with mods that stop some of them.

    python tests/pytorch/random_gradients.py 500 0      # cases, first seed

A call is right if every gradient is autograd's in float64, and may be refused only where a function has a derivative
of its own of a value that one of the recording tensors flows into.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from attention_reference import DEVICE, reference

import neptune_lab as nl
from neptune_lab.errors import DefinitionError

SIZES = {"slopes": (4,), "bias": (7, 9), "column": (9,), "gain": (), "pairs": (9, 2)}
# An element of each captured tensor at a position, {} standing for the tensor.
READS = {
    "slopes": ("{}[h]", "{}[-h - 1]", "({} * 2)[h]", "torch.cat([{}, {}])[h + 2]"),
    "bias": ("{}[q, kv]", "{}.T[kv, q]", "{}[q].sum(-1)"),
    "column": ("{}[kv]", "{}[(q + kv) % 9]", "{}.amax()", "{}[kv // 2]"),
    "gain": ("{}", "({} + 1)"),
    "pairs": ("({}[q] * {}[kv]).sum(-1)", "{}[kv, 1]", "{}[kv, q % 2]"),
}
# What a mod makes of a score and an element.
STEPS = (
    "({s}) + {e}",
    "({s}) * {e}",
    "torch.where(q >= kv, {s}, {e})",
    "({s}) - {e} * (q - kv)",
    "torch.tanh({s}) * {e}",
)
# What stops a gradient of a whole tensor, of an element, and of a score; the last has another derivative: refused.
STOPS = ("({}).detach()", "torch.detach({})", "({}).data", "unrecorded(lambda: {})", "Passed.apply({})")


class Passed(torch.autograd.Function):
    """The same number, with another derivative."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 3 * grads[0]


def unrecorded(value: Callable[[], Any]) -> Any:
    """The value, computed under torch.no_grad."""
    with torch.no_grad():
        return value()


@dataclass(frozen=True)
class Call:
    """A call of attention.

    Args:
        score: the score_mod's body, over s, b, h, q, kv, the captured tensors and a number c, which changes before
            the backward pass.
        recording: names of the tensors that record gradients.
        stopped: names of the tensors that flow into a function with a derivative of its own; "s" for the score.
        seed: of the tensors.
    """

    score: str
    recording: frozenset[str]
    stopped: frozenset[str]
    seed: int

    @property
    def harmful(self) -> bool:
        """Whether such a function has a derivative by a recording tensor."""
        return bool(self.stopped & self.recording) or ("s" in self.stopped and bool(self.recording - {"v"}))

    def tensors(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The inputs and the captured tensors by name."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = {"q": (1, 4, 7, 8), "k": (1, 2, 9, 8), "v": (1, 2, 9, 5), **SIZES}
        made = {name: torch.randn(shape, generator=generator).to(DEVICE) for name, shape in shapes.items()}
        return {name: t.to(dtype).requires_grad_(name in self.recording) for name, t in made.items()}

    def gradients(self, attend: Callable[..., torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The output, and the gradients by the tensors' names."""
        given = self.tensors(dtype)
        scope = {"torch": torch, "Passed": Passed, "unrecorded": unrecorded}
        scope |= {name: t for name, t in given.items() if name in SIZES}
        scope["c"] = 0.75
        mod = eval(f"lambda s, b, h, q, kv: {self.score}", scope)
        out = attend(given["q"], given["k"], given["v"], mod)
        scope["c"] = 3.0  # (the derivative is that of the forward pass)
        if out.requires_grad:  # (all that records may be stopped)
            out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out))
        return {"out": out.detach()} | {n: given[n].grad for n in self.recording}  # pyright: ignore[reportReturnType]


def draw(seed: int) -> Call:
    """The call of that seed."""
    rng = random.Random(seed)
    text, stopped = "s * c", set[str]()
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice(list(SIZES))
        whole, element = name, rng.choice(READS[name])
        where = rng.choice(["", "", "whole", "element", "score"])
        stop = rng.choice(STOPS)
        if where == "whole":
            whole = stop.format(name)
        element = element.replace("{}", whole)
        if where == "element":
            element = stop.format(element)
        if where in ("whole", "element") and stop == STOPS[-1]:
            stopped.add(name)
        if where == "score":
            if stop == STOPS[-1]:  # (what was read before is in the score, too)
                stopped |= {"s", *(other for other in SIZES if other in text)}
            text = f"({text}) + 0.5 * {stop.format(text)}"
        text = rng.choice(STEPS).format(s=text, e=element)
    recording = frozenset(n for n in ("q", "k", "v", *SIZES) if rng.random() < 0.4 and (n not in SIZES or n in text))
    return Call(text, recording or frozenset({"v"}), frozenset(stopped), seed)


def judged(call: Call) -> tuple[str, str]:
    """ "right", "refused", "needlessly refused" or "wrong", and what was found."""

    def ours(q: Any, k: Any, v: Any, mod: Any) -> torch.Tensor:
        return nl.attention(q, k, v, score_mod=mod, enable_gqa=True)

    try:
        found = call.gradients(ours, torch.float32)
    except DefinitionError as error:
        if "a derivative of its own" not in str(error):
            raise
        return ("refused" if call.harmful else "needlessly refused"), str(error)
    exact = call.gradients(reference, torch.float64)
    eager = call.gradients(lambda q, k, v, mod: reference_in_float32(q, k, v, mod), torch.float32)
    for name, wanted in exact.items():
        if wanted is None or found[name] is None:  # (torch gives none to what is read under no_grad alone)
            if wanted is not None or (found[name] is not None and found[name].any()):
                return "wrong", f"{name}: {found[name]} in place of {wanted}"
            continue
        rounding = float((eager[name].double() - wanted).abs().max()) if eager[name] is not None else 0.0
        allowed = 1e-3 * float(wanted.abs().max()) + 16 * rounding + 1e-5
        error = float((found[name].double() - wanted).abs().max())
        if not error <= allowed:
            return "wrong", f"{name} is off by {error}, of {float(wanted.abs().max())}"
    return "right", ""


def reference_in_float32(q: Any, k: Any, v: Any, mod: Any) -> torch.Tensor:
    """The definition in float32, whose rounding says what to expect."""
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    index = torch.meshgrid(*(torch.arange(n, device=q.device) for n in (*q.shape[:3], k.shape[2])), indexing="ij")
    return mod(q @ k.mT * q.shape[3] ** -0.5, *index).softmax(-1) @ v


if __name__ == "__main__":
    words: Counter[str] = Counter()
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[1])):
        word, told = judged(draw(number))
        words[word] += 1
        if word not in ("right", "refused"):
            print(word, told, draw(number), sep="\n  ", flush=True)
    print(dict(words))
