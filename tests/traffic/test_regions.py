"""Elements that regions touch, against a count one by one."""

from __future__ import annotations

import itertools
import random

import pytest

from neptune_lab.traffic import regions
from neptune_lab.traffic.regions import Formula, Region, Span, TooMany, constant, distinct, touched


def linear(text: str) -> Formula:
    """A formula from Python text over the loops a, b, c and d."""
    names = frozenset(n for n in "abcd" if n in text.replace("and", "").replace("abs", ""))
    return Formula(names, lambda v: eval(text, {"__builtins__": {}}, dict(v)))


def one_by_one(region: Region) -> list[tuple[int, ...]]:
    """Every element, as often as the region touches it, the tensor's bounds aside."""
    out: list[tuple[int, ...]] = []

    def visit(n: int, values: dict[str, int]) -> None:
        if n < len(region.loops):
            loop = region.loops[n]
            for value in range(int(loop.start.at(values)), int(loop.stop.at(values))):
                visit(n + 1, {**values, loop.name: value})
        elif all(c.at(values) for c in region.conditions):
            starts = [int(start.at(values)) for start, _ in region.dims]
            ranges = [range(s, s + extent) for s, (_, extent) in zip(starts, region.dims, strict=True)]
            out.extend(itertools.product(*ranges))

    visit(0, {})
    return out


def inside(points, shape):
    return [p for p in points if all(0 <= x < size for x, size in zip(p, shape, strict=True))]


LOOPS = [
    (("a", "0", "3"), ("b", "0", "4")),
    (("a", "0", "4"), ("b", "0", "a")),  # causal
    (("a", "0", "4"), ("b", "a", "a + 2"), ("c", "0", "2")),
    (("a", "0", "3"), ("b", "2 - a", "3"), ("c", "b", "4"), ("d", "0", "2")),
    (("a", "0", "2"), ("b", "3", "1")),  # never runs
]
INDICES = ["a", "b", "a * 4", "b * 3 - 2", "a * 2 + b", "a // 2", "b % 2", "c * 2", "3", "c + d", "d"]
CONDITIONS = ["a + b < 4", "b > 0", "a * 4 + c < 9"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(60))
def test_counts_agree_with_a_count_one_by_one(seed):
    """Boxes of one to three accesses: loops that depend on each other, clipped at both ends, with conditions."""
    choose = random.Random(seed)
    shape = tuple(choose.choice([1, 3, 7, 10]) for _ in range(choose.randint(1, 3)))
    accesses = []
    for _ in range(choose.randint(1, 3)):
        loops = choose.choice(LOOPS)
        known = {name for name, _, _ in loops}

        def over(texts: list[str], known=known) -> list[str]:
            return [t for t in texts if linear(t).names <= known]

        dims = tuple((linear(choose.choice(over(INDICES))), choose.choice([1, 2, 4])) for _ in shape)
        conditions = tuple(map(linear, choose.sample(over(CONDITIONS), choose.randint(0, 1))))
        spans = tuple(Span(n, linear(start), linear(stop)) for n, start, stop in loops)
        accesses.append(Region(spans, dims, conditions))
    found = [inside(one_by_one(region), shape) for region in accesses]
    assert [touched(region, shape) for region in accesses] == [len(f) for f in found]
    assert distinct(accesses, shape) == len(set().union(*found))


def test_without_dimensions_the_runs_are_counted():
    spans = (Span("a", constant(0), constant(4)), Span("b", constant(0), linear("a")))
    assert touched(Region(spans, ()), ()) == 6
    assert touched(Region((), ()), ()) == 1


def test_too_many_points_are_refused_instead_of_counted_wrongly(monkeypatch):
    monkeypatch.setattr(regions, "LIMIT", 10)
    spans = (Span("a", constant(0), constant(4)), Span("b", constant(0), constant(4)))
    together = Region(spans, ((linear("a + b"), 1),))
    apart = Region(spans, ((linear("a"), 1), (linear("b"), 1)))
    with pytest.raises(TooMany):
        touched(together, (9,))
    assert touched(apart, (4, 4)) == 16
