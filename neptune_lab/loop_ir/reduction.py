"""Matches a block as a reduction: X = X (f) term (paper, Eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Load, Op
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.walks import reads_buffer

REDUCERS = {"add": "sum", "max": "max", "min": "min", "mul": "prod", "or": "any", "and": "all"}
OPERATORS = {reducer: op for op, reducer in REDUCERS.items()}
IDENTITIES = {"sum": 0.0, "prod": 1.0, "max": float("-inf"), "min": float("inf"), "any": False, "all": True}


def identity(reducer: str, dtype: str) -> Const:
    """The identity of a reducer in a dtype; of max, it is -inf, or the least integer.

    >>> identity("max", "int8"), identity("all", "bool"), identity("sum", "float16")
    (Const(value=-128, dtype='int8'), Const(value=True, dtype='bool'), Const(value=0.0, dtype='float16'))
    """
    if reducer in ("max", "min") and dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        return Const(int(limits.min if reducer == "max" else limits.max), dtype)
    value = IDENTITIES[reducer]
    return Const(int(value) if dtype.startswith(("int", "uint")) else value, dtype)


@dataclass(frozen=True, slots=True)
class Reduction:
    """`X[own] = X[own] (f) term`.

    Args:
        reducer: "sum", "max", "min", "prod", "any" or "all" (f).
        carried: the left operand of f: the read of X itself, or h applied to it.
        term: what one iteration folds in, g(r, c).
        identity: the start value of X.
    """

    reducer: str
    carried: Expr
    term: Expr
    identity: Const


def match_reduction(block: Block) -> Reduction:
    """The block as a reduction.

    Formal statement: body is X[p] = X[p] (f) e, f in {+, max, min, *, or, and}, init is X[p] = identity of f, and e
    does not read X.

    Raises:
        ScheduleError: the block does not have this form.
    """
    body = block.body
    if block.role is Role.SCAN:
        raise _fused_already(block, "keeps one value per tag")
    if not block.is_reduction:
        raise ScheduleError(
            f"block {block.name!r} is not a reduction: all of its iteration variables are spatial",
            node=block.name,
            help="name a block that folds over a loop, such as a sum or a max",
        )
    match body.value:
        case Op(op, (left, term)) if op in REDUCERS:
            own = Load(body.buffer, body.indices)
            if left != own and term == own:
                left, term = term, left
            if left == own and not reads_buffer(term, body.buffer):
                init = block.init.value if block.init is not None else None
                if isinstance(init, Const):
                    return Reduction(REDUCERS[op], left, term, init)
                raise ScheduleError(
                    f"block {block.name!r} has no constant start value",
                    node=block.name,
                    help="apply the primitive before decompose_reduction takes the start value out",
                )
    if block.repair is not None:
        raise _fused_already(block, "repairs the value that it carries")
    raise ScheduleError(
        f"block {block.name!r} does not have the form X = X (f) term with f one of sum, max, min, prod, any, all",
        node=block.name,
        help="write the stage with te.sum, te.max, te.min or a te.comm_reducer (product, or, and) over one term",
    )


def _fused_already(block: Block, does: str) -> ScheduleError:
    return ScheduleError(
        f"block {block.name!r} {does}, from one iteration of its loop to the next: an earlier step has fused it",
        node=block.name,
        help="take this step before rolling_update fuses the block, or name its local block",
    )


def reducer_of(block: Block) -> str | None:
    """The reducer of a block, or None for a pointwise stage; only the operator counts, so a repaired block has one
    too."""
    if not block.is_reduction and block.role is not Role.SCAN:
        return None
    match block.body.value:
        case Op(op, _) if op in REDUCERS:
            return REDUCERS[op]
    return None
