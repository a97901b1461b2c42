"""keep_stored_tiles and share_common_tiles: what they do, and what they must leave alone."""

from __future__ import annotations

import pytest
from pass_texts import after, read

from neptune_lab.errors import TileError
from neptune_lab.htile_passes.keep_stored_tiles import keep_stored_tiles
from neptune_lab.htile_passes.share_common_tiles import share_common_tiles

DECLARED = """
program p(x, w) -> y, z
  input   x  float32[i: 32]
  input   w  float32[i: 32, d: 8]
  output  y  float32[i: 32]
  output  z  float32[i: 32, d: 8]
  chip    a  float32[i: 32]
  chip    b  float32[i: 32]
  chip    s  float32[i: 32]
  chip    o  float32[i: 32, d: 8]
"""
# Every output must be stored: by this kernel, if not by another one.
FILL = """
kernel f  grid ()
    y[0:32] = x[0:32]
    z[0:32, 0:8] = w[0:32, 0:8]
"""


def kept(kernel: str) -> str:
    return after(keep_stored_tiles, DECLARED, kernel + FILL)


def shared(kernel: str) -> str:
    return after(share_common_tiles, DECLARED, kernel + FILL)


# -- keep_stored_tiles ----------------------------------------------------------------------------------------------


def test_what_is_stored_and_read_again_stays_on_chip():
    made = kept("""
kernel p  grid (r: 8)
    y[r*4:r*4+4] = exp(x[r*4:r*4+4])
    z[r*4:r*4+4, 0:8] = y[r*4:r*4+4, NewAxis] * w[r*4:r*4+4, 0:8]
""")
    assert (
        made
        == f"""
+ chip y_chip float32[i: 32]
kernel p  grid (r: 8)
    y_chip[r*4:r*4+4] = exp(x[r*4:r*4+4])  @y/chip
    y[r*4:r*4+4] = y_chip[r*4:r*4+4]
    z[r*4:r*4+4, 0:8] = y_chip[r*4:r*4+4, NewAxis] * w[r*4:r*4+4, 0:8]
{FILL}"""
    )


def test_an_output_that_a_loop_carries_is_stored_once():
    made = kept("""
kernel p  grid (r: 8)
    y[r*4:r*4+4] = 0.0  @start
    for t in range(4):
        y[r*4:r*4+4] = y[r*4:r*4+4] + x[r*4:r*4+4]
""")
    assert (
        made
        == f"""
+ chip y_chip float32[i: 32]
kernel p  grid (r: 8)
    y_chip[r*4:r*4+4] = 0.0  @start/chip
    for t in range(4):
        y_chip[r*4:r*4+4] = y_chip[r*4:r*4+4] + x[r*4:r*4+4]  @y/chip
    y[r*4:r*4+4] = y_chip[r*4:r*4+4]
{FILL}"""
    )


def test_an_output_whose_region_moves_with_the_loop_is_stored_in_it():
    made = kept("""
kernel p  grid ()
    for t in range(4):
        y[t*8:t*8+8] = 1.0
        z[t*8:t*8+8, 0:8] = y[t*8:t*8+8, NewAxis]
""")
    assert (
        made
        == f"""
+ chip y_chip float32[i: 32]
kernel p  grid ()
    for t in range(4):
        y_chip[t*8:t*8+8] = 1.0  @y/chip
        y[t*8:t*8+8] = y_chip[t*8:t*8+8]
        z[t*8:t*8+8, 0:8] = y_chip[t*8:t*8+8, NewAxis]
{FILL}"""
    )


def test_what_an_earlier_kernel_stored_is_loaded_before_the_loop_that_adds_to_it():
    start = """
kernel start  grid (r: 8)
    y[r*4:r*4+4] = 0.0
"""
    made = kept(f"""{start}
kernel p  grid (r: 8)
    for t in range(4):
        y[r*4:r*4+4] = y[r*4:r*4+4] * y[r*4:r*4+4] + x[r*4:r*4+4]  @sum
""")
    assert (
        made
        == f"""
+ chip y_chip float32[i: 32]{start}
kernel p  grid (r: 8)
    y_chip[r*4:r*4+4] = y[r*4:r*4+4]  @sum=tile:y/load@p
    for t in range(4):
        y_chip[r*4:r*4+4] = y_chip[r*4:r*4+4] * y_chip[r*4:r*4+4] + x[r*4:r*4+4]  @sum/chip
    y[r*4:r*4+4] = y_chip[r*4:r*4+4]  @sum
{FILL}"""
    )


def test_nothing_read_again_is_the_same_object():
    assert kept("""
kernel p  grid ()
    y[0:32] = exp(x[0:32])
""") == "unchanged"  # fmt: skip


