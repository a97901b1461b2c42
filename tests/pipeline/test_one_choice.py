"""Every entry point asks the same function for template and options."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import pytest
import torch

import neptune_lab as nl
from neptune_lab import records
from neptune_lab.autotune import ranking
from neptune_lab.choice import Choice, Given
from neptune_lab.errors import EmitError
from neptune_lab.operators import attention, norms
from neptune_lab.operators.math import tanh
from neptune_lab.pipeline import chosen_kernel, lower, tuned
from neptune_lab.pipeline.compile import compile_choice
from neptune_lab.pipeline.hopper import gluon_kernel
from neptune_lab.pytorch import compiled
from neptune_lab.pytorch.kernel_choice import kernel_for
from neptune_lab.target import Target

H200 = Target("h200")
CASES = {
    "prefill": attention.causal(batch=2, heads=8, seq=900, head_dim=64),
    "decoding": attention.full(batch=2, heads=8, q_len=1, kv_len=3000, head_dim=64),
}


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    """What is asked about the GPU is answered as on an H200, except by the launch."""
    monkeypatch.setattr(Target, "current", classmethod(lambda cls, otherwise=None: H200))
    monkeypatch.setattr(tuned, "has_gpu", lambda: True)
    monkeypatch.setattr(tuned, "_device", lambda target: "NVIDIA H200")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CASES)
def test_the_entry_points_agree(on_a_gpu, name: str):
    op = CASES[name]
    plain = nl.compile(op, validate="none")
    assert plain.source == nl.compile(op, tuned=True, validate="none").source
    assert compiled._spec(op, (op,), {}, torch.device("cpu")).text == plain.source, "nl.attention"
    assert (name == "prefill") == (plain.code.code == "gluon")
    assert plain.chosen
    assert any(text.startswith("Chosen by") for text in plain.remarks)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("nearest", [True, False])
def test_the_text_is_emitted_once(on_a_gpu, monkeypatch: pytest.MonkeyPatch, nearest: bool):
    """Options that follow from the tiles are known by then, whether records of other sizes are followed or none."""
    if not nearest:
        monkeypatch.setattr(tuned, "_record", lambda *of: (None, False))
    emitted, texts = lower.emitted, []
    monkeypatch.setattr(lower, "emitted", lambda *of: texts.append(emitted(*of)) or texts[-1])
    op = attention.causal(batch=1, heads=64, seq=701, head_dim=128)
    kernel = nl.compile(op, tuned=True, validate="none")
    assert kernel.code.persistent
    assert texts == [kernel.triton]


@pytest.mark.nightly
def test_traced_functions_ask_too(on_a_gpu):
    q = torch.zeros(1, 64, 1024, 64, dtype=torch.float16)
    op = nl.from_torch(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, q, q, q)
    assert nl.compile(op, validate="none").code.code == "gluon"


@pytest.mark.nightly
def test_what_is_given_replaces_that_part_of_the_choice(on_a_gpu):
    """Gluon's choice keeps what is left out; what Gluon does not have is chosen for Triton."""
    op = CASES["prefill"]
    chosen = nl.compile(op, validate="none")
    for given, code, changed in (
        ({}, "gluon", {}),
        ({"template": "rolling_update"}, "gluon", {}),
        ({"code": nl.CodeOptions()}, "gluon", {}),
        ({"code": nl.CodeOptions(tie=not chosen.code.tie)}, "gluon", {"tie": not chosen.code.tie}),
        ({"code": nl.CodeOptions(persistent=False)}, "gluon", {"persistent": False}),
        ({"disable_passes": ("longest_first",)}, "gluon", {"disable_passes": ("longest_first",)}),
        ({"code": nl.CodeOptions(code="triton")}, "triton", {}),
        ({"config": nl.TileConfig(num_warps=4)}, "triton", {}),
        ({"template": "split_k_update"}, "triton", {}),
        ({"code": nl.CodeOptions(hidden_tiles="bounds")}, "triton", {"hidden_tiles": "bounds"}),
    ):
        kernel = nl.compile(op, validate="none", **given)  # type: ignore[arg-type]
        assert kernel.code.code == code, given
        if code == "gluon":
            assert kernel.code == dataclasses.replace(chosen.code, **changed), given
        assert all(getattr(kernel.code, name) == value for name, value in changed.items()), given
    for given in ({"target": "h200"}, {"tuned": False}):
        kernel = nl.compile(op, validate="none", **given)  # type: ignore[arg-type]
        assert not kernel.chosen
        assert kernel.code.code == "triton"


@pytest.mark.nightly
def test_tiles_of_few_columns_are_in_triton(on_a_gpu):
    """Unless Gluon is asked for."""
    op, asked = CASES["prefill"], nl.CodeOptions(code="gluon")
    found = [nl.compile(op, block_kv=64, validate="none"), nl.compile(op, block_kv=32, validate="none")]
    found.append(nl.compile(op, block_kv=32, code=asked, validate="none"))
    assert [kernel.code.code for kernel in found] == ["gluon", "triton", "gluon"]


