"""What users write of rows of any dtype: places of extrema, the best two, running sums, statistics by several formulas,
quantisation, counts, truth values, chains of layers, in the language of `typed`."""

from __future__ import annotations

from fuzz.typed import Data, Term
from fuzz.typed_rows import INF, Rows

BIG = 2**31 - 1


def _square(x: Term) -> Term:
    return ["mul", x, x]


def argmax(rows: Rows) -> Data:
    """The place of an extremum, the extremum, how often it is met, and what another tensor has there."""
    rng, x = rows.rng, rows.x()
    way = rng.choice(["max", "max", "min"])
    best = rows.fold(way, x)
    at = ["eq", x, best] if rng.random() < 0.7 else ["ge" if way == "max" else "le", x, best]
    if rng.random() < 0.7:
        place = rows.fold("min", ["where", at, ["place", "j"], BIG])
    else:
        place = rows.fold("max", ["where", at, ["place", "j"], -1])
    results = [place]
    match rng.choice(["place", "both", "gather", "count", "second", "rest", "mean of ties"]):
        case "both":
            results.append(best)
        case "gather":
            rows.read("y", "i", "j")
            read: Term = ["at", "y", "i", ["value", ["max", ["min", place, rows.m - 1], 0]]]
            results = [rows.stage(read, "i")]
        case "count":
            results.append(rows.fold("sum", ["where", at, 1, 0]))
        case "second":
            second = rows.fold(way, ["where", ["ne", ["place", "j"], place], x, -INF if way == "max" else INF])
            results = [best, second] if rng.random() < 0.5 else [rows.stage(["sub", best, second], "i")]
        case "rest":
            results = [rows.fold("sum", ["where", ["ne", ["place", "j"], place], ["exp", ["sub", x, best]], 0.0])]
        case "mean of ties":
            total = rows.fold("sum", ["where", at, rows.x(), 0.0])
            results = [rows.stage(["div", total, ["cast", "float32", rows.fold("sum", ["where", at, 1, 0])]], "i")]
    return rows.done(*results)


def top_two(rows: Rows) -> Data:
    """The largest and the largest below it, and a softmax of the two or without them."""
    rng, x = rows.rng, rows.x()
    best = rows.fold("max", x)
    second = rows.fold("max", ["where", [rng.choice(["lt", "ne"]), x, best], x, -INF])
    match rng.choice(["two", "three", "margin", "sum above"]):
        case "two":
            return rows.done(best, second)
        case "three":
            third = rows.fold("max", ["where", ["lt", x, second], x, -INF])
            return rows.done(best, second, third)
        case "margin":
            return rows.done(rows.stage(["exp", ["sub", second, best]], "i"))
    return rows.done(rows.fold("sum", ["where", ["ge", x, second], ["exp", ["sub", x, best]], 0.0]))


def running(rows: Rows) -> Data:
    """Reductions of the elements up to each column, and reductions of these."""
    rng = rows.rng
    rows.m = min(rows.m, 9)
    way = rng.choice(["sum", "sum", "max", "min", "prod"])
    x = rows.read("x", "i", "k")
    empty = {"sum": 0.0, "max": -INF, "min": INF, "prod": 1.0}[way]
    order = rng.choice(["le", "lt", "ge"])
    run = rows.stage(["where", [order, ["place", "k"], ["place", "j"]], x, empty], "ij", "k", way)
    match rng.choice(["itself", "max", "softmax", "norm", "drawdown", "weights"]):
        case "max":
            return rows.done(rows.fold("max", run), *([run] if rng.random() < 0.4 else []))
        case "softmax":
            top = rows.fold("max", run)
            return rows.done(rows.fold("sum", ["exp", ["sub", run, top]]))
        case "norm":
            last = rows.fold("sum", _square(run))
            return rows.done(rows.map(["div", run, ["sqrt", ["add", last, 1.0]]]))
        case "drawdown":
            return rows.done(rows.fold("max", ["sub", run, rows.read("x", "i", "j")]))
        case "weights":
            return rows.done(rows.fold("sum", ["mul", run, rows.read("w", "j")]), rows.fold("max", run))
    return rows.done(run)


