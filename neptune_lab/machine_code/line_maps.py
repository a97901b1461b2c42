"""Takes line information out of a stage's text: the text without it, and for each line the Triton lines it is from.

The Triton lines of one line begin with the innermost: a line of a helper function comes before the line that calls it.
Lines of Triton's own library are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# The file that kernels are compiled from, in their own process; line information names it.
MODULE = "triton_module.py"

Frames = tuple[int, ...]


class Mapped(NamedTuple):
    """A text without line information, and the Triton lines of each of its lines."""

    text: str
    lines: tuple[Frames, ...]


def _mapped(pairs: Iterable[tuple[str, Frames]]) -> Mapped:
    kept = tuple(pairs)
    return Mapped("".join(f"{text}\n" for text, _ in kept), tuple(frames for _, frames in kept))


def _once(frames: Iterable[int]) -> Frames:
    return tuple(dict.fromkeys(n for n in frames if n > 0))


# -- MLIR: TTIR and TTGIR -------------------------------------------------------------------------------------------

_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_PLACE = re.compile(r'"(?:[^"\\]|\\.)*/([^"/]+)":(\d+):\d+|(#loc\d*)(?!\d)')


def of_mlir(text: str) -> Mapped:
    """TTIR or TTGIR without its `loc(...)`; the head of a region has the location at the region's end."""
    lines = text.splitlines()
    aliases = {m[1]: m[2] for m in map(_ALIAS.match, lines) if m}
    known: dict[str, Frames] = {}

    def frames(location: str) -> Frames:
        out: list[int] = []
        for file, line, alias in _PLACE.findall(location):
            if alias:
                if alias not in known:
                    known[alias] = ()
                    known[alias] = frames(aliases.get(alias, ""))
                out += known[alias]
            elif file == MODULE:
                out.append(int(line))
        return _once(out)

    shown: list[tuple[str, Frames]] = []
    heads: list[int] = []
    for line in lines:
        if _ALIAS.match(line):
            continue
        kept, locations = _without_locations(line)
        here = _once(n for location in locations for n in frames(location))
        if kept.lstrip().startswith("}") and heads:
            head = heads.pop()
            shown[head] = (shown[head][0], shown[head][1] or here)
        if kept.endswith("{"):
            heads.append(len(shown))
        shown.append((kept, here))
    return _mapped(shown)


def _without_locations(line: str) -> tuple[str, list[str]]:
    """A line without each ` loc(...)`, whose parentheses may nest; and what was inside of them."""
    kept, locations, at = "", [], 0
    while (start := line.find(" loc(", at)) >= 0:
        end, depth, quoted = start + 5, 1, False
        while end < len(line) and depth:
            char = line[end]
            quoted ^= char == '"'
            depth += 0 if quoted else (char == "(") - (char == ")")
            end += 1
        kept += line[at:start]
        locations.append(line[start + 5 : end - 1])
        at = end
    return (kept + line[at:]).rstrip(), locations


# -- LLVM IR --------------------------------------------------------------------------------------------------------

_NODE = re.compile(r"^(!\d+) = (?:distinct )?!(DI\w+)\((.*)\)$")
_FIELD = re.compile(r'(\w+): ("[^"]*"|![\w.]+|[^,()]+)')
_DEBUG = re.compile(r",? !dbg (!\d+)")
_DEBUG_LINE = re.compile(r"^!llvm\.dbg\.cu = |^!\d+ = (?:distinct )?!DI|^source_filename = ")


def of_llvm(text: str) -> Mapped:
    """LLVM IR without `!dbg` and the metadata it refers to."""
    nodes = {m[1]: dict(_FIELD.findall(m[3])) for m in map(_NODE.match, text.splitlines()) if m}

    def ours(scope: str) -> bool:
        node = nodes.get(scope, {})
        file = nodes.get(node.get("file", ""), {}).get("filename", "").strip('"')
        return file.rpartition("/")[2] == MODULE

    known: dict[str, Frames] = {}

    def frames(name: str) -> Frames:
        if name not in known:
            node = nodes.get(name, {})
            own = [int(node["line"])] if "line" in node and ours(node.get("scope", "")) else []
            known[name] = _once((*own, *(frames(node["inlinedAt"]) if "inlinedAt" in node else ())))
        return known[name]

    shown: list[tuple[str, Frames]] = []
    for line in text.splitlines():
        if _DEBUG_LINE.match(line) or line.startswith("; ModuleID"):
            continue
        found = _DEBUG.search(line)
        is_head = line.startswith("define")  # its !dbg is a subprogram, whose line is that of `def`
        shown.append(
            (_DEBUG.sub("", line), () if found is None else _head(nodes, found[1]) if is_head else frames(found[1]))
        )
    return _mapped(shown)


