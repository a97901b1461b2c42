"""The launches of a module that find which tiles of keys have a sequence of a tile of queries.

A kernel whose mask compares the sequences of queries and keys visits tiles between bounds, which one or two kernels
find before it from the sequences of all tokens (`htile_passes.skip_tiles_by_data`).  For packed sequences they follow
from the offsets: the kernel of places finds them too (`token_places`), and these launches are left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of keys for each tile of queries.

    Args:
        first, last: the launcher's tensors for the number of the first one, and of the last one plus 1.
        rows, columns: of a tile: queries, and keys.
        left: the statements of the launcher without those that find them from the sequences.
    """

    first: str
    last: str
    rows: int
    columns: int
    left: list[ast.stmt]


# The statements of the kernels, as `ast.unparse` writes them; <x> is a name, a number or a size, each time the same.
_OF_TILES = """\
<row> = tl.program_id(0)
<LANES><BASES><COLUMNS><at> = tl.minimum(<lane> + <row> * <rows>, <end_of_rows>)
<k>_rows = tl.load(<q>_ptr + <at>, mask=(<at> >= 0) & (<at> < <tokens>), other=0)
<k>_row_min = tl.min(<k>_rows, axis=0)
<k>_row_max = tl.max(<k>_rows, axis=0)
<k>_may_hold = (<k>_row_min <= <k>_column_max) & (<k>_row_max >= <k>_column_min) & (<tile> < <count>)
<k>_begin = tl.min(tl.where(<k>_may_hold, <tile>, <most>), axis=0)
tl.store(<k>_first_base, <k>_begin)
<k>_end = tl.maximum(tl.max(tl.where(<k>_may_hold, <tile> + 1, 0), axis=0), <k>_begin + 1)
tl.store(<k>_last_base, <k>_end)
"""
_AT_ONCE = """\
<by> = tl.minimum(<tile>[:, None] * <columns> + <other_lane>[None, :] + 0, <end_of_columns>)
<k>_columns = tl.load(<c>_ptr + <by>, mask=(<by> >= 0) & (<by> < <keys>), other=0)
<k>_column_min = tl.min(<k>_columns, axis=1)
<k>_column_max = tl.max(<k>_columns, axis=1)
"""
_FROM_ENDS = """\
<by> = tl.minimum(<tile>, <most>)
<k>_column_min = tl.load(<e>_column_min_ptr + <by>, mask=(<by> >= 0) & (<by> < <count>), other=0)
<to> = tl.minimum(<tile>, <most>)
<k>_column_max = tl.load(<e>_column_max_ptr + <to>, mask=(<to> >= 0) & (<to> < <count>), other=0)
"""
_OF_ENDS = """\
<row> = tl.program_id(0)
<LANES><BASES><by> = tl.minimum(<other_lane> + <row> * <columns>, <end_of_columns>)
<e>_rows = tl.load(<c>_ptr + <by>, mask=(<by> >= 0) & (<by> < <keys>), other=0)
tl.store(<e>_column_min_base, tl.min(<e>_rows, axis=0))
tl.store(<e>_column_max_base, tl.max(<e>_rows, axis=0))
"""
_PARTS = {
    "LANES": r"(?P<lanes>(?:\w+ = tl\.arange\(0, \d+\)\n)+)",
    "BASES": r"(?:(?P<base>\w+)_base = (?P=base)_ptr \+ (?:(?P=row)|tl\.cast\((?P=row), tl\.int64\))\n)+",
}
_SIZES = {"end_of_rows", "end_of_columns", "tokens", "keys", "count", "most"}


