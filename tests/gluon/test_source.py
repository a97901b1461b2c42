"""The text of emitted Gluon kernels, where its lines come from, and what is refused."""

from __future__ import annotations

import re

import by_name
import pytest
import torch

import neptune_lab as nl
from neptune_lab import htile_to_gluon
from neptune_lab.errors import EmitError, LaunchError, ScheduleError
from neptune_lab.htile_to_gluon import GluonOptions
from neptune_lab.htile_to_triton import EmitOptions
from neptune_lab.operators import attention
from neptune_lab.target import ANY, Target

SMALL = {"heads": 2, "seq": 256, "head_dim": 64}
TILES = {"block_q": 128, "block_kv": 64}


def compiled(operator=None, **options):
    return by_name.compile(
        operator or attention.causal(**SMALL), "rolling_update", **{"code": "gluon", **TILES, **options}
    )


def reason(operator, template="rolling_update", **options) -> str | None:
    """Why the first kernel of an operator is not written in Gluon."""
    program = by_name.compile(operator, template, **{**TILES, **options}).htile
    return htile_to_gluon.why_unsupported(program, program.kernels[0])


def test_what_gluon_has_no_function_for_is_written_by_its_formula():
    """Triton has tl.sigmoid; Gluon's module has no function of that name."""
    op = attention.general(
        batch=1, q_len=256, kv_len=256, heads=2, head_dim=64,
        score_mod=lambda score, b, h, q, kv: score * torch.sigmoid(score),
    )  # fmt: skip
    source = compiled(op).source
    assert "gl.sigmoid" not in source
    assert "1.0 / (1.0 + gl.exp(-" in source


def test_golden(golden):
    golden("attention_causal.gluon.py", compiled().source)


def test_every_line_of_a_kernel_knows_its_nodes():
    kernel = compiled()
    nodes = {stmt.node_id for part in kernel.htile.kernels for stmt in part.body}
    by_text = {line.text.strip(): line for line in kernel.triton.lines}
    assert by_text["for step in range(2 - i0 * 2):  # interior"].node_ids[0] in nodes
    product = by_text["acc_pending = warpgroup_mma(acc_left, v_ring.index(v_slot), acc, is_async=True)"]
    assert product.origin == "acc"
    assert {line.kernel for line in kernel.triton.lines} == {"attention_causal_kernel"}
    for line in kernel.triton.lines:
        assert kernel.source.splitlines()[line.number - 1] == line.text


def test_the_explorer_takes_it():
    assert compiled().trace is not None


def test_the_last_tile_comes_first():
    """The one tile that is sure to exist is masked, and written once; the loop over the others has no mask."""
    text = compiled(block_kv=128).source
    before, loop = text.split("_consumer(\n", 1)[1].split("for step in range(1 - i0):", 1)
    assert "<=" in before
    assert "<=" not in loop.split("# the last product")[0]


@pytest.mark.nightly
def test_a_kernel_that_does_not_fit_is_written_in_triton():
    kernel = nl.compile(
        attention.full(**SMALL),
        "split_k_update",
        block_q=128,
        block_kv=64,
        config=nl.SplitKConfig(splits=2),
        code=nl.CodeOptions(code="gluon"),
    )
    assert [made.language for made in kernel.triton.kernels] == ["gluon", "triton"]
    assert kernel.triton.notes == ("attention_full_combine is emitted in Triton: it has no loop.",)
    assert "@triton.jit\ndef attention_full_combine(" in kernel.source


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (
            lambda: attention.causal(**SMALL),
            {"block_kv": 48},
            r"tile of shape \(128, 48\); expected powers of two",
        ),
        (
            lambda: attention.causal(**SMALL).with_strides(k=(256 * 68, 256 * 68, 68, 1)),  # (rows of 136 bytes)
            {},
            "the copy engine cannot load tiles of k",
        ),
        (lambda: attention.causal(**SMALL), {"block_q": 32}, "it has 32 rows per program; expected 64, 128 or 192"),
        (lambda: attention.causal(**SMALL), {"block_q": 256}, "it has 256 rows per program"),
        (lambda: attention.causal(**SMALL, dtype="float32"), {}, "multiplies float32; expected float16 or bfloat16"),
        (lambda: attention.full(**{**SMALL, "seq": 64}), {"block_q": 64}, "it has no loop"),
        (
            lambda: attention.full(**{**SMALL, "head_dim": 256}),
            {"block_kv": 128},
            "shared memory; a multiprocessor has 232448",
        ),
    ],
)
def test_reasons(make, options, why):
    operator = make()
    assert re.search(why, reason(operator, **options) or "")
    with pytest.raises(EmitError, match=why):
        compiled(operator, **options)


def test_reason_of_decoding():
    why = reason(attention.full(heads=2, q_len=1, kv_len=256, head_dim=64))
    assert why == "its loop has no product with a loop-invariant left operand"


def test_fits():
    assert reason(attention.causal(**SMALL)) is None


@pytest.mark.parametrize("target", [ANY, Target("cuda", (8, 0)), Target("cuda", (10, 0)), Target("hip")])
def test_only_hopper(target):
    with pytest.raises(EmitError, match=f"code='gluon' is not available on target {target}"):
        GluonOptions(emit=EmitOptions(target=target))


def test_options_are_checked():
    with pytest.raises(EmitError, match="ring_stages=9: expected an integer from 1 to 6"):
        GluonOptions(ring_stages=9)
    with pytest.raises(ScheduleError, match="code='cuda': expected one of 'triton', 'gluon'"):
        compiled(code="cuda")


def test_the_interpreter_says_no():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(LaunchError, match="written in Gluon, which Triton's interpreter does not run"):
        compiled()(*(torch.zeros(1, 2, 256, 64, dtype=torch.float16) for _ in range(3)))
