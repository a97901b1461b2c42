"""Where the boxes and lines of the picture of two passes are: the forward pass at the left, the parts of the backward
pass at the right, and what goes from one to another as lines that keep clear of the boxes.

Each pass goes from top to bottom.  A line between parts leaves its box, runs down a lane of its own in the space left
of a part, across in a lane between two rows of parts, and enters its target from above, in the space between two ranks
of boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neptune_lab.pipeline.layout import draw

Point = tuple[float, float]

HEIGHT = 38.0  # of a box
_CHARACTER, _SMALL, _PADDING = 7.2, 5.9, 14.0  # width of a character of the first and of the second line, and the rest
_TITLE = 36.0  # above the boxes of a part, for its title and for lines that enter
_TITLE_WIDTH = 150.0
_LANE = 9.0  # between two lines
_LABEL = 21.0  # between two labels
_CORNER = 6.0  # radius
_SIDE = 12.0  # around a part


@dataclass(frozen=True, slots=True)
class Box:
    """A stage or input: its centre and width."""

    x: float
    y: float
    width: float


@dataclass(frozen=True, slots=True)
class Frame:
    """The border of a pass or part: its corner and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Wire:
    """What goes between parts: the box that it leaves, and the boxes that read it."""

    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is drawn.

    Args:
        boxes: by name.
        frames: the forward pass, then each part of the backward pass.
        edges: lines within a part, by (source, target).
        wires: per wire a line for each of its targets.
        labels: per wire, where its label starts: at the left, on the line.
        width, height: of the whole.
    """

    boxes: dict[str, Box]
    frames: tuple[Frame, ...]
    edges: dict[tuple[str, str], tuple[Point, ...]]
    wires: tuple[tuple[tuple[Point, ...], ...], ...]
    labels: tuple[Point, ...]
    width: float
    height: float


def box_width(name: str, detail: str) -> float:
    """The width of a box with these two lines."""
    return round(max(len(name) * _CHARACTER, len(detail) * _SMALL) + _PADDING, 1)


@dataclass(frozen=True, slots=True)
class _Column:
    """One part, drawn by itself, from top to bottom."""

    boxes: dict[str, Box]
    edges: dict[tuple[str, str], tuple[Point, ...]]
    width: float
    height: float


def _column(widths: Mapping[str, float], edges: Sequence[tuple[str, str]]) -> _Column:
    drawing = draw(tuple((name, (HEIGHT, width)) for name, width in widths.items()), tuple(edges))
    boxes = {name: Box(y, x, widths[name]) for name, (x, y) in drawing.nodes.items()}
    paths = {edge: tuple((y, x) for x, y in points) for edge, points in drawing.edges.items()}
    missing = max(0.0, _TITLE_WIDTH - 2 * _SIDE - drawing.height) / 2
    if missing:
        boxes = {name: Box(b.x + missing, b.y, b.width) for name, b in boxes.items()}
        paths = {edge: tuple((x + missing, y) for x, y in points) for edge, points in paths.items()}
    return _Column(boxes, paths, drawing.height + 2 * missing, drawing.width)


def picture(
    forward: Mapping[str, float],
    parts: Sequence[Mapping[str, float]],
    given: Mapping[str, float],
    edges: Sequence[tuple[str, str]],
    wires: Sequence[Wire],
    label: float,
) -> Picture:
    """Places everything.

    Args:
        forward: the boxes of the forward pass and their widths.
        parts: those of each part of the backward pass.
        given: boxes above the parts: what the backward pass is given.
        edges: (source, target), each within one part.
        wires: between parts, from what is given, and from the forward pass.
        label: the width of the longest label of a wire of the forward pass.
    """
    inner = [[e for e in edges if e[0] in part and e[1] in part] for part in (forward, *parts)]
    left = _column(forward, inner[0])
    columns = [_column(part, mine) for part, mine in zip(parts, inner[1:], strict=True)]
    lanes = (len(wires) + 1) * _LANE
    rows = _rows(parts, wires)
    start = left.width + 2 * _SIDE + label + 30 + lanes  # where the backward pass begins
    boxes = {name: Box(b.x + _SIDE, b.y + _TITLE, b.width) for name, b in left.boxes.items()}
    paths = {e: tuple((x + _SIDE, y + _TITLE) for x, y in points) for e, points in left.edges.items()}
    frames: dict[int, Frame] = {}
    gutters: dict[int, float] = {}  # by part, where the lanes at its left begin
    gaps: list[float] = []  # by row, where the lanes above it begin
    y, right = _SIDE if not given else _given(given, start, boxes), start
    for row in rows:
        gaps.append(y)
        y += lanes + 6
        x = start
        for n in row:
            gutters[n] = start - lanes if x == start else x
            x += 0 if x == start else lanes + 8
            column = columns[n]
            frames[n] = Frame(x, y, column.width + 2 * _SIDE, column.height + _TITLE + _SIDE / 2)
            boxes |= {k: Box(b.x + x + _SIDE, b.y + y + _TITLE, b.width) for k, b in column.boxes.items()}
            for e, points in column.edges.items():
                paths[e] = tuple((px + x + _SIDE, py + y + _TITLE) for px, py in points)
            x += column.width + 2 * _SIDE
        right = max(right, x)
        y = max(frames[n].y + frames[n].height for n in row)
    whole = Frame(0, 0, left.width + 2 * _SIDE, left.height + _TITLE + _SIDE / 2)
    exits = _exits([wire.source for wire in wires if wire.source in forward], boxes, whole)
    router = _Router(boxes, exits, parts, rows, gutters, gaps, start - lanes)
    lines = tuple(tuple(router.line(n, wire, t) for t in wire.targets) for n, wire in enumerate(wires))
    labels = tuple(router.label(wire) for wire in wires)
    height = max(y, whole.height) + _SIDE
    return Picture(boxes, (whole, *(frames[n] for n in range(len(parts)))), paths, lines, labels, right + 2, height)


def _exits(sources: Sequence[str], boxes: Mapping[str, Box], frame: Frame) -> dict[str, tuple[Point, ...]]:
    """From each of these boxes of the forward pass to a place right of its frame that has room for a label.

    A line leaves a box at its right, or below its rank if another box is in the way.
    """
    edge = frame.x + frame.width
    starts: dict[str, list[Point]] = {}
    for name in sources:
        box = boxes[name]
        others = [b for b in boxes.values() if b.x < edge and abs(b.y - box.y) < HEIGHT and b.x > box.x]
        if others:
            same = sum(boxes[other].y == box.y for other in starts)
            below = box.y + HEIGHT / 2 + 7 + 5 * (same % 4)
            starts[name] = [(box.x, box.y + HEIGHT / 2), (box.x, below), (edge, below)]
        else:
            starts[name] = [(box.x + box.width / 2, box.y), (edge, box.y)]
    exits: dict[str, tuple[Point, ...]] = {}
    lowest = -_LABEL
    for n, name in enumerate(sorted(starts, key=lambda name: starts[name][-1][1])):
        y = starts[name][-1][1]
        lowest = max(y, lowest + _LABEL)
        turn = edge + 3 + 3 * (n % 2)
        exits[name] = (*starts[name], (turn, y), (turn, lowest), (edge + 8, lowest))
    return exits


def _given(given: Mapping[str, float], start: float, boxes: dict[str, Box]) -> float:
    """Places what the backward pass is given in a row; where the next row begins."""
    x = start + _SIDE
    for name, width in given.items():
        boxes[name] = Box(x + width / 2, _SIDE + HEIGHT / 2, width)
        x += width + 14
    return _SIDE + HEIGHT + 4


def _rows(parts: Sequence[Mapping[str, float]], wires: Sequence[Wire]) -> list[list[int]]:
    """The parts in rows: each below those that it reads."""
    of = {name: n for n, part in enumerate(parts) for name in part}
    level = [0] * len(parts)
    for _ in parts:
        for wire in wires:
            for target in wire.targets:
                if wire.source in of and of[wire.source] != of[target]:
                    level[of[target]] = max(level[of[target]], min(len(parts), level[of[wire.source]] + 1))
    return [[n for n, at in enumerate(level) if at == row] for row in sorted(set(level))]


@dataclass(frozen=True, slots=True)
class _Router:
    """Lines between parts; `exits` are their beginnings in the forward pass (`_exits`)."""

    boxes: Mapping[str, Box]
    exits: Mapping[str, tuple[Point, ...]]
    parts: Sequence[Mapping[str, float]]
    rows: Sequence[Sequence[int]]
    gutters: Mapping[int, float]
    gaps: Sequence[float]
    first: float

    def _part(self, name: str) -> int | None:
        return next((n for n, part in enumerate(self.parts) if name in part), None)

    def _row(self, part: int) -> int:
        return next(r for r, row in enumerate(self.rows) if part in row)

    def label(self, wire: Wire) -> Point:
        """Where the label of a wire of the forward pass starts; for others, nowhere in particular."""
        x, y = self.exits[wire.source][-1] if wire.source in self.exits else (0.0, 0.0)
        return (x + 8, y)

    def line(self, n: int, wire: Wire, target: str) -> tuple[Point, ...]:
        """The line of wire `n` to one of its targets."""
        lane = (n + 0.5) * _LANE
        part = self._part(target)
        assert part is not None
        row = self._row(part)
        source = self._part(wire.source)
        box = self.boxes[wire.source]
        points: list[Point]
        at, to = self.first + lane, self.gutters[part] + lane
        if source is not None:
            at = self.gutters[source] + lane
            points = [(box.x - box.width / 2, box.y), (at, box.y)]
        elif box.x > self.first:  # given
            below = self.gaps[0] + lane
            at = to if row == 0 else at
            points = [(box.x, box.y + HEIGHT / 2), (box.x, below), (at, below)]
        else:
            points = [*self.exits[wire.source], (at, self.exits[wire.source][-1][1])]
        if at != to:
            if source is not None and at != self.first + lane and self._row(source) + 1 != row:
                # Back to the lanes beside all rows, since other rows have their parts elsewhere.
                under = self.gaps[self._row(source) + 1] + lane
                points += [(at, under), (self.first + lane, under)]
                at = self.first + lane
            across = self.gaps[row] + lane
            points += [(at, across), (to, across)]
        end = self.boxes[target]
        above = end.y - HEIGHT / 2 - 6 - (n % 3) * 5
        x = end.x - min(end.width / 2 - 10, 24) + (n % 6) * 9
        points += [(to, above), (x, above), (x, end.y - HEIGHT / 2)]
        return tuple(points)


def rounded(points: Sequence[Point]) -> str:
    """A path along points with round corners, as SVG has it."""
    kept = [p for n, p in enumerate(points) if n == 0 or p != points[n - 1]]
    text = [f"M{kept[0][0]:.1f} {kept[0][1]:.1f}"]
    for a, b, c in zip(kept, kept[1:], kept[2:], strict=False):
        before, after = _towards(b, a), _towards(b, c)
        text.append(f"L{before[0]:.1f} {before[1]:.1f}Q{b[0]:.1f} {b[1]:.1f} {after[0]:.1f} {after[1]:.1f}")
    text.append(f"L{kept[-1][0]:.1f} {kept[-1][1]:.1f}")
    return "".join(text)


def _towards(corner: Point, other: Point) -> Point:
    """A point on the way from a corner to another, at most the corner's radius away."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = (dx * dx + dy * dy) ** 0.5
    part = min(_CORNER, length / 2) / length if length else 0.0
    return corner[0] + dx * part, corner[1] + dy * part


__all__ = ["HEIGHT", "Box", "Frame", "Picture", "Wire", "box_width", "picture", "rounded"]
