"""Chains of reductions that share no loop, or only in part."""

from __future__ import annotations

from tvm import te, tirx

from tests.pipeline.odd.define import C, X, odd, rx


@odd
def linear_attention():
    n, d, e = 12, 6, 5
    q, k, v = X((n, d), "q"), X((n, d), "k"), X((n, e), "v")
    j, a, b, j2 = rx(n, "j"), rx(d, "a"), rx(d, "b"), rx(n, "j2")
    fk = C((n, d), lambda j, a: te.exp(k[j, a]), name="fk")
    kv = C((d, e), lambda a, e: te.sum(fk[j, a] * v[j, e], axis=j), name="kv")
    z = C((d,), lambda a: te.sum(fk[j2, a], axis=j2), name="z")
    num = C((n, e), lambda i, e: te.sum(te.exp(q[i, a]) * kv[a, e], axis=a), name="num")
    den = C((n,), lambda i: te.sum(te.exp(q[i, b]) * z[b], axis=b), name="den")
    return [q, k, v], [C((n, e), lambda i, e: num[i, e] / den[i], name="o")]


@odd
def column_sum_then_product():
    x, y = X((6, 7)), X((9, 7), "y")
    j, k = rx(9, "j"), rx(7, "k")
    z = C((7,), lambda a: te.sum(y[j, a], axis=j), name="z")
    return [x, y], [C((6,), lambda i: te.sum(x[i, k] * z[k], axis=k), name="d")]


@odd
def column_scale_then_row_sum():
    x = X((6, 7))
    j, k = rx(6, "j"), rx(7, "k")
    c = C((7,), lambda a: te.max(te.abs(x[j, a]), axis=j), name="c")
    return [x], [C((6,), lambda i: te.sum(x[i, k] / (c[k] + 1.0), axis=k), name="r")]


@odd
def qk_norm():
    n, d = 12, 8
    q, k, v = X((n, d), "q"), X((n, d), "k"), X((n, d), "v")
    a, b, c, j1, j2, j3 = rx(d, "a"), rx(d, "b"), rx(d, "c"), rx(n, "j1"), rx(n, "j2"), rx(n, "j3")
    qn = C((n,), lambda i: te.sum(q[i, a] * q[i, a], axis=a), name="qn")
    kn = C((n,), lambda j: te.sum(k[j, b] * k[j, b], axis=b), name="kn")
    s = C(
        (n, n), lambda i, j: te.sum(q[i, c] / te.sqrt(qn[i] + 1e-6) * k[j, c] / te.sqrt(kn[j] + 1e-6), axis=c), name="s"
    )
    m = C((n,), lambda i: te.max(s[i, j1], axis=j1), name="m")
    p = C((n, n), lambda i, j: te.exp(s[i, j] - m[i]), name="p")
    l = C((n,), lambda i: te.sum(p[i, j2], axis=j2), name="l")
    o = C((n, d), lambda i, e: te.sum(p[i, j3] * v[j3, e], axis=j3), name="acc")
    return [q, k, v], [C((n, d), lambda i, e: o[i, e] / l[i], name="o")]


@odd
def constant_of_a_row():
    v, x = X((5, 8), "v"), X((5, 8))
    k, _l = rx(8, "k"), rx(8, "l")
    c = C((5,), lambda i: v[i, 0], name="c")
    s = C((5,), lambda i: te.sum(te.exp(x[i, k] - c[i]), axis=k), name="s")
    return [v, x], [s]


@odd
def maximum_with_a_sink():
    x, snk = X((5, 8)), X((5,), "snk")
    k, l, _l2 = rx(8, "k"), rx(8, "l"), rx(8, "l2")
    m = C((5,), lambda i: te.max(x[i, k], axis=k), name="m")
    ms = C((5,), lambda i: tirx.max(m[i], snk[i]), name="ms")
    e = C((5,), lambda i: te.sum(te.exp(x[i, l] - ms[i]), axis=l), name="e")
    o = C((5, 8), lambda i, j: te.exp(x[i, j] - ms[i]) / (e[i] + te.exp(snk[i] - ms[i])), name="o")
    return [x, snk], [o]


