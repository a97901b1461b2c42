"""distribute: a product with a sum or a difference becomes two products."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.nodes import Block, Buffer, Cast, Expr, Load, Op, Program, Store, Var
from neptune_lab.loop_ir.render import expression
from neptune_lab.loop_ir.walks import variables
from neptune_lab.loop_schedule.declare import primitive
from neptune_lab.loop_schedule.definition.float_bounds import FINITE_IN_FLOAT32, ROUNDS_TO_INFINITY, Bounds
from neptune_lab.loop_schedule.definition.refusal import FloatsDiffer, equation
from neptune_lab.loop_schedule.definition.stages import (
    Contraction,
    computed,
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

# Operations whose result is rounded, whatever their operands are.
_ROUNDING = ("div", "exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "sigmoid")


@dataclass(frozen=True, slots=True)
class _Sum:
    """A factor that is `left` op `right`, rounded to a 16-bit dtype or ""; the stage that computes it, or ""."""

    op: str
    left: Expr
    right: Expr
    rounded: str = ""
    stage: str = ""

    @property
    def value(self) -> Expr:
        """The sum or difference."""
        return Op(self.op, (self.left, self.right))


@primitive(ours=True, makes="several", made="The two products.", normalises=True)
def distribute(program: Program, *, block: BlockName) -> Outcome:
    """Makes two products of one whose factor is a sum or a difference.

    before ⇒ after:
        for i, j: p[i, j] = a[i, j] - b[i, j]          for i, c, j: l[i, c] += a[i, j] * v[j, c]
        for i, c, j: o[i, c] += p[i, j] * v[j, c]  ⇒   for i, c, j: r[i, c] += b[i, j] * v[j, c]
                                                       for i, c: o[i, c] = l[i, c] - r[i, c]

    Each product can then be fused with what computes its factor.  A factor that is rounded to 16 bits becomes two that
    are.

    Args:
        block: a stage that sums up products.

    Raises:
        ScheduleError: the stage is no sum of products, no factor is a sum, or the two products may overflow, or lose
            digits, where the definition does not.
    """
    found = contraction(program, block)
    bounds = Bounds(program, {it.name: it.extent for it in found.block.iters})
    refused: list[str] = []
    for n, factor in enumerate(found.factors):
        terms = _sum_of(program, factor)
        if terms is None:
            continue
        why = _unsafe(program, bounds, found, terms, found.factors[1 - n])
        if why is None:
            return _distributed(program, found, n, terms)
        refused.append(f"{equation(factor, terms.value)}: {why}")
    if refused:
        raise FloatsDiffer(
            f"the product {block!r} is not distributed over a sum in its factor: {'; '.join(dict.fromkeys(refused))}",
            node=block,
            help="keep the definition as it is, or write two products",
        )
    raise ScheduleError(
        f"no factor of {block!r} is a sum or a difference",
        node=block,
        help="name a product with a factor such as a[i, j] - b[i, j]",
    )


def _sum_of(program: Program, factor: Expr) -> _Sum | None:
    read = without_casts(factor)
    value = computed_float(program, read)
    stage = read.buffer if isinstance(read, Load) and value is not None else ""
    value = factor if value is None else value
    rounded = value.dtype if stage and isinstance(value, Cast) and value.dtype in HALVES else ""
    inner = value.arg if rounded else value  # type: ignore[union-attr]
    match inner:
        case Op("add" | "sub" as op, (left, right)):
            return _Sum(op, left, right, rounded, stage)
    return None


def _unsafe(program: Program, bounds: Bounds, found: Contraction, terms: _Sum, other: Expr) -> str | None:
    """Why the product may not be distributed; None if it may.

    Formal statement: let the sum be Σ (a ± b) · c, of `count` terms.  It becomes (Σ a · c) ± (Σ b · c).

    1. For finite inputs, no partial result overflows: |a|, |b| and |a ± b| times |c| times `count` are below the
       largest float, or |a| and |b| are at most 1 (then only sums of terms near the largest float overflow).
    2. What is rounded to 16 bits is finite.
    3. a or b is rounded by the operation that computes it.  Then a ± b has an error of about its rounding, relative to
       |a| + |b|, as the two sums have.  (If both were exact, as inputs are, so would their difference be.)
    4. If a, b or c is not finite, neither are the results: 0 · inf, inf - inf and inf · 0 are NaN.
    """
    most = [bounds.magnitude(e) for e in (terms.left, terms.right)]
    c, largest = bounds.magnitude(other), FINITE_IN_FLOAT32
    if not (sum(most) * c * found.count < largest or max(most) <= 1.0):
        return f"its terms may reach {max(most):.3g}, and {found.count} products with each may overflow"
    if terms.rounded and sum(most) >= ROUNDS_TO_INFINITY[terms.rounded]:
        return f"rounded to {terms.rounded}, {sum(most):.3g} overflows"
    if not (_is_rounded(program, terms.left) or _is_rounded(program, terms.right)):
        return "if its terms cancel, two products lose digits that the sum has"
    return None


def _is_rounded(program: Program, expr: Expr) -> bool:
    """Whether an operation rounds the value: it is a quotient or a function, or a product with one."""
    inner = without_casts(expr)
    value = computed(program, inner)
    if value is not None:
        return _is_rounded(program, value)
    match inner:
        case Op(name, args):
            return name in _ROUNDING or (name == "mul" and any(_is_rounded(program, a) for a in args))
    return False


def _distributed(program: Program, found: Contraction, n: int, terms: _Sum) -> Outcome:
    """The program with the product of a sum written as the sum of two products.

    Args:
        n: which factor is the sum.
    """
    block = found.block
    made: list[Block] = []
    buffers: list[Buffer] = []
    sources: list[tuple[str, str]] = []
    names: list[str] = []
    for side, term in (("left", terms.left), ("right", terms.right)):
        name = new_name(program, f"{block.name}_{side}")
        factor: Expr = Cast("float32", Cast(terms.rounded, term)) if terms.rounded else term
        if terms.stage and not isinstance(without_casts(term), Load):
            used = variables(term)
            iters = [it for it in found.block.iters if it.name in used]
            stage = new_name(program, f"{terms.stage}_{side}", {name})
            made.append(elementwise(stage, iters, Cast(terms.rounded, term) if terms.rounded else term))
            buffers.append(Buffer(stage, tuple(it.extent for it in iters), terms.rounded or "float32"))
            sources.append((stage, terms.stage))
            read = Load(stage, tuple(Var(it.name) for it in iters))
            factor = Cast("float32", read) if terms.rounded else read
        factors = (factor, found.factors[1]) if n == 0 else (found.factors[0], factor)
        whole = renamed(block, name)
        own = Load(name, whole.body.indices)
        made.append(replace(whole, body=replace(whole.body, value=Op("add", (own, Op("mul", factors))))))
        buffers.append(replace(program.buffer(block.writes), name=name, scope="global"))
        sources.append((name, block.name))
        names.append(name)
    reads = tuple(Load(name, block.body.indices) for name in names)
    last = elementwise(block.name, [it for it in block.iters if it.kind == "spatial"], Op(terms.op, reads))
    made.append(replace(last, body=Store(block.writes, block.body.indices, Op(terms.op, reads))))
    # Elementwise stages first: those of the second product are computed before the first one, as a user writes them.
    made.sort(key=lambda b: b.name in names or b.name == block.name)
    result = replaced(program, block.name, made, buffers)
    note = f"A factor of {block.name} is {expression(terms.value)}: the product with each is a stage of its own."
    return Outcome(result, (Phase("distribute", "two products", note, result),), tuple(names), tuple(sources))
