"""Statistics of rows, and reads of stages at elements that data chooses."""

from __future__ import annotations

from tvm import te, tirx

from tests.pipeline.odd.define import C, X, odd, rx

NOTHING = tirx.const(float("-inf"), "float32")


@odd
def kurtosis():
    x = X((4, 11))
    a, b, c = rx(11, "a"), rx(11, "b"), rx(11, "c")
    m = C((4,), lambda i: te.sum(x[i, a] / 11.0, axis=a), name="m")
    v = C((4,), lambda i: te.sum((x[i, b] - m[i]) * (x[i, b] - m[i]) / 11.0, axis=b), name="v")
    z = C((4, 11), lambda i, j: (x[i, j] - m[i]) / te.sqrt(v[i] + 1e-3), name="z")
    return [x], [C((4,), lambda i: te.sum(z[i, c] * z[i, c] * z[i, c] * z[i, c] / 11.0, axis=c), name="o")]


def correlation(n):
    """Correlation of rows without an epsilon: 0/0 for a row of equal numbers, up to rounding."""
    x, y = X((4, n)), X((4, n), "y")
    a, b, c, d, e = (rx(n, name) for name in "abcde")
    p = C((4,), lambda i: te.sum(x[i, a] / n, axis=a), name="p")
    q = C((4,), lambda i: te.sum(y[i, b] / n, axis=b), name="q")
    v = C((4,), lambda i: te.sum((x[i, c] - p[i]) * (y[i, c] - q[i]), axis=c), name="v")
    s = C((4,), lambda i: te.sum((x[i, d] - p[i]) * (x[i, d] - p[i]), axis=d), name="s")
    t = C((4,), lambda i: te.sum((y[i, e] - q[i]) * (y[i, e] - q[i]), axis=e), name="t")
    return [x, y], [C((4,), lambda i: v[i] / te.sqrt(s[i] * t[i]), name="o")]


@odd
def correlation_of_3():
    return correlation(3)


@odd
def correlation_of_13():
    return correlation(13)


@odd
def standard_score():
    x = X((4, 3))
    a, b = rx(3, "a"), rx(3, "b")
    p = C((4,), lambda i: te.sum(x[i, a], axis=a), name="p")
    s = C((4,), lambda i: te.sum((x[i, b] - p[i] / 3) * (x[i, b] - p[i] / 3), axis=b), name="s")
    return [x], [C((4, 3), lambda i, j: (x[i, j] - p[i] / 3) / te.sqrt(s[i] / 3), name="o")]


@odd
def mean_over_deviation():
    x = X((4, 3))
    a, b = rx(3, "a"), rx(3, "b")
    p = C((4,), lambda i: te.sum(x[i, a], axis=a), name="p")
    s = C((4,), lambda i: te.sum((x[i, b] - p[i] / 3) * (x[i, b] - p[i] / 3), axis=b), name="s")
    return [x], [C((4,), lambda i: p[i] / te.sqrt(s[i] / 3), name="o")]


@odd
def map_without_dimensions():
    x = X((5, 7))
    a, b = rx(5, "a"), rx(7, "b")
    s = C((), lambda: te.sum(x[a, b] * x[a, b], axis=[a, b]), name="s")
    return [x], [C((), lambda: te.sqrt(s() / 35.0), name="o")]


@odd
def softmax_of_segments():
    x, g = X((3, 9)), X((9,), "g", "int32")
    a, b = rx(9, "a"), rx(9, "b")
    m = C((3, 8), lambda i, s: te.max(tirx.if_then_else(g[a] == s, x[i, a], NOTHING), axis=a), name="m")
    z = C(
        (3, 8),
        lambda i, s: te.sum(tirx.if_then_else(g[b] == s, te.exp(x[i, b] - m[i, s]), 0.0), axis=b),
        name="z",
    )
    return [x, g], [C((3, 9), lambda i, j: te.exp(x[i, j] - m[i, g[j]]) / z[i, g[j]], name="o")]


@odd
def sums_chosen_by_data():
    x, g = X((4, 9)), X((11,), "g", "int32")
    a = rx(9, "a")
    s = C((4,), lambda i: te.sum(x[i, a], axis=a), name="s")
    return [x, g], [C((11,), lambda j: s[tirx.min(g[j], 3)], name="o")]


@odd
def mean_loss_of_targets():
    x, t = X((4, 8)), X((4,), "t", "int32")
    a, b, n = rx(8, "a"), rx(8, "b"), rx(4, "n")
    m = C((4,), lambda i: te.max(x[i, a], axis=a), name="m")
    s = C((4,), lambda i: te.sum(te.exp(x[i, b] - m[i]), axis=b), name="s")
    p = C((4, 8), lambda i, j: x[i, j] - m[i] - te.log(s[i]), name="p")
    return [x, t], [C((1,), lambda _: te.sum(-p[n, t[n]] / 4.0, axis=n), name="loss")]


@odd
def pointers_followed_twice():
    x, p = X((9,)), X((9,), "p", "int32")
    a = C((9,), lambda i: x[i] + x[p[i]], name="a")
    b = C((9,), lambda i: a[i] + a[p[p[i]]], name="b")
    return [x, p], [C((9,), lambda i: b[i] * b[8 - p[i]], name="o")]


@odd
def table_of_features():
    x, t = X((4, 9), "x", "int32"), X((8, 3), "t")
    a, e = rx(9, "a"), rx(3, "e")
    h = C((8, 3), lambda i, j: te.tanh(t[i, j]), name="h")
    m = C((4,), lambda i: te.max(h[x[i, a], 0] * h[x[i, a], 2], axis=a), name="m")
    return [x, t], [C((4, 9), lambda i, j: te.sum(te.exp(h[x[i, j], e] - m[i]), axis=e), name="o")]


@odd
def rows_reordered():
    x, p = X((3, 5, 7)), X((3, 5), "p", "int32")
    a, b = rx(7, "a"), rx(7, "b")
    s = C((3, 5), lambda n, i: te.sum(x[n, i, a] * x[n, i, a], axis=a), name="s")
    y = C((3, 5, 7), lambda n, i, j: x[n, i, j] / te.sqrt(s[n, i] + 1.0), name="y")
    return [x, p], [C((3, 5), lambda n, i: te.max(y[n, tirx.min(p[n, i], 4), b], axis=b), name="o"), s]


@odd
def sorted_by_rank():
    x = X((3, 7))
    a, b = rx(7, "a"), rx(7, "b")
    r = C((3, 7), lambda i, j: te.sum(tirx.if_then_else(x[i, a] < x[i, j], 1, 0), axis=a), name="r")
    return [x], [C((3, 7), lambda i, k: te.sum(tirx.if_then_else(r[i, b] == k, x[i, b], 0.0), axis=b), name="o")]
