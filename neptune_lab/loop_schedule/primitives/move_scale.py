"""move_scale: divisions and factors of a product's terms that are constant along its sum move behind the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Block, Buffer, Cast, Expr, Load, Op, Program, Store, Var
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.walks import loads, variables
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.definition.float_bounds import (
    FINITE_IN_FLOAT32,
    ROUNDS_TO_INFINITY,
    Bounds,
    is_coarse,
    is_half,
)
from neptune_lab.loop_schedule.definition.refusal import FloatsDiffer, equation
from neptune_lab.loop_schedule.definition.stages import (
    Contraction,
    computed_float,
    contraction,
    elementwise,
    new_name,
    renamed,
    replaced,
    without_casts,
)
from neptune_lab.loop_schedule.kinds import BlockName
from neptune_lab.loop_schedule.outcome import Outcome, Phase
from neptune_lab.strict.dtypes import HALVES


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A factor as what is left of it, and what is applied to that.

    Args:
        core: what is left.
        steps: ("mul" or "div", operand), in the order in which they are applied; the operands are constant along the
            sum.
        rounded: the 16-bit dtype that the factor is rounded to; "" if it is not.
        stage: the stage that computes the factor; "" if the product does.
    """

    core: Expr
    steps: tuple[tuple[str, Expr], ...]
    rounded: str = ""
    stage: str = ""


@primitive(ours=True, makes="one", made="The stage that is the sum without the scale.", normalises=True)
def move_scale(program: Program, *, block: BlockName) -> Outcome:
    """Moves divisions and factors that are constant along a product's sum behind the sum.

    before ⇒ after:
        for i, j: p[i, j] = e[i, j] / r[i]          for i, c, j: s[i, c] += e[i, j] * v[j, c]
        for i, c, j: o[i, c] += p[i, j] * v[j, c] ⇒ for i, c: o[i, c] = s[i, c] / r[i]

    A factor that is rounded to 16 bits for the product is rounded without the scale.  It is done only if, for finite
    inputs, no bound says that it overflows or underflows where the definition does not.

    Args:
        block: a stage that sums up products.

    Raises:
        ScheduleError: the stage is no sum of products, no factor has such a scale, or the move may change which results
            are finite.
    """
    found = contraction(program, block)
    bounds = Bounds(program, {it.name: it.extent for it in found.block.iters})
    refused: list[str] = []
    for n, factor in enumerate(found.factors):
        scaled = _scaled(program, factor, found.folded)
        if not any(loads(operand) for _, operand in scaled.steps):
            continue
        why = _unsafe(program, bounds, found, scaled, found.factors[1 - n])
        if why is None:
            return _with_scale_after_sum(program, found, n, scaled)
        refused.append(f"{equation(factor, _value(scaled, without_casts(scaled.core)))}: {why}")
    if refused:
        raise FloatsDiffer(
            f"the scale in a factor of {block!r} stays before the sum, since behind it other results may be finite: "
            f"{'; '.join(dict.fromkeys(refused))}",
            node=block,
            help="keep the definition as it is; inputs in float16, a softmax or a norm bound the factors",
        )
    raise ScheduleError(
        f"no factor of {block!r} has a scale that is constant along {', '.join(sorted(found.folded))}",
        node=block,
        help="name a product of which a factor is divided by a value per row",
    )


def _value(scaled: _Scaled, core: Expr) -> Expr:
    """The scale applied to `core`."""
    for name, operand in scaled.steps:
        core = Op(name, (core, operand))
    return core


def _scaled(program: Program, factor: Expr, folded: frozenset[str]) -> _Scaled:
    """A factor without its operands that do not vary along the sum."""
    read = without_casts(factor)
    value = computed_float(program, read)
    if value is None:
        return _Scaled(*_split(program, factor, folded))
    rounded = value.dtype if isinstance(value, Cast) and value.dtype in HALVES else ""
    core, steps = _split(program, value.arg if rounded else value, folded)  # type: ignore[union-attr]
    assert isinstance(read, Load)
    return _Scaled(core, steps, rounded, read.buffer)


def _split(program: Program, expr: Expr, folded: frozenset[str]) -> tuple[Expr, tuple[tuple[str, Expr], ...]]:
    match expr:
        case Op("div", (a, b)) if not variables(b) & folded:
            core, steps = _split(program, a, folded)
            return core, (*steps, ("div", b))
        case Op("mul", (a, b)) if not variables(b) & folded:
            core, steps = _split(program, a, folded)
            return core, (*steps, ("mul", b))
        case Op("mul", (a, b)) if not variables(a) & folded:
            core, steps = _split(program, b, folded)
            return core, (*steps, ("mul", a))
    read = without_casts(expr)
    value = computed_float(program, read)
    if value is not None and not isinstance(value, Cast):  # a stage in float32, such as a quotient with a name
        core, steps = _split(program, value, folded)
        if steps:
            return core, steps
    return expr, ()


