"""What tells one mod from another."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import and_masks

from neptune_lab.pytorch.mods import UNSEEN_NAMES, follow, read

CAP = 20.0
SLOPES = torch.ones(4)


def make(width, table=None):
    def mod(b, h, q, kv):
        return (q - kv < width) & (table[q] > kv) if table is not None else q - kv < width

    return mod


def capped(score, b, h, q, kv):
    return CAP * torch.tanh(score / CAP)


def biased(score, b, h, q, kv):
    return score + SLOPES[h]


def test_equal_code_over_equal_values_is_one_mod():
    assert read(make(3)).key == read(make(3)).key
    assert read(make(3)).key != read(make(4)).key
    assert read(make(3)).key != read(make(3.0)).key
    assert read(make(0.0)).key != read(make(-0.0)).key
    assert read(make(1)).key != read(make(True)).key
    assert read(make(3), None).key != read(None, make(3)).key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda b, h, q, kv: q >= kv, lambda b, h, q, kv: q > kv),
        (lambda b, h, q, kv: q >= kv + 1, lambda b, h, q, kv: q >= kv + 2),
        (lambda b, h, q, kv, n=1: q >= kv + n, lambda b, h, q, kv, n=2: q >= kv + n),
        (lambda b, h, q, kv, *, n=1: q >= kv + n, lambda b, h, q, kv, *, n=2: q >= kv + n),
        (partial(make, 1), partial(make, 2)),
        (partial(make, width=1), partial(make, width=2)),
        (make([1, 2]), make([1, 3])),
        (make({"a": 1}), make({"b": 1})),
        (make(operator.add), make(operator.sub)),
        (make(np.float32(1)), make(np.float32(2))),
        (make(torch.tensor(1)), make(1)),
        (make(torch.tensor(1)), make(torch.tensor([1]))),
        (make(0.0), make(-0.0)),
        (make(1), make(True)),
        (make(1, torch.ones(3)), make(1, torch.ones(4))),
        (make(1, torch.ones(3)), make(1, torch.ones(3, dtype=torch.float64))),
        (make(make(1)), make(make(2))),
        (and_masks(make(1), make(2)), and_masks(make(1), make(3))),
    ],
)
def test_mods_that_differ(one, other):
    assert read(one).key == read(one).key
    assert read(one).key != read(other).key
    assert read(one).exact


def test_a_global_is_read_at_each_call(monkeypatch):
    before = read(capped).key
    assert read(capped).key == before
    monkeypatch.setitem(globals(), "CAP", 30.0)
    assert read(capped).key != before


def test_a_builtin_counts_where_it_was_replaced(monkeypatch):
    def mod(score, b, h, q, kv):
        return score * max(h, 2)

    before = read(mod).key
    monkeypatch.setattr("builtins.max", make(3))
    assert read(mod).key not in (before, read(make(3)).key)
    assert read(mod).paths == ()


def test_a_module_of_the_users_counts_by_what_the_code_may_read_of_it():
    settings = ModuleType("settings")
    settings.cap, settings.other = 1.0, 5  # type: ignore[attr-defined]

    def mod(score, b, h, q, kv):
        return score + settings.cap

    before = read(mod)
    settings.other = 6  # type: ignore[attr-defined]
    assert read(mod).key == before.key
    settings.cap = 2.0  # type: ignore[attr-defined]
    assert read(mod).key != before.key
    ((path, value),) = before.numbers
    assert (value, follow((mod,), path)) == (1.0, 2.0)
    settings.cap = np.ones(3)  # type: ignore[attr-defined]
    assert read(mod).tensors[0] is settings.cap


def test_tensors_count_by_shape_and_come_once_each():
    table = torch.zeros(8, dtype=torch.int32)
    found = read(biased, make(1, table))
    assert [t is s for t, s in zip(found.tensors, (SLOPES, table), strict=True)] == [True, True]
    assert [follow((biased, make(1, table)), path) is t for path, t in zip(found.paths, found.tensors, strict=True)]
    assert found.key == read(biased, make(1, torch.ones(8, dtype=torch.int32))).key
    twice = read(make(1, table), make(2, table))
    assert len(twice.tensors) == 1
    # Two tensors that happened to be one may be two at the next call: that is another kernel.
    assert twice.key != read(make(1, table), make(2, table.clone())).key


def test_tensors_without_axes_are_tensors():
    one, two = torch.tensor(1), torch.tensor(2)
    assert read(make(one)).key == read(make(two)).key
    assert read(make(one)).tensors == (one,)


def test_every_path_leads_to_its_value():
    def mod(b, h, q, kv, low=2, *, high=3):
        return (q - low < kv) & (kv < q + high + inner(kv))

    by = partial(max, 7, key=[8])  # type: ignore[call-overload]

    def inner(x):
        return by(x)

    found = read(mod)
    assert sorted(value for _, value in found.numbers) == [2, 3, 7, 8]
    assert [follow((mod,), path) for path, _ in found.numbers] == [value for _, value in found.numbers]


def test_an_object_that_may_change_is_not_taken_for_known():
    class Settings:
        cap = 1.0

    assert not read(make(Settings())).exact
    assert not read(make({"cap": 1.0}.get)).exact
    for known in (np.where, np.exp, torch.where, operator.add, abs, float):
        assert read(make(known)).exact
    assert read(make(Settings())).key != read(make(1)).key


def test_a_function_that_calls_itself_ends():
    def mod(b, h, q, kv):
        return mod(b, h, q - 1, kv) if q else kv

    assert read(mod).key == read(mod).key


@pytest.mark.nightly
def test_keys_are_the_same_in_another_process(capsys):
    script = """
