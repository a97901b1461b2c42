"""Every row of the table of mods and calls: masks, scores and calls of attention-gym, PyTorch's tests and transformers.

By day one row in eleven is compiled and run, and every row that is refused; at night all.
"""

from __future__ import annotations

import mod_rows_calls
import mod_rows_gathers
import mod_rows_masks
import mod_rows_scores
import pytest
from mod_table import Row

from neptune_lab.errors import NeptuneError

TABLE: dict[str, Row] = {
    f"{part.__name__.removeprefix('mod_rows_')}: {name}": row
    for part in (mod_rows_masks, mod_rows_scores, mod_rows_gathers, mod_rows_calls)
    for name, row in part.ROWS.items()
}
RIGHT = [name for name, row in TABLE.items() if not row.refused]
REFUSED = [name for name, row in TABLE.items() if row.refused]


# At night, the last test runs all.
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", RIGHT[::250])
def test_a_row_is_right(name: str):
    row = TABLE[name]
    assert row.error() < row.tolerance


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_is_refused_with_its_cause(name: str):
    row = TABLE[name]
    if not row.theirs:
        assert row.expected().isfinite().all(), "FlexAttention takes it"
    with pytest.raises(NeptuneError, match=row.refused) as raised:
        row.found()
    assert raised.value.help


def test_nearly_all_rows_are_expected_to_be_right():
    taken = [row for row in TABLE.values() if not row.theirs]
    assert len(TABLE) >= 520
    assert sum(not row.refused for row in taken) >= 0.95 * len(taken)


@pytest.mark.nightly
def test_every_row():
    found: dict[str, list[str]] = {"right": [], "wrong": [], "refused": [], "unclear": []}
    for name, row in TABLE.items():
        found[row.judged()].append(name)
    taken = [name for name, row in TABLE.items() if not row.theirs]
    counts = {word: len(names) for word, names in found.items()}
    print(f"{len(TABLE)} rows: {counts}; FlexAttention takes {len(taken)}")
    assert not found["wrong"]
    assert not found["unclear"]
    assert set(found["refused"]) == set(REFUSED)
    assert sum(name in found["right"] for name in taken) >= 0.95 * len(taken)
