"""Random definitions of rows of a thousand elements and more, as GPUs run them: in pieces, shared among programs,
reduced lane by lane, loaded again for each pass, with an aligned middle, or backwards.

What these passes ask of a tensor's size is asked of small ones here, so that NumPy runs a case in a second.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import by_name

from fuzz import draw
from fuzz.forms import known
from fuzz.outcome import Outcome

Data = dict[str, Any]
# Limits by module and name, and what stands for them in a case; None: the limit itself.
_LIMITS: dict[str, list[Any]] = {
    "htile_passes.align_row_loops:MANY_ELEMENTS": [None, 0],
    "htile_passes.cut_long_rows:MANY_ELEMENTS": [None, 0, 0],
    "htile_passes.reread_backwards:MANY_BYTES": [None, 0],
    "htile_passes.compute_again:NVIDIA_REGISTERS": [None, None, 1 << 8],
    "htile_passes.rows_of_lanes:MOST_OF_THREAD": [None, None, 8],
    "htile_passes.rows_of_lanes:MOST_READ_ONCE": [None, 8, 8],
    "htile_passes.rows_of_lanes:SHORTEST": [None, 0, 1200],
    "htile_passes.rows_of_lanes:PIECES": [1, 2, 3],
    "htile_to_triton.loaded_again:MOST_HELD": [0, 0, 8],
    "htile_to_triton.loaded_again:MOST_BESIDE": [None, 1 << 12],
    "htile_to_triton.loaded_again:PROGRAMS": [{1: 2, 2: 2, 4: 1}],
}


def draw_long_rows(rng: random.Random) -> Data:
    """A definition, options, and the limits of passes."""
    make = draw.Maker(rng)
    make.n = rng.randint(1, 3)
    make.m = rng.choice([1024, 1031, 1100, 1203, 1400, 1401, 1500, 2001, 2048, 2049, 2500])
    make.batch, make.mixed = rng.choice([0, 0, 0, 2]), rng.random() < 0.1
    definition = known(make) if rng.random() < 0.75 else draw.rows(make)
    if rng.random() < 0.3:  # a map of the first result, so that what is loaded again is stored too
        definition = _with_map(definition, make)
    definition["dtype"] = rng.choices(["float16", "float32"], [7, 3])[0]
    options: Data = {}
    if rng.random() < 0.8:
        options |= {"block_q": 1, "num_warps": rng.choice([1, 2, 2, 4])}
        options["block_kv"] = rng.choice([make.m, make.m, make.m, 256, 512])
    if rng.random() < 0.25 and options.get("block_kv") == make.m:
        options["combine"] = "waiting"
    limits = {name: rng.choice(values) for name, values in _LIMITS.items()}
    if rng.random() < 0.2:
        n, m = make.n, make.m
        make = draw.Maker(rng)
        make.n, make.m, make.mixed = n, m, False
        definition = {**_exponentials(make), "dtype": definition["dtype"]}
        options = {"block_q": 1, "num_warps": rng.choice([1, 1, 1, 2]), "block_kv": make.m}
        limits |= {f"htile_passes.rows_of_lanes:{name}": 8 for name in ("MOST_OF_THREAD", "SHORTEST")}
    return {
        "definition": definition, "options": options, "template": rng.choice([None, "rolling_update"]),
        "target": rng.choice(["h200", "h200", "h200", "any"]),
        "limits": {name: value for name, value in limits.items() if value is not None},
    }  # fmt: skip


def _exponentials(make: draw.Maker) -> Data:
    """A maximum and a sum of exponentials, or a number or a row of both."""
    shape = [extent for _, extent in make.space]
    x: Any = ["at", make.input("x", [*shape, make.m]), *make.row, "j"]
    x = make.element() if make.rng.random() < 0.3 else x
    top = make.fold("max", x, make.m)
    weight = ["exp", ["sub", x, make.at_row(top)]]
    total = make.fold("sum", weight, make.m)
    if make.rng.random() < 0.2:
        return make.done([total, top])
    if make.rng.random() < 0.5:
        return make.done([make.map(["add", make.at_row(top), ["log", make.at_row(total)]], make.space)])
    return make.done([make.map(["div", weight, make.at_row(total)], [*make.space, ["j", make.m]])])


def _with_map(definition: Data, make: draw.Maker) -> Data:
    """The definition with a row of elements over its first result, some of them scaled by a vector along the row."""
    last = next(s for s in definition["stages"] if s["name"] == definition["outputs"][0])
    if [var for var, _ in last["space"]] != make.row:
        return definition
    shape = [extent for _, extent in make.space]
    x = ["at", "x", *make.row, "j"]
    term: Any = ["div", x, ["add", ["abs", make.at_row(last["name"])], 1.0]]
    inputs = {**definition["inputs"], "x": [*shape, make.m]}
    if make.rng.random() < 0.5:
        term, inputs["u"] = ["mul", term, ["at", "u", "j"]], [make.m]
    name = f"e{len(make.stages)}x"
    stage = {"name": name, "space": [*make.space, ["j", make.m]], "fold": [], "reducer": None, "term": term}
    outputs = [name, *(o for o in definition["outputs"][1:])]
    return {**definition, "inputs": inputs, "stages": [*definition["stages"], stage], "outputs": outputs}


@contextmanager
def limited(limits: Mapping[str, Any]) -> Iterator[None]:
    """The passes with other limits."""
    with ExitStack() as stack:
        for name, value in limits.items():
            module, _, constant = name.partition(":")
            if isinstance(value, dict):  # (keys of JSON are text)
                value = {int(key): number for key, number in value.items()}
            stack.enter_context(patch(f"neptune_lab.{module}.{constant}", value))
        yield


def run_long_rows(case: Data, outcome: Outcome) -> None:
    """Compiles, and compares tiles and Triton on every kind of data of the case."""
    from fuzz.run_case import check_kernel, count_kernel, custom_operator, reference_of

    op = custom_operator(case["definition"])
    with limited(case["limits"]):
        kernel = by_name.compile(op, case["template"], target=case["target"], validate="none", **case["options"])
        count_kernel(case, kernel, outcome)
        outcome.met["in lanes"] += "_lanes" in kernel.source
        outcome.met["loaded again"] += "maxnreg=" in kernel.source
        outcome.met["programs that wait"] += case["options"].get("combine") == "waiting"
        check_kernel(case, kernel, *reference_of(case["definition"]))


__all__ = ["draw_long_rows", "limited", "run_long_rows"]
