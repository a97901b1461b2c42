"""The text of a kernel's functions, a line with its nodes, and the call that starts them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neptune_lab.htile.nodes import Kernel
from neptune_lab.htile_to_gluon.context import GluonContext, spelled
from neptune_lab.htile_to_triton.context import WIDTH
from neptune_lab.htile_to_triton.module import repr_of
from neptune_lab.wrapping import Bracketed, lines


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line of a kernel's text, with the HTile nodes that it belongs to; none if it does not compute."""

    text: str
    nodes: tuple[str, ...] = ()
    origin: str = ""


def lines_of(ctx: GluonContext) -> list[KernelLine]:
    """The body of a function that was emitted."""
    return [
        KernelLine(indent + spelled(text), tuple(draft.nodes), draft.origin)
        for indent, draft in ctx.root.drafts("    ")
        for text in draft.lines
    ]


def function_lines(
    kernel: Kernel, name: str, parameters: list[str], body: list[KernelLine], sizes: list[str] | None = None
) -> list[KernelLine]:
    """A function of the module."""
    texts = lines(Bracketed(f"def {name}(", tuple(parameters), "):"), WIDTH)
    once = f"(do_not_specialize=[{', '.join(map(repr_of, sizes))}])" if sizes else ""
    return [
        KernelLine(f"@gluon.jit{once}"),
        *(KernelLine(text, (kernel.node_id,), kernel.name) for text in texts),
        *body,
    ]


def specialized(functions: Iterable[tuple[str, list[str]]], warps: list[int], registers: list[int]) -> list[str]:
    """The call that starts the functions of groups of warps.

    Args:
        functions: their names and arguments; the first one runs on the warps of the launch.
        warps: of each other function.
        registers: per thread, of each other function.
    """
    body = ["gl.warp_specialize(", "    ["]
    for function, arguments in functions:
        body += lines(Bracketed("(", (function, Bracketed("(", tuple(arguments), ")")), "),"), WIDTH - 4, " " * 8)
    return [*body, "    ],", f"    {warps},", f"    {registers},", ")"]


__all__ = ["KernelLine", "function_lines", "lines_of", "specialized"]
