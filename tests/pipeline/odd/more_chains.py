"""Further chains: extrema, statistics, losses, several outputs, other dtypes."""

from __future__ import annotations

from tvm import te, tirx

from tests.pipeline.odd.define import C, X, odd, rx


@odd
def scores_without_q_and_k():
    n = 9
    _q, _k, v = X((n, 4), "q"), X((n, 4), "k"), X((n, 4), "v")
    r = [rx(n, f"r{x}") for x in range(3)]
    s = C((n, n), lambda i, j: te.abs(i.astype("float32") - j.astype("float32")) * -0.1, name="s")
    m = C((n,), lambda i: te.max(s[i, r[0]], axis=r[0]), name="m")
    l = C((n,), lambda i: te.sum(te.exp(s[i, r[1]] - m[i]), axis=r[1]), name="l")
    a = C((n, 4), lambda i, e: te.sum(te.exp(s[i, r[2]] - m[i]) * v[r[2], e], axis=r[2]), name="a")
    return [v], [C((n, 4), lambda i, e: a[i, e] / l[i], name="o")]


@odd
def no_repair():
    x = X((4, 9))
    j, k = rx(9, "j"), rx(9, "k")
    m = C((4,), lambda i: te.sum(x[i, j], axis=j), name="m")
    return [x], [C((4,), lambda i: te.sum(te.sin(x[i, k] * m[i]), axis=k), name="o")]


@odd
def median_like():
    x = X((3, 5))
    j, k, _l = rx(5, "j"), rx(5, "k"), rx(5, "l")
    rank = C((3, 5), lambda i, a: te.sum(tirx.if_then_else(x[i, j] < x[i, a], 1.0, 0.0), axis=j), name="rank")
    return [x], [C((3,), lambda i: te.sum(tirx.if_then_else(rank[i, k] == 2.0, x[i, k], 0.0), axis=k), name="o")]


@odd
def pairwise():
    x, y = X((6, 3)), X((7, 3), "y")
    c, j, k = rx(3, "c"), rx(7, "j"), rx(7, "k")
    d = C((6, 7), lambda i, j: te.sum((x[i, c] - y[j, c]) * (x[i, c] - y[j, c]), axis=c), name="d")
    m = C((6,), lambda i: te.min(d[i, j], axis=j), name="m")
    return [x, y], [C((6,), lambda i: te.sum(te.exp(m[i] - d[i, k]), axis=k), name="s")]


@odd
def bmm3():
    a, b, c = X((2, 5, 4), "a"), X((2, 4, 6), "b"), X((2, 6, 3), "c")
    k, l = rx(4, "k"), rx(6, "l")
    ab = C((2, 5, 6), lambda n, i, j: te.sum(a[n, i, k] * b[n, k, j], axis=k), name="ab")
    return [a, b, c], [C((2, 5, 3), lambda n, i, j: te.sum(ab[n, i, l] * c[n, l, j], axis=l), name="o")]


@odd
def gemm_t():
    a, b = X((4, 5), "a"), X((6, 4), "b")
    k = rx(4, "k")
    return [a, b], [C((5, 6), lambda i, j: te.sum(a[k, i] * b[j, k], axis=k), name="o")]


@odd
def gram():
    a = X((5, 4), "a")
    k = rx(4, "k")
    return [a], [C((5, 5), lambda i, j: te.sum(a[i, k] * a[j, k], axis=k), name="o")]


@odd
def half():
    x = X((4, 9), dtype="float16")
    j, k = rx(9, "j"), rx(9, "k")
    m = C((4,), lambda i: te.max(x[i, j].astype("float32"), axis=j), name="m")
    s = C((4,), lambda i: te.sum(te.exp(x[i, k].astype("float32") - m[i]), axis=k), name="s")
    return [x], [C((4, 9), lambda i, j: (te.exp(x[i, j].astype("float32") - m[i]) / s[i]).astype("float16"), name="o")]


