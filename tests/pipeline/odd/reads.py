"""Reads that are no plain tile: strides, reversals, diagonals, windows, reshapes, tables."""

from __future__ import annotations

from tvm import te, tirx

from tests.pipeline.odd.define import C, X, odd, rx


@odd
def group_norm():
    x = X((2, 12, 10))
    j, h, j2, h2 = rx(4, "j"), rx(10, "h"), rx(4, "j2"), rx(10, "h2")
    s = C((2, 3), lambda n, g: te.sum(x[n, g * 4 + j, h], axis=[j, h]), name="s")
    v = C(
        (2, 3),
        lambda n, g: te.sum(
            (x[n, g * 4 + j2, h2] - s[n, g] / 40.0) * (x[n, g * 4 + j2, h2] - s[n, g] / 40.0), axis=[j2, h2]
        ),
        name="v",
    )
    o = C(
        (2, 12, 10),
        lambda n, c, h: (x[n, c, h] - s[n, te.indexdiv(c, 4)] / 40.0) / te.sqrt(v[n, te.indexdiv(c, 4)] / 40.0 + 1e-5),
        name="o",
    )
    return [x], [o]


@odd
def transpose():
    x = X((5, 9))
    return [x], [C((9, 5), lambda i, j: x[j, i], name="o")]


@odd
def product_with_its_transpose():
    x = X((7, 7))
    k = rx(7, "k")
    s = C((7,), lambda i: te.sum(x[i, k] * x[k, i], axis=k), name="s")
    return [x], [s]


@odd
def diagonal():
    x = X((7, 7))
    k = rx(7, "k")
    d = C((7,), lambda i: x[i, i], name="d")
    return [x], [C((7,), lambda i: te.sum(te.exp(x[i, k] - d[i]), axis=k), name="o")]


@odd
def trace():
    x = X((7, 7))
    k = rx(7, "k")
    return [x], [C((1,), lambda i: te.sum(x[k, k], axis=k), name="o")]


@odd
def strided():
    x = X((4, 20))
    j, k = rx(10, "j"), rx(10, "k")
    m = C((4,), lambda i: te.max(x[i, j * 2], axis=j), name="m")
    return [x], [C((4,), lambda i: te.sum(te.exp(x[i, k * 2 + 1] - m[i]), axis=k), name="o")]


@odd
def reversed_reads():
    x = X((4, 11))
    j, k = rx(11, "j"), rx(11, "k")
    m = C((4,), lambda i: te.max(x[i, 10 - j], axis=j), name="m")
    return [x], [C((4,), lambda i: te.sum(te.exp(x[i, 10 - k] - m[i]), axis=k), name="o")]


@odd
def flip():
    x = X((4, 11))
    return [x], [C((4, 11), lambda i, j: x[i, 10 - j], name="o")]


@odd
def offsets():
    x = X((4, 20))
    j, k = rx(10, "j"), rx(10, "k")
    m = C((4,), lambda i: te.max(x[i, j + 3], axis=j), name="m")
    return [x], [C((4,), lambda i: te.sum(te.exp(x[i, k + 5] - m[i]), axis=k), name="o")]


@odd
def concat():
    a, b = X((4, 5), "a"), X((4, 6), "b")
    j, k = rx(11, "j"), rx(11, "k")
    c = C((4, 11), lambda i, j: tirx.if_then_else(j < 5, a[i, tirx.min(j, 4)], b[i, tirx.max(j - 5, 0)]), name="c")
    m = C((4,), lambda i: te.max(c[i, j], axis=j), name="m")
    return [a, b], [C((4,), lambda i: te.sum(te.exp(c[i, k] - m[i]), axis=k), name="o")]


@odd
def concat2():
    a, b = X((4, 5), "a"), X((4, 6), "b")
    return [a, b], [C((4, 11), lambda i, j: tirx.if_then_else(j < 5, a[i, j], b[i, j - 5]), name="c")]


@odd
def conv1d():
    x, w = X((4, 20)), X((3,), "w")
    k, _l = rx(3, "k"), rx(18, "l")
    c = C((4, 18), lambda i, t: te.sum(x[i, t + k] * w[k], axis=k), name="c")
    return [x, w], [c]


