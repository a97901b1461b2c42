"""The picture of both passes as SVG: boxes that can be chosen, and what is kept as labelled lines between them."""

from __future__ import annotations

from html import escape

from neptune_lab.pipeline.layout import MOST_EDGES, MOST_NODES
from neptune_lab.torch_explain.explanation import byte_text
from neptune_lab.trace import GraphNode, OnePass, TrainingRecord, ValueRecord
from neptune_widgets.training.places import HEIGHT, Frame, Picture, Point, Wire, box_width, picture, rounded

# To what part of its size the picture may shrink; smaller text cannot be read.
SMALLEST = 0.65
_MOST_LETTERS = 26


def short(name: str) -> str:
    """A name that fits into a box."""
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"


def _letters(label: str) -> float:
    """The width of a label."""
    return 6.9 * len(label) + 12


def svg(record: TrainingRecord) -> tuple[str, int]:
    """The picture.

    Args:
        record: of both passes.

    Returns:
        An SVG element and its width in pixels; for passes of too many stages, a sentence that says so, and 0.
    """
    nodes = len(record.forward.graph.nodes) + len(record.backward.graph.nodes)
    if nodes > 2 * MOST_NODES or len(record.backward.graph.edges) > MOST_EDGES:
        return f"<p>The passes have {nodes} stages and inputs, too many to draw; they are listed below.</p>", 0
    details = _details(record)
    drawn, wires = drawn_picture(record)
    labels = [_label(value) for value in _read(record)]
    body = _frames(record, drawn) + _lines(drawn) + _wires_drawn(drawn, wires, labels)
    listed = [
        _list("Stages of the forward pass", record.forward, "f", drawn, details, record),
        _list("Stages of the backward pass", record.backward, "b", drawn, details, record),
    ]
    width = round(drawn.width)
    return (
        f'<svg viewBox="0 0 {width} {drawn.height:.0f}" width="{width}" '
        f'style="min-width:{width * SMALLEST:.0f}px"><g aria-hidden="true">{body}</g>{"".join(listed)}</svg>'
    ), width


def drawn_picture(record: TrainingRecord) -> tuple[Picture, list[Wire]]:
    """Where everything is, and what goes between parts: first what is kept."""
    details = _details(record)
    given = _given(record)
    wires = _wires(record, given)
    forward = {n.id: box_width(short(n.label), details[f"f:{n.id}"]) for n in record.forward.graph.nodes}
    widths = {n.id: box_width(short(n.label), details[f"b:{n.id}"]) for n in record.backward.graph.nodes}
    made = picture(
        {f"f:{name}": width for name, width in forward.items()},
        [{f"b:{name}": widths[name] for name in part} for part in record.backward.parts],
        {f"b:{name}": widths[name] for name in given},
        [(f"f:{e.source}", f"f:{e.target}") for e in record.forward.graph.edges]
        + [(f"b:{e.source}", f"b:{e.target}") for e in record.backward.graph.edges],
        wires,
        max((_letters(_label(value)) for value in _read(record)), default=0.0),
    )
    return made, wires


def _read(record: TrainingRecord) -> list[ValueRecord]:
    """The values that are kept and read."""
    return [value for value in record.kept if value.readers and value.forward]


def _label(value: ValueRecord) -> str:
    return f"{short(value.name)} {byte_text(value.bytes)}"


def _given(record: TrainingRecord) -> list[str]:
    """The inputs of the backward pass that the forward pass neither has nor makes: the cotangents of the results."""
    made = {n.id for n in record.forward.graph.nodes} | {value.name for value in record.kept}
    return [n.id for n in record.backward.graph.nodes if n.kind == "input" and n.id not in made]


def _details(record: TrainingRecord) -> dict[str, str]:
    """The second line of each box."""
    forward = {n.id for n in record.forward.graph.nodes if n.kind == "input"}
    roles = {origin.stage: origin.role for origin in record.origins}
    read: dict[str, list[str]] = {}
    for e in record.backward.graph.edges:
        if e.source in forward:
            read.setdefault(e.target, []).append(e.source)
    found = {f"f:{n.id}": _detail(n) for n in record.forward.graph.nodes}
    for n in record.backward.graph.nodes:
        words = _detail(n)
        if roles.get(n.id) == "again":
            words = f"again: {words}"
        also = f" · {', '.join(map(short, read[n.id]))}" if n.id in read else ""
        found[f"b:{n.id}"] = f"{words}{also}"
    return found


def _detail(node: GraphNode) -> str:
    return node.detail.replace(" × ", "×") if node.kind == "input" else node.detail


