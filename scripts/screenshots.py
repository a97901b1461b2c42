"""Makes the README's pictures of the explorer: `python scripts/screenshots.py` writes docs/images/*.png.

Each is a page that `export_html` wrote, opened from disk in Chromium with the network off.  `--all` also makes
the narrow and dark ones of all.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import neptune_lab as nl
from neptune_lab.files import write_bytes

IMAGES = Path(__file__).parents[1] / "docs" / "images"


def figure1() -> nl.Schedule:
    """The paper's first example: naive, repaired, and as a kernel with one row per program."""
    schedule = nl.Schedule(nl.operators.softmax.figure1(rows=2, cols=4))
    schedule.rolling_update("s_sum", "s_max.j", maps="keep")
    schedule.retire_tags("s_max")
    schedule.bind("s_max.i", "blockIdx.x")
    schedule.decompose_reduction("s_sum", "s_sum.j")
    return schedule


def show_repair(page: Page) -> None:
    """Figure 1 at the repaired program, the last iteration."""
    page.locator(".rail li", has_text="repaired program").first.click()
    for _ in range(3):
        page.locator(".rail [role=tree]").first.press("k")


def show_triton(page: Page) -> None:
    """Attention at the end, the repair term's line of Triton pressed."""
    page.locator(".rail li", has_text="retire_tags").first.click()
    kernel = page.get_by_role("tab", name="Kernel", exact=True)
    if kernel.count() and kernel.first.is_visible():
        kernel.first.click()
    page.get_by_role("tab", name="Triton", exact=True).first.click()
    page.locator("section[aria-label='kernel code'] .ln", has_text="repair = tl.exp").first.click()


def show_traffic(page: Page) -> None:
    """Attention's kernel beside its definition, level by level of memory."""
    page.locator(".rail li", has_text="Triton").last.click()
    page.locator(".nx").press("t")


def show_delta(page: Page) -> None:
    """Both passes of attention, the delta chosen."""
    page.locator("[data-stage='b:d_lse']").click()


def main() -> None:
    """Takes the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="all pages, wide and narrow, light and dark")
    parser.add_argument("--only", help="the pages of this name")
    parser.add_argument("--to", type=Path, default=IMAGES, help="folder to write to")
    options = parser.parse_args()
    attention = nl.compile(nl.operators.attention.causal(batch=1, heads=4, seq=256, head_dim=64))
    both = nl.explore(nl.operators.training(nl.operators.attention.causal(batch=1, heads=4, seq=256, head_dim=64)))
    pages = {"figure1": (figure1(), show_repair), "attention": (attention, show_triton)}
    pages["traffic"] = (attention, show_traffic)
    pages["training"] = (both, show_delta)
    looks = [(1440, "light"), (1440, "dark"), (900, "light"), (900, "dark")]
    wanted = [(n, w, c) for n in pages for w, c in looks]
    if not options.all:
        wanted = [("figure1", 1440, "light"), ("figure1", 1440, "dark"), ("attention", 1440, "dark")]
        wanted += [("traffic", 1440, "light"), ("training", 1440, "light")]
    wanted = [w for w in wanted if options.only in (None, w[0])]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        files = {}
        for name, (what, _) in pages.items():
            if name not in {w[0] for w in wanted}:
                continue
            files[name] = Path(folder) / f"{name}.html"
            shown = what if name == "training" else nl.explore(what)
            shown.export_html(files[name])
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, width, scheme in wanted:
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, device_scale_factor=1
            )
            page = context.new_page()
            page.goto(files[name].as_uri())
            root = page.locator(".nt.js" if name == "training" else ".nx")
            root.wait_for()
            pages[name][1](page)
            page.wait_for_timeout(400)
            target = options.to / f"{name}-{width}-{scheme}.png"
            write_bytes(target, root.screenshot(), parents=True)
            print(target.name)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
