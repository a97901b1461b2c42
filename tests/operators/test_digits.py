"""Stages of flattened rows become stages along the dimensions that were flattened."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import neptune_lab as nl
from neptune_lab.loop_ir.nodes import Buffer, Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.run import run_wide
from neptune_lab.operators import training
from neptune_lab.operators.reverse_mode.digits import along_digits
from neptune_lab.operators.reverse_mode.stages import Stage, program_of, stages_of


def digits(index: Expr, size: int) -> tuple[Expr, Expr]:
    return Op("floordiv", (index, Const(size))), Op("floormod", (index, Const(size)))


def stage(name: str, axes: dict[str, int], term: Expr, folded: dict[str, int] | None = None) -> Stage:
    return Stage(name, tuple(axes.items()), tuple((folded or {}).items()), "sum" if folded else None, term, "float32")


r, a, b, c = map(Var, "rabc")
ROWS = 12
X = Buffer("x", (3, 4, 5), "float32")
SUM = stage("s", {"r": ROWS}, Load("x", (*digits(r, 4), c)), {"c": 5})
FLAT = Op("add", (Op("mul", (a, Const(4))), b))


def changed(stages: list[Stage], outputs: list[str], inputs: list[Buffer]) -> tuple[Stage, ...]:
    """The stages along digits, after the numbers of their outputs were compared."""
    found = along_digits(stages, outputs)
    numbers = np.random.default_rng(0)
    given = {t.name: numbers.standard_normal(t.shape) for t in inputs}
    one, other = (run_wide(program_of("p", inputs, s, outputs), given) for s in (stages, found))
    for name in outputs:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-12)
    return found


def test_rows_are_cut_where_they_are_made_and_read():
    out = stage("out", {"a": 3, "b": 4, "c": 5}, Op("sub", (Load("x", (a, b, c)), Load("s", (FLAT,)))))
    found = changed([SUM, out], ["out"], [X])
    assert [(s.axes, s.folded) for s in found] == [
        ((("r_high", 3), ("r_low", 4)), (("c", 5),)),
        (out.axes, ()),
    ]
    assert found[0].term == Load("x", (Var("r_high"), Var("r_low"), c))
    assert Load("s", (a, b)) in (found[1].term.args if isinstance(found[1].term, Op) else ())


def test_a_stage_along_the_same_rows_follows():
    twice = stage("t", {"r": ROWS}, Op("mul", (Load("s", (r,)), Load("w", (r,)))))
    total = stage("total", {}, Load("t", (r,)), {"r": ROWS})
    found = changed([SUM, twice, total], ["total"], [X, Buffer("w", (ROWS,), "float32")])
    assert [s.shape for s in found] == [(3, 4), (3, 4), ()]
    assert found[2].folded == (("r_high", 3), ("r_low", 4))


@pytest.mark.parametrize("kind", ["a result", "read by a result", "read elsewhere", "not whole", "nothing"])
def test_left_as_they_are(kind: str):
    out = stage("out", {"r": ROWS}, Load("s", (r,)))
    shifted = stage("out", {"a": 9}, Load("s", (Op("add", (a, Const(3))),)))
    few = [stage("s", {"r": 3}, Load("x", (r, Const(0), c)), {"c": 5}), stage("out", {"r": 3}, Load("s", (r,)))]
    ragged = stage("s", {"r": 10}, Load("x", (*digits(r, 4), c)), {"c": 5})
    stages = {
        "a result": [SUM],
        "read by a result": [SUM, out],
        "read elsewhere": [SUM, shifted],
        "not whole": [ragged, stage("out", {"a": 2, "b": 4}, Load("s", (FLAT,)))],
        "nothing": few,
    }[kind]
    found = changed(stages, [stages[-1].name], [X])
    assert all(x is y for x, y in zip(found, stages, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_random_chains(seed: int):
    """Chains of maps and sums along rows, whose inputs are read by digits of either base, and results of every kind."""
    rng = random.Random(seed)
    inputs = [Buffer("x", (3, 4), "float32"), Buffer("y", (2, 6), "float32"), Buffer("w", (ROWS,), "float32")]
    stages: list[Stage] = []
    for n in range(rng.randint(1, 4)):
        reads: list[Expr] = [
            Load("x", digits(r, 4)),
            Load("y", digits(r, 6)),
            Load("w", (r,)),
            *(Load(s.name, (r,)) for s in stages),
        ]
        stages.append(stage(f"s{n}", {"r": ROWS}, Op("mul", (rng.choice(reads), rng.choice(reads)))))
    last = stages[-1].name
    results = {
        "sum": stage("sum", {}, Load(last, (r,)), {"r": ROWS}),
        "both": stage("both", {"a": 3, "b": 4}, Load(last, (FLAT,))),
        "rows": stage("rows", {"r": ROWS}, Load(last, (r,))),
    }
    outputs = rng.sample(sorted(results), rng.randint(1, 2))
    changed([*stages, *(results[name] for name in outputs)], outputs, inputs)


def mean(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.reshape(-1, x.shape[-1]), t.reshape(-1))


def without_mean(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.reshape(-1, x.shape[-1]), t.reshape(-1), reduction="none")


def smoothed(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.reshape(-1, x.shape[-1]), t.reshape(-1), label_smoothing=0.125, reduction="sum")


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2)])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("function", [mean, without_mean, smoothed])
def test_a_loss_of_more_dimensions_takes_as_many_kernels_as_of_two(
    function: Callable[..., torch.Tensor], flat: bool, shape: tuple[int, ...]
):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, 9, generator=generator)
    t = torch.randint(0, 9, shape, generator=generator)
    t.view(-1)[1] = -100
    counts = []
    for args in ((x.reshape(-1, 9), t.reshape(-1)), (x, t.reshape(-1) if flat else t)):
        passes = training(nl.from_torch(function, *args))
        counts.append(nl.compile(passes.backward).spec.text.count("@triton.jit\ndef"))
    assert counts[1] <= counts[0]
    own, wide = x.clone().requires_grad_(), x.double().requires_grad_()
    attend = nl.compile(nl.from_torch(function, *args)).with_gradients()
    given = torch.randn(function(x, t).shape, generator=generator)
    attend(own, args[1]).backward(given)
    function(wide, t).backward(given.double())
    assert own.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(own.grad.double(), wide.grad, rtol=1e-5, atol=1e-6)


def test_a_backward_pass_has_no_condition_left_on_the_digits_of_its_rows():
    x, t = torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=torch.long)
    made = stages_of(training(nl.from_torch(mean, x, t)).backward.program)
    assert not any("floor" in str(s.term) for s in made)
