"""The exercises of notebook 10: right functions in several forms, and what each likely wrong one is told."""

from __future__ import annotations

import numpy as np
import pytest
from neptune_widgets.course import backward as exercises


def nest_of_queries(weights=None, cotangent=None, *, scaled=True, each=True):
    """A function like the answer, with one of its lines changed."""

    def function(q, d_o, lse, delta, tiles, scale):
        d_q = np.zeros(q.shape)
        for keys, values in tiles:
            s = q @ keys.T * scale
            p = np.exp(s - lse[:, None]) if weights is None else weights(s)
            d_p = d_o @ values.T
            d_s = p * (d_p - delta[:, None]) if cotangent is None else cotangent(p, d_p, delta[:, None])
            part = d_s @ keys * (scale if scaled else 1)
            d_q = d_q + part if each else part
        return d_q

    return function


def nest_of_keys(cotangent=None, *, scaled=True, values=None, swapped=False):
    def function(k, v, tiles, scale):
        d_k, d_v = np.zeros(k.shape), np.zeros(v.shape)
        for queries, d_o, lse, delta in tiles:
            p = np.exp(queries @ k.T * scale - lse[:, None])
            d_p = d_o @ v.T
            d_s = p * (d_p - delta[:, None]) if cotangent is None else cotangent(p, d_p, delta[:, None])
            d_v += (p if values is None else values(p, d_s)).T @ d_o
            d_k += d_s.T @ queries * (scale if scaled else 1)
        return (d_v, d_k) if swapped else (d_k, d_v)

    return function


def with_all_scores(q, d_o, lse, delta, tiles, scale):
    keys, values = (np.concatenate(x) for x in zip(*tiles, strict=True))
    p = np.exp(q @ keys.T * scale - lse[:, None])
    return p * (d_o @ values.T - delta[:, None]) @ keys * scale


RIGHT = {
    "softmax": lambda: exercises.scores(lambda p, d: p * d - p * (p * d).sum(axis=1, keepdims=True)),
    "softmax by its matrix": lambda: exercises.scores(
        lambda p, d: np.stack([(np.diag(w) - np.outer(w, w)) @ x for w, x in zip(p, d, strict=True)])
    ),
    "delta": lambda: exercises.delta(lambda o, d_o: np.einsum("id,id->i", o, d_o)),
    "queries": lambda: exercises.query_nest(nest_of_queries()),
    "keys": lambda: exercises.key_nest(nest_of_keys()),
    "memory": lambda: exercises.memory_kept((2**20, 2**32)),
}

WRONG = {
    "through the score alone": (lambda: exercises.scores(lambda p, d: p * d), "depends on every score"),
    "the diagonal alone": (lambda: exercises.scores(lambda p, d: p * d * (1 - p)), "changes all weights of its row"),
    "a sign": (lambda: exercises.scores(lambda p, d: p * (d + (p * d).sum(1, keepdims=True))), "wrong sign"),
    "columns": (lambda: exercises.scores(lambda p, d: p * (d - (p * d).sum(0))), "`axis=1`"),
    "without p": (lambda: exercises.scores(lambda p, d: p * d - (p * d).sum(1, keepdims=True)), "times `p`"),
    "nothing known": (lambda: exercises.scores(lambda p, d: p), "row 0 should be"),
    "one number a softmax": (lambda: exercises.scores(lambda p, d: p.sum(1)), "should have the shape (4, 6)"),
    "delta of columns": (lambda: exercises.delta(lambda o, d: (o * d).sum(axis=0)), "should have the shape (16,)"),
    "minus delta": (lambda: exercises.delta(lambda o, d: -(o * d).sum(axis=1)), "the sign is wrong"),
    "the mean": (lambda: exercises.delta(lambda o, d: (o * d).mean(axis=1)), "take the sum"),
    "no cotangent": (lambda: exercises.delta(lambda o, d: o.sum(axis=1)), "without its cotangent"),
    "no delta": (lambda: exercises.query_nest(nest_of_queries(cotangent=lambda p, d, _: p * d)), "delta is missing"),
    "plus delta": (lambda: exercises.query_nest(nest_of_queries(cotangent=lambda p, d, x: p * (d + x))), "wrong sign"),
    "no scale": (lambda: exercises.query_nest(nest_of_queries(scaled=False)), "`scale` is missing in the gradient"),
    "no lse": (lambda: exercises.query_nest(nest_of_queries(weights=np.exp)), "not normalised"),
    "the last tile": (lambda: exercises.query_nest(nest_of_queries(each=False)), "the last tile only"),
    "all scores": (lambda: exercises.query_nest(with_all_scores), "it keeps the scores"),
    "no delta for keys": (lambda: exercises.key_nest(nest_of_keys(lambda p, d, _: p * d)), "delta is missing"),
    "no scale for keys": (lambda: exercises.key_nest(nest_of_keys(scaled=False)), "`scale` is missing"),
    "d_s for values": (lambda: exercises.key_nest(nest_of_keys(values=lambda p, d_s: d_s)), "its weight `p`"),
    "p for keys": (lambda: exercises.key_nest(nest_of_keys(lambda p, d, x: p)), "`p` in place of `d_s`"),
    "exchanged": (lambda: exercises.key_nest(nest_of_keys(swapped=True)), "exchanged"),
    "one array": (lambda: exercises.key_nest(lambda k, v, tiles, scale: k), "two arrays"),
    "one head": (lambda: exercises.memory_kept((2**15, 2**32)), "one head"),
    "float32": (lambda: exercises.memory_kept((2**20, 2**33)), "bfloat16"),
    "masked pairs left out": (lambda: exercises.memory_kept((2**20, 2**31)), "every pair"),
    "a word": (lambda: exercises.memory_kept("much"), "expected 2 numbers"),
}  # fmt: skip


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", RIGHT)
def test_right_answers(name: str):
    verdict = RIGHT[name]()
    assert verdict, verdict


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_told_what_is_wrong(name: str):
    answer, words = WRONG[name]
    verdict = answer()
    assert verdict.state == "wrong"
    assert words in verdict.text


def test_open_answers():
    def unfilled(*_):
        raise NotImplementedError

    judges = (exercises.scores, exercises.delta, exercises.query_nest, exercises.key_nest)
    assert [judge(unfilled).state for judge in judges] == ["open"] * 4
    assert exercises.memory_kept(None).state == "open"
