"""Random definitions: chains of reductions and maps, as JSON data (see `definitions`).

Most are of forms that the algebra can take apart, so that more than half of them are fused; every draw may mix extents
(prefixes and offsets of a dimension), tensors that are shared or permuted, row constants, masks and several outputs.
"""

from __future__ import annotations

import random
from typing import Any

from fuzz.forms import known

Data = dict[str, Any]
LOWEST = -3.4028234663852886e38


def definition(rng: random.Random) -> Data:
    """One random definition."""
    return rng.choices([rows, _product, known], [4, 3, 4])[0](Maker(rng))


class Maker:
    """Collects inputs and stages; `i` is the row, `j` the column of `m` elements, `d` a feature."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.n, self.m, self.w = (
            rng.randint(1, 6),
            rng.choice([2, 3, 5, 6, 7, 8, 9, 11, 12, 16]),
            rng.choice([1, 2, 3, 4]),
        )
        self.mixed = rng.random() < 0.35
        self.batch = rng.choice([0, 0, 0, 0, 2])
        self.inputs: dict[str, list[int]] = {}
        self.stages: list[Data] = []
        # What a reduction folds: its term, its extent and its offset.
        self.folded: dict[str, tuple[Any, int, int]] = {}

    @property
    def space(self) -> list[list[Any]]:
        return [["b", self.batch], ["i", self.n]] if self.batch else [["i", self.n]]

    @property
    def row(self) -> list[str]:
        return ["b", "i"] if self.batch else ["i"]

    def input(self, name: str, shape: list[int]) -> str:
        self.inputs.setdefault(name, shape)
        return name

    def extent(self) -> tuple[int, int]:
        """(extent, offset) of a fold along j: all of it, and where extents are mixed sometimes a part."""
        if not self.mixed or self.rng.random() < 0.5:
            return self.m, 0
        size = self.rng.randint(1, self.m)
        return size, self.rng.choice([0, self.rng.randint(0, self.m - size)])

    def column(self, offset: int) -> Any:
        return ["+", "j", offset] if offset else "j"

    def element(self, offset: int = 0) -> Any:
        """A term over inputs at row i and column j."""
        rng, j = self.rng, self.column(offset)
        shape = [extent for _, extent in self.space]
        x = ["at", self.input("x", [*shape, self.m]), *self.row, j]
        kind = rng.choices(
            [
                "x",
                "y",
                "xy",
                "square",
                "abs",
                "tanh",
                "masked",
                "scaled",
                "permuted",
                "shared",
                "const",
                "relu",
                "lowest",
            ],
            [8, 3, 2, 1, 1, 1, 3, 2, 1, 1, 1, 1, 1],
        )[0]
        y = ["at", "y", *self.row, j]
        if kind in ("y", "xy"):
            self.input("y", [*shape, self.m])
        match kind:
            case "y":
                return y
            case "xy":
                return ["mul", x, y]
            case "square" | "abs" | "tanh":
                return [kind, x]
            case "masked":
                return ["where", self.condition(j), x, float("-inf")]
            case "lowest":
                return ["where", self.condition(j), x, LOWEST]
            case "scaled":
                return ["mul", x, ["at", self.input("k", shape), *self.row]]
            case "permuted":
                return ["at", self.input("xt", [self.m, *shape]), j, *self.row]
            case "shared":
                return ["at", self.input("u", [self.m]), j]
            case "const":
                return ["mul", x, rng.choice([0.5, 2.0, -1.0, 0.125])]
            case "relu":
                return ["max", x, 0.0]
        return x

    def condition(self, j: Any) -> Any:
        rng = self.rng
        shape = [extent for _, extent in self.space]
        return rng.choice(
            [
                ["index<=", j, ["+", "i", rng.randint(0, 4)]],
                ["index<", j, rng.randint(1, self.m)],
                ["index<=", ["-", "i", j], rng.randint(0, 3)],
                ["gt", ["at", self.input("y", [*shape, self.m]), *self.row, j], 0.0],
                ["le", ["div", ["at", self.input("y", [*shape, self.m]), *self.row, j], 3.0], 0.25],
            ]
        )

    def fold(self, reducer: str, term: Any, extent: int) -> str:
        name = f"r{len(self.stages)}"
        self.stages.append(
            {"name": name, "space": self.space, "fold": [["j", extent]], "reducer": reducer, "term": term}
        )
        return name

    def map(self, term: Any, space: list[list[Any]]) -> str:
        name = f"e{len(self.stages)}"
        self.stages.append({"name": name, "space": space, "fold": [], "reducer": None, "term": term})
        return name

    def at_row(self, name: str) -> Any:
        return ["at", name, *self.row]

    def done(self, outputs: list[str]) -> Data:
        used = _read(self.stages)
        stages = [s for s in self.stages if s["name"] in used or s["name"] in outputs]
        while len(stages) < len(self.stages):
            self.stages = stages
            used = _read(stages)
            stages = [s for s in stages if s["name"] in used or s["name"] in outputs]
        inputs = {name: shape for name, shape in self.inputs.items() if name in used}
        return {"inputs": inputs, "dtype": self.rng.choices(["float32", "float16"], [8, 2])[0], "stages": stages,
                "outputs": outputs}  # fmt: skip


def _read(stages: list[Data]) -> set[str]:
    found: set[str] = set()

    def visit(term: Any) -> None:
        if isinstance(term, list):
            if term and term[0] == "at":
                found.add(term[1])
            for part in term:
                visit(part)

    for stage in stages:
        visit(stage["term"])
    return found


def _consumer(make: Maker, producers: list[str]) -> tuple[Any, int]:
    """(term, extent): a term that reads producers' results in a form that can, mostly, be taken apart, often over the
    elements that the producer folds."""
    rng = make.rng
    producer = rng.choice(producers)
    extent, offset = make.extent()
    c = make.element(offset)
    if producer in make.folded and rng.random() < 0.75:
        c, extent, offset = make.folded[producer]
    return _consuming(make, c, make.element(offset), producer, producers, offset), extent


def _consuming(make: Maker, c: Any, w: Any, producer: str, producers: list[str], offset: int) -> Any:
    rng = make.rng
    r = make.at_row(producer)
    is_sum = next(s["reducer"] for s in make.stages if s["name"] == producer) == "sum"
    other = make.at_row(rng.choice(producers))
    positive = ["add", ["abs", r], 1.0]
    form = rng.choices(
        ["exp", "expw", "ratio", "square", "product", "masked", "normalised", "plain", "wild"],
        [1, 1, 6, 4, 1, 1, 1, 1, 1] if is_sum else [8, 6, 2, 2, 1, 3, 2, 1, 1],
    )[0]
    match form:
        case "exp":
            return ["exp", ["sub", c, r]]
        case "expw":
            return ["mul", ["exp", ["sub", c, r]], w]
        case "ratio":
            return ["div", c, ["sqrt", ["add", ["square", r], 0.5]]]
        case "square":
            return ["square", ["div", c, positive]]
        case "product":
            return ["mul", c, ["tanh", r]]
        case "masked":
            return ["where", make.condition(make.column(offset)), ["exp", ["sub", c, r]], 0.0]
        case "normalised":
            return ["mul", ["div", ["exp", ["sub", c, r]], ["add", ["abs", other], 1.0]], w]
        case "plain":
            return w
    return rng.choice([["tanh", ["mul", c, r]], ["abs", ["sub", c, r]], ["max", c, r], ["power", ["abs", c], 3.0]])


def rows(make: Maker) -> Data:
    """Reductions along rows, one behind the other."""
    rng = make.rng
    extent, offset = make.extent()
    first = make.element(offset)
    producers = [make.fold(rng.choices(["max", "sum", "min"], [6, 2, 1])[0], first, extent)]
    make.folded[producers[0]] = first, extent, offset
    shared = None
    if rng.random() < 0.2:  # a map between the reductions, that several read
        term = ["exp", ["sub", make.element(), make.at_row(producers[0])]]
        shared = make.map(term, [*make.space, ["j", make.m]])
    for _ in range(rng.randint(1, 3)):
        term, extent = _consumer(make, producers)
        if shared is not None and rng.random() < 0.6:
            extent, offset = make.extent()
            read = ["at", shared, *make.row, make.column(offset)]
            term = rng.choice([read, ["mul", read, make.element(offset)]])
        producers.append(make.fold(rng.choices(["sum", "max", "min"], [8, 1, 1])[0], term, extent))
    outputs = [producers[-1]]
    if rng.random() < 0.3:
        last = make.at_row(producers[-1])
        ending = rng.choice(
            [["add", last, 1.0], ["tanh", last], ["div", make.at_row(producers[-2]), ["add", ["abs", last], 1.0]]]
        )
        outputs = [make.map(ending, make.space)]
    elif rng.random() < 0.2:
        last = ["add", ["abs", make.at_row(producers[-1])], 1.0]
        x = ["at", make.input("x", [e for _, e in make.space] + [make.m]), *make.row, "j"]
        outputs = [make.map(["div", x, last], [*make.space, ["j", make.m]])]
    if rng.random() < 0.25:
        outputs += [name for name in producers if name not in outputs and rng.random() < 0.5]
    return make.done(outputs)


def _product(make: Maker) -> Data:
    """A product or a distance, a softmax or a norm of its rows, and a second product: attention and its relatives."""
    rng = make.rng
    d = rng.choice([1, 2, 4])
    row, keys = [e for _, e in make.space], [make.batch] if make.batch else []
    q = ["at", make.input("q", [*row, d]), *make.row, "d"]
    k = ["at", make.input("k", [*keys, make.m, d]), *(["b"] if make.batch else []), "j", "d"]
    make.stages.append(
        {
            "name": "s",
            "space": [*make.space, ["j", make.m]],
            "fold": [["d", d]],
            "reducer": "sum" if rng.random() < 0.95 else "max",
            "term": ["mul", q, k]
            if rng.random() < 0.8
            else rng.choice([["square", ["sub", q, k]], ["abs", ["sub", q, k]]]),
        }
    )
    extent, offset = make.extent()
    j = make.column(offset)
    score = ["at", "s", *make.row, j]
    if rng.random() < 0.5:
        score = ["where", make.condition(j), score, rng.choice([float("-inf"), float("-inf"), LOWEST])]
    elif rng.random() < 0.3:
        score = ["tanh", score]
    r = make.fold(rng.choice(["max", "max", "sum"]), score if rng.random() < 0.8 else ["abs", score], extent)
    weight = ["exp", ["sub", score, make.at_row(r)]] if rng.random() < 0.8 else score
    total = make.fold("sum", weight, extent) if rng.random() < 0.7 else r
    vextent, voffset = make.extent() if rng.random() < 0.3 else (extent, offset)
    if voffset != offset:
        vextent, voffset = extent, offset
    v = ["at", make.input("v", [*keys, make.m, make.w]), *(["b"] if make.batch else []), j, "d"]
    out_space = [*make.space, ["d", make.w]]
    make.stages.append(
        {"name": "acc", "space": out_space, "fold": [["j", vextent]], "reducer": "sum", "term": ["mul", weight, v]}
    )
    outputs = ["acc"]
    if rng.random() < 0.5:
        ratio = ["div", ["at", "acc", *make.row, "d"], ["add", ["abs", make.at_row(total)], 0.5]]
        outputs = [make.map(ratio, out_space)]
    if rng.random() < 0.3 and total not in outputs:
        outputs.append(total)
    return make.done(outputs)


def options(rng: random.Random, rows: int = 6) -> Data:
    """A template and its options."""
    template = rng.choices([None, "rolling_update", "split_k_update"], [2, 7, 3])[0]
    made: Data = {}
    if rng.random() < 0.9:
        made["block_kv"] = rng.choice([1, 2, 2, 3, 4, 4, 5, 8])
    if rng.random() < 0.6:
        made["block_q"] = rng.choice([1, 2, 2, 3, 4])
    if template == "split_k_update" and rng.random() < 0.8:
        made["splits"] = rng.choice([2, 2, 3])
    if rng.random() < 0.05:
        made["pad_rows"] = True
    if rng.random() < 0.1:
        made["interleave"] = 2
    return {"template": template, "options": made}