@odd
def partial_rms_norm():
    x = X((4, 40))
    j, k = rx(20, "j"), rx(40, "k")
    s = C((4,), lambda i: te.sum(x[i, j] * x[i, j], axis=j), name="s")
    return [x], [C((4,), lambda i: te.sum(x[i, k] / te.sqrt(s[i] + 1.0), axis=k), name="o")]


@odd
def values_wider_than_keys():
    kv, q = X((12, 24), "kv"), X((5, 16), "q")
    d, j1, j2, j3 = rx(16, "d"), rx(12, "j1"), rx(12, "j2"), rx(12, "j3")
    s = C((5, 12), lambda i, j: te.sum(q[i, d] * kv[j, d], axis=d), name="s")
    m = C((5,), lambda i: te.max(s[i, j1], axis=j1), name="m")
    l = C((5,), lambda i: te.sum(te.exp(s[i, j2] - m[i]), axis=j2), name="l")
    acc = C((5, 24), lambda i, e: te.sum(te.exp(s[i, j3] - m[i]) * kv[j3, e], axis=j3), name="acc")
    return [kv, q], [C((5, 24), lambda i, e: acc[i, e] / l[i], name="o")]


@odd
def sums_that_wait_for_each_other():
    x, w = X((12, 12)), X((12, 12), "w")
    j, k, l = rx(12, "j"), rx(5, "k"), rx(12, "l")
    r = C((12,), lambda i: te.max(x[i, j], axis=j), name="r")
    s = C((12,), lambda i: te.sum(w[k, i] * r[i], axis=k), name="s")
    o = C((12,), lambda i: te.sum(w[i, l] * te.exp(x[i, l] - r[i]) / s[i], axis=l), name="o")
    return [x, w], [o]


