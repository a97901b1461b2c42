"""What `10_backward` shares between its cells, and its exercises: the gradients of attention, written by the reader.

Every right number is that of the backward pass that the compiler derives, run natively in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_widgets.course.exercise import NotYet, exercise, numbers_of
from neptune_widgets.course.written import MANY, array_of, check_function, constant, peak_of, result_of, tiles_once

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program
    from neptune_lab.operators import Training

Arrays = Mapping[str, np.ndarray]

QUERIES, KEYS, TILE, WIDTH = 16, 1024, 16, 8
SCALE = WIDTH**-0.5
SIZES = {"batch": 1, "heads": 32, "seq": 8192, "head_dim": 128}  # of the exercise on memory
_DERIVED = "which is that of the backward pass that the compiler derives"


# -- the numbers -------------------------------------------------------------------------------------------------


@cache
def _attention(queries: int, keys: int) -> Training:
    from neptune_lab.operators import attention, training

    return training(
        attention.full(batch=1, heads=1, q_len=queries, kv_len=keys, head_dim=WIDTH, dtype="float32"), ["q", "k", "v"]
    )


def _in_float64(program: Program, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every value of a program, internal ones too."""
    from neptune_lab.loop_ir.run import as_float64, run

    return run(as_float64(program), dict(inputs))


@cache
def _run(queries: int, keys: int) -> Arrays:
    """Inputs, every value of both passes, and `lse` and `delta`; matrices of two dimensions, rows of one."""
    passes = _attention(queries, keys)
    rng = np.random.default_rng(queries + keys)
    given = {t.name: rng.normal(size=t.shape) for t in passes.forward.inputs}
    forward = _in_float64(passes.forward.program, given)
    d_out = rng.normal(size=forward["out"].shape)
    backward = _in_float64(passes.backward.program, {**given, **{k: forward[k] for k in passes.kept}, "d_out": d_out})
    found = {name: array[0, 0] for name, array in {**forward, **backward, "d_out": d_out}.items()}
    return {**found, "lse": found["lse2"] * np.log(2), "delta": -found["d_lse"]}


@cache
def _softmax() -> Arrays:
    """p, d_p and d_s of a softmax of four rows."""
    from neptune_lab.operators import rows, training

    passes = training(rows.softmax(4, 6))
    rng = np.random.default_rng(0)
    x, d_p = rng.normal(size=(2, 4, 6))
    forward = _in_float64(passes.forward.program, {"x": x})
    backward = _in_float64(
        passes.backward.program, {"x": x, "d_out": d_p, **{name: forward[name] for name in passes.kept}}
    )
    return {"p": forward["out"], "d_p": d_p, "d_s": backward["d_x"]}


def _near(found: np.ndarray, right: np.ndarray) -> bool:
    return np.allclose(found, right, rtol=1e-6, atol=1e-9)


def _named(found: np.ndarray, mistakes: Mapping[str, np.ndarray]) -> None:
    """NotYet with the mistake whose numbers these are, if it is a known one."""
    for what, numbers in mistakes.items():
        if found.shape == numbers.shape and _near(found, numbers):
            raise NotYet(what)


# -- softmax and delta -------------------------------------------------------------------------------------------


@exercise(
    "Write the backward pass of a softmax",
    hints=(
        "A score changes its own weight directly, and all weights of its row through the log-sum-exp.",
        "`p = exp(s - lse)`. Through `s`: `d_p * p`. What does `lse` get, summed over the row?",
        "`lse` gets `-(d_p * p).sum(axis=1)`, and passes it on to each score, times its weight `p`.",
    ),
)
def scores(function: Callable[..., Any]) -> str:
    """Right if the function gives the cotangents of scores.

    Args:
        function: takes the weights and their cotangents, (4, 6), a row per softmax; returns the same shape.
    """
    check_function(function, "def d_scores(p, d_p): …")
    made = _softmax()
    p, d_p, right = constant(made["p"]), constant(made["d_p"]), made["d_s"]
    slow = "it executes hundreds of lines on 24 numbers: write it with arrays"
    found = array_of(result_of(function, p, d_p, lines=30 * MANY, slow=slow), right.shape, "the result")
    if _near(found, right):
        return f"the scores get what the definition says, {_DERIVED} from `rows.softmax`"
    total = (d_p * p).sum(axis=1, keepdims=True)
    _named(
        found,
        {
            "this is the part through `s` alone: the log-sum-exp depends on every score, too": d_p * p,
            "each weight is differentiated by its own score only: a score changes all weights of its row": (
                d_p * p * (1 - p)
            ),
            "the part through the log-sum-exp has the wrong sign: `p` falls if `lse` grows": p * (d_p + total),
            "the sum is over a column: a softmax belongs to a row, so sum over `axis=1`": (
                p * (d_p - (d_p * p).sum(axis=0, keepdims=True))
            ),
            "`lse` passes its cotangent on to each score times `p`, its derivative": d_p * p - total,
        },
    )
    raise NotYet(f"row 0 should be {right[0].round(4).tolist()}, found {found[0].round(4).tolist()}")


