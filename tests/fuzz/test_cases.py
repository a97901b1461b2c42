"""Random programs through every stage of the compiler: some cases of a seed. `make fuzz` and the night try more."""

from __future__ import annotations

import pytest

from fuzz.one_case import run_one
from fuzz.report import FAILURES
from fuzz.run_case import make

# That of `make fuzz`, which so has these cases too.
SEED = "0"


def test_no_random_gradient_is_wrong():
    """Derived gradients are those of differences; those of 150 cases."""
    records = [run_one((n, SEED)) for n in range(150, 300) if make(f"{SEED}:{n}")["kind"] == "gradient"]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    compared = sum(record["met"].get("gradient compared", 0) for record in records)
    assert compared > len(records) > 10


@pytest.mark.parametrize(
    ("kind", "below", "met"),
    [
        ("few rows", 300, "asked for together"),
        pytest.param("few rows", 600, "asked for together", marks=pytest.mark.nightly),
        pytest.param("gluon", 600, "kernel in Gluon", marks=pytest.mark.nightly),
    ],
)
def test_no_random_attention_of_other_kernels_is_wrong(kind: str, below: int, met: str):
    """Kernels in Gluon, simulated, and those of few rows, whose first tiles are asked for together."""
    records = [run_one((n, SEED)) for n in range(below) if make(f"{SEED}:{n}")["kind"] == kind]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    assert sum(record["met"].get(met, 0) for record in records) >= len(records) / 2 > 1


@pytest.mark.nightly
def test_no_random_kernel_of_long_rows_is_wrong():
    """Rows in pieces, shared among programs, loaded again for each pass, with an aligned middle, or backwards."""
    records = [run_one((n, SEED)) for n in range(600) if make(f"{SEED}:{n}")["kind"] == "long rows"]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    met = [name for record in records for name, count in record["met"].items() if count]
    assert {"in lanes", "loaded again", "pass cut_long_rows", "pass align_row_loops", "pass load_row_tiles_ahead"} <= {
        *met
    }


@pytest.mark.nightly
def test_no_random_norm_with_vectors_is_wrong():
    """Vectors that are read first, as rows are, or from copies that are made while the row is reduced."""
    records = [run_one((n, SEED)) for n in range(700) if make(f"{SEED}:{n}")["kind"] == "row vectors"]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    met = [name for record in records for name, count in record["met"].items() if count]
    assert {"pass read_vectors_first", "vectors beside rows", "starts early", "programs that wait"} <= {*met}


@pytest.mark.nightly
def test_no_random_definition_of_several_dtypes_is_wrong():
    """Places of extrema, running sums, statistics, whole numbers, truth values and chains of layers."""
    cases = [n for n in range(200) if make(f"{SEED}:{n}")["kind"] == "typed"][:8]
    records = [run_one((n, SEED)) for n in cases]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    assert sum(record["verdict"] == "accepted" for record in records) >= 6


def test_no_random_program_is_wrong():
    """Each case is accepted and right, or refused by one of our errors with a help."""
    records = [run_one((n, SEED)) for n in range(20, 30)]
    failed = [
        f"python -m fuzz 0 --seed {SEED} --only {record['n']}: {record['verdict']}: {record['detail']}"
        for record in records
        if record["verdict"] in FAILURES
    ]
    assert not failed, "\n".join(failed)
    assert sum(record["verdict"] == "accepted" for record in records) >= 5
