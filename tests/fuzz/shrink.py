"""A failing case made small, and shown as a few lines of Python."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import by_name

from fuzz.definitions import to_python
from fuzz.run_case import make, run

Case = dict[str, Any]
_MOST_RUNS = 200


def shrunk(case: Case, verdict: str, runs: int = _MOST_RUNS) -> Case:
    """A smaller case with the same verdict: stages, steps, kinds of data, outputs and sizes are left out in turn."""
    smaller = True
    while smaller and runs > 0:
        smaller = False
        for candidate in _candidates(case):
            runs -= 1
            if runs <= 0:
                break
            try:
                same = run(copy.deepcopy(candidate)).verdict == verdict
            except (KeyError, IndexError, ValueError, TypeError):  # the candidate is no case any more
                continue
            if same:
                case, smaller = candidate, True
                break
    return case


def _candidates(case: Case) -> Iterator[Case]:
    def changed(**parts: Any) -> Case:
        return {**copy.deepcopy(case), **parts}

    for key in ("data", "steps"):
        items = case.get(key, [])
        if len(items) > 1 or (key == "steps" and items):
            yield from (changed(**{key: items[:n] + items[n + 1 :]}) for n in range(len(items)))
    for name in case.get("options", {}):
        yield changed(options={k: v for k, v in case["options"].items() if k != name})
    for key in ("score", "mask"):
        if case.get(key) not in (None, "s", ""):
            yield changed(**{key: "s" if key == "score" else ""})
    for name, value in case.get("sizes", {}).items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield changed(sizes={**case["sizes"], name: 1})
            yield changed(sizes={**case["sizes"], name: value // 2})
    if "definition" in case:
        yield from (changed(definition=d) for d in _definitions(case["definition"]))


def _definitions(definition: dict[str, Any]) -> Iterator[dict[str, Any]]:
    stages = definition["stages"]
    if len(definition["outputs"]) > 1:
        for name in definition["outputs"]:
            yield _used({**definition, "outputs": [o for o in definition["outputs"] if o != name]})
    for stage in stages[:-1]:
        yield _used({**definition, "outputs": [stage["name"]]})
    for n, stage in enumerate(stages):
        for term in _terms(stage["term"]):
            made = copy.deepcopy(definition)
            made["stages"][n]["term"] = term
            yield _used(made)
    for shape in definition["inputs"].values():
        for extent in shape:
            if extent > 1:
                yield from (
                    _resized(definition, extent, new) for new in (1, extent // 2, extent - 1) if 0 < new < extent
                )
    if definition["dtype"] != "float32":
        yield {**definition, "dtype": "float32"}


def _terms(term: Any) -> Iterator[Any]:
    """Each operator of a term replaced by one of its operands."""
    if not isinstance(term, list) or term[0] == "at" or term[0].startswith("index"):
        return
    start = 2 if term[0] == "where" else 1
    yield from term[start:]
    for n in range(1, len(term)):
        for inner in _terms(term[n]):
            yield [*term[:n], inner, *term[n + 1 :]]


def _resized(definition: dict[str, Any], old: int, new: int) -> dict[str, Any]:
    """Every extent `old` made `new`."""
    made = copy.deepcopy(definition)
    for name, shape in made["inputs"].items():
        made["inputs"][name] = [new if e == old else e for e in shape]
    for stage in made["stages"]:
        for part in ("space", "fold"):
            stage[part] = [[v, new if e == old else e] for v, e in stage[part]]
    return made


def _used(definition: dict[str, Any]) -> dict[str, Any]:
    """Without stages and inputs that no output needs."""
    made = copy.deepcopy(definition)
    needed = set(made["outputs"])
    kept = []
    for stage in reversed(made["stages"]):
        if stage["name"] in needed:
            kept.append(stage)
            needed |= set(_reads(stage["term"]))
    made["stages"] = kept[::-1]
    made["inputs"] = {n: s for n, s in made["inputs"].items() if n in needed}
    return made


def _reads(term: Any) -> Iterator[str]:
    if isinstance(term, list):
        if term[0] == "at":
            yield term[1]
        for part in term[1:]:
            yield from _reads(part)


def as_python(case: Case) -> str:
    """The case as lines to paste."""
    lines = ["import neptune_lab as nl"]
    if "definition" in case:
        lines += ["from tvm import te, tirx", *to_python(case["definition"])]
    elif "typed" in case:
        lines += ["from fuzz.typed import tensor_expressions", f"definition = {case['typed']}"]
        lines.append('op = nl.operators.custom("f", *tensor_expressions(definition))')
    else:
        own = case.get("attention", case)
        score = f"lambda s, b, h, q, kv: {own['score']}" if own["score"] != "s" else "None"
        mask = f"lambda b, h, q, kv: {own['mask']}" if own["mask"] else "None"
        sizes = ", ".join(f"{k}={v!r}" for k, v in own["sizes"].items())
        lines.append(f"op = nl.operators.attention.general(score_mod={score}, mask_mod={mask}, {sizes})")
    if case["kind"] == "gradient":
        return "\n".join([*lines, "passes = nl.operators.training(op)", "kernel = nl.compile(passes.backward)"])
    options = "".join(f", {k}={v!r}" for k, v in case["options"].items())
    if case["kind"] == "schedule":
        lines += _steps(case)
        return "\n".join(lines)
    lines.append(f"kernel = by_name.compile(op, {case['template']!r}{options})  # tests/by_name.py")
    return "\n".join([*lines, f"# data: {', '.join(case['data'])}"])


def _steps(case: Case) -> list[str]:
    import random

    from fuzz.random_steps import step
    from fuzz.run_case import custom_operator
    from neptune_lab.errors import NeptuneError
    from neptune_lab.loop_schedule import Schedule

    op = custom_operator(case["definition"])
    options = "".join(f", {k}={v!r}" for k, v in case["options"].items())
    lines = [
        f"sch = by_name.schedule(op, {case['template']!r}{options})" if case["template"] else "sch = nl.Schedule(op)"
    ]
    try:
        sch = by_name.schedule(op, case["template"], **case["options"]) if case["template"] else Schedule(op)
    except NeptuneError:
        return lines
    for seed in case["steps"]:
        drawn = step(random.Random(seed), sch)
        try:
            sch.apply(drawn)
            lines.append(f"sch.{drawn}")
        except NeptuneError:
            continue
        except Exception as error:  # noqa: BLE001 - the failure that is shown
            lines.append(f"sch.{drawn}  # {type(error).__name__}: {error}")
            break
    return lines


def shrunk_text(seed: str, verdict: str) -> str:
    """The case of `seed`, smaller, as Python with what is wrong; as drawn where it ends the process."""
    case = make(seed)
    if verdict not in ("crashed", "late"):
        case = shrunk(case, verdict)
        detail = run(copy.deepcopy(case)).detail
    else:
        detail = verdict
    return f"\n# {seed} {verdict}: {detail.splitlines()[0] if detail else ''}\n{as_python(case)}"


def show_one(seed: str) -> int:
    """Runs one case in this process and prints it."""
    case = make(seed)
    outcome = run(copy.deepcopy(case))
    print(as_python(case))
    print(f"{outcome.verdict}: {outcome.detail}")
    return 0 if outcome.verdict in ("accepted", "refused") else 1
