"""Biases with an element per pair in the kernel of both nests: read by the copy engine, and their gradients stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import neptune_lab as nl
from neptune_lab.choice import Choice
from neptune_lab.errors import EmitError
from neptune_lab.gluon_simulator import Simulator
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import rewrite
from neptune_lab.htile_to_gluon.joint import joined
from neptune_lab.htile_to_gluon.joint.match import joint_of
from neptune_lab.htile_to_gluon.joint.pairs import after_pairs, copied, pairs_of
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.operators import Operator, attention, training
from neptune_lab.pipeline.compile import compile_choice
from neptune_lab.pipeline.hopper import gluon_kernel
from neptune_lab.pipeline.joint import default_joint_choice, joint_choice
from tests.gluon.test_joint import IN_ORDER, backward, interpreted

Mask = Callable[..., torch.Tensor]
NOT_A_NUMBER = """
def _unset(shape, dtype, device):
    return torch.full(shape, torch.nan if dtype.is_floating_point else 0, dtype=dtype, device=device)
"""


def with_bias(
    queries: int,
    keys: int,
    width: int,
    batch: int = 1,
    heads: int = 1,
    mask: Mask | None = None,
    *,
    transposed: bool = False,
    of_samples: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Operator:
    """Attention with a bias that has an element per head and pair, or per sample, head and pair."""
    bias = torch.linspace(-1, 1, heads * queries * keys).to(dtype)
    bias = bias.view(heads, keys, queries) if transposed else bias.view(heads, queries, keys)
    of_each = torch.stack([bias * (n + 1) for n in range(batch)])

    def score_mod(score, b, h, q, kv):
        if of_samples:
            return score + of_each[b, h, q, kv]
        return score + (bias[h, kv, q] if transposed else bias[h, q, kv])

    options: dict[str, Any] = {"empty_rows": "zero", "live": True}
    return attention.general(batch, heads, queries, keys, width, score_mod, mask, "bfloat16", **options)


def simulated(
    kernel: nl.Kernel,
    op: Operator,
    mask: Mask | None = None,
    *,
    transposed: bool = False,
    added: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> float:
    """The largest relative error of a gradient; `added`: what is added to scores, of the bias."""
    # (the largest of floats in Python would pass over NaN)
    return float(torch.tensor(errors(kernel, op, mask, transposed=transposed, added=added)).max())


def errors(
    kernel: nl.Kernel,
    op: Operator,
    mask: Mask | None = None,
    *,
    transposed: bool = False,
    added: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> list[float]:
    """The relative error of each gradient."""
    program = joined(kernel.htile, in_order=kernel.code.deterministic).program
    plain = {
        s.name: interpreted(program, k, s.arguments)
        for s, k in zip(kernel.triton.kernels, program.kernels, strict=True)
        if s.language == "triton"
    }
    dtypes = {tensor.name: getattr(torch, tensor.dtype) for tensor in op.inputs}
    drawn = {n: torch.from_numpy(a.astype(np.float32)).to(dtypes[n]) for n, a in op.random_inputs(0).items()}
    wide = [t.double().requires_grad_() for t in drawn.values()]
    bias = added(wide[3]) if added is not None else wide[3].mT if transposed else wide[3]
    score = wide[0] @ wide[1].mT * wide[0].shape[-1] ** -0.5 + bias
    if mask is not None:
        i, j = (torch.arange(n) for n in score.shape[-2:])
        score = score.masked_fill(~mask(0, 0, i[:, None], j), -torch.inf)
    out = score.softmax(-1) @ wide[2]
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = torch.autograd.grad(out, wide, d_out.double())
    top = score.detach().amax(-1)
    rows = {"top": top.float(), "log2_sum": (score.detach() - top[..., None]).exp().sum(-1).log2().float()}
    given = {**drawn, "out": out.detach().bfloat16(), "d_out": d_out, **rows}
    # What is read before it is stored is not a number.
    source = kernel.source.replace("torch.empty(", "_unset(").replace(
        "import torch\n", f"import torch\n{NOT_A_NUMBER}", 1
    )
    found = Simulator(source, plain=plain)(kernel.triton.entry, *(given[n] for n in kernel.htile.inputs))
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, expected, strict=False)]


def causal(b, h, q, kv):
    return kv <= q


@cache
def both_nests() -> nl.Kernel:
    return backward(with_bias(256, 256, 64, 2), IN_ORDER, None)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("lengths", "width", "transposed"),
    [
        ((128, 256), 128, False),
        ((256, 256), 64, True),
        ((320, 264), 64, False),
        ((160, 200), 128, False),
    ],
    ids=["whole tiles, 128", "keys first", "parts of tiles, 64", "parts of tiles, 128"],
)
def test_gradients(lengths: tuple[int, int], width: int, transposed: bool):
    op = with_bias(*lengths, width, transposed=transposed)
    kernel = backward(op, IN_ORDER, None)
    transposing = ["triton"] if transposed else []
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", *transposing, "triton"], "no sum over one"
    assert simulated(kernel, op, transposed=transposed) < 1e-2


def test_samples_share_a_bias():
    """Programs of the samples that read a tile come one after the other, and the sum over samples after both nests."""
    kernel = both_nests()
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", "triton", "triton"]
    program = joined(kernel.htile, in_order=True).program
    assert [axis.var for axis in program.kernels[1].grid] == ["j0", "b", "h"]
    assert simulated(kernel, with_bias(256, 256, 64, 2)) < 1e-2


def test_a_bias_of_each_sample_gets_its_gradient_from_the_kernel_of_both():
    op = with_bias(128, 256, 128, 2, of_samples=True)
    choice = joint_choice(training(op).backward, deterministic=True)
    assert choice is not None
    kernel = compile_choice(training(op).backward, choice, target="h100", validate="none")
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", "triton"], "nothing is copied"
    assert simulated(kernel, op) < 1e-2


Added = Callable[[Any, Any, Any, Any, Any], Any]


def with_two_biases(second: Added, columns: int = 256) -> Operator:
    """Attention with a bias that is read at two places."""
    bias = torch.linspace(-1, 1, 2 * 256 * columns).view(2, 256, columns).bfloat16()

    def score_mod(score, b, h, q, kv):
        return score + bias[h, q, kv] + second(bias, b, h, q, kv)

    return attention.general(1, 2, 256, 256, 128, score_mod, None, "bfloat16", empty_rows="zero", live=True)


@pytest.mark.parametrize(
    ("second", "added"),
    [
        (lambda t, b, h, q, kv: t[0, q, kv], lambda t: t + t[0]),
        (lambda t, b, h, q, kv: t[h, kv, q], lambda t: t + t.mT),
    ],
    ids=["of the first head", "keys first"],
)
def test_tiles_of_pairs_at_two_places_are_two(second: Added, added: Callable[[torch.Tensor], torch.Tensor]):
    op = with_two_biases(second)
    kernel = backward(op, IN_ORDER, ("q", "k", "v"))
    assert simulated(kernel, op, added=added) < 1e-2


def as_chosen(op: Operator, *, deterministic: bool = True) -> nl.Kernel:
    """The backward pass in one kernel with the tiles that are chosen for it."""
    passes = training(op).backward
    choice = joint_choice(passes, deterministic=deterministic)
    assert choice is not None
    return compile_choice(passes, choice, target="h200", validate="none")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("lengths", "width", "batch", "mask", "of_samples", "after"),
    [
        ((256, 256), 64, 3, None, False, 1),
        ((320, 264), 64, 1, None, False, 1),
        ((256, 256), 64, 2, causal, False, 2),
        ((130, 264), 64, 2, None, False, 2),
        ((176, 264), 64, 2, None, False, 1),
        ((128, 256), 64, 2, None, True, 1),
        ((192, 256), 128, 2, None, False, 2),
        ((256, 256), 128, 2, causal, False, 2),
    ],
    ids=[
        "added up",
        "parts of tiles",
        "hidden tiles",
        "no room for counters",
        "added up, parts of tiles",
        "of each sample",
        "from registers",
        "from registers, hidden tiles",
    ],
)
def test_pairs_of_32_bits_are_stored_before_they_are_rounded(
    lengths: tuple[int, int], width: int, batch: int, mask: Mask | None, of_samples: bool, after: int
):
    """Nearer to float64 than gradients of a bias of 16 bits, which are 1.6e-3 from it."""
    op = with_bias(*lengths, width, batch, mask=mask, of_samples=of_samples, dtype=torch.float32)
    kernel = as_chosen(op, deterministic=False)
    assert [k.language for k in kernel.triton.kernels] == ["triton", "gluon", *["triton"] * after]
    assert kernel.code.deterministic
    *others, of_bias = errors(kernel, op, mask)
    assert max(others) < 1e-2
    assert of_bias < 1.2e-3


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [(torch.float32, "bytes of shared memory"), (torch.int32, "reads int32 of bias for each pair; expected a float")],
    ids=str,
)
def test_pairs_that_are_refused_of_heads_of_128_columns(dtype: torch.dtype, reason: str):
    """Two consumers' products leave no room for pairs of 32 bits, and parts of tiles are not stored from registers."""
    with pytest.raises(EmitError, match=reason):
        backward(with_bias(256, 264, 128, dtype=dtype), IN_ORDER, None)


