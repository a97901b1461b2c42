"""The analytical model, calibrated on the shipped records of a class of GPUs (those of one compute capability).

The logarithm of measured over estimated time is fitted by a ridge regression over the values of options per kind of
nest, with one constant per workload, so that candidates of one workload are compared with each other.  The fit needs
the operators of all records, so it is made ahead and shipped: `python -m neptune_lab.autotune.calibration` writes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import exp, inf, log
from pathlib import Path
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np

from neptune_lab.autotune.cost_model import Machine, predict_nests
from neptune_lab.autotune.nests import Nests, entry
from neptune_lab.autotune.resolved import Resolver
from neptune_lab.autotune.space import kind_of
from neptune_lab.choice import Choice
from neptune_lab.errors import MeasureError, NeptuneError
from neptune_lab.files import write_text
from neptune_lab.power_of_two import power_of_two
from neptune_lab.records import Record, shipped
from neptune_lab.strict.json_text import check_schema, read_json
from neptune_lab.strict.typed import Between, Count, Line, Number, pack, unpack
from neptune_lab.target import DEFAULT, Target

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

SCHEMA = 1
FOLDER = Path(__file__).parent / "calibrated"
# The weight of the squares of coefficients; that of a workload's constant is free.
RIDGE, CONSTANT_RIDGE = 1.0, 1e-3
# Options whose values have coefficients; those in `TILES` are per nest.
TILES = ("block_q", "block_kv", "num_warps", "num_stages")
CODE = ("loads", "interleave", "loop_stages", "dependent_launch", "persistent", "tie")
# Candidates per workload that tell what the ranking costs.
FEWEST_TO_RANK = 4

Feature: TypeAlias = Line
# What a logarithm of times may be.
Log: TypeAlias = Annotated[float, Between(-20, 20)]


@dataclass(frozen=True)
class Calibration:
    """Coefficients of the model for a class of GPUs.

    Args:
        capability: of the class, such as "9.0"; "" if nothing is known of it.
        records, workloads: how many the fit is of.
        error: the typical factor between the estimate and the time of a workload that the fit did not see; infinite if
            nothing is known.
        ranking_loss: the time of the candidate that ranks first over the best one measured, by geometric mean over the
            workloads with several candidates, each left out of the fit; 1 if there are none.
        constants: by kind of nest, the logarithm of time over estimate.
        coefficients: by feature, what its value adds to that logarithm.
        usual: by "kind template", the options that most of the best records have.
    """

    capability: Line = ""
    records: Count = 0
    workloads: Count = 0
    error: Number = inf
    ranking_loss: Number = 1.0
    constants: Mapping[Line, Log] = field(default_factory=dict)
    coefficients: Mapping[Feature, Log] = field(default_factory=dict)
    usual: Mapping[Line, Mapping[Line, Any]] = field(default_factory=dict)

    def seconds(self, nests: Nests, written: Choice, machine: Machine) -> float:
        """The calibrated estimate of a choice with all sizes written out."""
        estimate = log(predict_nests(nests.of(written), written, machine).seconds)
        added = sum(self.coefficients.get(f, 0.0) for f in features(nests, written))
        return exp(estimate + self.constants.get(kind(nests), 0.0) + added)

    def knows(self, nests: Nests, choice: Choice) -> bool:
        """Whether records have all values of the choice that have coefficients."""
        return self.coefficients.keys() >= set(features(nests, choice))

    @property
    def told(self) -> str:
        """What it is of, and how far it is off, in a sentence."""
        if not self.records:
            return "the analytical model, not calibrated: there are no records of this class of GPUs"
        return (
            f"the analytical model, calibrated on {self.records} records of compute capability {self.capability}: "
            f"off by a factor of {self.error:.2f} on a workload it has not seen"
        )


def kind(nests: Nests) -> str:
    """The kind of an operator's nests: that of the first with a product, else of the first; "" if there are none."""
    plain = nests.plain
    return kind_of(next((n for n in plain if kind_of(n) != "rows"), plain[0])) if plain else ""


