"""Chains of up to ten reductions over reads in every order: strided, reversed, repeated, shifted; and definitions with
two axes that reductions fold one after the other or together, as JSON data (see `definitions`)."""

from __future__ import annotations

import random
from typing import Any

Data = dict[str, Any]
Term = Any


class Stages:
    """Collects inputs and stages."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.inputs: dict[str, list[int]] = {}
        self.stages: list[Data] = []

    def add(self, space: list[list[Any]], fold: list[list[Any]], reducer: str | None, term: Term) -> str:
        """A stage; its name."""
        name = f"{'r' if reducer else 'e'}{len(self.stages)}"
        self.stages.append({"name": name, "space": space, "fold": fold, "reducer": reducer, "term": term})
        return name

    def done(self, outputs: list[str]) -> Data:
        """The definition, without what no output needs."""
        needed, kept = set(outputs), []
        for stage in reversed(self.stages):
            if stage["name"] in needed:
                kept.append(stage)
                needed |= names_in(stage["term"])
        inputs = {name: shape for name, shape in self.inputs.items() if name in needed}
        dtype = self.rng.choices(["float32", "float16"], [8, 2])[0]
        return {"inputs": inputs, "dtype": dtype, "stages": kept[::-1], "outputs": outputs}


def names_in(term: Term) -> set[str]:
    """The tensors that a term reads."""
    if not isinstance(term, list):
        return set()
    own = {term[1]} if term[0] == "at" else set[str]()
    return own.union(*map(names_in, term[1:]))


def _changed(rng: random.Random, t: Term, column: Any) -> Term:
    """An element, often changed by a function of it alone."""
    return rng.choices(
        [
            t,
            ["where", ["index<=", column, ["+", "i", rng.randint(0, 4)]], t, float("-inf")],
            ["abs", t],
            ["square", t],
            ["mul", t, rng.choice([-1.0, 0.5, 2.0, -0.125])],
            ["add", t, rng.choice([1.0, -3.0])],
            ["sigmoid", t],
            ["max", t, 0.0],
        ],
        [67, 8, 6, 4, 4, 4, 3, 4],
    )[0]


def _column(rng: random.Random, m: int, extent: int) -> Any:
    """Where a fold over j of `extent` elements reads a row of 2 m + 3."""
    if rng.random() < 0.4:
        return "j"
    reversed_ = ["-", extent - 1, "j"]
    return rng.choice(
        [reversed_, ["+", reversed_, 1], ["*", "j", 2], ["+", ["*", "j", 2], 1], ["//", "j", 2], ["%", "j", 3],
         ["+", "j", rng.randint(1, 3)], ["-", 2 * m + 2, ["*", "j", 2]]]
    )  # fmt: skip


def _reading(rng: random.Random, c: Term, w: Term, r: Term, other: Term) -> Term:
    """A term of an element c that reads the results r and `other`; w is another element."""
    positive = ["add", ["abs", other], 0.5]
    weight = ["exp", ["sub", c, r]]
    return rng.choice(
        [
            weight, weight, ["mul", weight, w], ["div", weight, positive], ["mul", ["div", weight, positive], w],
            ["div", c, ["sqrt", ["add", ["square", r], 0.5]]], ["square", ["sub", c, r]], ["mul", c, r], ["sub", c, r],
            ["add", ["mul", c, r], other], ["div", ["sub", c, r], positive], ["abs", ["sub", c, r]],
            ["power", ["div", ["abs", c], positive], rng.choice([2.0, 3.0, 0.5, 1.5])], ["max", ["sub", c, r], 0.0],
            ["mul", ["sub", c, r], ["sub", w, other]], ["exp", ["div", ["sub", c, r], positive]], ["min", c, r],
            ["where", ["gt", c, r], 1.0, 0.0], ["where", ["le", r, c], w, 0.0], ["exp", ["sub", c, ["max", r, other]]],
            ["exp", ["sub", c, ["add", r, ["log", positive]]]], ["log", ["add", weight, 1.0]], ["max", c, r],
            ["div", 1.0, ["add", ["exp", ["sub", r, c]], 1.0]], ["rsqrt", ["add", ["square", ["sub", c, r]], 1.0]],
            ["where", ["gt", r, float("-inf")], weight, 0.0], ["where", ["le", r, r], weight, 0.0],
        ]
    )  # fmt: skip


def chain(rng: random.Random) -> Data:
    """Up to ten reductions along rows, each of elements and of results before it."""
    made = Stages(rng)
    n, m = rng.randint(1, 4), rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 11, 12])
    columns: list[Any] = []

    def element(extent: int) -> Term:
        column = rng.choice(columns) if columns and rng.random() < 0.6 else _column(rng, m, extent)
        columns.append(column)
        name = rng.choice(["x", "x", "x", "y", "u"])
        made.inputs[name] = [2 * m + 3] if name == "u" else [n, 2 * m + 3]
        read = ["at", name, column] if name == "u" else ["at", name, "i", column]
        return _changed(rng, read, column)

    space, results, folded = [["i", n]], list[str](), dict[str, tuple[Term, int]]()
    for _ in range(rng.choice([2, 3, 4, 6, 7, 8, 10])):
        extent = m if rng.random() < 0.75 else rng.randint(1, m)
        c = term = element(m)
        if results:
            read = rng.choice(results)
            if rng.random() < 0.65:
                c, extent = folded[read]
            term = _reading(rng, c, element(m), ["at", read, "i"], ["at", rng.choice(results), "i"])
        reducer = rng.choices(["sum", "max", "min", "prod"], [8, 4, 2, 1])[0]
        if reducer == "prod" and rng.random() < 0.6:
            term = ["add", ["mul", ["tanh", term], 0.25], 1.0]
        results.append(made.add(space, [["j", extent]], reducer, term))
        folded[results[-1]] = c, extent
        if rng.random() < 0.12:
            last = ["at", results[-1], "i"]
            of_row = rng.choice([["add", last, 1.0], ["sqrt", ["abs", last]], ["max", last, ["at", results[0], "i"]]])
            results.append(made.add(space, [], None, of_row))
            folded[results[-1]] = c, extent
    outputs = [results[-1], *(name for name in results[:-1] if rng.random() < 0.2)]
    if rng.random() < 0.3:
        made.inputs["x"] = [n, 2 * m + 3]
        weight = ["exp", ["sub", ["at", "x", "i", "j"], ["at", results[0], "i"]]]
        outputs[0] = made.add([["i", n], ["j", m]], [], None, ["mul", weight, ["at", results[-1], "i"]])
    return made.done(outputs)


# Inputs of two axes by their dimensions.
_NAMES = {"iab": "x", "iba": "xt", "ab": "w", "ia": "u", "ib": "v", "b": "s", "i": "t"}


def two_axes(rng: random.Random) -> Data:
    """Up to five stages over rows i and axes a and b: each folds one axis or both, or is a map of what is before it."""
    made = Stages(rng)
    extents = {"i": rng.randint(1, 4), "a": rng.randint(1, 6), "b": rng.choice([1, 2, 3, 4, 5, 7, 8])}

    def element() -> tuple[Term, set[str]]:
        dims = rng.choice([*["iab"] * 4, *_NAMES])
        made.inputs[_NAMES[dims]] = [extents[d] for d in dims]
        read = ["at", _NAMES[dims], *dims]
        hidden = ["where", ["index<=", "b", ["+", "a", rng.randint(0, 2)]], read, float("-inf")]
        changes = [
            ["abs", read],
            ["square", read],
            ["mul", read, -0.5],
            hidden if "b" in dims and "a" in dims else read,
        ]
        return rng.choices([read, *changes], [6, 1, 1, 1, 1])[0], set(dims)

    results: list[tuple[str, str]] = []  # names, and their dimensions
    seen: list[tuple[Term, set[str]]] = []
    for _ in range(rng.choice([2, 2, 3, 3, 4, 5])):
        c, dims = rng.choice(seen) if seen and rng.random() < 0.6 else element()
        seen.append((c, dims))
        term = c
        if results:
            (r, of_r), (other, of_other) = rng.choice(results), rng.choice(results)
            w, of_w = element()
            term = _reading(rng, c, w, ["at", r, *of_r], ["at", other, *of_other])
            dims = dims | {*of_r, *of_other} | of_w
        dims = dims | {"i"}
        inner = [d for d in "ab" if d in dims]
        if not inner:
            continue
        fold = rng.choice([[d] for d in inner] + ([inner, inner[::-1]] if len(inner) > 1 else []))
        space = "".join(d for d in "iab" if d in dims and d not in fold)
        made.inputs.setdefault("t", [extents["i"]])
        reducer = rng.choices(["sum", "max", "min"], [6, 3, 1])[0]
        if "i" not in _dims_of(term):
            term = ["mul", term, ["at", "t", "i"]]
        name = made.add([[d, extents[d]] for d in space], [[d, extents[d]] for d in fold], reducer, term)
        results.append((name, space))
        if rng.random() < 0.2:
            c, dims = element()
            space = "".join(d for d in "iab" if d in dims | {*space})
            term = [rng.choice(["mul", "sub"]), c, ["at", name, *results[-1][1]]]
            results.append((made.add([[d, extents[d]] for d in space], [], None, term), space))
    if not results:
        return two_axes(rng)
    return made.done([results[-1][0], *(name for name, _ in results[:-1] if rng.random() < 0.2)])


def _dims_of(term: Term) -> set[str]:
    """The indices of the reads of a term."""
    if not isinstance(term, list):
        return set()
    return {*term[2:]} if term[0] == "at" else set[str]().union(*map(_dims_of, term[1:]))


__all__ = ["chain", "two_axes"]
