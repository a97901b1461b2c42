"""Reverse mode on the stages of a definition: a stage per cotangent, from the results back to the inputs.

The cotangent `d_x` of a tensor x is the derivative of sum(d_out * out) with respect to x.  Each stage that reads x adds
its part to d_x, by the chain rule: its own cotangent times the derivative of its term, summed over the iterations that
read an element (`transpose`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Buffer, Cast, Const, Expr, Load, Op, Var
from neptune_lab.loop_ir.walks import loads, substitute, variables
from neptune_lab.operators.reverse_mode.derivatives import Arithmetic, partial, rules_of
from neptune_lab.operators.reverse_mode.masks import is_of_products, is_weighted, of_visible
from neptune_lab.operators.reverse_mode.origins import Origin, Use, uses_of
from neptune_lab.operators.reverse_mode.part import Part, apart, placed
from neptune_lab.operators.reverse_mode.reductions import of_extremum, of_first, of_product, terms_of
from neptune_lab.operators.reverse_mode.softmaxes import Softmax, without_casts
from neptune_lab.operators.reverse_mode.stages import Axis, Stage
from neptune_lab.operators.reverse_mode.terms import by_value, is_rounded, variables_of
from neptune_lab.operators.reverse_mode.transpose import is_permutation
from neptune_lab.operators.ties import FIRST_OF_EQUALS, Ties
from neptune_lab.scalar_ops import OPERATIONS
from neptune_lab.strict.dtypes import HALVES


@dataclass(slots=True)
class Reverse:
    """The cotangents of a definition.

    Args:
        stages: the definition's, each after those that it reads.
        inputs: its inputs.
        dtype: of cotangents, "float32" or "float64".
        softmaxes: which of the stages are a softmax (`weights.in_weights` has been applied).
        active: names of the tensors that depend on those with respect to which it is differentiated.
        ties: the definition's, by stage (`operators.ties`).
    """

    stages: Sequence[Stage]
    inputs: Sequence[Buffer]
    dtype: str
    softmaxes: Sequence[Softmax]
    active: frozenset[str]
    ties: Mapping[str, Ties] = field(default_factory=dict)
    made: list[Stage] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)
    _parts: dict[str, list[Part]] = field(default_factory=dict)
    _cotangents: dict[str, Expr] = field(default_factory=dict)
    _given: dict[str, str] = field(default_factory=dict)
    _factors: dict[str, float] = field(default_factory=dict)

    def run(self, seeds: Mapping[str, str], wrt: Sequence[str], every: bool = True) -> dict[str, str]:
        """Makes the stages of all cotangents.

        Args:
            seeds: by result, the name of the input that is its cotangent.
            wrt: inputs of the definition.
            every: whether it is an error if the gradient of one of them is 0 everywhere; otherwise that is left out.

        Returns:
            By input, the name of the stage that is its cotangent, of the input's dtype.
        """
        by_name = {stage.name: stage for stage in self.stages}
        for result, seed in seeds.items():
            self._given[seed] = by_name[result].dtype
            self._parts[result] = [Part(self.arithmetic.wide(Load(seed, by_name[result].place)), ())]
        for stage in reversed(self.stages):
            if stage.name in self._parts:
                self._cotangents[stage.name] = self._cotangent(stage)
                self._differentiate(stage)
        left = self._parts.keys() - self._cotangents.keys() - {b.name for b in self.inputs}
        assert not left, f"the cotangents of {sorted(left)} are not passed on"
        return {name: self._of_input(name) for name in wrt if every or self._parts.get(name)}

    @property
    def arithmetic(self) -> Arithmetic:
        """Arithmetic of cotangents."""
        return Arithmetic(self.dtype, self.dtype_of, self.ties)

    def dtype_of(self, expr: Expr) -> str:
        """The dtype of an expression over the definition's tensors and those that were made."""
        match expr:
            case Const(_, dtype) | Cast(dtype, _):
                return dtype
            case Var():
                return "int32"
            case Load(buffer, _):
                return self._dtypes.get(buffer, self.dtype)
            case Op(name, args):
                if OPERATIONS[name].kind in ("comparison", "logic"):
                    return "bool"
                return self.dtype_of(args[1] if name == "select" else args[0])
        raise AssertionError(f"no dtype of {expr}")

    @property
    def _dtypes(self) -> dict[str, str]:
        every = [*self.stages, *self.inputs, *self.made]
        return {t.name: t.dtype for t in every} | self._given

    # -- one stage -----------------------------------------------------------------------------------------

    def _cotangent(self, stage: Stage) -> Expr:
        """d_stage at the stage's own axes: a read of a stage that is made for it, or what is given."""
        parts = self._parts[stage.name]
        if len(parts) == 1 and not parts[0].free and isinstance(without_casts(parts[0].term), Load):
            self._factors[stage.name] = parts[0].factor
            return parts[0].term
        found, self._factors[stage.name] = self._summed(f"d_{stage.name}", stage.axes, parts, stage.name)
        return found

    def _summed(self, name: str, axes: tuple[Axis, ...], parts: Sequence[Part], of: str) -> tuple[Load, float]:
        """Makes the stages of the cotangent of the tensor `of`: one per part that sums, and their sum. The cotangent
        is its element times the number."""
        a = self.arithmetic
        name = self._fresh(name)
        self.origins[name] = Origin("cotangent", of, uses_of([(part.reader, part.rules) for part in parts]))
        factors = {part.factor for part in parts}
        common = factors.pop() if len(factors) == 1 else 1.0
        total: Expr | None = None
        for part in sorted(parts, key=lambda part: bool(part.free)):
            value: Expr | None = part.term
            if part.free:
                own = name if len(parts) == 1 else self._fresh(f"{name}_of_{part.reader}")
                self.origins.setdefault(own, Origin("part", of, uses_of([(part.reader, part.rules)])))
                self.made.append(Stage(own, axes, part.free, "sum", part.term, self.dtype))
                value = self.made[-1].element
            total = a.add(total, value if part.factor == common else a.mul(value, a.number(part.factor)))
        assert total is not None
        if not (len(parts) == 1 and parts[0].free):
            self.made.append(Stage(name, axes, (), None, total, self.dtype))
        return Load(name, tuple(Var(axis) for axis, _ in axes)), common

    def _fresh(self, name: str) -> str:
        taken = {t.name for t in (*self.stages, *self.inputs, *self.made)} | self._given.keys()
        return unique(name, taken, "_")

    def _differentiate(self, stage: Stage) -> None:
        """Adds the stage's parts to the cotangents of what it reads."""
        softmax = next((s for s in self.softmaxes if s.lse == stage.name), None)
        if softmax is not None:
            self._differentiate_lse(stage, softmax)
            return
        softmax = next((s for s in self.softmaxes if s.weights == stage.name), None)
        if softmax is not None:
            self._differentiate_weights(stage, softmax)
            return
        outer = self._outer(stage)
        weighted = is_weighted(stage, self._parts[stage.name], self.softmaxes) and is_of_products(stage, self.stages)
        for read in dict.fromkeys(loads(stage.term)):
            assert isinstance(read, Load)
            if read.buffer not in self.active:
                continue
            slope = partial(stage.term, read, self.arithmetic.within(stage.name))
            if slope is not None:
                slope = of_visible(stage.term, slope) if weighted else slope
                rules = (*self._of_all(stage), *rules_of(stage.term, read))
                self._add(stage, read, outer, by_value(slope, stage), self._factors[stage.name], rules)

    def _outer(self, stage: Stage) -> Expr:
        """The derivative of sum(d_out * out) with respect to one iteration's term."""
        cotangent = self._cotangents[stage.name]
        if stage.reducer in (None, "sum"):
            return cotangent
        if stage.reducer in ("max", "min"):
            rule = of_first if self._of_first(stage) else of_extremum
            terms = terms_of(stage, self.stages, self.ties.get(stage.name, {}))
            made, outer = rule(stage, cotangent, self.arithmetic, self._fresh, terms)
        elif stage.reducer == "prod":
            made, outer = of_product(stage, cotangent, self.arithmetic, self._fresh)
        else:
            raise DefinitionError(
                f"stage {stage.name} is a reduction {stage.reducer!r}, which has no derivative",
                help="leave out of wrt the inputs that it reads",
            )
        self.made += made
        self.origins |= {x.name: Origin("count", stage.name, (Use(stage.name, self._of_all(stage)),)) for x in made}
        return outer

    def _of_first(self, stage: Stage) -> bool:
        return FIRST_OF_EQUALS in self.ties.get(stage.name, {})

    def _of_all(self, stage: Stage) -> tuple[str, ...]:
        """The rule of a stage's reduction."""
        if self._of_first(stage):
            return (f"first {stage.reducer}",)
        return () if stage.reducer is None else (f"{stage.reducer} of all",)

    # -- a softmax -----------------------------------------------------------------------------------------

    def _differentiate_lse(self, stage: Stage, softmax: Softmax) -> None:
        """d_x[r, c] += d_lse[r] * w[r, c]: the derivative of a log-sum-exp is the softmax."""
        weights = next(s for s in self.stages if s.name == softmax.weights)
        row = next(read.indices for read in loads(weights.term) if read.buffer == softmax.shift)
        cotangent = substitute(self._cotangents[stage.name], stage.at(row))
        inner = self.arithmetic.mul(cotangent, self.arithmetic.wide(weights.element))
        assert inner is not None
        self._through(softmax.scores, weights, inner, self._factors[stage.name], "log-sum-exp")

    def _through(self, expr: Expr, stage: Stage, outer: Expr, factor: float, rule: str) -> None:
        """Adds the parts of an expression over the axes of a stage, if `outer` times `factor` is its cotangent."""
        for read in dict.fromkeys(loads(expr)):
            assert isinstance(read, Load)
            arithmetic = self.arithmetic.within(*self.ties)  # scores, of any of the softmax's stages
            slope = partial(expr, read, arithmetic) if read.buffer in self.active else None
            if slope is not None:
                self._add(stage, read, outer, slope, factor, (rule, *rules_of(expr, read)))

    def _differentiate_weights(self, stage: Stage, softmax: Softmax) -> None:
        """d_x[r, c] += d_w[r, c] * w[r, c], and d_lse[r] -= sum over c of d_w[r, c] * w[r, c]."""
        inner = self.arithmetic.mul(self._cotangents[stage.name], self.arithmetic.wide(stage.element))
        assert inner is not None
        self._through(softmax.scores, stage, inner, self._factors[stage.name], "weights")
        if softmax.lse in self.active:
            row = next(read for read in loads(stage.term) if read.buffer == softmax.shift)
            assert isinstance(row, Load)
            self._differentiate_shift(stage, softmax, row)

    def _differentiate_shift(self, stage: Stage, softmax: Softmax, read: Load) -> None:
        """d_lse[r] -= sum over c of d_w[r, c] * w[r, c], as sums over what the weights were made into.

        If all that reads w, or w rounded, are sums `o[r, d] = sum over c of w[r, c] * y[c, d]`, then d_w[r, c] is the
        sum over d of d_o[r, d] * y[c, d], and with the order of the sums exchanged

            sum over c of d_w[r, c] * w[r, c] = sum over d of d_o[r, d] * o[r, d]

        which needs no loop over c.  It is the delta of FlashAttention (Dao 2023, 3.1.2).
        """
        pairs = self._averages(stage)
        parts = [] if pairs is None else [self._delta(stage, softmax.lse, read, *pair) for pair in pairs]
        if not parts or any(part is None for part in parts):
            slope = self.arithmetic.negated(self.arithmetic.wide(stage.element))
            assert slope is not None
            lse = Load(softmax.lse, read.indices)
            self._add(stage, lse, self._cotangents[stage.name], slope, self._factors[stage.name], ("weights",))
            return
        for part in parts:
            assert part is not None
            self._take(softmax.lse, part)

    def _averages(self, weights: Stage) -> list[tuple[Stage, Load]] | None:
        """The sums that read w or w rounded, with that read; None if something else does, or if it is a result."""
        if any(not part.reader for part in self._parts.get(weights.name, ())):
            return None
        found: list[tuple[Stage, Load]] = []
        for reader in self.stages:
            for read in dict.fromkeys(loads(reader.term)):
                if read.buffer != weights.name or reader.name not in self.active:
                    continue
                if reader.name not in self._parts:
                    continue  # no result depends on it
                if reader.reducer is None and without_casts(reader.term) == read and reader.place == read.indices:
                    inner = self._averages(reader)
                    if inner is None:
                        return None
                    found += inner
                elif reader.reducer == "sum" and self._is_linear(reader, read):
                    found.append((reader, read))  # pyright: ignore[reportArgumentType]
                else:
                    return None
        return found

    def _is_linear(self, reader: Stage, read: Expr) -> bool:
        match reader.term:
            case Op("mul", (a, b)):
                return any(without_casts(x) == read and read not in loads(y) for x, y in ((a, b), (b, a)))
        return False

    def _delta(self, weights: Stage, lse: str, row: Load, reader: Stage, read: Load) -> Part | None:
        """-sum over d of d_o[r, d] * o[r, d], over the axes of the row statistic."""
        if not all(isinstance(index, Var) for index in (*read.indices, *row.indices)):
            return None
        of_weights = weights.at(read.indices)
        in_reader = [substitute(index, of_weights) for index in row.indices]
        own = {index.name: n for n, index in enumerate(in_reader) if isinstance(index, Var)}
        if len(own) != len(in_reader) or not own.keys() <= {axis for axis, _ in reader.axes}:
            return None
        result = self._as_result(reader)
        value, cotangent = self.arithmetic.wide(result.element), self._cotangents[result.name]
        product = self.arithmetic.negated(self.arithmetic.mul(cotangent, value))
        assert product is not None
        part = placed(self._axes_of(lse), in_reader, reader.axes, product, self.arithmetic)
        return replace(part, reader=reader.name, factor=self._factors[result.name], rules=("delta",))

    def _as_result(self, stage: Stage) -> Stage:
        """o, or the result that is o rounded (and 0 in some rows), if there is one, since it is kept anyway."""
        readers = [s for s in self.stages if stage.name in s.reads and s.name in self._parts]
        if len(readers) == 1 and readers[0].reducer is None and readers[0].name in self._cotangents:
            (reader,) = readers
            if reader.place == stage.place and is_rounded(reader.term, stage.element):
                return reader
        return stage

    # -- parts ---------------------------------------------------------------------------------------------

    def _add(self, stage: Stage, read: Load, outer: Expr, slope: Expr, factor: float, rules: tuple[str, ...]) -> None:
        """Adds `outer * slope * factor`, in every iteration of the stage, to the cotangent of what it reads."""
        outer = self._rounded(stage, outer, slope)
        number, slope = apart(slope, self.arithmetic)
        factor *= number
        term = self.arithmetic.mul(outer, slope)
        if term is None:  # (a slope that is the number 0, as of `x * 0`)
            return
        axes = (*stage.axes, *stage.folded)
        extents = dict(axes)
        target = self._axes_of(read.buffer)
        if not is_permutation(read.indices, target, extents):
            rules = (*rules, "transposed read")
            # First the sum over iterations that read the same element; then what element that is.
            # Its axes follow the indices: a nest that is the transpose of the reader's stores its sums as it has them.
            used = list(dict.fromkeys(name for index in read.indices for name in sorted(variables(index))))
            kept = tuple((name, extents[name]) for name in used)
            folded = tuple(axis for axis in axes if axis[0] not in used)
            if all(extent == 1 for _, extent in folded):
                term, axes = substitute(term, {axis: Const(0) for axis, _ in folded}), kept
            else:
                name = self._fresh(f"d_{read.buffer}_of_{stage.name}")
                summed = Stage(name, kept, folded, "sum", term, self.dtype)
                self.made.append(summed)
                self.origins[name] = Origin("part", read.buffer, (Use(stage.name, rules),))
                term, axes = summed.element, kept
        part = placed(target, read.indices, axes, term, self.arithmetic)
        self._take(read.buffer, replace(part, reader=stage.name, factor=factor, rules=rules))

    def _take(self, name: str, part: Part) -> None:
        """Adds a part to the cotangent of a tensor, which is passed on once all are there."""
        assert name not in self._cotangents, f"a part of d_{name} comes after d_{name} was passed on"
        self._parts.setdefault(name, []).append(part)

    def _rounded(self, stage: Stage, outer: Expr, slope: Expr) -> Expr:
        """The cotangent, rounded to 16 bits if it is multiplied by a matrix of 16 bits, as PyTorch's is.

        A matrix unit multiplies two factors of one dtype.  The cotangent is rounded where the other factor is a tensor
        of 16 bits, and each factor has an axis that the other lacks.
        """
        factor = slope.arg if isinstance(slope, Cast) else slope
        if stage.reducer != "sum" or not isinstance(factor, Load) or not isinstance(outer, Load):
            return outer
        dtype = self._dtypes.get(factor.buffer, self.dtype)
        mine, other = variables_of(outer), variables_of(factor)
        if dtype not in HALVES or not mine - other or not other - mine:
            return outer
        extents = dict(stage.axes)
        axes = tuple((i.name, extents[i.name]) for i in outer.indices if isinstance(i, Var) and i.name in extents)
        if len(dict(axes)) < len(outer.indices):
            return outer
        name = f"{outer.buffer}_{dtype}"
        if all(s.name != name for s in self.made):
            self.made.append(Stage(name, axes, (), None, Cast(dtype, outer), dtype))
            self.origins[name] = Origin("rounded", stage.name, (Use(stage.name, ("conversion",)),))
        return Cast(self.dtype, Load(name, outer.indices))

    def _axes_of(self, buffer: str) -> tuple[Axis, ...]:
        """Names for the axes of a tensor: a stage's own, or an input's after the variables of the stages that read
        it."""
        for stage in self.stages:
            if stage.name == buffer:
                return stage.axes
        shape = next(b.shape for b in self.inputs if b.name == buffer)
        names: list[str] = []
        for n in range(len(shape)):
            indices = (r.indices[n] for s in self.stages for r in loads(s.term) if r.buffer == buffer)
            plain = (index.name for index in indices if isinstance(index, Var))
            names.append(unique(next(plain, f"{buffer}_{n}"), names, "_"))
        return tuple(zip(names, shape, strict=True))

    def _of_input(self, name: str) -> str:
        """Makes the cotangent of an input, in the input's dtype."""
        dtype = next(b.dtype for b in self.inputs if b.name == name)
        axes = self._axes_of(name)
        parts = self._parts.get(name)
        if not parts:
            raise DefinitionError(
                f"wrt: no result depends on {name!r} in a way that has a derivative",
                help="leave it out of wrt: its gradient is 0",
            )
        own = self._fresh(f"d_{name}")
        plain = dtype == self.dtype and len({part.factor for part in parts} | {1.0}) == 1
        total, factor = self._summed(own if plain else f"{own}_sum", axes, parts, name)
        if plain:
            return total.buffer
        value = self.arithmetic.mul(total, self.arithmetic.number(factor))
        assert value is not None
        self.made.append(Stage(own, axes, (), None, value if dtype == self.dtype else Cast(dtype, value), dtype))
        self.origins[own] = self.origins[total.buffer]
        return own


__all__ = ["Reverse"]