def statistics(rows: Rows) -> Data:
    """Variances, covariances and higher moments, by several formulas."""
    rng, x, n = rows.rng, rows.x(), float(rows.m)
    mean = rows.row(["mul", rows.fold("sum", x), 1 / n] if rng.random() < 0.5 else ["div", rows.fold("sum", x), n])
    centred: Term = ["sub", x, mean]
    if rng.random() < 0.25:
        centred = rows.map(centred)
    square = rows.fold("sum", _square(centred))
    match rng.choice(["two", "squares", "apart", "skew", "covariance", "correlation", "normal", "product", "deviation",
                      "weighted", "z"]):  # fmt: skip
        case "two":
            return rows.done(rows.stage(["div", square, max(n - 1, 1.0)], "i"))
        case "squares":
            of_squares = rows.fold("sum", _square(x))
            less = ["sub", ["div", of_squares, n], _square(mean)]
            return rows.done(rows.stage(["sqrt", ["add", ["max", less, 0.0], 1.0]], "i"))
        case "apart":
            return rows.done(rows.fold("sum", ["abs", centred]), square)
        case "skew":
            third = rows.fold("sum", ["mul", _square(centred), centred])
            if rng.random() < 0.5:
                third = rows.fold("sum", _square(_square(centred)))
            root = ["sqrt", ["add", square, 1.0]]
            return rows.done(rows.stage(["div", third, ["mul", _square(root), root]], "i"))
        case "covariance" | "correlation":
            y = rows.x()
            other = rows.row(["mul", rows.fold("sum", y), 1 / n])
            both = rows.fold("sum", ["mul", centred, ["sub", y, other]])
            own = rows.fold("sum", _square(["sub", y, other]))
            root = ["sqrt", ["add", ["mul", square, own], 0.5]]
            return rows.done(both, own) if rng.random() < 0.4 else rows.done(rows.stage(["div", both, root], "i"))
        case "normal" | "z":
            scale = ["sqrt", ["add", ["mul", square, 1 / n], rng.choice([1e-5, 1.0])]]
            if rng.random() < 0.5:
                return rows.done(rows.map(["div", centred, scale]))
            return rows.done(rows.fold(rng.choice(["max", "min", "sum"]), ["div", centred, scale]))
        case "product":
            return rows.done(rows.stage(["div", rows.fold("sum", ["mul", centred, x]), n], "i"))
        case "deviation":
            return rows.done(rows.fold("max", ["abs", centred]))
    weight = rows.read("w", "j")
    total = rows.fold("sum", ["abs", weight]) if rng.random() < 0.5 else 2.0
    middle = ["div", rows.fold("sum", ["mul", x, weight]), ["add", total, 1.0]]
    return rows.done(rows.fold("sum", ["mul", weight, _square(["sub", x, middle])]))


def norms(rows: Rows) -> Data:
    """Norms of what is divided by a norm, and norms of several powers, scaled or not."""
    rng, x = rows.rng, rows.x()
    for _ in range(rng.choice([1, 2, 2, 3])):
        match rng.choice(["one", "two", "largest", "three", "scaled", "mean"]):
            case "one":
                size = ["add", rows.fold("sum", ["abs", x]), rng.choice([1.0, 1e-3])]
            case "two":
                size = ["sqrt", ["add", rows.fold("sum", _square(x)), rng.choice([1.0, 1e-3])]]
            case "largest":
                size = ["max", rows.fold("max", ["abs", x]), rng.choice([1e-5, 1.0])]
            case "three":
                size = ["power", ["add", rows.fold("sum", ["power", ["abs", x], 3.0]), 1.0], 1 / 3]
            case "scaled":
                top = ["add", rows.fold("max", ["abs", x]), 1.0]
                size = ["mul", top, ["sqrt", ["add", rows.fold("sum", _square(["div", x, top])), 1e-3]]]
            case _:
                size = ["sqrt", ["add", ["mul", rows.fold("sum", _square(x)), 1 / rows.m], 1e-3]]
        last, size = x, rows.row(size)
        x = ["div", x, size]
        if rng.random() < 0.4:
            x = rows.map(x)
        if rng.random() < 0.3:
            x = ["add", last, x]
    return rows.done(_ending(rows, x))


