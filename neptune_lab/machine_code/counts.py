"""What the last stage's text contains: matrix instructions, waits, barriers, and memory instructions by width.

Each instruction of the text counts once, however often it runs.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from neptune_lab.machine_code.line_maps import is_instruction


@dataclass(frozen=True, slots=True)
class MatrixInstruction:
    """A matrix instruction as the text spells it, its m, n and k (None if the spelling has no sizes), and its count."""

    name: str
    shape: tuple[int, int, int] | None
    count: int


@dataclass(frozen=True, slots=True)
class MemoryInstruction:
    """Loads or stores of one kind and width.

    Args:
        kind: such as "global load"; "tile load" is a copy of a whole tile by the copy engine, "spill" local memory.
        bytes: per thread; None for a copy of a tile.
        count: instructions in the text.
    """

    kind: str
    bytes: int | None
    count: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Instructions in a kernel's text, each counted once.

    Args:
        instructions: all of them.
        matrix: products of tiles, by name.
        waits: (name, count) of instructions that wait for copies, loads, products or memory barriers.
        barriers: (name, count) of instructions at which warps wait for each other.
        memory: loads and stores by kind and width.
    """

    instructions: int
    matrix: tuple[MatrixInstruction, ...]
    waits: tuple[tuple[str, int], ...]
    barriers: tuple[tuple[str, int], ...]
    memory: tuple[MemoryInstruction, ...]


def count(text: str, cuda: bool) -> Counts:
    """Counts the instructions of SASS (`cuda`) or AMDGCN."""
    name_of = _sass_name if cuda else _amdgcn_name
    names = Counter(name for line in text.splitlines() if (name := name_of(line)) is not None)
    waits, barriers = (_SASS_WAIT, _SASS_BARRIER) if cuda else (_AMD_WAIT, _AMD_BARRIER)
    memory: Counter[tuple[str, int | None]] = Counter()
    matrix = []
    for name, number in sorted(names.items()):
        access = _sass_access(name) if cuda else _amd_access(name)
        if access is not None:
            memory[access] += number
        if (_SASS_MATRIX if cuda else _AMD_MATRIX).match(name):
            matrix.append(MatrixInstruction(name, _shape(name), number))
    return Counts(
        sum(names.values()),
        tuple(matrix),
        tuple((n, c) for n, c in sorted(names.items()) if waits.match(n)),
        tuple((n, c) for n, c in sorted(names.items()) if barriers.match(n)),
        tuple(
            MemoryInstruction(k, b, c) for (k, b), c in sorted(memory.items(), key=lambda x: (x[0][0], x[0][1] or 0))
        ),
    )


def kinds(text: str, cuda: bool) -> tuple[str, ...]:
    """What each line of SASS (`cuda`) or AMDGCN is.

    >>> kinds("        /*0000*/  HGMMA.64x64x16.F32 R24, gdesc[UR8], R24 ;\\n        /*0010*/  FADD R1, R2, R3 ;", True)
    ('matrix', '')

    Args:
        text: of the stage.
        cuda: whether it is SASS.

    Returns:
        For each line "matrix", "wait", "barrier", the kind of a memory instruction such as "global load", or "".
    """
    return tuple(_kind(line, cuda) for line in text.splitlines())


def _kind(line: str, cuda: bool) -> str:
    name = _sass_name(line) if cuda else _amdgcn_name(line)
    if name is None:
        return ""
    if (_SASS_MATRIX if cuda else _AMD_MATRIX).match(name):
        return "matrix"
    waits, barriers = (_SASS_WAIT, _SASS_BARRIER) if cuda else (_AMD_WAIT, _AMD_BARRIER)
    if waits.match(name):
        return "wait"
    if barriers.match(name):
        return "barrier"
    access = _sass_access(name) if cuda else _amd_access(name)
    return "" if access is None else access[0]


# -- SASS -----------------------------------------------------------------------------------------------------------

