"""materialize_tags: a reduction keeps its value after every tag, in a scan buffer (paper, Algorithm 1, line 9)."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Iter, Load, Op, Previous, Program, Store, Var, with_buffers
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import map_store, reads, transform, variables, walk
from neptune_lab.loop_schedule.affine import affine_terms
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, plain


def is_tagged(program: Program, buffer: str) -> bool:
    """Whether `buffer` is a scan buffer."""
    return program.buffer(buffer).tagged


def tag_of(block: Block, loop: str) -> Expr | None:
    """The tag at which `block` runs, over its own iteration variables; None if it does not run along `loop`."""
    for it in block.iters:
        if it.binding == Var(loop):
            return Var(it.name)
    for it in block.iters:
        split = affine_terms(it.binding, loop)
        if split is not None and split[0] > 0:
            step, rest = split
            tag = Op("floordiv", (Var(it.name), Const(step)))
            # An outer loop along the same dimension, such as the loop over splits, takes larger steps.
            outer = [
                a[0] for var in sorted(variables(rest)) if (a := affine_terms(rest, var)) is not None and a[0] > step
            ]
            return Op("floormod", (tag, Const(min(outer) // step))) if outer else tag
    return None


def own_tag(block: Block, loop: str) -> Expr:
    """The tag of a block that runs along `loop`."""
    tag = tag_of(block, loop)
    assert tag is not None
    return tag


def run_along(program: Program, name: str, loop: str) -> Program:
    """Gives block `name` under `loop` an iteration variable along it, its tag, if it has none.

    So a map of a reduction's result alone, such as a mean, is computed again at every tag.
    """
    _, block, loops = tree.find_block(program, name)
    if tag_of(block, loop) is not None:
        return program
    name_of_tag = unique(loop, {it.name for it in block.iters}, "_")
    tag = Iter(name_of_tag, loops[tree.depth_of(loops, loop)].extent, "spatial", Var(loop))
    return tree.replace_block(program, name, replace(block, iters=(*block.iters, tag)))


def start_of(scan: Block) -> Const | None:
    """The value that a scan block reads before its first tag; None if it does not read its own previous tag."""
    own = (e for e in walk(scan.body.value) if isinstance(e, Previous) and e.buffer == scan.writes)
    return next((e.initial for e in own), None)


def rolling_loop(program: Program, name: str) -> tuple[Iter, str]:
    """The single reduce variable of block `name` (of a scan, its tag), and the loop that it runs along.

    Raises:
        ScheduleError: there is no such variable, or several.
    """
    _, block, _ = tree.find_block(program, name)
    wanted = [it for it in block.iters if it.kind == "reduce"]
    if block.role is Role.SCAN:
        wanted = block.iters[:1]
    if len(wanted) != 1 or not isinstance(wanted[0].binding, Var):
        raise ScheduleError(
            f"block {name!r} does not fold over exactly one loop",
            node=name,
            help="privatise the reduction first, so that each step writes one tag",
        )
    return wanted[0], wanted[0].binding.name


def cache_reduction_results(program: Program, name: str) -> Program:
    """Gives the reduction `name` a scan buffer along its rolling loop; readers name the tag that they read.

    before ⇒ after:
        X[i] = X[i] (f) e         ⇒   X⟨t⟩[i] = X⟨t-1⟩[i] (f) e
        … X[i] …  (in the loop)   ⇒   … X⟨t⟩[i] …
        … X[i] …  (after it)      ⇒   … X⟨last⟩[i] …

    Raises:
        ScheduleError: the block is no reduction along a single loop with a constant start value, it writes an output,
            or a reader in the loop does not run along it.
    """
    _, block, loops = tree.find_block(program, name)
    if is_tagged(program, block.writes):
        return program
    it, loop = rolling_loop(program, name)
    if block.init is None or not isinstance(block.init.value, Const):
        raise ScheduleError(
            f"block {name!r} has no constant start value to use before the first tag",
            node=name,
            help="materialise tags before decompose_reduction",
        )
    if block.writes in program.outputs:
        raise ScheduleError(
            f"block {name!r} writes the output {block.writes!r}, which cannot keep one value per tag",
            node=name,
            help="add a stage that copies it to the output",
        )
    depth = tree.depth_of(loops, loop)
    scan = _scan(block, it, block.init.value)
    inside = {b.name for b in tree.blocks_under(loops[depth])}
    last = loops[depth].extent - 1

    def reader(b: Block) -> Block:
        if b.name == name:
            return scan
        return _reading_tags(b, block, loop, None if b.name in inside else last) if reads(b, block.writes) else b

    buffer = program.buffer(block.writes)
    program = tree.map_blocks(program, reader)
    return with_buffers(program, replace(buffer, shape=(last + 1, *buffer.shape), tagged=True))


def _scan(block: Block, tag: Iter, initial: Const) -> Block:
    """The reduction as a scan: it stores at its tag, and reads its value at the previous one."""

    def own(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer == block.writes:
            return Previous(e.buffer, (Var(tag.name), *e.indices), initial)
        return e

    return replace(
        block,
        iters=(replace(tag, kind="spatial"), *(i for i in block.iters if i.name != tag.name)),
        body=Store(block.writes, (Var(tag.name), *block.body.indices), transform(block.body.value, own)),
        init=None,
        role=Role.SCAN,
    )


def _reading_tags(reader: Block, reduction: Block, loop: str, last: int | None) -> Block:
    """A reader of the reduction, reading it at a tag.

    Args:
        loop: the rolling loop.
        last: the last tag, for a reader after the loop; None: the reader is in the loop, and has a tag.
    """
    tag = tag_of(reader, loop) if last is None else Const(last)
    if tag is None:
        raise ScheduleError(
            f"block {reader.name!r} reads {reduction.writes!r} but does not run along {loop!r}",
            node=reader.name,
            help=f"move {reader.name!r} out of the loop first, or tile it along {loop!r} as {reduction.name!r} is",
        )

    def retag(e: Expr) -> Expr:
        return Load(e.buffer, (tag, *e.indices)) if isinstance(e, Load) and e.buffer == reduction.writes else e

    return replace(reader, body=map_store(reader.body, lambda e: transform(e, retag)))


@primitive(ours=True)
def materialize_tags(program: Program, *, block: BlockName) -> Outcome:
    """Keeps the value of a reduction for every tag, in a scan buffer (array expansion); readers name the tag they read.

    before ⇒ after:
        X[i] = X[i] (f) e         ⇒   X⟨t⟩[i] = X⟨t-1⟩[i] (f) e
        … X[i] …  (in the loop)   ⇒   … X⟨t⟩[i] …
        … X[i] …  (after it)      ⇒   … X⟨last⟩[i] …

    Args:
        block: the reduction.

    Raises:
        ScheduleError: it is no reduction along a serial loop, or has its tags already.
    """
    _, found, _ = tree.find_block(program, block)
    if is_tagged(program, found.writes):
        raise ScheduleError(
            f"block {block!r} has its tags materialised already", node=block, help="retire_tags keeps two of them"
        )
    _, loop = rolling_loop(program, block)
    program = cache_reduction_results(program, block)
    note = f"{found.writes} keeps its value after every iteration of {loop}: readers name the tag they read."
    return plain("materialize_tags", program, note)
