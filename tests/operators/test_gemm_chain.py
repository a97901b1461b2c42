"""GEMM chains: definition against reference, the rounding between the products, MCFuser's presets."""

from __future__ import annotations

import numpy as np
import pytest
from definitions import assert_defined_as_referenced, outputs_and_references, stages

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import find, gemm_chain

SIZES = {"batch": 2, "m": 3, "n": 4, "k": 5, "h": 6}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_chain_equals_its_reference(dtype: str) -> None:
    op = gemm_chain.gemm_chain(**SIZES, dtype=dtype)
    assert_defined_as_referenced(op)
    assert stages(op) == ["ab", "ab_rounded", "abd", "out"]
    inputs = list(op.random_inputs(0).values())
    a, b, d = (x.astype(np.float64) for x in inputs)
    np.testing.assert_allclose(op.reference(*inputs), (a @ b) @ d, rtol=1e-12, atol=1e-12)


def test_the_first_product_is_rounded_to_the_dtype_before_the_second() -> None:
    op = gemm_chain.gemm_chain(1, 1, 1, 2, 1)
    inputs = {
        "a": np.array([[[2048, 1]]], dtype=np.float16),
        "b": np.ones((1, 2, 1), dtype=np.float16),
        "d": np.ones((1, 1, 1), dtype=np.float16),
    }
    [(found, reference)] = outputs_and_references(op, inputs, wide=False)
    assert (found.item(), reference.item()) == (2048, 2049)  # float16 has no 2049


def test_presets_are_the_rows_of_the_table() -> None:
    shapes = {name: tuple(sizes.values()) for name, sizes in gemm_chain.PRESETS.items()}
    assert shapes["g1"] == (1, 512, 256, 64, 64)
    assert shapes["g6"] == (1, 512, 512, 1024, 256)
    assert shapes["g12"] == (8, 1024, 1024, 128, 128)
    assert list(shapes) == [f"g{n}" for n in range(1, 13)]
    op = gemm_chain.preset("G6", m=8)
    assert op.params == {"batch": 1, "m": 8, "n": 512, "k": 1024, "h": 256, "dtype": "float16"}
    assert find("g6")(m=8).params == op.params


def test_a_chain_refuses_and_names_the_argument() -> None:
    with pytest.raises(DefinitionError, match="k=0: expected a positive integer"):
        gemm_chain.gemm_chain(k=0)
    with pytest.raises(DefinitionError, match="dtype='bool': expected one of float16, bfloat16, float32"):
        gemm_chain.gemm_chain(dtype="bool")
    with pytest.raises(DefinitionError, match=r"there is no GEMM chain 'G13'(.|\n)*one of g1, g2"):
        gemm_chain.preset("G13")
    with pytest.raises(DefinitionError, match=r"preset g1 has no argument 'rows'(.|\n)*batch, m, n, k, h, dtype"):
        gemm_chain.preset("g1", rows=3)
