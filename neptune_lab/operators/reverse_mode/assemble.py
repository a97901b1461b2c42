"""The programs of the two passes of a definition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from neptune_lab.errors import DefinitionError
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Buffer, Program
from neptune_lab.operators.reverse_mode.cotangents import Reverse
from neptune_lab.operators.reverse_mode.keep import kept_by_default
from neptune_lab.operators.reverse_mode.parts import divided
from neptune_lab.operators.reverse_mode.stabilisers import without_gradient
from neptune_lab.operators.reverse_mode.stages import Stage, in_order, needed, program_of, stages_of
from neptune_lab.operators.reverse_mode.weights import Softmax, find_softmaxes, in_weights
from neptune_lab.strict.console import shown


@dataclass(frozen=True, slots=True)
class Passes:
    """The programs of both passes.

    Args:
        forward, backward: the programs.
        kept: outputs of the first that the second reads.
        parts: the stages of each part of the second (`parts.divided`).
    """

    forward: Program
    backward: Program
    kept: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]


def assemble(name: str, program: Program, wrt: Sequence[str], keep: Collection[str] | None) -> Passes:
    """Derives the backward pass.

    Args:
        name: of the operator.
        program: its definition.
        wrt: inputs with respect to which it is differentiated.
        keep: stages whose values the forward pass gives; None: chosen.

    Returns:
        The two programs.

    Raises:
        DefinitionError: as `operators.backward`.
    """
    inputs = tuple(program.buffer(b) for b in program.inputs)
    defined = stages_of(program)
    stages = defined
    softmaxes = find_softmaxes(stages, program.inputs)
    for softmax in softmaxes:
        stages = in_weights(stages, softmax)
    # The cotangent of a log-sum-exp needs the weights, also where no result reads them.
    used = {stage.name for stage in needed(stages, program.outputs)}
    softmaxes = tuple(s for s in softmaxes if used & {s.lse, s.weights})
    stages = needed(stages, (*program.outputs, *(name for s in softmaxes for name in (s.lse, s.weights))))
    seeds = _seeds(program, _active(stages, wrt))
    reverse = Reverse(stages, inputs, _widest(stages, seeds), softmaxes, _active(stages, wrt))
    constant = without_gradient(stages, program.outputs, _in_question(stages, softmaxes), reverse.arithmetic)
    reverse.active = _active(stages, wrt, constant)
    cotangents = reverse.run(seeds, wrt)
    every = in_order((*stages, *reverse.made))
    wanted = needed(every, list(cotangents.values()))
    of_forward = {stage.name for stage in stages}
    read = {r for stage in wanted if stage.name not in of_forward for r in stage.reads} & of_forward
    kept = _kept(program, inputs, stages, read, keep)
    wanted = needed(every, list(cotangents.values()), frozenset(kept))
    by_name = {stage.name: stage for stage in stages}
    given = [Buffer(k, by_name[k].shape, by_name[k].dtype) for k in kept]
    given += [Buffer(seed, by_name[out].shape, by_name[out].dtype) for out, seed in seeds.items()]
    results = [cotangents[x] for x in wrt]
    used = set().union(*(stage.reads for stage in wanted))
    own = [b for b in (*inputs, *given) if b.name in used or b.name not in kept]
    first = program_of(f"{name}_backward", own, wanted, results)
    parts = divided(first, wanted, results)
    backward = program_of(f"{name}_backward", own, [stage for part in parts for stage in part], results)
    names = tuple(tuple(stage.name for stage in part) for part in parts)
    return Passes(_forward(name, program, inputs, defined, stages, kept), backward, kept, names)


def _widest(stages: Sequence[Stage], results: Collection[str]) -> str:
    """The dtype of cotangents: float64 if a result is of that dtype, else float32."""
    return "float64" if any(s.dtype == "float64" for s in stages if s.name in results) else "float32"


def _active(stages: Sequence[Stage], wrt: Sequence[str], constant: Collection[str] = ()) -> frozenset[str]:
    """The float tensors that depend on `wrt`, these included, if some stages count as constant."""
    found = set(wrt)
    for stage in stages:
        if stage.reads & found and "float" in stage.dtype and stage.name not in constant:
            found.add(stage.name)
    return frozenset(found)


def _in_question(stages: Sequence[Stage], softmaxes: Sequence[Softmax]) -> set[str]:
    """The reductions that may be stabilisers: not the maximum of a softmax that nothing else reads, whose cotangent is
    never computed (`Reverse`)."""
    own = {s.largest.name: {s.exponential.name, s.lse} for s in softmaxes}
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


def _kept(
    program: Program,
    inputs: Sequence[Buffer],
    stages: Sequence[Stage],
    read: Collection[str],
    keep: Collection[str] | None,
) -> tuple[str, ...]:
    """The stages of the definition whose values the backward pass takes."""
    if keep is None:
        whole = program_of(program.name, inputs, stages, program.outputs)
        return kept_by_default(whole, stages, read)
    names = [stage.name for stage in stages]
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
    every = in_order((*defined, *added))
    return program_of(f"{name}_forward", inputs, every, (*program.outputs, *further))


__all__ = ["Passes", "assemble"]
