"""The course as a whole: all of it is tested, its links lead somewhere, and the students' version has no answers."""

from __future__ import annotations

import json
import re
from functools import cache

import nbformat
import pytest
from notebook_checks import NOTEBOOKS, ROOT, read, tagged

COURSE = [
    "00_tour",
    "01_rolling_update",
    "02_algebra",
    "03_split_k",
    "04_loops_to_tiles",
    "05_schedules",
    "06_gpu",
    "07_your_operator",
    "08_beyond_attention",
    "09_from_pytorch",
    "10_backward",
]


def test_the_course_is_whole():
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == COURSE


def test_every_notebook_is_tested():
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "notebooks").glob("test_*.py"))
    for name in COURSE:
        assert f'name = "{name}"' in tests


def test_links_between_notebooks_lead_somewhere():
    for name in COURSE:
        path = NOTEBOOKS / f"{name}.ipynb"
        headings = [h for cell in read(path).cells if cell.cell_type == "markdown" for h in headings_of(cell.source)]
        for cell in read(path).cells:
            if cell.cell_type != "markdown":
                continue
            for target in re.findall(r"\]\(([^)\s]+)\)", cell.source):
                file, _, anchor = target.partition("#")
                if target.startswith(("http:", "https:")):
                    continue
                assert not file or (NOTEBOOKS / file).exists(), f"{name}: {target}"
                if anchor and not file:
                    assert anchor in headings, f"{name}: {target}; there are {headings}"


TERMS = (
    *("stage", "kernel", "global memory", "traffic", "softmax", "score", "head", "fusion", "repair", "schedule"),
    *("primitive", "template", "block", "fold", "tag", "reduction", "tile", "registers", "shared memory"),
    *("accumulator", "program instance", "guard", "identity", "producer", "reducer", "companion", "privatisation"),
    *("nest", "grid", "multiprocessor", "decoding", "warp", "ceiling", "affine"),
)


@cache
def prose() -> tuple[tuple[str, str], ...]:
    """The lines of the course in the order of reading, with their notebook; headings, tables and goals aside."""
    return tuple(
        (name, re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "", line)))
        for name in COURSE
        for cell in read(NOTEBOOKS / f"{name}.ipynb").cells[1:]
        if cell.cell_type == "markdown" and not tagged(cell, "answer")
        for line in cell.source.splitlines()
        if not line.startswith(("#", "|"))
    )


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_explained_or_linked_where_it_is_first_met(term: str):
    """The first line of the course with the term marks it as new."""
    word = re.compile(rf"\b{term}(s|es|ed)?\b", re.IGNORECASE)
    name, line = next((name, line) for name, line in prose() if word.search(line))
    assert re.search(rf"[\[*]+[^\]*]*\b{term}", line, re.IGNORECASE), f"{name}: {line}"


def test_links_to_the_glossary_lead_to_a_term():
    terms = re.findall(r"^## (.+)$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w-]", "", term.lower().replace(" ", "-")) for term in terms}
    assert terms == sorted(terms, key=str.lower)
    for name in COURSE:
        text = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
        assert set(re.findall(r"glossary\.md#([\w-]+)", text)) <= anchors, name


def headings_of(source: str) -> list[str]:
    """Headings as Jupyter names their anchors."""
    outside = re.sub(r"```.*?```", "", source, flags=re.DOTALL)
    return [line.lstrip("#").strip().replace(" ", "-") for line in outside.splitlines() if re.match(r"#+ ", line)]


def test_the_students_version_has_no_answers(tmp_path):
    from neptune_widgets.course import student

    made = student.write(NOTEBOOKS, tmp_path)
    assert [path.stem for path in made] == COURSE
    for path in made:
        full, theirs = read(NOTEBOOKS / path.name), nbformat.read(path, as_version=4)
        nbformat.validate(theirs)
        kept = [cell for cell in full.cells if not tagged(cell, "answer")]
        assert len(kept) < len(full.cells)
        assert [cell.source for cell in theirs.cells] == [cell.source for cell in kept]
        assert "<summary>Answer</summary>" not in path.read_text(encoding="utf-8")
    assert {p.name for p in (tmp_path / "recorded").glob("*")} == {p.name for p in (NOTEBOOKS / "recorded").glob("*")}


def test_a_students_work_is_kept(tmp_path):
    from neptune_widgets.course import student

    student.write(NOTEBOOKS, tmp_path)
    names = sorted(p.name for p in tmp_path.glob("*.ipynb"))
    for work in ("my answers", "my other answers"):
        (tmp_path / names[0]).write_text(work)
        student.write(NOTEBOOKS, tmp_path)
    kept = sorted(p.name for p in tmp_path.glob("*.before-*.ipynb"))
    assert [(tmp_path / name).read_text() for name in kept] == ["my answers", "my other answers"]
    assert sorted(p.name for p in tmp_path.glob("*.ipynb")) == sorted([*names, *kept])
    assert json.loads((tmp_path / names[0]).read_text())["cells"]
