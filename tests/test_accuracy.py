"""Numerical errors of the ten operators: the figures, the made and recorded inputs, the table, the command."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.cli import main
from neptune_lab.errors import DefinitionError, MeasureError
from neptune_lab.operators import attention, norms
from neptune_lab.pipeline.accuracy import OURS, TEN, AccuracyRow, AccuracySetup, Report, accuracy, case_of, operator_of
from neptune_lab.pipeline.accuracy_table import to_text
from neptune_lab.pipeline.realistic_inputs import realistic_inputs, recorded_inputs
from neptune_lab.runtime import to_tensor
from neptune_lab.runtime.accuracy import (
    ALLOWED,
    ErrorSummary,
    error_summary,
    peers,
    read_tensors,
    run_peer,
    to_float64,
)

TINY = {"seq": 17, "heads": 2, "overrides": {"head_dim": 16}}


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs `neptune-lab accuracy`: (exit status, standard output, standard error)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["neptune-lab", "accuracy", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    return run


# -- the figures -----------------------------------------------------------------------------------------------------


def test_figures_of_a_made_example():
    """Errors 0, 1, ..., 10: the mean of their squares is 35, nine tenths are up to 9, ninety-nine hundredths to 9.9."""
    want = np.zeros(11)
    found = error_summary([np.arange(11.0)], [want])
    assert found == ErrorSummary(pytest.approx(35**0.5), pytest.approx(9.0), pytest.approx(9.9))


def test_signs_do_not_count_and_samples_are_pooled():
    one = error_summary([np.array([3.0, -4.0])], [np.zeros(2)])
    two = error_summary([np.array([-3.0]), np.array([4.0])], [np.zeros(1), np.zeros(1)])
    assert one == two
    assert one.rms == pytest.approx(12.5**0.5)


def test_rows_that_are_nan_in_the_reference_do_not_count():
    assert error_summary([np.array([np.nan, 2.0])], [np.array([np.nan, 0.0])]).rms == 2.0


@pytest.mark.parametrize(
    ("got", "want", "message"),
    [
        ([], [], "got 0 outputs and 0 references"),
        ([np.zeros(2)], [np.zeros(3)], r"an output has shape \(2,\), its reference \(3,\)"),
        ([np.array([np.inf, 1.0])], [np.zeros(2)], "1 elements of the output are not finite"),
        ([np.array([np.nan])], [np.array([np.nan])], "no finite element"),
    ],
)
def test_figures_refuse(got, want, message):
    with pytest.raises(MeasureError, match=message):
        error_summary(got, want)


# -- the inputs ------------------------------------------------------------------------------------------------------


def test_made_inputs_are_like_a_trained_models():
    """What the docstring promises: a sink, an outlier channel, heavy tails, and the same again for the same seed."""
    op = attention.gqa(heads=4, kv_heads=2, seq=200, head_dim=32)
    made = realistic_inputs(op, seed=1)
    q, k, v = (made[n].astype(np.float64) for n in "qkv")
    scores = np.repeat(k, 2, axis=1) @ q.swapaxes(2, 3) / 32**0.5  # (batch, heads, keys, queries)
    assert 4 < (scores[:, :, 0] - scores[:, :, 1:].mean(axis=2)).mean() < 9
    assert np.linalg.norm(v[:, :, 0], axis=-1).max() < np.median(np.linalg.norm(v[:, :, 1:], axis=-1))
    size = np.sqrt((k[:, :, 1:] ** 2).mean(axis=(0, 1, 2)))
    assert size.argmax() == 15
    assert size[15] > 5 * np.median(size)
    assert ((v - v.mean()) ** 4).mean() / v.var() ** 2 > 4, "a normal distribution has a kurtosis of 3"
    assert all(a.dtype == np.float16 and np.isfinite(a).all() for a in made.values())
    again, other = realistic_inputs(op, seed=1), realistic_inputs(op, seed=2)
    assert all(np.array_equal(made[n], again[n]) and not np.array_equal(made[n], other[n]) for n in "qkv")


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    """RoPE: a query's score with a key `d` positions before it is the same wherever they stand."""
    from neptune_lab.pipeline.realistic_inputs import _rotated

    x, y = np.random.default_rng(0).standard_normal((2, 1, 8))
    at = np.arange(6)
    q, k = _rotated(np.repeat(x, 6, 0), at), _rotated(np.repeat(y, 6, 0), at)
    np.testing.assert_allclose(np.linalg.norm(q, axis=1), np.linalg.norm(x))
    np.testing.assert_allclose([q[n] @ k[n - 2] for n in range(2, 6)], q[2] @ k[0])


