"""Traffic of loop programs, one by one, and of every form of attention: N^2 before fusion, N·d after it."""

from __future__ import annotations

import itertools
import json
from importlib.metadata import PackageNotFoundError

import pytest

import neptune_lab as nl
from neptune_lab.errors import EmitError, MachineCodeError
from neptune_lab.loop_ir import tree
from neptune_lab.loop_ir.iteration_domain import evaluate
from neptune_lab.loop_ir.nodes import Block
from neptune_lab.loop_ir.walks import loads, substitute
from neptune_lab.operators import attention, norms, softmax
from neptune_lab.strict.dtypes import itemsize
from neptune_lab.target import Target
from neptune_lab.traffic import Chip, of_loops, of_tiles


def elements(program):
    """(nest, buffer, stores) -> the elements that the nest touches, its own accumulators aside."""
    out: dict[tuple[int, str, bool], set] = {}
    for path, block, around in tree.statements(program):
        if not isinstance(block, Block):
            continue
        bindings = {it.name: it.binding for it in block.iters}
        accesses = [(block.body.buffer, block.body.indices, True)]
        accesses += [
            (x.buffer, x.indices, False)
            for x in loads(block.body.value)
            if (x.buffer, x.indices) != (block.body.buffer, block.body.indices)
        ]
        for values in itertools.product(*(range(loop.extent) for loop in around)):
            env = {loop.var: value for loop, value in zip(around, values, strict=True)}
            if all(evaluate(p, env) for p in block.predicates):
                for buffer, indices, stores in accesses:
                    point = tuple(int(evaluate(substitute(i, bindings), env)) for i in indices)
                    out.setdefault((path[0], buffer, stores), set()).add(point)
    return out


@pytest.mark.parametrize(
    "operator",
    [
        softmax.figure1(rows=2, cols=10),
        attention.causal(heads=2, seq=6, head_dim=4),
        norms.rms_norm_quantize(rows=3, cols=7),
    ],
    ids=lambda op: op.name,
)
def test_a_definition_moves_what_its_nests_touch(operator):
    program = operator.program
    found = of_loops(program, "definition", 0, "definition", shared_memory=0)
    counted = elements(program)
    for tensor in found.tensors:
        item = itemsize(program.buffer(tensor.name).dtype)
        for stores, bytes_ in ((False, tensor.read), (True, tensor.written)):
            points = sum(len(p) for (_, name, s), p in counted.items() if (name, s) == (tensor.name, stores))
            assert bytes_ == points * item, (tensor.name, stores)
    assert {t.name for t in found.tensors} == {name for _, name, _ in counted}


def test_tiles_that_do_not_divide_count_no_element_past_the_end():
    sch = nl.Schedule(softmax.figure1(rows=2, cols=10))
    kernel = nl.compile(sch.operator, block_kv=4, block_q=1, validate="none")
    for applied in kernel.schedule.history:
        for phase in applied.outcome.phases:
            found = of_loops(phase.program, "", 0, "", shared_memory=1 << 20)
            for tensor in found.tensors:
                if tensor.name in phase.program.inputs:
                    assert tensor.read % tensor.bytes == 0, phase.key


def seq(n: int, *, blocks: int | None = 1, **more):
    op = attention.full(heads=2, seq=n, head_dim=16)
    return nl.compile(op, block_q=16, block_kv=16, validate="none").traffic(blocks=blocks, **more)


@pytest.fixture(scope="module")
def attentions():
    return {n: seq(n) for n in (64, 128)}


def test_fused_attention_moves_its_arguments_alone(attentions):
    for n, found in attentions.items():
        argument = 2 * n * 16 * 2
        assert (found.kernel.read, found.kernel.written) == (3 * argument, argument)
        assert found.kernel.products == 2 * 2 * 2 * n * n * 16
        assert found.kernel.operations > found.kernel.products


def test_the_definition_moves_squares(attentions):
    squares = {n: [t for t in f.definition.tensors if t.bytes >= 2 * n * n * 2] for n, f in attentions.items()}
    moved = {n: sum(t.read + t.written for t in tensors) for n, tensors in squares.items()}
    assert moved[128] == 4 * moved[64]
    assert all(t.written == t.bytes for t in squares[64])
    assert attentions[64].definition.hbm > 10 * attentions[64].kernel.hbm


def test_every_phase_has_a_form_and_forms_that_move_the_same_share_a_row(attentions):
    found = attentions[64]
    assert (found.forms[0].name, found.forms[-1].name) == ("definition", "kernel")
    assert [f.step for f in found.forms[:-1]] == sorted(f.step for f in found.forms[:-1])
    _, *rows = str(found).splitlines()
    assert (rows[0].split("  ")[0], rows[-1].split("  ")[0]) == ("definition … 5. bind", "kernel")
    figures = [row.split("  ", 1)[1].split() for row in rows]
    assert all(a != b for a, b in itertools.pairwise(figures[:-1]))
    assert json.loads(json.dumps(found.as_record()))["forms"][-1]["read"] == found.kernel.read


def test_the_roofline_says_what_takes_longer():
    found = seq(64, target=Target("h200", tflops=1.0, gbps=4.0)).kernel
    line = found.roofline
    assert line.memory_us == pytest.approx(found.hbm / 4e9 * 1e6)
    assert line.compute_us == pytest.approx(found.operations / 1e12 * 1e6)
    assert (line.bound, line.us) == ("bytes", line.memory_us)
    assert seq(64, target=Target("h200", tflops=1e-6)).kernel.roofline.bound == "operations"
    assert seq(64, target="cuda").kernel.roofline is None


def test_wrong_arguments_are_refused():
    with pytest.raises(EmitError, match="target='h20'"):
        seq(64, target="h20")
    with pytest.raises(MachineCodeError, match="blocks=0"):
        seq(64, blocks=0)


@pytest.mark.nightly
def test_blocks_per_multiprocessor_are_those_of_the_machine_code():
    op = attention.full(heads=2, seq=64, head_dim=16)
    kernel = nl.compile(op, block_q=16, block_kv=16, validate="none")
    held = min(launch.resources.occupancy.blocks for launch in kernel.machine_code("h200").kernels)
    assert held > 1
    assert kernel.traffic("h200").blocks == held
    assert kernel.traffic("h200", blocks=2).as_record()["blocks"] == 2


def test_without_machine_code_for_the_target_one_block_is_taken(monkeypatch):
    kernel = nl.compile(attention.full(heads=2, seq=64, head_dim=16), block_q=16, block_kv=16, validate="none")
    assert kernel.traffic("cuda").blocks == 1  # of a kind of GPU no architecture is known

    def missing(*_):
        raise PackageNotFoundError("triton")

    monkeypatch.setattr(type(kernel), "machine_code", missing)
    assert kernel.traffic("h200").blocks == 1


def test_more_blocks_at_once_share_what_they_read():
    """Each block reads every key again: with a small cache, waves of more blocks read them from HBM less often."""
    op = attention.full(heads=2, seq=256, head_dim=16)
    kernel = nl.compile(op, block_q=16, block_kv=16, validate="none")
    chip = [of_tiles(kernel.htile, Chip(resident, 1024)).read for resident in (1, 2, 8)]
    assert chip[0] > chip[1] > chip[2]