def tiles_in(text: str, launcher: ast.FunctionDef, of: tuple[str, str], sizes: Sequence[str]) -> Tiles | None:
    """The tiles that a launcher finds from sequences; None if it does not, or in another form.

    Args:
        text: of the launcher's module.
        of: the launcher's arguments for the sequences of queries and of keys.
        sizes: how many queries and keys there are, as the launcher has them.
    """
    kernels = {stmt.name: stmt for stmt in ast.parse(text).body if isinstance(stmt, ast.FunctionDef)}
    launches = {name: stmt for stmt in launcher.body if (name := _launched(stmt))}
    for name in launches.keys() & kernels.keys():
        for columns in (_AT_ONCE, _FROM_ENDS):
            found = _matched(_OF_TILES.replace("<COLUMNS>", columns), kernels[name], launches[name])
            if found is None or found["k"] != name:
                continue
            removed, before = [launches[name]], found.get("e")
            if before is not None:
                if before not in launches.keys() & kernels.keys():
                    return None
                removed.append(launches[before])
                ends = _matched(_OF_ENDS, kernels[before], launches[before])
                if ends is None or ends["e"] != before:
                    return None
                found = {**ends, **found, "other_lanes": ends["lanes"]}
            if not _fits(found, launches[name], of, sizes):
                return None
            left = _without(launcher.body, removed)
            return Tiles(f"{name}_first", f"{name}_last", int(found["rows"]), int(found["columns"]), left)
    return None


def _launched(stmt: ast.stmt) -> str:
    """The kernel that a statement launches, or ""."""
    match stmt:
        case ast.Expr(value=ast.Call(func=ast.Subscript(value=ast.Name(id=name)))):
            return name
    return ""


def _matched(form: str, kernel: ast.FunctionDef, stmt: ast.stmt) -> dict[str, str] | None:
    """The names, numbers and sizes of a kernel of this form; None if it is another one, or is launched with other
    tensors than those that its parameters are named after."""
    found = re.fullmatch(_pattern(form), "".join(f"{ast.unparse(own)}\n" for own in kernel.body))
    named = ", ".join(argument.arg.removesuffix("_ptr") for argument in kernel.args.args)
    given = ast.unparse(stmt).endswith(f"]({named})") or ast.unparse(stmt).endswith(f"]({named}, num_warps=8)")
    return None if found is None or not given else found.groupdict()


def _pattern(form: str) -> str:
    """The regular expression of a form."""
    seen: set[str] = set()
    made = []
    for n, part in enumerate(re.split(r"<(\w+)>", form)):
        if n % 2 == 0:
            made.append(re.escape(part))
        elif part in _PARTS:
            made.append(_PARTS[part])
        else:
            own = "[^\n]+?" if part in _SIZES else r"\w+?"
            made.append(f"(?P={part})" if part in seen else f"(?P<{part}>{own})")
            seen.add(part)
    return "".join(made)


def _fits(found: Mapping[str, str], stmt: ast.stmt, of: tuple[str, str], sizes: Sequence[str]) -> bool:
    """Whether the kernels compare these sequences, in tiles that follow one another."""
    rows, columns = found["rows"], found["columns"]
    own, others = found["lanes"], found.get("other_lanes", found["lanes"])
    expected = [f"{found['lane']} = tl.arange(0, {rows})", f"{found['other_lane']} = tl.arange(0, {columns})"]
    if any(line not in text.splitlines() for line, text in zip(expected, (own, others), strict=True)):
        return False
    count, programs = _tiles(sizes[1], int(columns)), _tiles(sizes[0], int(rows))
    wanted = {"q": of[0], "c": of[1], "tokens": sizes[0], "keys": sizes[1], "count": count, "most": _before(count)}
    wanted |= {"end_of_rows": _before(sizes[0]), "end_of_columns": _before(sizes[1])}
    alike = ast.unparse(stmt).startswith(f"{found['k']}[{programs},](")
    return alike and all(found[name] == text for name, text in wanted.items())


def _before(size: str) -> str:
    """The last index of a size."""
    return str(int(size) - 1) if size.isdigit() else f"{size} + -1"


def _tiles(size: str, width: int) -> str:
    """How many tiles of a width a size has."""
    return str(-(-int(size) // width)) if size.isdigit() else f"({size} + {width - 1}) // {width}"


def _without(body: Sequence[ast.stmt], removed: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements without some, and without tensors that only these read."""
    left = [stmt for stmt in body if stmt not in removed]
    read = {name for stmt in left for name in _names(stmt, ast.Load)}
    made = [s for s in left if isinstance(s, ast.Assign) and isinstance(s.value, ast.Call)]
    return [s for s in left if s not in made or _names(s, ast.Store) & read]


def _names(stmt: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    return {n.id for n in ast.walk(stmt) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


__all__ = ["Tiles", "tiles_in"]
