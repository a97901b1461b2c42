"""Tiles before the first and after the last column that an input flags are skipped, and no others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neptune_lab as nl
from neptune_lab.htile import from_text, interpret, to_text, verify
from neptune_lab.htile.nodes import Access, For, Program, Reduce, Store
from neptune_lab.htile.walk import stores
from neptune_lab.htile_passes.only_row import only_row
from neptune_lab.operators import attention
from neptune_lab.pipeline.lower import code_passes

BATCH, HEADS, COLUMNS, TILE = 2, 4, 45, 8
NAME = "skip_tiles_by_flags"
# The splits of six tiles, and what is captured: booleans as a model has them, or integers.
FORMS = {"splits": (2, True), "integers": (2, False), "loop": (None, True)}


@cache
def programs(form: str) -> tuple[Program, Program]:
    """A program of attention before the pass and after it."""
    splits, live = FORMS[form]
    shown = np.zeros((BATCH, 1, 1, COLUMNS), "bool")
    operator = attention.general(
        *(BATCH, HEADS, 1, COLUMNS, 4), kv_heads=2, mask_mod=lambda b, h, q, kv: shown[b, 0, 0, kv], dtype="float32",
        empty_rows="zero", live=live,
    )  # fmt: skip
    config = nl.TileConfig(block_kv=TILE) if splits is None else nl.SplitKConfig(splits=splits, block_kv=TILE)
    template = "rolling_update" if splits is None else "split_k_update"
    kernel = nl.compile(operator, template, config=config, validate="none")
    done = next(done for done in kernel.passes if done.name == NAME)
    return done.before, done.program


def run(program: Program, shown: np.ndarray) -> tuple[np.ndarray, set[tuple[int, int]]]:
    """The output; and the sample and first column of each tile that loops visit."""
    rng = np.random.default_rng(0)
    flags = shown.reshape(BATCH, 1, 1, COLUMNS).astype(program.tensor("shown").dtype)
    arrays = {
        name: flags if name == "shown" else rng.standard_normal(program.tensor(name).shape).astype("float32")
        for name in program.inputs
    }
    seen: set[tuple[int, int]] = set()
    inside = {next(stores(s.body)).node_id for k in program.kernels for s in k.body if isinstance(s, For)}

    def count(store: Store, _env: object, positions: tuple[np.ndarray, ...], _values: object) -> None:
        if store.node_id in inside:
            seen.add((int(positions[0].min()), int(positions[3].min())))

    return interpret(program, arrays, observer=count)[program.outputs[0]], seen


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=6)
@given(flags=st.lists(st.lists(st.integers(0, COLUMNS - 1), max_size=4), min_size=BATCH, max_size=BATCH))
def test_the_meaning_stays_and_splits_visit_what_is_between_their_flags(form: str, flags: list[list[int]]):
    before, after = programs(form)
    assert after is not before
    shown = np.zeros((BATCH, COLUMNS), "bool")
    for b, columns in enumerate(flags):
        shown[b, columns] = True
    out, visited = run(after, shown)
    np.testing.assert_allclose(out, run(before, shown)[0], atol=1e-6)
    step = (FORMS[form][0] or 1) * TILE  # tiles are dealt to the splits in turn
    wanted = set()
    for b in range(BATCH):
        for first in range(0, step, TILE):
            own = [j for j in range(first, COLUMNS, step) if shown[b, j : j + TILE].any()]
            wanted |= {(b, j) for j in range(min(own), max(own) + 1, step)} if own else set()
    assert visited == wanted


def test_the_text_of_the_program_is_complete():
    _, after = programs("splits")
    verify(after)
    assert "_flagged[0:3] = reduce(" in to_text(after)
    assert from_text(to_text(after)) == after


def test_other_flags_are_left_alone():
    """Those of rows too, and those of kernels for all sizes, in which their number varies."""
    of_rows = np.zeros((3, COLUMNS), "bool")
    operator = attention.general(
        BATCH, HEADS, 3, COLUMNS, 4, mask_mod=lambda b, h, q, kv: of_rows[q, kv], dtype="float32", live=True
    )
    kernel = nl.compile(operator, "rolling_update", block_kv=TILE, validate="none")
    assert not next(done for done in kernel.passes if done.name == NAME).notes
    assert NAME not in code_passes(nl.CodeOptions(), any_size=True)


# Heads of keys; whether the only row is padded to tiles of 16, which matrix units multiply.
ROWS = {"grouped": (2, False), "padded": (HEADS, True)}


@cache
def with_documents(form: str) -> tuple[Program, Program]:
    """A program in which the last position sees its own document, before the pass and after it."""
    kv_heads, padded = ROWS[form]
    document = np.zeros(COLUMNS, "int32")

    def mask(b, h, q, kv):
        return (document[q + COLUMNS - 1] == document[kv]) & (q + COLUMNS - 1 >= kv)

    operator = attention.general(
        *(BATCH, HEADS, 1, COLUMNS, 4), kv_heads=kv_heads, mask_mod=mask, dtype="float32", empty_rows="zero", live=True
    )
    config = nl.SplitKConfig(splits=2, block_kv=TILE, pad_rows=padded)
    kernel = nl.compile(operator, "split_k_update", config=config, validate="none")
    done = next(done for done in kernel.passes if done.name == NAME)
    return done.before, done.program


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", ROWS)
@settings(max_examples=3)
@given(document=st.lists(st.integers(-1, 1), min_size=COLUMNS, max_size=COLUMNS))
def test_a_row_visits_what_is_between_the_tiles_of_its_document(form: str, document: list[int]):
    """Also where a padded row, which reads a 0 past the end, is of another document."""
    before, after = with_documents(form)
    documents = np.array(document, "int32")
    rng = np.random.default_rng(0)
    arrays = {
        name: documents if name == "document" else rng.standard_normal(before.tensor(name).shape).astype("float32")
        for name in before.inputs
    }
    seen: set[int] = set()
    inside = {next(stores(s.body)).node_id for k in after.kernels for s in k.body if isinstance(s, For)}

    def count(store: Store, _env: object, positions: tuple[np.ndarray, ...], _values: object) -> None:
        if store.node_id in inside:
            seen.add(int(positions[3].min()))

    out = interpret(after, arrays, observer=count)[after.outputs[0]]
    np.testing.assert_allclose(out, interpret(before, arrays)[before.outputs[0]], atol=1e-6)
    wanted: set[int] = set()
    for first in (0, TILE):
        own = [j for j in range(first, COLUMNS, 2 * TILE) if (documents[j : j + TILE] == documents[-1]).any()]
        wanted |= set(range(min(own), max(own) + 1, 2 * TILE)) if own else set()
    assert seen == wanted


def test_rows_that_are_stored_are_no_padding():
    """Of two queries with documents of their own, neither decides alone."""
    document = np.zeros(COLUMNS, "int32")
    operator = attention.general(
        *(BATCH, HEADS, 2, COLUMNS, 4), mask_mod=lambda b, h, q, kv: document[q] == document[kv], dtype="float32",
        live=True,
    )  # fmt: skip
    config = nl.TileConfig(block_q=16, block_kv=TILE, pad_rows=True)
    kernel = nl.compile(operator, "rolling_update", config=config, validate="none")
    assert not next(done for done in kernel.passes if done.name == NAME).notes


def test_rows_that_are_combined_are_no_padding():
    program = with_documents("padded")[0]
    (kernel,) = (k for k in program.kernels if any(isinstance(s, For) for s in k.body))
    assert only_row(program, kernel) == 16
    rows = next(s.target for s in stores(kernel.body) if s.target.tensor.startswith("s_sum"))
    total = Store("total", Access("total", ()), Reduce("sum", rows, 0), kernel.body[-1].origin)
    assert only_row(program, replace(kernel, body=(*kernel.body, total))) == 0
