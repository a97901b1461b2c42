"""The last program of a row combines the splits: one launch, the same bits whoever is last, refused where it would not
be the same."""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
import pytest

import neptune_lab as nl
from neptune_lab.autotune.space import space
from neptune_lab.errors import EmitError
from neptune_lab.htile.parser import from_text
from neptune_lab.htile_to_triton import EmitOptions, emit
from neptune_lab.htile_to_triton.last_program import Joined, joined
from neptune_lab.operators import Operator, attention, mla, rows
from neptune_lab.pipeline.validate import triton_numpy
from neptune_lab.runtime.load import load
from neptune_lab.target import Target

ONCE = nl.CodeOptions(combine="last_program")
OPERATORS = {
    "heads": lambda: attention.causal(batch=2, heads=3, q_len=1, kv_len=300, head_dim=32),
    "groups": lambda: attention.gqa(batch=2, heads=8, kv_heads=2, q_len=1, kv_len=256, head_dim=32, causal=False),
    "latents": lambda: mla.mla(batch=2, heads=16, kv_len=200, latent=32, rope=16),
    "tiles of rows": lambda: attention.causal(heads=2, seq=100, head_dim=32),
    "a second pass": lambda: rows.softmax(rows=3, cols=5000),
    "one value a row": lambda: rows.log_sum_exp(rows=6, cols=2000),
    "two reductions": lambda: rows.cross_entropy(rows=5, cols=3000),
}


def compiled(op: Operator, splits: int = 3, code: nl.CodeOptions = ONCE) -> nl.Kernel:
    config = nl.SplitKConfig(splits=splits)
    return nl.compile(op, template="split_k_update", config=config, code=code, validate="none")


@cache
def both(name: str) -> tuple[nl.Kernel, nl.Kernel]:
    """The kernel in one launch, and in two."""
    op = OPERATORS[name]()
    return compiled(op), compiled(op, code=nl.CodeOptions())


def in_order(kernel: nl.Kernel, monkeypatch: pytest.MonkeyPatch, seed: int | None) -> tuple[np.ndarray, ...]:
    """The outputs, of programs that run in the order of the grid, or in a random one."""
    op = kernel.operator
    arrays = dict(op.random_inputs(5))
    product = itertools.product

    def shuffled(*axes: range):
        places = list(product(*axes))
        random.Random(seed).shuffle(places)
        return places

    with monkeypatch.context() as patch:
        if seed is not None:
            patch.setattr(triton_numpy.itertools, "product", shuffled)
        return triton_numpy.run(kernel.triton, arrays, {t.name: t.dtype for t in op.inputs}, tuple(arrays))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", OPERATORS)
def test_the_same_bits_in_one_launch_whoever_is_last(name: str, monkeypatch: pytest.MonkeyPatch):
    one, two = both(name)
    assert (len(one.triton.kernels), len(two.triton.kernels)) == (1, 2)
    wanted = in_order(two, monkeypatch, None)
    for seed in (None, 1, 2):
        for found, expected in zip(in_order(one, monkeypatch, seed), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["groups", "a second pass"])
def test_tritons_interpreter_agrees_with_float64(name: str):
    one, two = both(name)
    assert one.relative_error() == two.relative_error() < 1e-3


@pytest.mark.nightly
def test_every_launch_leaves_the_counters_at_zero():
    """So the next launch, and each replay of a graph, starts at zero without a launch that would set them."""
    import torch

    kernel, _ = both("groups")
    module = load(kernel.spec).module
    counters = torch.zeros(kernel.triton.kernels[0].counters, dtype=torch.int32)
    asked = []
    module._counters = lambda device, count: asked.append(count) or counters  # type: ignore[attr-defined]
    given = [torch.from_numpy(np.asarray(a, np.float16)) for a in kernel.operator.random_inputs(1).values()]
    outputs = [getattr(module, kernel.triton.entry)(*given) for _ in range(3)]
    assert asked == [4] * 3
    assert not counters.any()
    assert all(torch.equal(out, outputs[0]) for out in outputs)
    assert outputs[0].isfinite().all()