@odd
def several_outputs():
    x = X((5, 9))
    j, k = rx(9, "j"), rx(9, "k")
    m = C((5,), lambda i: te.max(x[i, j], axis=j), name="m")
    s = C((5,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="s")
    p = C((5, 9), lambda i, j: te.exp(x[i, j] - m[i]) / s[i], name="p")
    return [x], [m, s, p]


@odd
def independent_chains():
    x, y = X((5, 9)), X((4, 7), "y")
    j, k, a = rx(9, "j"), rx(9, "k"), rx(7, "a")
    m = C((5,), lambda i: te.max(x[i, j], axis=j), name="m")
    s = C((5,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="s")
    t = C((4,), lambda i: te.sum(y[i, a], axis=a), name="t")
    u = C((4, 7), lambda i, j: y[i, j] * 2.0, name="u")
    return [x, y], [s, t, u]


@odd
def elementwise():
    x, y = X((5, 9)), X((5, 9), "y")
    return [x, y], [C((5, 9), lambda i, j: te.exp(x[i, j]) + y[i, j], name="o")]


@odd
def two_elementwise():
    x = X((5, 9))
    a = C((5, 9), lambda i, j: te.exp(x[i, j]), name="a")
    return [x], [C((5, 9), lambda i, j: a[i, j] * a[i, 0], name="o")]


@odd
def whole_numbers():
    x = X((4, 9), dtype="int32")
    j, k = rx(9, "j"), rx(9, "k")
    m = C((4,), lambda i: te.max(x[i, j], axis=j), name="m")
    return [x], [C((4,), lambda i: te.sum(x[i, k] * m[i], axis=k), name="o")]


@odd
def int8():
    x = X((4, 9), dtype="int8")
    j, _k = rx(9, "j"), rx(9, "k")
    s = C((4,), lambda i: te.sum(x[i, j].astype("int32"), axis=j), name="s")
    return [x], [C((4, 9), lambda i, j: x[i, j].astype("float32") / (s[i].astype("float32") + 0.5), name="o")]


@odd
def boolmask():
    x, mk = X((4, 9)), X((4, 9), "mk", "bool")
    j, k = rx(9, "j"), rx(9, "k")
    f = C((4, 9), lambda i, j: tirx.if_then_else(mk[i, j], x[i, j], -1e30), name="f")
    m = C((4,), lambda i: te.max(f[i, j], axis=j), name="m")
    s = C((4,), lambda i: te.sum(te.exp(f[i, k] - m[i]), axis=k), name="s")
    return [x, mk], [C((4, 9), lambda i, j: te.exp(f[i, j] - m[i]) / s[i], name="o")]


@odd
def primes():
    x = X((13, 17))
    j, k = rx(17, "j"), rx(17, "k")
    m = C((13,), lambda i: te.max(x[i, j], axis=j), name="m")
    return [x], [C((13,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="o")]


@odd
def one_element():
    x = X((1, 1))
    j, k = rx(1, "j"), rx(1, "k")
    m = C((1,), lambda i: te.max(x[i, j], axis=j), name="m")
    return [x], [C((1,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="o")]


@odd
def extent1row():
    x = X((5, 1))
    j, k = rx(1, "j"), rx(1, "k")
    m = C((5,), lambda i: te.max(x[i, j], axis=j), name="m")
    return [x], [C((5,), lambda i: te.sum(te.exp(x[i, k] - m[i]), axis=k), name="o")]


@odd
def outer():
    a, b = X((5,), "a"), X((7,), "b")
    k = rx(7, "k")
    o = C((5, 7), lambda i, j: a[i] * b[j], name="o")
    return [a, b], [o, C((5,), lambda i: te.max(o[i, k], axis=k), name="m")]


@odd
def scalar_1():
    x = X((5, 7))
    i1, k = rx(5, "i1"), rx(7, "k")
    return [x], [C((1,), lambda i: te.sum(x[i1, k] * x[i1, k], axis=[i1, k]), name="o")]


@odd
def scalar():
    x = X((5, 7))
    i1, k = rx(5, "i1"), rx(7, "k")
    return [x], [C((), lambda *i: te.sum(x[i1, k] * x[i1, k], axis=[i1, k]), name="o")]


@odd
def norm_of_all():
    x = X((5, 7))
    i1, k = rx(5, "i1"), rx(7, "k")
    s = C((1,), lambda i: te.sum(x[i1, k] * x[i1, k], axis=[i1, k]), name="s")
    return [x], [C((5, 7), lambda i, j: x[i, j] / te.sqrt(s[0] + 1.0), name="o")]


@odd
def softmax_over_two_axes():
    x = X((3, 5, 7))
    a, b, c, d = rx(5, "a"), rx(7, "b"), rx(5, "c"), rx(7, "d")
    m = C((3,), lambda i: te.max(x[i, a, b], axis=[a, b]), name="m")
    s = C((3,), lambda i: te.sum(te.exp(x[i, c, d] - m[i]), axis=[c, d]), name="s")
    return [x], [C((3, 5, 7), lambda i, j, k: te.exp(x[i, j, k] - m[i]) / s[i], name="o")]


@odd
def axes_swapped():
    x = X((5, 7))
    a, b = rx(7, "a"), rx(5, "b")
    r = C((5,), lambda i: te.sum(x[i, a], axis=a), name="r")
    c = C((7,), lambda j: te.sum(x[b, j] * r[b], axis=b), name="c")
    return [x], [C((5, 7), lambda i, j: x[i, j] + r[i] + c[j], name="o")]


@odd
def sinkhorn():
    x = X((6, 7))
    a, b, c, _d = rx(7, "a"), rx(6, "b"), rx(7, "c"), rx(6, "d")
    e = C((6, 7), lambda i, j: te.exp(x[i, j]), name="e")
    r = C((6,), lambda i: te.sum(e[i, a], axis=a), name="r")
    c1 = C((7,), lambda j: te.sum(e[b, j] / r[b], axis=b), name="c1")
    r2 = C((6,), lambda i: te.sum(e[i, c] / r[i] / c1[c], axis=c), name="r2")
    return [x], [C((6, 7), lambda i, j: e[i, j] / r[i] / c1[j] / r2[i], name="o")]


@odd
def nested_norm():
    x = X((3, 5, 7))
    a, b, _c = rx(7, "a"), rx(5, "b"), rx(7, "c")
    n1 = C((3, 5), lambda i, j: te.sum(x[i, j, a] * x[i, j, a], axis=a), name="n1")
    n2 = C((3,), lambda i: te.max(te.sqrt(n1[i, b]), axis=b), name="n2")
    return [x], [C((3, 5, 7), lambda i, j, k: x[i, j, k] / (te.sqrt(n1[i, j]) + n2[i] + 1.0), name="o")]


@odd
def two_softmax():
    x, y = X((4, 9)), X((4, 9), "y")
    r = [rx(9, f"r{n}") for n in range(5)]
    m = C((4,), lambda i: te.max(x[i, r[0]], axis=r[0]), name="m")
    s = C((4,), lambda i: te.sum(te.exp(x[i, r[1]] - m[i]), axis=r[1]), name="s")
    m2 = C((4,), lambda i: te.max(y[i, r[2]], axis=r[2]), name="m2")
    s2 = C((4,), lambda i: te.sum(te.exp(y[i, r[3]] - m2[i]), axis=r[3]), name="s2")
    kl = C(
        (4,),
        lambda i: te.sum(
            te.exp(x[i, r[4]] - m[i]) / s[i] * (x[i, r[4]] - m[i] - te.log(s[i]) - y[i, r[4]] + m2[i] + te.log(s2[i])),
            axis=r[4],
        ),
        name="kl",
    )
    return [x, y], [kl]


@odd
def softmax_of_softmax():
    x = X((4, 9))
    r = [rx(9, f"r{n}") for n in range(4)]
    m = C((4,), lambda i: te.max(x[i, r[0]], axis=r[0]), name="m")
    s = C((4,), lambda i: te.sum(te.exp(x[i, r[1]] - m[i]), axis=r[1]), name="s")
    p = C((4, 9), lambda i, j: te.exp(x[i, j] - m[i]) / s[i], name="p")
    m2 = C((4,), lambda i: te.max(p[i, r[2]], axis=r[2]), name="m2")
    s2 = C((4,), lambda i: te.sum(te.exp(p[i, r[3]] - m2[i]), axis=r[3]), name="s2")
    return [x], [C((4, 9), lambda i, j: te.exp(p[i, j] - m2[i]) / s2[i], name="o")]


@odd
def top2():
    x = X((4, 9))
    j, k = rx(9, "j"), rx(9, "k")
    m = C((4,), lambda i: te.max(x[i, j], axis=j), name="m")
    return [x], [C((4,), lambda i: te.max(tirx.if_then_else(x[i, k] < m[i], x[i, k], -1e30), axis=k), name="o")]


@odd
def count_above_mean():
    x = X((4, 9))
    j, k = rx(9, "j"), rx(9, "k")
    m = C((4,), lambda i: te.sum(x[i, j], axis=j), name="m")
    return [x], [C((4,), lambda i: te.sum(tirx.if_then_else(x[i, k] * 9.0 > m[i], 1.0, 0.0), axis=k), name="o")]


@odd
def scalar_broadcast():
    x, s = X((4, 9)), X((1,), "s")
    j, k = rx(9, "j"), rx(9, "k")
    m = C((4,), lambda i: te.max(x[i, j] * s[0], axis=j), name="m")
    return [x, s], [C((4,), lambda i: te.sum(te.exp(x[i, k] * s[0] - m[i]), axis=k), name="o")]


@odd
def five_dimensions():
    x = X((2, 3, 2, 3, 4))
    a, b = rx(4, "a"), rx(4, "b")
    m = C((2, 3, 2, 3), lambda i, j, k, l: te.max(x[i, j, k, l, a], axis=a), name="m")
    return [x], [C((2, 3, 2, 3), lambda i, j, k, l: te.sum(te.exp(x[i, j, k, l, b] - m[i, j, k, l]), axis=b), name="o")]


@odd
def eighteen_stages():
    """More stages than are tried together."""
    x = X((6, 6))
    weights = [X((6, 6), f"w{n}") for n in range(6)]
    value = x
    for n, w in enumerate(weights):
        value = normalised_product(n, value, w)
    return [x, *weights], [value]


def normalised_product(n, value, w):
    k, j = rx(6, f"k{n}"), rx(6, f"j{n}")
    y = C((6, 6), lambda a, b: te.sum(value[a, k] * w[k, b], axis=k), name=f"y{n}")
    m = C((6,), lambda b: te.max(te.abs(y[j, b]), axis=j), name=f"m{n}")
    return C((6, 6), lambda a, b: y[a, b] / (m[b] + 1.0), name=f"v{n}")
