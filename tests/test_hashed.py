"""Keys differ if what they are made of does, whatever its `repr` shows."""

from __future__ import annotations

import hashlib
from collections import namedtuple
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from neptune_lab import TileConfig
from neptune_lab.hashed import digest_of, full_text
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile.nodes import Size
from neptune_lab.htile_to_triton.source import Writer
from neptune_lab.loop_ir.nodes import Buffer, Program
from neptune_lab.loop_ir.roles import Role
from neptune_lab.runtime import KernelSpec
from neptune_lab.tensor_spec import TensorSpec

X = TensorSpec("x", (2,), "float32")
LOOPS = Program("f", ("x", "y"), ("y",), (Buffer("x", (2,), "float32"), Buffer("y", (2,), "float32")), ())
TILES = TileProgram("f", (), (), (), ())
SPEC = KernelSpec("f", "f", "one\n", (X,), (X,))
# Two of each that have one repr.
ALIKE = [
    (LOOPS, replace(LOOPS, masked=("x",))),
    (TILES, replace(TILES, sizes=(Size("n", 16),))),
    (SPEC, replace(SPEC, text="two\n")),
]


@dataclass(frozen=True)
class Holder:
    """As a key that holds a program may be."""

    held: object

    def __repr__(self) -> str:
        return "<Holder>"


Pair = namedtuple("Pair", ["name", "held"])


@pytest.mark.parametrize("around", [lambda x: x, lambda x: (x,), lambda x: [{"a": x}], Holder, lambda x: Pair("a", x)])
@pytest.mark.parametrize(("one", "other"), ALIKE, ids=["loops", "tiles", "spec"])
def test_summaries_are_no_keys(one, other, around):
    assert repr(one) == repr(other)
    assert digest_of("k", around(one)) != digest_of("k", around(other))
    assert digest_of("k", around(one)) == digest_of("k", around(replace(one)))


def test_texts_are_source_code_and_tell_equal_numbers_apart():
    names = {"Program": Program, "Buffer": Buffer, "Role": Role, "TileConfig": TileConfig}
    data = [LOOPS, (Role.CACHE,), (), {"config": TileConfig(num_warps=8)}, (1, "a", None, b"c", 0.5)]
    assert eval(full_text(data), names) == data
    assert len({full_text(value) for value in (1, 1.0, True, 0.0, -0.0, "1", (1,), [1])}) == 8


def test_sets_have_one_order():
    assert full_text(frozenset("cab")) == full_text(frozenset("bca")) == "frozenset(['a', 'b', 'c'])"


def test_objects_that_have_no_fields_are_refused():
    with pytest.raises(TypeError, match="Writer is no dataclass"):
        digest_of(("key", Writer()))


@pytest.mark.parametrize("array", [np.arange(3), torch.tensor(1.0), {"bias": torch.zeros(2)}])
def test_arrays_whose_repr_is_shortened_are_refused(array):
    with pytest.raises(TypeError, match="needs its bytes"):
        digest_of("name", (array,))
    assert full_text(np.float32(0.5)) == repr(np.float32(0.5))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("1",), (1,)),
        (("(1, 2)",), ((1, 2),)),
        (("a", "1"), ("a", 1)),
        (("a\0b",), ("a", "b")),
        (("a\0b", "c"), ("a", "b\0c")),
        (("",), ()),
        (("a", ""), ("a",)),
    ],
)
def test_texts_data_and_numbers_of_parts_have_digests_of_their_own(one, other):
    assert digest_of(*one) != digest_of(*other)


def test_files_are_named_by_the_plain_digest_of_their_text():
    assert digest_of("abc") == hashlib.sha256(b"abc").hexdigest()
