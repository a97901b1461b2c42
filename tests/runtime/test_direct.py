"""Launchers that call Triton's launch function themselves: the same grids, arguments and memory as the module's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import triton

from neptune_lab.runtime import direct as own
from neptune_lab.runtime import torch_state
from neptune_lab.runtime.direct import Compiled, direct, unnegated

TWO = """
import torch

def entry(q, k):
    \"\"\"Contiguous tensors on one device.\"\"\"
    n = k.shape[1]
    sums = torch.empty((3, 5), dtype=torch.float32, device=q.device)
    parts = torch.empty((n, 2), dtype=torch.float16, device=q.device)
    more = torch.empty((7,), dtype=torch.int8, device=q.device)
    first[(n // 2, 4)](q, k, sums, parts, more, n, num_warps=2)
    out = torch.empty_strided((2, 3), (1, 2), dtype=torch.float16, device=q.device)
    second[(5,)](out, sums, parts)
    return out
"""


class Hooks:
    def __init__(self):
        self.calls = []


@pytest.fixture
def world(monkeypatch):
    """A GPU without one: `seen` are the launches, `slow` the calls of the launcher that takes every tensor."""
    made = SimpleNamespace(seen=[], slow=[], index=None, enter=Hooks(), leave=Hooks(), given=[])
    empty = torch.empty_strided

    def watched(*arguments, **options):
        made.given.append(arguments[0])
        return empty(*arguments, **options)

    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda index: 77))
    monkeypatch.setattr(triton.runtime, "driver", driver)
    monkeypatch.setattr(torch_state, "current_gpu", lambda: made.index)
    monkeypatch.setattr(torch, "empty_strided", watched)
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", made.enter)
    monkeypatch.setattr(triton.knobs.runtime, "launch_exit_hook", made.leave)
    return made


def kernel(world, name, **options):
    run = lambda *arguments: world.seen.append((name, arguments))  # noqa: E731
    return Compiled(SimpleNamespace(run=run, function=f"<{name}>", packed_metadata=(4, 1, 0)), options)


def written(world, text=TWO, **kernels):
    kernels = kernels or {"first": kernel(world, "first", num_warps=2), "second": kernel(world, "second")}

    def slow(*tensors):
        world.slow.append(tensors)
        return "slow"

    return direct(text, "entry", ModuleType("module"), kernels, torch.device("cpu"), slow)


COUNTED = """
import torch

def entry(q):
    \"\"\"Contiguous tensors on one device.\"\"\"
    out = torch.empty((3,), dtype=torch.float32, device=q.device)
    counters = _counters(q.device, 6)
    first[(4,)](q, out, counters)
    return out
"""


def test_counters_are_those_of_the_module(world):
    """They are asked for at each call: the stream may be another one, and a graph may be captured."""
    counters, asked = torch.zeros(6, dtype=torch.int32), []
    module = ModuleType("module")
    module._counters = lambda device, count: asked.append((device, count)) or counters
    launch = direct(COUNTED, "entry", module, {"first": kernel(world, "first")}, torch.device("cpu"), lambda *_: "slow")
    assert launch is not None
    q = torch.zeros(4)
    for _ in range(2):
        out = launch(q)
    (name, arguments), _ = world.seen
    assert name == "first"
    assert arguments[-3:] == (q.data_ptr(), world.seen[0][1][-2], counters.data_ptr())
    assert world.seen[1][1][-2] == out.data_ptr()
    assert asked == [(torch.device("cpu"), 6)] * 2


KEPT = """
import torch

def entry(q):
    \"\"\"Contiguous tensors on one device.\"\"\"
    (ranks, entries) = _kept(q.device)
    out = torch.empty((3,), dtype=torch.float32, device=q.device)
    first[(4,)](q, out, ranks, entries)
    return out
"""


def test_what_is_kept_is_asked_for_at_each_call(world):
    """(in a graph it is another)"""
    kept, asked = (torch.zeros(6), torch.ones(6)), []
    module = ModuleType("module")
    module._kept = lambda device: asked.append(device) or kept
    launch = direct(KEPT, "entry", module, {"first": kernel(world, "first")}, torch.device("cpu"), lambda *_: "slow")
    assert launch is not None
    for _ in range(2):
        launch(torch.zeros(4))
    assert [arguments[-2:] for _, arguments in world.seen] == [tuple(t.data_ptr() for t in kept)] * 2
    assert asked == [torch.device("cpu")] * 2


def test_grids_arguments_and_memory(world):
    launch = written(world)
    q, k = torch.zeros(4, dtype=torch.float16), torch.zeros(2, 6, dtype=torch.float16)
    out = launch(q, k)
    assert (out.shape, out.stride(), out.dtype) == ((2, 3), (1, 2), torch.float16)
    (first, a), (second, b) = world.seen
    assert (first, second) == ("first", "second")
    assert a[:8] == (3, 4, 1, 77, "<first>", (4, 1, 0), None, None)
    assert b[:8] == (5, 1, 1, 77, "<second>", (4, 1, 0), None, None)
    q_place, k_place, sums, parts, more, n = a[9:]
    assert (q_place, k_place, n) == (q.data_ptr(), k.data_ptr(), 6)
    assert b[9:] == (out.data_ptr(), sums, parts)
    # sums has 60 bytes, parts 24 (6 by 2 of 2 bytes), more 7: each is a part of one allocation, and none overlap
    assert (parts - sums, more - parts, world.given) == (256, 256, [(768,), (2, 3)])
    assert all(place % 16 == 0 for place in (sums, parts, more))


PERSISTENT = """
import torch

def entry(q):
    out = torch.empty((4, 2), dtype=torch.float16, device=q.device)
    first[(min(400, _multiprocessors(q.device)),)](out, q, num_warps=2)
    return out
"""


def test_a_grid_may_depend_on_the_multiprocessors_of_the_gpu(world):
    """So do those of persistent programs in Gluon; any other name that is not known goes Triton's way."""
    module = ModuleType("module")
    module._multiprocessors = {torch.device("cpu"): 132}.__getitem__  # type: ignore[attr-defined]
    kernels = {"first": kernel(world, "first", num_warps=2)}
    launch = direct(PERSISTENT, "entry", module, kernels, torch.device("cpu"), pytest.fail)
    assert launch is not None
    launch(torch.zeros(8, dtype=torch.float16))
    assert world.seen[0][1][:3] == (132, 1, 1)
    assert direct(PERSISTENT, "entry", ModuleType("other"), kernels, torch.device("cpu"), pytest.fail) is None
    unknown = PERSISTENT.replace("_multiprocessors(q.device)", "LIMIT")
    module.LIMIT = 3  # type: ignore[attr-defined]
    assert direct(unknown, "entry", module, kernels, torch.device("cpu"), pytest.fail) is None


def test_memory_grows_with_a_size(world):
    launch = written(world)
    launch(torch.zeros(4), torch.zeros(1, 1000, dtype=torch.float16))
    sums, parts, more, n = world.seen[0][1][-4:]
    assert (n, parts - sums, more - parts) == (1000, 256, 4096)  # 4,000 bytes
    assert world.given[0] == (256 + 4096 + 256,)


def test_what_the_kernels_were_not_compiled_for_goes_the_slow_way(world):
    launch = written(world)
    q, k = torch.zeros(9, dtype=torch.float16), torch.zeros(1, 6, dtype=torch.float16)
    assert launch(q[1:], k) == "slow"  # not aligned
    assert launch(q, torch._neg_view(k)) == "slow"
    assert unnegated(launch)(q, torch._neg_view(k)) != "slow"  # its caller knows that there is none
    assert unnegated(launch)(q[1:], k) == "slow"
    world.seen.clear()
    world.slow.pop()
    world.index = 1  # another device is current
    assert launch(q, k) == "slow"
    world.index = None
    world.enter.calls.append(print)
    assert launch(q, k) == "slow"
    world.enter.calls.clear()
    world.leave.calls.append(print)
    assert launch(q, k) == "slow"
    world.leave.calls.clear()
    triton.knobs.runtime.launch_enter_hook = Hooks()  # a profiler's own
    assert launch(q, k) == "slow"
    triton.knobs.runtime.launch_enter_hook = world.enter
    assert (world.seen, len(world.slow)) == ([], 6)
    assert launch(q, k) != "slow"


def test_functions_of_the_module_are_called(world):
    module = ModuleType("module")
    module._multiprocessors = lambda device: 132 if device == torch.device("cpu") else None
    text = TWO.replace("(n // 2, 4)", "(min(_multiprocessors(q.device), n), 4)")
    kernels = {"first": kernel(world, "first", num_warps=2), "second": kernel(world, "second")}
    launch = direct(text, "entry", module, kernels, torch.device("cpu"), print)
    launch(torch.zeros(4), torch.zeros(1, 6))
    assert world.seen[0][1][:3] == (6, 4, 1)


OTHERS = {
    "a loop": TWO.replace("    n = k.shape[1]\n", "    n = k.shape[1]\n    for i in range(2):\n        pass\n"),
    "a tensor with values": TWO.replace("torch.empty((3, 5)", "torch.zeros((3, 5)"),
    "an argument that is returned": TWO.replace("return out", "return q"),
    "other options": TWO.replace("num_warps=2", "num_warps=8"),
    "an option that is computed": TWO.replace("num_warps=2", "num_warps=n"),
    "another kernel": TWO.replace("second[", "third["),
    "an intermediate with strides": TWO.replace("torch.empty((3, 5)", "torch.empty_strided((3, 5), (1, 3)"),
    "a name of its own": TWO.replace("sums", "_nl_sums"),
    "a name that the module lacks": TWO.replace("(n // 2, 4)", "(unknown(n), 4)"),
    "no return": TWO.replace("    return out\n", ""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_launchers_stay_as_they_are(world, name):
    assert OTHERS[name] != TWO
    assert written(world, OTHERS[name]) is None


class CudaLauncher:
    """As Triton's, with what both versions have."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, True
    arg_annotations, kernel_signature = ["kinds"], b"signature"

    def __init__(self, launch):
        self.launch = launch


FORMS = {
    "3.6.0": (3, 4, 1, 77, "<first>", False, True, None, None, (4, 1, 0), None, None, None),
    "3.7.1": (3, 4, 1, 77, "<first>", False, True, (4, 1, 0), *[None] * 5, ["kinds"], b"signature"),
}


@pytest.mark.parametrize("version", FORMS)
def test_the_order_of_arguments_of_each_version(world, monkeypatch, version):
    from triton.backends.nvidia import driver

    monkeypatch.setattr(driver, "CudaLauncher", CudaLauncher)
    monkeypatch.setattr(triton, "__version__", version)
    kernels = {"first": kernel(world, "first", num_warps=2), "second": kernel(world, "second")}
    for compiled in kernels.values():
        compiled.kernel.run = CudaLauncher(partial(compiled.kernel.run))  # as a function of C
    launch = written(world, **kernels)
    q, k = torch.zeros(4), torch.zeros(2, 6)
    launch(q, k)
    _, found = world.seen[0]
    assert found[: len(FORMS[version])] == FORMS[version]
    rest = found[len(FORMS[version]) :]
    assert (rest[0] if version == "3.7.1" else rest)[:2] == (q.data_ptr(), k.data_ptr())


def test_a_version_that_is_not_known_is_called_as_compiled_kernels_are(world, monkeypatch):
    from triton.backends.nvidia import driver

    monkeypatch.setattr(driver, "CudaLauncher", CudaLauncher)
    monkeypatch.setattr(triton, "__version__", "9.0.0")
    run = CudaLauncher(partial(print))
    assert own.launch_function(run) == (run, "run", None)
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    run.global_scratch_size = 128  # a kernel that needs memory, which only `run` gives it
    assert own.launch_function(run) == (run, "run", None)


DESCRIBED = """
import torch

SHARED = "layout"

def entry(q):
    out = torch.empty((4, 8), dtype=torch.float16, device=q.device)
    first[(1,)](Descriptor(q, [4, 8], [8, 1], [4, 8], SHARED), Descriptor(out, [4, 8], [8, 1], [2, 8]), q)
    return out
"""


def test_descriptors_keep_no_tensor_alive(world):
    made = []

    class Descriptor:
        def __init__(self, base, shape, strides, block, layout="none"):
            made.append((base.data_ptr(), shape, strides, block, layout))
            self.base, self.shape = base, shape

    module = ModuleType("module")
    module.Descriptor, module.SHARED = Descriptor, "layout"
    launch = direct(DESCRIBED, "entry", module, {"first": kernel(world, "first")}, torch.device("cpu"), print)
    tensors = [torch.zeros(4, 8, dtype=torch.float16) for _ in range(2)]
    outs = [launch(tensor) for tensor in (*tensors, *tensors)]
    of_q = [m for m in made if m[-1] == "layout"]
    assert set(map(str, of_q)) == {str((t.data_ptr(), [4, 8], [8, 1], [4, 8], "layout")) for t in tensors}
    for tensor, out, (_, arguments) in zip((*tensors, *tensors), outs, world.seen, strict=True):
        one, other, place = arguments[-3:]
        assert (one.base.data_ptr(), other.base.data_ptr(), place) == (tensor.data_ptr(), out.data_ptr(), place)
        assert not isinstance(one.base, torch.Tensor)


INSIDE = """
import torch

def entry(q):
    first_of_all = torch.empty((2, 8), dtype=torch.float16, device=q.device)
    sums = torch.empty((4, 8), dtype=torch.float32, device=q.device)
    first[(1,)](Descriptor(sums, [4, 8], [8, 1], [4, 8]), sums)
    out = torch.empty((4, 8), dtype=torch.float16, device=q.device)
    second[(1,)](out, Descriptor(sums, [4, 8], [8, 1], [2, 8]), first_of_all)
    return out
"""


def test_descriptors_of_what_is_not_returned(world):
    """Such a tensor is a part of an allocation, and no tensor in the launcher."""

    class Descriptor:
        def __init__(self, base, shape, strides, block):
            self.dtype, self.base, self.block = base.dtype, base, block

    module = ModuleType("module")
    module.Descriptor = Descriptor
    kernels = {"first": kernel(world, "first"), "second": kernel(world, "second")}
    launch = direct(INSIDE, "entry", module, kernels, torch.device("cpu"), print)
    launch(torch.zeros(4, 8))
    (_, (*_, one, place)), (_, (*_, other, first)) = world.seen
    assert [d.base.data_ptr() for d in (one, other)] == [place, place]
    assert (one.dtype, one.block, other.block) == (torch.float32, [4, 8], [2, 8])
    assert place - first == 256


# A whole module through Triton's own compiler, with the stand-in of scripts/launch_overhead.py for the driver.
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, triton
from launch_overhead import NoDriver, spec_of, GOLDEN

driver, launched = NoDriver(), []
def launcher(source, metadata):
    return lambda *a: launched.append([*a[:3], [x if isinstance(x, int) else x.data_ptr() for x in a[9:]]])
driver.launcher_cls = launcher
triton.runtime.driver.set_active(driver)
sys.modules["neptune_lab.runtime.load"].interpreting = lambda: False
from neptune_lab.runtime import load, torch_state
torch.cuda.current_device = torch_state.current_gpu = lambda: None

kernel = load(spec_of(GOLDEN / "attention_decode.triton.py"))
kernel._device_type = "cpu"
tensors = [torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in kernel.spec.inputs]
kernel(*tensors)
own, first = kernel._direct[None], list(launched)
launched.clear()
outs = [kernel(*tensors), kernel.launch(*tensors)]
unaligned = [torch.zeros(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape) for t in tensors]
kernel(*unaligned)
print(json.dumps({
    "first": [l[:3] for l in first], "later": [l[:3] for l in launched], "own": own is not None,
    "outs": [l[3][0] for l in launched[1:4:2]] == [o.data_ptr() for o in outs],
    "inputs": [l[3][:3] for l in launched[::2]]
    == [[t.data_ptr() for t in g] for g in (tensors, tensors, unaligned)],
}))
"""


@pytest.mark.nightly
def test_a_kernel_is_launched_directly_from_the_second_call_on(tmp_path):
    scripts = Path(__file__).parents[2] / "scripts"
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "triton"), "NEPTUNE_LAB_CACHE": str(tmp_path)}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(scripts)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["first"] == [[2, 1, 2], [1, 2, 1]]
    assert found["later"] == found["first"] * 3
    assert found["own"]
    assert found["outs"]
    assert found["inputs"]
