"""Exercises of the notebook on the GPU: intensity, least times, tiles that fit, tiles that are masked.

What is right is computed each time: by the compiler, or from the ceilings of the recorded (or measured) run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from neptune_lab.target import Target
from neptune_widgets.course.exercise import NotYet, exercise
from neptune_widgets.course.measured import Run

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline.facts import Work

# How far an answer may be from the figure that is asked for: the few operations beside the products may be left out.
NEAR = 0.05
FILLED = 0.9


def prefill() -> Operator:
    """Causal attention of 4096 positions: 32 heads of 128, float16."""
    from neptune_lab.operators import attention

    return attention.causal(batch=1, heads=32, seq=4096, head_dim=128)


def decoding() -> Operator:
    """One query of 64 heads against 32768 keys, which every 8 heads share: heads of 128, float16."""
    from neptune_lab.operators import attention

    return attention.preset("gqa_dc", seq=32768)


def wide() -> Operator:
    """Causal attention whose heads are twice as wide as usual: 256."""
    from neptune_lab.operators import attention

    return attention.causal(batch=1, heads=32, seq=2048, head_dim=256)


def windowed() -> Operator:
    """Attention of 4096 positions, each of which sees itself and the 999 before it; the window ends inside tiles."""
    from neptune_lab.operators import attention

    return attention.window(batch=1, heads=2, seq=4096, head_dim=64, window=1000)


WINDOW_Q, WINDOW_KV = 128, 64


@exercise(
    "From which length on is causal attention bound by products?",
    hints=(
        (
            "Count for one head, n positions of width d: a product of an n × d and a d × n matrix takes "
            "`2 n² d` operations, and there are two such products. How many of the pairs does the mask leave?"
        ),
        "At least q, k, v and the output have to move, once each, two bytes per number, but no scores.",
        "The intensity is `n / 4` operations per byte. The kernel is bound by products once that reaches the ridge.",
    ),
)
def intensity(at_4096: float, shortest: float, ceilings: Run) -> str:
    """Judges the arithmetic intensity at 4096 positions, and the length at which it reaches the ridge."""
    todo = _work(prefill())
    want = todo.flops / todo.bytes
    value = _number(at_4096, "the intensity at 4096")
    for factor, why in (
        (2.0, "twice what it is: pairs that the mask hides do not count, and each number has two bytes"),
        (4.0, "four times what it is: half of the pairs are masked, and each number has two bytes"),
        (0.5, "half of what it is: a multiplication and an addition are two operations, and there are two products"),
        (0.25, "a quarter of what it is: did both products and both operations of a multiply-add count?"),
    ):
        if _near(value, factor * want):
            raise NotYet(f"{value:g} operations per byte at 4096 is {why}")
    if not _near(value, want):
        less = "too few: do scores count as moved? They stay on chip" if value < want else "too many"
        raise NotYet(f"{value:g} operations per byte at 4096 are {less}")
    length = _number(shortest, "the length")
    ridge = ceilings.data["product_tflops"] * 1e3 / ceilings.data["copy_gbps"]
    if _near(length, ridge):
        raise NotYet(f"{length:g} is the ridge, in operations per byte; at which length does the intensity reach it?")
    if not _near(length, 4096 * ridge / want):
        found = want * length / 4096
        raise NotYet(f"at {length:g} positions the intensity is about {found:.0f}, and the ridge is at {ridge:.0f}")
    return (
        f"the compiler counts {want:.0f} operations per byte at 4096. It grows with the length, so from about "
        f"{4096 * ridge / want:.0f} positions on this operator is bound by products on {ceilings.device}"
    )


@exercise(
    "Lower bounds on the time of two kernels",
    hints=(
        "`work(op.program)` has `flops` and `bytes`; the ceilings of section 3 are rates, in TFLOP/s and GB/s.",
        ("A kernel can load while it multiplies. So it takes at least the longer of the two times, and not their sum."),
        "A second has 10⁶ µs, so `flops / tflops / 1e6` and `bytes / gbps / 1e3` are in µs.",
    ),
)
def least_time(microseconds: Sequence[float], ceilings: Run) -> str:
    """Judges the least times of `prefill()` and `decoding()`, in microseconds."""
    pair = _pair(microseconds, "the least times of prefill and decoding")
    copy, product = ceilings.data["copy_gbps"], ceilings.data["product_tflops"]
    parts = [_Least.of(_work(op()), product, copy) for op in (prefill, decoding)]
    wanted = [part.us for part in parts]
    if _near(pair[0], wanted[1]) and _near(pair[1], wanted[0]):
        raise NotYet("those are the two times in reverse order: prefill comes first")
    for name, got, part in zip(("prefill", "decoding"), pair, parts, strict=True):
        if _near(got, part.us):
            continue
        if _near(got, part.us / 1e6) or _near(got, part.us / 1e3) or _near(got, part.us * 1e3):
            raise NotYet(f"{name}: {got:g} has the right digits in another unit; expected microseconds")
        if _near(got, part.computing + part.moving):
            raise NotYet(f"{name}: {got:g} µs is the sum of the two times, but a kernel can load while it multiplies")
        if _near(got, min(part.computing, part.moving)):
            raise NotYet(f"{name}: {got:g} µs is the shorter of the two times; the kernel cannot be faster than either")
        if _sheet(got, name, ceilings):
            raise NotYet(f"{name}: {got:g} µs follows from the datasheet; this GPU was measured, and reaches less")
        raise NotYet(f"{name}: {got:g} µs is not the larger of operations over their rate and bytes over theirs")
    return (
        f"estimates for {ceilings.device}: prefill {parts[0].computing:.0f} µs of products, "
        f"{parts[0].moving:.0f} µs of memory; decoding {parts[1].computing:.1f} µs of products, "
        f"{parts[1].moving:.1f} µs of memory"
    )


@exercise(
    "Tiles that fit",
    hints=(
        (
            "On chip are one tile of queries, and `num_stages` tiles of keys and as many of values. "
            "A tile of 64 positions of width 256 has 32 KiB."
        ),
        (
            "The verdict says what a choice takes, by `kernel_bytes` of `neptune_lab.autotune.shared_memory`. Half as "
            "many queries save one of the large tiles; half as many keys, or a stage less, save several."
        ),
    ),
)
def fitting(choice: Mapping[str, int]) -> str:
    """Judges tiles and stages for heads of width 256 on a GPU with 163 KiB of shared memory a block."""
    from neptune_lab.autotune.shared_memory import kernel_bytes
    from neptune_lab.pipeline import Choice, compile_choice

    if not isinstance(choice, Mapping):
        raise NotYet(f"{choice!r}: expected a dict of options, such as {{'block_q': 32, 'block_kv': 32}}")
    kernel = compile_choice(wide(), Choice.of("rolling_update", choice, "your choice"))
    (only,) = kernel.htile.kernels
    limit = Target("a100").shared_memory
    taken = kernel_bytes(kernel.htile, only)
    said = f"{taken / 1024:.0f} of {limit / 1024:.0f}"
    if taken > limit:
        raise NotYet(f"this takes {said} KiB: too much for the kernel to start")
    if taken < FILLED * limit:
        raise NotYet(f"this takes {said} KiB, which is {taken / limit:.0%}: it fits, but {FILLED:.0%} are asked for")
    return f"{said} KiB, {taken / limit:.0%}"


@exercise(
    "How many tiles see the mask?",
    hints=(
        "A tile of 128 queries and 64 keys spans a range of distances query − key. What are its ends?",
        (
            "The tile is visited if some distance of the range lies in 0 … 999. "
            "It needs a mask if some distance of the range does not."
        ),
        "Loop over `i in range(0, 4096, 128)` and `j in range(0, 4096, 64)`, and count by two conditions.",
    ),
)
def masked_tiles(counts: Sequence[int]) -> str:
    """Judges (tiles visited, tiles masked) of one head of `windowed()`."""
    import neptune_lab as nl
    from neptune_widgets.course.tile_map import tile_map

    visited, masked = _pair(counts, "the numbers of tiles visited and masked")
    op = windowed()
    found = tile_map(nl.compile(op, "rolling_update", block_q=WINDOW_Q, block_kv=WINDOW_KV).htile)
    heads = op.inputs[0].shape[1]
    if (visited, masked) == (found.visited, found.masked):
        return (
            f"the compiler's loops visit {found.visited} of {found.all} tiles, and {found.masked} of them have a mask"
        )
    if (visited, masked) == (found.masked, found.visited):
        raise NotYet("those are the two numbers in reverse order: the tiles that are visited come first")
    if (visited, masked) == (heads * found.visited, heads * found.masked):
        raise NotYet(f"those are the tiles of all {heads} heads; one is asked for")
    if (visited, masked) == (found.visited, found.visited - found.masked):
        raise NotYet("the second number counts the tiles without a mask")
    causal = sum(1 for i in range(len(found.cells)) for j in range(found.cells.shape[1]) if _reached(found, i, j))
    if visited == causal:
        raise NotYet(f"{causal} tiles have a key that is not later than a query; the window hides some of them")
    if visited != found.visited:
        raise NotYet(f"{visited:g} tiles visited are too {'many' if visited > found.visited else 'few'}")
    if masked < found.masked:
        raise NotYet(f"{masked:g} tiles with a mask are too few: there is an edge on both sides")
    raise NotYet(f"{masked:g} tiles with a mask are too many: where all pairs of a tile are seen, there is none")


@dataclass(frozen=True, slots=True)
class _Least:
    """The times, in microseconds, that the products and the memory take at their best rates."""

    computing: float
    moving: float

    @classmethod
    def of(cls, todo: Work, tflops: float, gbps: float) -> _Least:
        return cls(todo.flops / tflops / 1e6, todo.bytes / gbps / 1e3)

    @property
    def us(self) -> float:
        return max(self.computing, self.moving)


def _sheet(got: float, name: str, ceilings: Run) -> bool:
    """Whether a time follows from the rates of the datasheet."""
    gbps, tflops = ceilings.data["sheet_gbps"], ceilings.data["sheet_tflops"]
    if not gbps or not tflops:
        return False
    return _near(got, _Least.of(_work(prefill() if name == "prefill" else decoding()), tflops, gbps).us)


def _reached(found: Any, i: int, j: int) -> bool:
    return j * found.block_kv <= (i + 1) * found.block_q - 1


def _work(op: Operator) -> Work:
    from neptune_lab.pipeline.facts import work

    return work(op.program)


def _near(got: float, want: float) -> bool:
    return abs(got - want) <= NEAR * abs(want)


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise NotYet(f"{what}: expected a number, got {value!r}")
    return float(value)


def _pair(values: object, what: str) -> tuple[float, float]:
    found = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else ()
    if len(found) != 2:
        raise NotYet(f"expected a pair, {what}; got {values!r}")
    first, second = (_number(value, what) for value in found)
    return first, second
