"""The proof of a partition as text, for the record."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile.nodes import For, Kernel
from neptune_lab.htile.printer import index_text
from neptune_lab.htile_passes.partition_masked_loops.formula import Atom, Unknown, atoms, formula_of
from neptune_lab.htile_passes.partition_masked_loops.masks import Mask, Masks
from neptune_lab.htile_passes.partition_masked_loops.noop_iterations import NoOpProof, text
from neptune_lab.htile_passes.partition_masked_loops.ranges import IterationRange, Span, everywhere, somewhere


@dataclass(frozen=True, slots=True)
class ProofAttempt:
    """An attempt to prove that iterations outside `visited`, in which `masks` are false, are no-ops."""

    masks: tuple[Mask, ...]
    visited: IterationRange
    proof: NoOpProof


def explain(
    kernel: Kernel, loop: For, loops: tuple[For, ...], masks: Masks, span: Span, attempts: tuple[ProofAttempt, ...]
) -> list[str]:
    """The proof, line by line: the parts, each mask with its atoms, what is skipped and why, and what is unknown.

    Args:
        loop: the loop before the partition.
        loops: the parts.
        span: the loop, as `masks` were analysed over it.
        attempts: a proof for each set of masks that could skip iterations.
    """
    out = [f"{kernel.name}: the loop over {loop.var} in {_bounds(loop)} becomes {'; '.join(map(_part_text, loops))}"]
    for mask in masks.masks:
        out += _mask(mask, span)
    listed = {str(atom) for mask in masks.masks for atom in atoms(formula_of(mask.condition))}
    ends = [c for c in masks.conjuncts if c.condition is None and str(c.formula) not in listed]
    out += [f"the end of a tensor, {end.formula}: {_where(end.true_on, span.all, span)}" for end in ends]
    for attempt in attempts:
        out += _attempt(attempt, span)
    return out


def _bounds(loop: For) -> str:
    return f"{index_text(loop.start)} .. {index_text(loop.stop)}"


def _part_text(loop: For) -> str:
    return f"{loop.part or 'the same loop without masks'} {_bounds(loop)}"


def _mask(mask: Mask, span: Span) -> list[str]:
    formula = formula_of(mask.condition)
    out = [f"{mask.owner} is masked by {text(mask.condition)}"]
    for atom in dict.fromkeys(atoms(formula)):
        match atom:
            case Unknown():
                out.append(f"  {atom}: unknown, it is not affine in positions")
            case Atom():
                out.append(f"  {atom}: {_where(everywhere(atom, span), somewhere(atom, span), span)}")
    return out


def _where(true: IterationRange, visited: IterationRange, span: Span) -> str:
    true_text = "on no whole tile" if span.is_empty(true) else f"on whole tiles for {span.var} in {true}"
    if span.covers(visited, span.all):
        return f"true {true_text}"
    if span.is_empty(visited):
        return "false on every tile"
    return f"true {true_text}, false on whole tiles outside {span.var} in {visited}"


def _attempt(attempt: ProofAttempt, span: Span) -> list[str]:
    mask = f"the mask of {', '.join(dict.fromkeys(mask.owner for mask in attempt.masks))}"
    if attempt.proof.proven:
        visited = f"only {span.var} in {attempt.visited} is visited"
        claim = f"{visited}: where {mask} is false, an iteration changes nothing"
    else:
        claim = f"all of {span.var} in {span.all} is visited: with {mask} false everywhere"
    return [claim, *attempt.proof.notes()]
