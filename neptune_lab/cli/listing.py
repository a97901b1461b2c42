"""What there is to name: operators, presets, templates and primitives, as data and as text."""

from __future__ import annotations

import inspect
from collections.abc import Container
from typing import Any


def listing(options: Container[str]) -> dict[str, Any]:
    """Everything that a command line can name, ready for JSON.

    Args:
        options: names of the parameters of operators that are options.

    Returns:
        operators, presets, templates and primitives; each is a list of entries with a name.
    """
    from neptune_lab.loop_schedule import PRIMITIVES
    from neptune_lab.loop_schedule.templates import TEMPLATES
    from neptune_lab.operators import OPERATORS, PRESETS, gemm_chain

    def options_of(make: Any) -> list[str]:
        return [f"--{p.replace('_', '-')}" for p in inspect.signature(make).parameters if p in options]

    presets: list[dict[str, Any]] = [
        {
            "name": preset.name,
            "operator": f"attention.{preset.operator.removesuffix('_')}",
            "sizes": dict(preset.sizes),
            "source": f"{preset.model}; {preset.paper}",
        }
        for preset in PRESETS.values()
    ]
    presets += [
        {"name": name, "operator": "gemm_chain", "sizes": dict(sizes), "source": "MCFuser, Table II"}
        for name, sizes in gemm_chain.PRESETS.items()
    ]
    return {
        "operators": [{"name": name, "options": options_of(make)} for name, make in OPERATORS.items()],
        "presets": presets,
        "templates": [
            {"name": name, "summary": (inspect.getdoc(template) or "").splitlines()[0]}
            for name, template in TEMPLATES.items()
        ],
        "primitives": [
            {"name": p.name, "summary": p.summary, "of": "neptune_lab" if p.ours else "TVM"}
            for p in PRIMITIVES.values()
        ],
    }


def as_text(found: dict[str, Any]) -> str:
    """A listing as lines of text."""
    width = max(len(o["name"]) for o in found["operators"])
    lines = ["operators", *(f"  {o['name']:<{width}} {' '.join(o['options'])}" for o in found["operators"])]
    lines += ["", "presets (published sizes, which options can change; presets without a length need --seq)"]
    for preset in found["presets"]:
        sizes = " ".join(f"{n}={v}" for n, v in preset["sizes"].items())
        lines.append(f"  {preset['name']:<12} {preset['operator']:<18} {sizes} ({preset['source']})")
    lines += ["", "templates", *(f"  {t['name']:<20} {t['summary']}" for t in found["templates"])]
    for title, of in (("our primitives", "neptune_lab"), ("TVM's primitives", "TVM")):
        lines += ["", title]
        lines += [f"  {p['name']:<20} {p['summary']}" for p in found["primitives"] if p["of"] == of]
    return "\n".join(lines)


__all__ = ["as_text", "listing"]
