"""Small operators of every kind, each compiled and validated, and fuzz cases of one seed: what finds planted bugs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import by_name

from fuzz.mistakes import mistakes


def battery(validate: str = "quick") -> dict[str, Callable[[], Any]]:
    """Small operators of every kind, and those that the compiler was once wrong on, each compiled and validated."""
    import numpy as np
    from tvm import te

    import neptune_lab as nl
    from neptune_lab.operators import attention, custom, gemm_chain, norms, performer, rows
    from neptune_lab.operators import math as m

    def partial_norm(fold: int = 20, whole: int = 40) -> Any:
        x = te.placeholder((4, whole), "float32", name="x")
        j, k = te.reduce_axis((0, fold), name="j"), te.reduce_axis((0, whole), name="k")
        s = te.compute((4,), lambda i: te.sum(x[i, j] * x[i, j], axis=j), name="s")
        o = te.compute((4,), lambda i: te.sum(x[i, k] / te.sqrt(s[i] + 1.0), axis=k), name="o")
        return custom("partial", [x], [o])

    def wide_values(exchanged: bool = False) -> Any:
        kv, q = te.placeholder((12, 6), "float32", name="kv"), te.placeholder((6, 4), "float32", name="q")
        d, j, k = (te.reduce_axis((0, n), name=name) for n, name in ((4, "d"), (12, "j"), (12, "k")))
        s = te.compute((6, 12), lambda i, j: te.sum(q[i, d] * kv[j, d], axis=d), name="s")
        r = te.compute((6,), lambda i: te.max(s[i, j], axis=j), name="r")

        def term(i: Any, c: Any) -> Any:
            weight = te.exp(s[i, k] - r[i])
            return kv[k, c] * weight if exchanged else weight * kv[k, c]

        o = te.compute((6, 6), lambda i, c: te.sum(term(i, c), axis=k), name="o")
        return custom("wide", [q, kv], [o])

    def masked_twice() -> Any:
        x = te.placeholder((4, 24), "float32", name="x")
        j, k = te.reduce_axis((0, 24), name="j"), te.reduce_axis((0, 24), name="k")
        low = te.const(float("-inf"), "float32")
        zero = te.const(0.0, "float32")
        r = te.compute((4,), lambda i: te.max(te.if_then_else(j <= i + 9, x[i, j], low), axis=j), name="r")

        def weight(i: Any) -> Any:
            return te.if_then_else(k <= i + 9, te.exp(x[i, k] - r[i]), zero)

        o = te.compute((4,), lambda i: te.sum(weight(i), axis=k), name="o")
        return custom("masked", [x], [o])

    def powers() -> Any:
        x = te.placeholder((3, 10), "float32", name="x")
        j = te.reduce_axis((0, 10), name="j")
        return custom("powers", [x], [te.compute((3,), lambda i: te.sum(te.power(x[i, j], 5.0), axis=j), name="o")])

    def transposed() -> Any:
        a, b = te.placeholder((6, 8), "float32", name="a"), te.placeholder((5, 8), "float32", name="b")
        j = te.reduce_axis((0, 8), name="j")
        o = te.compute((5, 6), lambda c, i: te.sum(a[i, j] * b[c, j], axis=j), name="o")
        return custom("transposed", [a, b], [o])

    def largest() -> Any:
        x, y = te.placeholder((5, 12), "float32", name="x"), te.placeholder((5, 12), "float32", name="y")
        j, k = te.reduce_axis((0, 12), name="j"), te.reduce_axis((0, 12), name="k")
        r = te.compute((5,), lambda i: te.max(x[i, j], axis=j), name="r")
        return custom("largest", [x, y], [te.compute((5,), lambda i: te.sum(y[i, k] / r[i], axis=k), name="o")])

    def gram() -> Any:
        x = te.placeholder((6, 4), "float32", name="x")
        j, k = te.reduce_axis((0, 4), name="j"), te.reduce_axis((0, 4), name="k")
        norm = te.compute((6,), lambda i: te.sum(x[i, j] * x[i, j], axis=j), name="norm")
        o = te.compute((6, 6), lambda i, c: te.sum(x[i, k] * x[c, k] / (norm[i] + 1.0), axis=k), name="o")
        sch = nl.Schedule(custom("gram", [x], [o]))
        sch.fuse_under("o", "norm.i")
        return sch

    def sink(masked: bool = False) -> Any:
        x, s = te.placeholder((6, 24), "float32", name="x"), te.placeholder((6,), "float32", name="s")
        j, k = te.reduce_axis((0, 24), name="j"), te.reduce_axis((0, 24), name="k")
        low = te.const(float("-inf"), "float32")

        def score(i: Any, c: Any) -> Any:
            return te.if_then_else(c <= i * 5 - 7, x[i, c], low) if masked else x[i, c]

        r = te.compute((6,), lambda i: te.max(score(i, j), axis=j), name="r")
        top = te.compute((6,), lambda i: te.max(r[i], s[i]), name="top")
        o = te.compute((6,), lambda i: te.sum(te.exp(score(i, k) - top[i]), axis=k), name="o")
        return custom("sink", [x, s], [o])

    bias = np.random.default_rng(0).standard_normal((12, 12)).astype("float32")
    general = attention.general
    tiles, halves = {"block_q": 4, "block_kv": 4}, {"block_q": 32, "block_kv": 16}
    split = {"template": "split_k_update"}
    made: list[tuple[str, Callable[[], Any], dict[str, Any]]] = [
        ("causal", lambda: attention.causal(1, 2, 12, head_dim=4), tiles),
        ("causal with remainders", lambda: attention.causal(2, 2, 11, head_dim=3, return_lse=True), tiles),
        ("causal, wide tiles", lambda: attention.causal(1, 2, 40, head_dim=16), {"block_q": 16, "block_kv": 16}),
        ("window", lambda: attention.window(1, 1, 24, head_dim=4, window=6), tiles),
        ("prefix", lambda: attention.prefix(1, 1, 24, head_dim=4, prefix=5), tiles),
        ("groups", lambda: attention.gqa(1, 4, 9, head_dim=4, kv_heads=2), tiles),
        ("more queries than keys", lambda: attention.causal(1, 1, q_len=12, kv_len=6, head_dim=4), tiles),
        ("soft cap", lambda: attention.softcap(1, 1, 10, head_dim=4, cap=5.0, dtype="float32"), tiles),
        ("negative scale", lambda: attention.causal(1, 1, 12, head_dim=4, scale=-0.5), tiles),
        ("bias", lambda: general(1, 1, 12, 12, 4, lambda s, b, h, q, kv: s + bias[q, kv]), tiles),
        ("parity", lambda: general(1, 1, 12, 12, 4, lambda s, b, h, q, kv: s + (q - kv) % 3), tiles),
        ("quotients", lambda: general(1, 1, 12, 12, 4, lambda s, b, h, q, kv: s + (q - kv) // 3), tiles),
        ("lowest", lambda: general(1, 1, 12, 12, 4, lambda s, b, h, q, kv: m.where(q >= kv, s, -3.4e38)), tiles),
        ("two masks", lambda: general(1, 1, 24, 24, 4, mask_mod=lambda b, h, q, kv: (kv < 5) | (kv > q - 4)), tiles),
        ("a gap", lambda: general(1, 1, 24, 24, 4, mask_mod=lambda b, h, q, kv: (kv < 4) | (kv >= 17)), tiles),
        ("a gap, remainder", lambda: general(1, 1, 9, 23, 4, mask_mod=lambda b, h, q, kv: (kv < 4) | (kv > 16)), tiles),
        ("remainder", lambda: attention.full(1, 1, 11, head_dim=3), tiles),
        ("transposed product", transposed, tiles),
        ("factors exchanged", lambda: wide_values(True), tiles),
        ("by the largest", largest, {"template": "rolling_update", "block_kv": 4}),
        ("split", lambda: attention.causal(1, 2, 14, head_dim=4), {**split, "block_kv": 4, "splits": 2}),
        ("decode", lambda: attention.causal(1, 2, q_len=1, kv_len=50, head_dim=4), {}),
        ("softmax", lambda: rows.softmax(6, 22), {"block_q": 4, "block_kv": 4}),
        ("cross entropy", lambda: rows.cross_entropy(5, 21), {"block_kv": 8}),
        ("layer norm", lambda: norms.layer_norm(3, 21), {"block_kv": 4}),
        ("layer norm, whole", lambda: norms.layer_norm(3, 21), {}),
        ("quantised", lambda: norms.rms_norm_quantize(3, 20), {"block_kv": 8}),
        ("largest and norm", lambda: norms.rms_norm_max(3, 20), {"block_kv": 8}),
        ("chain", lambda: gemm_chain.gemm_chain(1, 12, 20, 4, 5), {"block_q": 4, "block_kv": 8}),
        ("performer", lambda: performer.performer(1, 1, 20, 4, 5), {}),
        ("partial norm", partial_norm, {}),
        ("partial norm, tiles", lambda: partial_norm(10, 23), {"block_kv": 8}),
        ("wide values", wide_values, {"block_q": 4, "block_kv": 4}),
        ("masked twice", masked_twice, {"block_kv": 8}),
        ("masked twice, split", masked_twice, {"template": "split_k_update", "block_kv": 8, "splits": 3}),
        ("sink", sink, {"block_kv": 8}),
        ("sink, masked", lambda: sink(True), {"block_q": 2, "block_kv": 8}),
        ("sink, split", sink, {**split, "block_kv": 8, "splits": 3}),
        ("powers", powers, {}),
        ("gram", gram, {}),
        ("interleaved", lambda: attention.causal(1, 1, 64, head_dim=16), {**halves, "interleave": 2}),
    ]

    def compiled(make: Callable[[], Any], options: dict[str, Any]) -> Any:
        options = dict(options)
        made = make()
        return (
            nl.compile(made, validate=validate)
            if isinstance(made, nl.Schedule)
            else by_name.compile(made, options.pop("template", None), validate=validate, **options)
        )

    return {name: (lambda make=make, options=options: compiled(make, options)) for name, make, options in made}


def validation() -> str:
    """The first operator of the battery that fails, and how; "" where none does."""
    from neptune_lab.errors import NeptuneError, ValidationError
    from neptune_lab.pipeline.validate import forget

    forget()
    refusable = mistakes()
    for name, compiled in (battery() | refusable).items():
        try:
            kernel = compiled()
        except ValidationError as error:
            return f"{name} ({error.stage})"
        except Exception as error:  # noqa: BLE001 - a compiler with a bug may fail anyhow
            if name in refusable and isinstance(error, NeptuneError):
                continue
            return f"{name} ({type(error).__name__})"
        if not kernel.validated.stages:
            return f"{name} (not validated)"
    return ""


def fuzzed(cases: int, seconds: float, first: int = 0) -> str:
    """The first failing case of a fixed seed, from case `first` on, in so many CPU seconds; "" where none fails."""
    from fuzz.one_case import run_one
    from fuzz.report import FAILURES

    end = time.process_time() + seconds
    for n in range(first, cases):
        if time.process_time() > end:
            break
        record = run_one((n, "mutants"))
        if record["verdict"] in FAILURES:
            return f"mutants:{n} ({record['verdict']})"
    return ""
