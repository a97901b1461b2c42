"""Reductions of known forms on random elements: softmax and its relatives, norms, and chains of products of them.

The algebra takes these apart, whatever the elements are (masked, permuted, scaled), so most of them are fused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.draw import Data, Maker


def known(make: Maker) -> Data:
    """One of the forms, over all of a row or a part of it."""
    form = make.rng.choices([_softmax, _lowest, _norm, _largest, _variance, _with_constant], [6, 1, 3, 2, 1, 3])[0]
    return form(make)


def _softmax(make: Maker) -> Data:
    """A maximum, a sum of exponentials, sums weighted by them, and sometimes a map of their quotient."""
    rng = make.rng
    extent, offset = make.extent()
    x = make.element(offset)
    top = make.fold("max", x, extent)
    weight = ["exp", ["sub", x, make.at_row(top)]]
    total = make.fold("sum", weight, extent)
    ending = rng.choice(["sum", "log", "map", "weighted", "weighted", "divided", "largest"])
    match ending:
        case "log":
            return make.done([make.map(["add", make.at_row(top), ["log", make.at_row(total)]], make.space)])
        case "map":
            x = make.element()
            weight = ["exp", ["sub", x, make.at_row(top)]]
            return make.done([make.map(["div", weight, make.at_row(total)], [*make.space, ["j", make.m]])])
        case "weighted" | "divided":
            value = make.fold("sum", ["mul", weight, make.element(offset)], extent)
            if ending == "weighted":
                return make.done([value, total] if rng.random() < 0.3 else [value])
            return make.done([make.map(["div", make.at_row(value), make.at_row(total)], make.space)])
        case "largest":
            return make.done([make.fold("max", ["mul", weight, ["abs", make.element(offset)]], extent), total])
    return make.done([total, top] if rng.random() < 0.3 else [total])


def _lowest(make: Maker) -> Data:
    """The same below a minimum."""
    extent, offset = make.extent()
    x = make.element(offset)
    low = make.fold("min", x, extent)
    term = ["exp", ["sub", make.at_row(low), x]]
    return make.done(
        [make.fold("sum", term if make.rng.random() < 0.5 else ["mul", term, make.element(offset)], extent)]
    )


def _with_constant(make: Maker) -> Data:
    """Exponentials of the distance to an extremum of the row and of a constant, such as a sink; sometimes what the
    extremum is combined with is no constant of its row, or the extremum has another reader too."""
    rng = make.rng
    extent, offset = make.extent()
    x = make.element(offset)
    way = rng.choice(["max", "max", "max", "min"])
    shape = [size for _, size in make.space]
    alone = make.fold(way, x, extent)
    if rng.random() < 0.15:  # an extremum that is repaired itself
        y = make.element(offset)
        alone = make.fold(way, ["sub", y, make.at_row(alone)], extent)
    constant = rng.choices(
        [
            lambda: ["at", make.input("s", shape), *make.row],
            lambda: ["at", make.input("v", [*shape, make.m]), *make.row, rng.randrange(make.m)],
            lambda: ["mul", ["at", make.input("s", shape), *make.row], -0.5],
            lambda: ["at", make.input("one", [1]), 0],
            lambda: make.at_row(make.fold("sum", ["at", make.input("y", [*shape, make.m]), *make.row, "j"], make.m)),
            lambda: ["at", make.input("v", [*shape, make.m]), *make.row, "j"],
        ],
        [6, 3, 2, 2, 1, 1],
    )[0]()
    both = [make.at_row(alone), constant]
    rng.shuffle(both)
    joined = [way if rng.random() < 0.93 else rng.choice(["max", "min"]), *both]
    if rng.random() < 0.15:
        joined = [way, joined, ["at", make.input("s2", shape), *make.row]]
    moving = constant[0] == "at" and constant[-1] == "j"
    top = joined if moving or rng.random() < 0.4 else make.at_row(make.map(joined, make.space))
    term = ["exp", ["sub", x, top] if way == "max" else ["sub", top, x]]
    if rng.random() < 0.4:
        term = ["mul", term, make.element(offset)]
    total = make.fold(rng.choices(["sum", "max"], [5, 1])[0], term, extent)
    outputs = [total]
    if not moving and rng.random() < 0.4:
        rest = ["sub", constant, top] if way == "max" else ["sub", top, constant]
        outputs = [make.map(["div", make.at_row(total), ["add", ["exp", rest], make.at_row(total)]], make.space)]
    if rng.random() < 0.15:
        outputs.append(alone)
    return make.done(outputs)


def _norm(make: Maker) -> Data:
    """A sum of squares, and what is divided by its root."""
    rng = make.rng
    extent, offset = make.extent()
    x = make.element(offset)
    size = make.fold("sum", ["square", x] if rng.random() < 0.7 else ["abs", x], extent)
    root = ["sqrt", ["add", make.at_row(size), rng.choice([0.5, 1.0, 1e-3])]]
    term = ["div", rng.choice([x, make.element(offset)]), root]
    if rng.random() < 0.4:
        term = ["mul", term, make.element(offset)]
    return make.done([make.fold(rng.choice(["sum", "sum", "max", "min"]), term, extent)])


def _largest(make: Maker) -> Data:
    """A largest magnitude, and sums of what is scaled by it."""
    extent, offset = make.extent()
    x = make.element(offset)
    scale = ["add", make.at_row(make.fold("max", ["abs", x], extent)), make.rng.choice([0.5, 1.0])]
    term = ["div", x, scale]
    return make.done([make.fold("sum", make.rng.choice([term, ["square", term], ["abs", term]]), extent)])


def _variance(make: Maker) -> Data:
    """A mean, and a sum of squares around it."""
    extent, offset = make.extent()
    x = make.element(offset)
    mean = ["mul", make.at_row(make.fold("sum", x, extent)), 1.0 / extent]
    return make.done([make.fold("sum", ["square", ["sub", x, mean]], extent)])