def _ending(rows: Rows, x: Term) -> Term:
    match rows.rng.choice(["map", "sum", "squares", "max", "weights"]):
        case "map":
            return rows.map(x)
        case "sum":
            return rows.fold("sum", x)
        case "squares":
            return rows.fold("sum", _square(x))
        case "max":
            return rows.fold(rows.rng.choice(["max", "min"]), x)
    return rows.fold("sum", ["mul", x, rows.read("w", "j")])


def quantised(rows: Rows) -> Data:
    """A row in whole numbers of its largest magnitude, and sums of these."""
    rng, x = rows.rng, rows.x()
    scale = rows.row(["add", ["mul", rows.fold("max", ["abs", x]), 1 / 127.0], rng.choice([1e-6, 1.0])])
    whole = ["max", ["min", ["round", ["div", x, scale]], 127.0], -127.0]
    match rng.choice(["floats", "int8", "sum", "count", "zero point"]):
        case "floats":
            return rows.done(rows.map(["mul", whole, scale]))
        case "int8":
            return rows.done(rows.map(["cast", "int8", whole]), *([scale] if scale[0] == "at" else []))
        case "sum":
            return rows.done(rows.fold("sum", ["cast", "int32", whole]))
        case "count":
            return rows.done(rows.fold("sum", ["cast", "int32", ["eq", whole, 0.0]]))
    low = rows.fold("min", x)
    return rows.done(rows.fold("sum", ["floor", ["div", ["sub", x, low], scale]]))


def whole(rows: Rows) -> Data:
    """Reductions of integers, and floats that read them."""
    rng = rows.rng
    dtype = rng.choice(["int8", "int32"])
    x: Term = rows.read("n" if dtype == "int8" else "c", "i", "j", dtype=dtype)
    if rng.random() < 0.5:
        x = ["cast", "int32", x]
    if rng.random() < 0.3:
        x = ["where", rows.condition(), x, rng.choice([0, -1, 1])]
    way = rng.choice(["sum", "max", "min", "prod"])
    first = rows.fold(way, x)
    match rng.choice(["itself", "difference", "squares", "floats", "softmax", "product", "compared", "average"]):
        case "difference":
            return rows.done(rows.fold(rng.choice(["sum", "max", "min"]), ["sub", x, first]), first)
        case "squares":
            return rows.done(rows.fold("sum", _square(["sub", x, first])))
        case "floats":
            f = ["cast", "float32", first]
            return rows.done(rows.fold("sum", ["div", rows.x(), ["add", ["abs", f], 1.0]]))
        case "softmax":
            f = ["mul", ["cast", "float32", ["sub", x, first]], rng.choice([0.5, 0.01])]
            return rows.done(rows.fold("sum", ["exp", f]))
        case "product":
            return rows.done(rows.fold("sum", ["mul", x, first]))
        case "compared":
            return rows.done(rows.fold("sum", ["where", [rng.choice(["eq", "lt", "ne"]), x, first], 1, 0]), first)
        case "average":
            count = rows.fold("sum", ["where", rows.condition(), 1, 0])
            total = rows.fold("sum", ["cast", "float32", x])
            return rows.done(rows.stage(["div", total, ["cast", "float32", ["max", count, 1]]], "i"))
    return rows.done(first)


