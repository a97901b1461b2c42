"""The programs of the two passes of a definition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.gradient_marks import followed, unmarked
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Buffer, Load, Program
from neptune_lab.operators.reverse_mode.cotangents import Reverse
from neptune_lab.operators.reverse_mode.digits import along_digits
from neptune_lab.operators.reverse_mode.keep import Value, kept_by_default, values
from neptune_lab.operators.reverse_mode.marks import without_marks, without_needless_marks
from neptune_lab.operators.reverse_mode.origins import Origin
from neptune_lab.operators.reverse_mode.partial_sums import with_partial_sums
from neptune_lab.operators.reverse_mode.parts import divided
from neptune_lab.operators.reverse_mode.softmaxes import Softmax, find_softmaxes
from neptune_lab.operators.reverse_mode.stabilisers import without_gradient
from neptune_lab.operators.reverse_mode.stages import Stage, in_order, needed, program_of, renamed, stages_of
from neptune_lab.operators.reverse_mode.weights import in_weights
from neptune_lab.operators.ties import Ties
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_texts


@dataclass(frozen=True, slots=True)
class Differentiation:
    """How a backward pass was derived, for readers of it.

    Args:
        whole: the definition that was differentiated, in which every softmax is weights.
        stages: its stages.
        read: those whose values the cotangents need.
        kept: those that the forward pass gives.
        origins: by stage of the backward pass, where it comes from.
        stands_for: by stage of `stages` that the operator's definition lacks, the stage there that computes the like.
    """

    whole: Program
    stages: tuple[Stage, ...]
    read: frozenset[str]
    kept: tuple[str, ...]
    origins: Mapping[str, Origin]
    stands_for: Mapping[str, str]

    @property
    def values(self) -> tuple[Value, ...]:
        """What the forward pass keeps and what it could keep."""
        return values(self.whole, self.stages, self.read, self.kept)


@dataclass(frozen=True, slots=True)
class Passes:
    """The programs of both passes.

    Args:
        forward, backward: the programs.
        kept: outputs of the first that the second reads.
        parts: the stages of each part of the second (`parts.divided`).
        derivation: how the second was derived.
        wrt: inputs that have a gradient.
    """

    forward: Program
    backward: Program
    kept: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]
    derivation: Differentiation
    wrt: tuple[str, ...]


def assemble(
    name: str,
    program: Program,
    wrt: Sequence[str],
    keep: Collection[str] | None,
    every: bool = True,
    grouped: bool | None = None,
    ties: Mapping[str, Ties] = MappingProxyType({}),
) -> Passes:
    """Derives the backward pass.

    Args:
        name: of the operator.
        program: its definition, with marks where a gradient stops.
        wrt: inputs with respect to which it is differentiated.
        keep: stages whose values the forward pass gives; None: chosen.
        grouped: as for `groups.with_groups_summed`.
        every: whether it is an error if one of `wrt` has no gradient; otherwise it is left out.
        ties: the operator's.

    Returns:
        The two programs.

    Raises:
        DefinitionError: as `operators.backward`.
    """
    inputs = tuple(program.buffer(b) for b in program.inputs)
    defined = stages_of(program)
    own_arithmetic = Reverse(defined, inputs, "float32", (), frozenset(), ties).arithmetic
    defined = without_needless_marks(defined, program.outputs, own_arithmetic)
    found = find_softmaxes(defined, program.inputs)
    stages, softmaxes = _in_weights(defined, found, program.outputs)
    seeds = _seeds(program, _active(stages, wrt))
    reverse = Reverse(stages, inputs, _widest(stages, seeds), softmaxes, _active(stages, wrt), ties)
    constant = without_gradient(stages, program.outputs, _in_question(stages, softmaxes), reverse.arithmetic)
    reverse.active = _active(stages, wrt, constant)
    cotangents = reverse.run(seeds, wrt, every)
    if not cotangents:
        raise DefinitionError(
            f"no result of {name} depends on a float input in a way that has a derivative",
            help="call its kernel, which has no gradients to give",
        )
    results = list(cotangents.values())
    program, defined, stages = unmarked(program), without_marks(defined), without_marks(stages)
    both = in_order((*stages, *without_marks(reverse.made)))
    of_forward = {stage.name for stage in stages}
    read = {r for s in needed(both, results) if s.name not in of_forward for r in s.reads} & of_forward
    whole = program_of(program.name, inputs, stages, program.outputs)
    kept = _kept_values(whole, stages, read, keep)
    wanted = needed(both, results, frozenset(kept))
    own = _inputs_of_backward(inputs, stages, kept, seeds, wanted)
    wanted = along_digits(wanted, results)
    wanted, partial = with_partial_sums(program_of(f"{name}_backward", own, wanted, results), wanted, results)
    division = divided(program_of(f"{name}_backward", own, wanted, results), wanted, results, grouped, partial)
    backward = program_of(f"{name}_backward", own, [stage for part in division.parts for stage in part], results)
    parts = tuple(tuple(stage.name for stage in part) for part in division.parts)
    origins = {stage.name: Origin("again", stage.name) for stage in stages} | reverse.origins
    origins |= {part: origins[whole] for part, whole in partial.items()}
    for copy, copied in division.copies.items():
        origins[copy] = replace(origins[copied], copy_of=copied if any(copied in part for part in parts) else "")
    derivation = Differentiation(whole, stages, frozenset(read), kept, origins, _stands_for(found, stages, defined))
    forward = _forward(name, program, inputs, defined, stages, kept)
    return Passes(forward, backward, kept, parts, derivation, tuple(cotangents))


def _in_weights(
    defined: Sequence[Stage], found: Sequence[Softmax], outputs: Sequence[str]
) -> tuple[tuple[Stage, ...], tuple[Softmax, ...]]:
    """The stages with each softmax in terms of its log-sum-exp and weights (`in_weights`), and the softmaxes that the
    outputs depend on."""
    stages = defined
    for softmax in found:
        stages = in_weights(stages, softmax)
    # (the cotangent of a log-sum-exp gets a part from the weights, whether or not they read it)
    stages = in_order(stages, {softmax.weights: softmax.lse for softmax in found})
    used = {stage.name for stage in needed(stages, outputs)}
    softmaxes = tuple(s for s in found if used & {s.lse, s.weights})
    # The cotangent of a log-sum-exp needs the weights, also where no result reads them.
    return needed(stages, (*outputs, *(name for s in softmaxes for name in (s.lse, s.weights)))), softmaxes


def _inputs_of_backward(
    inputs: Sequence[Buffer],
    stages: Sequence[Stage],
    kept: Sequence[str],
    seeds: Mapping[str, str],
    wanted: Sequence[Stage],
) -> list[Buffer]:
    """The inputs of the backward pass: of the forward pass's, the kept values and the cotangents of outputs all but the
    kept ones that no stage reads."""
    by_name = {stage.name: stage for stage in stages}
    given = [Buffer(k, by_name[k].shape, by_name[k].dtype) for k in kept]
    given += [Buffer(seed, by_name[out].shape, by_name[out].dtype) for out, seed in seeds.items()]
    used = set().union(*(stage.reads for stage in wanted))
    return [b for b in (*inputs, *given) if b.name in used or b.name not in kept]


def _stands_for(softmaxes: Sequence[Softmax], stages: Sequence[Stage], defined: Sequence[Stage]) -> dict[str, str]:
    """By stage of the weights' form that the definition lacks, the stage of the definition that computes the like."""
    own = {stage.name: stage for stage in defined}
    found: dict[str, str] = {}
    for softmax in softmaxes:
        found |= {softmax.lse: softmax.total.name, softmax.shift: softmax.total.name}
        found |= {softmax.top: softmax.largest.name} if softmax.top else {}
        found[softmax.weights] = softmax.exponential.name
    for stage in stages:
        if stage.name not in own and stage.name not in found:
            # Weights that are rounded, and averages by weights.
            read = next((found[r] for r in sorted(stage.reads) if r in found), "")
            like = [
                s.name for s in defined if read in s.reads and s.reducer == stage.reducer and s.shape == stage.shape
            ]
            found[stage.name] = like[0] if like else read
    return {name: to for name, to in found.items() if name not in own and to}


