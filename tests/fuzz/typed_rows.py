"""Collects typed inputs and stages over rows and columns, and draws elements and conditions of any dtype."""

from __future__ import annotations

import random
from typing import Any

from fuzz.typed import Data, Term, dtype_of

INF = float("inf")


class Rows:
    """Collects inputs and stages over rows i and columns j."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.n = rng.choice([1, 1, 2, 3, 5])
        self.m = rng.choice([1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16])
        self.inputs: dict[str, list[Any]] = {}
        self.stages: list[Data] = []
        self.dtype = rng.choices(["float32", "float16", "bfloat16"], [7, 2, 2])[0]

    def dtypes(self) -> dict[str, str]:
        return {name: d for name, (_, d) in self.inputs.items()} | {s["name"]: s["dtype"] for s in self.stages}

    def of(self, term: Term) -> str:
        return dtype_of(term, self.dtypes())

    def read(self, name: str, *dims: str, dtype: str = "") -> Term:
        sizes = {"i": self.n, "j": self.m, "k": self.m}
        given = self.inputs.setdefault(name, [[sizes[d] for d in dims], dtype or self.dtype])
        read = ["at", name, *dims]
        return ["cast", "float32", read] if given[1] in ("float16", "bfloat16") else read

    def stage(self, term: Term, space: str, fold: str = "", reducer: str = "", dtype: str = "", row: str = "") -> Term:
        sizes = {"i": self.n, "j": self.m, "k": self.m}
        name = f"{row or ('r' if fold else 'e')}{len(self.stages)}"
        dtype = dtype or self.of(term) or "float32"
        self.stages.append({"name": name, "dtype": dtype, "space": [[d, sizes[d]] for d in space],
                            "fold": [[d, sizes[d]] for d in fold], "reducer": reducer, "term": term})  # fmt: skip
        read = ["at", name, *space]
        return ["cast", "float32", read] if dtype in ("float16", "bfloat16") else read

    def fold(self, reducer: str, term: Term) -> Term:
        return self.stage(term, "i", "j", reducer)

    def map(self, term: Term) -> Term:
        return self.stage(term, "ij")

    def row(self, term: Term) -> Term:
        return self.stage(term, "i") if self.rng.random() < 0.6 else term

    def x(self) -> Term:
        """A float32 term of row i and column j."""
        rng = self.rng
        x = self.read("x", "i", "j")
        return rng.choices(
            [
                lambda: x,
                lambda: self.read("y", "i", "j"),
                lambda: ["mul", x, self.read("w", "j")],
                lambda: ["add", x, self.read("w", "j")],
                lambda: ["where", self.condition(), x, rng.choice([-INF, -INF, 0.0, -1e10, INF])],
                lambda: ["mul", ["cast", "float32", self.read("n", "i", "j", dtype="int8")], 0.125],
                lambda: ["cast", "float32", self.read("c", "i", "j", dtype="int32")],
                lambda: self.map(["mul", x, rng.choice([0.5, -1.0, 0.3])]),
                lambda: ["cast", "float32", self.condition()],
                lambda: self.read("t", "j", "i"),
                lambda: ["mul", x, rng.choice([0.25, -1.0, 0.1])],
                lambda: ["cast", "float32", ["cast", rng.choice(["float16", "bfloat16"]), ["mul", x, 0.7]]],
            ],
            [12, 2, 2, 1, 5, 2, 1, 2, 1, 1, 1, 1],
        )[0]()

    def condition(self) -> Term:
        rng = self.rng
        return rng.choice(
            [
                lambda: self.read("mask", "i", "j", dtype="bool"),
                lambda: ["not", self.read("mask", "i", "j", dtype="bool")],
                lambda: ["eq", self.read("a", "i", dtype="int32"), self.read("b", "j", dtype="int32")],
                lambda: ["ne", self.read("c", "i", "j", dtype="int32"), 0],
                lambda: ["ge", self.read("n", "i", "j", dtype="int8"), 2],
                lambda: ["lt", ["place", "j"], self.read("a", "i", dtype="int32")],
                lambda: ["ne", ["place", "j"], ["place", "i"]],
                lambda: ["eq", ["place", "j"], self.read("a", "i", dtype="int32")],
                lambda: ["le", ["place", "j"], ["place", "i"]],
                lambda: ["ne", self.read("x", "i", "j"), 0.0],
                lambda: ["and", self.read("mask", "i", "j", dtype="bool"), ["le", ["place", "j"], ["place", "i"]]],
                lambda: ["or", ["lt", self.read("x", "i", "j"), 0.0], ["eq", ["place", "j"], 0]],
            ]
        )()

    def done(self, *outputs: Term) -> Data:
        names = list(dict.fromkeys(_named(term) for term in outputs))
        needed, kept = set(names), []
        for stage in reversed(self.stages):
            if stage["name"] in needed:
                kept.append(stage)
                needed |= set(_names(stage["term"]))
        inputs = {name: spec for name, spec in self.inputs.items() if name in needed}
        return {"inputs": inputs, "stages": kept[::-1], "outputs": names}


def _named(term: Term) -> str:
    return term[1] if term[0] == "at" else _named(term[-1])


def _names(term: Term) -> list[str]:
    if not isinstance(term, list):
        return []
    return ([term[1]] if term[0] == "at" else []) + [n for part in term[1:] for n in _names(part)]


__all__ = ["INF", "Rows"]