def _head(nodes: dict[str, dict[str, str]], name: str) -> Frames:
    return _once([int(nodes.get(name, {}).get("line", 0))])


# -- PTX and AMDGCN -------------------------------------------------------------------------------------------------

_LOC = re.compile(r"^\s*\.loc\s+\d+ \d+ \d+")
_COMMENTED = re.compile(r"([^\s/]+\.py):(\d+):\d+")
_FILE = re.compile(r"^\s*\.file\b")
_TEMPORARY = re.compile(r"^(\.L|\$L__)(tmp|func_begin)\d+:")
_DEBUG_SECTION = re.compile(r'^\s*\.section\s+"?\.debug')
_SECTION = re.compile(r"^\s*\.(section|text|amdgpu_metadata)\b")


def frames_of_loc(line: str) -> Frames:
    """The Triton lines that the comment of a `.loc` names, as in `.loc 1 27 25 // m.py:27:25 @[ m.py:56:28 ]`."""
    return _once(int(n) for file, n in _COMMENTED.findall(line) if file == MODULE)


def of_assembly(text: str) -> Mapped:
    """PTX or AMDGCN without `.loc`, `.file` and debug sections; instructions have the lines of the `.loc` before."""
    return _mapped(_assembly(text.splitlines()))


def _assembly(lines: list[str]) -> Iterator[tuple[str, Frames]]:
    current: Frames = ()
    debug = False
    for line in lines:
        if _DEBUG_SECTION.match(line):
            debug = not line.endswith("}")
            continue
        if debug and (line.strip() == "}" or _SECTION.match(line)):
            debug = False
            if line.strip() == "}":  # in PTX a section has braces
                continue
        if debug or _FILE.match(line) or _TEMPORARY.match(line):
            continue
        if _LOC.match(line):
            current = frames_of_loc(line)
            continue
        yield line.rstrip(), current if is_instruction(line) else ()


_INSTRUCTION = re.compile(r"^\s+(@!?%p\d+ )?[a-z][\w.:]*(\s|;|$)")


def is_instruction(line: str) -> bool:
    """Whether a line of PTX or AMDGCN is an instruction, not a label, directive or comment."""
    return _INSTRUCTION.match(line) is not None


# -- SASS -----------------------------------------------------------------------------------------------------------


def numbered(ptx: str) -> tuple[str, tuple[Frames, ...]]:
    """PTX for the assembler, whose line table keeps one line per instruction, so that callers would be lost.

    Returns:
        The PTX with line n + 1 in place of the n-th distinct tuple of Triton lines, and these tuples.
    """
    chains: dict[Frames, int] = {}
    out: list[str] = []
    for line in ptx.splitlines():
        if _LOC.match(line):
            number = chains.setdefault(frames_of_loc(line), len(chains) + 1)
            out.append(f"\t.loc\t1 {number} 0")
        else:
            out.append(line)
    return "\n".join(out) + "\n", tuple(chains)


_SASS_LINE = re.compile(r'^\s*//## File ".*", line (\d+)')
_ADDRESS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/")


def of_sass(text: str, chains: tuple[Frames, ...]) -> Mapped:
    """SASS as `nvdisasm -g` prints it, of PTX that `numbered` wrote, without the comments that name lines."""
    shown: list[tuple[str, Frames]] = []
    current: Frames = ()
    for line in text.splitlines():
        named = _SASS_LINE.match(line)
        if named:
            number = int(named[1])
            current = chains[number - 1] if 0 < number <= len(chains) else ()
        else:
            shown.append((line.rstrip(), current if _ADDRESS.match(line) else ()))
    return _mapped(shown)