@odd
def conv_softmax():
    x, w = X((4, 20)), X((3,), "w")
    k, l, l2 = rx(3, "k"), rx(18, "l"), rx(18, "l2")
    c = C((4, 18), lambda i, t: te.sum(x[i, t + k] * w[k], axis=k), name="c")
    m = C((4,), lambda i: te.max(c[i, l], axis=l), name="m")
    return [x, w], [C((4,), lambda i: te.sum(te.exp(c[i, l2] - m[i]), axis=l2), name="s")]


@odd
def conv2d():
    x, w = X((2, 3, 8, 9)), X((4, 3, 3, 3), "w")
    c, a, b = rx(3, "c"), rx(3, "a"), rx(3, "b")
    return [x, w], [
        C((2, 4, 6, 7), lambda n, o, y, z: te.sum(x[n, c, y + a, z + b] * w[o, c, a, b], axis=[c, a, b]), name="y")
    ]


@odd
def maxpool():
    x = X((2, 3, 8, 8))
    a, b = rx(2, "a"), rx(2, "b")
    return [x], [C((2, 3, 4, 4), lambda n, c, y, z: te.max(x[n, c, y * 2 + a, z * 2 + b], axis=[a, b]), name="y")]


@odd
def five_dimensions_reversed():
    x = X((2, 3, 2, 3, 4))
    return [x], [C((4, 3, 2, 3, 2), lambda i, j, k, l, m: x[m, l, k, j, i], name="o")]


@odd
def reshape():
    x = X((4, 6))
    return [x], [C((24,), lambda i: x[te.indexdiv(i, 6), te.indexmod(i, 6)], name="o")]


@odd
def reshape_sum():
    x = X((4, 6))
    k = rx(24, "k")
    return [x], [C((1,), lambda i: te.sum(x[te.indexdiv(k, 6), te.indexmod(k, 6)], axis=k), name="o")]


@odd
def gather():
    x, idx = X((10, 6)), X((5,), "idx", "int32")
    k, l = rx(6, "k"), rx(6, "l")
    g = C((5, 6), lambda i, j: x[idx[i], j], name="g")
    m = C((5,), lambda i: te.max(g[i, k], axis=k), name="m")
    return [x, idx], [C((5,), lambda i: te.sum(te.exp(g[i, l] - m[i]), axis=l), name="o")]


@odd
def window_norm():
    x = X((3, 16))
    k, l = rx(4, "k"), rx(4, "l")
    m = C((3, 13), lambda i, t: te.max(x[i, t + k], axis=k), name="m")
    return [x], [C((3, 13), lambda i, t: te.sum(te.exp(x[i, t + l] - m[i, t]), axis=l), name="s")]


@odd
def clamp_gather():
    x = X((3, 16))
    rx(16, "k")
    return [x], [
        C((3, 16), lambda i, j: x[i, tirx.max(tirx.min(j * 2, 15), 0)] + x[i, te.indexmod(j * 7, 16)], name="s")
    ]


@odd
def upsample():
    x = X((3, 8))
    k, l = rx(16, "k"), rx(16, "l")
    m = C((3,), lambda i: te.max(x[i, te.indexdiv(k, 2)], axis=k), name="m")
    return [x], [C((3,), lambda i: te.sum(te.exp(x[i, te.indexdiv(l, 2)] - m[i]), axis=l), name="s")]


@odd
def relative_bias():
    n = 9
    q, k, v, t = X((2, n, 4), "q"), X((2, n, 4), "k"), X((2, n, 4), "v"), X((2, 2 * n - 1), "tab")
    c, a, b, e_ = rx(4, "c"), rx(n, "a"), rx(n, "b"), rx(n, "e_")
    s = C((2, n, n), lambda h, i, j: te.sum(q[h, i, c] * k[h, j, c], axis=c), name="s")
    f = C((2, n, n), lambda h, i, j: s[h, i, j] * 0.5 + t[h, i - j + n - 1], name="f")
    m = C((2, n), lambda h, i: te.max(f[h, i, a], axis=a), name="m")
    l = C((2, n), lambda h, i: te.sum(te.exp(f[h, i, b] - m[h, i]), axis=b), name="l")
    o = C((2, n, 4), lambda h, i, d: te.sum(te.exp(f[h, i, e_] - m[h, i]) * v[h, e_, d], axis=e_), name="o")
    return [q, k, v, t], [C((2, n, 4), lambda h, i, d: o[h, i, d] / l[h, i], name="out")]


