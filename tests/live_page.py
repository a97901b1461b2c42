"""An explorer with Python behind it in a bare page: no JupyterLab, no kernel, the same bundle and the same messages.

The page's model is one as anywidget gives it; what it sends is answered in this process, at once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from neptune_widgets.explorer import Explorer
from neptune_widgets.page import bundle_text
from playwright.sync_api import Locator, Page
from waiting import wait_until

_START = """
const heard = new Map();
const state = new Map(Object.entries(JSON.parse(document.getElementById("state").textContent)));
const tell = (name, ...args) => { for (const f of [...(heard.get(name) ?? [])]) f(...args); };
window.deliver = (text) => {
  const { messages, payload, rest } = JSON.parse(text);
  if (payload !== state.get("payload")) { state.set("payload", payload); tell("change:payload"); }
  if (rest.name !== state.get("rest").name) { state.set("rest", rest); tell("change:rest"); }
  for (const message of messages) tell("msg:custom", message);
};
const model = {
  get: (name) => state.get(name),
  set: (name, value) => { state.set(name, value); tell("change:" + name); },
  save_changes: () => { window.viewOfPage = state.get("view"); },
  send: (content) => {
    if (window.commIsGone) throw new Error("Cannot send");
    window.answered(JSON.stringify(content)).then(window.deliver);
  },
  on: (name, f) => heard.set(name, [...(heard.get(name) ?? []), f]),
  off: (name, f) => heard.set(name, f ? (heard.get(name) ?? []).filter((g) => g !== f) : []),
};
const { default: widget } = await import("data:text/javascript;base64,BUNDLE");
const ends = [];
window.tell = tell;
window.draw = (to = document.body) => {
  const el = document.createElement("div");
  ends.push(widget.render({ model, el }));
  to.append(el); // only now: JupyterLab, too, draws a widget before it is in the page
};
window.end = () => { for (const f of ends.splice(0)) f(); };
window.draw();
"""


@dataclass
class LivePage:
    """An explorer that is drawn in a page.

    Args:
        page: the browser's page.
        explorer: the widget, in this process.
        asked: the messages that the page sent, in order.
        silent: whether the messages stay without an answer, as of a busy or a dead kernel.
        waits: whether an answer that a thread makes is waited for; if not, `deliver` brings what came meanwhile.
        sent: what Python sent and the page has not had yet.
    """

    page: Page
    explorer: Explorer
    asked: list[dict[str, Any]] = field(default_factory=list)
    silent: bool = False
    waits: bool = True
    sent: list[dict[str, Any]] = field(default_factory=list)

    @property
    def root(self) -> Locator:
        """The explorer that was drawn first."""
        return self.page.locator(".nx").first

    def open(self, view: dict[str, Any] | None = None) -> None:
        """Draws the explorer with this view."""
        state = {"payload": self.explorer.payload, "rest": self.explorer.rest, "view": view or {}}
        inert = json.dumps(state).replace("<", "\\u003c")
        bundle = base64.b64encode(bundle_text().encode()).decode()
        script = _START.replace("BUNDLE", bundle)
        self.page.expose_function("answered", self._answered)
        self.page.set_content(
            "<!doctype html><meta charset=utf-8><style>body{margin:0}</style><body>"
            f'<script type="application/json" id="state">{inert}</script><script type="module">{script}</script>'
        )
        self.page.wait_for_selector(".nx")

    def draw_again(self) -> None:
        """Draws the model a second time, as in another cell."""
        self.page.evaluate("window.draw()")

    def tell(self, event: str) -> None:
        """Lets the model tell of an event."""
        self.page.evaluate("name => window.tell(name)", event)

    def deliver(self, until: Callable[[dict[str, Any]], bool]) -> None:
        """Brings the page what Python sent, once a message of it is one that `until` is true of."""
        wait_until(lambda: any(until(message) for message in self.sent))
        self.page.evaluate("text => window.deliver(text)", self._taken())

    def _taken(self) -> str:
        taken, self.sent = self.sent, []
        return json.dumps({"messages": taken, "payload": self.explorer.payload, "rest": self.explorer.rest})

    def _answered(self, text: str) -> str:
        content = json.loads(text)
        self.asked.append(content)
        self.explorer.send = lambda message, *_: self.sent.append(message)  # type: ignore[method-assign]
        if not self.silent:
            self.explorer._handle_custom_msg(content, [])
            if self.explorer._queue:  # Playwright's loop runs here, and the explorer would answer on its next turn
                self.explorer._answer()
            messages = self.explorer._messages
            if messages is not None and self.waits:
                messages.wait()  # a timing answers from a thread
        return self._taken()