_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)")
_SASS_MATRIX = re.compile(r"^[A-Z]*MMA(\.|$)")
_SASS_WAIT = re.compile(r"^(DEPBAR|WARPGROUP\.DEPBAR|SYNCS\.PHASECHK|MEMBAR|FENCE|ACQBULK)")
_SASS_BARRIER = re.compile(r"^(BAR|UCGABAR|BARRIER)\b")
_SASS_KINDS = {
    "LDG": "global load",
    "LD": "generic load",
    "STG": "global store",
    "ST": "generic store",
    "LDGSTS": "global to shared copy",
    "LDS": "shared load",
    "LDSM": "shared load",
    "STS": "shared store",
    "STSM": "shared store",
    "LDL": "spill load",
    "STL": "spill store",
    "ATOMG": "global atomic",
    "ATOM": "global atomic",
    "RED": "global atomic",
    "REDG": "global atomic",
    "ATOMS": "shared atomic",
    "UTMALDG": "tile load",
    "UTMASTG": "tile store",
    "UBLKCP": "tile load",
    "LDTM": "tensor memory load",
    "STTM": "tensor memory store",
}
_SASS_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1, "8": 1, "256": 32}


def _sass_name(line: str) -> str | None:
    found = _SASS.match(line)
    return found[1] if found else None


def _sass_access(name: str) -> tuple[str, int | None] | None:
    opcode, *parts = name.split(".")
    kind = _SASS_KINDS.get(opcode)
    if kind is None:
        return None
    if kind.startswith(("tile", "tensor memory")):
        return kind, None
    if opcode in ("LDSM", "STSM"):  # 8 x 8 matrices of 16 bits: four bytes per thread each
        return kind, 4 * int(parts[-1]) if parts[-1].isdigit() else 4
    return kind, next((_SASS_WIDTHS[p] for p in parts if p in _SASS_WIDTHS), 4)


def _shape(name: str) -> tuple[int, int, int] | None:
    """m, n and k: HGMMA.64x128x16.F32 and v_mfma_f32_32x32x8_f16 write them out, HMMA.16816.F32 without signs."""
    written = re.search(r"(?<!\d)(\d+)x(\d+)x(\d+)", name)
    if written:
        return int(written[1]), int(written[2]), int(written[3])
    packed = re.search(r"\.16(8)(\d{1,3})(?:\.|$)", name)
    return (16, 8, int(packed[2])) if packed else None


# -- AMDGCN ---------------------------------------------------------------------------------------------------------

_AMD_MATRIX = re.compile(r"^v_(mfma|smfmac|wmma|swmmac)_")
_AMD_WAIT = re.compile(r"^s_(waitcnt|wait_)")
_AMD_BARRIER = re.compile(r"^s_barrier")
_AMD_ACCESS = re.compile(r"^(global|buffer|flat|scratch|ds)_(load|store|read|write)(2(?:st64)?)?_(?:lds_)?([a-z0-9_]+)")
_AMD_KINDS = {"global": "global", "buffer": "global", "flat": "generic", "scratch": "spill", "ds": "shared"}
_AMD_WIDTHS = {"ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2, "dword": 4}


def _amdgcn_name(line: str) -> str | None:
    word = line.split(maxsplit=1)[0] if is_instruction(line) else ""
    return word if word and not word.startswith(".") else None


def _amd_access(name: str) -> tuple[str, int | None] | None:
    found = _AMD_ACCESS.match(name)
    if found is None:
        return None
    where, verb, pair, width = found[1], found[2], found[3], found[4].split("_")[0]
    kind = f"{_AMD_KINDS[where]} {'load' if verb in ('load', 'read') else 'store'}"
    wide = re.fullmatch(r"dwordx(\d)", width)
    bits = re.fullmatch(r"[buif](\d+)", width)
    size = 4 * int(wide[1]) if wide else int(bits[1]) // 8 if bits else _AMD_WIDTHS.get(width, 4)
    return kind, 2 * size if pair else size
