"""Every repair that the operators of these tests get, as it is lowered into their programs, checked numerically."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import small_operators as small
from tvm import te

from neptune_lab.errors import RepairError, ScheduleError
from neptune_lab.loop_ir.nodes import Const, Expr, Load, Op, Var
from neptune_lab.loop_schedule import repairing
from neptune_lab.loop_schedule.outcome_cache import clear_outcomes
from neptune_lab.loop_schedule.reduce_pattern import match_reduce_pattern
from neptune_lab.loop_schedule.repairing import Repair, lowered_problem
from neptune_lab.loop_to_repair.check_lowered import ProducerNodes, check_lowered

DEFINITIONS: dict[str, Callable[[], small.Definition]] = {
    "softmax": small.two_sums,
    "two powers": small.two_direct_sums,
    "weighted": small.weighted,
    "two producers": small.two_producers,
    "L2 norm": small.l2_norm,
    "largest of normalised": small.rms_max,
    "map first": small.scaled_first,
    "masked": lambda: small.pair(lambda c, r: te.if_then_else(c > 0.0, te.exp(c - r), te.const(0.0, "float32"))),
    "shifted maximum": lambda: small.pair(lambda c, r: c - r, "max"),
    "sigmoid": lambda: small.pair(lambda c, r: c * te.sigmoid(te.tanh(r))),
    "third power": lambda: small.pair(lambda c, r: (c / r) * (c / r) * (c / r), of=te.abs),
}


def repairs_of(definition: small.Definition, update: str, monkeypatch: pytest.MonkeyPatch) -> list:
    """Arguments of `check_lowered` for each repair found while the definition is fused as far as it goes."""
    found, find = [], repairing.find_repair

    def watched(program, consumer, producers, kept):
        repair = find(program, consumer, producers, kept)
        if isinstance(repair, Repair):
            asked = match_reduce_pattern(program, consumer, producers, kept)
            found.append(lowered_problem(program, consumer, asked, repair))
        return repair

    monkeypatch.setattr(repairing, "find_repair", watched)
    clear_outcomes()
    sch = small.schedule(definition)
    sch.split("r.j", (None, 2))
    for block in ("s", "q", "o"):
        if sch.has_block(block) and any(ref.endswith(".j") for ref in sch.loops(block)):
            loop = f"{'r_local' if sch.has_block('r_local') else 'r'}.j0"
            try:
                getattr(sch, update)(block, loop)
            except ScheduleError:
                continue
    return found


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("update", ["rolling_update", "split_k_update"])
def test_every_lowered_repair(name, update, monkeypatch):
    found = repairs_of(DEFINITIONS[name](), update, monkeypatch)
    assert found
    for arguments in found:
        assert check_lowered(*arguments).endswith("64 random points")


def swapped(h: Expr) -> Expr:
    """The same expression with the previous and the current value exchanged."""
    match h:
        case Var(name) if name.endswith(" before"):
            return Var(name.replace(" before", " now"))
        case Var(name) if name.endswith(" now"):
            return Var(name.replace(" now", " before"))
        case Op(op, args):
            return Op(op, tuple(swapped(a) for a in args))
    return h


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda h, t: swapped(h), "Eq. 3 fails for h as written"),
        (lambda h, t: Op("mul", (h, Const(1.0001, "float32"))), "Eq. 3 fails for h as written"),
        (lambda h, t: Op("add", (h, Const(0.001, "float32"))), "Eq. 3 fails for h as written"),
        (lambda h, t: t, "Eq. 3 fails for h as written"),
    ],
    ids=["r and r' exchanged", "a factor", "a summand", "no repair"],
)
def test_a_wrong_h_is_caught(name, wrong, match, monkeypatch):
    (program, reducer, term, h, t, places, _), *_ = repairs_of(DEFINITIONS[name](), "rolling_update", monkeypatch)
    with pytest.raises(RepairError, match=match):
        check_lowered(program, reducer, term, wrong(h, t), t, places)


def test_an_h_that_is_right_term_by_term_only_is_caught():
    """t + r - r' carries one term of c - r, and not a sum of them; for max of c*r it is the sign that fails."""
    program = small.operator(small.pair(lambda c, r: c - r)).build()
    read, c = Load("r", (Var("i"),)), Load("x", (Var("i"), Var("j")))
    places = [ProducerNodes(read, Var("before"), Var("now"))]
    shifted = Op("sub", (Op("add", (Var("t"), Var("before"))), Var("now")))
    with pytest.raises(RepairError, match=r"Eq\. 4 fails") as caught:
        check_lowered(program, "sum", Op("sub", (c, read)), shifted, Var("t"), places)
    assert caught.value.step == "prove Eq. 4"
    scaled = Op("div", (Op("mul", (Var("t"), Var("now"))), Var("before")))
    with pytest.raises(RepairError, match=r"Eq\. 4 fails"):
        check_lowered(program, "max", Op("mul", (c, read)), scaled, Var("t"), places)


def test_a_lost_identity_is_caught():
    """exp(log(t)) is t for every term that is positive, and loses the -inf that max starts from."""
    program = small.operator(small.pair(lambda c, r: te.exp(c), "max")).build()
    term = Op("exp", (Load("x", (Var("i"), Var("j"))),))
    with pytest.raises(RepairError, match="does not keep -inf, which max starts from"):
        check_lowered(program, "max", term, Op("exp", (Op("log", (Var("t"),)),)), Var("t"), [])