@pytest.mark.nightly
def test_one_option_changes_that_option_alone(on_a_gpu):
    """For every entry point: a tile of 64 columns, and all else as it is chosen for such tiles."""
    op, options = CASES["prefill"], {"block_kv": 64}
    kernel = nl.compile(op, block_kv=64, validate="none")
    assert kernel.code.code == "gluon"
    assert kernel.chosen.endswith("with block_kv=64 as given")
    of_a_call = compiled._spec(op, (op,), options, torch.device("cpu")).text
    assert of_a_call == kernel.source == kernel_for(op, options).source


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("width", "columns"), [(64, None), (128, 64)])
def test_tiles_of_64_rows_have_as_many_columns(width: int, columns: int | None):
    """Those of narrow heads are in Triton, by the shape."""
    op = attention.causal(batch=1, heads=12, seq=4321, head_dim=width)
    found = tuned.choice_and_kernel(op, H200, Given.of(None, {"block_q": 64}))
    assert (None if found is None else found[0].sizes.block_kv) == columns


@pytest.mark.nightly
@pytest.mark.parametrize("width", [64, 128])
def test_decoding_keeps_what_is_not_given(on_a_gpu, width: int):
    op = attention.full(batch=2, heads=8, q_len=1, kv_len=3000, head_dim=width)
    chosen, found = nl.compile(op, validate="none"), nl.compile(op, config=nl.TileConfig(num_stages=2), validate="none")
    assert len(found.htile.kernels) == len(chosen.htile.kernels)
    assert "num_stages=2" in found.source


def test_options_of_code_that_exclude_what_is_given_are_left_out():
    tuned = Choice.of("split_k_update", {"splits": 4, "block_kv": 64, "loads": "host_descriptors", "tanh": "hardware"})
    found = Given.of(None, {"combine": "last_program"}).over(tuned)
    assert found.options == {"splits": 4, "block_kv": 64, "combine": "last_program", "tanh": "hardware"}


def test_a_tuple_leaves_the_sizes_of_other_nests():
    tuned = Choice.of("rolling_update", {"block_q": 128, "block_kv": (64, 32)})
    found = Given.of(None, {"block_q": (None, 16), "block_kv": (None, 64)}).over(tuned)
    assert found.options == {"block_q": (128, 16), "block_kv": (64, 64)}


def test_without_a_gpu_all_follows_from_the_shape():
    op = CASES["prefill"]
    assert nl.compile(op, validate="none").source == nl.compile(op, tuned=False, validate="none").source
    assert not nl.compile(op, validate="none").chosen


def test_a_target_is_served_by_the_records_of_its_gpu_or_its_class():
    op = attention.causal(batch=1, heads=32, seq=2048, head_dim=128)
    of_h200 = nl.compile(op, tuned=True, target="h200", validate="none")
    assert of_h200.chosen.startswith("the tuning record of these sizes")
    assert nl.compile(op, tuned=True, target="h100", validate="none").source == of_h200.source
    assert not nl.compile(op, tuned=True, target="a100", validate="none").chosen


@pytest.mark.nightly
def test_a_record_of_lengths_that_tiles_divide_is_suited_to_one_that_they_do_not():
    op = attention.alibi(batch=1, heads=32, seq=523, head_dim=128)
    record = records.nearest(op, "NVIDIA H200")
    assert record is not None
    assert record.options.get("tie") is False
    kernel = nl.compile(op, tuned=True, target="h200", validate="none")
    assert kernel.code.code == "gluon"
    assert kernel.code.tie


def test_nothing_is_chosen_for_a_template_that_no_choice_has():
    made = chosen_kernel(
        CASES["prefill"], lambda choice: pytest.fail("nothing is compiled"), given=Given("split_k_update")
    )
    assert made is None


def causal(b, h, q, kv):
    return kv <= q


def window(b, h, q, kv):
    return (kv <= q) & (q - kv < 256)


def capped(score, b, h, q, kv):
    return 30.0 * tanh(score / 30.0)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("sizes", "score", "mask", "rows"), [
    ((1, 16, 793, 793, 128), None, causal, 64),
    ((2, 4, 4944, 4944, 96), capped, window, 64),  # which shows few of the columns that the model counts
    ((2, 4, 4944, 4944, 96), capped, causal, 128),
    ((1, 16, 793, 793, 256), None, causal, 64),
    ((1, 64, 701, 701, 128), None, causal, 128),  # programs of two consumers are persistent
])  # fmt: skip
def test_short_kernels_have_tiles_of_one_consumer(sizes, score, mask, rows):
    choice = tuned.untuned_choice(attention.general(*sizes, score, mask, empty_rows="zero", live=True), H200)
    assert choice is not None
    assert choice.code.code == "gluon"
    assert choice.sizes.block_q == rows


