"""Positions of the nodes of dataflow graphs: one layout for all phases of a trace, so that nodes do not move.

The union of the graphs of all phases is laid out once, by graphviz' `dot` if it is on PATH and by topological
generations otherwise; the nodes and edges of every phase have their positions from it.

A union of many nodes or edges gets no positions: the explorer shows it in groups that fold, and places what is visible.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import networkx as nx

from neptune_lab.trace import Graph, GraphNode, StepRecord

Point = tuple[float, float]

# Points (1/72 inch): the width of a character of the label and of the smaller detail, and the padding.
_LABEL, _DETAIL, _PADDING, _HEIGHT = 7.4, 6.0, 22.0, 36.0
_NODE_GAP, _RANK_GAP, _MARGIN = 10.0, 28.0, 8.0
_INCH = 72.0
# dot's time grows with the square of what it draws: 435 edges between 71 nodes took it 1.3 s.
MOST_NODES, MOST_EDGES = 64, 256


@dataclass(frozen=True, slots=True)
class Drawing:
    """Centres of nodes and points along edges, in points from the top left, and the size of the whole."""

    nodes: dict[str, Point]
    edges: dict[tuple[str, str], tuple[Point, ...]]
    width: float
    height: float


def laid_out(steps: tuple[StepRecord, ...]) -> tuple[StepRecord, ...]:
    """The steps with a position for every node and edge of their graphs; a node has one position in all phases.

    Without positions if there are more than `MOST_NODES` nodes or `MOST_EDGES` edges.
    """
    graphs = [phase.graph for step in steps for phase in step.phases]
    sizes = _sizes(graphs)
    edges = tuple(dict.fromkeys((e.source, e.target) for g in graphs for e in g.edges))
    if len(sizes) > MOST_NODES or len(edges) > MOST_EDGES:
        return steps
    drawing = draw(tuple(sizes.items()), edges)
    placed: dict[Graph, Graph] = {}
    done = []
    for step in steps:
        phases = []
        for phase in step.phases:
            if phase.graph not in placed:
                placed[phase.graph] = _with_places(phase.graph, drawing, sizes)
            phases.append(replace(phase, graph=placed[phase.graph]))
        done.append(replace(step, phases=tuple(phases)))
    return tuple(done)


def _sizes(graphs: Iterable[Graph]) -> dict[str, Point]:
    """Width and height of each node, large enough for its texts in every phase."""
    sizes: dict[str, Point] = {}
    for graph in graphs:
        for node in graph.nodes:
            width = max(len(node.label) * _LABEL, len(node.detail) * _DETAIL) + _PADDING
            sizes[node.id] = (round(max(width, sizes.get(node.id, (0.0, 0.0))[0]), 1), _HEIGHT)
    return sizes


def _with_places(graph: Graph, drawing: Drawing, sizes: dict[str, Point]) -> Graph:
    def place(node: GraphNode) -> GraphNode:
        (x, y), (width, height) = drawing.nodes[node.id], sizes[node.id]
        return replace(node, x=x, y=y, width=width, height=height)

    edges = tuple(replace(e, points=drawing.edges[e.source, e.target]) for e in graph.edges)
    return Graph(tuple(place(n) for n in graph.nodes), edges, drawing.width, drawing.height)


@lru_cache(maxsize=64)
def draw(nodes: tuple[tuple[str, Point], ...], edges: tuple[tuple[str, str], ...]) -> Drawing:
    """A drawing of a graph, left to right.

    Args:
        nodes: (id, (width, height)), in points.
        edges: (source, target), each once; cycles are allowed.
    """
    if not nodes:
        return Drawing({}, {}, 0.0, 0.0)
    dot = shutil.which("dot")
    drawing = None if dot is None else _by_dot(dot, nodes, edges)
    return drawing or _by_generations(nodes, edges)


def _by_dot(dot: str, nodes: tuple[tuple[str, Point], ...], edges: tuple[tuple[str, str], ...]) -> Drawing | None:
    """The drawing by graphviz; None if that fails (a broken installation must not prevent the drawing)."""
    number = {name: n for n, (name, _) in enumerate(nodes)}
    lines = [f"digraph{{rankdir=LR;ranksep={_RANK_GAP / _INCH:.3f};nodesep={_NODE_GAP / _INCH:.3f}"]
    lines.append('node[shape=box,fixedsize=true,label=""]edge[arrowhead=none]')
    for name, (width, height) in nodes:
        lines.append(f"n{number[name]}[width={width / _INCH:.3f},height={height / _INCH:.3f}]")
    lines += [f"n{number[a]}->n{number[b]}" for a, b in edges]
    try:
        done = subprocess.run(
            [dot, "-Tplain"], input="\n".join([*lines, "}"]), capture_output=True, text=True, timeout=60, check=True
        )
        return _read_plain(done.stdout, [name for name, _ in nodes])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError):
        return None


def _read_plain(text: str, names: list[str]) -> Drawing:
    """A drawing from dot's plain form, whose inches count from the bottom left."""
    rows = [line.split() for line in text.splitlines()]
    width, height = (float(x) * _INCH for x in rows[0][2:4])

    def point(x: str, y: str) -> Point:
        return round(float(x) * _INCH + _MARGIN, 1), round(height - float(y) * _INCH + _MARGIN, 1)

    places: dict[str, Point] = {}
    paths: dict[tuple[str, str], tuple[Point, ...]] = {}
    for row in rows[1:]:
        if row[0] == "node":
            places[names[int(row[1][1:])]] = point(row[2], row[3])
        elif row[0] == "edge":
            ends = names[int(row[1][1:])], names[int(row[2][1:])]
            flat = row[4 : 4 + 2 * int(row[3])]
            path = _along([point(x, y) for x, y in zip(flat[::2], flat[1::2], strict=True)])
            backward = _distance(path[0], places[ends[0]]) > _distance(path[-1], places[ends[0]])
            paths[ends] = path[::-1] if backward else path
    return Drawing(places, paths, round(width + 2 * _MARGIN, 1), round(height + 2 * _MARGIN, 1))


