"""Large records in Chromium: `python scripts/large_graphs.py` prints what is sent, and how long the explorer takes.

Two kinds of records (`tests/large_records.py`). `real` is an operator of n stages in independent rows of six, of which
some are fused and recorded. `chained` is a record with a chain of n nodes and about 100 phases.

For each: bytes of the first part and of the others; seconds from opening the exported page to its first paint, of which
CPU of the page's main thread; milliseconds of a step change, median and longest, by mouse clicks on the rail; elements
in the graph and in the program. `python scripts/large_graphs.py 72 400` takes other sizes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

from neptune_widgets import payload

import neptune_lab as nl
from neptune_lab.files import write_text

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from large_records import chained, real

SIZES = (72, 400, 1440)

# Task time is CPU of the main thread (scripts, style, layout); it does not grow with the load of other processes.
_STEPS = """async () => {
  const steps = [...document.querySelectorAll('.rail li[role=treeitem]:not(.group)')].slice(0, 40);
  const took = [];
  for (const li of steps) {
    const start = performance.now();
    li.click();
    document.body.offsetHeight;
    await new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
    took.push(performance.now() - start);
  }
  return took;
}"""


def in_browser(html: str, folder: Path) -> dict[str, Any]:
    """First paint and step changes of a page.

    Args:
        html: an exported page.
        folder: where it is written.

    Returns:
        Figures by name.
    """
    from playwright.sync_api import sync_playwright

    path = folder / "page.html"
    write_text(path, html)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        wire = page.context.new_cdp_session(page)
        wire.send("Performance.enable", {"timeDomain": "threadTicks"})

        def task() -> float:
            found = wire.send("Performance.getMetrics")["metrics"]
            return next(m["value"] for m in found if m["name"] == "TaskDuration")

        begin = task()
        start = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        page.locator(".nx .ln").first.wait_for()
        page.locator(".nx .dataflow").first.wait_for()
        first = time.perf_counter() - start
        first_cpu = task() - begin
        page.wait_for_timeout(2500)
        counted = page.evaluate(
            "all => all.map(of => document.querySelectorAll(of).length)",
            [".nx .gbox *", ".nx section[aria-label=program] *", ".nx *"],
        )
        begin = task()
        took = page.evaluate(_STEPS)
        cpu = 1e3 * (task() - begin) / max(1, len(took))
        browser.close()
    return {
        "first paint, s": first,
        "of it CPU, s": first_cpu,
        "step, median ms": statistics.median(took),
        "step, longest ms": max(took),
        "step, mean CPU ms": cpu,
        "elements of the graph": counted[0],
        "of the program": counted[1],
        "of the page": counted[2],
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES, help="nodes")
    parser.add_argument("--kind", choices=("real", "chained"), action="append", help="default: both")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kind or ("real", "chained"):
            for size in options.sizes:
                start = time.process_time()
                trace = {"real": real, "chained": chained}[kind](size)
                made = time.process_time() - start
                start = time.process_time()
                data = payload.saved(trace)
                packed = time.process_time() - start
                html = nl.explore(trace).export_html()
                rows = {
                    "phases": sum(len(s.phases) for s in trace.steps),
                    "record made, s CPU": made,
                    "payload made, s CPU": packed,
                    "first part, kB": len(data.text.encode()) / 1e3,
                    "other parts, kB": sum(len(t.encode()) for t in data.rest) / 1e3,
                    **in_browser(html, Path(folder)),
                }
                print(f"{kind} {size}: " + ", ".join(f"{k} {v:.4g}" for k, v in rows.items()), flush=True)


if __name__ == "__main__":
    main()