@exercise(
    "Write delta without a loop over keys",
    hints=(
        "Put `d_p = d_o @ v.T` into the sum, and write both sums as one over keys and columns.",
        "The sum over keys of `p * v` is known: it is a row of the output.",
        "Multiply the output and its cotangent element by element, and add up each row.",
    ),
)
def delta(function: Callable[..., Any]) -> str:
    """Right if the function gives the sum of d_p * p over each row.

    Args:
        function: takes the output and its cotangent, (16, 8); returns 16 numbers.
    """
    check_function(function, "def delta(o, d_o): …")
    made = _run(QUERIES, KEYS)
    o, d_o, right = constant(made["out"]), constant(made["d_out"]), made["delta"]
    slow = "it executes more lines than a product of two matrices needs"
    found = array_of(result_of(function, o, d_o, lines=4 * QUERIES * MANY, slow=slow), (QUERIES,), "delta")
    if _near(found, right):
        return f"{QUERIES} sums of {WIDTH} products instead of {KEYS}; it equals the sum of d_p * p over all keys"
    _named(
        found,
        {
            "the sign is wrong: delta is what the log-sum-exp gets, times -1": -right,
            "that is the mean of each row: take the sum": right / WIDTH,
            "that is the sum of `o`, without its cotangent": o.sum(axis=1),
        },
    )
    raise NotYet(f"the first number should be {right[0]:.4f}, found {found[0]:.4f}")


# -- the nests ---------------------------------------------------------------------------------------------------

_SLOW = f"it executes more than {MANY} lines per tile: write each step for a whole tile"
_ALL = 8 * QUERIES * KEYS  # bytes of all scores


