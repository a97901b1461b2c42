"""What every test shares: Triton's interpreter where there is no GPU, and golden texts."""

from __future__ import annotations

import asyncio
import difflib
import gc
import inspect
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Every run tries the same examples (`make fuzz` tries new ones), and how long one takes may not fail a test.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# Imports fill the memory with objects that stay; `pytest_collection` switches the collector on again.
gc.disable()

GOLDEN = Path(__file__).parent / "golden"

# Golden files are data, even where they hold Python; what stands in for another module is imported under its name only.
# The scripts in wheel/ run in environments of their own.
collect_ignore = ["golden", "left_out", "wheel"]

# Each worker, and each process that a test starts, computes in one thread: threads for small tiles wait more than they
# compute.  NumPy and torch read it as they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# torch looks for garbage after each function that it compiles.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

# The processes that tests start do without these modules, and this one too.
LEFT_OUT = Path(__file__).parent / "left_out"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(LEFT_OUT), os.environ.get("PYTHONPATH")]))
sys.path.insert(0, str(LEFT_OUT))

pytest_plugins = ["doctest_files", "fake_tuning", "front_end", "resuming", "rewritten"]


def _has_gpu() -> bool:
    """Is there a CUDA GPU that torch can use?  torch is asked only where the driver shows a device."""
    if not (any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()):
        return False
    import torch

    return torch.cuda.is_available()


HAS_GPU = _has_gpu()


# Triton reads this as it is imported, so it stands here, before any test module is.
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")


# Files that take long go first: a worker takes whole files, and one that it begins last would keep all others waiting.
LONG_FIRST = (
    "tests/browser/",
    "tests/operators/test_table.py",
    "tests/pytorch/test_lengths.py",
    "tests/pipeline/test_dims.py",
    "tests/gluon/test_sizes.py",
    "tests/pytorch/test_gradient_lengths.py",
    "tests/torch_regions/test_training.py",
    "tests/notebooks/",
    "tests/autotune/",
    "tests/tuning/",
    "tests/docs/",
    "tests/pipeline/",
    "tests/pytorch/",
    "tests/bench/",
    "tests/strict/test_no_code.py",
    "tests/validate/",
    "tests/gluon/",
    "tests/torch_regions/",
    "tests/widgets/",
    "tests/course/",
    "tests/faults/",
    "tests/torch_to_stages/",
    "tests/loop_schedule/",
    "tests/triton/",
)


@cache
def _turn(file: str) -> int:
    """The place of a test file among those of LONG_FIRST; all others come after them."""
    return next((n for n, start in enumerate(LONG_FIRST) if file.startswith(start)), len(LONG_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For `-n logical`: a worker per core, at least two, since that of tests/browser waits most of the time. One more
    takes a tenth more CPU time, for what each worker imports and compiles: on two cores, 10:01 in place of 9:10."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, cores)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """`--dist loadfile`, except that one worker runs all of tests/browser, whose files share JupyterLab and Chromium.

    These tests wait more than they compute; meanwhile the other workers keep the remaining cores busy.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneBrowser(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/browser" if nodeid.startswith("tests/browser/") else super()._split_scope(nodeid)

    return OneBrowser(config, log)  # pyright: ignore[reportArgumentType]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing")


def _leave_to_the_night(items: list[pytest.Item]) -> None:
    """Marks `nightly` what tests marked `one_in(n)` leave out by day: all but one in n, drawn by the test's name."""
    sweeps: dict[tuple[pytest.Item | pytest.Collector | None, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("one_in") and not item.get_closest_marker("nightly"):
            sweeps.setdefault((item.parent, getattr(item, "originalname", item.name)), []).append(item)
    for (_, name), sweep in sweeps.items():
        (every,) = sweep[0].get_closest_marker("one_in").args  # pyright: ignore[reportOptionalMemberAccess]
        by_day = random.Random(name).sample(range(len(sweep)), -(-len(sweep) // every))
        for place, item in enumerate(sweep):
            if place not in by_day:
                item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """Workers do not collect functions that are nightly as a whole, if they leave those out: two tests in three are."""
    config = collector.config
    if config.option.markexpr == "not nightly" and hasattr(config, "workerinput") and name.startswith("test"):
        marks = getattr(obj, "pytestmark", ()) if inspect.isfunction(obj) else ()
        if any(mark.name == "nightly" for mark in marks):
            return []
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if addresses := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"names with addresses, which workers cannot agree on: {addresses[0]}\nhelp: give ids")
    _leave_to_the_night(items)
    items.sort(key=lambda item: _turn(item.nodeid.partition("::")[0]))
    if HAS_GPU:
        return
    no_gpu = pytest.mark.skip(reason="no CUDA GPU here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(no_gpu)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Keeps the garbage collector from what is imported: it stays, and going over it takes as long as some imports."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Few collections: they took a twelfth of the time, and there is little garbage in cycles.
        gc.set_threshold(1_000_000, 20, 100)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """At the end pytest, IPython and Python look for garbage some twenty times, in all that the tests have left."""
    gc.freeze()


def _same_numbers() -> None:
    """Seeds what torch and `random` draw, so that neither a module's tensors nor a test's depend on the run."""
    import torch

    random.seed(0)
    # `torch.manual_seed` keeps the stack of every call for a CUDA that may still be set up, which takes 0.5 ms.
    (torch.manual_seed if HAS_GPU else torch.default_generator.manual_seed)(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collectstart(collector: pytest.Collector) -> None:
    _same_numbers()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _same_numbers()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Playwright leaves its event loop running between the tests in a browser, and two loops cannot run."""
    if item.nodeid.startswith("tests/browser/"):
        return (yield)
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return (yield)
    finally:
        asyncio._set_running_loop(loop)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` equals tests/golden/<name>, or with --update-golden becomes it."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            return
        if not path.is_file():
            pytest.fail(f"tests/golden/{name} does not exist; pytest --update-golden writes it", pytrace=False)
        expected = path.read_bytes().decode()
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(keepends=True),
                text.splitlines(keepends=True),
                fromfile=f"tests/golden/{name}",
                tofile="this run",
            )
            lines = [line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n" for line in diff]
            pytest.fail(
                f"{name} is not what it was; if that is meant: pytest --update-golden\n{''.join(lines)}", pytrace=False
            )

    return compare


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler: a shell starts what it runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
