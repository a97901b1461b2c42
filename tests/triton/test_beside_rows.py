"""Vectors beside rows that begin at odd places are loaded as the rows are: which, and that results stay."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.htile import from_text
from neptune_lab.htile_to_triton.beside_rows import vectors_beside_rows
from neptune_lab.operators import norms

DECLARED = """
program p(x, v) -> y
  input   x  float16[i: 4, j: {width}]
  input   v  float16[j: {width}]
  output  y  float16[i: 4, j: {width}]
  chip    s  float32[i: 4]

kernel p  grid (i: 4)
    """
SUM = "s[i] = reduce(sum, float32(x[i, 0:{width}] * v[0:{width}]), dim=0)\n    "
OUT = "y[i, 0:{width}] = float16(float32(x[i, 0:{width}]) * s[i])\n"


def _found(width: int, text: str = SUM + OUT) -> set[str]:
    program = from_text((DECLARED + text).replace("{width}", str(width)))
    return set(vectors_beside_rows(program, program.kernels[0]))


@pytest.mark.parametrize(("width", "vectors"), [(9, {"v"}), (12, set()), (8, set())])
def test_rows_of_an_odd_number_of_elements(width: int, vectors: set[str]):
    assert _found(width) == vectors


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("y[i, 0:9] = x[i, 0:9]\n", id="no vector"),
        pytest.param(
            "s[i] = reduce(sum, float32(x[i, 0:9]), dim=0)\n    y[i, 0:9] = x[i, 0:9] * v[0:9]\n",
            id="a vector behind the reduction",
        ),
        pytest.param(
            SUM + "y[i, 0:4] = x[i, 0:4] * v[0:4]\n    y[i, 4:9] = x[i, 4:9] * v[4:9]\n",
            id="pieces of few programs",
        ),
        pytest.param("for k in range(2):\n        y[i, 0:9] = x[i, 0:9] * v[0:9]\n", id="a loop"),
    ],
)
def test_what_stays(text: str):
    assert _found(9, text) == set()


def test_pieces_of_many_programs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("neptune_lab.htile_to_triton.beside_rows.FEW_PROGRAMS", 3)
    pieces = "s[i] = reduce(sum, float32(x[i, 0:4] * v[0:4]) + float32(x[i, 4:8] * v[4:8]), dim=0)\n    "
    assert _found(9, pieces + "y[i, 0:9] = x[i, 0:9]\n") == {"v"}
    monkeypatch.setattr("neptune_lab.htile_to_triton.beside_rows.MOST_PIECES", 2)
    assert _found(9, pieces + "y[i, 0:9] = x[i, 0:9]\n") == set()


@pytest.mark.parametrize("cols", [33, 40])
def test_the_numbers_of_a_norm(cols: int):
    op = norms.layer_norm(rows=3, cols=cols, dtype="float16")
    kernel = nl.compile(op, target="h200", validate="none", config=nl.TileConfig(block_q=1, block_kv=cols))
    assert ("tl.load(gamma_ptr + j + zero" in kernel.source) is (cols == 33)
    assert kernel.relative_error() < 2e-3
