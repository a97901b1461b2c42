"""One kernel of both nests of a backward pass: numbers, simulated, and which programs are refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import EmitError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile_to_gluon.joint import joined
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.htile_to_gluon.joint.plan import plan_of
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.operators import attention, training
from neptune_lab.operators.reverse_mode import groups
from neptune_lab.pipeline.joint import default_joint_choice, joint_kernel
from neptune_lab.pipeline.validate.at_sizes import wrong_at
from tests.gluon.joint_kernels import IN_ORDER, JOINT, SCRIPT, backward, simulated


def causal(score, h, i, j):
    return score.masked_fill(j > i, -torch.inf)


def windowed(score, h, i, j, width=200):
    return causal(score, h, i, j).masked_fill(i - j >= width, -torch.inf)


def windowed_300(score, h, i, j):
    return windowed(score, h, i, j, 300)


def alibi(score, h, i, j):
    return causal(score + 2.0 ** (-4.0 * (h + 1)) * (j - i), h, i, j)


def capped(score, h, i, j):
    return causal(2.0 * torch.tanh(score / 2.0), h, i, j)


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "causal, 128": (lambda: attention.causal(1, 2, 256, 128), causal),
    "causal, 64": (lambda: attention.causal(1, 2, 384, 64), causal),
    "full, 128": (lambda: attention.full(2, 1, 256, 128, dtype="bfloat16"), None),
    "full, 64": (lambda: attention.full(1, 2, 256, 64), None),
    "fewer queries than keys": (lambda: attention.full(1, 1, q_len=128, kv_len=384, head_dim=128), None),
    "groups": (lambda: attention.gqa(1, 4, 256, 128, kv_heads=2), causal),
    "window": (lambda: attention.window(1, 1, 512, 128, window=200), windowed),
    "window, 64": (lambda: attention.window(1, 1, 640, 64, window=200), windowed),
    "window of which tiles of both nests cut other parts": (
        lambda: attention.window(1, 1, 640, 128, window=300),
        windowed_300,
    ),
    "window of no whole tiles, 64": (lambda: attention.window(1, 1, 700, 64, window=300), windowed_300),
    "alibi": (lambda: attention.alibi(1, 2, 256, 64), alibi),
    "soft cap, 128": (lambda: attention.softcap(1, 1, 300, 128, cap=2.0), capped),
    "soft cap, 64": (lambda: attention.softcap(1, 2, 384, 64, cap=2.0), capped),
    "no whole tiles, 128": (lambda: attention.causal(1, 2, 301, 128), causal),
    "no whole tiles, 64": (lambda: attention.causal(1, 2, 331, 64, dtype="bfloat16"), causal),
    "half of a program": (lambda: attention.full(1, 1, 320, 128), None),
    "a row beyond whole tiles": (lambda: attention.full(1, 1, q_len=513, kv_len=257, head_dim=64), None),
    "groups of no whole tiles": (lambda: attention.gqa(1, 4, 197, 128, kv_heads=2), causal),
    "window of no whole tiles": (lambda: attention.window(1, 1, 500, 128, window=200), windowed),
    "alibi of no whole tiles": (lambda: attention.alibi(1, 2, 250, 64), alibi),
}


@pytest.mark.one_in(48)
@pytest.mark.parametrize("code", [JOINT, IN_ORDER], ids=["any order", "in order"])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, code: nl.CodeOptions):
    make, score_mod = CASES[name]
    op = make()
    assert simulated(op, score_mod, code=code) < (2e-2 if op.inputs[0].dtype == "bfloat16" else 3e-3)


@pytest.mark.nightly
@pytest.mark.parametrize("code", [JOINT, IN_ORDER], ids=["any order", "in order"])
@pytest.mark.parametrize(("queries", "keys", "width"), [(4, 2, 128), (3, 1, 64)])
def test_heads_of_a_group(monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, width: int, code: nl.CodeOptions):
    """A program visits all heads that share its keys."""
    monkeypatch.setattr(groups, "FEWEST_ROWS", 1)
    op = attention.gqa(1, queries, 300, width, kv_heads=keys)
    assert joint_of(backward(op, code).htile).around is not None
    assert simulated(op, causal, code=code) < 3e-3


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("masked", "code", "inside"), [(True, "in order", True), (True, "any order", False), (False, "in order", False)]
)
def test_heads_of_a_group_at_a_tile(monkeypatch: pytest.MonkeyPatch, masked: bool, code: str, inside: bool):
    """A row block that has fewer tiles than the one before it, and waits for it, visits all heads at a tile."""
    monkeypatch.setattr(groups, "FEWEST_ROWS", 1)
    kernel = backward(attention.gqa(1, 6, 512, 128, causal=masked, kv_heads=2), {"in order": IN_ORDER}.get(code, JOINT))
    functions = kernel.source.split("@gluon.jit")
    for role in ("producer", "consumer", "adder"):
        (text,) = (part for part in functions if f"_{role}(" in part.partition(":\n")[0])
        loops = [line for line in text.splitlines() if line.strip().startswith("for ")]
        assert len(loops) == 2
        assert ["range(3)" in loop for loop in loops] == [not inside, inside], role


@pytest.mark.nightly
@pytest.mark.parametrize(("queries", "apart"), [(256, False), (320, True), (300, True)])
def test_a_tile_of_queries_that_leaves_a_head_adds_nothing_to_the_next(queries: int, apart: bool):
    """A consumer adds 64 of the 128 queries of a tile: all of them may be past the end."""
    op = attention.full(1, 2, q_len=queries, kv_len=256, head_dim=64)
    made = joined(backward(op, IN_ORDER).htile, in_order=True)
    _, plan = plan_of(made.program, made.joint, made.total, made.order, UniqueNames(()))
    assert (plan.total.matrices is not None) == apart


@pytest.mark.nightly
def test_heads_whose_tiles_differ_are_not_visited_at_a_tile(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(groups, "FEWEST_ROWS", 1)
    made = joined(backward(attention.gqa(1, 6, 512, 128, kv_heads=2), IN_ORDER).htile, in_order=True)
    _, plan = plan_of(made.program, made.joint, made.total, made.order, UniqueNames(()))
    assert plan.heads_of_tiles
    assert plan.joint.around is not None
    (part,) = plan.structure.parts
    assert part.loop is not None
    later = ir.Arith("+", part.loop.start, ir.Name(plan.joint.around.var))
    structure = replace(plan.structure, parts=(replace(part, loop=replace(part.loop, start=later)),))
    assert not replace(plan, structure=structure).heads_of_tiles


@pytest.mark.nightly
@pytest.mark.parametrize("width", [64, 128])
def test_slopes_in_a_tensor(width: int):
    """A value per head that a mod captures is read before the loop."""
    slopes = torch.tensor([0.5, 0.125])

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + slopes[h] * (kv - q)

    passes = training(attention.general(1, 2, 300, 300, width, mod, lambda b, h, q, kv: q >= kv), ("q", "k", "v"))
    config = nl.TileConfig(block_q=128, block_kv=64 if width == 128 else 128)
    kernel = nl.compile(passes.backward, config=config, target="h100", validate="none", code=IN_ORDER)
    assert "slopes" in kernel.htile.inputs
    assert wrong_at(kernel.triton, passes.backward) is None


@pytest.mark.nightly
@pytest.mark.parametrize("width", [64, 128])
def test_weights_past_the_end_may_be_infinite(width: int):
    """All scores are about -280, so the weight of a key that does not exist, whose score is 0, is infinite."""
    assert simulated(attention.full(1, 1, 290, width), shift=6 if width == 64 else 5) < 3e-2


@pytest.mark.nightly
def test_the_nests_have_to_compute_the_same_tiles():
    """Another number, another tensor, another mask in one of them; and fewer pairs."""
    kernel = backward(attention.causal(1, 2, 512, 128))
    program = kernel.htile
    joint = joint_of(program)

    def changed(of: ir.Kernel, change: Callable[[Any], Any]) -> ir.Program:
        def visit(node: Any) -> Any:
            node = change(node)
            if isinstance(node, tuple):
                return tuple(map(visit, node))
            fields = getattr(node, "__dataclass_fields__", {})
            kept = {n: getattr(node, n) for n in fields if n not in ("_hash",)}
            new = {
                n: visit(value)
                for n, value in kept.items()
                if isinstance(value, tuple) or hasattr(value, "__dataclass_fields__")
            }
            return replace(node, **new) if any(new[n] is not kept[n] for n in new) else node

        made = replace(of, body=visit(of.body))
        assert made != of
        return replace(program, kernels=tuple(made if k is of else k for k in program.kernels))

    def scale(node):
        is_scale = isinstance(node, ir.Literal) and isinstance(node.value, float) and 0.12 < node.value < 0.13
        return replace(node, value=0.2) if is_scale else node

    def mask(node):
        return replace(node, op="lt") if isinstance(node, ir.Elementwise) and node.op == "le" else node

    def tensor(node):
        return replace(node, tensor="lse2") if isinstance(node, ir.Access) and node.tensor == "d_lse" else node

    def later(node):
        return replace(node, start=ir.Arith("+", node.start, ir.Int(1))) if isinstance(node, ir.For) else node

    assert joint_of(changed(joint.other, later)).value == joint.value  # (the other nest may visit less)
    for of, change, message in (
        (joint.kernel, scale, "do not compute the same tiles"),
        (joint.other, scale, "do not compute the same tiles"),
        (joint.kernel, mask, "do not compute the same tiles"),
        (joint.kernel, tensor, "do not compute the same tiles"),
        (joint.kernel, later, "does not visit all pairs"),
    ):
        with pytest.raises(UnsupportedKernel, match=message):
            joint_of(changed(of, change))


def test_programs_add_in_order_only_if_they_can_wait_for_the_one_before():
    """Row blocks 0 and 2, but not 1, visit the first queries."""
    program = backward(attention.causal(1, 2, 512, 128), IN_ORDER).htile
    joint = joint_of(program)
    assert joint.in_turn
    assert joint.from_first
    (loop,) = (stmt for stmt in joint.kernel.body if isinstance(stmt, ir.For))
    odd = ir.Arith("%", ir.Name(joint.row), ir.Int(2))
    wider = replace(loop, start=ir.Arith("*", loop.start, odd))
    body = tuple(wider if stmt is loop else stmt for stmt in joint.kernel.body)
    changed = replace(joint.kernel, body=body)
    program = replace(program, kernels=tuple(changed if k is joint.kernel else k for k in program.kernels))
    assert joined(program).order is None
    with pytest.raises(UnsupportedKernel, match="not consecutive"):
        joined(program, in_order=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["causal", "window"])
def test_programs_wait_for_the_one_before(name: str):
    """The simulator's programs run one after the other; each waits for the one that added to its tile last."""
    op, score_mod = {
        "causal": (attention.causal(1, 1, 256, 128), causal),
        "window": (attention.window(1, 1, 512, 128, window=200), windowed),
    }[name]
    assert simulated(op, score_mod, code=IN_ORDER) < 3e-3


