"""What `09_from_pytorch` shares between its cells, and its exercises: functions of PyTorch that the reader mends."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neptune_lab.errors import DefinitionError, ScheduleError
from neptune_widgets.course.exercise import NotYet, exercise

if TYPE_CHECKING:
    from torch import Tensor

    from neptune_lab import Kernel
    from neptune_lab.operators import Operator

# Of the exercises: batch, heads, positions, width; the window with the query itself in it; and how far numbers may be
# apart, relative to the largest.
SHAPE, WINDOW, TOLERANCE = (1, 2, 64, 16), 16, 1e-3
GATES = (-1.0, 0.0, 0.5, 2.0)
KINDS = ("one kernel", "several kernels", "refused")


def lines(operator: Operator) -> str:
    """The user's lines of a traced operator, each with the stages that it became.

    Args:
        operator: of `nl.from_torch`.

    Returns:
        One line of text per line of Python, and below it one with its stages.
    """
    shown = [line for function in operator.python for line in function.lines if line.text.strip()]
    texts = textwrap.dedent("\n".join(line.text for line in shown)).splitlines()
    rows = []
    for line, text in zip(shown, texts, strict=True):
        rows.append(f"{line.number:3}  {text}")
        if line.stages:
            rows.append(f"     {' ' * (len(text) - len(text.lstrip()))}→ {', '.join(line.stages)}")
    return "\n".join(rows)


def kernels(kernel: Kernel) -> int:
    """How many kernels a compiled operator launches."""
    return len(kernel.htile.kernels)


# -- exercise 1 ---------------------------------------------------------------------------------------------------


def gated(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """Attention whose scores are limited to ±20 if `gate` is positive; PyTorch runs it, and it cannot be traced."""
    import torch

    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if gate > 0:
        scores = 20 * torch.tanh(scores / 20)
    return torch.softmax(scores, -1) @ v


@exercise(
    "A branch on a value, without the branch",
    hints=(
        "A traced function cannot ask for the value of `gate`. It can compute both results and choose between them.",
        "`torch.where(condition, a, b)` chooses element by element; `gate > 0` is a tensor.",
    ),
)
def without_branch(function: Callable[..., Any]) -> str:
    """Right where the function is traced, is one kernel, and gives what `gated` gives, whatever the gate.

    Args:
        function: takes q, k, v of the shape `SHAPE` and a gate without dimensions, all float32.
    """
    import torch

    q, k, v = _qkv()
    q = 40 * q  # so that the limit shows
    kernel = _compiled(function, q, k, v, torch.ones(()))
    for gate in GATES:
        given = (q, k, v, torch.tensor(gate))
        _numbers(kernel, given, gated(*given), f"with gate = {gate:g}")
    return f"one kernel, and right for the gates {', '.join(f'{gate:g}' for gate in GATES)}"


# -- exercise 2 ---------------------------------------------------------------------------------------------------


def window_mask(n: int) -> Tensor:
    """(n, n), bool: which keys a query sees, itself and the 15 before it."""
    import torch

    return torch.ones(n, n).tril().triu(1 - WINDOW).bool()


def windowed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention with the mask as a tensor."""
    import torch

    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


@exercise(
    "A mask that is computed, not loaded",
    hints=(
        "A mask compares positions: `i = torch.arange(n)[:, None]` for queries, `j = torch.arange(n)` for keys.",
        "Key j is hidden from query i if `j > i`, or if it is too far back: how large may `i - j` be?",
        "Call `torch.arange` inside the function: a tensor made outside becomes an input.",
    ),
)
def computed_mask(function: Callable[..., Any]) -> str:
    """Right where the function needs no tensor but q, k and v, is one kernel, and gives what `windowed` gives.

    Args:
        function: takes q, k, v of the shape `SHAPE` in float32.
    """
    q, k, v = _qkv()
    kernel = _compiled(function, q, k, v)
    extra = kernel.operator.inputs[3:]
    if extra:
        size = math.prod(extra[0].shape)
        raise NotYet(f"the kernel loads a tensor of {size} elements that the function holds, `{extra[0]}`")
    right = windowed(q, k, v, window_mask(q.shape[-2]))
    _numbers(kernel, (q, k, v), right, "for standard normal inputs")
    return "one kernel that loads q, k and v, and no mask"


# -- exercise 3 ---------------------------------------------------------------------------------------------------


def norm_and_product(x: Tensor, w: Tensor) -> Tensor:
    """RMSNorm, then a product."""
    import torch

    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) @ w


