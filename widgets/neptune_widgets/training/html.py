"""The derivation of a backward pass as one fragment of HTML, complete without script.

A script (`src/training.ts`) shows the text of one stage at a time beside the picture; without it, all are listed.
"""

from __future__ import annotations

from html import escape

from neptune_lab.torch_explain.explanation import byte_text
from neptune_lab.trace import OnePass, OriginRecord, RuleRecord, TrainingRecord, ValueRecord
from neptune_widgets.training.style import STYLE
from neptune_widgets.training.svg import SMALLEST, svg

SIDES = ("forward", "backward")

_ROLES = {
    "again": "a value of the forward pass, computed again",
    "cotangent": "the cotangent of {of}",
    "part": "a part of the cotangent of {of}",
    "rounded": "the cotangent of {of}, rounded for a matrix product",
    "count": "what the derivative of {of} needs to count",
}


def html(record: TrainingRecord, *, live: bool = False, places: bool = False, alone: bool = False) -> str:
    """The whole derivation.

    Args:
        record: of both passes.
        live: whether Python derives again what is kept.
        places: whether there are places for the explorers of the passes, which the script of a saved page fills.
        alone: whether no script runs, as in a notebook that is opened again: there is nothing to press, and the
            functions of rules are left out.

    Returns:
        One element.
    """
    title = escape(record.title)
    return "".join(
        [
            f'<div class="nt" role="region" aria-label="both passes of {title}"><style>{STYLE}</style>',
            f"<h3>{title}, forward and backward</h3><p>{escape(summary(record))}</p>",
            _main(record, "" if alone else _PANEL),
            _values(record, live),
            "" if alone else _opening(places),
            _stages(record, not alone),
            "</div>",
        ]
    )


def _main(record: TrainingRecord, panel: str) -> str:
    """The picture and the panel: side by side if the picture can then be read, else the panel above."""
    drawn, width = svg(record)
    size = f"flex-basis:{width * SMALLEST:.0f}px;max-width:{max(width, 460)}px"
    return f'<div class="main"><div class="picture" style="{size}">{drawn}{_LEGEND}</div>{panel}</div>'


_PANEL = (
    '<div class="panel"><div class="shown" role="status" aria-live="polite"><p>Choose a stage in the picture: its '
    "term, its rule and what belongs to it are shown here.</p></div></div>"
)
_LEGEND = (
    '<p class="legend"><span class="k keep">thick border: kept for the backward pass</span>'
    '<span class="k again">dashed border: computed again</span><span class="k line">thick line: read from memory</span>'
    "<span>underlined: a result</span><span>after ·: inputs that are read again</span></p>"
)


def summary(record: TrainingRecord) -> str:
    """What is kept, in a sentence."""
    gradients = ", ".join(record.wrt)
    kept = record.kept
    if not kept:
        return f"Gradients of {gradients}. Nothing is kept: the backward pass reads the inputs only."
    further = sum(value.bytes for value in kept if not value.result)
    names = ", ".join(f"{v.name} ({byte_text(v.bytes)}{', a result anyway' if v.result else ''})" for v in kept)
    return f"Gradients of {gradients}. Kept: {names}. Memory beside inputs and results: {byte_text(further)}."


def text(record: TrainingRecord) -> str:
    """The same in a few lines."""
    parts = [f"  part {n}: {', '.join(part)}" for n, part in enumerate(record.backward.parts, 1)]
    return "\n".join([f"{record.title}, forward and backward", f"  {summary(record)}", *parts])


def count_text(count: int) -> str:
    """A number of operations with three digits.

    >>> count_text(12), count_text(34867200), count_text(2 * 10**12)
    ('12', '34.9 million', '2000 billion')
    """
    for size, word in ((10**9, " billion"), (10**6, " million"), (10**3, " thousand")):
        if count >= size:
            value = count / size
            return f"{value:.0f}{word}" if value >= 1000 else f"{value:.3g}{word}"
    return str(count)


# A narrow page shows a row of the table as a block of lines, which then say their column; the roles keep it
# a table for screen readers.
_NUMBERS = ("in memory", "to compute again")
_COLUMNS = ("kept", "value", "shape", *_NUMBERS, "why")


