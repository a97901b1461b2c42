"""Typed options: what `compile` takes, how a choice is written flat and read back, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_to_stages import patterns

import neptune_lab as nl
from neptune_lab import records
from neptune_lab.errors import EmitError, ScheduleError, ValidationError
from neptune_lab.operators import attention, training
from neptune_lab.pipeline import Choice, compile_choice, schedule
from neptune_lab.pipeline.tuned import kernel_of_record

OP = attention.causal(1, 1, seq=64, head_dim=16)
TILES = {"block_q": 16, "block_kv": 16}

CHOICES = [
    Choice(),
    Choice("rolling_update"),
    Choice("rolling_update", nl.TileConfig(block_q=(16, None), num_stages=3, pad_rows=True)),
    Choice("split_k_update", nl.SplitKConfig(splits=(2, None), multiprocessors=16)),
    Choice(None, nl.SplitKConfig(splits=2)),
    Choice("rolling_update", None, nl.CodeOptions(code="gluon", disable_passes=("longest_first",), loop_stages=2)),
    Choice(None, nl.TileConfig(num_warps=8), nl.CodeOptions(code="gluon", loads="descriptors", ping_pong=False)),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_choice_is_written_and_read_back(choice: Choice):
    text = json.dumps(choice.to_json())
    assert Choice.from_json(json.loads(text)) == choice
    assert Choice.of(choice.template, choice.options) == choice


def test_the_flat_names_are_told_apart():
    """A flat form has one name for each field, so no field of a config is one of CodeOptions."""
    config, code = ({f.name for f in dataclasses.fields(kind)} for kind in (nl.SplitKConfig, nl.CodeOptions))
    assert not config & code


def test_all_records_that_are_shipped_are_choices():
    found = records.shipped()
    assert found
    for record in found:
        choice = Choice.of(record.template, record.options, "the record")
        assert choice.options.items() <= {**record.options}.items()
        assert Choice.from_json(choice.to_json()) == choice


def _function(name: str, *shapes: tuple[int, ...]):
    return nl.from_torch(getattr(patterns, name), *(torch.zeros(shape, dtype=torch.float16) for shape in shapes))


HEADS = (1, 64, 512, 64)


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: _function("vanilla", *[(1, 64, 1024, 64)] * 3), "gluon"),
        (lambda: _function("vanilla", HEADS, HEADS, HEADS), "gluon"),
        (lambda: _function("vanilla", *[(1, 64, 128, 64)] * 3), "triton"),
        (lambda: _function("vanilla", *[(1, 64, 300, 64)] * 3), "triton"),
        (lambda: _function("invariant_point", *[HEADS] * 3, *[(1, 64, 512, 4, 3)] * 2, (64,)), "triton"),
        (lambda: _document(), "triton"),
        (lambda: _masked(), "triton"),
    ],
    ids=[
        "vanilla",
        "short",
        "programs of two groups of warps have too little to do",
        "programs would take a second turn",
        "twelve vectors of a tile do not fit registers",
        "tiles of other documents are skipped",
        "a tile of bool",
    ],
)
def test_what_nobody_tuned_is_in_gluon_where_that_is_faster(make, code: str):
    kernel = nl.compile(make(), tuned=True, target="h200", validate="none")
    assert kernel.code.code == code


@pytest.mark.nightly
@pytest.mark.parametrize(("causal", "code"), [(False, "gluon"), (True, "triton")])
def test_a_bias_per_pair_has_wide_tiles_in_gluon_if_they_fit(causal: bool, code: str):
    """The log-sum-exp, which the forward pass of training also gives, has no columns: it changes nothing."""
    bias = torch.zeros(64, 512, 512, dtype=torch.bfloat16)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + bias[h, q, kv]

    mask = (lambda b, h, q, kv: q >= kv) if causal else None
    op = attention.general(1, 64, 512, 512, 128, mod, mask, "bfloat16", empty_rows="zero", live=True)
    for one in (op, training(op).forward):
        kernel = nl.compile(one, tuned=True, target="h200", validate="none")
        assert kernel.code.code == code
        assert code == "triton" or "_SHARED_128_128_BFLOAT16" in kernel.source  # 128 keys of 128 columns


def _masked():
    q = torch.zeros(HEADS, dtype=torch.float16)
    mask = torch.ones(512, 512, dtype=torch.bool)
    return nl.from_torch(lambda q, k, v, m: torch.softmax((q @ k.mT).masked_fill(m, -1e4), -1) @ v, q, q, q, mask)


def _document():
    q = torch.zeros(HEADS, dtype=torch.float16)
    return nl.from_torch(patterns.document_mask, q, q, q, torch.zeros(1, 512, dtype=torch.int32))


def test_the_sizes_by_name_are_those_of_a_config():
    by_name = nl.compile(OP, "rolling_update", **TILES)
    config = nl.compile(OP, "rolling_update", config=nl.TileConfig(**TILES))
    assert by_name.source == config.source == compile_choice(OP, Choice.of("rolling_update", TILES)).source
    both = nl.compile(OP, "rolling_update", block_q=16, config=nl.TileConfig(block_kv=16))
    assert both.source == config.source
    assert schedule(OP, "rolling_update", **TILES).steps == both.schedule.steps
    sch = nl.templates.rolling_update(nl.Schedule(OP), nl.TileConfig(**TILES))
    assert sch.steps == both.schedule.steps


def test_a_config_of_any_template_serves_split_k_update():
    plain, split = (
        nl.compile(OP, "split_k_update", config=kind(block_q=16, block_kv=16), validate="none").source
        for kind in (nl.TileConfig, nl.SplitKConfig)
    )
    assert plain == split


def test_passes_by_name_are_those_of_code():
    name = ("exponentials_to_base_two",)
    a = nl.compile(OP, "rolling_update", **TILES, disable_passes=name).source
    b = nl.compile(OP, "rolling_update", **TILES, code=nl.CodeOptions(disable_passes=name)).source
    assert a == b != nl.compile(OP, "rolling_update", **TILES).source


@pytest.mark.parametrize(
    ("act", "error", "message", "help"),
    [
        (lambda: nl.compile(OP, blok_q=1), ScheduleError, "compile has no argument 'blok_q'", "did you mean 'block_q'"),
        (lambda: nl.compile(OP, num_warps=8), ScheduleError, "no argument 'num_warps'", r"nl.TileConfig\(num_warps=…"),
        (lambda: nl.compile(OP, splits=2), ScheduleError, "no argument 'splits'", r"nl.SplitKConfig\(splits=…"),
        (lambda: nl.compile(OP, loads="x"), ScheduleError, "no argument 'loads'", r"code=nl.CodeOptions\(loads=…"),
        (lambda: schedule(OP, splits=2), ScheduleError, "schedule has no argument", r"nl.SplitKConfig\(splits=…"),
        (
            lambda: nl.templates.rolling_update(nl.Schedule(OP), num_warps=8),
            ScheduleError, "rolling_update has no argument", r"config=nl.TileConfig\(num_warps=…",
        ),
        (lambda: nl.TileConfig(splits=2), ScheduleError, "TileConfig has no field 'splits'", "block_q, block_kv"),
        (lambda: nl.SplitKConfig(split=2), ScheduleError, "SplitKConfig has no field 'split'", "did you mean 'splits'"),
        (lambda: nl.CodeOptions(load="x"), ScheduleError, "CodeOptions has no field 'load'", "did you mean 'loads'"),
        (lambda: dataclasses.replace(nl.TileConfig(), split=2), ScheduleError, "no field 'split'", "the fields"),
        (lambda: nl.TileConfig(block_q=2.0), ScheduleError, r"block_q=2.0, expected a positive integer", "such as 64"),
        (lambda: nl.TileConfig(block_q=(16, "a")), ScheduleError, "block_q='a', expected a positive", "such as 64"),
        (lambda: nl.TileConfig(block_q=True), ScheduleError, "block_q=True, expected a positive", "such as 64"),
        (lambda: nl.TileConfig(multiprocessors=None), ScheduleError, "multiprocessors=None, expected", "such as 132"),
        (lambda: nl.compile(OP, config=TILES), ScheduleError, "config={.*}: expected a TileConfig", "num_warps=8"),
        (lambda: nl.compile(OP, code="gluon"), ScheduleError, "code='gluon': expected a CodeOptions", 'code="gluon"'),
        (
            lambda: nl.compile(OP, "rolling_update", config=nl.SplitKConfig(splits=2)),
            ScheduleError, "'rolling_update' takes a TileConfig, got a SplitKConfig", "leave splits out",
        ),
        (
            lambda: nl.compile(OP, block_q=16, config=nl.TileConfig(block_q=16)),
            ScheduleError, "block_q=16 is given by name, and config has block_q=16", "give block_q once",
        ),
        (
            lambda: nl.compile(OP, disable_passes=("longest_first",), code=nl.CodeOptions(disable_passes=("x",))),
            ScheduleError, "there is no such pass", "longest_first",
        ),
        (
            lambda: nl.compile(
                OP, disable_passes=("longest_first",), code=nl.CodeOptions(disable_passes=("longest_first",))
            ),
            ScheduleError, "disable_passes=.* is given by name, and code has", "once",
        ),
        (lambda: nl.compile(nl.Schedule(OP), config=nl.TileConfig()), ScheduleError, "without changes", "operator"),
        (lambda: Choice.of("rolling_update", {"splits": 2}), ScheduleError, "has no option 'splits'", "block_q"),
        (lambda: Choice.of(None, {"target": "h200"}), ScheduleError, "there is no option 'target'", "block_q"),
        (lambda: Choice.of("rolling", {}), ScheduleError, "there is no template 'rolling'", "rolling_update"),
        (lambda: Choice.from_json({"template": None}), ScheduleError, "no field 'options'", None),
        (lambda: Choice.of(None, {"interleave": 3}), ScheduleError, "interleave=3: expected one of 1, 2", None),
        (lambda: Choice.of(None, {"loads": "near"}), EmitError, "loads='near': expected one of", None),
    ],
)  # fmt: skip
def test_what_is_not_an_option_is_refused_with_its_place(act, error, message: str, help: str | None):
    with pytest.raises(error, match=message) as refused:
        act()
    if help is not None:
        assert refused.value.help is not None
        assert re.search(help, refused.value.help)


def _record(monkeypatch: pytest.MonkeyPatch, template: str, workload: str = "", **options):
    found = SimpleNamespace(template=template, options=options, workload=workload)
    monkeypatch.setattr(records, "nearest", lambda op: found)


@pytest.mark.nightly
def test_what_is_given_replaces_parts_of_the_record(monkeypatch: pytest.MonkeyPatch):
    _record(monkeypatch, "rolling_update", block_q=16, block_kv=32, num_warps=8, interleave=1, loop_stages=2)

    def tuned(**given):
        kernel = nl.compile(OP, tuned=True, validate="none", **given)
        return kernel.source

    def plain(config: nl.TileConfig, **code):
        return nl.compile(OP, "rolling_update", config=config, code=nl.CodeOptions(**code), validate="none").source

    whole = nl.TileConfig(block_q=16, block_kv=32, num_warps=8)
    assert tuned() == plain(whole, loop_stages=2)
    assert tuned(block_kv=16) == plain(dataclasses.replace(whole, block_kv=16), loop_stages=2)
    assert tuned(config=nl.TileConfig(block_q=32)) == plain(dataclasses.replace(whole, block_q=32), loop_stages=2)
    without = ("exponentials_to_base_two",)
    assert tuned(disable_passes=without) == plain(whole, loop_stages=2, disable_passes=without)
    assert tuned(code=nl.CodeOptions(tanh="exp2")) == plain(whole, loop_stages=2)
    assert tuned(code=nl.CodeOptions(loop_stages=None)) == plain(whole)


OLD = {"block_q": 16, "warp_specialize": True}  # of a version that had this option
LARGE = {"block_q": (16, 16)}  # of an operator with two nests


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("options", "why"), [(OLD, "has no option 'warp_specialize'"), (LARGE, r"has 2 entries for 1 nests")]
)
def test_a_record_that_does_not_compile_is_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch, options, why):
    _record(monkeypatch, "rolling_update", records.workload_key(OP), **options)
    with pytest.warns(records.RecordsWarning, match=rf"its record is skipped: .*{why}(.|\n)*help: tune the operator"):
        kernel = nl.compile(OP, tuned=True, validate="none")
    assert kernel.source == nl.compile(OP, validate="none").source


def test_the_choice_of_other_sizes_is_skipped_silently(monkeypatch: pytest.MonkeyPatch):
    _record(monkeypatch, "rolling_update", "other sizes", **OLD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert nl.compile(OP, tuned=True, validate="none").source == nl.compile(OP, validate="none").source


def test_a_tuned_kernel_that_differs_from_the_definition_is_not_skipped(monkeypatch: pytest.MonkeyPatch):
    def wrong(choice: Choice):
        raise ValidationError("it differs", stage="Triton", script=None, help="report it")

    _record(monkeypatch, "rolling_update")
    with pytest.raises(ValidationError):
        kernel_of_record(records.nearest(OP), wrong, exact=True)


def test_options_that_have_their_defaults_are_left_out():
    written = Choice.of("rolling_update", {"pad_rows": False, "loads": "pointers", "block_q": [16, None]})
    assert written == Choice.from_json({"template": "rolling_update", "options": {"block_q": [16, None]}})
    assert str(written) == "rolling_update block_q=16,-"
    assert Choice.of("rolling_update", {"pad_rows": False}) == Choice("rolling_update")
    assert [written.value(name) for name in ("block_q", "pad_rows", "loads")] == [(16, None), False, "pointers"]
