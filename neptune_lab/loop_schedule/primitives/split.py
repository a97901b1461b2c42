"""split: replaces a loop by several nested ones."""

from __future__ import annotations

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.names import unique
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.fusion import loop_ref
from neptune_lab.loop_schedule.kinds import Factors, LoopRef, NewNames
from neptune_lab.loop_schedule.outcome import Outcome, plain
from neptune_lab.loop_schedule.renaming import names_beside, rename_loop
from neptune_lab.loop_schedule.tvm_steps import apply_in_tvm, handle_of


@primitive(makes="several", made='The new loops, outermost first, as "block.loop".')
def split(program: Program, *, loop: LoopRef, factors: Factors, names: NewNames | None = None) -> Outcome:
    """Splits a loop into nested loops: `for j` becomes `for j0: for j1: …`.

    before ⇒ after, with factors (None, 64):
        for j in range(256):              for j0, j1 in grid(4, 64):
            X[j] = e(j)             ⇒         X[j0 * 64 + j1] = e(j0 * 64 + j1)

    If the factors cover more than the loop's extent, the blocks inside get a guard.

    Args:
        loop: the loop to split, as "block.loop".
        factors: extents of the two or more new loops, outermost first; at most one is None, which is computed.
        names: names of the new loops, one per factor; default: j0, j1, … for loop j.

    Raises:
        ScheduleError: the factors do not cover the loop, a name is taken, or the loop is bound or annotated.
    """
    block, var = loop_ref(loop)
    path, target, _ = tree.find_loop(program, block, var)
    if len(factors) < 2 or sum(f is None for f in factors) > 1 or any(f is not None and f < 1 for f in factors):
        raise ScheduleError(
            f"factors={factors} cannot split loop {loop!r} of extent {target.extent}",
            node=block,
            help="give two or more positive extents, at most one of them None, for example (None, 64)",
        )
    fixed = 1
    for f in factors:
        fixed *= f or 1
    if None not in factors and fixed < target.extent:
        raise ScheduleError(
            f"factors={factors} cover {fixed} of the {target.extent} iterations of loop {loop!r}",
            node=block,
            help="make one factor None",
        )
    if names is not None and len(names) != len(factors):
        raise ScheduleError(
            f"names={names}: {len(names)} names for {len(factors)} factors of loop {loop!r}",
            node=block,
            help="give one name per factor, or leave names out",
        )
    taken = names_beside(program, block, target) - {var}
    wanted = names or []
    if len(set(wanted)) != len(wanted) or taken & set(wanted):
        raise ScheduleError(
            f"loop names {wanted} are not free around block {block!r}", node=block, help="pass names=[…] that are new"
        )
    for n in range(len(wanted), len(factors)):
        wanted = [*wanted, unique(f"{var}{n}", {*taken, *wanted}, "_")]
    depth = len(path) - 1
    result = apply_in_tvm(
        program,
        "split",
        loop,
        lambda s: s.split(handle_of(s, program, loop), factors),
        help="split a loop before it is bound or annotated",
    )
    # Temporary names first ("j0@"): TVM's names may be among the final ones, in another order.
    for spelling in ("{}@", "{}"):
        for n, name in enumerate(wanted):
            made = tree.find_block(result, block)
            result = rename_loop(result, made[0][: depth + n + 1], spelling.format(name))
    refs = tuple(f"{block}.{name}" for name in wanted)
    extents = [tree.find_loop(result, block, n)[1].extent for n in wanted]
    return plain(
        "split", result, f"{var} is now {' × '.join(f'{n} ({e})' for n, e in zip(wanted, extents, strict=True))}.", refs
    )