def _widest(stages: Sequence[Stage], results: Collection[str]) -> str:
    """The dtype of cotangents: float64 if a result is of that dtype, else float32."""
    return "float64" if any(s.dtype == "float64" for s in stages if s.name in results) else "float32"


def _active(stages: Sequence[Stage], wrt: Sequence[str], constant: Collection[str] = ()) -> frozenset[str]:
    """The float tensors that depend on `wrt`, these included, if some stages count as constant."""
    found = set(wrt)
    for stage in stages:
        if followed(stage.term) & found and "float" in stage.dtype and stage.name not in constant:
            found.add(stage.name)
    return frozenset(found)


def _in_question(stages: Sequence[Stage], softmaxes: Sequence[Softmax]) -> set[str]:
    """The reductions that may be stabilisers: not the maximum of a softmax that nothing else reads, whose cotangent is
    never computed (`Reverse`)."""
    own = {s.largest.name: {s.exponential.name, s.lse, s.top, s.shift} for s in softmaxes}
    read = {name: {stage.name for stage in stages if name in stage.reads} for name in own}
    return {stage.name for stage in stages} - {name for name in own if read[name] <= own[name]}


def _seeds(program: Program, active: frozenset[str]) -> dict[str, str]:
    """By output that depends on `wrt`, the name of its cotangent."""
    taken = {b.name for b in program.buffers}
    seeds: dict[str, str] = {}
    for out in program.outputs:
        if out in active:
            seeds[out] = unique(f"d_{out}", {*taken, *seeds.values()}, "_")
    if not seeds:
        raise DefinitionError(
            f"wrt: no float output of {program.name} depends on {', '.join(active)}", help="choose other inputs"
        )
    return seeds