def test_the_adders_of_a_program_count_apart():
    """Each tile has a counter for each consumer, and the numbers of programs are counted at another place."""
    source = backward(attention.causal(1, 1, 256, 128), IN_ORDER).source
    calls = (re.findall(rf"{name}\((order_ptr .*), ", source) for name in ("_await", "_tell", "add"))
    (awaited,), (told,), (numbered,) = calls
    places = [eval(awaited, {"order_ptr": 0, "at": at, "adder": n}) for at in (0, 64, 128, 192) for n in range(2)]
    assert awaited == told
    assert len({*places, eval(numbered, {"order_ptr": 0})}) == len(places) + 1


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "fewer rows than a program has": (lambda: attention.causal(1, 1, 96, 128), "it has 96 rows per program"),
    "less than a tile": (lambda: attention.causal(1, 1, 127, 128), "expected 64, 128 or 192"),
    "a width between": (lambda: attention.causal(1, 1, 256, 96), "powers of two"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_such_kernel_is_refused(name: str):
    make, reason = REFUSED[name]
    op = make()
    with pytest.raises(EmitError, match=reason):
        backward(op)
    assert joint_kernel(training(op, ("q", "k", "v")).backward, "h100") is None


def test_a_tile_that_is_read_too_early_gives_wrong_numbers():
    """The barriers of the tiles that both consumers read are needed."""

    def hurried(text: str) -> str:
        assert "pred=done > 0)" in text
        return text.replace("pred=done > 0)", "pred=False)").replace("gl.warp_specialize", "gl.warp_specialize")

    op = attention.causal(1, 1, 256, 128)
    assert not simulated(op, causal, hurried) < 3e-3


@pytest.mark.nightly
@pytest.mark.xdist_group("gluon")
def test_kernels_compile_for_hopper(tmp_path: Path):
    """Without products that wait for each other, and with few spilled registers."""
    paths = []
    for name, op in {
        "a": attention.causal(1, 4, 1024, 128, dtype="bfloat16"),
        "b": attention.full(1, 4, 1024, 128),
        "c": attention.causal(1, 4, 1024, 64),
        "d": attention.full(1, 4, 1024, 64, dtype="bfloat16"),
    }.items():
        paths.append(tmp_path / f"{name}.py")
        paths[-1].write_text(backward(op).source)
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT), *map(str, paths)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    for kernels in json.loads(said).values():
        (facts,) = kernels.values()
        assert not facts["serialized"]
        assert facts["spills"] <= 160
        assert facts["shared"] <= 232448