def _unsafe(program: Program, bounds: Bounds, found: Contraction, scaled: _Scaled, other: Expr) -> str | None:
    """Why the scale may not move; None if it may.

    Formal statement: let the sum be Σ (n · s) · c, of `count` terms.  It becomes (Σ n · c) · s.

    1. For finite inputs, no partial result of either form overflows: |n| and |n · s| times |c| times `count` are below
       the largest float after each step of s; or |n| and |n · s| are at most 1 after each step, so that only sums of
       terms near the largest float overflow (docs/concepts/numbers.md, exceptions).
    2. What is rounded to 16 bits is finite in both forms.
    3. The sum without the scale loses no digits that the definition has: |s| is at most 1 (then n · s underflows
       first), or n and c are 0 or at least 2^-24, so that n · c is 0 or a normal float.  If the factor is rounded to 16
       bits, |s| is at most 1, or n has 16 bits.
    4. If an input is not finite, or s is: an n or c that is not finite makes both results so (0 · inf and inf / inf are
       NaN); an s of NaN, 0 or infinity multiplies, or divides, every term or the whole sum.
    """
    partial: list[Expr] = [scaled.core]
    for name, operand in scaled.steps:
        partial.append(Op(name, (partial[-1], operand)))
    most = [bounds.magnitude(e) for e in partial]
    c = bounds.magnitude(other)
    largest = FINITE_IN_FLOAT32
    if not (max(most) * c * found.count < largest or max(most) <= 1.0):
        worst = max(most)
        what = "have no bound" if math.isinf(worst) else f"may reach {worst:.3g}"
        return f"its values {what}, and {found.count} products with {expression(without_casts(other))} may overflow"
    if scaled.rounded and max(most[0], most[-1]) >= ROUNDS_TO_INFINITY[scaled.rounded]:
        return f"rounded to {scaled.rounded}, {max(most[0], most[-1]):.3g} overflows"
    if _shrinks(bounds, scaled):
        return None
    if not (is_coarse(program, scaled.core) and is_coarse(program, other)):
        return "the scale may be above 1, and products without it underflow before it is applied"
    if scaled.rounded and not is_half(program, scaled.core):
        return f"the scale may be above 1, and {scaled.rounded} rounds small values before it is applied"
    return None


def _shrinks(bounds: Bounds, scaled: _Scaled) -> bool:
    """Whether every step of the scale divides by at least 1 or multiplies by at most 1 in magnitude."""
    for name, operand in scaled.steps:
        values = bounds.of(operand)
        if name == "div" and not (values.low >= 1.0 or values.high <= -1.0):
            return False
        if name == "mul" and bounds.magnitude(operand) > 1.0:
            return False
    return True


def _with_scale_after_sum(program: Program, found: Contraction, n: int, scaled: _Scaled) -> Outcome:
    """The program with a scale of a product's factor applied to the product's sum.

    Args:
        n: which factor is scaled.
    """
    block = found.block
    name = new_name(program, f"{block.name}_unscaled")
    sources = [(name, block.name)]
    made: list[Block] = []
    buffers = [replace(program.buffer(block.writes), name=name, scope="global")]
    factor = _readable_rest(program, scaled)
    if factor is None:
        stage = _unscaled_stage(program, scaled, found, name)
        made.append(stage)
        buffers.append(Buffer(stage.name, tuple(it.extent for it in stage.iters), scaled.rounded or "float32"))
        sources.append((stage.name, scaled.stage or block.name))
        read = Load(stage.name, tuple(Var(it.name) for it in stage.iters))
        factor = Cast("float32", read) if scaled.rounded else read
    factors = (factor, found.factors[1]) if n == 0 else (found.factors[0], factor)
    whole = renamed(block, name)
    own = Load(name, whole.body.indices)
    made.append(replace(whole, body=replace(whole.body, value=Op("add", (own, Op("mul", factors))))))
    value = _value(scaled, own)
    spatial = [it for it in block.iters if it.kind == "spatial"]
    last = elementwise(block.name, spatial, value)
    made.append(replace(last, body=Store(block.writes, block.body.indices, value)))
    along = ", ".join(sorted(found.folded))
    core = without_casts(scaled.core)
    factor_text = expression(_value(scaled, core))
    note = f"Only {expression(core)} of {factor_text} varies along {along}: the rest is applied to the sum."
    result = replaced(program, block.name, made, buffers)
    return Outcome(result, (Phase("move_scale", "scale behind the sum", note, result),), (name,), tuple(sources))


def _readable_rest(program: Program, scaled: _Scaled) -> Expr | None:
    """What is left of a factor, if the product can read it without a stage of its own."""
    inner = without_casts(scaled.core)
    if not scaled.stage or (isinstance(inner, Load) and (not scaled.rounded or is_half(program, inner))):
        return scaled.core
    return Cast("float32", Cast(scaled.rounded, scaled.core)) if isinstance(inner, Load) else None


def _unscaled_stage(program: Program, scaled: _Scaled, found: Contraction, other: str) -> Block:
    """The stage that computes what is left of a factor, over the iterations that the factor has."""
    used = variables(scaled.core)
    iters = [it for it in found.block.iters if it.name in used]
    value = Cast(scaled.rounded, scaled.core) if scaled.rounded else scaled.core
    return elementwise(new_name(program, f"{scaled.stage or found.block.name}_unscaled", {other}), iters, value)
