"""What a kernel is made of, and what it refuses."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys

import pytest
import torch

import neptune_lab as nl
from neptune_lab.errors import LaunchError, ScheduleError
from neptune_lab.htile.nodes import Dot, Elementwise, For, Store
from neptune_lab.htile.walk import reads, stores, subexpressions
from neptune_lab.operators import attention, softmax
from neptune_lab.runtime.exported import exported


@pytest.fixture(scope="module")
def causal():
    return nl.compile(attention.causal(batch=1, heads=4, seq=256, head_dim=64))


def test_causal_attention_is_one_rolling_loop_that_stores_no_scores(causal):
    (kernel,) = causal.htile.kernels
    (loop,) = [s for s in kernel.body if isinstance(s, For)]
    at = kernel.body.index(loop)
    steps = [s.target.tensor for s in stores(loop.body)]
    # The tile on the diagonal is one: straight code behind the loop, which makes the same steps.
    assert [s.target.tensor for s in stores(kernel.body[at + 1 :])] == [*steps, "out"]
    assert loop.var == "j0"
    assert not [s for s in loop.body if isinstance(s, For)]
    chip = {t.name for t in causal.htile.tensors if t.space == "chip"}
    written = [s.target.tensor for s in stores(kernel.body)]
    assert [t for t in written if t not in chip] == ["out"]
    inside = {s.target.tensor for s in stores(loop.body)}
    before = {s.target.tensor for s in kernel.body[:at] if isinstance(s, Store)}
    assert {"s_max_0", "s_sum", "acc"} <= inside & before  # carried: started before the loop, updated in it
    loads = [a.tensor for s in stores(loop.body) for a in reads(s) if a.tensor not in chip]
    assert sorted(loads) == ["k", "v"]  # q is loaded once, before the loop
    dots = [e for s in stores(loop.body) for e in subexpressions(s.value) if isinstance(e, Dot)]
    assert len(dots) == 2
    assert dots[1].acc is not None  # the accumulator, repaired, goes into the dot
    exponentials = [
        e
        for s in stores(loop.body)
        for e in subexpressions(s.value)
        if isinstance(e, Elementwise) and e.op in ("exp", "exp2")
    ]
    assert len(exponentials) == 2  # of the scores, and one repair term for sum and accumulator alike


def test_golden_source(causal, golden):
    golden("attention_causal.triton.py", causal.source)
    golden("attention_causal.htile.txt", causal.htile_text)


def test_golden_decode(golden):
    kernel = nl.compile(attention.causal(batch=1, heads=2, q_len=1, kv_len=96, head_dim=64), "split_k_update")
    golden("attention_decode.triton.py", kernel.source)


def test_names_and_text_are_deterministic():
    make = lambda: nl.compile(attention.causal(heads=2, seq=32, head_dim=16), block_q=16, block_kv=16).source  # noqa: E731
    assert make() == make()


def test_export_runs_without_the_compiler(tmp_path, causal):
    path = causal.export(tmp_path / "attn.py")
    script = f"""
import os, sys
os.environ.setdefault("TRITON_INTERPRET", "1")
for name in ("tvm", "sympy", "neptune_lab", "networkx"):
    sys.modules[name] = None
sys.path.insert(0, {str(tmp_path)!r})
import torch, attn
device = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
q, k, v = (torch.randn(1, 4, 256, 64, dtype=torch.float16, device=device) for _ in range(3))
out = attn.attention_causal(q, k, v)
want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
print(float((out.double() - want).norm() / want.norm()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-3
    written = path.read_text(encoding="utf-8")
    assert written == exported(causal.source, "attention_causal")
    check = re.compile(r"\n# Triton itself.*\nNO_DEVICE = .*\n|    if NO_DEVICE:\n        raise .*\n")
    assert check.sub("", written) == causal.source


def test_an_exported_file_without_a_gpu_says_what_it_needs(tmp_path, causal):
    """Triton itself says "0 active drivers"; the module can be imported all the same."""
    causal.export(tmp_path / "attn.py")
    script = """
import torch, attn
x = torch.zeros(1, 4, 256, 64, dtype=torch.float16)
try:
    attn.attention_causal(x, x, x)
except RuntimeError as error:
    print(error)
"""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)
    said = "attention_causal needs a GPU; without one, set TRITON_INTERPRET=1 before Python starts\n"
    assert (done.stdout, done.returncode) == (said, 0), done.stderr


def test_launch_checks_name_the_argument(causal):
    torch = pytest.importorskip("torch")
    good = torch.zeros(1, 4, 256, 64, dtype=torch.float16)
    with pytest.raises(LaunchError, match=r"(?s)'?k'?.*float32.*float16"):
        causal(good, good.float(), good)
    with pytest.raises(LaunchError, match=r"(?s)'?v'?.*\(1, 4, 128, 64\)"):
        causal(good, good, good[:, :, :128].contiguous())
    with pytest.raises(LaunchError, match=r"(?s)'?q'?.*contiguous"):
        causal(good.transpose(1, 2).contiguous().transpose(1, 2), good, good)
    with pytest.raises(LaunchError, match="3"):
        causal(good, good)


def test_options_reach_the_launch():
    kernel = nl.compile(
        attention.causal(heads=1, seq=64, head_dim=16), block_q=32, config=nl.TileConfig(num_warps=8, num_stages=2)
    )
    (launch,) = kernel.trace.kernel.launches
    assert (launch["num_warps"], launch["num_stages"], launch["grid"]) == (8, 2, [2, 1, 1])
    assert "num_warps=8" in kernel.source


def test_a_kernel_keeps_its_schedule():
    sch = nl.Schedule(attention.causal(heads=1, seq=32, head_dim=16))
    nl.templates.rolling_update(sch, block_q=16, block_kv=16)
    kernel = nl.compile(sch)
    steps = kernel.schedule.steps
    sch.undo()
    assert kernel.schedule.steps == steps


def test_unknown_templates_and_options():
    op = attention.causal(heads=1, seq=32, head_dim=16)
    with pytest.raises(ScheduleError, match="did you mean 'rolling_update'"):
        nl.compile(op, "rolling")
    with pytest.raises(ScheduleError, match="block_k"):
        nl.compile(op, block_k=3)
    with pytest.raises(ScheduleError, match="a schedule is compiled without changes"):
        nl.compile(nl.Schedule(op), "rolling_update")


def test_models_that_hold_kernels_are_copied_and_kernels_are_not_pickled():
    kernel = nl.compile(softmax.figure1(rows=4, cols=8))
    assert copy.deepcopy({"kernel": kernel})["kernel"] is kernel
    with pytest.raises(LaunchError, match=r"cannot be pickled(.|\n)*kernel.export"):
        pickle.dumps(kernel)


def test_vmap_of_a_kernel_is_refused():
    kernel = nl.compile(softmax.figure1(rows=4, cols=8))
    x = torch.randn(3, 4, 8, device="cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(2):  # (the second time, the kernel may be known)
        with pytest.raises(LaunchError, match=r"inside torch\.vmap"):
            torch.vmap(kernel)(x)
        kernel(x[0])
