"""Constants of a row in a running extremum: max(max(r, s), s) = max(r, s), so the fold that makes r may take s with it.

A stage such as max(max_k x[i, k], s[i]) stands between a reduction and its consumer.  In exp(x[i, k] - max(r, s[i])),
x and s meet r in different ways, so the term does not separate.  If r itself is the maximum of all x and of s, the
stage changes nothing, and the term is exp(x[i, k] - r), as in FlashAttention: the running maximum begins with the sink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import TypeVar

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Expr, Load, Op, Program, Var
from neptune_lab.loop_ir.reduction import OPERATORS, reducer_of
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import loads, map_store, reads_buffer, substitute, transform, variables
from neptune_lab.loop_schedule.identity_at_point import operands_of
from neptune_lab.loop_schedule.outcome import Phase
from neptune_lab.loop_schedule.repairing import RepairRefused

# f(f(r, s), s) = f(r, s), and f gives NaN if an operand is NaN, as the fold does.
_IDEMPOTENT = ("max", "min")


Solved = TypeVar("Solved")


def solve_with_constants(
    program: Program,
    buffers: tuple[str, ...],
    phases: list[Phase],
    solve: Callable[[Program, tuple[Phase, ...]], tuple[Solved, Phase]],
) -> tuple[Program, list[Phase], Solved]:
    """The repair of a consumer; if it is refused, that of the program whose extrema take in the constants of a row.

    Args:
        program: after naive fusion.
        buffers: those of the incomplete reductions that the consumer reads.
        phases: those so far; the last one is naive fusion.
        solve: derives the repair for a program and its phases.

    Returns:
        The program that the repair is for, its phases with that of the repair, and the repair.

    Raises:
        RepairRefused: no repair is found; if the program changed, it is the refusal for the changed one.
    """
    try:
        solved, phase = solve(program, tuple(phases))
    except RepairRefused:
        taken = take_in_constants(program, buffers)
        if taken is None:
            raise
        program, note = taken
        phases = [*phases[:-1], replace(phases[-1], program=program, note=f"{phases[-1].note} {note}")]
        solved, phase = solve(program, tuple(phases))
    return program, [*phases, phase], solved


def take_in_constants(program: Program, buffers: tuple[str, ...]) -> tuple[Program, str] | None:
    """The program in which each extremum takes in the constant with which all its readers combine it.

    before ⇒ after, for f = max or min:
        R[i] = R[i] (f) e   ⇒   R[i] = R[i] (f) (e (f) s[i])
        … R[i] (f) s[i] …   ⇒   … R[i] …

    Formal statement: R is no output and is not repaired (h would move s with it); every read of R, or of a block that
    folds R further, by another stage is an operand of f, and the other operand is the same s, with no other variables
    than those that index R; and what s reads is an input, or complete before the nest that computes R.

    Args:
        program: after naive fusion.
        buffers: those of the incomplete reductions that a consumer reads.

    Returns:
        The program and a sentence on what changed; None if nothing can be taken in.
    """
    notes = []
    for buffer in buffers:
        block = writer_of(program, buffer)
        constant = None if block is None else _constant_of(program, block)
        if block is None or constant is None:
            continue
        program = _taken_in(program, block, constant)
        op = OPERATORS[str(reducer_of(block))]
        notes.append(
            f"{buffer} takes {expression(constant)} with it, since "
            f"{op}({op}(r, s), s) = {op}(r, s): its readers need no {op} of their own."
        )
    return (program, " ".join(notes)) if notes else None


def _constant_of(program: Program, block: Block) -> Expr | None:
    """s, over the variables of the block that folds R; None if R cannot take it in."""
    stage = _stage(program, block)
    written = {b.writes: b for b in stage}
    if (
        reducer_of(block) not in _IDEMPOTENT
        or not written.keys().isdisjoint(program.outputs)
        or any(b.repair is not None or b.role in (Role.CURRENT, Role.RETIRE, Role.INITIAL) for b in stage)
    ):
        return None
    op = OPERATORS[str(reducer_of(block))]
    inner = _below(block, written)
    found: dict[Expr, None] = {}
    for reader in tree.blocks(program):
        if reader.writes in written:
            continue
        combined = _combined(reader.body.value, op, written)
        every = [read for e in (*reader.body.indices, reader.body.value) for read in loads(e)]
        if len(combined) != sum(read.buffer in written for read in every):
            return None  # some read is not combined with a constant
        for read, constant in combined:
            source = written[read.buffer]
            if source.name in inner or (own := _over(constant, read, source, program)) is None:
                return None
            found[own] = None
    if len(found) != 1:
        return None
    (constant,) = found
    known = {it.name for it in block.iters if it.kind == "spatial"}
    return constant if variables(constant) <= known and _complete(program, constant, block) else None


def _stage(program: Program, block: Block) -> tuple[Block, ...]:
    """The blocks that compute the same reduction of the definition."""
    return tuple(b for b in tree.blocks(program) if b.origin == block.origin and reducer_of(b) is not None)


def _below(block: Block, written: dict[str, Block]) -> set[str]:
    """The names of the blocks that fold what `block` folds further."""
    names: set[str] = set()
    waiting = [block]
    while waiting:
        for read in loads(waiting.pop().body.value):
            source = written.get(read.buffer)
            if source is not None and source.name != block.name and source.name not in names:
                names.add(source.name)
                waiting.append(source)
    return names


def _combined(value: Expr, op: str, written: dict[str, Block]) -> list[tuple[Load, Expr]]:
    """Each read of R in `value` that is an operand of f, with the other operands."""
    match value:
        case Op(name, args) if name == op:
            operands = operands_of(value, op)
            reads = [e for e in operands if isinstance(e, Load) and e.buffer in written]
            if len(reads) == 1 and len(operands) > 1:
                others = [e for e in operands if e is not reads[0]]
                return [(reads[0], reduce(lambda a, b: Op(op, (a, b)), others))]
            return [pair for e in operands for pair in _combined(e, op, written)]
        case Op(_, args):
            return [pair for e in args for pair in _combined(e, op, written)]
        case Load(_, indices):
            return [pair for e in indices for pair in _combined(e, op, written)]
    arg = getattr(value, "arg", None)
    return [] if arg is None else _combined(arg, op, written)


def _over(constant: Expr, read: Load, source: Block, program: Program) -> Expr | None:
    """s over the variables of the block that writes what `read` reads; None if s has other variables."""
    tags = 1 if program.buffer(read.buffer).tagged else 0
    places = list(zip(read.indices, source.body.indices, strict=True))[tags:]
    env = {i.name: own for i, own in places if isinstance(i, Var) and isinstance(own, Var)}
    return substitute(constant, env) if variables(constant) <= env.keys() else None


def _complete(program: Program, constant: Expr, block: Block) -> bool:
    """Whether all that s reads is an input, or written by an earlier nest than that of `block`."""
    position = tree.find_block(program, block.name)[0][0]
    writers = [b for read in loads(constant) for b in tree.blocks(program) if b.writes == read.buffer]
    return all(tree.find_block(program, b.name)[0][0] < position for b in writers)


def _taken_in(program: Program, block: Block, constant: Expr) -> Program:
    written = {b.writes: b for b in _stage(program, block)}
    op = OPERATORS[str(reducer_of(block))]
    assert isinstance(block.body.value, Op)
    own, term = block.body.value.args
    if reads_buffer(term, block.writes):
        own, term = term, own

    def rule(e: Expr) -> Expr:
        match e:
            case Op(name, _) if name == op and (combined := _combined(e, op, written)):
                return combined[0][0]
        return e

    def change(b: Block) -> Block:
        if b.name == block.name:
            return replace(b, body=replace(b.body, value=Op(op, (own, Op(op, (term, constant))))))
        return b if b.writes in written else replace(b, body=map_store(b.body, lambda e: transform(e, rule)))

    return tree.map_blocks(program, change)


__all__ = ["solve_with_constants", "take_in_constants"]
