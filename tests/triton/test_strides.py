"""Kernels of tensors that are not contiguous: addresses, descriptors, outputs, checks of arguments, texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from by_turns import in_turn
from htile_programs import softmax
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS

import neptune_lab as nl
from neptune_lab.errors import DefinitionError, LaunchError, MeasureError, TileError, ValidationError
from neptune_lab.htile.nodes import Arith, Int, Name
from neptune_lab.htile.parser import from_text
from neptune_lab.htile.printer import to_text
from neptune_lab.htile.verify import verify
from neptune_lab.htile.walk import evaluate
from neptune_lab.htile_to_triton import addresses, emit
from neptune_lab.htile_to_triton.addresses import strides, weighted_sum
from neptune_lab.operators import Operator, attention, norms
from neptune_lab.pipeline.validate.check import forget
from neptune_lab.records import workload_key
from neptune_lab.runtime.task import Task
from neptune_lab.tensor_spec import dense_strides, layout_of, overlaps, span
from neptune_lab.tuning.measuring import task_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {"batch": 2, "heads": 4, "head_dim": 16}
TRANSPOSED = (2048, 16, 64, 1)


def laid_out(operator: Operator, layout: str) -> tuple[Operator, list[torch.Tensor]]:
    """The operator whose q, k and v have the layout, out that of q; and its inputs."""
    drawn = [torch.from_numpy(array) for array in operator.random_inputs(0).values()]
    tensors = [LAYOUTS[layout](t.to(DEVICE)) for t in drawn[:3]] + [t.to(DEVICE) for t in drawn[3:]]
    strides = {name: t.stride() for name, t in zip("qkv", tensors, strict=False)}
    out = dense_strides(operator.outputs[0].shape, strides["q"])
    return operator.with_strides(**strides, out=out), tensors


OPERATORS = {
    "causal": (lambda: attention.causal(seq=32, **SMALL), {"block_q": 16, "block_kv": 16}),
    "grouped, lengths that tiles do not divide": (
        lambda: attention.gqa(q_len=20, kv_len=37, kv_heads=2, **SMALL),
        {"block_q": 16, "block_kv": 16},
    ),
    "decoding, split": (lambda: attention.causal(q_len=1, kv_len=64, **SMALL), {"template": "split_k_update"}),
    "documents": (
        lambda: attention.document(np.arange(64).reshape(2, 32) // 11, heads=4, head_dim=16),
        {"block_q": 16, "block_kv": 16},
    ),
}


@pytest.mark.one_in(36)
@pytest.mark.parametrize(
    ("name", "layout", "loads"),
    in_turn(OPERATORS, LAYOUTS, ["pointers", "descriptors", "host_descriptors"], every=2, first=1),
)
def test_numbers(name: str, layout: str, loads: str):
    make, options = OPERATORS[name]
    operator, tensors = laid_out(make(), layout)
    kernel = nl.compile(operator, code=nl.CodeOptions(loads=loads), **options)
    out = kernel(*tensors)
    given = torch.empty_like(tensors[0])
    assert all(a == b or n == 1 for a, b, n in zip(out.stride(), given.stride(), out.shape, strict=True))
    wanted = operator.reference(*(t.cpu().numpy() for t in tensors))
    assert np.linalg.norm(out.double().cpu().numpy() - wanted) / np.linalg.norm(wanted) < 2e-3
    assert kernel.relative_error() < 2e-3


@pytest.mark.nightly
@pytest.mark.parametrize("layout", LAYOUTS)
def test_full_validation_runs_every_form(layout: str):
    operator, _ = laid_out(OPERATORS["causal"][0](), layout)
    validated = nl.compile(operator, validate="full", block_q=16, block_kv=16).validated
    assert validated is not None
    assert "Triton" in validated.stages


@pytest.mark.nightly
def test_a_layout_does_not_pass_with_the_validation_of_another():
    large = attention.causal(batch=1, heads=2, seq=2048, head_dim=64)
    strided = large.with_strides(k=(262144, 64, 128, 1))
    assert nl.compile(large).validated is not nl.compile(strided).validated


def test_tiles_and_rows_of_a_packed_tensor_in_a_descriptor():
    operator, _ = laid_out(attention.full(seq=32, **SMALL), "packed")
    source = nl.compile(operator, code=nl.CodeOptions(loads="host_descriptors"), block_q=16, block_kv=16).source
    assert "TensorDescriptor(q, [64, 64], [192, 1], [16, 16])" in source
    assert "[b * 32 + i0 * 16, h * 16]" in source


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("stride", "described"), [(16, True), (24, True), (20, False), (8, False), (0, False)])
def test_rows_that_the_copy_engine_cannot_address_are_read_through_pointers(stride: int, described: bool):
    operator = attention.full(seq=32, **SMALL).with_strides(k=(196608, 24576, stride, 1))
    for loads in ("descriptors", "host_descriptors"):
        kernel = nl.compile(operator, code=nl.CodeOptions(loads=loads), block_q=16, block_kv=16)
        assert ("k_rows" in kernel.source) is described
        assert kernel.relative_error() < 2e-3


def test_offsets_of_more_than_31_bits():
    """Memory of 4 GiB is reserved, of which two pages are touched."""
    far = 2**31
    dense = attention.full(batch=2, heads=2, seq=16, head_dim=16)
    operator = dense.with_strides(k=(far, 256, 16, 1))  # whose own random inputs would fill the memory with NaN
    drawn = [torch.from_numpy(array).to(DEVICE) for array in dense.random_inputs(0).values()]
    memory = torch.empty(span((2, 2, 16, 16), (far, 256, 16, 1)), dtype=torch.float16, device=DEVICE)
    k = memory.as_strided((2, 2, 16, 16), (far, 256, 16, 1)).copy_(drawn[1])
    kernel = nl.compile(operator, block_q=16, block_kv=16, validate="none")
    wanted = operator.reference(*(t.cpu().numpy() for t in drawn))
    found = kernel(drawn[0], k, drawn[2]).double().cpu().numpy()
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 2e-3


def test_offsets_are_wide_by_strides_not_by_elements():
    rows = attention.full(batch=1, heads=1, seq=64, head_dim=16)

    def source(stride: int) -> str:
        kernel = nl.compile(rows.with_strides(k=(0, 0, stride, 1)), block_q=16, block_kv=16, validate="none")
        return kernel.source

    last = (2**31 - 1 - 15) // 63  # the last element of 64 rows is the last that 31 bits reach
    assert "int64" not in source(last)
    assert "j.to(tl.int64)[None, :]" in source(last + 1) or "tl.int64) * " in source(last + 1)


def test_an_offset_whose_own_sum_exceeds_31_bits_is_summed_in_64():
    op = attention.full(batch=4, heads=2, seq=16, head_dim=16)
    source = nl.compile(op.with_strides(k=(2**33 + 1, 256, 16, 1)), block_q=16, block_kv=16, validate="none").source
    assert f"tl.cast(b, tl.int64) * {2**33 + 1} + tl.cast(h, tl.int64) * 256" in source


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape and strides: dense in some order, with gaps, some dimensions expanded."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    order = draw(st.permutations(range(len(shape))))
    strides = [0] * len(shape)
    step = 1
    for dim in order:
        strides[dim] = 0 if draw(st.integers(0, 5)) == 0 else step
        step *= shape[dim] + draw(st.sampled_from([0, 0, 1, 3]))
    return shape, tuple(strides)


@settings(max_examples=15)
@given(layouts())
def test_strides_are_those_of_torch(layout: tuple[tuple[int, ...], tuple[int, ...]]):
    shape, strides = layout
    tensor = torch.arange(span(shape, strides)).as_strided(shape, strides)
    dense = torch.empty_strided(shape, dense_strides(shape, strides))
    kept = [n for n, size in enumerate(shape) if size > 1]
    assert [dense.stride(n) for n in kept] == [torch.empty_like(tensor).stride(n) for n in kept]
    found = layout_of(shape, strides)
    assert (found is None) == tensor.is_contiguous()
    again = tensor.contiguous() if found is None else torch.arange(span(shape, found)).as_strided(shape, found)
    assert torch.equal(again, tensor)
    if not overlaps(shape, strides):
        assert len(set(tensor.flatten().tolist())) == tensor.numel()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=4))
def test_a_weighted_sum_is_the_sum(terms: list[tuple[int, int]]):
    names = [(Arith("+", Name(f"i{n}"), Int(1)), stride) for n, (_, stride) in enumerate(terms)]
    offset, unit = weighted_sum(names)
    env = {f"i{n}": value for n, (value, _) in enumerate(terms)}
    assert evaluate(offset, env) * unit == sum((value + 1) * stride for value, stride in terms)


DRAWN = given(st.integers(0, 2**32), st.permutations(range(3)), st.lists(st.integers(0, 9), min_size=4, max_size=4))


@pytest.mark.nightly
@settings(max_examples=8)
@DRAWN
def test_random_layouts(seed: int, order: list[int], gaps: list[int]):
    check_layouts(seed, order, gaps)


@pytest.mark.nightly
@settings(max_examples=100)
@DRAWN
def test_many_random_layouts(seed: int, order: list[int], gaps: list[int]):
    check_layouts(seed, order, gaps)


def check_layouts(seed: int, order: list[int], gaps: list[int]):
    """A random order of dimensions and random gaps for each input and the output, against float64."""
    rng = np.random.default_rng(seed)
    batch, heads, q_len, kv_len, width = (int(n) for n in rng.integers([1, 1, 1, 1, 1], [3, 4, 20, 40, 18]))
    op = attention.full(batch=batch, heads=heads, q_len=q_len, kv_len=kv_len, head_dim=width, dtype="float32")
    strides = {}
    for spec in (*op.inputs, *op.outputs):
        step, found = 1, [0, 0, 0, 0]
        for dim in (3, *(order if spec.name != "v" else reversed(order))):
            found[dim] = step
            step = step * spec.shape[dim] + gaps[dim]
        strides[spec.name] = tuple(found)
    if rng.random() < 0.3:
        strides["k"] = (0, *strides["k"][1:])
    operator = op.with_strides(**strides)
    loads = ("pointers", "descriptors", "host_descriptors")[seed % 3]
    kernel = nl.compile(operator, block_q=16, block_kv=16, code=nl.CodeOptions(loads=loads), validate="none")
    assert kernel.relative_error() < 2e-3


def test_rows_of_a_norm():
    operator = norms.layer_norm(rows=6, cols=40)
    out = operator.outputs[0].name
    kernel = nl.compile(operator.with_strides(x=(64, 1), **{out: (1, 6)}))
    assert kernel.relative_error() < 1e-5
    x, w = torch.randn(6, 64, device=DEVICE)[:, :40], torch.randn(40, device=DEVICE)
    assert kernel(x, w, w).stride() == (1, 6)


# -- arguments, texts, keys --------------------------------------------------------------------------------------


def test_arguments_are_checked():
    operator = attention.full(seq=32, **SMALL).with_strides(k=TRANSPOSED)
    kernel = nl.compile(operator, block_q=16, block_kv=16)
    q = torch.zeros(2, 4, 32, 16, dtype=torch.float16, device=DEVICE)
    k = LAYOUTS["transposed"](q)
    assert torch.equal(kernel(q, k, q), torch.zeros_like(q))
    expected = (
        r"argument k has strides \(2048, 512, 16, 1\); expected \(2048, 16, 64, 1\), which the kernel was compiled"
    )
    with pytest.raises(LaunchError, match=expected) as refused:
        kernel(q, q, q)
    assert "op.with_strides(k=(2048, 512, 16, 1))" in str(refused.value)
    with pytest.raises(LaunchError, match=r"argument v has strides .*; expected a contiguous tensor"):
        kernel(q, k, k)


def test_strides_of_dimensions_of_size_1_do_not_matter():
    operator = attention.full(batch=1, heads=4, seq=32, head_dim=16).with_strides(k=(5, 16, 64, 1))
    kernel = nl.compile(operator, block_q=16, block_kv=16)
    q = torch.zeros(1, 4, 32, 16, dtype=torch.float16, device=DEVICE)
    memory = torch.zeros(4096, dtype=torch.float16, device=DEVICE)
    for first in (0, 1, 2048):
        assert torch.equal(kernel(q, memory.as_strided(q.shape, (first, 16, 64, 1)), q), q)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("change", [lambda t: t, torch._neg_view], ids=["misaligned", "negated"])
def test_a_copy_for_the_copy_engine_keeps_the_strides(change):
    operator, (q, k, v) = laid_out(attention.full(seq=32, **SMALL), "packed")
    kernel = nl.compile(operator, code=nl.CodeOptions(loads="host_descriptors"), block_q=16, block_kv=16)
    memory = torch.zeros(span(k.shape, k.stride()) + 1, dtype=torch.float16, device=DEVICE)
    misplaced = memory.as_strided(k.shape, k.stride(), 1).copy_(k)
    assert torch.equal(
        kernel(q, change(misplaced), v), kernel(q, LAYOUTS["packed"](-k) if change(k).is_neg() else k, v)
    )


def test_wrong_strides_are_refused():
    op = attention.full(seq=32, **SMALL)
    with pytest.raises(DefinitionError, match="attention_full has no tensor 'key'"):
        op.with_strides(key=TRANSPOSED)
    with pytest.raises(DefinitionError, match=r"k=\(64, 1\): expected 4 strides, one for each dimension of"):
        op.with_strides(k=(64, 1))
    with pytest.raises(DefinitionError, match="a stride of k"):
        op.with_strides(k=(2048, 16, -64, 1))
    with pytest.raises(DefinitionError, match=r"two elements of an output of shape .* would share memory"):
        op.with_strides(out=(0, 16, 64, 1))
    assert op.with_strides(k=TRANSPOSED).with_strides(k=None).inputs == op.inputs
    assert op.with_strides(k=(2048, 512, 16, 1)).inputs == op.inputs


def test_the_text_of_a_tile_program_shows_strides_and_is_read_back():
    program = nl.compile(attention.full(seq=32, **SMALL).with_strides(k=TRANSPOSED), block_q=16, block_kv=16).htile
    text = to_text(program)
    assert "d: 16] strides (2048, 16, 64, 1)\n" in text
    assert text.count("strides") == 1
    assert from_text(text) == program
    assert program.tensor("k").strides == TRANSPOSED


@pytest.mark.parametrize(
    ("tensor", "strides", "match"),
    [
        ("x", (8,), r"tensor x has strides \(8,\); expected 2 numbers of 0 or more"),
        ("x", (8, -1), "expected 2 numbers of 0 or more"),
        ("out", (0, 1), "output out of shape .* has strides .*, with which two elements share memory"),
        ("x_exp", (99, 1), "on-chip tile x_exp has strides .*; expected none"),
    ],
)
def test_a_tile_program_with_wrong_strides_is_refused(tensor: str, strides: tuple[int, ...], match: str):
    program = softmax().program
    tensors = tuple(replace(t, strides=strides) if t.name == tensor else t for t in program.tensors)
    with pytest.raises(TileError, match=match):
        verify(replace(program, tensors=tensors))


def test_the_launcher_says_what_it_takes_and_gives():
    program = softmax().program
    rows, cols = program.tensor("x").shape
    tensors = tuple(
        replace(t, strides=(2 * cols, 1) if t.name == "x" else (1, rows)) if t.name in ("x", "out") else t
        for t in program.tensors
    )
    text = emit(replace(program, tensors=tensors)).text
    assert '"""Tensors on one device, contiguous where no strides are given.' in text
    assert f"        x: float16[{rows}, {cols}] strides ({2 * cols}, 1)" in text.replace("float32", "float16")
    assert f"out = torch.empty_strided(({rows}, {cols}), (1, {rows}), dtype=" in text
    assert '"""Contiguous tensors on one device.' in emit(program).text


