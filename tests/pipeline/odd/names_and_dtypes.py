"""Names like those that the compiler makes, and dtypes; scores that ignore their queries; extrema of two tensors."""

from __future__ import annotations

from tvm import te, tirx

from tests.pipeline.odd.define import C, X, odd, rx


@odd
def names_underscore():
    x = X((4, 9))
    a, b = rx(9, "b_"), rx(9, "i_0")
    m = C((4,), lambda n_1: te.max(x[n_1, a], axis=a), name="m")
    return [x], [C((4,), lambda j0: te.sum(te.exp(x[j0, b] - m[j0]), axis=b), name="o")]


@odd
def names_fallback():
    x = X((6, 7))
    j, k = rx(6, "j0"), rx(7, "k_")
    c = C((7,), lambda a_: te.max(te.abs(x[j, a_]), axis=j), name="c")
    return [x], [C((6,), lambda i_0: te.sum(x[i_0, k] / (c[k] + 1.0), axis=k), name="r")]


@odd
def names_like_made():
    x = X((6, 7))
    j, k = rx(7, "j"), rx(7, "j1")
    m = C((6,), lambda i: te.max(x[i, j], axis=j), name="o_chip")
    return [x], [C((6,), lambda i0: te.sum(te.exp(x[i0, k] - m[i0]), axis=k), name="o")]


@odd
def six_outputs():
    x = X((5, 9))
    r = [rx(9, f"r{n}") for n in range(6)]
    c = [rx(5, f"c{n}") for n in range(3)]
    a = C((5,), lambda i: te.max(x[i, r[0]], axis=r[0]), name="a")
    b = C((5,), lambda i: te.min(x[i, r[1]], axis=r[1]), name="b")
    d = C((9,), lambda j: te.sum(x[c[0], j], axis=c[0]), name="d")
    e = C((9,), lambda j: te.max(x[c[1], j] * a[c[1]], axis=c[1]), name="e")
    f = C((5, 9), lambda i, j: x[i, j] * d[j] + a[i], name="f")
    g = C((1,), lambda _: te.sum(b[c[2]], axis=c[2]), name="g")
    return [x], [a, b, d, e, f, g]


@odd
def half_matmul_strided():
    a, b = X((20, 40), "a", "float16"), X((20, 24), "b", "float16")
    k = rx(20, "k")
    return [a, b], [C((20, 24), lambda i, j: te.sum((a[i, k * 2] * b[k, j]).astype("float32"), axis=k), name="o")]


@odd
def gemm_gather_t():
    a, b, p = X((20, 40), "a"), X((20, 24), "b"), X((20,), "p", "int32")
    k = rx(20, "k")
    return [a, b, p], [C((20, 24), lambda i, j: te.sum(a[i, p[k]] * b[k, j], axis=k), name="o")]


@odd
def int_mm():
    a, b = X((20, 18), "a", "int32"), X((18, 24), "b", "int32")
    k = rx(18, "k")
    return [a, b], [C((20, 24), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="o")]


@odd
def int8_mm():
    a, b = X((20, 18), "a", "int8"), X((18, 24), "b", "int8")
    k = rx(18, "k")
    return [a, b], [
        C((20, 24), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k), name="o")
    ]


@odd
def scores_ignore():
    n = 9
    q, k, v = X((n, 4), "q"), X((n, 4), "k"), X((n, 4), "v")
    c, r0, r1, r2 = rx(4, "c"), rx(n, "r0"), rx(n, "r1"), rx(n, "r2")
    s = C((n, n), lambda i, j: te.sum(q[i, c] * k[j, c], axis=c), name="s")
    f = C((n, n), lambda i, j: (i - j).astype("float32") * 0.1, name="f")
    m = C((n,), lambda i: te.max(f[i, r0], axis=r0), name="m")
    l = C((n,), lambda i: te.sum(te.exp(f[i, r1] - m[i]), axis=r1), name="l")
    a = C((n, 4), lambda i, e: te.sum(te.exp(f[i, r2] - m[i]) * v[r2, e], axis=r2), name="a")
    return [q, k, v], [C((n, 4), lambda i, e: a[i, e] / l[i], name="o"), s]


@odd
def minmax_norm():
    x = X((5, 9))
    a, b = rx(9, "a"), rx(9, "b")
    m = C((5,), lambda i: te.max(x[i, a], axis=a), name="m")
    n = C((5,), lambda i: te.min(x[i, b], axis=b), name="n")
    return [x], [C((5, 9), lambda i, j: (x[i, j] - n[i]) / (m[i] - n[i] + 1e-6), name="o")]


@odd
def two_max_tensors():
    x, y = X((5, 9)), X((5, 9), "y")
    a, b, c = rx(9, "a"), rx(9, "b"), rx(9, "c")
    m = C((5,), lambda i: te.max(x[i, a], axis=a), name="m")
    n = C((5,), lambda i: te.max(y[i, b], axis=b), name="n")
    return [x, y], [C((5,), lambda i: te.sum(te.exp(x[i, c] - m[i]) * te.exp(y[i, c] - n[i]), axis=c), name="o")]


@odd
def const_stage():
    x = X((4,))
    c = C((4,), lambda i: tirx.const(2.0, "float32"), name="c")
    return [x], [C((4,), lambda i: x[i] * c[i], name="o")]


@odd
def where_index():
    x = X((4, 8))
    k, l = rx(8, "k"), rx(8, "l")
    m = C((4,), lambda i: te.max(tirx.if_then_else(te.indexmod(k, 2) == 0, x[i, k], -1e9), axis=k), name="m")
    return [x], [
        C(
            (4,),
            lambda i: te.sum(tirx.if_then_else(te.indexmod(l, 2) == 0, te.exp(x[i, l] - m[i]), 0.0), axis=l),
            name="o",
        )
    ]


def mm(s, w, k):
    return lambda a, b: te.sum(s[a, k] * w[k, b], axis=k)


def mx(y, j):
    return lambda b: te.max(te.abs(y[j, b]), axis=j)


def dv(y, m):
    return lambda a, b: y[a, b] / (m[b] + 1.0)
