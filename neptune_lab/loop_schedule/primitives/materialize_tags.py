"""materialize_tags: a reduction keeps its value after every tag, in a scan buffer (paper, Algorithm 1, line 9)."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import (
    Block,
    Const,
    Expr,
    Iter,
    Load,
    Op,
    Previous,
    Program,
    Store,
    Var,
    map_store,
    reads,
    transform,
    variables,
    walk,
    with_buffers,
)
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_schedule.affine import affine_terms
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, plain


def is_tagged(program: Program, buffer: str) -> bool:
    """Whether `buffer` is a scan buffer."""
    return program.buffer(buffer).tagged


def tag_of(block: Block, loop: str) -> Expr | None:
    """The tag that `block` belongs to, in its own iterations; None where it does not run along `loop`."""
    for it in block.iters:
        if it.binding == Var(loop):
            return Var(it.name)
    for it in block.iters:
        split = affine_terms(it.binding, loop)
        if split is not None and split[0] > 0:
            step, rest = split
            tag = Op("floordiv", (Var(it.name), Const(step)))
            # Loops further out take larger steps along the same dimension (the splits of a split reduction).
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
    """Block `name`, which stands under `loop` but has no iteration of its own along it, gets one: its tag.

    A map of a reduction's result alone, such as a mean, is computed again at every tag.
    """
    _, block, loops = tree.find_block(program, name)
    if tag_of(block, loop) is not None:
        return program
    name_of_tag = unique(loop, {it.name for it in block.iters}, "_")
    tag = Iter(name_of_tag, loops[tree.depth_of(loops, loop)].extent, "spatial", Var(loop))
    return tree.replace_block(program, name, replace(block, iters=(*block.iters, tag)))


def start_of(scan: Block) -> Const | None:
    """What a scan block reads before its first tag; None where it does not read its own previous tag."""
    own = (e for e in walk(scan.body.value) if isinstance(e, Previous) and e.buffer == scan.writes)
    return next((e.initial for e in own), None)


def rolling_loop(program: Program, name: str) -> tuple[Iter, str]:
    """The one reduce (or, once tagged, tag) iteration of block `name` and the loop that it runs along."""
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
    """Gives the reduction `name` a scan buffer along its rolling loop; readers name the tag they read.

    before ⇒ after:
        X[i] = X[i] (f) e         ⇒   X⟨t⟩[i] = X⟨t-1⟩[i] (f) e
        … X[i] …  (in the loop)   ⇒   … X⟨t⟩[i] …
        … X[i] …  (after it)      ⇒   … X⟨last⟩[i] …
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
    initial, buffer = block.init.value, program.buffer(block.writes)
    last = loops[depth].extent - 1

    def own(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer == block.writes:
            return Previous(e.buffer, (Var(it.name), *e.indices), initial)
        return e

    scan = replace(
        block,
        iters=(replace(it, kind="spatial"), *(i for i in block.iters if i.name != it.name)),
        body=Store(block.writes, (Var(it.name), *block.body.indices), transform(block.body.value, own)),
        init=None,
        role=Role.SCAN,
    )
    inside = {b.name for b in tree.blocks_under(loops[depth])}

    def reader(b: Block) -> Block:
        if b.name == name:
            return scan
        if not reads(b, block.writes):
            return b
        if b.name in inside:
            tag = tag_of(b, loop)
            if tag is None:
                raise ScheduleError(
                    f"block {b.name!r} reads {block.writes!r} but does not run along {loop!r}",
                    node=b.name,
                    help=f"move {b.name!r} out of the loop first, or tile it along {loop!r} as {block.name!r} is",
                )
        else:
            tag = Const(last)

        def retag(e: Expr) -> Expr:
            if isinstance(e, Load) and e.buffer == block.writes:
                return Load(e.buffer, (tag, *e.indices))
            return e

        return replace(b, body=map_store(b.body, lambda e: transform(e, retag)))

    program = tree.map_blocks(program, reader)
    return with_buffers(program, replace(buffer, shape=(last + 1, *buffer.shape), tagged=True))


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
