"""Small operators of many kinds, most of which no template fuses whole: by name, the inputs and outputs of each."""

# TVM's own annotations are narrower than what it takes.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from neptune_lab.operators import custom
from neptune_lab.operators.base import Operator

Tensors = tuple[list[Any], list[Any]]
ODD: dict[str, Callable[[], Tensors]] = {}

C = te.compute


def odd(define: Callable[[], Tensors]) -> Callable[[], Tensors]:
    ODD[define.__name__] = define
    return define


def operator(name: str) -> Operator:
    """The operator called `name`."""
    return custom(name, *ODD[name]())


def rx(extent: int, name: str) -> Any:
    return te.reduce_axis((0, extent), name=name)


def X(shape: tuple[int, ...], name: str = "x", dtype: str = "float32") -> Any:
    return te.placeholder(shape, dtype, name=name)


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
def window_norm():
    x = X((3, 16))
    k, l = rx(4, "k"), rx(4, "l")
    m = C((3, 13), lambda i, t: te.max(x[i, t + k], axis=k), name="m")
    return [x], [C((3, 13), lambda i, t: te.sum(te.exp(x[i, t + l] - m[i, t]), axis=l), name="s")]


@odd
def bignorm():
    x = X((2, 3000))
    k, _l = rx(3000, "k"), rx(3000, "l")
    m = C((2,), lambda i: te.sum(x[i, k], axis=k), name="m")
    return [x], [C((2, 3000), lambda i, j: x[i, j] / (m[i] + 3000.0), name="o")]


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
