"""Random programs through every stage of the compiler: the first 60 cases of a seed. `make fuzz` tries others."""

from __future__ import annotations

import pytest

from fuzz.one_case import run_one
from fuzz.report import FAILURES
from fuzz.run_case import make

SEED = "0"
CASES = 60
CHUNK = 20


@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.nightly), 150])
def test_no_random_gradient_is_wrong(first: int):
    """Derived gradients are those of differences; those of 150 cases."""
    cases = range(first, first + 150)
    records = [run_one((n, SEED)) for n in cases if make(f"{SEED}:{n}")["kind"] == "gradient"]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    compared = sum(record["met"].get("gradient compared", 0) for record in records)
    assert compared > len(records) > 10


@pytest.mark.parametrize(("kind", "met"), [("gluon", "kernel in Gluon"), ("few rows", "asked for together")])
@pytest.mark.parametrize("cases", [range(600), pytest.param(range(600, 1800), marks=pytest.mark.nightly)], ids=str)
def test_no_random_attention_of_other_kernels_is_wrong(kind: str, met: str, cases: range):
    """Kernels in Gluon, simulated, and those of few rows, whose first tiles are asked for together."""
    records = [run_one((n, SEED)) for n in cases if make(f"{SEED}:{n}")["kind"] == kind]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    assert sum(record["met"].get(met, 0) for record in records) >= len(records) / 2 > 1


@pytest.mark.parametrize("cases", [range(600), pytest.param(range(600, 6000), marks=pytest.mark.nightly)], ids=str)
def test_no_random_kernel_of_long_rows_is_wrong(cases: range):
    """Rows in pieces, shared among programs, loaded again for each pass, with an aligned middle, or backwards."""
    records = [run_one((n, SEED)) for n in cases if make(f"{SEED}:{n}")["kind"] == "long rows"]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    met = [name for record in records for name, count in record["met"].items() if count]
    assert {"loaded again", "pass cut_long_rows", "pass align_row_loops", "pass load_row_tiles_ahead"} <= {*met}


@pytest.mark.parametrize("cases", [range(700), pytest.param(range(700, 9000), marks=pytest.mark.nightly)], ids=str)
def test_no_random_norm_with_vectors_is_wrong(cases: range):
    """Vectors that are read first, as rows are, or from copies that are made while the row is reduced."""
    records = [run_one((n, SEED)) for n in cases if make(f"{SEED}:{n}")["kind"] == "row vectors"]
    failed = [f"{record['n']}: {record['detail']}" for record in records if record["verdict"] in FAILURES]
    assert not failed, "\n".join(failed)
    met = [name for record in records for name, count in record["met"].items() if count]
    assert {"pass read_vectors_first", "vectors beside rows", "starts early", "programs that wait"} <= {*met}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, CASES, CHUNK))
def test_no_random_program_is_wrong(first: int):
    """Each case is accepted and right, or refused by one of our errors with a help."""
    records = [run_one((n, SEED)) for n in range(first, first + CHUNK)]
    failed = [
        f"python -m fuzz 0 --seed {SEED} --only {record['n']}: {record['verdict']}: {record['detail']}"
        for record in records
        if record["verdict"] in FAILURES
    ]
    assert not failed, "\n".join(failed)
    assert sum(record["verdict"] == "accepted" for record in records) >= CHUNK // 2