def features(nests: Nests, written: Choice) -> tuple[Feature, ...]:
    """What distinguishes a choice: its template, its language, and values of its options, per kind of nest."""
    of = kind(nests)
    found = [f"{of} {written.template} {written.code.code}"]
    for n, nest in enumerate(nests.of(written)):
        own = kind_of(nest)
        tiles = nest.tiles(written.sizes, n)
        values = {
            "block_q": _power(tiles.get(nest.row or "", 1)),
            "block_kv": _power(tiles[nest.column]),
            "num_warps": entry(written.sizes.num_warps, n),
            "num_stages": entry(written.sizes.num_stages, n),
        }
        language = written.code.code
        found += [f"{own} {language} {name}={values[name]}" for name in TILES if values[name] is not None]
    found += [f"{of} {name}={getattr(written.code, name)}" for name in CODE]
    return (*found, f"{of} pad_rows={written.sizes.pad_rows}")


def _power(size: int) -> int:
    """The power of two at or above a size."""
    return power_of_two(size)


@cache
def calibration_of(target: Target) -> Calibration:
    """The shipped calibration of a GPU's class; one that changes nothing if there is none."""
    if target.capability is None:
        return Calibration()
    path = FOLDER / f"sm_{''.join(map(str, target.capability))}.json"
    return read(path) if path.is_file() else Calibration()


def read(path: Path) -> Calibration:
    """The calibration in a file that `to_text` wrote.

    Raises:
        MeasureError: it is no such file.
    """
    data = check_schema(read_json(path, MeasureError), SCHEMA, path.name, "a calibration", MeasureError, help="fit it")
    del data["schema"]
    return unpack(data, Calibration, path.name, MeasureError)


def to_text(made: Calibration) -> str:
    """A calibration as JSON."""
    return json.dumps({"schema": SCHEMA, **pack(made)}, indent=1) + "\n"


# -- the fit ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observation:
    """A record, as the fit sees it: its workload, kind and features, and the logarithms of estimate and time."""

    workload: str
    kind: str
    features: tuple[Feature, ...]
    estimate: float
    time: float


def operator_of(record: Record) -> Operator | None:
    """The operator of a record, by its name and parameters; None if those do not say all of it."""
    from neptune_lab.operators import OPERATORS
    from neptune_lab.records import workload_key

    for name, make in OPERATORS.items():
        if record.operator not in (name.replace(".", "_"), name.rpartition(".")[2]):
            continue
        params = dict(record.params)
        for given in (params, {k: v for k, v in params.items() if k != "causal"}):
            try:
                op = make(**given)
            except (TypeError, NeptuneError):
                continue
            if workload_key(op) == record.workload:
                return op
    return None


def observed(records: Iterable[Record], target: Target) -> list[Observation]:
    """The records that were timed, of operators that their names and parameters tell, and whose choices are written
    out by shape."""
    found: list[Observation] = []
    known: dict[str, tuple[Nests, Resolver] | None] = {}
    machine = Machine.of(target)
    for record in records:
        if record.us is None:
            continue
        if record.workload not in known:
            op = operator_of(record)
            nests = Nests.found_in(op) if op is not None else None
            known[record.workload] = (nests, Resolver(op, target)) if op and nests and nests.plain else None
        pair = known[record.workload]
        if pair is None:
            continue
        nests, resolver = pair
        try:
            written = resolver(Choice.of(record.template, record.options, "the record"))
        except NeptuneError:
            continue
        estimate = predict_nests(nests.of(written), written, machine).seconds
        found.append(
            Observation(record.workload, kind(nests), features(nests, written), log(estimate), log(record.us * 1e-6))
        )
    return found