def _along(control: list[Point]) -> tuple[Point, ...]:
    """Points on a cubic Bézier path: the start, then the middle and the end of each segment."""
    points = [control[0]]
    for a, b, c, d in zip(control[:-1:3], control[1::3], control[2::3], control[3::3], strict=True):
        middle = tuple(round((a[n] + 3 * b[n] + 3 * c[n] + d[n]) / 8, 1) for n in (0, 1))
        points += [(middle[0], middle[1]), d]
    return tuple(points)


def _distance(a: Point, b: Point) -> float:
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2


def _by_generations(nodes: tuple[tuple[str, Point], ...], edges: tuple[tuple[str, str], ...]) -> Drawing:
    """Columns of nodes by how far they are from an input, each column centred."""
    sizes = dict(nodes)
    acyclic = nx.DiGraph()
    acyclic.add_nodes_from(sizes)
    for source, target in edges:
        if source != target and not nx.has_path(acyclic, target, source):
            acyclic.add_edge(source, target)
    order = {name: n for n, name in enumerate(sizes)}
    columns = [sorted(column, key=order.__getitem__) for column in nx.topological_generations(acyclic)]
    heights = [sum(sizes[n][1] for n in column) + _NODE_GAP * (len(column) - 1) for column in columns]
    whole = max(heights)
    places: dict[str, Point] = {}
    x = _MARGIN
    for column, height in zip(columns, heights, strict=True):
        y = _MARGIN + (whole - height) / 2
        widest = max(sizes[n][0] for n in column)
        for name in column:
            places[name] = (round(x + widest / 2, 1), round(y + sizes[name][1] / 2, 1))
            y += sizes[name][1] + _NODE_GAP
        x += widest + _RANK_GAP
    paths = {(a, b): _curve(places[a], places[b], sizes[a][0] / 2, sizes[b][0] / 2) for a, b in edges}
    return Drawing(places, paths, round(x - _RANK_GAP + _MARGIN, 1), round(whole + 2 * _MARGIN, 1))


def _curve(start: Point, end: Point, leave: float, arrive: float) -> tuple[Point, ...]:
    """A line that leaves a node on its right and reaches another on its left; backwards, the other way round."""
    ahead = 1.0 if end[0] >= start[0] else -1.0
    first = (round(start[0] + ahead * leave, 1), start[1])
    last = (round(end[0] - ahead * arrive, 1), end[1])
    return first, (round((first[0] + last[0]) / 2, 1), round((first[1] + last[1]) / 2, 1)), last
