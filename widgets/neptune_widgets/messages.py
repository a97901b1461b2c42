"""Answers to the page: edits, checks, timings, and what panes answer themselves, as widgets/PROTOCOL.md says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_widgets import checks, page, payload, views
from neptune_widgets.pane import Later, Message, halves, list_of
from neptune_widgets.session import Refusal, Refused, Session

if TYPE_CHECKING:
    from neptune_lab import Kernel

Send = Callable[[dict[str, Any]], None]
_Found = TypeVar("_Found")

_log = logging.getLogger(__name__)


class Messages:
    """The Python half of the conversation.

    Args:
        session: what is explored.
        send: sends an answer to the page; timings send from a thread of their own.
        show: takes a payload for the page; whether it is shown, or only kept for an answer.
        view: what the page shows.
    """

    def __init__(
        self,
        session: Session,
        send: Send,
        show: Callable[[payload.Payload, bool], None],
        view: Callable[[], Message] = dict,
    ) -> None:
        self.session = session
        self._view = view
        self._send = send
        self._show = show
        self._cancel = {"time": threading.Event(), "tune": threading.Event()}
        self._measuring: dict[str, threading.Thread] = {}
        self._later: list[threading.Thread] = []
        self._handlers: dict[str, Callable[[Message], Message | Later | None]] = {
            "edit": lambda m: self._edited(lambda: self.session.edit(list_of(m, "steps"))),
            "edit_text": lambda m: self._edited(lambda: self.session.edit_text(str(m["text"]))),
            "undo": lambda m: self._edited(self.session.undo),
            "redo": lambda m: self._edited(self.session.redo),
            "check": self._check,
            "export": self._export,
            "time": self._time,
            "tune": self._tune,
            "take": self._take,
            "remake": self._remake,
            "default_code": lambda _: self._edited(self.session.with_default_code),
            "ping": lambda _: {"kind": "pong"},
            **{half.kind: partial(half.function, session) for half in halves() if half.part == "answer"},
        }

    def answer(self, message: Message) -> None:
        """Answers one message; whatever happens, the page hears of it."""
        seq, kind = message.get("seq"), message.get("kind")
        found = self._tried(kind, lambda: self._handlers.get(str(kind), self._unknown)(message))
        if callable(found):
            self._begin(seq, kind, found)
        elif found is not None:
            self._send({**found, "seq": seq})

    def _tried(self, kind: Any, answer: Callable[[], _Found]) -> _Found | Message:
        """What `answer` returns, or a message that it failed."""
        try:
            return answer()
        except (KeyError, TypeError, NeptuneError) as error:
            return {"kind": "failed", "message": f"{kind}: {error}"}
        except Exception as error:  # noqa: BLE001  # a page that waits for ever helps nobody; the log has the rest
            _log.exception("answering %r failed", kind)
            return {"kind": "failed", "message": f"{kind}: {type(error).__name__}: {error}"}

    def _begin(self, seq: Any, kind: Any, answer: Later) -> None:
        """Tells the page that an answer will take a while, and makes it in a thread."""
        self._send({"kind": "later", "seq": seq})
        self._later = [thread for thread in self._later if thread.is_alive()]
        thread = threading.Thread(
            target=lambda: self._send({**self._tried(kind, answer), "seq": seq}), name=f"neptune-{kind}", daemon=True
        )
        self._later.append(thread)
        thread.start()

    def _unknown(self, message: Message) -> Message:
        return {"kind": "failed", "message": f"no message {message.get('kind')!r} is known"}

    def cancel(self, what: str = "time") -> None:
        """Ends a timing ("time") or a tuning run ("tune"); it answers that it was cancelled."""
        if what in self._cancel:
            self._cancel[what].set()

    def wait(self, seconds: float | None = None) -> None:
        """Waits for timings and tuning runs to end, and for answers that take seconds."""
        for thread in (*self._later, *self._measuring.values()):
            thread.join(seconds)

    # -- answers --------------------------------------------------------------------------------------------

    def _edited(self, change: Callable[[], str | None]) -> Message:
        """What a change makes, and what it says, if anything."""
        try:
            said = change()
        except Refused as refused:
            last = payload.live(self.session, self._view())
            self._show(last, False)
            return {"kind": "refused", "error": refused.refusal.as_json(), "payload": last.text}
        made = payload.live(self.session, self._view())
        self._show(made, True)
        return {"kind": "edited", "payload": made.text, **({"note": said} if said else {})}

    def _check(self, _: Message) -> Message:
        ok, text = checks.check(self.session.schedule, self.session.sample)
        return {"kind": "checked", "ok": ok, "text": text}

    def _export(self, message: Message) -> Message:
        view = views.checked(message.get("view") or {})
        return {"kind": "exported", "html": page.page(self.session.trace, payload.static(self.session, view), view)}

    # -- measuring ------------------------------------------------------------------------------------------

    def _end_measuring(self, what: str) -> Callable[[], bool]:
        """Ends the timing or the tuning run that is under way; what tells the next one to end."""
        self.cancel(what)
        if what in self._measuring:
            self._measuring.pop(what).join()
        self._cancel[what].clear()
        return self._cancel[what].is_set

    def _measure(self, what: str, work: Callable[[], None]) -> None:
        """Measures in a thread, so that a cancel is heard."""
        self._measuring[what] = threading.Thread(target=work, name=f"neptune-{what}", daemon=True)
        self._measuring[what].start()

    def _tunes(self) -> bool:
        return "tune" in self._measuring and self._measuring["tune"].is_alive()

    def _time(self, message: Message) -> Message | None:
        """Times the kernel and others; a new timing ends the one before."""
        from neptune_widgets.timing import Job, run_jobs

        seq = message.get("seq")
        cancel = self._end_measuring("time")
        none: Message = {"kind": "timing", "state": "none", "progress": 0, "rows": []}
        if self._tunes():
            return {**none, "note": "not timed: tuning has the GPU; cancel it, or wait for its end"}
        if self.session.kernel is None:
            refusal = self.session.kernel_error or Refusal("there is no kernel")
            return {**none, "note": refusal.message}
        jobs = [Job("this schedule", self.session.kernel)]
        for n, other in enumerate(message.get("against") or [], 1):
            name = str(other.get("name") or f"schedule {n}")
            try:
                jobs.append(Job(name, self._kernel_of(other)))
            except NeptuneError as error:
                jobs.append(Job(name, None, error.reason))

        def work() -> None:
            for state in run_jobs(jobs, cancel=cancel, progress=report):
                self._send({"kind": "timing", "seq": seq, **state})

        def report(state: Message) -> None:
            self._send({"kind": "timing", "seq": seq, **state})

        self._measure("time", work)
        return None

    def _kernel_of(self, other: Message) -> Kernel:
        """The kernel of an earlier version, as it was compiled, or of other steps; NeptuneError if there is none."""
        if "version" not in other:
            return self.session.other(list_of(other, "steps"))
        version = {"before": self.session.before, "opened": self.session.opened}.get(other["version"])
        if version is None or version.kernel is None:
            raise ScheduleError("that version has no kernel", help="compare it with another")
        return version.kernel

    def _tune(self, message: Message) -> Message | None:
        """Tunes the operator; a timing that runs is ended, since each needs the GPU for itself."""
        from neptune_widgets import tuning

        seq, seconds = message.get("seq"), message["seconds"]
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1 <= seconds <= tuning.MOST_SECONDS:
            most = f"{tuning.MOST_SECONDS:,.0f}"
            return {
                "kind": "tuning",
                "state": "failed",
                "message": f"{seconds!r} s: expected a number from 1 to {most}",
            }
        if self._tunes():
            return {"kind": "tuning", "state": "failed", "message": "tuning is under way already: cancel it first"}
        self._end_measuring("time")
        cancel = self._end_measuring("tune")
        operator = self.session.operator

        def report(state: Message) -> None:
            self._send({"kind": "tuning", "seq": seq, **state})

        def work() -> None:
            last = self._tried(
                "tune", lambda: {"kind": "tuning", **tuning.run(operator, seconds, cancel=cancel, report=report)}
            )
            self._send({**last, "seq": seq})

        self._measure("tune", work)
        return None

    def _remake(self, message: Message) -> Message:
        """The operator with other arguments."""
        values = message["values"]
        if not isinstance(values, dict):
            raise TypeError(f"values is {type(values).__name__}, an object was expected")
        return self._edited(lambda: self.session.remake(values, anew=message.get("anew") is True))

    def _take(self, message: Message) -> Message:
        """A candidate of the tuner as the schedule."""
        from neptune_lab.pipeline import Choice

        choice = Choice.from_json(message["candidate"], "the candidate")
        return self._edited(lambda: self.session.take(choice))
