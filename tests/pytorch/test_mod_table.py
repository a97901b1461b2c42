"""Every row of the table of mods: masks and scores of attention-gym, PyTorch's tests and transformers.

By day one row in seven is compiled and run, and every row that is refused; at night all.
"""

from __future__ import annotations

import mod_rows_gathers
import mod_rows_masks
import mod_rows_scores
import pytest
from mod_table import Row

from neptune_lab.errors import NeptuneError

TABLE: dict[str, Row] = {
    f"{part.__name__.removeprefix('mod_rows_')}: {name}": row
    for part in (mod_rows_masks, mod_rows_scores, mod_rows_gathers)
    for name, row in part.ROWS.items()
}
RIGHT = [name for name, row in TABLE.items() if not row.refused]
REFUSED = [name for name, row in TABLE.items() if row.refused]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if n % 7 == 0 else pytest.mark.nightly) for n, name in enumerate(RIGHT)]
)
def test_a_row_is_right(name: str):
    row = TABLE[name]
    assert row.error() < row.tolerance


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_is_refused_with_its_cause(name: str):
    row = TABLE[name]
    assert row.expected().isfinite().all(), "FlexAttention takes it"
    with pytest.raises(NeptuneError, match=row.refused) as raised:
        row.found()
    assert raised.value.help


def test_nearly_all_rows_are_right():
    assert len(TABLE) >= 350
    assert len(REFUSED) <= 0.05 * len(TABLE)
