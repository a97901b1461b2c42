"""Each rewrite: what it does, and what it must leave alone (its meaning is tested in test_meaning.py)."""

from __future__ import annotations

import pytest
from htile_programs import F16, attention, matmul, split_k
from pass_texts import after

from neptune_lab.htile import to_text, verify
from neptune_lab.htile.nodes import For, Store, Tensor
from neptune_lab.htile_passes.drop_dead_tiles import drop_dead_tiles
from neptune_lab.htile_passes.fold_dot_accumulate import fold_dot_accumulate
from neptune_lab.htile_passes.fold_initial_values import fold_initial_values
from neptune_lab.htile_passes.hoist_invariant_loads import hoist_invariant_loads

DECLARED = """
program p(x, w) -> y
  input   x    float32[i: 4, j: 8]
  input   w    float32[j: 8, j: 8]
  output  y    float32[i: 4, j: 8]
  chip    t    float32[i: 4, j: 8]
  chip    acc  float32[i: 4, j: 8]
  chip    m    float32[i: 4]
"""


# -- hoist_invariant_loads ------------------------------------------------------------------------------------------


def test_hoist_loads_q_once():
    hoisted = hoist_invariant_loads(attention().program)
    verify(hoisted)
    kernel = hoisted.kernels[0]
    at_loop = next(n for n, stmt in enumerate(kernel.body) if isinstance(stmt, For))
    load = kernel.body[at_loop - 1]
    assert isinstance(load, Store)
    assert (load.node_id, load.target.tensor, load.origin) == ("l1.q_tile", "q_tile", "score")
    assert hoisted.tensor("q_tile") == Tensor("q_tile", (64, 64), F16, "chip")
    text = to_text(hoisted)
    assert text.count("q[b, h, i0*64:i0*64+64, 0:64]") == 1
    assert "k_tile" not in text, "k moves with the loop"


def test_hoist_through_two_loops():
    made = after(hoist_invariant_loads, DECLARED, """
        kernel p  grid ()
            acc[0:4, 0:8] = 0.0
            for a in range(2):
                for b in range(2):
                    acc[0:4, 0:8] = acc[0:4, 0:8] + x[0:4, 0:8]
            y[0:4, 0:8] = acc[0:4, 0:8]
    """)  # fmt: skip
    assert (
        made
        == """
+ chip x_tile float32[i: 4, j: 8]
kernel p  grid ()
    acc[0:4, 0:8] = 0.0
    x_tile[0:4, 0:8] = x[0:4, 0:8]  @acc=for:a@acc.x_tile
    for a in range(2):
        for b in range(2):
            acc[0:4, 0:8] = acc[0:4, 0:8] + x_tile[0:4, 0:8]
    y[0:4, 0:8] = acc[0:4, 0:8]
"""
    )


def test_what_a_kernel_stores_is_not_hoisted():
    assert after(hoist_invariant_loads, DECLARED, """
        kernel p  grid ()
            y[0:4, 0:8] = x[0:4, 0:8]
            for a in range(2):
                y[0:4, 0:8] = y[0:4, 0:8] + 1.0
    """) == "unchanged"  # fmt: skip


def test_hoisted_names_are_unique_and_shared():
    made = after(hoist_invariant_loads, DECLARED, """
        kernel p  grid ()
            for a in range(2):
                y[0:4, 0:4] = x[0:4, 0:4] + x[0:4, 0:4]
                y[0:4, 4:8] = x[0:4, 4:8] + x[0:4, 0:4]
    """)  # fmt: skip
    assert (
        made
        == """
+ chip x_tile float32[i: 4, j: 4]
+ chip x_tile_2 float32[i: 4, j: 4]
kernel p  grid ()
    x_tile[0:4, 0:4] = x[0:4, 0:4]  @y=for:a@y.x_tile
    x_tile_2[0:4, 0:4] = x[0:4, 4:8]  @y=for:a@y.x_tile_2
    for a in range(2):
        y[0:4, 0:4] = x_tile[0:4, 0:4] + x_tile[0:4, 0:4]
        y[0:4, 4:8] = x_tile_2[0:4, 0:4] + x_tile[0:4, 0:4]
"""
    )


GATHERED = """
program p(q, k, at) -> y
  input   q    float16[h: 8, i: 5, d: 16]
  input   k    float16[j: 32, d: 16]
  input   at   int32[h: 8]
  output  y    float32[r: 32, j: 32]
  chip    s    float32[r: 32, j: 32]
"""


