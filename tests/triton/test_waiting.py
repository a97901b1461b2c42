"""Programs that share rows wait for each other: one launch, the same numbers in whatever order they run, refused where
it would not be the same."""

from __future__ import annotations

import itertools
import random
import re
import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.errors import EmitError
from neptune_lab.htile import from_text, verify
from neptune_lab.htile_to_triton import EmitOptions, emit
from neptune_lab.htile_to_triton.waiting import Waiting, waiting
from neptune_lab.operators import Operator, attention, norms, rows
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.target import Target

OPERATORS = {
    "softmax": lambda: rows.softmax(rows=7, cols=2400),
    "a softmax of odd rows": lambda: rows.softmax(rows=7, cols=2401),
    "layer_norm": lambda: norms.layer_norm(rows=5, cols=2000),
    "a number of each row": lambda: norms.rms_norm_max(rows=6, cols=2101),
    "an element of each row": lambda: rows.cross_entropy(rows=5, cols=2003),
}


@cache
def both(name: str) -> tuple[nl.Kernel, nl.Kernel]:
    """The kernel in one launch, and in a launch for each HTile kernel."""
    op: Operator = OPERATORS[name]()
    one = nl.TileConfig(block_q=1, block_kv=op.inputs[0].shape[1], num_warps=1)
    made = nl.compile(op, config=one, code=nl.CodeOptions(combine="waiting"), target="h200", validate="none")
    return made, apart(made)


def apart(kernel: nl.Kernel) -> nl.Kernel:
    return replace(kernel, triton=emit(kernel.htile))


def numbers(kernel: nl.Kernel) -> tuple[np.ndarray, ...]:
    op = kernel.operator
    arrays = dict(op.random_inputs(5))
    return triton_numpy.run(kernel.triton, arrays, {t.name: t.dtype for t in op.inputs}, tuple(arrays))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OPERATORS)
def test_one_launch_gives_the_same_bits(name: str):
    one, several = both(name)
    assert len(one.triton.kernels) == 1
    assert len(several.triton.kernels) == len(one.htile.kernels) > 1
    for found, expected in zip(numbers(one), numbers(several), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["layer_norm", "a softmax of odd rows"])
def test_tritons_interpreter_agrees_with_float64(name: str):
    one, _ = both(name)
    assert one.relative_error() < 2e-3


class _Side(threading.local):
    """The program that a thread runs."""

    instance = (0, 0, 0)