def _values(record: TrainingRecord, live: bool) -> str:
    """The table of what is kept and what could be."""
    how = (
        "Tick what the forward pass keeps: the backward pass is derived again."
        if live
        else "To choose what is kept, open this in a notebook, or pass <code>keep=</code> to <code>training</code>."
    )
    rows = "".join(_value_row(value, live) for value in record.values)
    head = "".join(f'<th role="columnheader"{" class=n" if name in _NUMBERS else ""}>{name}</th>' for name in _COLUMNS)
    reset = ' <button type="button" data-keep-default>Choose by rule</button>' if live else ""
    return (
        f'<section class="values"><h4 id="kept">What is kept</h4><p>{how}{reset}</p><p class="error" role="alert"></p>'
        '<div class="scroll" tabindex="0" role="group" aria-label="table of what is kept">'
        f'<table role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{rows}</tbody></table></div></section>'
    )


def _value_row(value: ValueRecord, live: bool) -> str:
    name = escape(value.name)
    box = (
        f'<input type="checkbox" data-keep="{name}" aria-label="keep {name}"{" checked" if value.kept else ""}>'
        if live
        else ("✓ kept" if value.kept else "")
    )
    memory = f"{byte_text(value.bytes)}{'<br><small>a result anyway</small>' if value.result else ''}"
    shape = f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    cost = f"{count_text(value.operations)} operations"
    stages = f"{len(value.again)} {'stage' if len(value.again) == 1 else 'stages'}"
    return (
        f'<tr role="row"{" class=kept" if value.kept else ""}><td role="cell">{box}</td>'
        f'<td role="cell">{_link(f"f:{value.forward}", value.name)}</td><td role="cell">{escape(shape)}</td>'
        f'<td role="cell" class="n" data-of="{_NUMBERS[0]}">{memory}</td>'
        f'<td role="cell" class="n" data-of="{_NUMBERS[1]}">{cost}<br><small>{stages}</small></td>'
        f'<td role="cell">{escape(value.why)}{_unread(value)}</td></tr>'
    )


def _unread(value: ValueRecord) -> str:
    return "; nothing reads it" if value.kept and not value.readers else ""


def _opening(places: bool) -> str:
    """Buttons that open each pass in the explorer."""
    buttons = "".join(
        f'<p><button type="button" data-region="{side}">Open the {side} pass in the explorer</button></p>'
        for side in SIDES
    )
    if places:
        buttons += "".join(f'<div class="explorer" data-region="{side}"></div>' for side in SIDES)
    return f'<section class="opening">{buttons}</section>'


# -- the text of a stage -------------------------------------------------------------------------------------


def _stages(record: TrainingRecord, sources: bool) -> str:
    rules = {rule.name: _rule(rule, sources) for rule in record.rules}
    origins = {origin.stage: origin for origin in record.origins}
    lists = []
    for side, one in zip(SIDES, (record.forward, record.backward), strict=True):
        letter = side[0]
        items = []
        for node in one.graph.nodes:
            if node.kind == "input":
                body = _input(record, letter, node.id)
            elif letter == "f":
                body = _forward(record, node.id)
            else:
                body = _backward(record, origins.get(node.id), node.id, rules)
            key = escape(f"{letter}:{node.id}")
            items.append(
                f'<details data-text="{key}"><summary>{escape(node.id)}'
                f" <small>{escape(node.detail)}</small></summary><div>{_term(one, node.id)}{body}</div></details>"
            )
        lists.append(f'<section class="stages"><h4>Stages of the {side} pass</h4>{"".join(items)}</section>')
    return "".join(lists)


def _term(one: OnePass, stage: str) -> str:
    lines = [line.text for line in one.operator.definition if line.node == f"def:{stage}"]
    return f"<pre>{escape(chr(10).join(lines))}</pre>" if lines else ""


def _input(record: TrainingRecord, side: str, name: str) -> str:
    """What an input is; of the backward pass also what is kept and what is given."""
    one = record.forward if side == "f" else record.backward
    tensor = next((t for t in one.operator.inputs if t.name == name), None)
    shape = "" if tensor is None else f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
    readers = _links("b", [e.target for e in record.backward.graph.edges if e.source == name])
    if side == "f":
        also = f"<p>Read again by {readers}.</p>" if readers else "<p>The backward pass does not read it.</p>"
        gradient = f"<p>Its gradient is {_link(f'b:d_{name}', f'd_{name}')}.</p>" if name in record.wrt else ""
        return f"<p>An input, <code>{escape(shape)}</code>.</p>{also}{gradient}"
    kept = next((value for value in record.kept if value.name == name), None)
    if kept is not None:
        return f"<p>Kept by the forward pass: {_link(f'f:{kept.forward}', name)}. Read by {readers}.</p>"
    if any(t.name == name for t in record.forward.operator.inputs):
        return f"<p>An input of both passes: {_link(f'f:{name}', name)}. Read by {readers}.</p>"
    return f"<p>Given: the cotangent of a result, <code>{escape(shape)}</code>. Read by {readers}.</p>"


