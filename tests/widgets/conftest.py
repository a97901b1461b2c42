"""An explorer without a browser: what it sends is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
from neptune_widgets import payload, tags
from neptune_widgets.pane import halves_in

import neptune_lab as nl
from neptune_lab.operators import attention, softmax


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The editor offers what it has found within a second; here, all there is, however busy the machine."""
    monkeypatch.setattr("neptune_widgets.choices.PATIENCE", float("inf"))


@pytest.fixture
def only_pane(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`only_pane(module)`: pages have the data of these modules' panes, and no tag tables; all of it takes seconds."""

    def only(*modules: ModuleType) -> None:
        monkeypatch.setattr(payload, "halves", lambda: halves_in(modules))
        monkeypatch.setattr(tags, "tables", lambda *_: {})

    return only


class Page:
    """The page's end of the wire."""

    def __init__(self, explorer):
        self.explorer = explorer
        self.sent = []
        self.seq = 0
        explorer.send = lambda message, *_: self.sent.append(message)

    @property
    def payload(self):
        return json.loads(self.explorer.payload)

    @property
    def steps(self):
        return [{k: s[k] for k in ("primitive", "arguments")} for s in self.payload["editor"]["steps"]]

    @property
    def triton(self):
        return self.payload["trace"]["kernel"]["source"]

    def post(self, kind, **fields):
        """Sends a message as the front end does; its number."""
        self.seq += 1
        self.explorer._handle_custom_msg({"kind": kind, "seq": self.seq, **fields}, [])
        return self.seq

    def ask(self, kind, **fields):
        """The one answer to a message."""
        seq = self.post(kind, **fields)
        (answer,) = [m for m in self.sent if m["seq"] == seq]
        return answer


# Compiled once: a kernel does not change, and each page edits a copy of its schedule.
@pytest.fixture(scope="session")
def softmax_kernel():
    return nl.compile(softmax.figure1(4, 8), block_q=2, block_kv=4, template="rolling_update")


@pytest.fixture(scope="session")
def attention_kernel():
    return nl.compile(attention.causal(batch=1, heads=2, seq=128, head_dim=16))


@pytest.fixture
def softmax_page(softmax_kernel):
    return Page(nl.explore(softmax_kernel))


@pytest.fixture
def attention_page(attention_kernel):
    return Page(nl.explore(attention_kernel))


@pytest.fixture
def page_of():
    return lambda what: Page(nl.explore(what))