class _Words:
    """What programs pass on, each number with its mark; a program that takes waits, and never for ever."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[float, int]] = {}
        self.changed = threading.Condition()

    def give(self, word, value, mark) -> None:
        with self.changed:
            self.held[int(word.offsets)] = float(np.asarray(value).reshape(-1)[0]), int(mark)
            self.changed.notify_all()

    def take(self, asked, words, mark):
        places = np.asarray(words.offsets).reshape(-1)
        with self.changed:
            done = self.changed.wait_for(
                lambda: all(self.held.get(int(p), (0, None))[1] == int(mark) for p in places), 20
            )
            assert done, "programs wait for each other for ever"
            values = [self.held[int(p)][0] for p in places]
        return triton_numpy.tile(np.asarray(values, np.float32)[None])


def side_by_side(monkeypatch: pytest.MonkeyPatch, kernel: nl.Kernel, groups: int, seed: int) -> tuple[np.ndarray, ...]:
    """The outputs of programs that run in threads, each after random pauses, and wait for each other."""
    words, rng, side = _Words(), random.Random(seed), _Side()
    finished: list[tuple[int, ...]] = []

    class Language(triton_numpy._Language):
        instance = property(lambda _: side.instance, lambda _, __: None)

    def launched(self, grid):
        def launch(*args, **_):
            given = [triton_numpy.Pointer(a) if isinstance(a, triton_numpy.Memory) else a for a in args]
            self.language.grid = (*grid, 1, 1)[:3]

            def program(place, pause):
                side.instance = place
                threading.Event().wait(pause)
                self.function(*given)
                finished.append(place)

            places = [(*place, 0, 0)[:3] for place in itertools.product(*(range(n) for n in grid))]
            rng.shuffle(places)
            finished.clear()
            threads = [threading.Thread(target=program, args=(p, rng.random() / 100)) for p in places]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(finished) == len(places), "a program has failed"

        return launch

    with monkeypatch.context() as patch:
        patch.setattr(triton_numpy, "_Language", Language)
        patch.setattr(triton_numpy._Function, "__getitem__", launched)
        patch.setitem(triton_numpy._WITHOUT_BITS, "_give", words.give)
        patch.setitem(triton_numpy._WITHOUT_BITS, "_take", words.take)
        patch.setattr(triton_numpy, "GROUPS_OF_ROWS", lambda device, parts, rows, resident: groups)
        source = kernel.triton
        once = source.text.replace(" if INTERPRETED else 1):", " if False else 1):")
        assert once != source.text
        made = numbers(replace(kernel, triton=replace(source, text=once)))
    return made


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "groups"), [("softmax", 2), ("a softmax of odd rows", 1), ("layer_norm", 5)])
def test_programs_side_by_side(name: str, groups: int, monkeypatch: pytest.MonkeyPatch):
    """Several turns of a group: what is passed on for a row is not overwritten before every program has taken it."""
    one, several = both(name)
    wanted = numbers(several)
    for seed in range(2):
        for found, expected in zip(side_by_side(monkeypatch, one, groups, seed), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_the_launch_is_cooperative_and_has_room():
    """All programs run at the same time, or the driver refuses the launch: so none waits for one that never starts."""
    kernel, _ = both("softmax")
    text = kernel.source
    assert "launch_cooperative_grid=True" in text
    registers = int(re.findall(r"maxnreg=(\d+)", text)[0])
    resident = int(re.findall(r"_groups\(x.device, \d+, 7, (\d+)\)", text)[0])
    threads = 32 * resident * (kernel.triton.kernels[0].num_warps or 4)
    assert threads * registers <= 65536, "registers of a multiprocessor"
    assert threads <= 2048


@pytest.mark.nightly
def test_a_mark_is_of_one_row_and_launch():
    """Each launch begins with the mark behind the last one of the launch before it."""
    import torch

    from neptune_lab.runtime.load import load

    kernel, _ = both("softmax")
    module = load(kernel.spec).module
    made = torch.zeros(4096, dtype=torch.int32)
    module._counters = lambda device, count: made[:count]
    x = torch.from_numpy(np.asarray(kernel.operator.random_inputs(1)["x"]))
    outputs = [module.softmax(x) for _ in range(2)]
    assert torch.equal(*outputs)
    assert made[:4].tolist() == [2 * 2 * 2, 0, 0, 0], "two rows of each group, two launches a call, nobody is left"


@pytest.mark.nightly
def test_it_compiles_ahead():
    code = both("softmax")[0].machine_code("sm_90")
    (kernel,) = code.kernels
    assert kernel.resources.registers <= 72
    assert kernel.resources.local_bytes == 0
    assert "ld.relaxed.gpu.global.b64" in code.text("ptx")


def test_loads_are_under_way_before_the_first_wait():
    """The words of all numbers, and the part of the row that is written; not the vectors of a norm."""
    for name in ("softmax", "layer_norm"):
        lines = [line.strip() for line in both(name)[0].source.splitlines()]
        first = next(n for n, line in enumerate(lines) if "_take(" in line and not line.startswith("def "))
        before = lines[first - 3 : first]
        assert sum("= _ask(" in line for line in before) == 2
        assert before[0].startswith("x = tl.load(")
        assert not any(line.startswith(("gamma = ", "beta = ")) for line in lines[:first])


def test_the_record_names_every_kernel():
    one, several = both("softmax")
    assert [launch["kernel"] for launch in one.trace.kernel.launches] == ["softmax_kernel"]
    assert one.outline.count("in softmax_kernel, whose programs wait for each other") == 1
    linked = {node for line in one.trace.kernel.triton for node in line.nodes}
    everywhere = {node for line in several.trace.kernel.triton for node in line.nodes}
    assert everywhere == linked


@pytest.mark.nightly
def test_rows_of_a_length_that_programs_share():
    """Chosen without tuning where one program cannot hold a row that it writes, and rows are many."""
    long = nl.compile(rows.softmax(rows=1000, cols=120000, dtype="float16"), target="h200")
    assert long.code.combine == "waiting"
    assert any("30 programs share each row of 120000 elements" in remark for remark in long.remarks)
    for op in (
        rows.softmax(rows=1000, cols=50000, dtype="float16"),
        rows.softmax(rows=700, cols=48001, dtype="float16"),
        rows.softmax(rows=300, cols=40001, dtype="float16"),
        rows.softmax(rows=1500, cols=52001, dtype="float16"),
        rows.softmax(rows=20, cols=100000, dtype="float16"),
        rows.softmax(rows=1000, cols=100000, dtype="float32"),
        rows.log_sum_exp(rows=1000, cols=100000, dtype="float16"),
    ):
        assert nl.compile(op, target="h200", validate="none").code.combine == "kernel"
    fewer = (
        rows.softmax(rows=20, cols=100001, dtype="float16"),
        norms.layer_norm(20, 100000, dtype="float16"),
        rows.softmax(rows=629, cols=55579, dtype="float16"),
        rows.softmax(rows=300, cols=52001, dtype="float16"),
    )
    for op in fewer:  # that are not split among programs otherwise, or would run in turns that leave many idle
        assert nl.compile(op, target="h200", validate="none").code.combine == "waiting"
    one = nl.compile(norms.layer_norm(1, 100000, dtype="float16"), target="h200", validate="none")
    assert one.code.combine == "kernel"
    other = nl.compile(rows.softmax(rows=1000, cols=100000, dtype="float16"), target="a100", validate="none")
    assert other.code.combine == "kernel"


PLAIN = """program rows(x, w) -> y
  input   x      float32[6, 24]
  input   w      float32[24]
  output  y      float32[6, 24]
  global  a      float32[6, 3]
  global  v      float32[24]
  chip    s      float32[6]