def test_strides_are_part_of_a_workload():
    op = attention.full(seq=32, **SMALL)
    keys = {workload_key(o) for o in (op, op.with_strides(k=TRANSPOSED), op.with_strides(out=TRANSPOSED))}
    assert len(keys) == 3
    assert workload_key(op.with_strides(k=(2048, 512, 16, 1))) == workload_key(op)


def test_a_workload_is_measured_on_tensors_of_its_layout():
    op = attention.full(seq=32, **SMALL).with_strides(q=TRANSPOSED, k=(0, 512, 16, 1), out=TRANSPOSED)
    task = task_of(op)
    again = Task.from_json(task.to_json(), {})
    inputs = again.make_inputs(DEVICE)
    assert [t.stride() for t in inputs] == [TRANSPOSED, (0, 512, 16, 1), (2048, 512, 16, 1)]
    assert [t.strides for t in again.outputs] == [TRANSPOSED]
    kernel = nl.compile(op, block_q=16, block_kv=16)
    assert again.error(kernel(*inputs), again.make_reference(inputs)) < 2e-3
    data = again.to_json()
    data["definition"]["inputs"][0]["strides"] = [1]
    with pytest.raises(MeasureError, match=r"strides \(1,\) for the shape"):
        Task.from_json(data, {})


@pytest.mark.nightly
def test_a_wrong_address_is_found_and_its_script_repeats_it(monkeypatch, tmp_path, capsys):
    """Validation at small sizes keeps the layout, so it sees a stride that only this layout has."""
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    op = attention.full(seq=512, **SMALL).with_strides(k=(98304, 16, 192, 1))
    right = addresses.steps
    monkeypatch.setattr(addresses, "steps", lambda t: (*strides(t.shape)[:1], *right(t)[1:]))
    forget()
    with pytest.raises(ValidationError, match="Triton differs from the definition at q") as found:
        nl.compile(op, block_q=16, block_kv=16)
    script = Path(str(found.value.script)).read_text()
    assert ", {'k': (" in script
    exec(script, {})
    assert "Triton: out[" in capsys.readouterr().out
    monkeypatch.setattr(addresses, "steps", right)
    exec(script, {})
    assert "Triton: as the definition" in capsys.readouterr().out
    forget()
