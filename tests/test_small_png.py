"""Drawings with a palette show the same: every filter is undone, and colours stay as they were."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import small_png

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 4)).astype(np.uint8)


def filtered(pixels: np.ndarray) -> bytes:
    """Row n with filter n: none, sub, up, average, Paeth."""
    height, width, _ = pixels.shape
    rows = np.zeros((height + 1, 4 * (width + 1)), int)
    rows[1:, 4:] = pixels.reshape(height, -1)
    data = b""
    for n in range(height):
        line, left, up, corner = rows[n + 1, 4:], rows[n + 1, :-4], rows[n, 4:], rows[n, :-4]
        a, b, c = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
        paeth = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
        guess = (0 * left, left, up, (left + up) // 2, paeth)[n]
        data += bytes([n]) + ((line - guess) % 256).astype(np.uint8).tobytes()
    return data


def test_each_filter_is_undone():
    np.testing.assert_array_equal(small_png._pixels(filtered(PIXELS), 7, 5), PIXELS)


def test_a_palette_keeps_colours_and_opacity():
    drawn = np.zeros((40, 40, 4), np.uint8)
    drawn[10:20, :] = (30, 125, 190, 255)
    drawn[20:22, :] = (30, 120, 190, 128)
    raw = b"".join(b"\0" + row.tobytes() for row in drawn)
    header = struct.pack(">IIBBBBB", 40, 40, 8, 6, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(raw, 0)), (b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(small_png._part(name, data) for name, data in parts)
    made = small_png.small(png)
    assert len(made) < len(png) / 20
    found = small_png._parts(made)
    palette = np.frombuffer(found[b"PLTE"], np.uint8).reshape(-1, 3)
    opacity = np.frombuffer(found[b"tRNS"], np.uint8)
    places = np.frombuffer(zlib.decompress(found[b"IDAT"]), np.uint8).reshape(40, 41)[:, 1:]
    assert opacity[places[0, 0]] == 0
    assert (*palette[places[15, 3]].tolist(), int(opacity[places[15, 3]])) == (30, 125, 190, 255)
    assert int(opacity[places[21, 3]]) == 136  # one of sixteen steps
    assert small_png.small(made) == made, "a file of another kind stays as it is"
