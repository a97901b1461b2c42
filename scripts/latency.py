"""Interactive latency on this machine: `python scripts/latency.py` prints a table, medians in milliseconds.

Compiling and editing run in this process; step changes run in Chromium, on a page that `export_html` wrote.
`python scripts/latency.py compile` prints CPU time alone, of a cold compile and of edits, with validation and without:
on a busy machine, CPU time is more stable than wall time.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")

import neptune_lab as nl

STEPS = """() => [...document.querySelectorAll('.rail li[role=treeitem]:not(.group)')].map(li => {
  const start = performance.now(); li.click(); document.body.offsetHeight; return performance.now() - start })"""


def median(work: Callable[[], object], times: int = 5) -> float:
    """Milliseconds that `work` takes, the median of some runs."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        took.append(1e3 * (time.perf_counter() - start))
    return statistics.median(took)


def process(code: str) -> float:
    """Milliseconds of a fresh Python process that runs `code`, the median of three."""
    return median(lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True), 3)


# Tiles (block_q, block_kv) of causal attention whose small forms, which are validated, are all different.
STRUCTURES = ((64, 128), (128, 128), (64, 16), (128, 16), (32, 128), (32, 16))


def cpu(code: str) -> float:
    """Milliseconds of CPU time of a fresh Python process that runs `code`, the median of three."""
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return statistics.median(took)


def edits(validate: str) -> str:
    """Python that compiles causal attention, and prints the median CPU time of compiles with other tiles."""
    return f"""
import statistics, time
import neptune_lab as nl
op = nl.operators.attention.causal(heads=32, seq=2048, head_dim=128)
nl.compile(op, validate={validate!r})
took = []
for q, kv in {STRUCTURES!r}:
    start = time.process_time()
    nl.compile(op, block_q=q, block_kv=kv, validate={validate!r})
    took.append(1e3 * (time.process_time() - start))
print(statistics.median(took))
"""


def compile_rows() -> dict[str, float]:
    """CPU time of compiles, with validation and without."""
    rows = {}
    for validate in ("quick", "none"):
        op = "nl.operators.attention.causal(heads=32, seq=2048, head_dim=128)"
        rows[f'causal attention, fresh process, validate="{validate}"'] = cpu(
            f"import neptune_lab as nl; nl.compile({op}, validate={validate!r})"
        )
        found = subprocess.run([sys.executable, "-c", edits(validate)], check=True, capture_output=True, text=True)
        rows[f'the same with other tiles, a structure not seen before, warm, validate="{validate}"'] = float(
            found.stdout
        )
    return rows


def main() -> None:
    """Measures and prints."""
    if sys.argv[1:] == ["compile"]:
        for name, value in compile_rows().items():
            print(f"{value:9.1f} ms CPU  {name}")
        return
    causal = lambda: nl.operators.attention.causal(batch=1, heads=32, seq=2048, head_dim=128)  # noqa: E731
    bare = process("pass")
    rows = {"import neptune_lab (fresh process, Python's own start taken off)": process("import neptune_lab") - bare}
    compile_ = "import neptune_lab as nl; nl.compile(nl.operators.attention.causal(heads=32, seq=2048, head_dim=128))"
    rows["causal attention to Triton, fresh process, imports included"] = process(compile_)
    kernel = nl.compile(causal())
    rows["causal attention to Triton, warm"] = median(lambda: nl.compile(causal()))
    rows["split-k attention to Triton, warm"] = median(lambda: nl.compile(causal(), "split_k_update"))
    from neptune_lab.repair import solve

    for reducer, g in (("sum", "exp(c{n} - r)*d{n}"), ("sum", "(c{n}/r)**2"), ("max", "c{n} - r")):
        count = iter(range(1000))  # new names, so that no answer is in the cache
        rows[f"repair.solve({reducer!r}, {g.format(n='')!r}), not seen before"] = median(
            lambda g=g, reducer=reducer, count=count: solve(reducer, g.format(n=next(count)), ["r"])
        )
    rows["nl.explore(kernel), payload made"] = median(lambda: nl.explore(kernel))
    with tempfile.TemporaryDirectory() as folder:
        from playwright.sync_api import sync_playwright

        path = Path(folder) / "attention.html"
        nl.explore(nl.compile(nl.operators.attention.causal(heads=4, seq=256, head_dim=64))).export_html(path)
        with sync_playwright() as p:
            browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            start = time.perf_counter()
            page.goto(path.as_uri())
            page.locator(".nx .ln").first.wait_for()
            rows["exported page: first paint"] = 1e3 * (time.perf_counter() - start)
            took = page.evaluate(STEPS)
            rows["exported page: a step change, median"] = statistics.median(took)
            rows["exported page: a step change, longest"] = max(took)
            browser.close()
    for name, value in rows.items():
        print(f"{value:9.1f} ms  {name}")


if __name__ == "__main__":
    main()
