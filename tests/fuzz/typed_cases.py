"""Random definitions of several dtypes: how a case is drawn and run."""

from __future__ import annotations

import random
from typing import Any

import by_name
import numpy as np

from fuzz import judge, special
from fuzz.outcome import Outcome
from fuzz.typed import FLOATS, Data, evaluate, named, tensor_expressions
from fuzz.typed_forms import FORMS
from fuzz.typed_rows import Rows


def draw_typed(rng: random.Random) -> Data:
    """A definition, a template and its options."""
    form = rng.choice(FORMS)
    options: Data = {}
    if rng.random() < 0.8:
        options["block_kv"] = rng.choice([1, 2, 2, 3, 4, 4, 8, 16, 32])
    if rng.random() < 0.5:
        options["block_q"] = rng.choice([1, 2, 4, 8])
    template = rng.choices([None, "rolling_update", "split_k_update"], [4, 5, 3])[0]
    if template == "split_k_update" and rng.random() < 0.7:
        options["splits"] = rng.choice([2, 3, 8])
    if rng.random() < 0.25:
        template, options = None, {}
    return {"form": form.__name__, "typed": form(Rows(rng)), "template": template, "options": options}


def inputs_of(definition: Data, kind: str, seed: int) -> dict[str, np.ndarray]:
    """An array per input: floats of `kind`, whole numbers around 0, sometimes at the ends of their dtype."""
    rng = np.random.default_rng(seed)
    floats = {name: shape for name, (shape, dtype) in definition["inputs"].items() if dtype in FLOATS}
    drawn = special.draw(kind, floats, "float32", seed) if floats else {}
    made = {}
    for name, (shape, dtype) in definition["inputs"].items():
        if dtype in FLOATS:
            value = drawn[name].astype(np.float64)
            if dtype == "float16":
                value = np.where(np.isinf(value), value, np.clip(value, -65504, 65504))
            if rng.random() < 0.3:  # ties
                value = np.round(value)
            made[name] = value.astype(named(dtype))
        elif dtype == "bool":
            rows = rng.choice([0.0, 0.5, 0.9, 1.0], (*shape[:-1], 1))
            made[name] = rng.random(tuple(shape)) < rows
        else:
            largest = 128 if dtype == "int8" else 2**31
            ends = dtype == "int8" and kind != "ordinary" and rng.random() < 0.5
            low, high = (-largest, largest) if ends else (-3, 9)
            made[name] = rng.integers(low, high, tuple(shape)).astype(dtype)
            if name == "a":
                made[name] = rng.integers(0, 6, tuple(shape)).astype(dtype)
    return made


def run_typed(case: Data, outcome: Outcome) -> None:
    """Compiles, and compares tiles and Triton on every kind of data of the case."""
    from fuzz.run_case import check_validation, compare, count_kernel, triton_outputs
    from neptune_lab.htile.interpret import interpret
    from neptune_lab.operators import custom

    definition = case["typed"]
    op = custom("f", *tensor_expressions(definition))
    kernel = by_name.compile(op, case["template"], validate="none", **case["options"])
    outcome.met[f"typed {case['form']}"] += 1
    count_kernel(case, kernel, outcome)
    masks = "'where'" in str(definition)
    outputs = list(kernel.htile.outputs)
    text = str(definition)
    unit = 2.0**-7 if "bfloat16" in text else 2.0**-10 if "float16" in text else 2.0**-20

    def reference(arrays: Any, mode: str) -> dict[str, np.ndarray]:
        return evaluate(definition, arrays, mode)

    for n, kind in enumerate(case["data"]):
        inputs = inputs_of(definition, kind, case["seed"] + n)
        wanted = judge.expectations(reference, inputs, outputs)
        compare("tiles", kind, interpret(kernel.htile, inputs), wanted, inputs, masks, unit)
        compare("Triton", kind, triton_outputs(kernel, inputs, case, n), wanted, inputs, masks, unit)
    if case["seed"] % 8 == 0:
        check_validation(kernel)


__all__ = ["draw_typed", "inputs_of", "run_typed"]
