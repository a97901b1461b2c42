"""Schedules and operators that a check of legality must refuse, or leave apart: without it, a wrong kernel is made.

Each is compiled and validated, or refused by one of our errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mistakes() -> dict[str, Callable[[], Any]]:
    """By name; each gives a kernel, or raises a NeptuneError."""
    from tvm import te

    import neptune_lab as nl
    from neptune_lab.operators import custom, rows

    compute: Any = te.compute  # TVM's own annotations take lambdas of several parameters for errors

    def tensor(name: str, *shape: int) -> Any:
        return te.placeholder(shape, "float32", name=name)

    def fold(name: str, shape: tuple[int, ...], extent: int, term: Callable[..., Any], reduce: Any = te.sum) -> Any:
        axis = te.reduce_axis((0, extent), name="j")
        return compute(shape, lambda i: reduce(term(i, axis.var), axis=axis), name=name)

    def schedule(inputs: list[Any], outputs: list[Any], *steps: tuple[Any, ...]) -> Any:
        sch = nl.Schedule(custom("f", inputs, outputs))
        for primitive, *arguments in steps:
            getattr(sch, primitive)(*arguments)
        return nl.compile(sch)

    def early() -> Any:
        """The maximum would be computed in the loop of the exponentials that read it."""
        sch = nl.Schedule(rows.softmax(rows=6, cols=24))
        sch.tile("s_exp", i=2, j=8)
        sch.bind("s_exp.i0", "blockIdx.x")
        sch.fuse_under("s_max", "s_exp.j0")
        sch.decompose_reduction("s_max", "s_max.j0")
        return nl.compile(sch)

    def late_weight() -> Any:
        """The sum reads a map that is computed after the loop it is fused under."""
        x, y = tensor("x", 3, 6), tensor("y", 3, 6)
        r = fold("r", (3,), 6, lambda i, j: x[i, j], te.max)
        w = compute((3, 6), lambda i, j: y[i, j] * y[i, j], name="w")
        o = fold("o", (3,), 6, lambda i, j: te.exp(x[i, j] - r[i]) * w[i, j])
        steps = ("split", "r.j", (None, 2)), ("rolling_update", "o", "r.j0"), ("retire_tags", "r")
        return schedule([x, y], [o], *steps)

    def elsewhere() -> Any:
        """The sum reads the maximum of another row, which is computed later."""
        x = tensor("x", 4, 6)
        r = fold("r", (4,), 6, lambda i, j: x[i, j] * x[i, j])
        o = fold("o", (4,), 6, lambda i, j: x[3 - i, j] + r[3 - i])
        return schedule([x], [o], ("fuse_under", "o", "r.i"))

    def mirrored() -> Any:
        """The sum reads a map at a column that is computed later."""
        x = tensor("x", 4, 6)
        c = compute((4, 6), lambda i, j: x[i, j] * 2.0, name="c")
        o = fold("o", (4,), 6, lambda i, j: c[i, j] * c[i, 5 - j])
        return schedule([x], [o], ("split", "c.j", (None, 2)), ("fuse_under", "o", "c.j0"))

    def repeated() -> Any:
        """A sum along other columns would be added up once per tile of the first one."""
        x, z = tensor("x", 4, 6), tensor("z", 4, 5)
        r = fold("r", (4,), 6, lambda i, j: x[i, j])
        o = fold("o", (4,), 5, lambda i, j: z[i, j] * z[i, j])
        steps = ("split", "r.j", (None, 2)), ("fuse_under", "o", "r.j0"), ("decompose_reduction", "r", "r.j0")
        return schedule([x, z], [r, o], *steps, ("decompose_reduction", "o", "o.j0"))

    def windows() -> Any:
        """Of two windows that begin at one row, the loop of the shorter one would cut the longer one."""
        x, w = tensor("x", 9), tensor("w", 3)
        r = fold("r", (3,), 4, lambda i, j: x[i + j] * w[i])
        o = fold("o", (3,), 6, lambda i, j: x[i + j] * w[i])
        return schedule([x, w], [r, o], ("fuse_under", "o", "r.i"), ("fuse_under", "o", "r.j"))

    def not_masked() -> Any:
        """Where the masked maximum is still -inf, the sum has met elements that the mask does not remove."""
        x = tensor("x", 4, 12)
        low = te.const(float("-inf"), "float32")
        r = fold("r", (4,), 12, lambda i, j: te.if_then_else(j >= i + 5, x[i, j], low), te.max)
        o = fold("o", (4,), 12, lambda i, j: te.exp(x[i, j] - r[i]))
        return nl.compile(custom("f", [x], [o]), "rolling_update", block_kv=4)

    def other_elements() -> Any:
        """The maximum and the sum read different tensors, either of which may begin with -inf."""
        x, y = tensor("x", 5, 12), tensor("y", 5, 12)
        r = fold("r", (5,), 12, lambda i, j: x[i, j], te.max)
        o = fold("o", (5,), 12, lambda i, j: te.exp(x[i, j] - r[i]) * y[i, j] + y[i, j])
        return nl.compile(custom("f", [x, y], [o]), "rolling_update", block_kv=4)

    def largest_magnitude() -> Any:
        """A row that begins with zeros: the sum holds what the first maximum, 0, does not scale."""
        x, y = tensor("x", 5, 12), tensor("y", 5, 12)
        r = fold("r", (5,), 12, lambda i, j: te.abs(x[i, j]), te.max)
        o = fold("o", (5,), 12, lambda i, j: y[i, j] / r[i])
        return nl.compile(custom("f", [x, y], [o]), "rolling_update", block_kv=4)

    def another_reader() -> Any:
        """A sum of exponentials below the maximum of all elements and of s; a later stage reads the maximum alone."""
        x, s = tensor("x", 5, 12), tensor("s", 5)
        r = fold("r", (5,), 12, lambda i, j: x[i, j], te.max)
        o = fold("o", (5,), 12, lambda i, j: te.exp(x[i, j] - te.max(r[i], s[i])))
        log = compute((5,), lambda i: r[i] * 2.0, name="log")
        return nl.compile(custom("f", [x, s], [o, log]), "rolling_update", block_kv=4)

    def repaired_extremum() -> Any:
        """The maximum that is combined with s follows another one: a repair would move s with its elements."""
        x, s = tensor("x", 5, 12), tensor("s", 5)
        r = fold("r", (5,), 12, lambda i, j: x[i, j], te.max)
        q = fold("q", (5,), 12, lambda i, j: x[i, j] - r[i], te.max)
        o = fold("o", (5,), 12, lambda i, j: te.exp(x[i, j] - r[i] - te.max(q[i], s[i])))
        return nl.compile(custom("f", [x, s], [o]), "rolling_update", block_kv=4)

    def not_of_the_row() -> Any:
        """The maximum is combined with another number in each column."""
        x, s = tensor("x", 5, 12), tensor("s", 5, 12)
        r = fold("r", (5,), 12, lambda i, j: x[i, j], te.max)
        o = fold("o", (5,), 12, lambda i, j: te.exp(x[i, j] - te.max(r[i], s[i, j])))
        return nl.compile(custom("f", [x, s], [o]), "rolling_update", block_kv=4)

    found = (early, late_weight, elsewhere, mirrored, repeated, windows)
    found += (not_masked, other_elements, largest_magnitude)
    found += (another_reader, repaired_extremum, not_of_the_row)
    return {make.__name__: make for make in found}
