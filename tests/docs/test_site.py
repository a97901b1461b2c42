"""The documentation site: built without a warning, shown without a network, whole, and its links lead somewhere.

It is built once, for all of these tests, into a temporary folder; by day, its pages are read and not written.
"""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import neptune_lab as nl
from neptune_lab.htile_passes import PASSES
from neptune_lab.loop_schedule import PRIMITIVES, Schedule, as_method
from neptune_lab.operators import OPERATORS, PRESETS, gemm_chain, softmax

ROOT = Path(__file__).resolve().parents[2]
# Sphinx takes about 15 s on two idle cores; more than this, and something has gone wrong.
SECONDS = 1200


@dataclass
class Page(HTMLParser):
    """What a page of the site has: ids, links, and what a browser loads to show it."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found and (name == "id" or tag == "a")}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if (
            tag == "link"
            and "href" in found
            and found.get("rel") not in ("canonical", "index", "search", "next", "prev")
        ):
            self.loads.append(found["href"])
        if tag != "a":
            self.loads += [found[name] for name in ("src", "srcset", "data", "poster", "xlink:href") if name in found]
        self.loads += re.findall(r"url\(\s*['\"]?([^'\")]+)", found.get("style", ""))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.lasttag == "style":
            self.loads += re.findall(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)", data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def build(builder: str, folder: Path) -> Path:
    """What Sphinx makes of the documentation; a warning fails the test, and says what it is."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", builder]
    done = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / builder)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"make docs says:\n{done.stderr[-6000:]}"
    return folder / builder


def test_every_page_is_read_and_every_reference_leads_somewhere(tmp_path: Path):
    """Without writing pages, which takes half as long again; the tests of the written ones run at night."""
    build("dummy", tmp_path)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    return build("html", tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    found = {}
    for path in sorted(site.rglob("*.html")):
        found[path.relative_to(site).as_posix()] = page = Page()
        page.feed(path.read_text(encoding="utf-8"))
    assert "index.html" in found
    return found


# -- no network --------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_nothing_is_loaded_from_a_network(pages: dict[str, Page], site: Path):
    for name, page in pages.items():
        for address in page.loads:
            assert address.startswith("data:") or not urlsplit(address).netloc, f"{name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(\s*['\"]?|@import\s+['\"])(https?:)?//", style.read_text(encoding="utf-8")), style
    for script in site.rglob("*.js"):
        assert not re.search(
            r"(importScripts|import|fetch|src\s*=)\s*\(?['\"]https?://", script.read_text(encoding="utf-8")
        )


@pytest.mark.nightly
def test_what_is_loaded_is_there(pages: dict[str, Page], site: Path):
    for name, page in pages.items():
        for address in page.loads:
            path = unquote(urlsplit(address).path)
            if path and not address.startswith("data:"):
                assert (site / name).parent.joinpath(path).is_file(), f"{name} loads {address}"


@pytest.mark.nightly
def test_mathematics_is_drawn_by_the_browser(pages: dict[str, Page], site: Path):
    html = (site / "using" / "repair.html").read_text(encoding="utf-8")
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in html
    assert not any("mathjax" in address.lower() for page in pages.values() for address in page.loads)


# -- links -------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_every_link_of_the_site_leads_somewhere(pages: dict[str, Page], site: Path):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or parts.path.startswith("gallery/"):  # which `make docs` writes beside it
                continue
            target = (site / name).parent.joinpath(unquote(parts.path)).resolve() if parts.path else site / name
            if not target.is_file():
                broken.append(f"{name}: {link}: there is no such file")
            elif parts.fragment and target.suffix == ".html":
                other = pages[target.relative_to(site.resolve() if parts.path else site).as_posix()]
                if unquote(parts.fragment) not in other.ids:
                    broken.append(f"{name}: {link}: there is no such anchor")
    assert not broken, "\n".join(broken)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_link_of_the_front_pages_leads_somewhere(name: str):
    text = without_code((ROOT / name).read_text(encoding="utf-8"))
    for target in re.findall(r"(?<=\]\()[^)\s]+(?=\))|(?<=src=\")[^\"]+|(?<=srcset=\")[^\"]+", text):
        parts = urlsplit(target)
        if parts.scheme:
            continue
        path = ROOT / unquote(parts.path) if parts.path else ROOT / name
        assert path.exists(), f"{name}: {target}"
        if parts.fragment and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert parts.fragment in map(slug, headings), f"{name}: {target}"


