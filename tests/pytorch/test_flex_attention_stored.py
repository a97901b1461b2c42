"""`nl.attention` and what is kept on disk: compiled kernels for later processes, and records of tuning."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from attention_reference import causal, reference, tensors

import neptune_lab as nl
from neptune_lab.operators import attention as operators
from neptune_lab.pytorch import flex_attention, stored
from neptune_lab.pytorch.flex_attention import attention as attend
from neptune_lab.records import Record, Store, workload_key
from neptune_lab.runtime import device_facts

FIRST = """
import json, os, sys, torch
from neptune_lab.pytorch import attention, flex_attention, stored
stored._compiler = lambda: "one state of the compiler"
x = torch.linspace(-1, 1, 512).reshape(1, 2, 16, 16)
slopes = torch.tensor([0.5, 0.25])
def alibi(score, b, h, q, kv):
    return score + slopes[h] * (kv - q)
found = [attention(x, x, x, score_mod=alibi).double().sum().item()]
"""

LATER = """
def renamed(score, b, h, q, kv):
    # Neither comments, nor the name, nor the place count.
    return score + slopes[h] * (kv - q)
def other(score, b, h, q, kv):
    return score + slopes[h] * (kv - q + 1)
def attempt(mod, *tensors):
    flex_attention.forget()
    try:
        found.append(attention(*tensors, score_mod=mod).double().sum().item())
    except ImportError as error:
        found.append(str(error))
attempt(renamed, x, x, x)
attempt(other, x, x, x)
attempt(alibi, x.half(), x.half(), x.half())
stored._compiler = lambda: "another state"
attempt(alibi, x, x, x)
stored._compiler = lambda: "one state of the compiler"
os.environ["NEPTUNE_LAB_CACHE"] += "/other"
attempt(alibi, x, x, x)
"""


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about the CPU")
def test_a_later_process_needs_no_compiler(compilations, monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(stored, "_compiler", stored._compiler)  # which the script replaces
    here: dict[str, Any] = {}
    exec(compile(FIRST, "<string>", "exec", dont_inherit=True), here)
    assert len(compilations) == 1
    script = "import sys; sys.modules['tvm'] = None" + FIRST + LATER + "print(json.dumps(found))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    same, renamed, *others = json.loads(done.stdout)
    assert [same] == [renamed] == here["found"]
    # Another number, dtype, state of the compiler or directory: nothing is kept for it, and TVM is not there.
    assert ["tvm" in found for found in others] == [True] * 4


def test_entries_that_cannot_be_read_are_compiled_again(compilations, cache):
    q, k, v = tensors((1, 1, 8, 16))
    mask = lambda b, h, q, kv: (q >= kv) | (kv == 7)  # noqa: E731
    before = set(cache.rglob("*.json"))
    attend(q, k, v, mask_mod=mask)
    (*_, written) = sorted(set(cache.rglob("*.json")) - before)
    entry = stored.find(written.stem)
    assert entry is not None
    assert stored.StoredKernel.from_json(json.loads(json.dumps(entry.to_json(written.stem))), written.stem) == entry
    older = written.read_text().replace(f'"schema": {stored.SCHEMA}', f'"schema": {stored.SCHEMA - 1}')
    assert older != written.read_text()
    for text in ("", "[]", "{}", older):
        written.write_text(text)
        assert stored.find(written.stem) is None
    for path in set(cache.rglob("*.json")) - before:
        path.write_text("{")
    flex_attention.forget()
    attend(q, k, v, mask_mod=mask)
    assert len(compilations) == 2


@pytest.mark.nightly
def test_new_records_of_tuning_are_taken(compilations, monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    q, k, v = tensors()
    op = operators.general(1, 2, 32, 32, 16, None, causal, "float32")  # as people tune it, not as it is compiled here
    compiled_as = operators.general(1, 2, 32, 32, 16, None, causal, "float32", empty_rows="zero")
    facts = device_facts()

    def kernel_text():
        flex_attention.forget()  # as in another process
        out = attend(q, k, v, mask_mod=causal)
        assert (out - reference(q, k, v, None, causal)).abs().max() < 1e-5
        (found,) = flex_attention._kernels.values()
        return found.kernel.spec.text

    def put(us, **options):
        candidate = {"template": "rolling_update", "options": options}
        measured = Record(
            workload_key(op),
            op.name,
            op.params,
            facts.name,
            "",
            facts.torch,
            facts.triton,
            str(us),
            candidate,
            False,
            us,
        )
        Store().put(measured)

    before = kernel_text()
    assert kernel_text() == before
    assert len(compilations) == 1  # the second was found on disk
    put(2.0, block_q=8, block_kv=8)
    tuned = kernel_text()
    assert tuned == nl.compile(compiled_as, "rolling_update", block_q=8, block_kv=8).source != before
    assert kernel_text() == tuned
    assert len(compilations) == 2
    put(1.0, no_such_option=8)
    with pytest.warns(UserWarning, match=r"the tuned kernel cannot be compiled, .*no_such_option"):
        assert kernel_text() == before
