"""Each rewrite: what it does, and what it must leave alone (its meaning is tested in test_meaning.py)."""

from __future__ import annotations

from htile_programs import F16, F32, NEW, at, attention, lit, matmul, op, split_k, tile

from neptune_lab.htile import to_text, verify
from neptune_lab.htile.nodes import Dot, For, GridAxis, Int, Kernel, Program, Reduce, Slice, Stmt, Store, Tensor
from neptune_lab.htile_passes import drop_dead_tiles, fold_dot_accumulate, fold_initial_values, hoist_invariant_loads

I, J = tile("i0", 16, "i"), Slice(Int(0), 16, "j")
TENSORS = (
    Tensor("x", (32, 16), F32, "input"), Tensor("w", (16, 16), F32, "input"), Tensor("y", (32, 16), F32, "output"),
    Tensor("t", (32, 16), F32, "chip"), Tensor("acc", (32, 16), F32, "chip"), Tensor("m", (32,), F32, "chip"),
)  # fmt: skip
X, W, Y, T, ACC, M = at("x", I, J), at("w", J, J), at("y", I, J), at("t", I, J), at("acc", I, J), at("m", I)


def program(*body: Stmt) -> Program:
    out = Program("p", TENSORS, ("x", "w"), ("y",), (Kernel("k", "p", (GridAxis("i0", 2),), body),))
    verify(out)
    return out


def store(node: str, target, value, mask=None) -> Store:
    return Store(node, target, value, f"block_{node}", mask)


def test_hoist_loads_q_once():
    before = attention().program
    after = hoist_invariant_loads(before)
    verify(after)
    kernel = after.kernels[0]
    at_loop = next(n for n, stmt in enumerate(kernel.body) if isinstance(stmt, For))
    load = kernel.body[at_loop - 1]
    assert isinstance(load, Store)
    assert (load.node_id, load.target.tensor, load.origin) == ("l1.q_tile", "q_tile", "score")
    assert after.tensor("q_tile") == Tensor("q_tile", (64, 64), F16, "chip")
    text = to_text(after)
    assert text.count("q[b, h, i0*64:i0*64+64, 0:64]") == 1
    assert "k_tile" not in text, "k moves with the loop"


def test_hoist_through_two_loops_and_not_out_of_a_write():
    inner = For("l2", "b", Int(0), Int(2), (store("s2", ACC, op("add", ACC, X)),), "block")
    outer = For("l1", "a", Int(0), Int(2), (inner,), "block")
    after = hoist_invariant_loads(program(store("s1", ACC, lit(0.0)), outer, store("s3", Y, ACC)))
    assert [stmt.node_id for stmt in after.kernels[0].body] == ["s1", "l1.x_tile", "l1", "s3"]
    rewritten = program(
        store("s1", Y, X), For("l1", "a", Int(0), Int(2), (store("s2", Y, op("add", Y, lit(1.0))),), "")
    )
    assert hoist_invariant_loads(rewritten) is rewritten


def test_hoisted_names_are_unique_and_shared():
    columns = [Slice(Int(0), 8, "j"), Slice(Int(8), 8, "j")]
    body = tuple(
        store(f"s{n}", at("y", I, c), op("add", at("x", I, c), at("x", I, columns[0]))) for n, c in enumerate(columns)
    )
    after = hoist_invariant_loads(program(For("l1", "a", Int(0), Int(2), body, "block")))
    assert [s.node_id for s in after.kernels[0].body] == ["l1.x_tile", "l1.x_tile_2", "l1"]


def test_fold_dot_into_the_accumulator():
    scaled = op("mul", ACC, at("m", I, NEW))
    inits = (store("s1", ACC, lit(0.0)), store("s2", M, lit(1.0)))
    split = program(*inits, store("s3", T, Dot(X, W)), store("s4", ACC, op("add", scaled, T)), store("s5", Y, ACC))
    inline = program(*inits, store("s4", ACC, op("add", Dot(X, W), scaled)), store("s5", Y, ACC))
    for before in (split, inline):
        after = fold_dot_accumulate(before)
        assert after.kernels[0].body == (*inits, store("s4", ACC, Dot(X, W, scaled)), store("s5", Y, ACC))


def test_fold_dot_leaves_alone():
    init = store("s1", ACC, lit(0.0))
    used_twice = op("add", op("add", ACC, T), T)
    cases = [
        program(init, store("s2", T, Dot(X, W)), store("s3", ACC, used_twice), store("s4", Y, ACC)),
        program(init, store("s2", T, Dot(X, W)), store("s3", ACC, op("add", ACC, T)), store("s4", Y, T)),
        program(store("s1", M, lit(0.0)), store("s2", Y, op("add", at("m", I, NEW), Dot(X, W)))),
        # `acc` feeds the product and changes between the two stores.
        program(init, store("s2", T, Dot(ACC, W)), store("s3", ACC, lit(1.0)), store("s4", ACC, op("add", ACC, T)),
                store("s5", Y, ACC)),
    ]  # fmt: skip
    for case in cases:
        assert fold_dot_accumulate(case) is case


def test_fold_initial_values():
    row_max = Reduce("max", X, 1)
    before = program(
        store("s1", M, lit(float("-inf"))), store("s2", M, op("max", M, row_max)), store("s3", Y, at("m", I, NEW))
    )
    after = fold_initial_values(before)
    assert after.kernels[0].body == (store("s2", M, row_max), store("s3", Y, at("m", I, NEW)))
    dots = program(store("s1", ACC, lit(0.0)), store("s2", ACC, Dot(X, W, ACC)), store("s3", Y, ACC))
    assert fold_initial_values(dots).kernels[0].body[0] == store("s2", ACC, Dot(X, W))


def test_fold_initial_values_leaves_alone():
    row_max = Reduce("max", X, 1)
    last = store("s9", Y, at("m", I, NEW))
    cases = [
        program(store("s1", M, lit(0.0)), store("s2", M, op("max", M, row_max)), last),  # 0 is not max's identity
        program(store("s1", M, lit(1.0)), store("s2", Y, at("m", I, NEW)), store("s3", M, op("mul", M, row_max)), last),
        program(
            store("s1", M, lit(0.0)), For("l", "a", Int(0), Int(2), (store("s2", M, op("add", M, row_max)),), ""), last
        ),
        program(store("s1", M, lit(0.0)), store("s2", M, op("add", M, op("mul", M, row_max))), last),
    ]
    for case in cases:
        assert fold_initial_values(case) is case


def test_drop_dead_tiles():
    before = program(
        store("s1", T, X),
        store("s2", ACC, lit(0.0)),
        For("l", "a", Int(0), Int(2), (store("s3", ACC, op("add", ACC, T)),), "block"),
        store("s4", Y, X),
    )
    after = drop_dead_tiles(before)
    assert after.kernels[0].body == (store("s4", Y, X),)
    assert [tensor.name for tensor in after.tensors] == ["x", "w", "y"]


def test_drop_dead_tiles_keeps_what_another_kernel_reads():
    live = split_k().program
    assert drop_dead_tiles(live) is live
    assert drop_dead_tiles(matmul().program) is not None
