"""MCFuser's heuristic search (its Algorithm 1), with an interface to ask for candidates and report their times.

A population is drawn at random, ranked by the model, and its first few are measured; then each next population is drawn
from the one before, with a probability proportional to 1 / estimated time, and one option of each drawn candidate is
changed. The search ends when new times are no improvement.

Two additions to the algorithm: it does not wait for a whole generation, so that many workers stay busy; and estimates
are corrected by the times that were measured for the same values of options (`correction`), since the model uses tiles
and trips, but neither warps, stages nor the kind of loads.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from math import exp, inf, log
from typing import TypeAlias

from neptune_lab.autotune.correction import fit
from neptune_lab.autotune.space import Space
from neptune_lab.choice import Choice
from neptune_lab.errors import TuneError

Estimate: TypeAlias = Callable[[Choice], float]

# Candidates whose estimate is over this many times the best are left for later generations.
FIRST_LOOK = 3.0
# One in this many candidates of a generation is drawn at random.
EXPLORE = 8
# Draws of a generation without a new candidate, after which the space counts as exhausted.
DRY_GENERATIONS = 3


class Search:
    """Algorithm 1 over a space, by `ask` and `tell`.

    The same times in the same order give the same candidates.
    """

    def __init__(
        self,
        space: Space,
        model: Estimate,
        seed: int = 0,
        *,
        population: int = 128,
        batch: int = 8,
        tolerance: float = 0.01,
        patience: int = 40,
    ) -> None:
        """A search that has asked for nothing yet.

        Args:
            space: the candidates.
            model: estimated seconds of a candidate.
            seed: of all random choices.
            population: candidates in a generation (the algorithm's N).
            batch: how many of them are measured (its n).
            tolerance: a time counts as better if it is less by this share (its epsilon).
            patience: the search has converged after this many times without a better one.

        Raises:
            TuneError: a size is not positive, or the space is empty.
        """
        for name, value in (("population", population), ("batch", batch), ("patience", patience)):
            if value < 1:
                raise TuneError(f"{name}={value}: expected a positive number", help="leave it out for the default")
        self.space, self.model = space, model
        self.size, self.batch, self.tolerance, self.patience = population, batch, tolerance, patience
        self.random = random.Random(seed)
        self.estimates: dict[Choice, float] = {}
        self.times: dict[Choice, float | None] = {}
        self.asked: set[Choice] = set()
        self.population = space.sample(self.random, population)
        self.queue: deque[Choice] = deque(self._first_look()[:batch])
        self.exhausted = False
        self._since_better = 0
        self._reference = inf

    @property
    def best(self) -> tuple[Choice, float] | None:
        """The fastest candidate so far and its time, in microseconds; None before any succeeded."""
        timed = [(t, n, c) for n, (c, t) in enumerate(self.times.items()) if t is not None]
        return (min(timed)[2], min(timed)[0]) if timed else None

    @property
    def waiting(self) -> int:
        """How many candidates were asked for and not told yet."""
        return len(self.asked) - len(self.times)

    @property
    def finished(self) -> bool:
        """Whether it has converged, or no candidate is left."""
        return self._since_better >= self.patience or (self.exhausted and not self.queue)

    def ask(self, n: int) -> list[Choice]:
        """At most `n` candidates that were not asked for before, the most promising first; none if it has
        finished."""
        candidates: list[Choice] = []
        while len(candidates) < n and not self.finished:
            if not self.queue:
                self._next_generation()
                continue
            candidate = self.queue.popleft()
            self.asked.add(candidate)
            candidates.append(candidate)
        return candidates

    def tell(self, candidate: Choice, microseconds: float | None) -> None:
        """Reports the time of a candidate that was asked for; None if it failed, and then it is not asked for again.

        Raises:
            TuneError: it was not asked for, was told before, or the time is not positive.
        """
        if candidate not in self.asked or candidate in self.times:
            what = "was told before" if candidate in self.times else "was not asked for"
            raise TuneError(f"{candidate} {what}", help="report each candidate that ask() gave, once")
        if microseconds is not None and not 0 < microseconds < inf:
            raise TuneError(
                f"{candidate}: microseconds={microseconds}; expected a positive number, or None",
                help="report None for a candidate that could not be timed",
            )
        self.times[candidate] = microseconds
        if microseconds is not None and microseconds < self._reference * (1 - self.tolerance):
            self._reference, self._since_better = microseconds, 0
        elif self._reference < inf:
            self._since_better += 1

    # -- generations ----------------------------------------------------------------------------------------

    def _estimate(self, candidate: Choice) -> float:
        if candidate not in self.estimates:
            self.estimates[candidate] = self.model(candidate)
        return self.estimates[candidate]

    def _first_look(self) -> list[Choice]:
        """The first generation in order: by estimate, but candidates that the model cannot distinguish (of one set of
        tiles) alternate with others, so that the first times are of both."""
        groups: dict[float, list[Choice]] = {}
        for candidate in self.population:
            groups.setdefault(self._estimate(candidate), []).append(candidate)
        best = min(groups)
        near = [groups[t] for t in sorted(groups) if t <= FIRST_LOOK * best]
        return [group[n] for n in range(max(map(len, near))) for group in near if n < len(group)]

    def _next_generation(self) -> None:
        """A population drawn from the last one and changed, and its most promising candidates in the queue."""
        for _ in range(DRY_GENERATIONS):
            scores = self._scores([*self.population, *(c for c, t in self.times.items() if t is not None)])
            weights = [exp(-score) for score in scores.values()]
            drawn = self.random.choices(list(scores), weights, k=self.size)
            changed = dict.fromkeys(self.space.mutate(candidate, self.random) for candidate in drawn)
            self.population = [*changed, *(c for c in self.population if c not in self.asked and c not in changed)]
            ranked = self._scores([c for c in self.population if c not in self.asked])
            self.population = sorted(self.population, key=lambda c: ranked.get(c, inf))[: 2 * self.size]
            if ranked:
                self.queue.extend(self._chosen(sorted(ranked, key=ranked.__getitem__)))
                return
            # Every neighbour was asked for: draw new ones.
            self.population = self.space.sample(self.random, self.size)
            if fresh := [c for c in self.population if c not in self.asked]:
                self.queue.extend(sorted(fresh, key=self._estimate)[: self.batch])
                return
        self.exhausted = True

    def _chosen(self, ranked: list[Choice]) -> list[Choice]:
        """The first few of a ranking, with every eighth replaced by one drawn from the rest: a ranking by known times
        alone would stay near the known candidates."""
        drawn = self.batch // EXPLORE
        first, rest = ranked[: self.batch - drawn], ranked[self.batch - drawn :]
        return first + self.random.sample(rest, min(drawn, len(rest)))

    def _scores(self, candidates: list[Choice]) -> dict[Choice, float]:
        """The logarithm of each candidate's corrected estimate, relative to the least; of its time if it has one."""
        settings = self.space.settings
        seen = ((settings(c), log(self._estimate(c)), None if t is None else log(t)) for c, t in self.times.items())
        correct = fit(tuple(seen))
        scores = {}
        for candidate in candidates:
            time = self.times.get(candidate)
            estimate = log(self._estimate(candidate))
            scores[candidate] = log(time) if time is not None else correct(settings(candidate), estimate)
        least = min(scores.values(), default=0.0)
        return {candidate: score - least for candidate, score in scores.items()}