@odd
def table_by_permutation():
    x, p, t = X((5, 8)), X((8,), "p", "int32"), X((8,), "t")
    k, l = rx(8, "k"), rx(8, "l")
    m = C((5,), lambda i: te.max(x[i, k] + t[p[k]], axis=k), name="m")
    return [x, p, t], [C((5,), lambda i: te.sum(te.exp(x[i, l] + t[p[l]] - m[i]), axis=l), name="s")]


@odd
def embedding_rms():
    w, i_ = X((10, 16), "w"), X((6,), "ids", "int32")
    k = rx(16, "k")
    e = C((6, 16), lambda i, j: w[i_[i], j], name="e")
    s = C((6,), lambda i: te.sum(e[i, k] * e[i, k], axis=k), name="s")
    return [w, i_], [C((6, 16), lambda i, j: e[i, j] / te.sqrt(s[i] / 16.0 + 1e-5), name="o")]


@odd
def nested_gather():
    w, a, b = X((10, 4), "w"), X((7,), "a", "int32"), X((5,), "b", "int32")
    return [w, a, b], [C((5, 4), lambda i, j: w[a[tirx.min(b[i], 6)], j], name="o")]


@odd
def cross_entropy_gather():
    x, y = X((5, 8)), X((5,), "y", "int32")
    k, l = rx(8, "k"), rx(8, "l")
    m = C((5,), lambda i: te.max(x[i, k], axis=k), name="m")
    s = C((5,), lambda i: te.sum(te.exp(x[i, l] - m[i]), axis=l), name="s")
    return [x, y], [C((5,), lambda i: te.log(s[i]) + m[i] - x[i, y[i]], name="loss")]


@odd
def rope():
    x, c, s = X((6, 8)), X((6, 8), "c"), X((6, 8), "s_")
    return [x, c, s], [
        C(
            (6, 8),
            lambda i, j: (
                x[i, j] * c[i, j]
                + tirx.if_then_else(j < 4, -x[i, tirx.min(j + 4, 7)], x[i, tirx.max(j - 4, 0)]) * s[i, j]
            ),
            name="o",
        )
    ]


@odd
def rope_attention():
    n = 6
    q, k, v, c = X((n, 8), "q"), X((n, 8), "k"), X((n, 8), "v"), X((n, 8), "c")
    d, a, b, e_ = rx(8, "d"), rx(n, "a"), rx(n, "b"), rx(n, "e_")
    rq = C(
        (n, 8),
        lambda i, j: (
            q[i, j] * c[i, j] + tirx.if_then_else(j < 4, -q[i, te.indexmod(j + 4, 8)], q[i, te.indexmod(j + 4, 8)])
        ),
        name="rq",
    )
    rk = C(
        (n, 8),
        lambda i, j: (
            k[i, j] * c[i, j] + tirx.if_then_else(j < 4, -k[i, te.indexmod(j + 4, 8)], k[i, te.indexmod(j + 4, 8)])
        ),
        name="rk",
    )
    s = C((n, n), lambda i, j: te.sum(rq[i, d] * rk[j, d], axis=d), name="s")
    m = C((n,), lambda i: te.max(s[i, a], axis=a), name="m")
    l = C((n,), lambda i: te.sum(te.exp(s[i, b] - m[i]), axis=b), name="l")
    o = C((n, 8), lambda i, j: te.sum(te.exp(s[i, e_] - m[i]) * v[e_, j], axis=e_), name="o")
    return [q, k, v, c], [C((n, 8), lambda i, j: o[i, j] / l[i], name="out")]