def test_inputs_refuse():
    with pytest.raises(DefinitionError, match="head_dim=7: expected an even one"):
        realistic_inputs(attention.causal(seq=4, head_dim=7))
    with pytest.raises(DefinitionError, match=r"l2_norm takes x: float32\[2, 4\]"):
        realistic_inputs(norms.l2_norm())
    held = {n: np.zeros((1, 1, 4, 8)) for n in "qk"}
    with pytest.raises(DefinitionError, match="have no 'v'"):
        recorded_inputs(attention.causal(seq=4, head_dim=8), held)
    with pytest.raises(DefinitionError, match=r"recorded q has shape \(1, 1, 4, 8\), attention_causal takes"):
        recorded_inputs(attention.causal(seq=5, head_dim=8), held)


# -- the peers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in TEN if "softcap" not in n])
def test_sdpa_is_told_the_operator(name):
    """In float32 torch's attention equals our reference: mask, bias, scale and grouping are the operator's."""
    own = {"head_dim": 16, **({"window": 5} if name == "window_pf" else {})}
    op = operator_of(name, AccuracySetup(seq=17, heads=2, overrides=own), interpreter=True)
    inputs = [a.astype(np.float32) for a in realistic_inputs(op).values()]
    ((_, sdpa),) = peers(case_of(op), "cpu").items()
    np.testing.assert_allclose(sdpa(*(to_tensor(a) for a in inputs)), op.reference(*inputs), rtol=1e-4, atol=1e-6)


def test_sdpa_has_no_soft_capping():
    op = attention.preset("softcap_pf", seq=8, heads=2, kv_heads=1, head_dim=16)
    assert case_of(op).cap == 50.0
    assert peers(case_of(op), "cpu") == {}


def test_a_peer_that_refuses_says_why():
    op = attention.causal(heads=1, seq=4, head_dim=4)

    def refuse(q, k, v):
        warnings.warn("cuDNN attention has been runtime disabled. (Triggered internally at x)", stacklevel=1)
        warnings.warn("It does not support this mask. (Triggered internally at x)", stacklevel=1)
        raise RuntimeError("No available kernel.\nAborting")

    def fail(q, k, v):
        raise RuntimeError("No available kernel.\nAborting")

    inputs = tuple(realistic_inputs(op).values())
    assert run_peer(refuse, inputs, "cpu") == "It does not support this mask."
    assert run_peer(fail, inputs, "cpu") == "No available kernel."
    np.testing.assert_array_equal(run_peer(lambda q, k, v: v, inputs, "cpu"), inputs[2].astype(np.float64))


# -- the table -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> Report:
    return accuracy(AccuracySetup(samples=2, **TINY))


def test_the_table_has_ten_rows(report):
    assert tuple(row.operator for row in report.rows) == TEN
    assert len(TEN) == 10
    for row in report.rows:
        own = row.errors[OURS]
        assert own is not None
        assert 0 < own.rms < 1e-4
        assert own.p90 <= own.p99
        assert len(row.sample_rms) == 2
        assert own.rms == pytest.approx(np.sqrt(np.mean(np.square(row.sample_rms))))
        assert row.sizes["q_len"] == (1 if row.operator.endswith("_dc") else 17)
    text = to_text(report)
    assert [line.split()[0] for line in text.splitlines()[2:12]] == list(TEN)
    assert "neptune_lab: our kernel, Triton's interpreter" in text or report.columns[OURS] in text


def test_ours_is_not_less_accurate_than_torch(report):
    assert report.ok
    assert {row.operator for row in report.rows if row.ratio is None} <= {"softcap_pf", "softcap_dc"}


def test_json_form(report):
    data = json.loads(json.dumps(report.as_record()))
    assert data["allowed_ratio"] == ALLOWED == 1.2
    assert data["samples"] == 2
    first = data["rows"][0]
    assert first["operator"] == "global_pf"
    assert set(first["errors"][OURS]) == {"rms", "p90", "p99"}
    assert first["ok"] is True