def test_pairs_beside_those_that_are_visited_are_refused():
    with pytest.raises(EmitError, match="is read beside the pairs"):
        backward(with_two_biases(lambda t, b, h, q, kv: t[h, q, kv + 8], 264), IN_ORDER, ("q", "k", "v"))


@pytest.mark.one_in(12)
@pytest.mark.parametrize("seed", range(36))
def test_gradients_of_random_calls(seed: int):
    """In one kernel, or refused."""
    rng = np.random.default_rng(seed)
    lengths = tuple(int(n) for n in 8 * rng.integers(16, 45, 2))
    width, transposed = int(rng.choice([64, 128])), bool(rng.integers(2))
    mask = [None, causal, lambda b, h, q, kv: kv <= q + 70, lambda b, h, q, kv: (kv <= q) | (kv < 70)][rng.integers(4)]
    counts = [int(n) for n in rng.integers(1, 3, 2)]
    dtype = [torch.bfloat16, torch.float32][rng.integers(2)]
    op = with_bias(*lengths, width, *counts, mask, transposed=transposed, dtype=dtype)
    try:
        kernel = as_chosen(op, deterministic=bool(rng.integers(2)))
    except EmitError:
        return
    seen = torch.ones(lengths, dtype=torch.bool)
    if mask is not None:
        seen = mask(0, 0, torch.arange(lengths[0])[:, None], torch.arange(lengths[1]))
    if seen.any(1).all():  # (the reference has no rows without keys)
        assert simulated(kernel, op, mask, transposed=transposed) < 1e-2


