"""Passes on the text of a tile program, as `neptune-lab opt` runs them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from neptune_lab.errors import DefinitionError, TextError, TileError
from neptune_lab.htile.nodes import Program
from neptune_lab.htile.parser import from_text, lines_of_nodes
from neptune_lab.htile.printer import to_text
from neptune_lab.htile.verify import verify
from neptune_lab.htile_passes import ALL_PASSES, apply, summary
from neptune_lab.strict.files import read_standard_input, read_text, shown_path
from neptune_lab.strict.json_text import at_place
from neptune_lab.strict.tokens import MOST_CHARACTERS


def read(file: Path) -> tuple[str, str]:
    """A file's name for errors, and its text; - is standard input. TextError if it cannot be read."""
    most, help = 4 * MOST_CHARACTERS, "give a file with the text of a tile program, in UTF-8"
    if str(file) == "-":
        return "standard input", read_standard_input(most, TextError, help=help)
    return shown_path(file), read_text(file, most, TextError, help=help)


def run_passes(where: str, text: str, names: Sequence[str]) -> str:
    """The text of the program that the passes make, in this order, of the program of `text`.

    Args:
        where: a name of the text for errors, such as its file's.
        text: of a tile program.
        names: of passes, as `ALL_PASSES` has them.

    Raises:
        DefinitionError: there is no pass of a name.
        TextError: the text is no program, or no valid one, with the place.
        TileError: a pass made a program that is not valid, which is a mistake of the pass.
    """
    for name in names:
        if name not in ALL_PASSES:
            near = difflib.get_close_matches(name, ALL_PASSES, 1)
            help = f"did you mean {near[0]}?" if near else "`neptune-lab opt --list` lists them"
            raise DefinitionError(f"there is no pass {name!r}", help=help)
    program = _program(where, text)
    for name in names:
        program = apply(ALL_PASSES[name], program).program
        try:
            verify(program)
        except TileError as error:
            raise TileError(
                f"{name} made a program that is not valid: {error.reason}",
                node=error.node,
                help="this is a mistake of the pass: report the text that you gave it",
            ) from error
    return to_text(program)


def _program(where: str, text: str) -> Program:
    with at_place(where, TextError):
        program = from_text(text)
    try:
        verify(program)
    except TileError as error:
        line = None if error.node is None else lines_of_nodes(text).get(error.node)
        place = "" if line is None else f"line {line}: "
        help = "change this statement" if error.help == TileError.usual_help else error.help
        raise TextError(f"{where}: {place}{error.reason}", node=error.node, help=help) from error
    return program


def list_passes() -> str:
    """A line for each pass: its name and what it does."""
    widest = max(map(len, ALL_PASSES))
    return "".join(f"{name:<{widest}}  {summary(rewrite)}\n" for name, rewrite in ALL_PASSES.items())