def _nest_of_queries(function: Callable[..., Any], keys: int) -> np.ndarray:
    a = _run(QUERIES, keys)
    given = [constant(a[name]) for name in ("q", "d_out", "lse", "delta")]
    tiles = tiles_once((a["k"], a["v"]), TILE)
    lines = MANY * (keys // TILE) + 100
    return array_of(result_of(function, *given, tiles, SCALE, lines=lines, slow=_SLOW), (QUERIES, WIDTH), "d_q")


def _nest_of_keys(function: Callable[..., Any], queries: int) -> tuple[np.ndarray, np.ndarray]:
    a = _run(queries, QUERIES)
    given = [constant(a[name]) for name in ("k", "v")]
    tiles = tiles_once((a["q"], a["d_out"], a["lse"], a["delta"]), TILE)
    lines = MANY * (queries // TILE) + 100
    pair = result_of(function, *given, tiles, SCALE, lines=lines, slow=_SLOW)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise NotYet("the result should be two arrays, `d_k, d_v`")
    shape = (QUERIES, WIDTH)
    return array_of(pair[0], shape, "d_k"), array_of(pair[1], shape, "d_v")


def _parts(a: Arrays) -> dict[str, np.ndarray]:
    """s, p, d_p and d_s of a run, with all keys at once."""
    s = a["q"] @ a["k"].T * SCALE
    p = np.exp(s - a["lse"][:, None])
    d_p = a["d_out"] @ a["v"].T
    return {"s": s, "p": p, "d_p": d_p, "d_s": p * (d_p - a["delta"][:, None])}


_NO_DELTA = "delta is missing: the log-sum-exp depends on the scores, too, and each `d_p` gets `- delta`"
_NO_SCALE = "`scale` is missing in the gradient: a score is the product of query and key times `scale`"
_NO_LSE = "the weights are not normalised: subtract the log-sum-exp of each query from its scores"
_PLUS_DELTA = "delta has the wrong sign: it is subtracted from `d_p`"


@exercise(
    "Write the nest of the queries' gradient",
    hints=(
        "In each iteration: scores, weights, `d_p`, `d_s`, and one product that is added to `d_q`.",
        "`p = np.exp(q @ keys.T * scale - lse[:, None])`: no maximum and no repair, since `lse` is final.",
        "`d_p = d_o @ values.T`, and `d_s = p * (d_p - delta[:, None])`.",
        "`d_q += d_s @ keys * scale`.",
    ),
)
def query_nest(function: Callable[..., Any]) -> str:
    """Right if the function gives the gradient of the queries from one loop over tiles of keys, without all scores.

    Args:
        function: takes q and d_o (16, 8), lse and delta (16), tiles that can be read once, each a pair of keys and
            values (16, 8), and a number that scores are multiplied by; returns d_q (16, 8).
    """
    check_function(function, "def d_query(q, d_o, lse, delta, tiles, scale): …")
    a = _run(QUERIES, 4 * TILE)
    found, right = _nest_of_queries(function, 4 * TILE), a["d_q"]
    if not _near(found, right):
        x, k = _parts(a), a["k"]
        _named(
            found,
            {
                _NO_DELTA: x["p"] * x["d_p"] @ k * SCALE,
                _NO_SCALE: x["d_s"] @ k,
                _PLUS_DELTA: x["p"] * (x["d_p"] + a["delta"][:, None]) @ k * SCALE,
                _NO_LSE: np.exp(x["s"]) * (x["d_p"] - a["delta"][:, None]) @ k * SCALE,
                "it has the last tile only: add each tile's product to `d_q`": x["d_s"][:, -TILE:] @ k[-TILE:] * SCALE,
            },
        )
        raise NotYet(f"row 0 should be {right[0].round(4).tolist()}, found {found[0].round(4).tolist()}")
    _run(QUERIES, KEYS)
    held = peak_of(lambda: _nest_of_queries(function, KEYS))
    _check_memory(held)
    return f"one loop over the keys, which holds {held / 1024:.0f} KiB; its result is d_q, {_DERIVED}"


@exercise(
    "Write the nest of the gradients of keys and values",
    hints=(
        "The tile of keys stays, and queries pass by. Each tile brings its own `lse` and `delta`.",
        "Scores, weights, `d_p` and `d_s` are those of the other nest, a row per query: `queries @ k.T`.",
        "A key gets a sum over queries, so the products have their first factor transposed.",
        "`d_v += p.T @ d_o`, and `d_k += d_s.T @ queries * scale`.",
    ),
)
def key_nest(function: Callable[..., Any]) -> str:
    """Right if the function gives both gradients from one loop over tiles of queries, without all scores.

    Args:
        function: takes k and v (16, 8), tiles that can be read once, each of queries and d_o (16, 8), lse and delta
            (16), and a number that scores are multiplied by; returns d_k and d_v (16, 8).
    """
    check_function(function, "def d_key_value(k, v, tiles, scale): …")
    a = _run(4 * TILE, QUERIES)
    d_k, d_v = _nest_of_keys(function, 4 * TILE)
    x = _parts(a)
    if not _near(d_v, a["d_v"]):
        _named(
            d_v,
            {
                "`d_v` has `d_s`: a value is multiplied by its weight `p`": x["d_s"].T @ a["d_out"],
                _NO_LSE: np.exp(x["s"]).T @ a["d_out"],
                "the last tile only: add each tile's products": x["p"][-TILE:].T @ a["d_out"][-TILE:],
                "the two results are exchanged: return `d_k, d_v`": a["d_k"],
            },
        )
        raise NotYet(f"row 0 of d_v should be {a['d_v'][0].round(4).tolist()}, found {d_v[0].round(4).tolist()}")
    if not _near(d_k, a["d_k"]):
        q = a["q"]
        _named(
            d_k,
            {
                _NO_DELTA: (x["p"] * x["d_p"]).T @ q * SCALE,
                _NO_SCALE: x["d_s"].T @ q,
                _PLUS_DELTA: (x["p"] * (x["d_p"] + a["delta"][:, None])).T @ q * SCALE,
                "`d_k` has `p` in place of `d_s`": x["p"].T @ q * SCALE,
            },
        )
        raise NotYet(f"row 0 of d_k should be {a['d_k'][0].round(4).tolist()}, found {d_k[0].round(4).tolist()}")
    _run(KEYS, QUERIES)
    held = peak_of(lambda: _nest_of_keys(function, KEYS))
    _check_memory(held)
    return f"one loop over the queries, which holds {held / 1024:.0f} KiB; its results are d_k and d_v, {_DERIVED}"


def _check_memory(held: int) -> None:
    if held > _ALL // 2:
        raise NotYet(
            f"on {KEYS} rows it holds {held:,} bytes at once. A tile of scores has {8 * QUERIES * TILE:,}, all scores "
            f"have {_ALL:,}: it keeps the scores, or the tiles, of all rows"
        )


# -- memory ------------------------------------------------------------------------------------------------------


@exercise(
    "How much memory does the log-sum-exp save?",
    hints=(
        "A log-sum-exp per query and head, a weight per pair of query and key and head.",
        "A float32 has 4 bytes, a bfloat16 has 2.",
    ),
)
def memory_kept(answer: Any) -> str:
    """Right if the answer has the bytes of the log-sum-exps in float32 and of the weights in bfloat16, for `SIZES`."""
    heads, seq = SIZES["batch"] * SIZES["heads"], SIZES["seq"]
    rows, pairs = heads * seq * 4, heads * seq * seq * 2
    found = numbers_of(answer, 2)
    if found[0] != rows:
        hint = "; is that for one head?" if found[0] == rows // heads else ""
        raise NotYet(f"{found[0]:,.0f} bytes is not what the log-sum-exps take{hint}")
    if found[1] != pairs:
        hint = ""
        if found[1] == 2 * pairs:
            hint = ": that is in float32, and the question is about bfloat16"
        elif found[1] == pairs // heads:
            hint = "; is that for one head?"
        elif found[1] == pairs // 2:
            hint = ": they are kept for every pair, those that the mask hides too"
        raise NotYet(f"{found[1]:,.0f} bytes is not what the weights take{hint}")
    return f"{rows / 2**20:.0f} MiB against {pairs / 2**30:.0f} GiB: {pairs // rows:,} times as much"


__all__ = ["SIZES", "delta", "key_nest", "memory_kept", "query_nest", "scores"]
