"""The paper's Figure 1: a row-wise max, an exponential, a row-wise sum."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.operators.base import Arrays, Operator, TensorSpec, positive, source_of, supported, tensor_expressions
from neptune_lab.operators.dims import takes_dims

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program, Stmt


def define_figure1(rows: int, cols: int, dtype: str) -> tuple[list[Any], list[Any]]:
    """Figure 1 (a) as tensor expressions: the inputs and the outputs."""
    te = tensor_expressions()
    inp = te.placeholder((rows, cols), dtype, name="inp")
    j = te.reduce_axis((0, cols), name="j")
    xmax = te.compute((rows,), lambda i: te.max(inp[i, j], axis=j), name="xmax")
    xexp = te.compute((rows, cols), lambda i, j: te.exp(inp[i, j] - xmax[i]), name="xexp")
    xsum = te.compute((rows,), lambda i: te.sum(xexp[i, j], axis=j), name="xsum")
    return [inp], [xsum]


# The figure names the loop nests and the tensors they write apart; a tensor expression has one name for both.
_BLOCKS = {"xmax": "s_max", "xexp": "s_exp", "xsum": "s_sum"}


@takes_dims
def figure1(rows: int = 2, cols: int = 4, dtype: str = "float32") -> Operator:
    """`inp` (rows, cols) to `xsum` (rows,): the sum over each row of exp(inp - the row's max) (Neptune, Figure 1).

    Args:
        rows: rows of `inp`.
        cols: columns of `inp`, the reduced dimension.
        dtype: "float32" or "float64", of every tensor.

    Returns:
        The operator, from `inp` to `xsum`.

    Raises:
        DefinitionError: a size that is not a positive integer, or another dtype.
    """
    positive(rows=rows, cols=cols)
    supported(dtype, "float32", "float64")

    def build() -> Program:
        from neptune_lab.loop_ir.tvm_compat import from_te

        return _with_block_names(from_te("softmax_figure1", *define_figure1(rows, cols, dtype)))

    return Operator(
        name="softmax_figure1",
        title="Row-wise max, exp and sum",
        doc="Neptune, Figure 1 (a)",
        params={"rows": int(rows), "cols": int(cols), "dtype": dtype},
        inputs=(TensorSpec("inp", (rows, cols), dtype),),
        outputs=(TensorSpec("xsum", (rows,), dtype),),
        source=source_of(define_figure1),
        build=build,
        compute=_reference,
        draw=lambda rng: (rng.standard_normal((rows, cols)),),
    )


def _reference(inp: np.ndarray) -> Arrays:
    with np.errstate(invalid="ignore"):  # a row of -inf gives NaN, as the definition does
        return (np.exp(inp - inp.max(axis=1, keepdims=True)).sum(axis=1),)


def _with_block_names(program: Program) -> Program:
    """The figure's names on blocks and origins; the buffers keep theirs."""
    from neptune_lab.loop_ir.nodes import Block

    def rename(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            name = _BLOCKS[stmt.name]
            return replace(stmt, name=name, origin=name)
        return replace(stmt, body=tuple(rename(s) for s in stmt.body))

    return replace(program, body=tuple(rename(s) for s in program.body))
