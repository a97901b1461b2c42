"""PNG files of drawings with few colours, made small: a palette of at most 256 colours with their opacity."""

from __future__ import annotations

import struct
import zlib

import numpy as np

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGBA, _PALETTE = 6, 3


def small(png: bytes) -> bytes:
    """The same picture with a palette, if it has 8 bits of red, green, blue and opacity and becomes smaller so."""
    parts = _parts(png)
    width, height, depth, kind, *_, interlaced = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    if (depth, kind, interlaced) != (8, _RGBA, 0):
        return png
    pixels = _pixels(zlib.decompress(parts[b"IDAT"]), width, height)
    palette, places = _reduced(pixels)
    rows = np.zeros((height, width + 1), np.uint8)  # before each row: no filter
    rows[:, 1:] = places
    made = _SIGNATURE + b"".join(
        _part(name, data)
        for name, data in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _PALETTE, 0, 0, 0)),
            (b"PLTE", palette[:, :3].tobytes()),
            (b"tRNS", palette[:, 3].tobytes()),
            (b"IDAT", zlib.compress(rows.tobytes(), 9)),
            (b"IEND", b""),
        )
    )
    return min(made, png, key=len)


def _parts(png: bytes) -> dict[bytes, bytes]:
    """The chunks of a file by name; those of one name are joined."""
    found: dict[bytes, bytes] = {}
    at = len(_SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        name = png[at + 4 : at + 8]
        found[name] = found.get(name, b"") + png[at + 8 : at + 8 + size]
        at += 12 + size
    return found


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _pixels(data: bytes, width: int, height: int) -> np.ndarray:
    """uint8[height, width, 4]: the rows without their filters (PNG specification, section 9)."""
    rows = np.frombuffer(data, np.uint8).reshape(height, 1 + 4 * width)
    found = np.zeros((height, 4 * width), np.uint8)
    above = np.zeros(4 * width, np.uint8)
    for n, row in enumerate(rows):
        kind, line = row[0], row[1:]
        if kind == 1:
            line = np.cumsum(line.reshape(width, 4), axis=0, dtype=np.uint8).reshape(-1)
        elif kind == 2:
            line = line + above
        elif kind > 2:
            line = _by_left(line.tolist(), above.tolist(), paeth=kind == 4)
        found[n] = above = line
    return found.reshape(height, width, 4)


def _by_left(line: list[int], above: list[int], *, paeth: bool) -> np.ndarray:
    """A row whose filter predicts each byte from the ones left of it and above."""
    out = [0, 0, 0, 0, *line]
    up = [0, 0, 0, 0, *above]
    for n in range(4, len(out)):
        left, over = out[n - 4], up[n]
        if paeth:
            corner = up[n - 4]
            a, b, c = abs(over - corner), abs(left - corner), abs(left + over - 2 * corner)
            guess = left if a <= b and a <= c else over if b <= c else corner
        else:
            guess = (left + over) // 2
        out[n] = (out[n] + guess) & 255
    return np.array(out[4:], np.uint8)


def _reduced(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Colours, uint8[n, 4] with n up to 256, and for each pixel which of them it has."""
    rounded = np.minimum(np.round(pixels / 17) * 17, 255).astype(np.uint8)
    solid = pixels[..., 3] == 255
    rounded[solid] = np.minimum(np.round(pixels[solid] / 5) * 5, 255)  # what is drawn whole keeps its colour
    rounded[rounded[..., 3] == 0] = 0
    flat = rounded.reshape(-1, 4)
    colours, places, counts = np.unique(flat, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    kept = colours[order[:256]]
    to = np.empty(len(colours), np.uint8)
    to[order[:256]] = np.arange(len(kept))
    for n in order[256:]:  # the nearest of those that are kept
        to[n] = np.argmin(((kept.astype(int) - colours[n].astype(int)) ** 2).sum(axis=1))
    return kept, to[places.reshape(-1)].reshape(pixels.shape[:2])