@odd
def keys_permuted_by_arithmetic():
    n = 6
    q, k, v = X((n, 8), "q"), X((n, 8), "k"), X((n, 8), "v")
    d, a, b, e_ = rx(8, "d"), rx(n, "a"), rx(n, "b"), rx(n, "e_")
    s = C((n, n), lambda i, j: te.sum(q[i, d] * k[te.indexmod(j * 5 + 1, n), d], axis=d), name="s")
    m = C((n,), lambda i: te.max(s[i, a], axis=a), name="m")
    l = C((n,), lambda i: te.sum(te.exp(s[i, b] - m[i]), axis=b), name="l")
    o = C((n, 8), lambda i, j: te.sum(te.exp(s[i, e_] - m[i]) * v[e_, j], axis=e_), name="o")
    return [q, k, v], [C((n, 8), lambda i, j: o[i, j] / l[i], name="out")]


@odd
def chunk_max():
    x = X((4, 12))
    a, b = rx(3, "a"), rx(12, "b")
    m = C((4, 4), lambda i, g: te.max(x[i, g * 3 + a], axis=a), name="m")
    return [x], [C((4,), lambda i: te.sum(te.exp(x[i, b] - m[i, te.indexdiv(b, 3)]), axis=b), name="o")]


@odd
def quant_group():
    x = X((4, 12))
    a = rx(4, "a")
    m = C((4, 3), lambda i, g: te.max(te.abs(x[i, g * 4 + a]), axis=a), name="m")
    return [x], [
        m,
        C((4, 12), lambda i, j: te.round(x[i, j] / (m[i, te.indexdiv(j, 4)] + 1e-6) * 127.0).astype("int8"), name="q"),
    ]


@odd
def pad_conv():
    x, w = X((2, 10)), X((3,), "w")
    k = rx(3, "k")
    p = C((2, 12), lambda i, j: tirx.if_then_else(tirx.all(j >= 1, j < 11), x[i, j - 1], 0.0), name="p")
    return [x, w], [C((2, 10), lambda i, j: te.sum(p[i, j + k] * w[k], axis=k), name="o")]


@odd
def stencil2():
    x = X((3, 10))
    a = C((3, 8), lambda i, j: x[i, j] + x[i, j + 1] + x[i, j + 2], name="a")
    return [x], [C((3, 6), lambda i, j: a[i, j] + a[i, j + 2], name="b")]


@odd
def conv_of_softmax():
    x, w = X((3, 10)), X((3,), "w")
    a, b, k = rx(10, "a"), rx(10, "b"), rx(3, "k")
    m = C((3,), lambda i: te.max(x[i, a], axis=a), name="m")
    s = C((3,), lambda i: te.sum(te.exp(x[i, b] - m[i]), axis=b), name="s")
    p = C((3, 10), lambda i, j: te.exp(x[i, j] - m[i]) / s[i], name="p")
    return [x, w], [C((3, 8), lambda i, j: te.sum(p[i, j + k] * w[k], axis=k), name="o")]


@odd
def long_strided():
    x = X((2, 9000))
    k = rx(3000, "k")
    return [x], [C((2,), lambda i: te.sum(x[i, k * 3], axis=k), name="o")]


@odd
def big_outer():
    a, b = X((70,), "a"), X((300,), "b")
    rx(300, "k")
    return [a, b], [C((70, 300), lambda i, j: a[i] * b[j] + a[te.indexmod(i + j, 70)], name="o")]


@odd
def bfloat16_reversed():
    x = X((4, 9), "x", "bfloat16")
    j, k = rx(9, "j"), rx(9, "k")
    m = C((4,), lambda i: te.max(x[i, 8 - j].astype("float32"), axis=j), name="m")
    return [x], [C((4,), lambda i: te.sum(te.exp(x[i, 8 - k].astype("float32") - m[i]), axis=k), name="s")]


@odd
def bool_gather():
    x, mk, idx = X((4, 9)), X((20,), "mk", "bool"), X((9,), "idx", "int32")
    k = rx(9, "k")
    return [x, mk, idx], [C((4,), lambda i: te.sum(tirx.if_then_else(mk[idx[k] * 2], x[i, k], 0.0), axis=k), name="s")]


@odd
def flatten_matmul():
    x, w = X((4, 2, 3)), X((6, 5), "w")
    k = rx(6, "k")
    return [x, w], [
        C((4, 5), lambda i, j: te.sum(x[i, te.indexdiv(k, 3), te.indexmod(k, 3)] * w[k, j], axis=k), name="o")
    ]
