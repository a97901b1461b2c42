"""nl.attention's disk cache: a flipped bit gives the same numbers, and the entry is written anew."""

from __future__ import annotations

from random import Random

import torch

import neptune_lab as nl
from neptune_lab.pytorch import flex_attention


def test_a_damaged_entry_is_compiled_again_and_rewritten(monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 16, 16, dtype=torch.float32)

    def call() -> torch.Tensor:
        flex_attention.forget()
        return nl.attention(q, k, v)

    want = call()
    torch.testing.assert_close(want, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    entries = sorted((tmp_path / "attention").glob("*.json"))
    assert entries
    whole = {path: path.read_bytes() for path in entries}
    rng = Random(0)
    for _ in range(2):
        for path, data in whole.items():
            damaged = bytearray(data)
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
        assert torch.equal(call(), want)
        assert {path: path.read_bytes() for path in entries} == whole


def test_bytecode_is_never_taken_from_a_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    nl.compile(nl.operators.softmax.figure1(3, 13)).relative_error()  # sizes that no other test has loaded yet
    assert list(tmp_path.glob("*.py"))
    assert not list(tmp_path.rglob("*.pyc"))
