"""Both passes of an operator side by side: what is kept between them, and where each stage comes from."""

from __future__ import annotations

from collections.abc import Collection
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from neptune_lab.errors import NeptuneError
from neptune_lab.files import write_text
from neptune_widgets import payload
from neptune_widgets.beside import display_beside
from neptune_widgets.training import html as written
from neptune_widgets.training import page

if TYPE_CHECKING:
    from neptune_lab.operators import Operator, Training
    from neptune_lab.trace import TrainingRecord
    from neptune_widgets.explorer import Explorer


class TrainingExplorer(anywidget.AnyWidget):
    """Both passes of an operator, what is kept between them, and the rules that gave the backward pass.

    Made by `nl.explore(training(op))`.  `passes` are those that are shown: the page can choose what is kept.

    Attributes:
        html: the page, which has its text even without script.
        view: which stage is chosen.
    """

    _esm = page.BUNDLE if page.BUNDLE.is_file() else page.NOT_BUILT
    html = traitlets.Unicode("", help="the page").tag(sync=True)
    view = traitlets.Dict(help="what the person chose to see").tag(sync=True)

    def __init__(self, passes: Training, **traits: Any) -> None:
        from neptune_lab.pipeline.training_record import training_record

        self._passes = passes
        self._record = training_record(passes)
        self._explorers: dict[str, Explorer] = {}
        super().__init__(html=written.html(self._record, live=True), **traits)
        self._place = ipywidgets.VBox()
        self._box = ipywidgets.VBox([self, self._place])
        self.on_msg(self._received)

    @property
    def passes(self) -> Training:
        """The passes that are shown."""
        return self._passes

    @property
    def record(self) -> TrainingRecord:
        """The record that is shown."""
        return self._record

    @property
    def forward(self) -> Explorer:
        """The explorer of the forward pass, which is compiled when it is first asked for."""
        return self._explorer("forward")

    @property
    def backward(self) -> Explorer:
        """The explorer of the backward pass, which is compiled when it is first asked for."""
        return self._explorer("backward")

    def keep(self, names: Collection[str] | None) -> None:
        """Derives the backward pass again with other values kept.

        Args:
            names: stages of the forward pass; None: chosen by rule.

        Raises:
            DefinitionError: there is no such stage.
        """
        from neptune_lab.operators import training
        from neptune_lab.pipeline.training_record import training_record

        passes = training(self._passes.of, self._passes.wrt, names)
        record = training_record(passes)
        self._close_explorers()
        self._passes, self._record = passes, record
        self.html = written.html(record, live=True)

    def export_html(self, path: str | PathLike[str] | None = None) -> str:
        """Exports the page, with the explorer of each pass, as one HTML file that needs neither a network nor Python.

        Args:
            path: the file to write; None: none.

        Returns:
            The page's text.

        Raises:
            FileError: the file cannot be written.
        """
        made = page.page(
            self._record,
            {
                side: payload.static(self._explorer(side)._live, dict(self._explorer(side).view))
                for side in written.SIDES
            },
        )
        if path is not None:
            write_text(Path(path), made)
        return made

    def close(self) -> None:
        """Closes the widget and the explorers that it opened."""
        if "_explorers" in vars(self):
            self._close_explorers()
        super().close()

    def _close_explorers(self) -> None:
        explorers, self._explorers = self._explorers, {}
        self._place.children = ()
        for explorer in explorers.values():
            explorer.close()

    def _explorer(self, side: str) -> Explorer:
        if side not in self._explorers:
            self._explorers[side] = _explorer(self._passes, side)
        return self._explorers[side]

    # -- messages -------------------------------------------------------------------------------------------

    def _received(self, _widget: object, content: object, _buffers: object) -> None:
        match content:
            case {"kind": "keep", "keep": None | list() as names}:
                try:
                    self.keep(None if names is None else [str(name) for name in names])
                except NeptuneError as error:
                    self.send({"kind": "failed", "message": str(error)})
                else:
                    self.send({"kind": "kept"})
            case {"kind": "open", "side": "forward" | "backward" as side}:
                self._open(side)

    def _open(self, side: str) -> None:
        """Shows the explorer of a pass below, in place of the other one."""
        try:
            opened = self._explorer(side)
        except NeptuneError as error:
            self.send({"kind": "failed", "message": str(error)})
            return
        self._place.children = () if self._place.children == (opened,) else (opened,)

    # -- how it is displayed --------------------------------------------------------------------------------

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The widget, and beside it HTML without script and plain text, for readers that know no widgets."""
        found = super()._repr_mimebundle_(**kwargs)
        if found is None:
            return None
        data, metadata = found
        return {**data, "text/html": self._static(), "text/plain": written.text(self._record)}, metadata

    def _static(self) -> str:
        return f'<div class="neptune-static">{written.html(self._record, alone=True)}</div>'

    def _ipython_display_(self) -> None:
        """Two outputs, as of the explorer: the widget with the explorers that it opens, and the static view."""
        bundle = self._box._repr_mimebundle_()
        if bundle:
            display_beside(bundle, {}, html=self._static(), text=written.text(self._record))


def _explorer(passes: Training, side: str) -> Explorer:
    """The explorer of one pass; its sample is the same pass of the operator at small sizes."""
    from neptune_widgets.explorer import explore

    smaller = _sample(passes)
    operator: Operator = getattr(passes, side)
    return explore(operator, sample=None if smaller is None else getattr(smaller, side))


def _sample(passes: Training) -> Training | None:
    """The passes of the operator at small sizes; None if it cannot be made again."""
    from neptune_lab.operators import training
    from neptune_widgets.sizes import again, tiny

    smaller = again(passes.of, tiny(passes.of))
    if smaller is None:
        return None
    try:
        return training(smaller, passes.wrt, passes.kept)
    except NeptuneError:
        return None


__all__ = ["TrainingExplorer"]
