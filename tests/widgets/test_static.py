"""What is seen without Python, and without script."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from neptune_widgets import page, static_view

import neptune_lab as nl
from neptune_lab.operators import softmax

EVIL = "</script><script>alert('x')</script><!-- <img src=x onerror=alert(1)>"
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Outline(HTMLParser):
    """Elements with their attributes; every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def kernel():
    return nl.compile(softmax.figure1(), block_q=1, block_kv=2)


@pytest.fixture(scope="module")
def evil(kernel):
    trace = kernel.trace
    lines = tuple(replace(x, text=EVIL) for x in trace.operator.definition)
    operator = replace(trace.operator, title=EVIL, source=EVIL, definition=lines)
    steps = tuple(replace(s, summary=EVIL) for s in trace.steps)
    steps = (*steps, replace(steps[-1], index=len(steps), primitive="remark", arguments={"text": EVIL}))
    return replace(trace, operator=operator, steps=steps, kernel=replace(trace.kernel, source=EVIL))


def parts(text):
    """The JSON in a page, by its element's id."""
    found = re.findall(r'<script type="application/json" id="(\w+)">(.*?)</script>', text, re.DOTALL)
    return {name: json.loads(body) for name, body in found}


def test_the_display_carries_html_and_text(kernel):
    data, _ = nl.explore(kernel)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    html = data["text/html"]
    for piece in ("rolling_update", "Derivation", "@triton.jit", "for j0 in range(2)", "h(t, r, r"):
        assert piece in html
    assert data["text/plain"].startswith("Explorer: Row-wise max, exp and sum")
    assert len(html) < 60_000


def test_the_static_view_has_no_script_and_loads_nothing(kernel, evil):
    for trace in (kernel.trace, evil):
        outline = Outline(static_view.html(trace, note="checked"))
        assert outline.open == []
        for tag, attributes in outline.found:
            assert tag in {
                "div",
                "style",
                "h3",
                "p",
                "br",
                "details",
                "summary",
                "ol",
                "li",
                "code",
                "em",
                "pre",
                "small",
            }
            assert set(attributes) <= {"class", "open", "type"}


def test_a_remark_stands_in_the_static_view_as_a_sentence():
    trace = nl.compile(softmax.figure1(4, 8)).trace
    assert "<li><em>rolling_update: j has 1 tile of 64: too few to split.</em></li>" in static_view.html(trace)
    assert "   1  rolling_update: j has 1 tile of 64: too few to split.\n" in static_view.text(trace)
    numbered = static_view.html(trace).partition("Schedule: ")[2].partition("</details>")[0].count("<li><")
    assert f"Schedule: {numbered - 1} steps and 1 remark<" in static_view.html(trace)


def test_in_a_notebook_the_static_view_is_an_output_of_its_own(kernel, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **_: shown.append(data))
    nl.explore(kernel)._ipython_display_()
    widget, static = shown
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert "text/html" not in widget
    assert static["text/html"].startswith("<style>.jp-OutputArea-child:has(+")  # hides JupyterLab's error, reopened
    assert '<div class="neptune-static">' in static["text/html"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("which", ["kernel", "evil"])
def test_the_page_is_one_file_that_loads_nothing(kernel, evil, which, tmp_path):
    explorer = nl.explore(kernel if which == "kernel" else evil)
    explorer.view = {"step": 2, "search": EVIL}
    text = explorer.export_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    outline = Outline(text)
    assert outline.open == []
    scripts = [a for tag, a in outline.found if tag == "script"]
    assert [a.get("type") for a in scripts] == ["application/json", "application/json", "module"]
    for tag, attributes in outline.found:
        assert tag not in {"link", "img", "iframe", "object", "base"}
        assert not {"src", "href"} & attributes.keys()
        assert not any(name.startswith("on") for name in attributes)
    assert "default-src 'none'" in text
    assert not re.search(r"""(?:import\s*\(?|url\()\s*["']?https?:""", text)
    found = parts(text)
    assert found["view"] == {"step": 2, "search": EVIL}
    assert (found["payload"]["live"], found["payload"]["editor"]) == (False, None)


def test_the_page_of_a_live_explorer_is_checked_and_has_its_tables(kernel):
    payload = parts(nl.explore(kernel).export_html())["payload"]
    assert payload["check"]["ok"] is True
    every = {f"{s['index']}.{p['key']}" for s in payload["trace"]["steps"] for p in s["phases"]}
    assert set(payload["tags"]["tables"]) == every


def test_a_widget_without_a_bundle_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "BUNDLE", tmp_path / "none.js")
    assert "not built" in page.bundle_text()


@pytest.mark.nightly
def test_a_saved_record_is_explored_without_the_compiler(kernel, tmp_path):
    from neptune_lab.trace import save

    save(kernel.trace, tmp_path / "trace.json")
    code = (
        "import sys; hidden = ['tvm', 'sympy', 'torch', 'triton']; sys.modules.update(dict.fromkeys(hidden))\n"
        "from neptune_widgets import explore\n"
        "e = explore(sys.argv[1]); e._repr_mimebundle_(); print(len(e.export_html()) > 10000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "trace.json")], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize(
    ("source", "language"),
    [
        ("@triton.jit\ndef f(): ...", "Triton"),
        ("@gluon.jit\ndef f(): ...", "Gluon"),
        ("@gluon.jit\ndef f(): ...\n@triton.jit\ndef g(): ...", "Gluon and Triton"),
    ],
)
def test_the_kernel_is_called_by_its_language(source, language):
    trace = nl.compile(softmax.figure1(4, 8), block_q=2, block_kv=4).trace
    assert trace.kernel is not None
    renamed = replace(trace, kernel=replace(trace.kernel, source=source))
    assert f"<summary>{language}</summary>" in static_view.html(renamed)
    assert f"lines of {language}" in static_view.text(renamed)


def test_a_phase_with_a_proved_repair_is_not_called_wrong_on_purpose(kernel):
    text = static_view.html(kernel.trace)
    (repair,) = re.findall(r"<li>repair function[^<]*", text)
    assert "(wrong on purpose)" not in repair
    assert "(the program is still the naive one, which is wrong)" in repair
    (naive,) = re.findall(r"<li>naive fusion[^<]*", text)
    assert "(wrong on purpose)" in naive