REFUSED = {
    "another region read back": """
kernel p  grid (r: 8)
    y[r*4:r*4+4] = x[r*4:r*4+4]
    z[r*4:r*4+4, 0:8] = y[0:4, NewAxis]
""",
    "two regions stored, one read": """
kernel p  grid ()
    y[0:4] = x[0:4]
    y[4:8] = x[4:8]
    z[4:8, 0:8] = y[4:8, NewAxis]
""",
    "another region stored before a loop": """
kernel p  grid (r: 8)
    y[r*r] = 0.0
    for t in range(2):
        y[r*4:r*4+4] = y[r*4:r*4+4] + x[r*4:r*4+4]
""",
    "one variable, two loops": """
kernel p  grid ()
    for t in range(4):
        y[t*8:t*8+8] = x[t*8:t*8+8]
    for t in range(4):
        z[t*8:t*8+8, 0:8] = y[t*8:t*8+8, NewAxis]
""",
    "elements of an earlier kernel": """
kernel e  grid ()
    y[0:32] = 0.0
kernel p  grid ()
    y[0:32] = x[0:32]  where iota[0:32] < 5
    z[0:32, 0:8] = y[0:32, NewAxis]
""",
    "two masks": """
kernel p  grid ()
    y[0:32] = x[0:32]  where iota[0:32] < 5
    y[0:32] = y[0:32] * 2.0  where iota[0:32] >= 5
""",
    "a mask of values": """
kernel p  grid ()
    for t in range(2):
        a[0:32] = x[t*4:t*4+1]
        y[0:32] = x[0:32]  where a[0:32] > 0.0
    z[0:32, 0:8] = y[0:32, NewAxis]
""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tile_that_is_not_the_one_kept_is_refused(name: str):
    program = read(DECLARED, REFUSED[name] + FILL)
    with pytest.raises(TileError, match=r"(?s)kernel p stores 'y' and reads it.*kernel of its own"):
        keep_stored_tiles(program)


def test_a_mask_reads_what_is_kept():
    made = kept("""
kernel p  grid ()
    y[0:32] = x[0:32]
    z[0:32, 0:8] = w[0:32, 0:8]  where y[0:32, NewAxis] > 0.0
""")
    assert "    z[0:32, 0:8] = w[0:32, 0:8]  where y_chip[0:32, NewAxis] > 0.0\n" in made


# -- share_common_tiles ---------------------------------------------------------------------------------------------

START = """
kernel p  grid (r: 8)
    a[r*4:r*4+4] = x[r*4:r*4+4]
    b[r*4:r*4+4] = 0.0
    s[r*4:r*4+4] = 1.0
    o[r*4:r*4+4, 0:8] = 1.0"""


def test_a_repair_term_is_computed_once_for_all_ranks():
    made = shared(f"""{START}
    s[r*4:r*4+4] = exp(a[r*4:r*4+4] - b[r*4:r*4+4]) * s[r*4:r*4+4]  @sum
    o[r*4:r*4+4, 0:8] = exp(a[r*4:r*4+4, NewAxis] - b[r*4:r*4+4, NewAxis]) * o[r*4:r*4+4, 0:8]  @out
""")
    assert (
        made
        == f"""
+ chip repair float32[i: 4]{START}
    repair[0:4] = exp(a[r*4:r*4+4] - b[r*4:r*4+4])  @sum/repair
    s[r*4:r*4+4] = repair[0:4] * s[r*4:r*4+4]  @sum
    o[r*4:r*4+4, 0:8] = repair[0:4, NewAxis] * o[r*4:r*4+4, 0:8]  @out
{FILL}"""
    )


def test_a_guard_is_named_after_what_it_guards():
    made = shared(f"""{START}
    s[r*4:r*4+4] = s[r*4:r*4+4] / where(a[r*4:r*4+4] == 0.0, 1.0, a[r*4:r*4+4])  @sum
    o[r*4:r*4+4, 0:8] = o[r*4:r*4+4, 0:8] / where(a[r*4:r*4+4, NewAxis] == 0.0, 1.0, a[r*4:r*4+4, NewAxis])  @out
""")
    assert (
        made
        == f"""
+ chip a_finite float32[i: 4]{START}
    a_finite[0:4] = where(a[r*4:r*4+4] == 0.0, 1.0, a[r*4:r*4+4])  @sum/a_finite
    s[r*4:r*4+4] = s[r*4:r*4+4] / a_finite[0:4]  @sum
    o[r*4:r*4+4, 0:8] = o[r*4:r*4+4, 0:8] / a_finite[0:4, NewAxis]  @out
{FILL}"""
    )


def test_a_tile_written_between_two_uses_keeps_them_apart():
    assert shared(f"""{START}
    s[r*4:r*4+4] = exp(a[r*4:r*4+4] - b[r*4:r*4+4])
    b[r*4:r*4+4] = a[r*4:r*4+4]
    o[r*4:r*4+4, 0:8] = exp(a[r*4:r*4+4, NewAxis] - b[r*4:r*4+4, NewAxis])
""") == "unchanged"  # fmt: skip


def test_reads_of_global_memory_and_cheap_arithmetic_are_left_alone():
    assert shared(f"""{START}
    y[r*4:r*4+4] = exp(x[r*4:r*4+4]) + (a[r*4:r*4+4] - b[r*4:r*4+4])
    s[r*4:r*4+4] = exp(x[r*4:r*4+4]) + (a[r*4:r*4+4] - b[r*4:r*4+4])
""") == "unchanged"  # fmt: skip