@pytest.mark.parametrize(
    ("width", "batch", "transposed"),
    [(64, 2, False), (64, 1, False), (128, 1, True)],
    ids=["a sum over samples", "a copy", "keys first"],
)
def test_pairs_that_the_mask_hides_are_not_read(width: int, batch: int, transposed: bool):
    """Those of hidden tiles are not stored."""
    op = with_bias(256, 256, width, batch, mask=causal, transposed=transposed)
    kernel = backward(op, IN_ORDER, None)
    found = joint_of(kernel.htile)
    assert found.pairs is not None
    assert found.pairs.shown == (("le", "bool", ("iota", "key"), ("iota", "query")),)
    assert simulated(kernel, op, causal, transposed=transposed) < 1e-2


def relative(mask: Mask | None) -> Operator:
    bias = torch.zeros(1, 511, dtype=torch.bfloat16)
    options: dict[str, Any] = {"empty_rows": "zero", "live": True}
    return attention.general(1, 1, 256, 256, 64, lambda s, b, h, q, kv: s + bias[h, q - kv + 255], mask, **options)


@pytest.mark.parametrize(
    ("op", "chosen"),
    [
        (lambda: with_bias(256, 256, 64), True),
        (lambda: relative(None), True),
        (lambda: relative(causal), False),
        (lambda: with_bias(256, 256, 64, mask=causal), True),
    ],
    ids=["pairs", "relative", "relative, causal", "pairs, causal"],
)
def test_heads_of_64_columns_are_one_kernel_without_a_mask_or_with_pairs(op: Callable[[], Operator], chosen: bool):
    assert (default_joint_choice(training(op()).backward) is not None) == chosen