def truths(rows: Rows) -> Data:
    """Any and all of conditions, with and without reductions inside, and what is chosen by them."""
    rng = rows.rng
    condition, x = rows.condition(), rows.x()
    if rng.random() < 0.5:
        other = rows.fold(rng.choice(["max", "sum", "min"]), rows.x())
        condition = [rng.choice(["gt", "le", "eq", "ne"]), x, ["mul", other, rng.choice([1.0, 0.5])]]
    truth = rows.fold(rng.choice(["any", "all"]), condition)
    match rng.choice(["itself", "chosen", "masked", "softmax", "twice", "count"]):
        case "chosen":
            return rows.done(rows.stage(["where", truth, rows.fold("max", rows.x()), 0.0], "i"))
        case "masked":
            return rows.done(rows.fold("sum", ["where", truth, x, 0.0]))
        case "softmax":
            hidden: Term = ["where", condition, x, -INF]
            top = rows.fold("max", hidden)
            safe = ["where", truth, top, 0.0]
            return rows.done(rows.fold("sum", ["exp", ["sub", hidden, safe]]))
        case "twice":
            return rows.done(rows.fold("all", ["or", truth, ["lt", x, 0.0]]), truth)
        case "count":
            count = rows.fold("sum", ["where", condition, 1.0, 0.0])
            return rows.done(rows.stage(["div", rows.fold("sum", ["where", condition, x, 0.0]), count], "i"), truth)
    return rows.done(truth)


def layers(rows: Rows) -> Data:
    """Three to eight reductions, each of a row that the one before changed."""
    rng, x = rows.rng, rows.x()
    outputs = []
    for _ in range(rng.choice([2, 3, 3, 4, 5])):
        match rng.choice(["norm", "softmax", "centre", "gate", "largest", "minmax", "log softmax"]):
            case "norm":
                r = rows.fold("sum", _square(x))
                y: Term = ["div", x, ["sqrt", ["add", r, 1.0]]]
            case "softmax":
                top = rows.fold("max", x)
                r = rows.fold("sum", ["exp", ["sub", x, top]])
                y = ["div", ["exp", ["sub", x, top]], r]
            case "centre":
                r = rows.fold("sum", x)
                y = ["sub", x, ["mul", r, 1 / rows.m]]
            case "gate":
                r = rows.fold("sum", ["mul", x, rows.read("w", "j")])
                y = ["mul", x, [rng.choice(["sigmoid", "tanh"]), r]]
            case "largest":
                r = rows.fold("max", ["abs", x])
                y = ["div", x, ["add", r, 1.0]]
            case "minmax":
                r = rows.fold("min", x)
                y = ["div", ["sub", x, r], ["add", ["sub", rows.fold("max", x), r], 1e-3]]
            case _:
                top = rows.fold("max", x)
                r = rows.fold("sum", ["exp", ["sub", x, top]])
                y = ["sub", ["sub", x, top], ["log", r]]
        outputs.append(r)
        x = ["add", x, y] if rng.random() < 0.3 else y
        if rng.random() < 0.5:
            dtype = rng.choices(["float32", "float16", "bfloat16"], [8, 1, 1])[0]
            x = rows.stage(["cast", dtype, x] if dtype != "float32" else x, "ij")
    return rows.done(_ending(rows, x), *(r for r in outputs if rng.random() < 0.15))


def losses(rows: Rows) -> Data:
    """Losses of rows with labels, distributions or distances."""
    rng, x = rows.rng, rows.x()
    top = rows.fold("max", x)
    total = rows.fold("sum", ["exp", ["sub", x, top]])
    lse: Term = rows.row(["add", top, ["log", total]])
    label = rows.read("a", "i", dtype="int32")
    hit = ["eq", ["place", "j"], label]
    p = ["exp", ["sub", x, lse]]
    match rng.choice(["nll", "smooth", "focal", "entropy", "kl", "hinge", "z", "brier", "perplexity", "rank"]):
        case "nll":
            return rows.done(rows.stage(["sub", lse, rows.fold("sum", ["where", hit, x, 0.0])], "i"))
        case "smooth":
            weight = ["where", hit, 0.9, 0.1 / rows.m]
            return rows.done(rows.fold("sum", ["mul", weight, ["sub", lse, x]]))
        case "focal":
            return rows.done(rows.fold("sum", ["where", hit, ["mul", _square(["sub", 1.0, p]), ["sub", lse, x]], 0.0]))
        case "entropy":
            return rows.done(rows.fold("sum", ["mul", p, ["sub", lse, x]]))
        case "kl":
            y = rows.read("y", "i", "j")
            high = rows.fold("max", y)
            other: Term = ["add", high, ["log", rows.fold("sum", ["exp", ["sub", y, high]])]]
            apart = ["sub", ["sub", x, lse], ["sub", y, other]]
            return rows.done(rows.fold("sum", ["mul", p, apart]))
        case "hinge":
            own = rows.fold("sum", ["where", hit, x, 0.0])
            return rows.done(rows.fold(rng.choice(["sum", "max"]), ["max", ["add", ["sub", x, own], 1.0], 0.0]))
        case "z":
            return rows.done(rows.stage(_square(lse), "i"), rows.fold("max", p))
        case "brier":
            return rows.done(rows.fold("sum", _square(["sub", p, ["where", hit, 1.0, 0.0]])))
        case "perplexity":
            return rows.done(rows.stage(["exp", rows.fold("sum", ["mul", p, ["sub", lse, x]])], "i"))
    own = rows.fold("max", ["where", hit, x, -INF])
    return rows.done(rows.fold("sum", ["where", ["gt", x, own], 1, 0]), lse if lse[0] == "at" else top)