from neptune_lab.pytorch.mods import read
def mod(b, h, q, kv, low=2, names=("a", "b")):
    return (q > kv) & (kv in {1, 2, 3, "x", "y"}) & (lambda z: z == 5)(low)
print(read(mod).key)
"""
    exec(compile(script, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    here = capsys.readouterr().out
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONHASHSEED": seed})
    assert done.stdout == here != "", done.stderr


def test_numbers_that_a_mod_draws_are_seen_to_differ_from_call_to_call():
    assert not read(lambda b, h, q, kv: torch.randperm(4)[0] > kv).exact
    assert not read(lambda b, h, q, kv: torch.empty(()).uniform_() > kv).exact
    assert not read(lambda b, h, q, kv: torch.nn.functional.dropout(torch.ones(4))[0] > kv).exact
    assert read(lambda b, h, q, kv: torch.tensor(4) > kv).exact


def test_settings_of_torch_and_objects_of_its_classes_are_read_at_each_call():
    enabled, normal = torch.is_grad_enabled, torch.distributions.Normal(0.0, 1.0)
    for mod in (
        lambda s, b, h, q, kv: s + torch.is_grad_enabled() * kv,
        lambda s, b, h, q, kv: s + enabled() * kv,
        lambda s, b, h, q, kv: s + torch.get_num_threads() * kv,
        lambda s, b, h, q, kv: s + torch.finfo(torch.get_default_dtype()).bits * kv,
        lambda s, b, h, q, kv: s + torch.initial_seed() % 97 * kv,
        lambda s, b, h, q, kv: s + torch.distributions.Normal(0.0, 1.0).sample((4,))[h],
        lambda s, b, h, q, kv: s + normal.rsample((4,))[h],
        lambda s, b, h, q, kv: s + float(np.load("table.npy")),
    ):
        assert not read(mod).exact
    gelu, softplus = torch.nn.functional.gelu, torch.nn.functional.softplus
    for mod in (
        lambda s, b, h, q, kv: torch.where(q > kv, torch.exp(s), torch.finfo(torch.float32).min),
        lambda s, b, h, q, kv: gelu(s) + softplus(s) + torch.nn.functional.relu(s) + torch.special.expit(s),
        lambda s, b, h, q, kv: torch.is_tensor(s) * torch.linalg.vector_norm(torch.ones(3)) + s.to(torch.float32),
    ):
        assert read(mod).exact


def test_every_operation_of_torch_that_draws_numbers_is_known_to():
    """Those that a mod may apply to tensors that it makes: not private ones, networks and attention."""
    others = {"gru", "lstm", "miopen_rnn", "rnn_relu", "rnn_tanh", "scaled_dot_product_attention"}
    for full in torch._C._dispatch_get_all_op_names():
        home, _, name = full.partition("::")
        name, _, overload = name.partition(".")
        if home == "aten" and not name.startswith("_") and name not in others:
            packet = getattr(torch.ops.aten, name, None)
            op = getattr(packet, overload or "default", None)
            if op is not None and torch.Tag.nondeterministic_seeded in op.tags:
                assert {name, f"{name}_"} & UNSEEN_NAMES or name.startswith(("rrelu_with", "normal_f")), full