@pytest.mark.parametrize(("width", "with_pairs", "chosen"), [(64, True, False), (64, False, True), (128, True, True)])
def test_narrow_heads_read_pairs_in_triton_in_the_forward_pass(width: int, with_pairs: bool, chosen: bool):
    op = with_bias(256, 256, width) if with_pairs else attention.full(1, 1, 256, width)
    asked = Choice("rolling_update", nl.TileConfig(block_q=128, block_kv=128), nl.CodeOptions(code="gluon"))

    def make(choice: Choice) -> nl.Kernel:
        return compile_choice(training(op).forward, choice, target="h200", validate="none")

    assert (gluon_kernel(make, asked) is not None) == chosen


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (lambda: with_bias(256, 300, 64), "do not begin at multiples of 16 bytes"),
        (lambda: with_bias(256, 300, 64, dtype=torch.float32), "takes? .* bytes of shared memory"),
    ],
    ids=["odd rows", "32 bits and 128 queries"],
)
def test_what_is_refused(op: Callable[[], Operator], reason: str):
    with pytest.raises(EmitError, match=reason):
        backward(op(), IN_ORDER, None)


def changed(name: str, change: Callable[[ir.Store], ir.Store], program: ir.Program | None = None) -> ir.Program:
    """The program with the statements of a kernel changed."""
    program = program or both_nests().htile

    def of(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(replace(s, body=of(s.body)) if isinstance(s, ir.For) else change(s) for s in body)

    return replace(
        program, kernels=tuple(replace(k, body=of(k.body)) if k.name == name else k for k in program.kernels)
    )


def nests() -> tuple[str, str]:
    """The names of the nest over keys, which stores pairs, and of the other."""
    joint = joint_of(both_nests().htile)
    return joint.other.name, joint.kernel.name


def stores_pairs(store: ir.Store) -> bool:
    return store.target.tensor == "d_score_bfloat16"


def other_values(store: ir.Store) -> ir.Store:
    if not stores_pairs(store):
        return store
    assert isinstance(store.value, ir.Access)
    return replace(store, value=replace(store.value, tensor="d_score"))


def other_place(store: ir.Store) -> ir.Store:
    if not stores_pairs(store):
        return store
    (*outer, rows, columns) = store.target.index
    return replace(store, target=replace(store.target, index=(*outer, columns, rows)))


def other_head(store: ir.Store) -> ir.Store:
    if not stores_pairs(store):
        return store
    return replace(store, target=replace(store.target, index=(ir.Int(0), *store.target.index[1:])))


@pytest.mark.parametrize("tile", ["d_score_chip", "weights", "d_weights_in_bfloat16"])
def test_pairs_of_32_bits_are_those_that_the_left_operand_rounds(tile: str):
    program = as_chosen(with_bias(256, 256, 64, dtype=torch.float32)).htile
    found = pairs_of(program)
    assert found is not None
    assert found.tensor == "d_score"
    assert isinstance(found.statement.value, ir.Access)
    other = replace(found.statement, value=replace(found.statement.value, tensor=tile))
    program = changed(found.maker, lambda s: other if s.target.tensor == "d_score" else s, program)
    if tile == "d_score_chip":  # (as it is)
        stored = joint_of(program).pairs
        assert stored is not None
        assert stored.unrounded == "d_score_2"
    else:
        with pytest.raises(UnsupportedKernel, match="is not the left operand"):
            joint_of(program)


@pytest.mark.parametrize("change", [other_values, other_place, other_head], ids=lambda f: f.__name__)
def test_only_the_left_operand_of_the_sum_is_stored_by_the_kernel_of_both(change: Callable[[ir.Store], ir.Store]):
    program = changed(nests()[0], change)
    assert program != both_nests().htile
    with pytest.raises(UnsupportedKernel, match="is not the left operand"):
        joint_of(program)


def test_a_tensor_of_pairs_that_is_stored_twice_is_left():
    program = both_nests().htile
    found = pairs_of(program)
    assert found is not None
    first, *_ = program.kernels
    twice = replace(first, body=(*first.body, found.statement))
    assert pairs_of(replace(program, kernels=(twice, *program.kernels[1:]))) is None


def test_what_reads_pairs_comes_after_both_nests():
    program = both_nests().htile
    found = pairs_of(program)
    assert found is not None
    assert [k.name for k in after_pairs(program, found)] == ["attention_general_backward_d_bias_sum"]
    assert [k.name for k in joined(program, in_order=True).program.kernels][
        -1
    ] == "attention_general_backward_d_bias_sum"


@cache
def one_sample() -> nl.Kernel:
    return backward(with_bias(256, 256, 64), IN_ORDER, None)


def twice(expr: ir.TileExpr) -> ir.TileExpr:
    is_wide = isinstance(expr, ir.Cast) and expr.dtype == "float32"
    return ir.Elementwise("add", (expr, expr), "float32") if is_wide else expr


def first_row(expr: ir.TileExpr) -> ir.TileExpr:
    if not isinstance(expr, ir.Access) or expr.tensor != "d_score_bfloat16":
        return expr
    (*outer, _, columns) = expr.index
    return replace(expr, index=(*outer, ir.Int(0), columns))


@pytest.mark.parametrize(
    ("change", "copies"),
    [(None, True), (twice, False), (first_row, False)],
    ids=["as it is", "twice", "the first row"],
)
def test_a_tensor_is_stored_in_place_of_another_that_only_copies_it(change: Any, copies: bool):
    program = one_sample().htile
    if change is not None:
        name = "attention_general_backward_d_bias_sum"
        made = changed(name, lambda s: replace(s, value=rewrite(s.value, change)), program)
        assert made != program
        program = made
    found = pairs_of(program)
    assert found is not None
    assert (copied(program, found) is not None) == copies


@pytest.mark.parametrize("columns", [192, 384])
def test_a_tensor_is_not_stored_in_place_of_one_of_another_size(columns: int):
    """Elements of the copy would be stored where other rows of it are, or past its end."""
    program = one_sample().htile
    found = pairs_of(program)
    assert found is not None
    resized = [replace(t, shape=(*t.shape[:-1], columns)) if t.name == "d_bias" else t for t in program.tensors]
    assert copied(replace(program, tensors=tuple(resized)), found) is None


def test_a_sum_over_samples_is_no_copy():
    program = both_nests().htile
    found = pairs_of(program)
    assert found is not None
    assert copied(program, found) is None


def test_a_transposed_tile_has_the_elements_of_the_other_nest():
    """The nest over queries reads the bias of keys and queries, where the other one reads that of queries and keys."""

    def as_it_is(expr: ir.TileExpr) -> ir.TileExpr:
        return expr.arg if isinstance(expr, ir.Permute) and "bias" in str(expr) else expr

    def visit(store: ir.Store) -> ir.Store:
        return store if isinstance(store.value, ir.Dot) else replace(store, value=rewrite(store.value, as_it_is))

    program = changed(nests()[1], visit)
    assert program != both_nests().htile
    with pytest.raises(UnsupportedKernel, match="has the columns of others as rows"):
        joint_of(program)


def test_only_conditions_that_hold_for_all_pairs_are_left_out():
    """Of the terms of a tile, "before the end" is left out, and "before the row before the end" is not."""
    program = backward(with_bias(320, 256, 64), IN_ORDER, None).htile
    joint = joint_of(program)

    def shorter(expr: ir.TileExpr) -> ir.TileExpr:
        return replace(expr, value=319) if expr == ir.Literal(320, "int32") else expr

    made = changed(joint.other.name, lambda s: replace(s, value=rewrite(s.value, shorter)), program)
    assert made != program
    with pytest.raises(UnsupportedKernel, match="do not compute the same tiles"):
        joint_of(made)
