"""Whether the accumulator is still the identity as long as a producer is at a singular point.

A guard may replace a singular value with a regular one (`repair.guard`) only if nothing has been accumulated by then:
h from the replacement to the next value can overflow (exp(0 - r') for r' = -142 is infinite in float32), and if the
definition gives an infinity (x / 0), a replacement would hide it.  In most programs this holds: a running maximum is
-inf only as long as every score is -inf, and then every term is 0.  A repair is refused if the program does not show
this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Cast, Const, Expr, Load, Op, Program, Var
from neptune_lab.loop_ir.positions import ORDERED
from neptune_lab.loop_ir.reduction import IDENTITIES, OPERATORS, REDUCERS, reducer_of
from neptune_lab.loop_ir.roles import Role
from neptune_lab.loop_ir.sign import is_nonnegative
from neptune_lab.loop_ir.simplify import bounds, simplify
from neptune_lab.loop_ir.walks import bound_loops, substitute, transform, transform_each, variables, walk_once
from neptune_lab.loop_schedule.estimate import plain_reads
from neptune_lab.loop_to_repair.constant_terms import ConstantTerm, constant_term, is_always_nan

# A case in which an element is at a point: the values of some nodes, and the truth values of conditions.
_Cause = Mapping[Expr, float | bool]


def identity_at_point(
    program: Program,
    consumer: Block,
    reducer: str,
    term: Expr,
    producer: str,
    point: float,
    replacements: Mapping[Expr, float],
) -> ConstantTerm | None:
    """Whether nothing that `consumer` has folded needs a repair, as long as `producer` is at `point`.

    Formal statement: the producer folds u, and is at the point only if every u is (a max at -inf; a max or a sum of
    nonnegative u at 0); u occurs in the consumer's term, at the same elements; and in each case in which u is at the
    point, the term does not depend on the producer: it is the identity of its reducer, or another number, or not
    finite for every value of the producer (0 * inf), so that the whole result is not finite either.

    Args:
        program: the program.
        consumer: the local block of the consumer.
        reducer: f of the consumer.
        term: g of the consumer, with the maps between inlined.
        producer: the producer's buffer.
        point: the singular value.
        replacements: a regular value for each read of a producer in `term`.

    Returns:
        What the term is at the point; None if the program does not show it.
    """
    folded = folded_element(program, producer)
    if folded is None:
        return None
    block, own_reducer, element = folded
    if not _only_if_all(program, own_reducer, element, point):
        return None
    term = without_maps(program, term)
    placed = transform_each(term, _placing(program, consumer))
    element = in_loops(program, block, without_maps(program, element))

    def cases(facts: _Cause) -> list[ConstantTerm | None]:
        """The term in each case in which the element is at the point and `facts` hold."""
        by_case: list[ConstantTerm | None] = []
        for cause in _causes(element, point):
            if any(facts.get(at, x) != x for at, x in cause.items()):
                continue  # the facts exclude this case
            values = {**cause, **facts}
            known: dict[Expr, float | bool] = {node: values[at] for node, at in placed.items() if at in values}
            by_case.append(constant_term(program, reducer, term, known, replacements, point))
        return by_case

    by_case = cases({})
    constant = [case for case in by_case if case is not None]
    if len(constant) < len(by_case):
        return None
    differs = any(case.differs_at_point for case in constant)
    return ConstantTerm(
        all(case.is_identity for case in constant),
        differs,
        not differs
        or any(
            _all_differ_unguarded(cases(facts))
            for facts in _at_the_ends(program, consumer, [*placed.values(), element])
        ),
    )


def _all_differ_unguarded(cases: list[ConstantTerm | None]) -> bool:
    return all(case is not None and case.differs_unguarded for case in cases)


def _at_the_ends(program: Program, consumer: Block, exprs: Iterable[Expr]) -> list[_Cause]:
    """The conditions in `exprs` that the loop bounds decide at the reduction's first element, and those at its last
    (with a causal mask, every row has its first element)."""
    own = [b for b in tree.blocks(program) if b.origin == consumer.origin]
    inner = {it.name: it for b in own for it in b.iters if it.kind == "reduce"}
    loops = bound_loops(inner.values())
    extents = {loop.var: loop.extent for b in own for loop in tree.find_block(program, b.name)[2]}
    conditions = {e for expr in exprs for e in walk_once(expr) if isinstance(e, Op) and e.name in ORDERED}
    at_ends = []
    for last in (False, True):
        at = {var: Const(extents[var] - 1 if last else 0) for var in loops}
        exists = [substitute(p, at) for p in consumer.predicates if variables(p) & loops]
        if not all(isinstance(p, Op) and p.name in ORDERED and _truth(p, extents) for p in exists):
            continue
        facts = {e: truth for e in conditions if (truth := _truth(substitute(e, at), extents)) is not None}
        at_ends.append(facts)
    return at_ends


def _truth(condition: Expr, extents: Mapping[str, int]) -> bool | None:
    """The truth value of a comparison of indices, if the loop bounds decide it; otherwise None."""
    assert isinstance(condition, Op)
    a, b = condition.args
    difference = bounds(Op("sub", (a, b)), extents)
    if difference is None:
        return None
    low, high = difference
    always, never = {
        "lt": (high < 0, low >= 0), "le": (high <= 0, low > 0), "gt": (low > 0, high <= 0), "ge": (low >= 0, high < 0),
    }[condition.name]  # fmt: skip
    return True if always else False if never else None


def makes_nan(
    program: Program, consumer: Block, term: Expr, producer: str, point: float, reads: Iterable[Expr]
) -> bool:
    """Whether the consumer's term is NaN at an element that takes the producer to `point`, as exp(inf - inf) is.

    Formal statement: the element occurs in the consumer's term, at the same index; in each case in which it is at the
    point, the term with the producer at the point is NaN for all other values.
    """
    folded = folded_element(program, producer)
    if folded is None:
        return False
    block, _, element = folded
    term = without_maps(program, term)
    placed = transform_each(term, _placing(program, consumer))
    element = in_loops(program, block, without_maps(program, element))
    at_point = dict.fromkeys(reads, point)
    return all(
        is_always_nan(program, term, {node: cause[at] for node, at in placed.items() if at in cause} | at_point)
        for cause in _causes(element, point)
    )


def without_maps(program: Program, expr: Expr) -> Expr:
    """The expression with every elementwise stage that it reads inlined; equal reads share one expression."""

    done: dict[Expr, Expr] = {}

    def rule(e: Expr) -> Expr:
        if not isinstance(e, Load):
            return e
        if e not in done:
            done[e] = inlined(e)
        return done[e]

    def inlined(e: Load) -> Expr:
        source = writer_of(program, e.buffer)
        if source is None or source.role is Role.SCAN or source.is_reduction or reducer_of(source) is not None:
            return e
        names = [i.name for i in source.body.indices if isinstance(i, Var)]
        tags = {it.name: it.binding for it in source.iters if it.name not in names}
        if len(names) != len(e.indices) or (tags and source.role is not Role.ROLLED):
            return e
        return transform(substitute(plain_reads(source), {**tags, **dict(zip(names, e.indices, strict=True))}), rule)

    return transform(expr, rule)


def folded_element(program: Program, buffer: str) -> tuple[Block, str, Expr] | None:
    """The block that folds single elements into a reduction (its innermost local block), its reducer and its term;
    None if the buffer is no reduction.

    An outer block may fold a constant of the row with each tile (`row_constants`); then the element is max(x[j], s),
    since max(max_j x[j], s) = max_j max(x[j], s).
    """
    block = writer_of(program, buffer)
    if block is None or (reducer := reducer_of(block)) is None or not isinstance(block.body.value, Op):
        return None
    term = block.body.value.args[1]
    for operand in operands_of(term, OPERATORS[reducer]) if reducer in ("max", "min") else [term]:
        inner = writer_of(program, operand.buffer) if isinstance(operand, Load) else None
        if inner is not None and inner.origin == block.origin and inner.name != block.name:
            assert isinstance(operand, Load)
            found = folded_element(program, operand.buffer)
            return found if found is None or operand == term else _with_constants(found, inner, operand, term, reducer)
    return block, reducer, term


def _with_constants(
    found: tuple[Block, str, Expr], inner: Block, read: Load, term: Expr, reducer: str
) -> tuple[Block, str, Expr]:
    """What an outer block folds that combines `read`, of which `found` is the fold, with constants of the row."""
    own = zip(read.indices, inner.body.indices, strict=True)
    names = {i.name: mine for i, mine in own if isinstance(i, Var)}
    at = substitute(read, names)
    return found[0], reducer, transform(substitute(term, names), lambda e: found[2] if e == at else e)


def operands_of(expr: Expr, op: str) -> list[Expr]:
    """The operands of nested operations `op`; the expression itself if it is none."""
    match expr:
        case Op(name, args) if name == op:
            return [operand for arg in args for operand in operands_of(arg, op)]
    return [expr]


def _only_if_all(program: Program, reducer: str, element: Expr, point: float) -> bool:
    if point == IDENTITIES[reducer] and reducer in ("max", "min"):
        return True
    return point == 0 and reducer in ("max", "sum") and is_nonnegative(program, element)


def _causes(element: Expr, point: float) -> list[_Cause]:
    """The cases in which the element is at the point, with the values of its operands in each.

    |x| is 0 only if x is 0, and never negative; a masked score is -inf if the mask is false, or if the score is -inf
    itself.
    """
    match element:
        case Const(value):
            return [{}] if value == point else []
        case Op("abs", _) if point < 0:
            return []
        case Op("abs", (x,)) if point == 0:
            return _with_point(element, point, _causes(x, 0.0))
        case Op("abs", (x,)) if point == float("inf"):
            return _with_point(element, point, [*_causes(x, point), *_causes(x, -point)])
        case Op("mul", (x, y)) if point == 0 and x == y:
            return _with_point(element, point, _causes(x, 0.0))
        case Op("select", (condition, yes, no)):
            cases: list[_Cause] = [{condition: True, **case} for case in _causes(yes, point)]
            cases += [{condition: False, **case} for case in _causes(no, point)]
            return _with_point(element, point, cases)
        case Op("max" | "min" as op, (x, y)) if point == IDENTITIES[REDUCERS[op]]:
            both = [(a, b) for a in _causes(x, point) for b in _causes(y, point)]
            agree: list[_Cause] = [
                {**a, **b} for a, b in both if all(b.get(at, value) == value for at, value in a.items())
            ]
            return _with_point(element, point, agree or [{}])
        case Op("max" | "min" as op, (x, y)) if point == -IDENTITIES[REDUCERS[op]]:
            either: list[_Cause] = [*_causes(x, point), *_causes(y, point)]
            return _with_point(element, point, either or [{}])
        case Cast(dtype, x) if "float" in dtype:
            return _with_point(element, point, _causes(x, point))
    return [{element: point}]


def _with_point(element: Expr, point: float, cases: list[_Cause]) -> list[_Cause]:
    return [{element: point, **case} for case in cases]


@lru_cache(maxsize=4096)
def in_loops(program: Program, block: Block, expr: Expr, *, guards: bool = False) -> Expr:
    """The expression over loop variables, with simplified indices, and without guards unless they are asked for."""
    return transform(expr, _placing(program, block, guards=guards))


def _placing(program: Program, block: Block, *, guards: bool = False) -> Callable[[Expr], Expr]:
    """What `in_loops` makes of a node whose operands are placed."""
    _, _, loops = tree.find_block(program, block.name)
    extents = {loop.var: loop.extent for loop in loops}
    env = {it.name: it.binding for it in block.iters}

    def rule(e: Expr) -> Expr:
        if isinstance(e, Var):
            return env.get(e.name, e)
        if isinstance(e, Load):
            return Load(e.buffer, tuple(simplify(i, extents) for i in e.indices))
        return e.args[0] if isinstance(e, Op) and e.name == "guard" and not guards else e

    return rule


__all__ = ["folded_element", "identity_at_point", "in_loops", "makes_nan", "operands_of", "without_maps"]
