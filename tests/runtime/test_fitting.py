"""Whether tensors fit a kernel, by the function that is written out for it: as `check_arguments` says."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from neptune_lab.errors import LaunchError
from neptune_lab.runtime.fitting import fitting
from neptune_lab.runtime.load import check_arguments
from neptune_lab.runtime.refusals import refuse_gradients
from neptune_lab.runtime.spec import KernelSpec
from neptune_lab.tensor_spec import TensorSpec

SIZED = KernelSpec(
    "sized",
    "sized",
    "",
    (
        TensorSpec("q", (2, 3, 8, 4), "float16", sizes=("", "", "m", "")),
        TensorSpec("k", (2, 3, 16, 4), "float16", (192, 4, 12, 1), ("", "", "n", ""), ("n", "", "", "")),
        TensorSpec("t", (16,), "float32", sizes=("n",)),
        TensorSpec("c", (), "int32"),
    ),
    (),
    (("m", 2, 9), ("n", 3, 20)),
)
FIXED = KernelSpec(
    "fixed", "fixed", "", (TensorSpec("q", (2, 1, 5), "bfloat16", (7, 3, 1)), TensorSpec("k", (5,), "float32")), ()
)


def right(spec: KernelSpec, draw: random.Random) -> list[Any]:
    """Arguments that the kernel takes."""
    at = {name: draw.randint(least, most) for name, least, most in spec.ranges}
    made: list[Any] = []
    for tensor in spec.inputs:
        named = tensor.sizes or ("",) * len(tensor.shape)
        shape = [at[name] if name else n for n, name in zip(tensor.shape, named, strict=True)]
        dtype, strides = getattr(torch, tensor.dtype), tensor.strides_at(shape)
        made.append(
            torch.zeros(shape, dtype=dtype) if strides is None else torch.empty_strided(shape, strides, dtype=dtype)
        )
    return made


def spoilt(given: list[Any], draw: random.Random) -> list[Any]:
    """The arguments with one of them replaced."""
    place = draw.randrange(len(given))
    old = given[place]
    others: list[Any] = [
        old.to(torch.float64),
        old.unsqueeze(0),
        torch.cat([old, old]) if old.ndim else old.reshape(1),
        old.to("meta"),
        None,
        3,
        old.tolist(),
        old.to_sparse() if old.ndim else old,
        torch.empty(*old.shape[:-1], 2 * old.shape[-1], dtype=old.dtype)[..., ::2] if old.ndim else old,
        old.clone().requires_grad_() if old.is_floating_point() else old,
        old.contiguous(),
        old.transpose(0, -1) if old.ndim > 1 else old,
        old[:1] if old.ndim else old,
        old.narrow(-2, 0, 1) if old.ndim > 1 else old,
    ]
    return [*given[:place], draw.choice(others), *given[place + 1 :]]


def accepted(spec: KernelSpec, given: list[Any]) -> bool:
    try:
        check_arguments(spec, tuple(given), interpreter=True)
        refuse_gradients(spec, tuple(given))
    except LaunchError:
        return False
    return True


@pytest.mark.parametrize("spec", [SIZED, FIXED], ids=lambda spec: spec.name)
def test_what_fits_is_what_is_not_refused(spec: KernelSpec):
    fits, draw = fitting(spec), random.Random(0)

    def found(given: list[Any]) -> bool:
        try:
            return bool(fits(given[0].device, torch.is_grad_enabled(), *given))
        except (AttributeError, IndexError, RuntimeError, TypeError):
            return False

    outcomes = set()
    for _ in range(300):
        given = right(spec, draw)
        assert found(given)
        assert accepted(spec, given)
        other = spoilt(given, draw)
        outcomes.add(accepted(spec, other))
        assert found(other) == accepted(spec, other), other
    assert outcomes == {False, True}


def test_sizes_with_one_name_are_one_number_in_its_range():
    fits, draw = fitting(SIZED), random.Random(1)
    q, _, _, c = right(SIZED, draw)
    for n in (2, 3, 20, 21):
        own = torch.empty_strided((2, 3, n, 4), (12 * n, 4, 12, 1), dtype=torch.float16)
        assert fits(q.device, True, q, own, torch.zeros(n), c) == (3 <= n <= 20)
        assert not fits(q.device, True, q, own, torch.zeros(n + 1), c)
