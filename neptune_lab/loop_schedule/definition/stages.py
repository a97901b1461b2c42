"""Edits of a definition's stages: each stage is one block in its own loops.

A name of the definition always keeps its values: what a normalisation computes in another way gets a new name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import readers_of, writer_of
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Block, Buffer, Cast, Expr, Iter, Load, Loop, Op, Program, Stmt, Store, Var
from neptune_lab.loop_ir.reduction import match_reduction, reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import substitute, transform, variables
from neptune_lab.strict.dtypes import HALVES

# Reads that are replaced in one expression.
MOST_INLINED = 32


@dataclass(frozen=True, slots=True)
class Contraction:
    """A stage that sums up products: `out[spatial] += left * right`.

    Args:
        block: the stage.
        factors: of its term.
        folded: names of the iterations that it sums along.
        count: how many terms one sum has.
    """

    block: Block
    factors: tuple[Expr, Expr]
    folded: frozenset[str]
    count: int


def stage(program: Program, name: str) -> Block:
    """A stage of a definition.

    Args:
        program: the definition.
        name: of the stage.

    Returns:
        Its block.

    Raises:
        ScheduleError: there is no such stage, or it shares its loops with another block.
    """
    path, block, _ = tree.find_block(program, name)
    if len(tree.blocks_under(program.body[path[0]])) != 1 or block.role is not Role.DEFINED or block.predicates:
        raise ScheduleError(
            f"block {name!r} is no stage of the definition any more: other steps changed its loops",
            node=name,
            help="a normalisation rewrites the definition; undo the steps before it",
        )
    return block


def contraction(program: Program, name: str) -> Contraction:
    """A stage that sums up products of floats.

    Args:
        program: the definition.
        name: of the stage.

    Returns:
        The stage, with the factors of its term.

    Raises:
        ScheduleError: there is no such stage, or it sums up something else.
    """
    block = stage(program, name)
    if reducer_of(block) == "sum" and block.is_reduction and program.buffer(block.writes).dtype == "float32":
        term = match_reduction(block).term
        if isinstance(term, Op) and term.name == "mul":
            reduced = [it for it in block.iters if it.kind == "reduce"]
            count = 1
            for it in reduced:
                count *= it.extent
            return Contraction(block, (term.args[0], term.args[1]), frozenset(it.name for it in reduced), count)
    raise ScheduleError(
        f"stage {name!r} is no sum of products in float32",
        node=name,
        help="name a matrix product, or another sum whose term is a product",
    )


def computed(program: Program, read: Expr) -> Expr | None:
    """The value that an elementwise stage stores at an element.

    Args:
        program: the definition.
        read: the element.

    Returns:
        The value over the variables of `read`; None if it reads an input or a reduction.
    """
    block = writer_of(program, read.buffer) if isinstance(read, Load) else None
    if not isinstance(read, Load) or block is None or reducer_of(block) is not None or block.is_reduction:
        return None
    env: dict[str, Expr] = {}
    for own, index in zip(block.body.indices, read.indices, strict=True):
        if isinstance(own, Var):
            env[own.name] = index
    return substitute(block.body.value, env) if variables(block.body.value) <= env.keys() else None


def computed_float(program: Program, read: Expr) -> Expr | None:
    """As `computed`, of a stage in float32 or 16 bits; None for others, whose products and quotients are of integers or
    of more digits.

    Args:
        program: the definition.
        read: the element.

    Returns:
        The value, or None.
    """
    floats = ("float32", *HALVES)
    return computed(program, read) if isinstance(read, Load) and program.buffer(read.buffer).dtype in floats else None


def inlined(program: Program, expr: Expr, value_of: Callable[[Program, Expr], Expr | None] = computed) -> Expr:
    """An expression over inputs and reductions: reads of elementwise stages are replaced by what these compute.

    After `MOST_INLINED` replacements, further reads stay: where each of n stages reads the one before twice, the whole
    expression would have 2^n terms.

    Args:
        program: the definition.
        expr: any expression.
        value_of: the value of a read; None if it stays.

    Returns:
        The expression, of the same value.
    """
    left = MOST_INLINED

    def rule(e: Expr) -> Expr:
        nonlocal left
        value = value_of(program, e) if left else None
        if value is None:
            return e
        left -= 1
        return transform(value, rule)

    return transform(expr, rule)


def nest(block: Block) -> Stmt:
    """A stage in its loops.

    Args:
        block: a block whose iterations are bound to loops of their names.

    Returns:
        The loops, in the order of the iterations.
    """
    stmt: Stmt = block
    for it in reversed(block.iters):
        stmt = Loop(it.name, it.extent, (stmt,))
    return stmt


def new_name(program: Program, name: str, others: Collection[str] = ()) -> str:
    """A name that no stage and no buffer has.

    Args:
        program: the definition.
        name: the name to begin with.
        others: further names that are taken.

    Returns:
        `name`, or `name` with a number.
    """
    taken = {b.name for b in tree.blocks(program)} | {b.name for b in program.buffers} | set(others)
    return unique(name, taken, "_")


def elementwise(name: str, iters: Iterable[Iter], value: Expr) -> Block:
    """A new elementwise stage.

    Args:
        name: of the stage and its buffer.
        iters: its iterations, one per dimension.
        value: over these.

    Returns:
        The block.
    """
    own = tuple(Iter(it.name, it.extent, "spatial", Var(it.name)) for it in iters)
    return Block(name, own, Store(name, tuple(Var(it.name) for it in own), value), origin=name)


def renamed(block: Block, name: str) -> Block:
    """A stage under another name, with a buffer of that name.

    Args:
        block: the stage.
        name: the new name.

    Returns:
        The block.
    """

    def store(s: Store) -> Store:
        return Store(name, s.indices, _redirected(s.value, block.writes, name))

    init = None if block.init is None else Store(name, block.init.indices, block.init.value)
    return replace(block, name=name, body=store(block.body), init=init, origin=name)


def _redirected(value: Expr, old: str, new: str) -> Expr:
    return transform(value, lambda e: Load(new, e.indices) if isinstance(e, Load) and e.buffer == old else e)


def replaced(program: Program, name: str, blocks: Iterable[Block], buffers: Iterable[Buffer]) -> Program:
    """The program with new stages in the place of one, without the stages that nothing needs then.

    Args:
        program: the definition.
        name: the stage to replace; one of `blocks` writes its buffer.
        blocks: the new stages, in order.
        buffers: those of the new stages that have new names.

    Returns:
        The program.
    """
    path, _, _ = tree.find_block(program, name)
    body = (*program.body[: path[0]], *(nest(b) for b in blocks), *program.body[path[0] + 1 :])
    return without_dead(replace(program, buffers=(*program.buffers, *buffers), body=body))


def without_dead(program: Program) -> Program:
    """The program without the stages that no output needs; the same object if there are none.

    Args:
        program: the definition.

    Returns:
        The program.
    """
    for block in reversed(tree.blocks(program)):
        if block.writes not in program.outputs and not readers_of(program, block.writes):
            body = tuple(s for s in program.body if block not in tree.blocks_under(s))
            program = tree.drop_unused_buffers(replace(program, body=body))
    return program


def without_casts(expr: Expr) -> Expr:
    """An expression without the conversions to float32 and float64 around it.

    Args:
        expr: any expression.

    Returns:
        What is converted.
    """
    while isinstance(expr, Cast) and expr.dtype in ("float32", "float64"):
        expr = expr.arg
    return expr