class _Gpu:
    """What a launcher asks torch about a GPU, answered without one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        import torch

        self.stream, self.capturing, self.filled, self.waited = 7, False, [], 0
        self.device = type("Device", (), {"type": "cuda"})()
        own = type(
            "Stream", (), {"cuda_stream": property(lambda _: self.stream), "synchronize": lambda _: self._wait()}
        )
        zeros = torch.zeros

        def made(shape, dtype, device):
            assert dtype == torch.int32
            self.filled.append((shape, self.capturing))
            return zeros(shape, dtype=dtype)

        monkeypatch.setattr(torch, "zeros", made)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: own())

    def _wait(self) -> None:
        self.waited += 1


@pytest.mark.nightly
def test_counters_of_streams_and_graphs(monkeypatch: pytest.MonkeyPatch):
    """One tensor per stream, kept; each launch in a graph gets one of its own, which was set to zero before."""
    import torch

    kernel, _ = both("heads")
    module, gpu = load(kernel.spec).module, _Gpu(monkeypatch)
    first = module._counters(gpu.device, 6)
    assert module._counters(gpu.device, 6) is first
    gpu.stream = 8
    other = module._counters(gpu.device, 6)
    assert other is not first
    assert gpu.waited == 1, "another stream may replay a graph: what it takes is zero by then"
    gpu.capturing = True
    graphs = [module._counters(gpu.device, 6) for _ in range(65)]
    taken = [first, other, *graphs]
    assert all(t.shape == (6,) and t.data_ptr() % 16 == 0 and not t.any() for t in taken)
    for n, one in enumerate(taken):
        one += n + 1
    assert [set(one.tolist()) for one in taken] == [{n + 1} for n in range(len(taken))], "they share memory"
    assert [shape for shape, capturing in gpu.filled if not capturing] == [(64, 8), 6, 6]
    assert [shape for shape, capturing in gpu.filled if capturing] == [6], "the last one is set to zero in its graph"
    held = {made.untyped_storage().data_ptr() for made in module._every(gpu.device, 6).values()}
    assert held == {one.untyped_storage().data_ptr() for one in graphs[:-1]}, "graphs count there whenever they run"
    gpu.capturing = False
    module._counters(gpu.device, 6)
    gpu.capturing = True
    assert isinstance(module._counters(gpu.device, 6), torch.Tensor)
    assert len(gpu.filled) == 5, "a call outside of graphs makes new ones"


@pytest.mark.nightly
def test_a_graph_before_any_call_sets_its_counters_to_zero(monkeypatch: pytest.MonkeyPatch):
    kernel, _ = both("heads")
    module, gpu = load(kernel.spec).module, _Gpu(monkeypatch)
    gpu.capturing = True
    one, two = (module._counters(gpu.device, 5) for _ in range(2))
    assert one.data_ptr() != two.data_ptr()
    assert gpu.filled == [(5, True)] * 2


def test_every_thread_has_stored_before_the_program_arrives():
    text = both("heads")[0].source
    arrival = text.index("tl.atomic_add(counters_ptr")
    assert 'sem="acq_rel", scope="gpu")\n    tl.debug_barrier()\n    if arrived == 2:\n' in text
    assert text[:arrival].rstrip().endswith("tl.debug_barrier()\n    arrived =")
    assert text.rindex("tl.store(acc_local_base", 0, arrival) < text.rindex("tl.debug_barrier()", 0, arrival)
    assert text.index("acc_local_of_splits = tl.load(") > arrival


@pytest.mark.nightly
def test_the_record_links_both_halves_of_the_kernel():
    one, two = both("heads")
    assert [launch["kernel"] for launch in one.trace.kernel.launches] == ["attention_causal_local"]
    assert "in the last programs of attention_causal_local" in one.outline
    linked = {node for line in one.trace.kernel.triton for node in line.nodes}
    everywhere = {node for line in two.trace.kernel.triton for node in line.nodes}
    assert everywhere == linked


@pytest.mark.nightly
def test_it_compiles_ahead():
    code = both("heads")[0].machine_code("sm_90")
    (kernel,) = code.kernels
    assert kernel.resources.local_bytes == 0
    assert "atom.global.gpu.acq_rel.add" in code.text("ptx") or "atom.acq_rel.gpu.global.add" in code.text("ptx")


def refused(match: str, **options) -> None:
    with pytest.raises(EmitError, match=match):
        compiled(attention.causal(heads=2, q_len=1, kv_len=256, head_dim=32), code=nl.CodeOptions(**options))


def test_refusals():
    with pytest.raises(EmitError, match="there is one kernel"):
        nl.compile(attention.causal(heads=2, seq=64, head_dim=32), template="rolling_update", code=ONCE)
    with pytest.raises(EmitError, match="combine='last_program' is not available on target mi300x"):
        EmitOptions(combine="last_program", target=Target("mi300x"))
    with pytest.raises(EmitError, match="loads='descriptors': expected loads='pointers'"):
        EmitOptions(combine="last_program", loads="descriptors", target=Target("h200"))
    with pytest.raises(EmitError, match="dependent_launch=True: expected dependent_launch=False"):
        EmitOptions(combine="last_program", dependent_launch=True, target=Target("h200"))
    with pytest.raises(EmitError, match="code='gluon': its kernels are not joined"):
        nl.CodeOptions(combine="last_program", code="gluon")
    refused("expected one of 'kernel', 'last_program', 'waiting'", combine="first_program")


PLAIN = """program sums(x) -> out
  input   x     float32[4, 8, 16]
  output  out   float32[4]
  global  part  float32[4, 8]

kernel sums_local  grid (js: 8, h: 4)
    part[h, js] = reduce(sum, x[h, js, 0:16], dim=0)

kernel sums_combine  grid (h: 4)
    out[h] = reduce(sum, part[h, 0:8], dim=0)