def test_rows_of_several_heads_are_gathered_once():
    made = after(hoist_invariant_loads, GATHERED, """
        kernel p  grid (i0: 2)
            for j0 in range(2):
                s[i0*16:i0*16+16, j0*16:j0*16+16] = dot(
                    gather(
                        q, iota[i0*16:i0*16+16, NewAxis] % 8, iota[i0*16:i0*16+16, NewAxis] // 8, iota[NewAxis, 0:16]
                    ),
                    permute(k[j0*16:j0*16+16, 0:16], (1, 0)),
                )
                y[i0*16:i0*16+16, j0*16:j0*16+16] = s[i0*16:i0*16+16, j0*16:j0*16+16]
    """)  # fmt: skip
    assert (
        made
        == """
+ chip q_tile float16[r: 16, d: 16]
kernel p  grid (i0: 2)
    q_tile[0:16, 0:16] = gather(
        q,
        iota[i0*16:i0*16+16, NewAxis] % 8,
        iota[i0*16:i0*16+16, NewAxis] // 8,
        iota[NewAxis, 0:16],
    )  @s=for:j0@s.q_tile
    for j0 in range(2):
        s[i0*16:i0*16+16, j0*16:j0*16+16] = dot(q_tile[0:16, 0:16], permute(k[j0*16:j0*16+16, 0:16], (1, 0)))
        y[i0*16:i0*16+16, j0*16:j0*16+16] = s[i0*16:i0*16+16, j0*16:j0*16+16]
"""
    )


@pytest.mark.parametrize(
    "row",
    [
        pytest.param("iota[j0*8:j0*8+8, NewAxis] % 5", id="rows that the loop moves"),
        pytest.param("at[j0*2:j0*2+8, NewAxis]", id="rows that another tensor tells"),
        pytest.param("index(j0)", id="one row"),
    ],
)
def test_what_moves_with_a_loop_or_is_looked_up_is_gathered_there(row: str):
    assert after(hoist_invariant_loads, GATHERED, f"""
        kernel p  grid ()
            for j0 in range(4):
                y[j0*8:j0*8+8, 0:16] = float32(gather(q, iota[0:8, NewAxis], {row}, iota[NewAxis, 0:16]))
    """) == "unchanged"  # fmt: skip


# -- fold_dot_accumulate --------------------------------------------------------------------------------------------


FOLDED = """
kernel p  grid ()
    acc[0:4, 0:8] = 0.0
    m[0:4] = 1.0
    acc[0:4, 0:8] = dot(x[0:4, 0:8], w[0:8, 0:8], acc=acc[0:4, 0:8] * m[0:4, NewAxis])
    y[0:4, 0:8] = acc[0:4, 0:8]
"""


@pytest.mark.parametrize(
    "product",
    [
        """
            t[0:4, 0:8] = dot(x[0:4, 0:8], w[0:8, 0:8])
            acc[0:4, 0:8] = acc[0:4, 0:8] * m[0:4, NewAxis] + t[0:4, 0:8]
        """,
        """
            acc[0:4, 0:8] = dot(x[0:4, 0:8], w[0:8, 0:8]) + acc[0:4, 0:8] * m[0:4, NewAxis]
        """,
    ],
)
def test_fold_dot_into_the_accumulator(product: str):
    made = after(fold_dot_accumulate, DECLARED, f"""
        kernel p  grid ()
            acc[0:4, 0:8] = 0.0
            m[0:4] = 1.0{product}
            y[0:4, 0:8] = acc[0:4, 0:8]
    """)  # fmt: skip
    assert made == FOLDED


KEPT_PRODUCTS = {
    "the product is read twice": """
            acc[0:4, 0:8] = 0.0
            t[0:4, 0:8] = dot(x[0:4, 0:8], w[0:8, 0:8])
            acc[0:4, 0:8] = acc[0:4, 0:8] + t[0:4, 0:8] + t[0:4, 0:8]
            y[0:4, 0:8] = acc[0:4, 0:8]
    """,
    "the product is read again later": """
            acc[0:4, 0:8] = 0.0
            t[0:4, 0:8] = dot(x[0:4, 0:8], w[0:8, 0:8])
            acc[0:4, 0:8] = acc[0:4, 0:8] + t[0:4, 0:8]
            y[0:4, 0:8] = t[0:4, 0:8]
    """,
    "what is added has another shape": """
            m[0:4] = 0.0
            y[0:4, 0:8] = m[0:4, NewAxis] + dot(x[0:4, 0:8], w[0:8, 0:8])
    """,
    "`acc` feeds the product and changes between the two stores": """
            acc[0:4, 0:8] = 0.0
            t[0:4, 0:8] = dot(acc[0:4, 0:8], w[0:8, 0:8])
            acc[0:4, 0:8] = 1.0
            acc[0:4, 0:8] = acc[0:4, 0:8] + t[0:4, 0:8]
            y[0:4, 0:8] = acc[0:4, 0:8]
    """,
}


