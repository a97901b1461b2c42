"""`nl.explain`: the graph of a model with its fused regions, each one press away from its explorer."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neptune_lab.files import write_text
from neptune_lab.torch_explain import Explanation, explained
from neptune_widgets.beside import static
from neptune_widgets.explanation import html, page

if TYPE_CHECKING:
    from neptune_widgets.explorer import Explorer


class ShownExplanation(Explanation):
    """An explanation that a notebook shows; made by `nl.explain`.

    In a notebook: the graph and its parts, and a button per region that opens its explorer below.  `print` shows text.
    """

    def explore(self, number: int) -> Explorer:
        """The explorer of a region.

        Args:
            number: of the region, from 1.

        Returns:
            The widget.

        Raises:
            DefinitionError: there is no region of this number.
        """
        from neptune_widgets.explorer import explore

        return explore(self.region(number).kernel)

    def export_html(self, path: str | PathLike[str] | None = None) -> str:
        """Exports the explanation as one HTML page that needs neither a network nor Python, with every explorer.

        Args:
            path: the file to write; None: none.

        Returns:
            The page's text.

        Raises:
            FileError: the file cannot be written.
        """
        made = page.page(self)
        if path is not None:
            write_text(Path(path), made)
        return made

    def _repr_html_(self) -> str:
        return html.html(self)

    def _ipython_display_(self) -> None:
        """Two outputs: the HTML, which stays in a saved notebook, and the buttons, which need the running kernel."""
        from IPython.display import display

        from neptune_widgets.explanation.buttons import buttons

        display({"text/html": static(html.html(self)), "text/plain": str(self)}, raw=True)
        if self.regions:
            display(buttons(self))


def explain(model: Callable[..., Any], *inputs: Any, inference: bool = False) -> ShownExplanation:
    """Shows what becomes of a model: its graphs with the regions that are fused, and why the rest stays apart.

    The model runs once under torch.compile, whose cache is emptied before.  Each graph of ATen operations that torch
    traces is partitioned, and the regions are compiled.

    Args:
        model: a function of PyTorch or a `torch.nn.Module`.
        inputs: its positional arguments.  Their shapes and dtypes count.
        inference: runs the model under `torch.inference_mode()`.  Otherwise gradients are recorded if they are at
            the call, and a graph whose inputs require them becomes a forward and a backward graph.

    Returns:
        The explanation.  A notebook shows it with a button per region that opens the explorer; `print` shows text;
        `export_html` writes a page.

    Raises:
        DefinitionError: torch cannot trace the model on these inputs.
    """
    found = explained(model, *inputs, inference=inference)
    return ShownExplanation(found.title, found.partitions, found.breaks)


__all__ = ["ShownExplanation", "explain"]
