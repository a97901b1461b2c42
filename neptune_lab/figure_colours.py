"""Colours of figures: a figure has no ground of its own, so each has to be read on white pages and on dark ones."""

from __future__ import annotations

import colorsys
import re
from typing import Any

# White, as in GitHub and JupyterLab by day, and JupyterLab's ground by night; GitHub's #0d1117 is as dark.
GROUNDS = ("#ffffff", "#111111")
# Contrasts of the Web Content Accessibility Guidelines 2.2: 3 for what is drawn (1.4.11). For text they ask for 4.5
# (1.4.3), but no colour has more than 4.35 on both grounds.
DRAWN, TEXT = 3.0, 4.3
INK = "#797979"  # of text: the grey with the same contrast on both
STRONG = "#000000"  # of what matters most, on a page whose style draws it white by night
NO_GROUND = "rgba(0,0,0,0)"
FAINT = "rgba(128,128,128,0.28)"

# What plotly takes where a figure says nothing: it would draw dark grey on white.
_AXIS = {"gridcolor": FAINT, "zerolinecolor": FAINT, "linecolor": FAINT}
TEMPLATE: dict[str, Any] = {
    "data": {"heatmap": [{"type": "heatmap", "colorbar": {"outlinewidth": 0}}]},
    "layout": {
        "paper_bgcolor": NO_GROUND,
        "plot_bgcolor": NO_GROUND,
        "font": {"color": INK},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "shapedefaults": {"line": {"color": INK}},
    },
}
_HEX = re.compile(r"#[0-9a-fA-F]{6}$")


def contrast(colour: str, ground: str) -> float:
    """The contrast of two colours, 1 to 21.

    >>> round(contrast("#000000", "#ffffff"), 1), round(contrast(INK, "#ffffff"), 2), round(contrast(INK, "#111111"), 2)
    (21.0, 4.35, 4.34)
    """
    low, high = sorted((_luminance(colour), _luminance(ground)))
    return (high + 0.05) / (low + 0.05)


def toned(colour: str, least: float = DRAWN) -> str:
    """The colour, as light or dark as it must be for this contrast on both grounds; its hue stays.

    >>> toned("#D55E00"), toned("#E69F00"), toned("#000000"), toned("black")
    ('#D55E00', '#c68900', '#606060', 'black')
    """
    if not _HEX.match(colour) or _lowest(colour) >= least:
        return colour
    hue, light, saturation = colorsys.rgb_to_hls(*_parts(colour))
    tones = [_hex(colorsys.hls_to_rgb(hue, n / 255, saturation)) for n in range(256)]
    fitting = [n for n, tone in enumerate(tones) if _lowest(tone) >= least]
    return tones[min(fitting, key=lambda n: abs(n / 255 - light))] if fitting else INK


def on_both(figure: Any, *, text: bool = False) -> Any:
    """A figure's JSON with each colour of lines, marks and text toned; fills and colour scales stay as they are."""
    if isinstance(figure, list):
        return [on_both(part, text=text) for part in figure]
    if not isinstance(figure, dict):
        return figure
    least = TEXT if text else DRAWN
    return {
        name: toned(value, least)
        if name == "color" and isinstance(value, str)
        else on_both(value, text=text or "font" in name)
        for name, value in figure.items()
    }


def _lowest(colour: str) -> float:
    return min(contrast(colour, ground) for ground in GROUNDS)


def _luminance(colour: str) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _parts(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _parts(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    return red, green, blue


def _hex(parts: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


__all__ = [
    "DRAWN",
    "FAINT",
    "GROUNDS",
    "INK",
    "NO_GROUND",
    "STRONG",
    "TEMPLATE",
    "TEXT",
    "contrast",
    "on_both",
    "toned",
]