def _forward(record: TrainingRecord, stage: str) -> str:
    parts = []
    for value in record.values:
        if value.forward != stage:
            continue
        cost = f"{byte_text(value.bytes)} in memory, {count_text(value.operations)} operations to compute again"
        if value.kept:
            readers = f"Read by {_links('b', value.readers)}." if value.readers else "Nothing reads it."
            parts.append(f"<p><b>Kept</b> as <code>{escape(value.name)}</code>: {cost}. {readers}</p>")
        else:
            name = "" if value.name == stage else f" as <code>{escape(value.name)}</code>"
            parts.append(f"<p><b>Not kept</b>{name}: {cost}.</p>")
        parts.append(f'<p class="why">{escape(value.why)}</p>')
    belonging = [o.stage for o in record.origins if o.forward == stage and o.role != "again"]
    again = [o.stage for o in record.origins if o.forward == stage and o.role == "again"]
    used = [o.stage for o in record.origins if any(use.stage == stage for use in o.uses)]
    for words, names in (
        ("Its cotangent:", belonging),
        ("Computed again:", again),
        ("Its derivative gives a part of:", used),
    ):
        if names:
            parts.append(f"<p>{words} {_links('b', names)}</p>")
    return "".join(parts)


def _backward(record: TrainingRecord, origin: OriginRecord | None, stage: str, rules: dict[str, str]) -> str:
    if origin is None:
        return ""
    of = _link(f"f:{origin.forward}", origin.of) if origin.forward else f"<code>{escape(origin.of)}</code>"
    like = (
        f" (of the forward pass: {_link(f'f:{origin.forward}', origin.forward)})"
        if origin.forward not in ("", origin.of)
        else ""
    )
    role = escape(_ROLES[origin.role]).replace("{of}", of)
    count = len(record.backward.parts)
    part = next(n for n, stages in enumerate(record.backward.parts, 1) if stage in stages)
    where = f", in part {part} of {count}" if count > 1 else ""
    parts = [f"<p>It is {role}{like}{where}.</p>"]
    if origin.role == "again" and not like:
        parts[0] = f"<p>It is {of} of the forward pass, computed again{where}.</p>"
    if origin.copy_of:
        parts.append(f"<p>The same as {_link(f'b:{origin.copy_of}', origin.copy_of)}, which another part computes.</p>")
    names: dict[tuple[str, str], list[str]] = {}
    for use in origin.uses:
        names.setdefault((use.reader, use.stage), []).extend(use.rules)
    for (reader, at), used in names.items():
        link = _link(f"f:{at}", at) if at else f"<code>{escape(reader)}</code>"
        written = "" if at in ("", reader) else f" (written as <code>{escape(reader)}</code>)"
        found = "".join(rules[name] for name in dict.fromkeys(used))
        parts.append(f"<p>Derivative of stage {link}{written}, by the rules:</p>{found}")
    return "".join(parts)


def _rule(rule: RuleRecord, sources: bool) -> str:
    says = "".join(f"<li><code>{escape(x)}</code></li>" if "∂" in x else f"<li>{escape(x)}</li>" for x in rule.says)
    place = f"source: <code>{escape(rule.place)}</code>"
    source = f"<p>{place}</p>"
    if sources:
        source = f"<details><summary>{place}</summary><pre>{escape(rule.source)}</pre></details>"
    return f'<div class="rule"><b>{escape(rule.name)}</b><ul>{says}</ul>{source}</div>'


def _link(target: str, words: str) -> str:
    """A name that leads to a stage; without script it is only a name."""
    return f'<button type="button" class="to" data-to-stage="{escape(target)}">{escape(words)}</button>'


def _links(side: str, names) -> str:
    return ", ".join(_link(f"{side}:{name}", name) for name in names)


__all__ = ["SIDES", "count_text", "html", "summary", "text"]