def fitted(seen: list[Observation]) -> tuple[dict[str, float], dict[str, float]]:
    """The constant of each kind, and the coefficient of each feature."""
    workloads = sorted({o.workload for o in seen})
    names = sorted({f for o in seen for f in o.features})
    columns = {name: n for n, name in enumerate([*workloads, *names])}
    matrix, excess = np.zeros((len(seen), len(columns))), np.zeros(len(seen))
    for n, one in enumerate(seen):
        matrix[n, [columns[one.workload], *(columns[f] for f in one.features)]] = 1.0
        excess[n] = one.time - one.estimate
    penalty = np.diag([CONSTANT_RIDGE] * len(workloads) + [RIDGE] * len(names))
    weights = np.linalg.solve(matrix.T @ matrix + penalty, matrix.T @ excess)
    coefficients = {name: round(float(weights[columns[name]]), 4) for name in names}
    of_kind: dict[str, list[float]] = {}
    for workload, own in {o.workload: o.kind for o in seen}.items():
        of_kind.setdefault(own, []).append(float(weights[columns[workload]]))
    return {own: round(mean(values), 4) for own, values in of_kind.items()}, coefficients


def fit(records: Iterable[Record], target: Target) -> Calibration:
    """The calibration of a GPU's class by these records, with its errors on workloads that are left out in turn."""
    records = tuple(records)
    seen = observed(records, target)
    constants, coefficients = fitted(seen)
    misses, losses = [], []
    for workload in sorted({o.workload for o in seen}):
        own = [o for o in seen if o.workload == workload]
        others = fitted([o for o in seen if o.workload != workload])
        estimates = [_estimate(o, *others) for o in own]
        misses.append(mean(abs(e - o.time) for e, o in zip(estimates, own, strict=True)))
        if len(own) >= FEWEST_TO_RANK:
            first = own[estimates.index(min(estimates))]
            losses.append(exp(first.time - min(o.time for o in own)))
    capability = ".".join(map(str, target.capability or ()))
    return Calibration(
        capability,
        len(seen),
        len({o.workload for o in seen}),
        round(exp(mean(misses)), 3) if misses else inf,
        round(geometric_mean(losses), 3) if losses else 1.0,
        constants,
        coefficients,
        usual(records),
    )


def _estimate(one: Observation, constants: Mapping[str, float], coefficients: Mapping[str, float]) -> float:
    return one.estimate + constants.get(one.kind, 0.0) + sum(coefficients.get(f, 0.0) for f in one.features)


def usual(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """By kind of nest and template: what most of the best records in Triton have of the options that do not follow from
    tiles."""
    best: dict[str, Record] = {}
    for record in records:
        old = best.get(record.workload)
        if record.us is not None and (old is None or record.us < (old.us or 0.0)):
            best[record.workload] = record
    values: dict[str, dict[str, Counter[Any]]] = {}
    counts: Counter[str] = Counter()
    for record in best.values():
        choice = Choice.of(record.template, record.options, "the record")
        op = operator_of(record)
        if op is None or choice.template is None or choice.code.code == "gluon":
            continue
        own = kind(Nests.found_in(op))
        key = f"{own} {choice.template}"
        counts[key] += 1
        by_tiles = {"block_q", "block_kv", "block_out", "splits", *(("num_warps",) if own == "rows" else ())}
        for name, value in choice.options.items():
            if name not in by_tiles and not isinstance(value, tuple):
                values.setdefault(key, {}).setdefault(name, Counter())[value] += 1
    made: dict[str, dict[str, Any]] = {}
    for key, options in values.items():
        common = {name: seen.most_common(1)[0] for name, seen in options.items()}
        made[key] = {name: value for name, (value, times) in sorted(common.items()) if 2 * times > counts[key]}
    return made


def main() -> None:
    """Fits the calibration of compute capability 9.0 to the shipped records."""
    records = tuple(r for r in shipped() if r.capability == "9.0")
    write_text(FOLDER / "sm_90.json", to_text(fit(records, DEFAULT)))


if __name__ == "__main__":
    main()
