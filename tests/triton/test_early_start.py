"""Which launches start early, where they wait, and that a launch that needs results at once does not."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.htile import from_text
from neptune_lab.htile_to_triton import EmitOptions, emit
from neptune_lab.htile_to_triton.early_start import early_starts
from neptune_lab.htile_to_triton.launches import launches_of
from neptune_lab.target import Target

HOPPER = EmitOptions(target=Target("h200"))
DECLARED = """
program p(x, v) -> y
  input   x  float32[i: 4, j: 8]
  input   v  float32[j: 8]
  output  y  float32[i: 4, j: 8]
  global  c  float32[k: 2, j: 8]
  global  d  float32[i: 4]
  chip    s  float32[i: 4]
"""
COPIES = ("k: 2", "c[k, 0:8] = v[0:8]")
SUM = "s[i] = reduce(sum, x[i, 0:8], dim=0)"
OUT = "y[i, 0:8] = x[i, 0:8] * s[i] + c[i%2, 0:8]"


def _early(*kernels: tuple[str, ...], options: EmitOptions = HOPPER) -> dict[int, int]:
    text = DECLARED + "".join(
        f"\nkernel k{n}  grid ({grid})\n    " + "\n    ".join(body) + "\n" for n, (grid, *body) in enumerate(kernels)
    )
    program = from_text(text)
    return early_starts(program, launches_of(program, options), options)


def test_rows_are_reduced_beside_copies_of_vectors():
    assert _early(COPIES, ("i: 4", SUM, OUT)) == {1: 1}


def test_a_launch_after_an_early_one_does_not_start_early():
    again = ("i: 4", "s[i] = reduce(sum, x[i, 0:8], dim=0)", "y[i, 0:8] = x[i, 0:8] * s[i] + c[1, 0:8]")
    assert _early(COPIES, ("i: 4", SUM, OUT), again) == {1: 1}


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param((COPIES, ("i: 4", "s[i] = reduce(sum, c[0, 0:8], dim=0)", OUT)), id="it reduces a copy"),
        pytest.param((COPIES, ("i: 4", "y[i, 0:8] = x[i, 0:8]", SUM, OUT)), id="it stores a result first"),
        pytest.param((COPIES, ("i: 4", "y[i, 0:8] = x[i, 0:8] + c[i%2, 0:8]")), id="it reduces nothing"),
        pytest.param((("k: 2", "c[k, 0:8] = x[k, 0:8]"), ("i: 4", SUM, OUT)), id="rows are copied"),
        pytest.param((("k: 2", "c[k, 0:8] = v[0:8] * reduce(sum, v[0:8], dim=0)"), ("i: 4", SUM, OUT)), id="a sum"),
        pytest.param((("i: 4", SUM, "y[i, 0:8] = x[i, 0:8] * s[i]"),), id="one launch"),
    ],
)
def test_what_starts_late(kernels: tuple[tuple[str, ...], ...]):
    assert _early(*kernels) == {}


def test_other_gpus_start_late():
    assert _early(COPIES, ("i: 4", SUM, OUT), options=EmitOptions(target=Target("a100"))) == {}


def test_a_norm_of_rows_that_begin_anywhere_waits_behind_its_reductions():
    op = nl.operators.norms.layer_norm(rows=17000, cols=1101, dtype="float16")
    text = nl.compile(op, target="h200", validate="none").source
    norm = text[text.index("def layer_norm_kernel") :]
    assert norm.rindex("tl.sum(") < norm.index("    _wait()") < norm.index("gamma_shifted = tl.load(")
    assert text.count("launch_pdl=True") == text.count("    _launch_dependents()") == 1


def test_an_emitted_module_waits_once():
    program = from_text(
        DECLARED + f"\nkernel k0  grid (k: 2)\n    {COPIES[1]}\n\nkernel k1  grid (i: 4)\n    {SUM}\n    {OUT}\n"
    )
    text = emit(program, HOPPER).text
    kernel = text[text.index("def k1(") :]
    assert kernel.index("tl.sum(") < kernel.index("    _wait()") < kernel.rindex("tl.load(")
    assert kernel.count("    _wait()") == 1
