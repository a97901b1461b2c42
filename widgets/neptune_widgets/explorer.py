"""The explorer: one widget over a schedule, a kernel or a saved record. widgets/PROTOCOL.md is its interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import anywidget
import traitlets

from neptune_lab.errors import NeptuneError, ScheduleError
from neptune_lab.files import write_text
from neptune_lab.trace import Trace, load_trace
from neptune_widgets import checks, page, payload, static_view, views
from neptune_widgets.beside import display_beside
from neptune_widgets.messages import Messages
from neptune_widgets.panes import machine
from neptune_widgets.remake import named
from neptune_widgets.revive import can_revive, revived
from neptune_widgets.sample import fitting
from neptune_widgets.session import Session
from neptune_widgets.waiting_line import waiting_line

if TYPE_CHECKING:
    from neptune_lab import Kernel, Schedule
    from neptune_lab.operators import Operator, Training
    from neptune_lab.target import Target
    from neptune_widgets.training import TrainingExplorer

# Seconds in which edits that come one after the other count as one.
_SETTLE = 0.01
_EDITS = ("edit", "edit_text")
_OF_TENSORS = "a function or module of PyTorch: nl.explore(nl.from_torch(function, *inputs))"


class Explorer(anywidget.AnyWidget):
    """Steps, phases, graphs, algebra, tag tables, HTile and Triton of one compilation, and its schedule to edit.

    Made by `nl.explore(…)`. After edits, `schedule`, `kernel` and `to_python()` give the edited versions.

    Attributes:
        payload: what is shown, as JSON text (widgets/PROTOCOL.md).
        rest: the other parts of a large record: `{"name": str, "parts": [JSON text]}`.
        view: the state of the view: step, phase, panes, selection and so on; it may be set from Python.
    """

    _esm = page.BUNDLE if page.BUNDLE.is_file() else page.bundle_text()
    _css = page.STYLE if page.STYLE.is_file() else ""
    payload = traitlets.Unicode("", help="what is shown, as JSON").tag(sync=True)
    rest = traitlets.Dict(help="the other parts of a large record, once the page has asked for them").tag(sync=True)
    view = traitlets.Dict(help="what the person chose to see").tag(sync=True)

    def __init__(self, what: Session | Trace, **traits: Any) -> None:
        self._session = what if isinstance(what, Session) else None
        self._saved = what if isinstance(what, Trace) else None
        made = payload.saved(what, again=can_revive(what)) if isinstance(what, Trace) else payload.live(what)
        self._made = made
        super().__init__(payload=made.text, **traits)
        self._queue: list[dict[str, Any]] = []
        self._messages = self._messages_of(self._session)
        self.on_msg(self._received)

    def _messages_of(self, session: Session | None) -> Messages | None:
        return None if session is None else Messages(session, lambda m: self.send(m), self._show, lambda: self.view)

    def __repr__(self) -> str:
        """What a terminal shows, where there is no widget."""
        return f"<Explorer of {self.trace.operator.name}: shown in a notebook; export_html(path) writes a page>"

    # -- what it holds --------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The record that is shown."""
        return self._saved if self._saved is not None else self._live.trace

    @property
    def schedule(self) -> Schedule:
        """A copy of the edited schedule; changes of the copy do not affect the widget."""
        return self._live.schedule.copy()

    @property
    def kernel(self) -> Kernel | None:
        """The kernel of the schedule; None if it cannot be compiled yet."""
        return self._live.kernel

    @property
    def _live(self) -> Session:
        if self._session is None:
            raise ScheduleError("this is a saved record: it has no schedule", help="explore the operator")
        return self._session

    def recompile(self) -> str:
        """Makes the operator and the steps of a saved record again, so that it can be edited, played, counted and
        checked like any other. It must be an operator of the library.

        Returns:
            In what the new kernel differs from the saved one; "" if in nothing.

        Raises:
            ScheduleError: it is not a saved record; its operator cannot be made again; or its steps make another loop
                program here.
        """
        if self._saved is None:
            raise ScheduleError("this is not a saved record: it is compiled already", help="edit its schedule")
        session, said = revived(self._saved)
        self._session, self._saved, self._messages = session, None, self._messages_of(session)
        self._show(payload.live(session, self.view), True)
        return said

    def to_python(self) -> str:
        """The schedule as calls on `sch`, to paste into a cell after `sch = nl.Schedule(op)`.

        Returns:
            One call per line.
        """
        return self._live.schedule.to_python()

    def check(self) -> str:
        """Runs the numeric check of the edited schedule.

        Returns:
            The result in a sentence.
        """
        return checks.check(self._live.schedule, self._live.sample)[1]

    # -- files ----------------------------------------------------------------------------------------------

    def save_view(self, path: str | PathLike[str]) -> Path:
        """Saves the state of the view (step, panes, selection and so on) as JSON.

        Args:
            path: the file to write.

        Returns:
            The file's path.
        """
        return views.save(self.view, Path(path))

    def open_view(self, path: str | PathLike[str]) -> None:
        """Restores the view that `save_view` wrote; the file is read as data, and checked.

        Args:
            path: the file.
        """
        self.view = views.load(Path(path))

    def export_html(self, path: str | PathLike[str] | None = None, *, machine_code: Target | str | None = None) -> str:
        """Exports the whole explorer as one HTML page that needs neither a network nor Python.

        Args:
            path: the file to write; None: none.
            machine_code: also compile the kernel for this target (as of `Kernel.machine_code`); the page has its
                machine code in any case for the targets that were compiled in the widget.

        Returns:
            The page's text.

        Raises:
            MachineCodeError: there is no such target.
            ScheduleError: `machine_code` is for a saved record, which has no kernel to compile.
            FileError: the file cannot be written.
        """
        if machine_code is not None:
            machine.keep(self._live, machine_code)
        view = views.checked(self.view)
        data = payload.saved(self.trace, view) if self._session is None else payload.static(self._session, view)
        made = page.page(self.trace, data, view)
        if path is not None:
            write_text(path, made)
        return made

    # -- how it is displayed --------------------------------------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The widget, and beside it HTML without script and plain text, for readers that know no widgets."""
        found = super()._repr_mimebundle_(**kwargs)
        if found is None:
            return None
        data, metadata = found
        return {**data, "text/html": static_view.html(self.trace), "text/plain": static_view.text(self.trace)}, metadata

    def _ipython_display_(self) -> None:
        """Two outputs in a notebook: the widget, and the static view, which a running page hides."""
        bundle = self._repr_mimebundle_()
        if bundle is not None:
            data, metadata = bundle
            text = f"Explorer: {self.trace.operator.title}"
            display_beside(data, metadata, html=data["text/html"], text=text)

    # -- messages -------------------------------------------------------------------------------------------

    def _show(self, made: payload.Payload, now: bool) -> None:
        """Keeps a payload's other parts for when the page asks for them; `now`: the payload is set, too."""
        self._made = made
        if now:
            self.payload = made.text

    def _send_rest(self, name: object) -> None:
        """The other parts of the record that the page has the first of; nothing if that was superseded."""
        if name == self._made.name:
            self.rest = {"name": self._made.name, "parts": list(self._made.rest)}

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        """A message from the page. In a notebook it waits for those that came with it: of edits the last counts."""
        if not isinstance(content, dict) or "kind" not in content:
            return
        if content["kind"] == "rest":
            self._send_rest(content.get("name"))
            return
        if self._messages is None:
            self._answer_saved(content)
            return
        if content["kind"] == "cancel":
            self._messages.cancel(str(content.get("of", "time")))
            return
        self._queue.append(content)
        try:
            asyncio.get_running_loop().call_later(_SETTLE, self._answer)
        except RuntimeError:
            self._answer()

    def _answer_saved(self, content: dict[str, Any]) -> None:
        """Answers a message of a page that shows a saved record."""
        seq = content.get("seq")
        if content["kind"] == "ping":
            self.send({"kind": "pong", "seq": seq})
        elif content["kind"] == "recompile":
            try:
                note = self.recompile()
            except NeptuneError as error:
                self.send({"kind": "failed", "seq": seq, "message": str(error)})
            except (ImportError, TypeError, ValueError) as error:  # no compiler here, or a record that nobody saved so
                self.send({"kind": "failed", "seq": seq, "message": f"{type(error).__name__}: {error}"})
            else:
                self.send({"kind": "recompiled", "seq": seq, "payload": self.payload, "note": note})

    def _answer(self) -> None:
        """Answers what came, superseded edits and checks aside."""
        assert self._messages is not None
        queue, self._queue = self._queue, []
        for n, content in enumerate(queue):
            superseded = content["kind"] in (*_EDITS, "check") and any(c["kind"] in _EDITS for c in queue[n + 1 :])
            if not superseded:
                self._messages.answer(content)

    def close(self) -> None:
        """Closes the widget, and ends a running measurement."""
        messages: Messages | None = getattr(self, "_messages", None)
        if messages is not None:
            messages.cancel()
        super().close()