"""
# The same with the rows of the second kernel in two digits.
DIGITS = PLAIN.replace("grid (h: 4)\n    out[h]", "grid (n: 2, m: 2)\n    out[h]").replace(
    "out[h] = reduce(sum, part[h, 0:8]", "out[m*2+n] = reduce(sum, part[m*2+n, 0:8]"
)
OTHERS = {
    "the parts of another row": ("part[h, 0:8]", "part[(h+1)%4, 0:8]", "no whole tiles"),
    "row 0 too": ("reduce(sum, part[h, 0:8], dim=0)",
                  "reduce(sum, part[h, 0:8], dim=0) + reduce(sum, part[0, 0:8], dim=0)", "what other groups store"),
    "a row too few": ("grid (js: 8, h: 4)", "grid (js: 8, h: 3)", "grids that do not match"),
    "parts that two rows store": ("part[h, js] =", "part[h//2, js] =", "two groups store one element|do not match"),
    "what is read is stored": ("    out[h] =", "    part[h, 0] = 0.0\n    out[h] =", "both use part"),
    "nothing is passed on": ("reduce(sum, part[h, 0:8], dim=0)", "reduce(sum, x[h, 0:8, 0], dim=0)",
                             "pass no tensor on"),
    "nothing is split": ("grid (js: 8, h: 4)\n    part[h, js] = reduce(sum, x[h, js, 0:16], dim=0)",
                         "grid (h: 4)\n    part[h, 0:8] = reduce(sum, x[h, 0:8, 0:16], dim=1)", "nothing is split"),
}  # fmt: skip


def test_plain_programs():
    program = from_text(PLAIN)
    made = joined(program, *program.kernels)
    assert isinstance(made, Joined)
    assert (made.groups, made.arriving) == (4, 8)
    assert "if arrived == 7:" in emit(program, EmitOptions(combine="last_program")).text


@pytest.mark.parametrize(
    ("rows", "groups"), [("h", 0), ("h*2:h*2+2", 2), ("0:4", 1)], ids=["a row", "rows of a digit", "all rows"]
)
def test_rows_that_the_second_kernel_counts_in_digits(rows: str, groups: int):
    """The group that stores all values of a digit runs the programs of all of them; no group stores one of each."""
    grid = f"js: 8, h: {groups or 4}" if groups != 1 else "js: 8"
    text = DIGITS.replace("js: 8, h: 4", grid).replace("part[h, js]", f"part[{rows}, js]")
    text = text if not groups else text.replace("x[h, js, 0:16], dim=0", f"x[{rows}, js, 0:16], dim=1")
    program = from_text(text)
    made = joined(program, *program.kernels)
    if not groups:
        assert made == "pass part on, of which a program reads what other groups store"
    else:
        assert isinstance(made, Joined), made
        assert (made.groups, made.arriving) == (groups, 8)
        x = np.random.default_rng(0).standard_normal((4, 8, 16)).astype(np.float32)
        module = emit(program, EmitOptions(combine="last_program"))
        (out,) = triton_numpy.run(module, {"x": x}, {"x": "float32"}, ("x",))
        np.testing.assert_allclose(out, x.sum(axis=(1, 2)), rtol=1e-5)


@pytest.mark.parametrize("case", OTHERS)
def test_what_one_launch_would_not_compute(case: str):
    old, new, reason = OTHERS[case]
    assert PLAIN.count(old) == 1
    program = from_text(PLAIN.replace(old, new))
    found = joined(program, *program.kernels)
    assert isinstance(found, str), found
    assert any(part in found for part in reason.split("|")), found
    with pytest.raises(EmitError, match="finds no two kernels for one launch: sums_local and sums_combine"):
        emit(program, EmitOptions(combine="last_program"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(2, 30))])
def test_random_decoding(seed: int, monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2, 3])
    op = attention.gqa(
        batch=rng.choice([1, 3]), heads=kv_heads * rng.choice([1, 2, 5]), kv_heads=kv_heads,
        q_len=rng.choice([1, 1, 20]), kv_len=rng.choice([130, 200, 333]), head_dim=16, causal=False,
    )  # fmt: skip
    splits = rng.choice([2, 3])
    one, two = compiled(op, splits), compiled(op, splits, nl.CodeOptions())
    wanted = in_order(two, monkeypatch, None)
    for found, expected in zip(in_order(one, monkeypatch, seed), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.nightly
def test_the_tuner_tries_it():
    decode = attention.causal(heads=4, q_len=1, kv_len=8192, head_dim=64)
    values = {k.option: k.values for s in space(decode, Target("h200")).subspaces for k in s.knobs}
    assert values["combine"] == ("kernel", "last_program")
    amd = space(decode, Target("mi300x"))
    assert "combine" not in {k.option for s in amd.subspaces for k in s.knobs}
    tuner = space(decode, Target("h200"))
    drawn = [c for c in tuner.sample(random.Random(0), 60) if c.code.combine == "last_program"]
    assert drawn
    assert all(c.code.loads == "pointers" and not c.code.dependent_launch for c in drawn)
    assert nl.compile(decode, target="h200", validate="none").code.combine == "kernel"