@pytest.mark.parametrize(
    ("make", "joint"),
    [
        (lambda: attention.full(1, 2, 256, 64), True),
        (lambda: attention.causal(1, 2, 256, 64), False),
        (lambda: attention.causal(1, 2, 256, 128), True),
    ],
    ids=["full, 64", "causal, 64", "causal, 128"],
)
def test_nests_are_one_kernel_by_default_where_that_is_as_fast(make: Callable[[], Any], joint: bool):
    assert (default_joint_choice(training(make(), ("q", "k", "v")).backward) is not None) == joint


@pytest.mark.nightly
@pytest.mark.parametrize(("code", "heads"), [(IN_ORDER, "4"), (JOINT, "2")], ids=["in order", "any order"])
def test_enough_heads_run_together_to_even_out_row_blocks(code: nl.CodeOptions, heads: str):
    """Of 4 heads of keys with 64 row blocks each, which serve 8 heads of queries; the cache holds the tiles of one."""
    op = attention.gqa(1, 32, 8192, 128, kv_heads=4, dtype="bfloat16")
    assert re.findall(r"_locate\(.*, 64, (\d+)\)", backward(op, code).source) == [heads] * 3


@pytest.mark.nightly
def test_all_heads_of_a_group_count_if_a_program_visits_them_one_after_the_other():
    op = attention.gqa(4, 32, 2048, 128, causal=False, kv_heads=8, dtype="bfloat16")
    assert re.findall(r"_locate\(.*, 16, (\d+)\)", backward(op, IN_ORDER).source) == ["4"] * 3
