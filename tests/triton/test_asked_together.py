"""Products of few rows ask for all of their first tiles before they wait for one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

import neptune_lab as nl
from neptune_lab.htile.nodes import Access, For, Literal, Stmt, Store
from neptune_lab.htile_to_triton import EmitOptions
from neptune_lab.htile_to_triton.asked_together import loaded_in_loops, runs_once
from neptune_lab.operators import Operator, attention
from neptune_lab.target import ANY, Target

H200 = EmitOptions(target=Target("h200"))
OPERATORS = {
    "heads": lambda: attention.window(batch=2, heads=2, q_len=1, kv_len=300, head_dim=48, window=200),
    "groups": lambda: attention.gqa(batch=2, heads=8, kv_heads=2, q_len=1, kv_len=256, head_dim=32, causal=False),
    "chunks": lambda: attention.causal(heads=2, q_len=9, kv_len=300, head_dim=32),
}
# Splits of several tiles, of one, and no splits.
TILES = {"loops": {"splits": 2}, "once": {"splits": 5}, "whole": {"splits": 1}}


def compiled(
    op: Operator, block_kv: int = 64, splits: int = 2, target: str = "h200", validate: str = "none", **more
) -> nl.Kernel:
    config = nl.SplitKConfig(block_kv=block_kv, splits=splits, pad_rows=True, **more)
    return nl.compile(op, "split_k_update", config=config, target=target, validate=validate)


@pytest.mark.one_in(10)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("tiles", TILES)
def test_numbers(operator, tiles):
    kernel = compiled(OPERATORS[operator](), validate="quick", **TILES[tiles])
    text = kernel.source
    assert ("for once in range(" in text) == (tiles == "once"), "a loop that runs once, of single tiles only"
    assert bool(re.search(r"& \(j0 >= \d+\)", text)) == (tiles != "once")
    assert kernel.validated


@pytest.mark.nightly
@pytest.mark.parametrize("kv_len", [64, 128])
def test_triton_asks_before_it_waits(kv_len):
    """The first wait of the machine code comes behind the copies of rows, keys and values."""
    op = attention.full(heads=2, q_len=1, kv_len=kv_len, head_dim=32)
    code = nl.compile(op, "rolling_update", config=nl.TileConfig(block_kv=64, pad_rows=True), target="h200")
    ptx = code.machine_code("sm_90").text("ptx")
    before = ptx[: ptx.index("cp.async.wait_group")]
    assert before.count("cp.async.commit_group") >= 3
    assert not re.search(r"ld\.global|st\.shared", before)


@pytest.mark.nightly
def test_where_nothing_is_changed():
    op = OPERATORS["groups"]()
    many = attention.full(heads=2, q_len=40, kv_len=256, head_dim=32)
    for kernel in (compiled(op, target="any"), compiled(op, num_stages=1), compiled(many, block_q=32)):
        assert ">= 0)" not in kernel.source.split("_combine")[0]
    program = compiled(op).htile
    local = program.kernels[0]
    assert loaded_in_loops(program, local, H200)
    assert not loaded_in_loops(program, local, replace(H200, target=ANY))
    assert not loaded_in_loops(program, local, replace(H200, loads="host_descriptors"))
    rows = next(s for s in local.body if isinstance(s, Store) and s.target.tensor == "q_tile")
    read_again = replace(rows, node_id="again", target=replace(rows.target, tensor="other"), value=rows.target)
    assert not loaded_in_loops(program, replace(local, body=(*local.body, read_again)), H200), "read behind the loop"


def stored_again(rows: Store) -> Store:
    return replace(rows, node_id="again", value=Literal(0.0, "float16"))


def stored_to(rows: Store) -> Store:
    assert isinstance(rows.value, Access)
    return replace(rows, node_id="stored", target=rows.value, value=Literal(0.0, "float16"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("other", [stored_again, stored_to], ids=lambda f: f.__name__)
@pytest.mark.parametrize("in_a_loop", [False, True])
def test_rows_that_change_are_loaded_once(other: Callable[[Store], Store], in_a_loop: bool):
    program = compiled(OPERATORS["groups"]()).htile
    local = program.kernels[0]
    rows = next(s for s in local.body if isinstance(s, Store) and s.target.tensor == "q_tile")

    def changed(stmt: Stmt) -> Stmt:
        return replace(stmt, body=(*stmt.body, other(rows))) if isinstance(stmt, For) else stmt

    body = tuple(map(changed, local.body)) if in_a_loop else (*local.body, other(rows))
    assert not loaded_in_loops(program, replace(local, body=body), H200)


def test_rows_under_a_condition_are_loaded_once():
    program = compiled(OPERATORS["groups"]()).htile
    local = program.kernels[0]
    always = Literal(value=True, dtype="bool")
    body = tuple(
        replace(s, mask=always) if isinstance(s, Store) and s.target.tensor == "q_tile" else s for s in local.body
    )
    assert not loaded_in_loops(program, replace(local, body=body), H200)


def test_tiles_that_only_fit_in_turns_are_not_asked_for_together():
    op = attention.full(heads=2, q_len=1, kv_len=512, head_dim=128)
    program = compiled(op, block_kv=512, splits=1).htile
    assert not runs_once(program, program.kernels[0], H200)
    program = compiled(op, block_kv=256).htile
    assert runs_once(program, program.kernels[0], H200)