def rounded_product(x: Tensor, w: Tensor) -> Tensor:
    """Each row rounded to 255 steps, then a product."""
    import torch

    scale = x.abs().amax(-1, keepdim=True) / 127
    return (torch.round(x / scale) @ w) * scale


def softmax_product(x: Tensor, w: Tensor) -> Tensor:
    """Softmax, then a product."""
    import torch

    return torch.softmax(x, -1) @ w


def ranked_product(x: Tensor, w: Tensor) -> Tensor:
    """Each row in rising order, then a product."""
    import torch

    return torch.sort(x, -1).values @ w


CANDIDATES = (norm_and_product, rounded_product, softmax_product, ranked_product)


def candidates() -> str:
    """The text of `CANDIDATES`, without what a reader does not need."""
    shown = []
    for function in CANDIDATES:
        text = inspect.getsource(function).replace(": Tensor", "").replace(" -> Tensor", "").splitlines()
        shown.append("\n".join(x for x in text if x.strip() and '"""' not in x and "import torch" not in x))
    return "\n\n".join(shown)


@exercise(
    "One kernel, several, or refused",
    hints=(
        "Of each product: if the number that scales a row changes, does a factor correct the sum so far?",
        "`round(x / a)` is not `round(x / b)` times a factor.",
        "Which function needs the whole row in another order?",
    ),
)
def predicted(answer: Mapping[str, str]) -> str:
    """Right where each of `CANDIDATES` is said to become what the compiler makes of it.

    Args:
        answer: one of `KINDS` for the name of each function.
    """
    names = [f.__name__ for f in CANDIDATES]
    if not isinstance(answer, Mapping) or set(answer) != set(names) or not set(answer.values()) <= set(KINDS):
        raise NotYet(f"expected one of {', '.join(map(repr, KINDS))} for each of {', '.join(names)}, found {answer!r}")
    found = {f.__name__: _kind(f) for f in CANDIDATES}
    wrong = [name for name in names if found[name] != answer[name]]
    if wrong:
        raise NotYet(f"{len(wrong)} of {len(names)} are something else; look at `{wrong[0]}` again")
    return "; ".join(f"{name}: {kind}" for name, kind in found.items())


def _kind(function: Callable[..., Any]) -> str:
    """What the compiler makes of a function of a matrix of 32 rows of 256 and one of 256 rows of 32."""
    import torch

    import neptune_lab as nl

    try:
        operator = nl.from_torch(function, torch.zeros(32, 256), torch.zeros(256, 32))
    except DefinitionError:
        return "refused"
    made = nl.compile(operator, "rolling_update", block_q=16, block_kv=64, validate="none")
    return "one kernel" if kernels(made) == 1 else "several kernels"


# -- what the judges share ----------------------------------------------------------------------------------------


def _qkv() -> tuple[Tensor, Tensor, Tensor]:
    import torch

    q, k, v = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(9))
    return q, k, v


def _compiled(function: Any, *given: Tensor) -> Kernel:
    """The function as one kernel; NotYet if it is none, or several."""
    import neptune_lab as nl

    if not callable(function):
        raise NotYet(f"expected a function, found {function!r}")
    operator = nl.from_torch(function, *given)
    try:
        kernel = nl.compile(operator, "rolling_update", block_q=32, block_kv=32)
    except ScheduleError:  # several nests without a loop in common
        kernel = nl.compile(operator)
    if kernels(kernel) > 1:
        raise NotYet(f"this becomes {kernels(kernel)} kernels; one will do")
    return kernel


def _numbers(kernel: Kernel, given: Sequence[Tensor], right: Tensor, where: str) -> None:
    """NotYet if the kernel's numbers are not `right`."""
    from neptune_lab.runtime import call_on_arrays, load

    shapes = [t.shape for t in kernel.operator.outputs]
    if shapes != [tuple(right.shape)]:
        raise NotYet(f"the result has the shape {shapes[0]}, expected {tuple(right.shape)}")
    (found,) = call_on_arrays(load(kernel.spec), tuple(t.numpy() for t in given))
    error = abs(found - right.numpy()).max() / abs(right.numpy()).max()
    if not error <= TOLERANCE:  # NaN too
        raise NotYet(f"{where} the largest difference is {error:.2g} of the largest number")


__all__ = [
    "CANDIDATES",
    "KINDS",
    "candidates",
    "computed_mask",
    "gated",
    "kernels",
    "lines",
    "predicted",
    "window_mask",
    "windowed",
    "without_branch",
]
