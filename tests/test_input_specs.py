"""The text that states inputs: what it gives, and where each mistake is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neptune_lab.errors import DefinitionError, TextError
from neptune_lab.input_specs import Value, parse_inputs
from neptune_lab.strict.dtypes import DTYPES
from neptune_lab.tensor_spec import TensorSpec
from neptune_lab.torch_to_stages.arguments import example_arguments

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
NUMBERS = st.one_of(st.booleans(), st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
SHAPES = st.lists(st.integers(1, 2**31 - 1), max_size=4).map(tuple)


@st.composite
def stated(draw: st.DrawFn) -> tuple[str, dict[str, Value]]:
    """A text in one of the ways to write it, and what it states."""
    names = draw(st.lists(NAMES, unique=True, min_size=1, max_size=4))
    parts, values = [], {}
    for name in names:
        if draw(st.booleans()):
            shape, dtype = draw(SHAPES), draw(st.sampled_from(sorted(DTYPES)))
            comma = draw(st.sampled_from([",", ", ", " ,"]))
            values[name] = TensorSpec(name, shape, dtype)
            parts.append(f"{name}={draw(st.sampled_from(['', 'torch.']))}{dtype}[{comma.join(map(str, shape))}]")
        else:
            values[name] = draw(NUMBERS)
            parts.append(f"{name}={values[name]!r}")
    between = draw(st.sampled_from([" ", ", ", "; ", "\n", "  "]))
    return between.join(parts), values


@given(stated())
@settings(max_examples=12, deadline=None)
def test_what_is_written_is_read(case: tuple[str, dict[str, Value]]):
    text, values = case
    found = parse_inputs(text)
    assert found == values
    assert list(found) == list(values)
    assert [type(v) for v in found.values()] == [type(v) for v in values.values()]


@given(stated(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_text_is_read_or_refused_at_a_place_in_it(case: tuple[str, dict[str, Value]], data: st.DataObject):
    text = case[0]
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from(["", "]", "[", "=", ",", "é", "\x00", "-", "e9"])) + text[at + 1 :]
    refused = None
    try:
        parse_inputs(damaged)
    except TextError as error:
        refused = error
    if refused is not None:
        lines = damaged.split("\n")
        assert refused.line is not None
        assert refused.column is not None
        assert 1 <= refused.line <= len(lines)
        assert 1 <= refused.column <= len(lines[refused.line - 1]) + 1
        assert refused.help


MISTAKES = {
    "": (1, "no inputs are given"),
    "q": (2, "expected ="),
    "q float16[2]": (2, "found 'float16[2]' after 'q', expected ="),
    "=3": (1, "expected the name of an input"),
    "q=": (3, "found the end, expected a dtype or a number"),
    "q=float16": (3, "expected dtype[sizes] or a number"),
    "q=fp16[2]": (3, "there is no dtype 'fp16'"),
    "q=float16[2,n]": (13, "found 'n' among the sizes of 'q'"),
    "q=float16[2,,3]": (13, "found nothing among the sizes"),
    "q=float16[4, 0]": (14, "found '0' among the sizes"),
    "q=float16[-1]": (11, "found '-1' among the sizes"),
    "q=float16[2147483648]": (11, "expected a whole number from 1"),
    "q=float16[2": (11, "have no ] at their end"),
    "q=float16[2]k=3": (13, "found 'k' after the input 'q'"),
    "q=float16[2] q=3": (14, "'q' is given twice"),
    "q='x'": (3, "expected a tensor or a number"),
    "q=1+2": (3, "found '1+2' for 'q'"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes(text: str):
    column, words = MISTAKES[text]
    with pytest.raises(TextError) as error:
        parse_inputs(text)
    assert (error.value.line, error.value.column) == (1, column)
    assert words in error.value.reason
    assert error.value.help


@pytest.mark.parametrize(("wrong", "right"), [("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"),
                                              ("long", "int64"), ("Float32", "float32")])  # fmt: skip
def test_a_dtype_is_suggested(wrong: str, right: str):
    with pytest.raises(TextError, match=f"did you mean {right}"):
        parse_inputs(f"q={wrong}[2]")


def test_the_place_is_in_the_line():
    with pytest.raises(TextError) as error:
        parse_inputs("q=float16[2]\n  k=flote[3]")
    assert (error.value.line, error.value.column) == (2, 5)


def shifted(q, k, scale=2.0, flag=False, *rest):
    return q


def named(q, *, scale):
    return q


def test_arguments_are_in_the_order_of_the_parameters():
    given = parse_inputs("k=bool[3] q=bfloat16[2,4] rest0=int64[] flag=True rest1=float32[1]")
    q, k, scale, flag, *rest = example_arguments(shifted, given)
    assert (q.dtype, tuple(q.shape)) == (torch.bfloat16, (2, 4))
    assert (k.dtype, tuple(k.shape)) == (torch.bool, (3,))
    assert (scale, flag) == (2.0, True)
    assert [(t.dtype, tuple(t.shape)) for t in rest] == [(torch.int64, ()), (torch.float32, (1,))]
    assert len(example_arguments(shifted, parse_inputs("q=float16[1] k=float16[1]"))) == 4
    (x,) = example_arguments(torch.nn.Linear(2, 2), parse_inputs("input=float32[3,2]"))
    assert tuple(x.shape) == (3, 2)
    assert len(example_arguments(torch.exp, parse_inputs("x=float32[3]"))) == 1


@pytest.mark.parametrize(
    ("function", "text", "words"),
    [
        (shifted, "q=float16[1]", "'k' of shifted has no input"),
        (shifted, "q=float16[1] k=float16[1] v=float16[1]", "has no parameter 'v'; its parameters: q, k, scale, flag"),
        (named, "q=float16[1] scale=2.0", "'scale' of named takes no positional argument"),
        (named, "q=float16[1]", "'scale' of named has no input"),
        (torch.nn.Linear(2, 2), "x=float32[1]", "Linear has no parameter 'x'; its parameters: input"),
        (shifted, "q=float16[2000000000,2000000000] k=float16[1]", "'q', q: float16"),
    ],
)
def test_arguments_that_do_not_fit(function, text: str, words: str):
    with pytest.raises(DefinitionError) as error:
        example_arguments(function, parse_inputs(text))
    assert words in error.value.reason
    assert error.value.help
