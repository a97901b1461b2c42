"""A sum that selects one element by its position becomes a load of this element."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_texts import after, read

from neptune_lab.htile import from_text, interpret
from neptune_lab.htile_passes import apply
from neptune_lab.htile_passes.read_selected_elements import read_selected_elements

DECLARED = """
program p(x, w, label, far, key) -> y
  input   x      float16[i: 4, j: 10]
  input   w      float32[j: 10]
  input   label  int32[i: 4]
  input   far    int64[i: 4]
  input   key    int32[j: 10]
  output  y      float32[i: 4]
  chip    held   float16[i: 4, j: 10]
"""


def one_row(value: str, *before: str) -> str:
    lines = "\n            ".join((*before, f"y[i] = {value}"))
    return f"""
    kernel p  grid (i: 4)
        for j0 in range(3):
            {lines}
    """


def rows(value: str) -> str:
    return f"""
    kernel p  grid (i0: 2)
        y[i0*2:i0*2+2] = {value}
    """


TILE = "j0*4:j0*4+4"
SELECTED = f"reduce(sum, where(label[i] == iota[{TILE}], float32(x[i, {TILE}]), 0.0), dim=0)"


def made_of(value: str) -> str:
    return after(read_selected_elements, DECLARED, one_row(value)).partition("y[i] = ")[2].strip()


def test_a_row_loads_the_element_of_its_label():
    assert made_of(SELECTED) == (
        "where(\n"
        "            label[i] >= index(j0*4) and label[i] < index(j0*4+4),\n"
        "            float32(gather(x, i, label[i])),\n"
        "            0.0,\n"
        "        ) + 0.0"
    )


def test_rows_of_a_tile_load_theirs_and_other_conditions_stay():
    value = (
        "reduce(sum, where(iota[NewAxis, 0:16] < 10, where(label[i0*2:i0*2+2, NewAxis] == iota[NewAxis, 0:16], "
        "float32(x[i0*2:i0*2+2, 0:16]) * w[NewAxis, 0:16], 0.0), 0.0), dim=1)"
    )
    made = "".join(after(read_selected_elements, DECLARED, rows(value)).split())
    labels = "label[i0*2:i0*2+2]"
    assert f"float32(gather(x,iota[i0*2:i0*2+2],{labels}))*gather(w,{labels})" in made
    assert f"{labels}<10" in made


@pytest.mark.parametrize(
    ("value", "before"),
    [
        pytest.param(SELECTED.replace("sum", "max"), (), id="a maximum takes the zeros too"),
        pytest.param(SELECTED.replace("0.0)", "-0.0)"), (), id="-0.0 is no zero of a sum"),
        pytest.param(SELECTED.replace("0.0)", "1.0)"), (), id="all others add 1"),
        pytest.param(SELECTED.replace("==", "<="), (), id="several positions"),
        pytest.param(SELECTED.replace("label[i]", f"key[{TILE}]"), (), id="a number per position"),
        pytest.param(SELECTED.replace("iota[j0*4:j0*4+4]", "iota[1:5]"), (), id="positions of another slice"),
        pytest.param(SELECTED.replace("x[i,", "held[i,"), (f"held[i, {TILE}] = x[i, {TILE}]",), id="a tile on chip"),
        pytest.param(f"reduce(sum, float32(x[i, {TILE}]), dim=0)", (), id="no condition"),
    ],
)
def test_left_as_it_is(value: str, before: tuple[str, ...]):
    program = read(DECLARED, one_row(value, *before))
    assert apply(read_selected_elements, program).program is program


def test_what_the_kernel_stores_is_not_gathered():
    declared = DECLARED.replace("-> y", "-> y, z").replace("  chip", "  output  z  float16[i: 4, j: 10]\n  chip")
    text = one_row(SELECTED.replace("x[i,", "z[i,"), f"z[i, {TILE}] = x[i, {TILE}]")
    program = from_text(f"{dedent(declared)}\n{dedent(text)}")
    assert apply(read_selected_elements, program).program is program


NUMBERS = st.sampled_from([0.0, -0.0, 1.5, -2.0, 65504.0, float("inf"), float("-inf"), float("nan")])
LABELS = st.sampled_from([-(2**31), -1, 0, 3, 4, 9, 10, 11, 12, 2**31 - 1])
FAR = st.sampled_from([-1, 0, 9, 10, 2**31, 2**32, 2**32 + 3, -(2**32) + 3])
FORMS = (
    f"y[i] + {SELECTED}",
    SELECTED,
    SELECTED.replace("label[i] == iota[j0*4:j0*4+4]", f"far[i] == int64(iota[{TILE}])"),
    SELECTED.replace("label[i] == iota[j0*4:j0*4+4]", f"iota[{TILE}] == label[i] and iota[{TILE}] < 9"),
    SELECTED.replace(f"float32(x[i, {TILE}])", f"w[{TILE}] * float32(label[i]) + float32(iota[{TILE}])"),
    SELECTED.replace(f"float32(x[i, {TILE}])", f"where(key[{TILE}] == 7, 3.0, exp(w[{TILE}]))"),
)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("form", range(len(FORMS)))
@settings(max_examples=20)
@given(data=st.data())
def test_no_bit_of_a_result_changes(form: int, data: st.DataObject):
    """Labels inside and outside, wide ones that are inside if they are cut off, and elements that no sum may touch."""
    text = one_row(FORMS[form].replace("y[i] + ", "")) if form else _accumulated()
    before = read(DECLARED.replace("held   float16[i: 4, j: 10]", "held   float32[i: 4]"), text)
    found = apply(read_selected_elements, before).program
    assert found is not before

    def array(elements: st.SearchStrategy, dtype: str, *shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(data.draw(st.lists(elements, min_size=size, max_size=size)), dtype).reshape(shape)

    given_ = {
        "x": array(NUMBERS, "float16", 4, 10),
        "w": array(NUMBERS, "float32", 10),
        "label": array(LABELS, "int32", 4),
        "far": array(FAR, "int64", 4),
        "key": array(st.sampled_from([0, 7]), "int32", 10),
    }
    with np.errstate(all="ignore"):
        one, other = (interpret(program, given_)["y"] for program in (before, found))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.signbit(one)[~np.isnan(one)], np.signbit(other)[~np.isnan(other)])


def _accumulated() -> str:
    return f"""
    kernel p  grid (i: 4)
        held[i] = 0.0
        for j0 in range(3):
            held[i] = held[i] + {SELECTED}
        y[i] = held[i]
    """