@odd
def double():
    x = X((4, 9), dtype="float64")
    j, k = rx(9, "j"), rx(9, "k")
    m = C((4,), lambda i: te.max(x[i, j], axis=j), name="m")
    return [x], [C((4,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="s")]


@odd
def product_of_a_row():
    x = X((4, 5))
    j, k = rx(5, "j"), rx(5, "k")
    p = te.comm_reducer(lambda a, b: a * b, lambda t: tirx.const(1, t), name="prod")
    r = C((4,), lambda i: p(x[i, j], axis=j), name="r")
    return [x], [C((4,), lambda i: te.sum(x[i, k] * r[i], axis=k), name="o")]


@odd
def cumsum():
    x = X((4, 9))
    k = rx(9, "k")
    return [x], [C((4, 9), lambda i, j: te.sum(tirx.if_then_else(k <= j, x[i, k], 0.0), axis=k), name="o")]


@odd
def out_is_input_of():
    x = X((4, 9))
    k, _l = rx(9, "k"), rx(9, "l")
    y = C((4, 9), lambda i, j: x[i, j] * 2.0, name="y")
    m = C((4,), lambda i: te.max(y[i, k], axis=k), name="m")
    return [x], [y, m]


@odd
def shared_consumer():
    x = X((4, 9))
    k, l, n = rx(9, "k"), rx(9, "l"), rx(4, "n")
    m = C((4,), lambda i: te.max(x[i, k], axis=k), name="m")
    mm = C((1,), lambda _: te.max(m[n], axis=n), name="mm")
    s = C((4,), lambda i: te.sum(te.exp(x[i, l] - m[i]), axis=l), name="s")
    return [x], [mm, s, C((4,), lambda i: s[i] * mm[0], name="t")]


@odd
def bignorm():
    x = X((2, 3000))
    k, _l = rx(3000, "k"), rx(3000, "l")
    m = C((2,), lambda i: te.sum(x[i, k], axis=k), name="m")
    return [x], [C((2, 3000), lambda i, j: x[i, j] / (m[i] + 3000.0), name="o")]


@odd
def batchnorm():
    x, g = X((4, 3, 5, 5)), X((3,), "g")
    n, h, w, n2, h2, w2 = rx(4, "n"), rx(5, "h"), rx(5, "w"), rx(4, "n2"), rx(5, "h2"), rx(5, "w2")
    m = C((3,), lambda c: te.sum(x[n, c, h, w] / 100.0, axis=[n, h, w]), name="m")
    v = C(
        (3,),
        lambda c: te.sum((x[n2, c, h2, w2] - m[c]) * (x[n2, c, h2, w2] - m[c]) / 100.0, axis=[n2, h2, w2]),
        name="v",
    )
    return [x, g], [C((4, 3, 5, 5), lambda n, c, h, w: (x[n, c, h, w] - m[c]) / te.sqrt(v[c] + 1e-5) * g[c], name="o")]


@odd
def instancenorm():
    x = X((2, 3, 5, 7))
    h, w, h2, w2 = rx(5, "h"), rx(7, "w"), rx(5, "h2"), rx(7, "w2")
    m = C((2, 3), lambda n, c: te.sum(x[n, c, h, w] / 35.0, axis=[h, w]), name="m")
    v = C(
        (2, 3),
        lambda n, c: te.sum((x[n, c, h2, w2] - m[n, c]) * (x[n, c, h2, w2] - m[n, c]) / 35.0, axis=[h2, w2]),
        name="v",
    )
    return [x], [C((2, 3, 5, 7), lambda n, c, h, w: (x[n, c, h, w] - m[n, c]) / te.sqrt(v[n, c] + 1e-5), name="o")]


@odd
def two_layers():
    x, w1, w2 = X((6, 5)), X((5, 7), "w1"), X((7, 4), "w2")
    k, l = rx(5, "k"), rx(7, "l")
    h = C((6, 7), lambda i, j: te.sum(x[i, k] * w1[k, j], axis=k), name="h")
    g = C((6, 7), lambda i, j: tirx.max(h[i, j], 0.0), name="g")
    return [x, w1, w2], [C((6, 4), lambda i, j: te.sum(g[i, l] * w2[l, j], axis=l), name="o")]


@odd
def mlp_norm_residual():
    x, w1, w2 = X((6, 5)), X((5, 7), "w1"), X((7, 5), "w2")
    k, l, a, _b = rx(5, "k"), rx(7, "l"), rx(5, "a"), rx(5, "b")
    s = C((6,), lambda i: te.sum(x[i, a] * x[i, a], axis=a), name="s")
    xn = C((6, 5), lambda i, j: x[i, j] / te.sqrt(s[i] + 1e-5), name="xn")
    h = C((6, 7), lambda i, j: te.sum(xn[i, k] * w1[k, j], axis=k), name="h")
    g = C((6, 7), lambda i, j: h[i, j] * te.sigmoid(h[i, j]), name="g")
    y = C((6, 5), lambda i, j: te.sum(g[i, l] * w2[l, j], axis=l), name="y")
    return [x, w1, w2], [C((6, 5), lambda i, j: x[i, j] + y[i, j], name="o")]


@odd
def two_outputs_of_two_extrema():
    x = X((4, 9))
    a, b, c = rx(9, "a"), rx(9, "b"), rx(9, "c")
    m = C((4,), lambda i: te.max(x[i, a], axis=a), name="m")
    n = C((4,), lambda i: te.min(x[i, b], axis=b), name="n")
    return [x], [
        C((4,), lambda i: te.sum((x[i, c] - n[i]) / (m[i] - n[i] + 1.0), axis=c), name="o"),
        C((4, 9), lambda i, j: x[i, j] - m[i] * n[i], name="p"),
    ]


@odd
def covariance():
    x = X((7, 4))
    a, b = rx(7, "a"), rx(7, "b")
    m = C((4,), lambda j: te.sum(x[a, j] / 7.0, axis=a), name="m")
    return [x], [C((4, 4), lambda i, j: te.sum((x[b, i] - m[i]) * (x[b, j] - m[j]), axis=b), name="cov")]


@odd
def cosine_matrix():
    x = X((7, 4))
    a, b = rx(4, "a"), rx(4, "b")
    n = C((7,), lambda i: te.sum(x[i, a] * x[i, a], axis=a), name="n")
    d = C((7, 7), lambda i, j: te.sum(x[i, b] * x[j, b], axis=b), name="d")
    return [x], [C((7, 7), lambda i, j: d[i, j] / te.sqrt(n[i] * n[j] + 1e-6), name="o")]


@odd
def triangular():
    x = X((6, 6))
    k, l = rx(6, "k"), rx(6, "l")
    m = C((6,), lambda i: te.max(tirx.if_then_else(k <= i, x[i, k], -1e9), axis=k), name="m")
    return [x], [C((6,), lambda i: te.sum(tirx.if_then_else(l <= i, te.exp(x[i, l] - m[i]), 0.0), axis=l), name="s")]


@odd
def bool_out():
    x = X((4, 9))
    k = rx(9, "k")
    m = C((4,), lambda i: te.max(x[i, k], axis=k), name="m")
    return [x], [C((4, 9), lambda i, j: x[i, j] >= m[i], name="hit")]


@odd
def int_out():
    x = X((4, 9))
    k, l = rx(9, "k"), rx(9, "l")
    m = C((4,), lambda i: te.max(x[i, k], axis=k), name="m")
    return [x], [C((4,), lambda i: te.min(tirx.if_then_else(x[i, l] >= m[i], l, 9), axis=l), name="argmax")]


@odd
def any_of_a_row():
    x = X((4, 9), "x", "bool")
    k = rx(9, "k")
    anyr = te.comm_reducer(lambda a, b: tirx.any(a, b), lambda t: tirx.const(False, t), name="anyr")
    return [x], [C((4,), lambda i: anyr(x[i, k], axis=k), name="o")]


@odd
def variance_over_scalar():
    x = X((30,))
    a, b = rx(30, "a"), rx(30, "b")
    m = C((1,), lambda _: te.sum(x[a] / 30.0, axis=a), name="m")
    return [x], [C((1,), lambda _: te.sum((x[b] - m[0]) * (x[b] - m[0]), axis=b), name="v")]


@odd
def softmax_of_a_vector():
    x = X((30,))
    a, b = rx(30, "a"), rx(30, "b")
    m = C((1,), lambda _: te.max(x[a], axis=a), name="m")
    s = C((1,), lambda _: te.sum(te.exp(x[b] - m[0]), axis=b), name="s")
    return [x], [C((30,), lambda i: te.exp(x[i] - m[0]) / s[0], name="o")]


@odd
def softmax_of_a_vector_with_scalars():
    x = X((30,))
    a, b = rx(30, "a"), rx(30, "b")
    m = C((), lambda *_: te.max(x[a], axis=a), name="m")
    s = C((), lambda *_: te.sum(te.exp(x[b] - m()), axis=b), name="s")
    return [x], [C((30,), lambda i: te.exp(x[i] - m()) / s(), name="o")]


@odd
def big_matmul():
    a, b = X((70, 130), "a"), X((130, 90), "b")
    k = rx(130, "k")
    return [a, b], [C((70, 90), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="o")]


@odd
def topk_mask_chain():
    x = X((3, 7))
    r = [rx(7, f"r{n}") for n in range(4)]
    m1 = C((3,), lambda i: te.max(x[i, r[0]], axis=r[0]), name="m1")
    m2 = C((3,), lambda i: te.max(tirx.if_then_else(x[i, r[1]] < m1[i], x[i, r[1]], -1e30), axis=r[1]), name="m2")
    m3 = C((3,), lambda i: te.max(tirx.if_then_else(x[i, r[2]] < m2[i], x[i, r[2]], -1e30), axis=r[2]), name="m3")
    s = C(
        (3,),
        lambda i: te.sum(tirx.if_then_else(x[i, r[3]] >= m3[i], te.exp(x[i, r[3]] - m1[i]), 0.0), axis=r[3]),
        name="s",
    )
    return [x], [
        C((3, 7), lambda i, j: tirx.if_then_else(x[i, j] >= m3[i], te.exp(x[i, j] - m1[i]) / s[i], 0.0), name="o")
    ]


@odd
def log_softmax_nll_mean():
    x, w = X((5, 8)), X((5, 8), "w")
    k, l, q, i1 = rx(8, "k"), rx(8, "l"), rx(8, "q"), rx(5, "i1")
    m = C((5,), lambda i: te.max(x[i, k], axis=k), name="m")
    s = C((5,), lambda i: te.sum(te.exp(x[i, l] - m[i]), axis=l), name="s")
    n = C((5,), lambda i: te.sum(w[i, q] * (x[i, q] - m[i] - te.log(s[i])), axis=q), name="n")
    return [x, w], [C((1,), lambda _: te.sum(n[i1] * -0.2, axis=i1), name="loss")]


@odd
def power_iter():
    a, v = X((6, 6), "a"), X((6,), "v")
    r = [rx(6, f"r{n}") for n in range(6)]
    y1 = C((6,), lambda i: te.sum(a[i, r[0]] * v[r[0]], axis=r[0]), name="y1")
    n1 = C((1,), lambda _: te.sum(y1[r[1]] * y1[r[1]], axis=r[1]), name="n1")
    y2 = C((6,), lambda i: te.sum(a[i, r[2]] * y1[r[2]] / te.sqrt(n1[0]), axis=r[2]), name="y2")
    n2 = C((1,), lambda _: te.sum(y2[r[3]] * y2[r[3]], axis=r[3]), name="n2")
    return [a, v], [C((6,), lambda i: y2[i] / te.sqrt(n2[0]), name="o")]


@odd
def scan_like():
    x = X((3, 7))
    k = rx(7, "k")
    l = rx(7, "l")
    c = C((3, 7), lambda i, j: te.sum(tirx.if_then_else(k <= j, x[i, k], 0.0), axis=k), name="c")
    return [x], [C((3, 7), lambda i, j: te.max(tirx.if_then_else(l <= j, c[i, l], -1e30), axis=l), name="o")]


@odd
def features_with_eps():
    """Linear attention with features exp(…) + eps, which no repair term fits: keys and queries have a nest each."""
    seq, width, features = 5, 3, 7
    q, k, v = X((2, seq, width), "q"), X((2, seq, width), "k"), X((2, seq, width), "v")
    proj = X((features, width), "proj")
    c, i, m = rx(width, "c"), rx(seq, "i"), rx(features, "m")

    def feature_map(x, name, over):
        square = C((2, seq), lambda b, i: te.sum(x[b, i, c] * x[b, i, c], axis=c), name=f"{name}_square")
        half = C((2, seq), lambda b, i: 0.5 * square[b, i], name=f"{name}_half")
        dot = C((2, seq, features), lambda b, i, m: te.sum(x[b, i, c] * proj[m, c], axis=c), name=f"{name}_dot")
        most = over(dot)
        exps = C(
            (2, seq, features),
            lambda b, i, m: te.exp(dot[b, i, m] - half[b, i] - most(b, i)) + te.const(1e-3, "float32"),
            name=f"{name}_exp",
        )
        return exps

    def over_all(dot):
        most = C((2,), lambda b: te.max(dot[b, i, m], axis=[i, m]), name="k_max")
        return lambda b, i: most[b]

    def over_row(dot):
        most = C((2, seq), lambda b, i: te.max(dot[b, i, m], axis=m), name="q_max")
        return lambda b, i: most[b, i]

    keys = feature_map(k, "k", over_all)
    total = C((2, features), lambda b, m: te.sum(keys[b, i, m], axis=i), name="k_sum")
    kv = C((2, features, width), lambda b, m, d: te.sum(keys[b, i, m] * v[b, i, d], axis=i), name="kv")
    queries = feature_map(q, "q", over_row)
    den = C((2, seq), lambda b, i: te.sum(queries[b, i, m] * total[b, m], axis=m), name="den")
    num = C((2, seq, width), lambda b, i, d: te.sum(queries[b, i, m] * kv[b, m, d], axis=m), name="num")
    return [q, k, v, proj], [C((2, seq, width), lambda b, i, d: num[b, i, d] / den[b, i], name="out")]