def products(rows: Rows) -> Data:
    """A product of two matrices of any dtype, and reductions of its rows."""
    rng = rows.rng
    dtype = rng.choice(["float32", "float16", "bfloat16", "int8"])
    rows.inputs["p"] = [[rows.n, 4], dtype]
    rows.inputs["q"] = [[rows.m, 4], dtype]
    a, b = ["at", "p", "i", "d"], ["at", "q", "j", "d"]
    wide = "int32" if dtype == "int8" else "float32"
    a, b = (["cast", wide, t] if dtype != wide else t for t in (a, b))
    name = "s"
    term = ["mul", a, b]
    if rng.random() < 0.2:
        term = rng.choice([["abs", ["sub", a, b]], _square(["sub", a, b])])
    rows.stages.append({"name": name, "dtype": wide, "space": [["i", rows.n], ["j", rows.m]], "fold": [["d", 4]],
                        "reducer": "sum", "term": term})  # fmt: skip
    s: Term = ["at", "s", "i", "j"]
    if wide == "int32":
        s = ["mul", ["cast", "float32", s], 0.01]
    if rng.random() < 0.4:
        s = ["where", rows.condition(), s, -INF]
    if rng.random() < 0.4:
        s = rows.map(s)
    top = rows.fold("max", s)
    match rng.choice(["place", "lse", "norm", "attention", "hit"]):
        case "place":
            return rows.done(rows.fold("min", ["where", ["eq", s, top], ["place", "j"], BIG]), top)
        case "norm":
            total = rows.fold("sum", _square(s))
            return rows.done(rows.map(["div", s, ["sqrt", ["add", total, 1.0]]]))
        case "attention":
            rows.inputs["v"] = [[rows.m, 3], rows.dtype]
            weight = ["exp", ["sub", s, top]]
            v: Term = ["at", "v", "j", "d"]
            v = ["cast", "float32", v] if rows.dtype != "float32" else v
            total = rows.fold("sum", weight)
            rows.stages.append({"name": "acc", "dtype": "float32", "space": [["i", rows.n], ["d", 3]],
                                "fold": [["j", rows.m]], "reducer": "sum", "term": ["mul", weight, v]})  # fmt: skip
            last = _cast(rows.dtype, ["div", ["at", "acc", "i", "d"], total])
            rows.stages.append({"name": "o", "dtype": rows.dtype, "space": [["i", rows.n], ["d", 3]], "fold": [],
                                "reducer": "", "term": last})  # fmt: skip
            return rows.done(["at", "o"])
        case "hit":
            return rows.done(rows.fold("any", ["gt", s, ["mul", top, 0.5]]))
    return rows.done(rows.fold("sum", ["exp", ["sub", s, top]]), top)


def _cast(dtype: str, term: Term) -> Term:
    return term if dtype == "float32" else ["cast", dtype, term]


FORMS = (argmax, top_two, running, statistics, norms, quantised, whole, truths, layers, losses, products)

__all__ = ["FORMS"]