def row(ours: float, *others: float) -> AccuracyRow:
    errors = {OURS: ErrorSummary(ours, ours, ours)}
    errors |= {f"peer {n}": ErrorSummary(x, x, x) for n, x in enumerate(others)}
    return AccuracyRow("causal_pf", {"heads": 1}, errors, {}, (ours,))


def test_the_best_peer_decides():
    assert row(1.2, 1.0, 5.0).ok
    assert not row(1.3, 1.0, 5.0).ok
    assert row(1.3).ok
    assert row(1.0, 0.0).ratio == float("inf")
    bad = Report((row(1.3, 1.0),), {OURS: "ours", "peer 0": "theirs"}, "made", 1)
    assert "1.30 ABOVE 1.2" in to_text(bad)
    assert "RMS error: NO" in to_text(bad)


# -- the command -----------------------------------------------------------------------------------------------------


def recorded(samples: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"q": (samples, 2, 9, 8), "k": (samples, 1, 9, 8), "v": (samples, 1, 9, 8)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["npz", "pt"])
def test_recorded_inputs_set_the_sizes(call, tmp_path, kind):
    path, out = tmp_path / f"held.{kind}", tmp_path / "table.json"
    if kind == "npz":
        np.savez(path, **recorded())
    else:
        torch.save({n: torch.from_numpy(a) for n, a in recorded().items()}, path)
    chosen = ["--operators", "gqa_pf, gqa_dc", "--inputs", str(path), "--samples", "5", "--json", str(out)]
    status, text, err = call(*chosen)
    assert status == 0
    assert "inputs: recorded, in float16; samples: 2" in text
    assert err == "gqa_pf ...\ngqa_dc ...\n"
    prefill, decode = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert prefill["sizes"] == {"heads": 2, "kv_heads": 1, "q_len": 9, "kv_len": 9, "head_dim": 8}
    assert decode["sizes"]["q_len"] == 1


def test_exit_status_1_where_a_peer_is_better(call, monkeypatch):
    """A compiler whose kernels are off by a thousandth: the command says so and fails."""
    from neptune_lab.pipeline import accuracy as module

    exact = module.call_on_arrays
    monkeypatch.setattr(module, "call_on_arrays", lambda kernel, arrays: tuple(o + 1e-3 for o in exact(kernel, arrays)))
    status, out, _ = call("--operators", "causal_dc", "--seq", "17", "--heads", "1")
    assert status == 1
    assert "ABOVE 1.2" in out


def test_refusals_are_one_line_and_exit_2(call, tmp_path):
    broken, three = tmp_path / "a.npz", tmp_path / "b.npz"
    broken.write_text("no archive", encoding="utf-8")
    np.savez(three, **{n: np.zeros((1, 2, 3)) for n in "qkv"})
    for arguments, message in [
        (["--operators", "causal"], "operator 'causal' is not one of the ten"),
        (["--inputs", str(tmp_path / "none.npz")], "there is no file"),
        (["--inputs", str(broken)], "no .npz file of plain arrays"),
        (["--inputs", str(three)], "recorded q has shape (1, 2, 3)"),
        (["--samples", "0"], "--samples"),
    ]:
        status, out, err = call(*arguments)
        assert (status, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


def test_files_of_other_kinds_are_refused(tmp_path):
    other, pt = tmp_path / "a.txt", tmp_path / "b.pt"
    other.touch()
    with pytest.raises(MeasureError, match=r"ends in '\.txt'"):
        read_tensors(other)
    torch.save([1, 2], pt)
    with pytest.raises(MeasureError, match="something else than a dict of tensors"):
        read_tensors(pt)
    pt.write_bytes(b"nothing of the kind")
    with pytest.raises(MeasureError, match=r"no \.pt file of a dict of plain tensors"):
        read_tensors(pt)


# -- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["global_pf", "causal_pf", "gqa_pf"])
def test_gpu_errors_are_at_most_sdpas_by_a_fifth(name):
    op = attention.preset(name, seq=2048)
    arrays = tuple(realistic_inputs(op).values())
    inputs = [to_tensor(a, "cuda") for a in arrays]
    ours = nl.compile(op)(*inputs)
    sdpa = peers(case_of(op), "cuda")["SDPA flash"](*inputs)
    want = op.reference(*arrays)
    own, other = (error_summary([to_float64(x)], [want]).rms for x in (ours, sdpa))
    assert own <= ALLOWED * other
