"""Attention in TileLang: one pass over the keys with a running maximum, for full and causal masks, with fixed tiles."""
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from functools import cache
from typing import Any

from neptune_lab.bench.drawn.optional.common import flat, plain_refusal
from neptune_lab.bench.drawn.problems import Problem
from neptune_lab.bench.peers import Ready

ROWS, COLUMNS, STAGES, THREADS = 128, 64, 2, 256


def refuses(problem: Problem) -> str:
    """Why the kernel does not compute the problem; empty if it does."""
    return plain_refusal(problem)


def prepared(problem: Problem, given: Any) -> Ready:
    """The kernel on these tensors, which are copied once if they are views or groups share keys; copies are not timed.

    Args:
        given: `attention.Inputs`.
    """
    import tilelang  # type: ignore[import-not-found]

    q, k, v = flat(given)
    function = attention(*q.shape, k.shape[1], v.shape[2], problem.dtype, problem.mask == "causal")
    kernel = tilelang.compile(function, out_idx=[3])
    shape = (*given.q.shape[:3], v.shape[-1])
    return Ready(lambda: kernel(q, k, v).view(shape), "fixed tiles, not autotuned")


@cache
def attention(heads: int, queries: int, width: int, keys: int, columns: int, dtype: str, causal: bool) -> Any:
    """TileLang's program of q (heads, queries, width), k and v (heads, keys, width); the last query sees all keys."""
    import tilelang.language as T  # type: ignore[import-not-found]

    scale, ahead = 1.4426950408889634 * width**-0.5, keys - queries

    @T.prim_func
    def kernel(
        q: T.Tensor((heads, queries, width), dtype),
        k: T.Tensor((heads, keys, width), dtype),
        v: T.Tensor((heads, keys, columns), dtype),
        out: T.Tensor((heads, queries, columns), dtype),
    ):
        with T.Kernel(T.ceildiv(queries, ROWS), heads, threads=THREADS) as (block, head):
            q_tile = T.alloc_shared((ROWS, width), dtype)
            k_tile = T.alloc_shared((COLUMNS, width), dtype)
            v_tile = T.alloc_shared((COLUMNS, columns), dtype)
            scores = T.alloc_fragment((ROWS, COLUMNS), "float32")
            weights = T.alloc_fragment((ROWS, COLUMNS), dtype)
            sums = T.alloc_fragment((ROWS, columns), "float32")
            largest = T.alloc_fragment((ROWS,), "float32")
            before = T.alloc_fragment((ROWS,), "float32")
            repair = T.alloc_fragment((ROWS,), "float32")
            part = T.alloc_fragment((ROWS,), "float32")
            total = T.alloc_fragment((ROWS,), "float32")
            T.copy(q[head, block * ROWS : (block + 1) * ROWS, :], q_tile)
            T.fill(sums, 0)
            T.fill(total, 0)
            T.fill(largest, -(2.0**30))
            last = (
                T.min(T.ceildiv(keys, COLUMNS), T.ceildiv((block + 1) * ROWS + ahead, COLUMNS))
                if causal
                else T.ceildiv(keys, COLUMNS)
            )
            for step in T.Pipelined(last, num_stages=STAGES):
                T.copy(k[head, step * COLUMNS : (step + 1) * COLUMNS, :], k_tile)
                T.copy(v[head, step * COLUMNS : (step + 1) * COLUMNS, :], v_tile)
                T.clear(scores)
                T.gemm(q_tile, k_tile, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(largest, before)
                for i, j in T.Parallel(ROWS, COLUMNS):
                    column = step * COLUMNS + j
                    seen = T.And(column < keys, column <= block * ROWS + i + ahead) if causal else column < keys
                    scores[i, j] = T.if_then_else(seen, scores[i, j] * scale, -(2.0**30))
                T.reduce_max(scores, largest, dim=1, clear=False)
                for i in T.Parallel(ROWS):
                    repair[i] = T.exp2(before[i] - largest[i])
                for i, j in T.Parallel(ROWS, COLUMNS):
                    scores[i, j] = T.exp2(scores[i, j] - largest[i])
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(ROWS):
                    total[i] = total[i] * repair[i] + part[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(ROWS, columns):
                    sums[i, j] *= repair[i]
                T.gemm(weights, v_tile, sums, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(ROWS, columns):
                sums[i, j] /= total[i]
            T.copy(sums, out[head, block * ROWS : (block + 1) * ROWS, :])

    return kernel


__all__ = ["attention", "prepared", "refuses"]
