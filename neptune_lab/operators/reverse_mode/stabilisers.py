"""Finds maxima and minima on which no result depends: their repair terms cancel.

    m[r] = max over c of x[r, c]                      dm = δ
    e[r, c] = exp(x[r, c] - m[r])                     de = -δ · e
    s[r] = sum over c of e[r, c]                      ds = -δ · s      (the repair term of s says the same)
    out[r] = m[r] + log(s[r])                         d(out) = δ - δ · s / s = 0

Such a maximum keeps numbers in range, and nothing else.  Its cotangent is 0, so the backward pass needs neither the
loop that sums it up nor the one that counts the terms equal to it.  A change δ of m is followed through the stages by
their derivatives; a sum follows it if the change of every term is the same multiple of the term, which may depend on
the row only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from neptune_lab.errors import DefinitionError, RepairError
from neptune_lab.loop_ir.nodes import Expr, Load, Op
from neptune_lab.loop_ir.walks import loads, substitute, transform, variables
from neptune_lab.loop_to_repair.multiples import is_zero, multiple_of
from neptune_lab.operators.reverse_mode.derivatives import Arithmetic, partial
from neptune_lab.operators.reverse_mode.stages import Stage


def without_gradient(
    stages: Sequence[Stage], outputs: Collection[str], candidates: Collection[str], arithmetic: Arithmetic
) -> frozenset[str]:
    """The maxima and minima on which no result depends.

    Args:
        stages: of a definition, each after those that it reads.
        outputs: names of its results.
        candidates: names of stages that may be asked about.
        arithmetic: of derivatives.

    Returns:
        Their names; a stage for which the algebra finds no proof is left out.
    """
    asked = [s for s in stages if s.reducer in ("max", "min") and s.name in candidates]
    return frozenset(s.name for s in asked if _Change(stages, arithmetic).cancels(s, outputs))


@dataclass(slots=True)
class _Change:
    """What a change δ[row] of one stage changes in the others.

    Args:
        stages: of the definition.
        arithmetic: of derivatives.
        of: by stage, the factor of δ, at the stage's own axes.
        rows: by stage, the index of δ, at the stage's own axes.
    """

    stages: Sequence[Stage]
    arithmetic: Arithmetic
    of: dict[str, Expr] = field(default_factory=dict)
    rows: dict[str, tuple[Expr, ...]] = field(default_factory=dict)

    def cancels(self, start: Stage, outputs: Collection[str]) -> bool:
        """Whether no output changes with `start`."""
        self.of, self.rows = {start.name: self.arithmetic.number(1)}, {start.name: start.place}
        try:
            return all(self._follow(s) for s in self.stages if s.name != start.name) and not self.of.keys() & outputs
        except (DefinitionError, RepairError):
            return False  # an operation without a derivative, or that the algebra cannot read

    def _follow(self, stage: Stage) -> bool:
        """Adds the stage if it changes; False if its change has no form that can be followed."""
        total: Expr | None = None
        row: tuple[Expr, ...] | None = None
        for read in dict.fromkeys(r for r in loads(stage.term) if r.buffer in self.of):
            assert isinstance(read, Load), "a definition has no tags"
            slope = partial(stage.term, read, self.arithmetic.within(stage.name))
            if slope is None:
                continue
            here = self._place(read)
            own = tuple(substitute(index, here) for index in self.rows[read.buffer])
            if row not in (None, own):
                return False
            row = own
            total = self.arithmetic.add(total, self.arithmetic.mul(slope, substitute(self.of[read.buffer], here)))
        if total is None or row is None:
            return True
        if is_zero(self._expanded(total)):
            return True  # also of a sum over the rows, such as a mean loss
        if stage.reducer is None:
            self.of[stage.name], self.rows[stage.name] = total, row
            return True
        folded = {axis for axis, _ in stage.folded}
        if stage.reducer not in ("sum", "max", "min") or any(folded & variables(index) for index in row):
            return False
        multiple = multiple_of(self._expanded(total), self._expanded(stage.term), folded, self.arithmetic.dtype)
        if multiple is None:
            return False
        if multiple != self.arithmetic.number(0):
            self.of[stage.name], self.rows[stage.name] = Op("mul", (multiple, stage.element)), row
        return True

    def _place(self, read: Load) -> dict[str, Expr]:
        made = next(stage for stage in self.stages if stage.name == read.buffer)
        return made.at(read.indices)

    def _expanded(self, expr: Expr) -> Expr:
        """The expression with the terms of maps that change in place of what reads them."""
        maps = {s.name: s for s in self.stages if s.reducer is None and s.name in self.of}

        def rule(node: Expr) -> Expr:
            if isinstance(node, Load) and node.buffer in maps:
                return self._expanded(substitute(maps[node.buffer].term, self._place(node)))
            return node

        return transform(expr, rule)


__all__ = ["without_gradient"]
