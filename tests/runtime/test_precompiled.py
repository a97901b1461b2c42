"""The second launch of a kernel goes past Triton's own launch path, and does the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

# Without a GPU the stand-in of scripts/launch_overhead.py takes the driver's place; kernels are compiled all the same.
SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, triton
from launch_overhead import NoDriver
from neptune_lab.runtime import resources

driver, launched, through_triton = NoDriver(), [], []

def launcher(source, metadata):
    def launch(x, y, z, stream, function, packed, about, enter, leave, *arguments):
        launched.append([x, y, z, function, metadata.num_warps, [id(a) for a in arguments]])
    return launch

driver.launcher_cls = launcher
triton.runtime.driver.set_active(driver)

import module
from neptune_lab.runtime.precompiled import with_precompiled_launches

run = triton.runtime.jit.JITFunction.run
def counted(self, *arguments, **options):
    through_triton.append(self.__name__)
    return run(self, *arguments, **options)
triton.runtime.jit.JITFunction.run = counted

function = with_precompiled_launches(module.entry, module)
both = torch.zeros(65)
aligned, shifted, out = both[:64], both[1:], torch.zeros(64)
steps = []
for x, warps in ((aligned, 4), (aligned, 4), (shifted, 4), (aligned, 4), (aligned, 8), (aligned, 4), (shifted, 4)):
    through_triton.clear(), launched.clear()
    result = function(x, out, warps)
    expected = [[id(x), id(out)], [id(out), id(out)]]
    steps.append({
        "result": result is out,
        "grids": [l[:3] for l in launched], "kernels": [l[3] for l in launched], "warps": [l[4] for l in launched],
        "arguments": [l[5] for l in launched] == expected, "through_triton": list(through_triton),
    })
function(aligned, out, 4, fail=False)
try:
    function(aligned, out, 4, fail=True)
except RuntimeError as error:
    failed = str(error)
kept = with_precompiled_launches(module.plain, module) is module.plain
kernels = sorted({r.kernel for r in resources(module)})
found = {"steps": steps, "resources": kernels, "failed": failed, "unchanged": type(module.first).__name__, "kept": kept}
print(json.dumps(found))
"""

MODULE = """
import triton
import triton.language as tl


@triton.jit
def twice(x):
    return x * 2


@triton.jit
def first(x_ptr, out_ptr):
    i = tl.arange(0, 64)
    tl.store(out_ptr + i, twice(tl.load(x_ptr + i)))


@triton.jit
def second(x_ptr, out_ptr):
    i = tl.arange(0, 64)
    tl.store(out_ptr + i, tl.load(x_ptr + i) + 1)


def entry(x, out, warps, fail=False):
    first[(3, 2)](x, out, num_warps=warps)
    if fail:
        raise RuntimeError("after the first")
    second[(5,)](out, out)
    return out


def plain(x):
    return x
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("module")
    (folder / "module.py").write_text(MODULE)
    env = {**os.environ, "PYTHONPATH": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    env.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", SCRIPT, str(SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nightly
def test_every_launch_gets_its_grid_its_arguments_and_its_options(seen):
    for step, warps in zip(seen["steps"], (4, 4, 4, 4, 8, 4, 4), strict=True):
        assert step["result"]
        assert step["arguments"]
        assert step["grids"] == [[3, 2, 1], [5, 1, 1]]
        assert step["warps"] == [warps, 4]
        assert step["kernels"] == ["first", "second"]


def test_only_what_was_not_compiled_goes_through_triton(seen):
    assert [step["through_triton"] for step in seen["steps"]] == [
        ["first", "second"],
        [],
        ["first"],  # its pointer is no multiple of 16
        [],
        ["first"],  # other options
        [],
        ["first"],
    ]


def test_errors_pass_through_and_the_module_stays_as_it_was(seen):
    assert seen["failed"] == "after the first"
    assert seen["unchanged"] == "JITFunction"
    assert seen["resources"] == ["first", "second"]
    assert seen["kept"]