@overload
def explore(what: Training) -> TrainingExplorer: ...
@overload
def explore(
    what: Operator | Schedule | Kernel | Trace | Callable[..., Any] | str | PathLike[str],
    *,
    sample: Operator | Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Explorer: ...
def explore(
    what: Operator | Schedule | Kernel | Trace | Training | Callable[..., Any] | str | PathLike[str],
    *inputs: Any,
    sample: Operator | Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Explorer | TrainingExplorer:
    """An explorer of a compilation, for display in a notebook.

    Args:
        what: an operator (scheduled as `nl.compile` does), a schedule as it is, a kernel, a record, the path of a saved
            record, or a function that makes an operator, whose sizes can then be edited in the page. Both passes from
            `operators.training`, or a function from `kernel.with_gradients()`, are shown side by side.
        inputs: none are taken; those of a function of PyTorch are for `nl.from_torch`.
        sample: the same operator at small sizes, made by the same function, for tag tables and the numeric check; only
            needed for a large operator of your own, since those of the library are made smaller by themselves. Of a
            function, its arguments at small sizes by name.
        arguments: of the function, by name.

    Returns:
        The widget.

    Raises:
        ScheduleError: `what` is none of these, or has inputs, or is an operator that no template can schedule; or
            `sample` is not the same operator at other sizes; or there are arguments, and `what` is no function.
        DefinitionError: the function returns something else than an operator.
        TraceError: the file is not a saved record.
    """
    if inputs:
        raise ScheduleError(
            f"explore takes one thing, and {len(inputs)} more {'is' if len(inputs) == 1 else 'are'} given",
            help=f"{_OF_TENSORS}; arguments of a function that makes an operator go by name, rows=4096",
        )
    with waiting_line():
        return _explore(what, sample, arguments)


def _explore(
    what: Operator | Schedule | Kernel | Trace | Training | Callable[..., Any] | str | PathLike[str],
    sample: Operator | Mapping[str, Any] | None,
    arguments: dict[str, Any],
) -> Explorer | TrainingExplorer:
    if sample is not None and isinstance(what, str | PathLike | Trace):
        raise ScheduleError("sample is for an operator, a schedule or a kernel; a record is shown as it was saved")
    if isinstance(what, str | PathLike | Trace):
        _no_arguments(arguments)
        return Explorer(what if isinstance(what, Trace) else load_trace(Path(what)))
    from neptune_lab import Kernel, Schedule
    from neptune_lab.operators import Operator, Training, training
    from neptune_lab.pipeline import compile, schedule

    if not isinstance(what, Kernel | Schedule) and isinstance(of := getattr(what, "operator", None), Operator):
        what = training(of)
    if isinstance(what, Training):
        from neptune_widgets.training import TrainingExplorer

        _no_arguments(arguments)
        if sample is not None:
            raise ScheduleError("sample is for an operator, a schedule or a kernel, and not for both passes of one")
        return TrainingExplorer(what)
    if callable(what) and not isinstance(what, Operator | Kernel | Schedule):
        if getattr(what, "__module__", "").startswith("neptune_lab.pytorch"):
            raise ScheduleError(
                f"nl.{getattr(what, '__name__', '')} takes tensors, and makes its operator when it is called",
                help="explore the operator: nl.explore(nl.operators.attention.causal(heads=4, seq=256)), or with mods "
                "nl.operators.attention.general(1, 4, 256, 256, 64, score_mod=…, mask_mod=…)",
            )
        operator = named(what, arguments)
        if isinstance(sample, Mapping):
            sample = named(what, {**arguments, **sample})
        what = operator
    else:
        _no_arguments(arguments)
    if isinstance(sample, Mapping):
        raise ScheduleError(
            "sample has arguments by name, which only a function that makes an operator takes",
            help="give the operator at small sizes: sample=my_operator(2, 8)",
        )
    if isinstance(what, Operator) and what.family is not None:
        what = compile(what)
    if isinstance(what, Operator | Kernel | Schedule):
        if sample is not None:
            sample = fitting(what if isinstance(what, Operator) else what.operator, sample)
        if isinstance(what, Kernel):
            return Explorer(Session(what.schedule, what, sample))
        session = Session(schedule(what) if isinstance(what, Operator) else what, sample=sample)
        if isinstance(what, Operator) and session.kernel is None:
            # The template makes no kernel of it. The compiler then takes another schedule, or several kernels. If it
            # has none either, the explorer opens with the first schedule, and says why.
            with suppress(NeptuneError):
                kernel = compile(what)
                session = Session(kernel.schedule, kernel, sample)
        return Explorer(session)
    raise ScheduleError(
        f"explore takes an operator, a schedule, a kernel, a trace, a path, or a function that makes an operator, this "
        f"is {type(what).__name__}",
        help=f'for example nl.explore(nl.compile(op)), or nl.explore("record.json"); {_OF_TENSORS}',
    )


def _no_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ScheduleError if there are arguments, which only a function takes."""
    if arguments:
        raise ScheduleError(
            f"explore has no argument {next(iter(arguments))!r}",
            help="arguments by name are for a function that makes an operator: nl.explore(make, rows=4096)",
        )
