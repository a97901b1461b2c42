"""The kinds of statements of tile programs, which the record keeps of their lines."""

from __future__ import annotations

import pytest

import neptune_lab as nl
from neptune_lab.htile import from_text
from neptune_lab.htile.words import kinds
from neptune_lab.operators import attention, softmax

PROGRAM = """\
program f(x, t) -> y
  input   x  float32[4, i: 64, j: 64]
  input   t  int32[j: 64]
  output  y  float32[4, i: 64]
  chip    s  float32[i: 64]
  chip    m  float32[i: 64]

kernel f  grid (b: 4)
    s[0:64] = 0.0
    m[0:64] = s[0:64]
    for a in range(3):
        s[0:64] = s[0:64] + reduce(sum, x[b, 0:64, 0:64], dim=1)
    y[b, 0:64] = where(iota[0:64] < 5, s[0:64], 0.0) + where(m[0:64] == -inf, 0.0, m[0:64])
"""


def test_what_a_store_does_is_told_by_its_nodes():
    found = kinds(from_text(PROGRAM))
    assert set(found.values()) == {
        "kernel",
        "for",
        "tile fills",
        "tile copies",
        "tile sum loads",
        "tile mask guard stores",
    }


@pytest.mark.nightly
def test_the_record_of_attention_tells_masks_products_and_parts():
    trace = nl.compile(attention.causal(1, 2, 256, head_dim=64), validate="none").trace
    assert trace.kernel is not None
    by_node = {line.node: line.kind for line in trace.kernel.emitted}
    assert by_node["tile:acc/interior"] == "tile dot accumulates loads"
    assert by_node["tile:score/right"] == "tile mask"
    assert by_node["tile:score/interior"] == "tile copies"
    assert by_node["for:j0@qk/interior"] == "for interior"
    assert by_node["tile:out"] == "tile stores"
    program = {line.node: line.kind for line in trace.program}
    assert (program["store:score"], program["store:acc"], program["store:qk"]) == ("store mask", "store guard", "store")
    assert [line.kind for line in trace.operator.definition if line.origin == "score"] == ["definition mask"]


def test_a_line_begins_with_the_word_that_it_always_had():
    trace = nl.compile(softmax.figure1(4, 200), "split_k_update", validate="none").trace
    assert trace.kernel is not None
    for line in trace.kernel.emitted:
        assert line.kind.split(" ")[0] == line.node.partition(":")[0]
