"""Says what files of `backward_speed.py`, `bias_speed.py`, `row_backward_speed.py` and `training_curve.py` show.

    python scripts/training_targets.py FILE.json …

Each of the files is what --out of one of those scripts wrote; several of a script are read as one run. One line per
target of training: the figure, the target, and whether it is met. A ratio is the other's time over ours, so that above
1 ours is faster, and the fastest mode of attention is the faster one of "ours" and "any_order". A target of speed or of
memory is met if it is at every size; the geometric mean is given beside the size that is farthest from it.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeAlias

# A contestant's row by its name, of each size.
Sizes: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Any]]]
OURS = ("ours", "any_order")


@dataclass(frozen=True)
class Results:
    """What the files hold: attention and learned biases by size; functions of rows by function and size; curves."""

    attention: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    biases: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    rows: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    curves: list[Mapping[str, Any]] = field(default_factory=list)


def read(paths: Sequence[Path]) -> Results:
    """What the files hold; a later file's row replaces an earlier one's."""
    found = Results()
    for path in paths:
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            found.curves.extend(content["curves"])
            continue
        for row in content:
            if "what" in row:
                found.rows[row["what"]][row["size"]][row["name"]] = row
            else:
                (found.biases if "case" in row else found.attention)[row.get("case") or row["size"]][row["name"]] = row
    return found


def least(ratios: Mapping[str, float | None], target: float) -> str:
    """The line of a speed: what is least, at which size, and the mean of all."""
    every = {size: ratio for size, ratio in ratios.items() if ratio}
    if not every:
        return f"at least {target:g}: not measured"
    size = min(every, key=lambda s: every[s])
    below = sum(ratio < target for ratio in every.values())
    verdict = "met" if not below else f"NOT MET at {below} of {len(every)}"
    mean = geometric_mean(every.values())
    return f"at least {target:g}: {every[size]:.3f} at {size}, geometric mean {mean:.3f} of {len(every)}: {verdict}"


def most(ratios: Mapping[str, float | None], target: float) -> str:
    """The line of a figure that should be small."""
    every = {size: ratio for size, ratio in ratios.items() if ratio is not None}
    if not every:
        return f"at most {target:g}: not measured"
    size = max(every, key=lambda s: every[s])
    above = sum(ratio > target for ratio in every.values())
    verdict = "met" if not above else f"NOT MET at {above} of {len(every)}"
    return f"at most {target:g}: {every[size]:.3g} at {size}, of {len(every)}: {verdict}"


def ratio(of: Mapping[str, Mapping[str, Any]], peer: str, names: Sequence[str], what: str) -> float | None:
    """The peer's figure over the least of ours; None if either was not measured."""
    own = [of[name][what] for name in names if name in of and of[name].get(what)]
    theirs = of[peer].get(what) if peer in of else None
    return theirs / min(own) if own and theirs else None


def of_attention(sizes: Sizes) -> Iterator[tuple[str, str]]:
    """The lines of attention's backward pass: a name, and what was found."""
    for peer, name, target in (("cudnn", "cuDNN", 0.9), ("cudnn", "cuDNN (the aim)", 0.95), ("flex", "flex", 1.2)):
        found = {size: ratio(of, peer, OURS, "us") for size, of in sizes.items()}
        yield f"backward, fastest mode, of {name}", least(found, target)
    found = {size: ratio(of, "cudnn", OURS[:1], "us") for size, of in sizes.items()}
    yield "backward, deterministic, of cuDNN", least(found, 0.8)
    aimed = {s: of for s, of in sizes.items() if s.endswith("x8192x128")}
    speeds = {s: max((of[n]["tflops"] or 0.0 for n in OURS if n in of), default=None) for s, of in aimed.items()}
    yield "backward, full, 8192 x 128, TFLOP/s", least(speeds, 500)
    for mode in OURS:
        for what, passes in (("mib", "the backward pass"), ("step_mib", "both passes")):
            found = {size: ratio(of, mode, ["cudnn"], what) for size, of in sizes.items()}
            yield f"peak memory of {passes}, {mode}, of cuDNN", most(found, 1.05)


def of_curves(curves: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The lines of the training curves: the largest difference from eager's losses in the same dtype."""
    eager = {(c["dtype"], c["seed"]): c["losses"] for c in curves if c["kind"] == "eager"}
    others = [c for c in curves if c["kind"] != "eager"]
    if not others:
        yield "losses from eager's", most({}, 1e-3)
    for curve in others:
        name = f"losses from eager's, {curve['dtype']} {curve['kind']} seed {curve['seed']}"
        known = eager.get((curve["dtype"], curve["seed"]), [])
        apart = {f"step {n}": abs(a - b) for n, (a, b) in enumerate(zip(curve["losses"], known, strict=False))}
        yield name, most(apart, 1e-3)


def lines(found: Results) -> Iterator[tuple[str, str]]:
    """A name and what was found, of each target; first what ours lacks, which no ratio shows."""
    for sizes in (found.attention, found.biases, *found.rows.values()):
        for size, of in sizes.items():
            for row in (of[name] for name in OURS if name in of):
                if not row.get("us", row.get("backward")):
                    yield f"{size} {row['name']}", f"NOT TIMED: error {row['error']:.1e} {row.get('note', '')}"
    yield from of_attention(found.attention)
    for what in ("backward", "step"):
        biases = {case: ratio(of, "FlexAttention", OURS, what) for case, of in found.biases.items()}
        yield f"learned biases, {what}, of flex", least(biases, 1.5)
    for what in found.rows or ("softmax",):
        sizes = found.rows.get(what, {})
        for peer, target in (("compile", 1.1), ("liger", 1.0), ("quack", 1.0)):
            # Liger's cross entropy computes its gradient in the forward pass.
            part = "step" if peer == "liger" and "cross_entropy" in what else "backward"
            ratios = {size: ratio(of, peer, OURS, part) for size, of in sizes.items()}
            yield f"{what}, {part}, of {peer}", least(ratios, target)
    yield from of_curves(found.curves)


def main() -> None:
    """Prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    every = list(lines(read(parser.parse_args().files)))
    for name, text in every:
        print(f"{name:<{max(len(n) for n, _ in every)}}  {text}")


if __name__ == "__main__":
    main()