kernel first  grid (p: 3, i: 6)
    a[i, p] = reduce(sum, x[i, p*8:p*8+8], dim=0)

kernel between  grid (n: 3)
    v[n*8:n*8+8] = w[n*8:n*8+8] * 2.0

kernel last  grid (p: 3, i: 6)
    s[i] = reduce(sum, a[i, 0:3], dim=0)
    y[i, p*8:p*8+8] = x[i, p*8:p*8+8] * v[p*8:p*8+8] - s[i]
"""
OTHERS = {
    "another row": ("a[i, 0:3], dim=0)", "a[(i+1)%6, 0:3], dim=0)", "other programs than those of its row read"),
    "a part of the parts": ("a[i, 0:3], dim=0)", "a[i, 0:2], dim=0)", "other programs than those of its row read"),
    "stored by several": ("a[i, p] =", "a[i, 0] =", "not only the program of a part stores"),
    "more than one number": ("a      float32[6, 3]", "a      float32[7, 3]", "more than one number of 32 bits"),
    "read element by element": (
        "s[i] = reduce(sum, a[i, 0:3], dim=0)", "s[i] = reduce(sum, gather(a, i, iota[0:3]), dim=0)", "element by"
    ),
    "read elsewhere": ("v[n*8:n*8+8] = w[n*8:n*8+8] * 2.0", "v[n*8:n*8+8] = w[n*8:n*8+8] * a[0, 0]", "no kernel with"),
    "nothing is passed on": ("reduce(sum, a[i, 0:3], dim=0)", "reduce(sum, x[i, 0:3], dim=0)", "passes nothing on"),
    "another grid": ("last  grid (p: 3, i: 6)", "last  grid (i: 6, p: 3)", "no kernel with the same grid"),
    "a loop": (
        "    s[i] = reduce(sum, a[i, 0:3], dim=0)",
        "    s[i] = 0.0\n    for n in range(2):\n        s[i] = s[i] + reduce(sum, a[i, 0:3], dim=0)",
        "no kernel with the same grid",
    ),
}  # fmt: skip


def test_a_kernel_between_runs_before():
    program = from_text(PLAIN)
    verify(program)
    made = waiting(program, program.kernels)
    assert isinstance(made, Waiting)
    assert [k.name for k in made.kernels] == ["first", "last"]
    assert [k.name for k in made.before] == ["between"]
    assert made.passed == ("a",)
    module = emit(program, EmitOptions(combine="waiting"))
    assert [k.name for k in module.kernels] == ["between", "last"]
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 24)).astype(np.float32), rng.standard_normal(24).astype(np.float32)
    (y,) = triton_numpy.run(module, {"x": x, "w": w}, {"x": "float32", "w": "float32"}, ("x", "w"))
    np.testing.assert_allclose(y, x * w * 2 - x.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", OTHERS)
def test_what_one_launch_would_not_compute(case: str):
    old, new, reason = OTHERS[case]
    assert PLAIN.count(old) == 1
    program = from_text(PLAIN.replace(old, new))
    found = waiting(program, program.kernels)
    assert isinstance(found, str), found
    assert reason in found
    with pytest.raises(EmitError, match="finds no kernels that share rows: first "):
        emit(program, EmitOptions(combine="waiting"))


def test_refusals():
    with pytest.raises(EmitError, match="combine='waiting' finds no kernels that share rows"):
        nl.compile(
            attention.causal(heads=2, seq=64, head_dim=32), code=nl.CodeOptions(combine="waiting"), target="h200"
        )
    with pytest.raises(EmitError, match="combine='waiting' is not available on target mi300x"):
        EmitOptions(combine="waiting", target=Target("mi300x"))
    with pytest.raises(EmitError, match="loads='descriptors': expected loads='pointers'"):
        EmitOptions(combine="waiting", loads="descriptors", target=Target("h200"))
    with pytest.raises(EmitError, match="code='gluon': its kernels are not joined"):
        nl.CodeOptions(combine="waiting", code="gluon")