# -- it is whole -------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_every_notebook_is_a_page(pages: dict[str, Page]):
    names = [path.stem for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert names
    course = pages["course.html"]
    for name in names:
        assert f"course/{name}.html" in pages
        assert f"course/{name}.html" in course.links, f"docs/course.md has no paragraph on {name}"


@pytest.mark.nightly
def test_notebooks_are_shown_with_their_outputs(site: Path):
    """Each cell that has outputs in the repository has them on its page; a running widget is none."""
    shown = 0
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        html = (site / "course" / f"{path.stem}.html").read_text(encoding="utf-8")
        found = html.count('<div class="cell_output ')
        assert found == sum(bool(cell.get("outputs")) for cell in cells), path.name
        assert "application/vnd.jupyter.widget" not in html
        shown += found
    assert shown


def anchors(page: Page) -> set[str]:
    return {name.replace("-", "_") for name in page.ids}


@pytest.mark.nightly
def test_every_primitive_has_an_entry_with_its_call_and_its_rewrite(pages: dict[str, Page], site: Path):
    page = pages["using/schedules.html"]
    text = " ".join(page.text.split())
    for name, primitive in PRIMITIVES.items():
        assert name in anchors(page), name
        assert f"sch.{name}(" in text, name
        assert name in ("remark", "annotate", "set_scope") or "⇒" in (primitive.apply.__doc__ or ""), name


@pytest.mark.nightly
def test_every_pass_and_command_and_operator_has_an_entry(pages: dict[str, Page]):
    from typer.main import get_command

    from neptune_lab.cli import app

    for name in PASSES:
        assert name in anchors(pages["concepts/tiles.html"]), name
    commands = get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    assert "compile" in commands
    for name, command in commands.items():
        assert f"neptune_lab_{name}" in anchors(pages["using/command_line.html"]), name
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option in pages["using/command_line.html"].text, f"{name} {option}"
    shown = pages["using/operators.html"].text
    for name in (*OPERATORS, *PRESETS, *gemm_chain.PRESETS):
        assert name in shown, name


@pytest.mark.nightly
def test_every_public_name_and_error_is_in_the_reference(pages: dict[str, Page]):
    for name in nl.__all__:
        assert f"nl.{name}" in pages["api/index.html"].text, name
    errors = [name for name, thing in vars(nl.errors).items() if isinstance(thing, type)]
    assert "RepairError" in errors
    for name in errors:
        assert name.lower() in pages["api/errors.html"].ids, name
    assert "name a loop of a block that comes before it" in pages["api/errors.html"].text, "what would help"


@pytest.mark.nightly
def test_a_property_keeps_the_first_words_of_its_text(site: Path):
    """napoleon took what precedes a colon for the property's type, and showed it below the rest."""
    outline = (
        (site / "api" / "compile.html").read_text(encoding="utf-8").partition('id="neptune_lab.Kernel.outline"')[2]
    )
    described = re.sub(r"<[^>]+>", "", outline.partition("<dd>")[2].partition("</dd>")[0])
    doc = str(nl.Kernel.outline.__doc__).replace("`", "")
    assert ": " in doc
    assert " ".join(described.split()).startswith(" ".join(doc.split(": ")[0].split()))


@pytest.mark.parametrize("name", ["mathml_math", "paper_to_code", "plain_docstrings", "written_pages"])
def test_examples_of_the_extensions(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    failed, tried = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried
    assert not failed


# -- CONTRIBUTING.md ---------------------------------------------------------------------------------------------


def contributing() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def paths_named(text: str) -> Iterator[str]:
    """Paths between backquotes: those with a slash, which begin with a folder of the repository."""
    tops = {path.name for path in ROOT.iterdir()}
    for name in re.findall(r"`([\w./-]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
        if "/" in name and name.split("/")[0] in tops and not name.startswith("build/"):
            yield name


def test_every_path_that_contributing_names_exists():
    first_primitive = {"neptune_lab/loop_schedule/primitives/rename_loop.py", "tests/loop_schedule/test_rename_loop.py"}
    found = set(paths_named(contributing()))
    assert len(found) > 30
    assert first_primitive <= found
    for name in sorted(found - first_primitive):  # those two are the reader's to write
        assert (ROOT / name).exists(), f"CONTRIBUTING.md names {name}"


def test_every_make_target_that_contributing_names_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(
        re.findall(r"\bmake ([a-z]+)", " ".join(re.findall(r"^make .*|`make [^`]*`", contributing(), re.MULTILINE)))
    )
    assert {"setup", "docs", "check", "test"} <= named
    assert named <= targets


def test_the_first_primitive_works_as_it_is_written():
    """The function of CONTRIBUTING.md, on the program that its tests use."""
    source = next(
        b for b in re.findall(r"^```python\n(.*?)^```", contributing(), re.DOTALL | re.MULTILINE) if "def " in b
    )
    made: dict[str, Any] = {}
    exec(compile(source, "CONTRIBUTING.md", "exec"), made)
    rename = made["rename_loop"]
    sch = Schedule(softmax.figure1(4, 8))
    sch.split("s_max.j", (None, 4))
    outcome = rename(sch.program, loop="s_max.j0", name="tile")
    assert outcome.made == ("s_max.tile",)
    assert rename(outcome.program, loop="s_max.tile", name="j0").program == sch.program
    with pytest.raises(nl.errors.ScheduleError, match="there is a loop 'i' around or inside"):
        rename(sch.program, loop="s_max.j0", name="i")


def test_the_first_primitive_is_declared_as_it_is_written():
    """Its arguments, the method's signature and its refusals come from the decorated function."""
    source = next(
        b for b in re.findall(r"^```python\n(.*?)^```", contributing(), re.DOTALL | re.MULTILINE) if "def " in b
    )
    made: dict[str, Any] = {}
    exec(compile(source, "CONTRIBUTING.md", "exec"), made)
    declared = made["rename_loop"].primitive
    assert str(as_method.signature(declared)) == "(self, loop: 'str', name: 'str') -> 'str'"
    assert "Returns:\n    The loop, by its new name." in as_method.docstring(declared)
    with pytest.raises(nl.errors.ScheduleError, match="rename_loop: name=3, expected a Python identifier"):
        declared.check({"loop": "s_max.j0", "name": 3})


# -- examples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "prints"),
    [
        ("README.md", []),
        ("docs/using/first_kernel.md", ["equals the definition"]),
        ("docs/using/schedules.md", ["for i, j in grid(2, 4):", "equals the definition"]),
        pytest.param("docs/using/operators.md", ["e-"], marks=pytest.mark.nightly),
        pytest.param(
            "docs/using/tensor_expressions.md",
            ["starts a loop of its own", "1 kernel", "in global memory: nothing"],
            marks=pytest.mark.nightly,
        ),
        ("docs/using/before_lunch.md", ["too large to run", "\nFalse\nfull size: ", "functions in the file"]),
        ("docs/using/explorer.md", []),
        pytest.param("docs/using/from_torch.md", ["by iota[", "in global memory: nothing"], marks=pytest.mark.nightly),
        pytest.param("docs/using/pytorch.md", [], marks=pytest.mark.nightly),
        pytest.param("docs/using/training.md", [], marks=pytest.mark.nightly),
        pytest.param(
            "docs/using/torch_compile.md",
            ["norm 14848 bytes apart, 4224 <Kernel norm", "attention 8192 bytes apart"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "docs/using/traffic.md",
            ["\nkernel  ", "\nscore 16777216 8388608\n", "\noperations\n"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "docs/using/machine_code.md",
            ["HMMA.16816.F32", "KernelResources(registers="],
            marks=pytest.mark.nightly,
        ),
        ("docs/concepts/record.md", []),
        (
            "docs/using/repair.md",
            ["t*exp(r - r')", "prove Eq. 4", "is not additive", "t_0 + t_1*(2*r - 2*r') + t_2*(r' - r)**2"],
        ),
    ],
)
def test_the_examples_of_a_page_run(
    page: str,
    prints: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The Python of a page, from top to bottom, in one namespace; some pages write files."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert source
    exec(compile(source, page, "exec"), {"__name__": page})
    said = capsys.readouterr().out
    for line in prints:
        assert line in said
