"""The explorer without script: one fragment of HTML for GitHub, nbviewer, and notebooks that were opened again.

Nothing in it needs its style: headings, lists, folds and preformatted text read well where styles are stripped.
"""

from __future__ import annotations

from html import escape

from neptune_lab.trace import Derivation, Line, Phase, StepRecord, Trace

_STYLE = (
    ".neptune-static{font:13px/1.5 system-ui,sans-serif;color:inherit;max-width:1100px;color-scheme:light dark}"
    ".neptune-static h3{font-size:15px;font-weight:600;margin:4px 0}"
    ".neptune-static p{margin:2px 0 8px;opacity:.8}"
    ".neptune-static details{border-top:1px solid rgba(128,128,128,.3);padding:5px 0}"
    ".neptune-static summary{cursor:pointer;font-weight:600}"
    ".neptune-static ol{margin:6px 0;padding-left:28px}.neptune-static li{margin:1px 0}"
    ".neptune-static pre{font:12px/1.55 ui-monospace,monospace;overflow-x:auto;margin:6px 0;padding:8px 12px;"
    "background:rgba(128,128,128,.09);border-radius:6px;color:inherit;white-space:pre}"
    ".neptune-static code{font:12px ui-monospace,monospace;background:none;color:inherit}"
)


def html(trace: Trace, note: str = "") -> str:
    """The whole compilation as HTML without script.

    Args:
        trace: what is shown.
        note: a line under the title, such as the result of the check.
    """
    operator = trace.operator
    tensors = ", ".join(f"{t.name} {t.dtype}[{' × '.join(map(str, t.shape))}]" for t in operator.inputs)
    outputs = ", ".join(f"{t.name} {t.dtype}[{' × '.join(map(str, t.shape))}]" for t in operator.outputs)
    parts = [
        f'<div class="neptune-static"><style>{_STYLE}</style>',
        f"<h3>{escape(operator.title)}</h3><p>{escape(tensors)} → {escape(outputs)}{_note(note)}</p>",
        *_python(trace),
        _fold("Definition", _code(operator.definition)),
        _fold(f"Schedule: {_counted(trace)}", _steps(trace), unfolded=True),
        *_derivations(trace),
        *_proofs(trace),
        _fold("Loop program", _code(trace.program)),
    ]
    if trace.kernel is not None:
        parts.append(_fold("HTile", _code(trace.kernel.emitted)))
        parts.append(_fold(_language(trace), f"<pre>{escape(trace.kernel.source)}</pre>"))
    versions = ", ".join(f"{name} {number}" for name, number in trace.versions.items())
    return "".join([*parts, f"<p><small>neptune_lab; {escape(versions)}</small></p></div>"])


def text(trace: Trace) -> str:
    """The same in a few lines."""
    steps = "\n".join(f"  {s.index:>2}  {_remark(s) or s.summary}" for s in trace.steps)
    kernel = "" if trace.kernel is None else f"\n{len(trace.kernel.source.splitlines())} lines of {_language(trace)}"
    return f"Explorer: {trace.operator.title}\n{steps}{kernel}"


def _language(trace: Trace) -> str:
    """What the kernel is written in."""
    source = "" if trace.kernel is None else trace.kernel.source
    gluon = "@gluon.jit" in source
    return "Gluon and Triton" if gluon and "@triton.jit" in source else "Gluon" if gluon else "Triton"


def _python(trace: Trace) -> list[str]:
    """The user's functions that the definition was traced from, with the line numbers of their files."""
    texts = ((f.title, "\n".join(f"{x.number:4}  {x.text}".rstrip() for x in f.lines)) for f in trace.operator.python)
    return [_fold(title, f"<pre>{escape(text)}</pre>") for title, text in texts]


def _note(note: str) -> str:
    return f"<br>{escape(note)}" if note else ""


def _fold(title: str, body: str, *, unfolded: bool = False) -> str:
    return f"<details{' open' if unfolded else ''}><summary>{escape(title)}</summary>{body}</details>"


def _code(lines: tuple[Line, ...]) -> str:
    return f"<pre>{escape(chr(10).join(line.text for line in lines))}</pre>"


def _steps(trace: Trace) -> str:
    items = []
    for step in trace.steps[1:]:
        phases = ""
        if len(step.phases) > 1:
            notes = "".join(f"<li>{escape(p.title)}{_wrongness(p)}: {escape(p.note)}</li>" for p in step.phases)
            phases = f'<ol type="a">{notes}</ol>'
        error = f"<br>refused: {escape(step.error)}" if step.error else ""
        remark = _remark(step)
        shown = f"<em>{escape(remark)}</em>" if remark else f"<code>{escape(step.summary)}</code>"
        items.append(f"<li>{shown}{error}{phases}</li>")
    return f"<ol>{''.join(items)}</ol>"


def _wrongness(phase: Phase) -> str:
    """What is wrong with a phase's program, as the explorer says it: with a repair found, it is still the naive one."""
    if not phase.wrong:
        return ""
    proved = phase.derivation is not None and phase.derivation.accepted
    return " (the program is still the naive one, which is wrong)" if proved else " (wrong on purpose)"


def _counted(trace: Trace) -> str:
    """How many steps and remarks the numbers in the list and in the rail count."""
    remarks = sum(bool(_remark(step)) for step in trace.steps[1:])
    steps = len(trace.steps) - 1 - remarks
    also = f" and {remarks} {'remark' if remarks == 1 else 'remarks'}" if remarks else ""
    return f"{steps} {'step' if steps == 1 else 'steps'}{also}"


def _remark(step: StepRecord) -> str:
    """What a remark says; "" for the steps that do something."""
    return str(step.arguments["text"]) if step.primitive == "remark" and not step.error else ""


def _derivations(trace: Trace) -> list[str]:
    found = []
    for step in trace.steps:
        for phase in step.phases:
            if phase.derivation is not None:
                found.append(_fold(f"Derivation: {step.summary}", _derivation(phase.derivation)))
    return found


def _proofs(trace: Trace) -> list[str]:
    """The notes of the HTile passes that gave some."""
    passes = () if trace.kernel is None else trace.kernel.passes
    return [
        _fold(f"Proof: {done.name.replace('_', ' ')}", f"<pre>{escape(chr(10).join(done.notes))}</pre>")
        for done in passes
        if done.notes
    ]


def _derivation(derivation: Derivation) -> str:
    """The algebra as text; a sign tells a step that held from one that was refused."""
    lines = [derivation.summary]
    for step in derivation.steps:
        first, *rest = step.text.splitlines() or [""]
        named = first if first.startswith(step.title) else f"{step.title}: {first}"  # not so in a refusal
        lines.append(f"{'✓' if step.ok else '✗'} {named}")
        lines += [f"    {line}" for line in rest]
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
