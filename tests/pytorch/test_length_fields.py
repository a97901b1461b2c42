"""Problems with fields that kernels for all lengths do not know: they get kernels of their own."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import pytest

from neptune_lab.pytorch import lengths
from neptune_lab.pytorch.arguments import Problem
from neptune_lab.pytorch.extras import Extras
from neptune_lab.pytorch.mods import read

HEADS, KV_HEADS, WIDTH = 4, 2, 32


@dataclass(frozen=True)
class Later(Problem):
    """A problem of a later version."""

    softcap: float = 0.0


class LaterExtras(NamedTuple):
    """What few calls ask for, in a later version."""

    lse: bool = False
    max_scores: bool = False
    options: tuple = ()
    dynamic: bool | None = None
    formats: tuple = ()
    dropout: float = 0.0


SIZES = (1, HEADS, 40, WIDTH), (1, KV_HEADS, 40, WIDTH), (1, KV_HEADS, 40, WIDTH)
UNKNOWN = {
    "8 bits": Problem(*SIZES, "float8_e4m3fn", None, Extras(dynamic=True)),
    "a transposed v": Problem(*SIZES, "float16", None, Extras(dynamic=True, formats=(("v_transposed", True),))),
    "a new format": Problem(*SIZES, "float16", None, Extras(dynamic=True, formats=(("k_blocks", 32),))),
    "options": Problem(*SIZES, "float16", None, Extras(dynamic=True, options=(("loads", "descriptors"),))),
    "pages": Problem(*SIZES, "float16", None, Extras(dynamic=True), pages=(5, 8)),
    "a new field": Later(*SIZES, "float16", None, Extras(dynamic=True), softcap=2.0),
    "a new extra": Problem(*SIZES, "float16", None, LaterExtras(dynamic=True, dropout=0.5)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_it_does_not_know_gets_kernels_of_its_own(name: str, monkeypatch):
    monkeypatch.setattr(lengths, "_made", lambda *_: pytest.fail("it makes a kernel that leaves something out"))
    assert lengths.for_lengths(UNKNOWN[name], None, None, read(None, None)) is None


def test_every_known_field_is_one():
    known = {f.name for f in fields(Problem)}, set(Extras._fields)
    assert (lengths._OF_PROBLEM - known[0], lengths._OF_EXTRAS - known[1]) == (set(), set())
    usual = Problem(*SIZES, "float16", None, Extras(dynamic=True))
    assert lengths._is_known(usual)
    assert lengths._is_known(Later(*SIZES, "float16", None, Extras(dynamic=True)))