def _wires(record: TrainingRecord, given: list[str]) -> list[Wire]:
    """What goes between parts: what is kept, what is given, and what one part computes for another."""
    wires = [Wire(f"f:{value.forward}", tuple(f"b:{r}" for r in value.readers)) for value in _read(record)]
    part = {stage: n for n, stages in enumerate(record.backward.parts) for stage in stages}
    between: dict[str, list[str]] = {}
    for e in record.backward.graph.edges:
        if e.source in given or (e.source in part and part[e.source] != part[e.target]):
            between.setdefault(e.source, []).append(f"b:{e.target}")
    wires += [Wire(f"b:{source}", tuple(targets)) for source, targets in between.items()]
    return wires


def _frames(record: TrainingRecord, drawn: Picture) -> str:
    count = len(record.backward.parts)
    titles = ["forward pass"]
    titles += ["backward pass"] if count == 1 else [f"backward, part {n} of {count}" for n in range(1, count + 1)]
    return "".join(_frame(frame, title) for frame, title in zip(drawn.frames, titles, strict=True))


def _frame(frame: Frame, title: str) -> str:
    return (
        f'<rect class="frame" x="{frame.x + 1:.1f}" y="{frame.y + 1:.1f}" width="{frame.width - 2:.1f}" '
        f'height="{frame.height - 2:.1f}" rx="8"/>'
        f'<text class="title" x="{frame.x + 11:.1f}" y="{frame.y + 17:.1f}">{escape(title)}</text>'
    )


def _lines(drawn: Picture) -> str:
    found = []
    for (source, target), points in drawn.edges.items():
        text = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        found.append(f'<path class="edge" data-from="{escape(source)}" data-to="{escape(target)}" d="{text}"/>')
    return "".join(found)


def _wires_drawn(drawn: Picture, wires: list[Wire], labels: list[str]) -> str:
    found = []
    for n, (wire, lines) in enumerate(zip(wires, drawn.wires, strict=True)):
        kind = "kept" if n < len(labels) else "edge between"
        for target, points in zip(wire.targets, lines, strict=True):
            ends = f'data-from="{escape(wire.source)}" data-to="{escape(target)}"'
            found += [f'<path class="{kind}" {ends} d="{rounded(points)}"/>']
            found += [f'<path class="{kind} head" {ends} d="{_head(points)}"/>']
    for n, label in enumerate(labels):
        x, y = drawn.labels[n]
        width = _letters(label)
        found.append(
            f'<g class="label"><rect x="{x:.1f}" y="{y - 9:.1f}" width="{width:.1f}" height="18" rx="9"/>'
            f'<text x="{x + width / 2:.1f}" y="{y + 4:.1f}">{escape(label)}</text></g>'
        )
    return "".join(found)


def _head(points: tuple[Point, ...]) -> str:
    x, y = points[-1]
    return f"M{x - 3.5:.1f} {y - 5:.1f}L{x:.1f} {y:.1f}L{x + 3.5:.1f} {y - 5:.1f}Z"


def _list(title: str, one: OnePass, side: str, drawn: Picture, details: dict[str, str], record: TrainingRecord) -> str:
    """The boxes of a pass, which a keyboard reaches and a reader of the screen reads."""
    results = {t.name for t in one.operator.outputs} - {v.name for v in record.kept if side == "f" and not v.result}
    kept = {value.forward for value in record.kept}
    roles = {o.stage: o.role for o in record.origins}
    boxes = []
    for node in _in_order(one):
        key = f"{side}:{node.id}"
        box = drawn.boxes.get(key)
        if box is None:
            continue  # an input that both passes read; its box is in the forward pass
        classes = ["box", node.kind]
        words = [f"{short(node.label)} {details[key]}"]
        if node.id in results:
            classes.append("result")
            words.append("result")
        if side == "f" and node.id in kept:
            classes.append("keep")
            words.append("kept")
        if side == "b" and roles.get(node.id) == "again":
            classes.append("again")
        boxes.append(
            f'<g class="{" ".join(classes)}" role="option" aria-selected="false" tabindex="-1" '
            f'data-stage="{escape(key)}" aria-label="{escape(", ".join(words))}">'
            f'<rect x="{box.x - box.width / 2:.1f}" y="{box.y - HEIGHT / 2:.1f}" width="{box.width:.1f}" '
            f'height="{HEIGHT:.0f}" rx="6"/>'
            f'<text class="name" x="{box.x:.1f}" y="{box.y - 3:.1f}">{escape(short(node.label))}</text> '
            f'<text class="what" x="{box.x:.1f}" y="{box.y + 12:.1f}">{escape(details[key])}</text></g>'
        )
    return f'<g role="listbox" aria-label="{title}">{"".join(boxes)}</g>'


def _in_order(one: OnePass) -> list[GraphNode]:
    """Inputs first, then stages in the order in which they are computed."""
    by_id = {node.id: node for node in one.graph.nodes}
    stages = [stage for part in one.parts for stage in part]
    return [n for n in one.graph.nodes if n.id not in stages] + [by_id[stage] for stage in stages]


__all__ = ["drawn_picture", "short", "svg"]