def _kept_values(
    whole: Program, stages: Sequence[Stage], read: Collection[str], keep: Collection[str] | None
) -> tuple[str, ...]:
    """The stages of the definition whose values the backward pass takes."""
    if keep is None:
        return kept_by_default(whole, stages, read)
    names = [stage.name for stage in stages]
    keep = check_texts("keep", keep, "a list of names of stages", DefinitionError, help=f"some of {', '.join(names)}")
    for name in keep:
        if name not in names:
            raise DefinitionError(f"keep: there is no stage {shown(name)}", help=f"some of {', '.join(names)}")
    return tuple(name for name in names if name in keep)


def _forward(
    name: str,
    program: Program,
    inputs: Sequence[Buffer],
    defined: Sequence[Stage],
    stages: Sequence[Stage],
    kept: Sequence[str],
) -> Program:
    """The definition with the kept values as further outputs.

    Its own stages stay as they are, so that its results are the same; a kept value that is not one of its stages, such
    as a log-sum-exp, is computed from them.
    """
    further = [k for k in kept if k not in program.outputs]
    if not further:
        return program
    own = {stage.name for stage in defined}
    added = [s for s in needed(stages, further) if s.name not in own]
    every = _copied(in_order((*defined, *added)), further)
    return program_of(f"{name}_forward", inputs, every, (*program.outputs, *further))


def _copied(stages: Sequence[Stage], results: Sequence[str]) -> tuple[Stage, ...]:
    """Before => after, for each of `results` that is a reduction in a chain of dependent ones:

        m[i] = max over j of x[i, j]
        s[i] = sum over j of exp(x[i, j] - m[i])
        =>
        m_rolled[i] = max over j of x[i, j]
        s_rolled[i] = sum over j of exp(x[i, j] - m_rolled[i])
        m[i] = m_rolled[i]
        s[i] = s_rolled[i]

    A result has one value, and a reduction that is rolled has one per step: with `m` as a result, each reduction would
    read the whole row in a loop of its own.
    """
    by_name = {stage.name: stage for stage in stages}
    # By stage, the reductions that it depends on.
    above: dict[str, set[str]] = {}
    for stage in stages:
        read = [by_name[r] for r in stage.reads if r in by_name]
        above[stage.name] = {s.name for s in read if s.reducer} | {r for s in read for r in above[s.name]}
    chained = {s.name for s in stages if s.reducer and above[s.name]}
    chained |= {r for name in chained for r in above[name]}
    taken, names = set(by_name), dict[str, str]()
    for name in results:
        if name in chained and by_name[name].reducer:
            names[name] = unique(f"{name}_rolled", taken, "_")
            taken.add(names[name])
    copies = [
        replace(by_name[n], folded=(), reducer=None, term=Load(new, by_name[n].place)) for n, new in names.items()
    ]
    return (*(renamed(stage, names) for stage in stages), *copies)


__all__ = ["Differentiation", "Passes", "assemble"]