@pytest.mark.parametrize("name", KEPT_PRODUCTS)
def test_fold_dot_leaves_alone(name: str):
    assert after(fold_dot_accumulate, DECLARED, f"        kernel p  grid (){KEPT_PRODUCTS[name]}") == "unchanged"


# -- fold_initial_values --------------------------------------------------------------------------------------------


def test_a_reduction_that_runs_once_needs_no_initial_value():
    made = after(fold_initial_values, DECLARED, """
        kernel p  grid ()
            m[0:4] = -inf
            m[0:4] = max(m[0:4], reduce(max, x[0:4, 0:8], dim=1))  @m=max
            y[0:4, 0:8] = m[0:4, NewAxis]
    """)  # fmt: skip
    assert (
        made
        == """
kernel p  grid ()
    m[0:4] = reduce(max, x[0:4, 0:8], dim=1)  @m=max
    y[0:4, 0:8] = m[0:4, NewAxis]
"""
    )


def test_a_product_that_runs_once_needs_no_accumulator():
    made = after(fold_initial_values, DECLARED, """
        kernel p  grid ()
            acc[0:4, 0:8] = 0.0
            acc[0:4, 0:8] = dot(x[0:4, 0:8], w[0:8, 0:8], acc=acc[0:4, 0:8])  @acc=product
            y[0:4, 0:8] = acc[0:4, 0:8]
    """)  # fmt: skip
    assert (
        made
        == """
kernel p  grid ()
    acc[0:4, 0:8] = dot(x[0:4, 0:8], w[0:8, 0:8])  @acc=product
    y[0:4, 0:8] = acc[0:4, 0:8]
"""
    )


KEPT_VALUES = {
    "0 is not max's identity": """
            m[0:4] = 0.0
            m[0:4] = max(m[0:4], reduce(max, x[0:4, 0:8], dim=1))
            y[0:4, 0:8] = m[0:4, NewAxis]
    """,
    "the initial value is read before": """
            m[0:4] = 1.0
            y[0:4, 0:8] = m[0:4, NewAxis]
            m[0:4] = m[0:4] * reduce(max, x[0:4, 0:8], dim=1)
            y[0:4, 0:8] = m[0:4, NewAxis]
    """,
    "the reduction runs twice": """
            m[0:4] = 0.0
            for a in range(2):
                m[0:4] = m[0:4] + reduce(max, x[0:4, 0:8], dim=1)
            y[0:4, 0:8] = m[0:4, NewAxis]
    """,
    "what is folded reads the initial value": """
            m[0:4] = 0.0
            m[0:4] = m[0:4] + m[0:4] * reduce(max, x[0:4, 0:8], dim=1)
            y[0:4, 0:8] = m[0:4, NewAxis]
    """,
}


@pytest.mark.parametrize("name", KEPT_VALUES)
def test_initial_values_that_count_are_left_alone(name: str):
    assert after(fold_initial_values, DECLARED, f"        kernel p  grid (){KEPT_VALUES[name]}") == "unchanged"


# -- drop_dead_tiles ------------------------------------------------------------------------------------------------


def test_drop_dead_tiles():
    made = after(drop_dead_tiles, DECLARED, """
        kernel p  grid ()
            t[0:4, 0:8] = x[0:4, 0:8]
            acc[0:4, 0:8] = 0.0
            for a in range(2):
                acc[0:4, 0:8] = acc[0:4, 0:8] + t[0:4, 0:8]
            y[0:4, 0:8] = x[0:4, 0:8]
    """)  # fmt: skip
    assert (
        made
        == """
- chip t float32[i: 4, j: 8]
- chip acc float32[i: 4, j: 8]
- chip m float32[4]
kernel p  grid ()
    y[0:4, 0:8] = x[0:4, 0:8]
"""
    )


def test_drop_dead_tiles_keeps_what_another_kernel_reads():
    live = split_k().program
    assert drop_dead_tiles(live) is live
    assert drop_dead_tiles(matmul().program) is not None
