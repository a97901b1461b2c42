"""What passes take for granted of numbers: how large they are, and which infinities they can be."""

from __future__ import annotations

import math

from neptune_lab.htile.nodes import Access, Elementwise, GridAxis, Int, Kernel, Literal, Name, Program, Scalar, Slice
from neptune_lab.htile_passes.magnitudes import Magnitudes
from neptune_lab.htile_passes.partition_masked_loops.simplify import INF, infinities


def function(name: str, *args: Access | Elementwise | Literal | Scalar) -> Elementwise:
    return Elementwise(name, args, "float32")


def test_a_magnitude_of_what_is_computed_from_the_grid_is_not_guessed():
    """A part of unknown size is no infinity, whose negative has the exponential 0."""
    of = Magnitudes(Program("p", (), (), (), (Kernel("k", "k", (GridAxis("h", 4),), ()),)))
    assert of(function("exp2", function("neg", Scalar(Name("h"))))) == 1.0
    assert of(function("exp2", function("neg", function("sqrt", Scalar(Name("h")))))) == 1.0
    unknown = function("div", Literal(1.0, "float32"), Scalar(Name("h")))  # 1 / 0
    assert of(function("exp2", function("neg", unknown))) == math.inf


def test_division_by_a_negative_number_turns_an_infinity_round():
    x = Access("x", (Slice(Int(0), 16, "j"),))
    for divisor, expected in ((-2.0, INF), (2.0, -INF)):
        assert infinities(function("div", x, Literal(divisor, "float32")), {"x": frozenset({-INF})}) == {expected}
