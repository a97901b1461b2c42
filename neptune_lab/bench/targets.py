"""The targets of the kernels, and whether a run's results reach them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from neptune_lab.bench.measured import COMPILE, CUDNN, EAGER, FLEX, BenchmarkResults, SetupResult
from neptune_lab.bench.setups import all_setups

PREFILL = ("global_pf", "causal_pf", "gqa_pf", "alibi_pf", "softcap_pf", "window_pf")
DECODE = ("causal_dc", "gqa_dc", "alibi_dc", "softcap_dc")

Figure = Callable[[SetupResult], float | None]
Asked = dict[str, SetupResult | None]


@dataclass(frozen=True)
class Goal:
    """One row of the table.

    Args:
        operators: the operators that it is about.
        against: the contestants that are compared with.
        least: the target.
        found: the measured figure; None if nothing was measured.
        how: the kind of figure, "geometric mean" or "smallest".
        worst: the setup with the smallest figure, and that figure.
        counted: how many setups have a figure.
        failed: setups on which our kernel has no right answer.
        missing: setups without a figure for another reason: not measured, or no peer with a valid time.
    """

    operators: str
    against: str
    least: float
    found: float | None
    how: str
    worst: tuple[str, float] | None = None
    counted: int = 0
    failed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def reached(self) -> bool | None:
        """Whether the figure is at least the target; None if that is open."""
        if self.failed:
            return False
        if self.found is None or self.missing:
            return None
        return self.found >= self.least


def targets(results: BenchmarkResults) -> tuple[Goal, ...]:
    """Every target, over the setups that it is about, measured or not."""
    measured = {s.name: s for s in results.setups}
    asked = all_setups()

    def group(*groups: str) -> Asked:
        return {s.name: measured.get(s.name) for s in asked if s.group in groups}

    def of(rows: Sequence[str], least_length: int = 0) -> Asked:
        mine = (s for s in asked if s.group == "attention" and s.row in rows and s.sizes["seq"] >= least_length)
        return {s.name: measured.get(s.name) for s in mine}

    def compilers(s: SetupResult) -> float | None:
        return s.speedup("compiler")

    def flex(s: SetupResult) -> float | None:
        return s.over(FLEX)

    def torch_compile(s: SetupResult) -> float | None:
        return s.over(COMPILE)

    def products(s: SetupResult) -> float | None:
        ratios = [x for x in (s.over(COMPILE), s.over(EAGER)) if x is not None]
        return min(ratios, default=None)

    def everything(s: SetupResult) -> float | None:
        return s.speedup("compiler", "library")

    def of_reading(s: SetupResult) -> float | None:
        rate = results.rates.get("copy_gbps")
        return s.kv_bytes / rate / 1e3 / s.ours if rate and s.ours else None

    best = "best compiler: FlexAttention, torch.compile, Triton by hand"
    reading = "the time to read K and V once at the measured copy rate"
    normed = "L2 norm, RMSNorm with row max or quantisation"
    rest = group("chains", "modules")
    return (
        _target("six prefill operators", best, 1.2, of(PREFILL), compilers),
        _target("four decode operators", "FlexAttention", 1.0, of(DECODE), flex),
        _target("every attention setup", best, 0.97, group("attention"), compilers, mean=False),
        _target("ALiBi prefill", "FlexAttention", 1.2, of(("alibi_pf",)), flex),
        _target("Window prefill", "FlexAttention", 1.2, of(("window_pf",)), flex),
        _target("SoftCap prefill", "FlexAttention", 1.8, of(("softcap_pf",)), flex),
        _target(
            "Global, Causal, GQA prefill, 2048 and above", "cuDNN", 0.9, of(PREFILL[:3], 2048),
            lambda s: s.over(CUDNN), mean=False,
        ),
        _target("decode, every length", "fastest compiler or library", 1.0, of(DECODE), everything, mean=False),
        _target("decode at 32768", "FlexAttention", 1.0, of(DECODE, 32768), flex, mean=False),
        _target("decode at 32768", reading, 0.85, of(DECODE, 32768), of_reading, mean=False),
        _target(normed, COMPILE, 1.8, group("norms"), torch_compile),
        _target("performer, every length", COMPILE, 1.5, group("performer"), torch_compile, mean=False),
        _target("GEMM chains and attention modules", "torch.compile, cuBLAS through PyTorch", 1.3, rest, products),
        _tuning(results),
    )  # fmt: skip


def _target(operators: str, against: str, least: float, setups: Asked, figure: Figure, *, mean: bool = True) -> Goal:
    figures = {name: figure(s) if s else None for name, s in setups.items()}
    known = {name: number for name, number in figures.items() if number is not None}
    worst = min(known.items(), key=lambda item: item[1], default=None)
    value = None if worst is None else geometric_mean(known.values()) if mean else worst[1]
    failed = tuple(name for name, s in setups.items() if s and s.ours is None)
    missing = tuple(name for name in figures if name not in known and name not in failed)
    how = "geometric mean" if mean else "smallest"
    return Goal(operators, against, least, value, how, worst, len(known), failed, missing)


def _tuning(results: BenchmarkResults) -> Goal:
    """The target of tuning is at most 60 s, so the figure is 60 s / the longest time."""
    times = {str(t["setup"]): 60.0 / t["seconds"] for t in results.tuning if t.get("seconds")}
    worst = min(times.items(), key=lambda item: item[1], default=None)
    value = worst[1] if worst else None
    return Goal(
        "tuning one setup from nothing", "60 s, over the longest time", 1.0, value, "smallest", worst, len(times)
    )
