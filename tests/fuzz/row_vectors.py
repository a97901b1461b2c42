"""Random norms and softmaxes of rows with vectors along them, as GPUs run them: vectors that are read before the first
reduction, as the row is read, or from copies that are made while the row is reduced; rows of an odd number of elements,
held as they were loaded, in pieces, or shared among programs.

What these passes ask of a tensor's size is asked of small ones here, so that NumPy runs a case in a tenth of a second.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from typing import Any

import by_name

from fuzz.long_rows import limited
from fuzz.outcome import Outcome, Wrong

Data = dict[str, Any]
Term = Any
_LIMITS: dict[str, list[Any]] = {
    "htile_passes.read_vectors_first:MOST_PROGRAMS": [None, None, 0],
    "htile_passes.read_vectors_first:MOST_PER_LANE": [None, None, None, 4],
    "htile_to_triton.beside_rows:FEW_PROGRAMS": [None, 0, 0],
    "htile_passes.cut_long_rows:MANY_ELEMENTS": [None, 0, 0],
    "htile_passes.cut_long_rows:SHORTEST": [128, 128, None],
    "htile_passes.hold_rows_as_loaded:FEWEST": [2],
    "htile_passes.hold_rows_as_loaded:MOST": [None, {1: 96, 2: 96}],
    "htile_passes.share_rows:OF_A_WARP": [64],
}


def draw_row_vectors(rng: random.Random) -> Data:
    """A definition, options, and the limits of passes."""
    m = rng.choice([rng.randint(2, 70), rng.randrange(3, 70, 2), rng.randrange(257, 700, 2), rng.randint(257, 700)])
    definition = _definition(rng, rng.randint(1, 9), m)
    options: Data = {"block_q": 1, "num_warps": rng.choice([1, 1, 2, 4]), "block_kv": rng.choice([m, m, m, m, 64])}
    if rng.random() < 0.25:
        options["combine"] = "waiting"
    limits = {name: rng.choice(values) for name, values in _LIMITS.items()}
    return {
        "definition": definition, "options": options, "template": rng.choice([None, None, "rolling_update"]),
        "target": rng.choice(["h200", "h200", "h200", "any"]),
        "limits": {name: value for name, value in limits.items() if value is not None},
    }  # fmt: skip


def _definition(rng: random.Random, n: int, m: int) -> Data:
    """Reductions of a row, or of its sum with another, and maps of the row with up to three vectors."""
    inputs: dict[str, list[int]] = {"x": [n, m]}
    stages: list[Data] = []

    def add(term: Term, *, reducer: str | None = None, row: bool = False) -> Term:
        """A stage; what reads it."""
        name = f"{'r' if reducer else 'e'}{len(stages)}"
        fold, space = ([["j", m]] if reducer else []), ([["i", n], ["j", m]] if row else [["i", n]])
        stages.append({"name": name, "space": space, "fold": fold, "reducer": reducer, "term": term})
        return ["at", name, "i", "j"] if row else ["at", name, "i"]

    def vector() -> Term:
        name = rng.choice(["u", "v", "w"])
        inputs[name] = [m]
        return ["at", name, "j"]

    x: Term = ["at", "x", "i", "j"]
    outputs: list[str] = []
    if rng.random() < 0.3:
        inputs["r"] = [n, m]
        x = ["add", x, ["at", "r", "i", "j"]]
        if rng.random() < 0.7:
            x = add(x, row=True)
            outputs.append(x[1])
    folded = ["mul", x, vector()] if rng.random() < 0.3 else x
    match rng.choice(["mean", "mean", "squares", "squares", "softmax", "largest"]):
        case "mean":
            mean = add(["mul", add(folded, reducer="sum"), 1.0 / m])
            variance = ["mul", add(["square", ["sub", x, mean]], reducer="sum"), 1.0 / m]
            y: Term = ["mul", ["sub", x, mean], ["rsqrt", ["add", variance, rng.choice([1e-3, 0.5])]]]
        case "squares":
            y = ["div", x, ["sqrt", ["add", add(["square", folded], reducer="sum"), rng.choice([1e-3, 1.0])]]]
        case "softmax":
            top = add(folded, reducer="max")
            total = add(["exp", ["sub", folded, top]], reducer="sum")
            y = ["div", ["exp", ["sub", folded, top]], total]
        case _:
            y = ["div", x, ["add", add(["abs", folded], reducer="max"), 1.0]]
    results = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        term = ["mul", y, vector()] if rng.random() < 0.8 else y
        results.append(add(["add", term, vector()] if rng.random() < 0.6 else term, row=True))
    if rng.random() < 0.2:  # a number of the row beside it
        results.append(add(["mul", rng.choice(results), 0.5], reducer="sum"))
    outputs += [result[1] for result in results]
    used = {name for stage in stages for name in _names(stage["term"])}
    dtype = rng.choices(["float16", "float32"], [7, 3])[0]
    inputs = {name: shape for name, shape in inputs.items() if name in used}
    return {"inputs": inputs, "dtype": dtype, "stages": stages, "outputs": outputs}


def _names(term: Term) -> Iterator[str]:
    if isinstance(term, list):
        if term[0] == "at":
            yield term[1]
        for part in term[1:]:
            yield from _names(part)


def run_row_vectors(case: Data, outcome: Outcome) -> None:
    """Compiles, looks at what starts early, and compares tiles and Triton on every kind of data of the case."""
    from fuzz.run_case import check_kernel, count_kernel, custom_operator, reference_of

    op = custom_operator(case["definition"])
    with limited(case["limits"]):
        kernel = by_name.compile(op, case["template"], target=case["target"], validate="none", **case["options"])
        count_kernel(case, kernel, outcome)
        outcome.met["vectors beside rows"] += "zero = tl.program_id(" in kernel.source
        outcome.met["programs that wait"] += "launch_cooperative_grid" in kernel.source
        outcome.met["starts early"] += check_early_starts(kernel.source)
        check_kernel(case, kernel, *reference_of(case["definition"]))


# -- What runs beside the launch before ---------------------------------------------------------------------------


def check_early_starts(source: str) -> int:
    """How many launches of a module start early; Wrong if one then reads what a launch of the module stores, or stores.

    Programs that are run one after another compute the same wherever one waits, so this is read in the text.
    """
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef)}
    launches = [call for call in ast.walk(ast.parse(source)) if _kernel_of(call) in functions]
    stored = {
        a
        for call in launches
        for a in _arguments(call, functions, _accessed(functions[_kernel_of(call)].body, "store"))
    }
    early = [n for n, call in enumerate(launches) if any(k.arg == "launch_pdl" for k in call.keywords)]
    for n in early:
        function = functions[_kernel_of(launches[n])]
        waits = [at for at, stmt in enumerate(function.body) if ast.unparse(stmt) == "_wait()"]
        if len(waits) != 1:
            raise Wrong(f"{function.name} starts early and waits {len(waits)} times")
        before = function.body[: waits[0]]
        lets = functions[_kernel_of(launches[n - 1])]
        if n == 0 or n - 1 in early or "_launch_dependents()" not in ast.unparse(lets):
            raise Wrong(f"{function.name} starts early behind a launch that does not let it")
        read = {*_arguments(launches[n], functions, _accessed(before, "load"))}
        if _accessed(before, "store") or read & stored:
            raise Wrong(f"{function.name} reads or stores {sorted(read & stored)} before it waits")
    return len(early)


def _kernel_of(call: ast.AST) -> str:
    """The kernel that a call launches; "" for another call or node."""
    match call:
        case ast.Call(func=ast.Subscript(value=ast.Name(id=name))):
            return name
    return ""


def _arguments(call: Any, functions: dict[str, ast.FunctionDef], names: set[str]) -> Iterator[str]:
    """What a launch passes for parameters."""
    parameters = functions[_kernel_of(call)].args.args
    yield from (ast.unparse(given) for p, given in zip(parameters, call.args, strict=False) if p.arg in names)


def _accessed(body: list[ast.stmt], way: str) -> set[str]:
    """The pointers that statements load or store through, by way of names that stand for places behind them."""
    of: dict[str, set[str]] = {}
    found: set[str] = set()

    def names(node: ast.AST) -> set[str]:
        every = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return {p for name in every for p in of.get(name, {name} if name.endswith("_ptr") else set())}

    for node in (n for stmt in body for n in ast.walk(stmt)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.BinOp() as value):
                of[name] = of.get(name, set()) | names(value)
            case ast.Call(func=ast.Attribute(attr=attr), args=[place, *_]) if attr == way:
                found |= names(place)
    return found


__all__ = ["check_early_starts", "draw_row_vectors", "run_row_vectors"]
