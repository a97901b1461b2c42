"""Random programs of PyTorch: the derived definition beside autograd, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradients import as_float64, gradients

import neptune_lab as nl
from fuzz.torch_programs import draw_program
from neptune_lab.errors import DefinitionError
from neptune_lab.operators import training


@pytest.mark.parametrize("seed", [0, 2041, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 100))])
def test_gradients_of_a_random_program(seed: int):
    program = draw_program(seed)
    inputs = program.inputs()
    wide = {n: t.double().requires_grad_() if t.is_floating_point() else t for n, t in inputs.items()}
    outputs = program.function(wide=True)(*wide.values())
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(seed)
    given = [torch.randn(out.shape, generator=generator, dtype=torch.float64) for out in outputs]
    recorded = [(out, g) for out, g in zip(outputs, given, strict=True) if out.requires_grad]
    floats = [wide[n] for n in program.floats]
    try:
        expected = torch.autograd.grad([o for o, _ in recorded], floats, [g for _, g in recorded], allow_unused=True)
        op = nl.from_torch(program.function(), *inputs.values())
        passes = training(op)
    except (RuntimeError, DefinitionError) as error:
        pytest.skip(f"PyTorch or we have no gradient: {error}")
    arrays = as_float64({n: t.detach().numpy() for n, t in wide.items()} | dict(op.captured))
    with np.errstate(all="ignore"):
        named = zip(op.outputs, given, strict=True)
        found = gradients(passes, arrays, {f"d_{t.name}": g.numpy() for t, g in named})
    limit = 5e-2 if program.narrow else 1e-5
    for name, wanted in zip(program.floats, expected, strict=True):
        if wanted is None or not wanted.isfinite().all():
            continue
        size = max(1.0, float(wanted.abs().max()))
        got = torch.from_numpy(np.asarray(found.get(name, np.zeros(wanted.shape))))
        torch.testing.assert_close(got, wanted, rtol=limit, atol=limit * size, msg=lambda m: f"{program.text()}: {m}")
