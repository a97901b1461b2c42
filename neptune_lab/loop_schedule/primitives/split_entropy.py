"""split_entropy: a sum of p * log(p), with p a softmax, becomes one without the softmax's sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.dataflow import writer_of
from neptune_lab.loop_ir.nodes import Block, Const, Expr, Load, Op, Program, Store, Var
from neptune_lab.loop_ir.reduction import match_reduction, reducer_of
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.walks import substitute, variables
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.definition.float_bounds import Bounds
from neptune_lab.loop_schedule.definition.refusal import FloatsDiffer
from neptune_lab.loop_schedule.definition.stages import (
    Contraction,
    computed_float,
    contraction,
    elementwise,
    inlined,
    new_name,
    renamed,
    replaced,
)
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, Phase

_LARGEST_SCALE = 2.0**30


@dataclass(frozen=True, slots=True)
class _Share:
    """exp(`above`) / `total`, or its logarithm `above` - log(`total`).

    Args:
        above: x - max x, with all elementwise stages inlined.
        total: the read of a sum.
    """

    above: Op
    total: Load


@primitive(ours=True, makes="one", made="The sum of exp(x - max x) * (x - max x).", normalises=True)
def split_entropy(program: Program, *, block: BlockName) -> Outcome:
    """Takes the softmax's sum out of a sum of probabilities times their logarithms.

    before ⇒ after, with u[i, j] = x[i, j] - max x[i] and s[i] the sum of exp(u[i, j]):
        for i, j: o[i] += exp(u[i, j] - log(s[i]))          for i, j: t[i] += exp(u[i, j]) * u[i, j]
                          * (u[i, j] - log(s[i]))       ⇒   for i: o[i] = t[i] / s[i] - log(s[i])

    The new sum depends on the maximum alone, so it can be taken in the loop of the maximum and of s.  The probability
    may also be written as exp(u) / s, and both factors may have a sign and a constant factor.

    Args:
        block: a stage that sums up the products.

    Raises:
        ScheduleError: the stage is no such sum, or the logarithm is that of a probability which may be 0.
    """
    found = contraction(program, block)
    for n in (0, 1):
        factors = (inlined(program, e, computed_float) for e in (found.factors[n], found.factors[1 - n]))
        (scale, first), (sign, second) = _scaled(next(factors), _LARGEST_SCALE), _scaled(next(factors), 1.0)
        share, log = _probability(first), _logarithm(second)
        if share is not None and log is not None and share == log:
            _check(program, found, share)
            return _split(program, found, share, scale * sign)
        if share is not None and isinstance(second, Op) and second.name == "log" and _probability(second.args[0]):
            raise FloatsDiffer(
                f"the sum {block!r} of p * log(p) stays as it is: where p is so small that it is rounded to 0, log(p) "
                "is -inf and the product is NaN, which sums without p are not",
                node=block,
                help="write log(p) as a log-softmax, which is finite: x.log_softmax(-1) in place of p.log()",
            )
    raise ScheduleError(
        f"the terms of {block!r} are not probabilities of a softmax times their logarithms",
        node=block,
        help="name a sum such as that of exp(l[i, j]) * l[i, j] with l = x - max x - log(sum exp(x - max x))",
    )


def _scaled(expr: Expr, largest: float) -> tuple[float, Expr]:
    """A constant factor, at most so large and not much smaller than 1, and the rest."""
    match expr:
        case Op("neg", (rest,)):
            scale, rest = _scaled(rest, largest)
            return -scale, rest
        case Op("mul", (Const(value), rest)) | Op("mul", (rest, Const(value))):
            pass
        case _:
            return 1.0, expr
    return (float(value), rest) if 1 / _LARGEST_SCALE <= abs(value) <= largest else (1.0, expr)


def _probability(expr: Expr) -> _Share | None:
    match expr:
        case Op("exp", (inner,)):
            return _logarithm(inner)
        case Op("div", (Op("exp", (Op("sub") as above,)), Load() as total)):
            return _Share(above, total)
    return None


def _logarithm(expr: Expr) -> _Share | None:
    match expr:
        case Op("sub", (Op("sub") as above, Op("log", (Load() as total,)))):
            return _Share(above, total)
    return None


def _check(program: Program, found: Contraction, share: _Share) -> None:
    """Refuses a sum of which another form would give other numbers.

    Formal statement: let the sum be Σ exp(u - log s) · (u - log s).  It becomes (Σ exp(u) · u) / s - log s.

    1. s is Σ exp(u) over the same elements, so Σ exp(u - log s) is 1.
    2. u is x - m, and m is a maximum that x takes part in: u is at most 0, and 0 for one element.  So s is at least 1,
       each exp(u) · u is between -1/e and 0, and nothing overflows.  Both terms of the result are at most 0: they do
       not cancel, and the result has as many digits as they have.
    3. A constant c before p is at most 2**30, and one before log p at most 1, so that both forms are c times the same
       and neither overflows: c · log p with a larger c could be -inf where u is finite.
    4. If some u is -inf or NaN, so that exp(u) · u is NaN, so is exp(u - log s) · (u - log s): 0 · -inf is NaN.
    """
    block = found.block
    whole = writer_of(program, share.total.buffer)
    same = whole is not None and _sums_up(program, whole, share, found)
    if not same:
        raise ScheduleError(
            f"{share.total.buffer!r} is not the sum of {expression(Op('exp', (share.above,)))} over the elements of "
            f"{block.name!r}",
            node=block.name,
            help="take the softmax, its logarithm and the sum along the same axes",
        )
    bounds = Bounds(program, {it.name: it.extent for it in block.iters})
    below = bounds.is_maximum_with(share.above.args[1], share.above.args[0])
    if not below or bounds.of(share.total).low < 1.0:
        raise FloatsDiffer(
            f"the sum {block.name!r} stays as it is: {expression(share.above)} is not known to be at most 0, and 0 for "
            "one element: its exponentials may overflow, or their sum may be below 1",
            node=block.name,
            help="subtract the maximum of the row first, as torch.log_softmax does",
        )


def _sums_up(program: Program, whole: Block, share: _Share, found: Contraction) -> bool:
    """Whether `whole` is the sum of exp(above) over the axes that are folded, at the element that is read."""
    if reducer_of(whole) != "sum" or not whole.is_reduction or variables(share.total) & found.folded:
        return False
    own = [it for it in whole.iters if it.kind == "reduce"]
    theirs = [it for it in found.block.iters if it.kind == "reduce"]
    places = [i.name for i in whole.body.indices if isinstance(i, Var)]
    if [it.extent for it in own] != [it.extent for it in theirs] or len(places) != len(whole.body.indices):
        return False
    env: dict[str, Expr] = dict(zip(places, share.total.indices, strict=True))
    env |= {it.name: Var(other.name) for it, other in zip(own, theirs, strict=True)}
    term = inlined(program, substitute(match_reduction(whole).term, env), computed_float)
    return term == Op("exp", (share.above,))


def _split(program: Program, found: Contraction, share: _Share, scale: float) -> Outcome:
    block = found.block
    name = new_name(program, f"{block.name}_unscaled")
    stage = new_name(program, f"{name}_above", {name})
    above = elementwise(stage, [it for it in block.iters if it.name in variables(share.above)], share.above)
    read = Load(stage, above.body.indices)
    whole = renamed(block, name)
    own = Load(name, whole.body.indices)
    term = Op("mul", (Op("exp", (read,)), read))
    sums = replace(whole, body=replace(whole.body, value=Op("add", (own, term))))
    parts = (Op("div", (own, share.total)), Op("log", (share.total,)))
    value = Op("sub", parts if scale > 0 else parts[::-1])
    value = value if abs(scale) == 1 else Op("mul", (Const(abs(scale), "float32"), value))
    last = elementwise(block.name, [it for it in block.iters if it.kind == "spatial"], value)
    last = replace(last, body=Store(block.writes, block.body.indices, value))
    buffers = [
        replace(program.buffer(block.writes), name=stage, shape=tuple(it.extent for it in above.iters), scope="global"),
        replace(program.buffer(block.writes), name=name, scope="global"),
    ]
    result = replaced(program, block.name, [above, sums, last], buffers)
    note = f"The exponentials of {block.name} add up to {share.total.buffer}, so that their sum needs no second pass."
    sources = ((name, block.name), (stage, block.name))
    return Outcome(result, (Phase("split_entropy", "sum of exp(u) * u", note, result),), (name,), sources)