def shown_in(a, b):
    """Of the keys up to a query's, in blocks of 64: those whose number and the query's make `a` of `b`."""
    return lambda _b, _h, q, kv: (kv <= q) & ((q // 64 + kv // 64) % b < a)


@pytest.mark.nightly
@pytest.mark.parametrize(("mask", "listed"), [
    (shown_in(1, 3), True),  # which tiles of 128 all show
    (lambda b, h, q, kv: (kv <= q) & (q // 128 % 4 == kv // 128 % 4), True),
    (shown_in(2, 3), False),
])  # fmt: skip
def test_tiles_inside_a_range_are_left_out_if_few_are_shown(mask, listed):
    """Kernels with lists are in Triton, and as fast as those in Gluon if half of the tiles are shown."""
    op = attention.general(1, 8, 1024, 1024, 128, None, mask, empty_rows="zero", live=True)
    found = tuned.choice_and_kernel(op, H200)
    assert found is not None
    assert (found[1].code.code == "triton") == listed
    assert ("_kept(" in found[1].source) == listed


@pytest.mark.nightly
@pytest.mark.parametrize(("length", "positions", "width", "language", "columns"), [
    (200, 1024, 128, "gluon", 64), (512, 1024, 128, "gluon", 128), (200, 4096, 64, "triton", 64),
])  # fmt: skip
def test_documents_of_one_length(length: int, positions: int, width: int, language: str, columns: int):
    """Tiles have fewer columns where these leave many out; those of narrow heads are in Triton."""

    def mask(b, h, q, kv):
        return q // length == kv // length

    sizes = {"batch": 1, "heads": 32, "q_len": positions, "kv_len": positions, "head_dim": width}
    op = attention.general(**sizes, score_mod=None, mask_mod=mask, empty_rows="zero", live=True)
    found = tuned.choice_and_kernel(op, H200)
    assert found is not None
    assert (found[1].code.code, found[0].sizes.block_kv) == (language, columns)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("width", "persistent"), [(96, True), (256, False)])
def test_tiles_that_would_be_refused_are_not_compiled(width: int, persistent: bool, on_a_gpu, monkeypatch):
    """The ranking foresees that programs of two groups of warps are chosen, and the kernel is the same."""

    def relative(s, b, h, q, kv):
        return s + 0.01 * (kv - q)

    op = attention.general(1, 32, 701, 701, width, relative, lambda b, h, q, kv: q >= kv)
    foreseen = nl.compile(op, validate="none")
    assert foreseen.code.persistent == persistent
    assert foreseen.code.one_consumer
    assert not ranking.ranking(op, H200).small
    monkeypatch.setattr(ranking, "_is_surely_persistent", lambda *of: False)
    assert ranking.ranking(op, H200).small
    assert nl.compile(op, validate="none").source == foreseen.source


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("head_dim", "v_head_dim", "large"), [(256, 256, True), (192, 128, True), (128, 128, False)])
def test_tiles_that_shared_memory_has_no_room_for_are_not_compiled(head_dim: int, v_head_dim: int, large: bool):
    """Of those that are foreseen to be too large, no kernel in Gluon can be made."""
    op = attention.causal(2, 64, 2048, head_dim, v_head_dim=v_head_dim)
    found = ranking.ranking(op, H200)
    (one,) = (one for one in found.ranked if one.origin == ranking.GLUON)
    assert found.large == large
    with nullcontext() if not large else pytest.raises(EmitError, match="bytes of shared memory"):
        nl.compile(op, "rolling_update", config=one.choice.sizes, code=one.choice.code, validate="none")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("length", "width", "foreseen"), [(600, 128, True), (600, 64, False), (300, 128, False)])
def test_the_form_in_gluon_is_not_compiled_where_data_bound_loops(length: int, width: int, foreseen: bool):
    """The kernel in Triton that would be chosen later is the same."""
    document = torch.arange(length) // 90
    op = attention.general(8, 32, length, length, width, mask_mod=lambda b, h, q, kv: document[q] == document[kv])
    found = ranking.ranking(op, H200)
    assert found.by_data == foreseen
    if not foreseen:
        return
    tried: list[str] = []

    def make(choice: Choice) -> nl.Kernel:
        tried.append(choice.code.code)
        return compile_choice(op, choice, target=H200, validate="none")

    choice = Choice("rolling_update", ranking.GLUON_TILES, nl.CodeOptions(code="gluon"))
    sources = [gluon_kernel(make, choice, by_data=by_data).source for by_data in (True, False)]
    assert tried == ["triton", "gluon", "triton"]
    assert sources[0] == sources[1]


def test_a_nest_that_cannot_be_split_is_not_chosen_as_if_it_were():
    """The model ranks splits without asking the algebra: the variance of a few long rows has no repair term for them,
    and would roll in programs of four warps."""
    op = norms.layer_norm(rows=38, cols=19962)
    ranked = ranking.ranking(op, H200)
    assert ranked is not None
    assert ranked.ranked[0].choice.sizes.splits
    assert tuned.choice_and_kernel(op, H200) is None
    made = tuned.choice_and_kernel(norms.rms_norm_max(rows=38, cols=50000), H200)  # (a chain that has one)
    assert made is not None
    assert made[0].sizes.splits
