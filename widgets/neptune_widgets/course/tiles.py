"""The notebook on tiles: what the translation did to each access, what each pass changed, and its exercises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neptune_lab.relative_error import relative_error
from neptune_widgets.course.exercise import NotYet, exercise

if TYPE_CHECKING:
    from neptune_lab.htile.nodes import Program as TileProgram
    from neptune_lab.htile.nodes import TileExpr
    from neptune_lab.loop_ir.nodes import Expr, Program
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Kernel

# -- dimension reconciliation -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One access of a store on its way to a tile, as text.

    Args:
        access: in the loops.
        order: the inner loop that each index walks, None where it walks none (d in the paper).
        region: the tile access, squeezed: an index that walks no inner loop is a scalar.
        tile: the same with its dimensions in the order of the loops.
    """

    access: str
    order: tuple[str | None, ...]
    region: str
    tile: str


def inner_loops(program: Program, block: str) -> tuple[str, ...]:
    """The loops that become dimensions of the block's tile (L_i of Algorithm 3), outermost first."""
    return tuple(_nest(program, block).inner)


def outer_loops(program: Program, block: str) -> tuple[str, ...]:
    """The loops that stay loops, or are bound to the grid (L_o)."""
    nest = _nest(program, block)
    return tuple(var for var in nest.extents if var not in nest.inner)


def reconciled(program: Program, block: str) -> tuple[Reconciled, ...]:
    """What the translation does to each access of the block's term: lines 3 to 7 of Algorithm 3, by its own code."""
    from neptune_lab.htile.nodes import Access, Slice
    from neptune_lab.htile.printer import flat_access
    from neptune_lab.loop_ir import tree
    from neptune_lab.loop_ir.render import expression
    from neptune_lab.loop_ir.simplify import simplify
    from neptune_lab.loop_ir.walks import loads, substitute
    from neptune_lab.loop_to_htile.access_regions import access_region
    from neptune_lab.loop_to_htile.dimension_order import reconcile_dimension_order

    nest = _nest(program, block)
    found = tree.find_block(program, block)[1]
    env: dict[str, Expr] = {it.name: it.binding for it in found.iters}
    made = []
    for load in loads(found.body.value):
        if found.init is not None and load.buffer == found.writes:
            continue  # what is folded so far
        indices = tuple(simplify(substitute(index, env), nest.extents) for index in load.indices)
        text = f"{load.buffer}[{', '.join(expression(index) for index in indices)}]"
        squeezed = access_region(indices, text, nest)
        order = tuple(part.axis if isinstance(part, Slice) else None for part in squeezed)
        tile = reconcile_dimension_order(load.buffer, squeezed, tuple(nest.inner))
        made.append(Reconciled(text, order, flat_access(Access(load.buffer, squeezed)), flat(tile)))
    return tuple(made)


def _nest(program: Program, block: str) -> Any:
    from neptune_lab.loop_ir import tree
    from neptune_lab.loop_to_htile.access_regions import TileableNest
    from neptune_lab.loop_to_htile.translate import tileable_nest

    for _, stmt, around in tree.statements(program):
        found = tileable_nest(stmt)
        if found is not None and found[0].name == block:
            inner = {loop.var: loop.extent for loop in found[1] if loop.extent > 1}
            return TileableNest(block, inner, {**{loop.var: loop.extent for loop in around}, **inner})
    raise KeyError(block)


def flat(expr: TileExpr) -> str:
    """The expression as text in one line."""
    from neptune_lab import wrapping
    from neptune_lab.htile.printer import expr_doc

    return wrapping.flat(expr_doc(expr))


# -- HTile's operations and passes ------------------------------------------------------------------------------


def operations(program: TileProgram) -> Iterator[tuple[str, str, str]]:
    """Of each kind of tile expression in HTile: its class, what it is, and the shortest one in `program`."""
    from typing import get_args

    from neptune_lab.htile import nodes
    from neptune_lab.htile.walk import stores, subexpressions

    there = [e for kernel in program.kernels for s in stores(kernel.body) for e in subexpressions(s.value)]
    for kind in get_args(nodes.TileExpr):
        doc = " ".join((kind.__doc__ or "").split())
        texts = sorted((flat(e) for e in there if isinstance(e, kind)), key=len)
        yield f"`{kind.__name__}`", doc.partition(". ")[0].rstrip("."), f"`{texts[0]}`" if texts else ""


@dataclass(frozen=True, slots=True)
class Change:
    """What a pass did to an HTile program: its kernels before and after, as text, and its proof where it gives one."""

    name: str
    before: str
    after: str
    notes: tuple[str, ...]


def changes(kernel: Kernel) -> tuple[Change, ...]:
    """The passes that changed something, in order."""
    from neptune_lab.htile.printer import print_program

    def text(program: TileProgram) -> str:
        return "".join(f"{line.text}\n" for line in print_program(program)).partition("\n\n")[2]

    made, last = [], kernel.translated
    for applied in kernel.passes:
        if applied.program is not last:
            made.append(Change(applied.name, text(last), text(applied.program), applied.notes))
            last = applied.program
    return tuple(made)


def errors(kernel: Kernel, seed: int = 0) -> Iterator[tuple[str, float, float]]:
    """The relative error of the HTile program after each stage against the float64 reference.

    Returns:
        A row a stage: its name, the error where everything is computed in float64, and in the program's own dtypes.
    """
    from neptune_lab.htile.interpret import interpret

    inputs = kernel.operator.random_inputs(seed)
    want = np.asarray(kernel.operator.reference(*inputs.values()))
    (output,) = kernel.htile.outputs
    last = None
    for name, program in [("translated", kernel.translated), *((a.name, a.program) for a in kernel.passes)]:
        if program is last:
            continue
        last = program
        wide = interpret(program, inputs, dtype="float64")[output]
        narrow = interpret(program, inputs)[output]
        yield name, relative_error(wide, want), relative_error(narrow, want)


def visited_figure(kernel: Kernel) -> tuple[Any, str]:
    """Which tiles of the scores are visited without the partition of masked loops, and with it; and so in words."""
    from neptune_widgets.course.gpu_figures import tiles
    from neptune_widgets.course.tile_map import tile_map

    programs = {applied.name: applied.program for applied in kernel.passes}
    figure, words = tiles({"before": tile_map(programs["drop_dead_tiles"]), "after": tile_map(kernel.htile)})
    # A mark a tile: there are few.
    layout = {k: {**v, "dtick": 1} if k[1:5] == "axis" else v for k, v in figure["layout"].items()}
    return {**figure, "layout": layout}, words


def links(kernel: Kernel) -> Iterator[tuple[int, str, str, str]]:
    """Each computing line of the Triton module: number, text, the HTile nodes and the stages that it came from."""
    for line in kernel.trace.kernel.triton if kernel.trace.kernel else ():
        if line.nodes and not line.text.lstrip().startswith("def "):
            stages = (node.partition(":")[2] for node in line.definition)
            nodes = ", ".join(f"`{node}`" for node in line.nodes)
            yield line.number, f"`{line.text.strip()}`", nodes, ", ".join(f"`{stage}`" for stage in stages)


def on_chip(block_q: int, block_kv: int, stages: int) -> tuple[int, int]:
    """Causal attention of 8192 positions with heads of 128, in float16: bytes of shared memory that its kernel is
    estimated to take, and its warps.

    Args:
        block_q, block_kv: rows and columns of a tile.
        stages: how many tiles of a loop are on chip at once, so that loads run ahead.
    """
    from neptune_lab import operators
    from neptune_lab.autotune.shared_memory import kernel_bytes
    from neptune_lab.pipeline import TileConfig, compile

    op = operators.attention.preset("causal_pf", seq=8192)
    made = compile(op, "rolling_update", block_q=block_q, block_kv=block_kv, config=TileConfig(num_stages=stages))
    (tiles,), (launch,) = made.htile.kernels, made.triton.kernels
    warps = launch.num_warps or 4
    return kernel_bytes(made.htile, tiles, num_warps=warps, num_stages=stages), warps


def on_chip_recorded() -> tuple[str, str]:
    """What the kernel of that operator with default options took on an H200, in words, and where it was seen."""
    from neptune_lab.bench.command import SHIPPED
    from neptune_lab.bench.measured import read

    results = read(SHIPPED)
    (setup,) = [s for s in results.group("attention") if s.name == "causal_pf-8192"]
    (entry,) = [e for e in setup.entries if e.name == "default options"]
    (seen,) = entry.resources
    text = f"{seen.shared} bytes of shared memory, {seen.registers} registers per thread, {seen.spills} spilled"
    return f"{text}, {seen.warps} warps", f"Recorded run: {results.device['name']}, {results.started[:10]}"


# -- exercises --------------------------------------------------------------------------------------------------

N, M, K = 4, 8, 16


def cube() -> Operator:
    """y[i, j, l] = t[l, i, j] * w[j]."""
    from neptune_lab import operators
    from neptune_lab.operators.base import tensor_expressions

    te = tensor_expressions()
    t, w = te.placeholder((K, N, M), "float32", name="t"), te.placeholder((M,), "float32", name="w")
    y = te.compute((N, M, K), lambda i, j, l: t[l, i, j] * w[j], name="y")
    return operators.custom("cube", [t, w], [y])


@exercise(
    "In which order do the dimensions of t stand?",
    hints=(
        "The loops are i, j, l. The first dimension of the result belongs to i: which dimension of `t` belongs to i?",
        "`permute(x, order)`: dimension n of the result is dimension `order[n]` of x, as in `np.transpose`.",
        "dimension 1 of `t` belongs to i, and dimension 2 to j.",
    ),
)
def order_of_t(answer: Sequence[int]) -> str:
    """The order of permute for t[l, i, j] under loops i, j, l."""
    from neptune_lab.htile.nodes import Permute
    from neptune_lab.htile.walk import stores, subexpressions
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.pipeline import compile

    (kernel,) = compile(Schedule(cube())).translated.kernels
    (store,) = stores(kernel.body)
    (permute,) = [e for e in subexpressions(store.value) if isinstance(e, Permute)]
    try:
        given = tuple(int(n) for n in answer)
    except (TypeError, ValueError) as error:
        raise NotYet(f"expected three numbers, such as (0, 1, 2), got `{answer!r}`") from error
    if sorted(given) != [0, 1, 2]:
        raise NotYet(f"{given} does not name each of the dimensions 0, 1 and 2 once")
    if given == permute.order:
        return f"the compiler writes `{flat(store.value)}`"
    shape = tuple((K, N, M)[n] for n in given)
    if given == tuple(np.argsort(permute.order)):
        raise NotYet(
            f"this is the inverse permutation: it makes the shape {shape} of ({K}, {N}, {M}); ({N}, {M}, {K}) is needed"
        )
    raise NotYet(f"a tile of shape ({K}, {N}, {M}) would become {shape}; the store takes ({N}, {M}, {K})")


@exercise(
    "A stage that is no tile",
    hints=(
        "Every index must depend on one inner loop with step 1, and an inner loop may occur in only one index.",
        "What is on the diagonal of x?",
        "`x[i, i]`, or `x[i + j, j]`, or `x[2 * i, j]`.",
    ),
)
def no_tile(answer: Callable[..., Any]) -> str:
    """A function of (x, i, j), x of 64 by 64, for y[i, j] with i and j below 32."""
    from neptune_lab import operators
    from neptune_lab.htile.walk import gathered_tensors, stores
    from neptune_lab.loop_schedule import Schedule
    from neptune_lab.operators.base import tensor_expressions
    from neptune_lab.pipeline import compile

    if not callable(answer):
        raise NotYet(f"expected a function of x, i and j, got `{answer!r}`")
    te = tensor_expressions()
    x = te.placeholder((64, 64), "float32", name="x")
    try:
        y = te.compute((32, 32), lambda i, j: answer(x, i, j), name="y")
        op = operators.custom("stage", [x], [y])
    except (TypeError, ValueError, AttributeError) as error:
        raise NotYet(f"this is not a tensor expression: {error}") from error
    sch = Schedule(op)
    sch.tile("y", i=16, j=16)
    for loop, axis in (("y.j0", "blockIdx.x"), ("y.i0", "blockIdx.y")):
        sch.bind(loop, axis)
    (made,) = compile(sch).translated.kernels
    store = next(iter(stores(made.body)))
    if any(gathered_tensors(store)):
        return f"no tile, so its elements are loaded one by one:\n`{flat(store.value)}`"
    raise NotYet(f"this is a tile: `{flat(store.value)}`")


def causal(block: int = 32, disable_passes: tuple[str, ...] = ()) -> Kernel:
    """The notebook's causal attention: 2 heads, 128 positions, 32 numbers a head, in square tiles of `block`."""
    from neptune_lab import operators
    from neptune_lab.pipeline import compile

    op = operators.attention.causal(batch=1, heads=2, seq=128, head_dim=32)
    return compile(op, "rolling_update", block_q=block, block_kv=block, disable_passes=disable_passes)


@exercise(
    "Which passes must be disabled?",
    hints=(
        "`exercises.changes(kernel)` has what each pass changed. Which one replaced `exp`, and which one `range(4)`?",
        "`nl.compile(…, disable_passes=(…,))` takes names; try one name and read `kernel.source`.",
        "One partitions loops by their masks; the other moves exponentials to base two.",
    ),
)
def left_out(answer: Sequence[str]) -> str:
    """Names of passes without which the kernel has one loop over all tiles, and no exp2."""
    names = (answer,) if isinstance(answer, str) else tuple(answer)
    source = causal(disable_passes=names).source
    wrong = []
    if "range(4)" not in source:
        wrong.append("the loop still depends on `i0`, the block of queries")
    if "tl.exp2(" in source:
        wrong.append("there is still an `exp2`")
    if wrong:
        raise NotYet("; ".join(wrong))
    spare = [n for n in names if not _needed(tuple(m for m in names if m != n))]
    if spare:
        raise NotYet(f"this does it, but not all are needed: leave {spare[0]!r} in")
    return "one loop over all four tiles, each of them masked, and exponentials of base e; the numbers are the same"


def _needed(names: tuple[str, ...]) -> bool:
    """Whether, with these left out alone, the kernel is not yet as wanted."""
    source = causal(disable_passes=names).source
    return "range(4)" not in source or "tl.exp2(" in source


@exercise(
    "How many bytes do all programs move?",
    hints=(
        "A tile is 32 × 32 numbers in float16. Count tiles, for one head first.",
        "Each of four blocks of queries loads its queries and stores its output. How many blocks of keys does it see?",
        "1 + 2 + 3 + 4 blocks of keys, and as many of values, in each of 2 heads.",
    ),
)
def bytes_moved(answer: int) -> str:
    """Bytes that the notebook's kernel loads and stores, tile by tile, in all programs."""
    from neptune_lab.autotune.cost_model import Machine, predict_kernel
    from neptune_lab.target import DEFAULT

    def moved(disable_passes: tuple[str, ...] = ()) -> int:
        tiles = causal(disable_passes=disable_passes).htile
        return round(sum(predict_kernel(tiles, k, Machine.of(DEFAULT)).moved for k in tiles.kernels))

    if not isinstance(answer, int | float) or isinstance(answer, bool):
        raise NotYet(f"expected a number of bytes, got `{answer!r}`")
    wanted, tile = moved(), 32 * 32 * 2
    if answer == wanted:
        return f"{wanted} bytes, which are {wanted // tile} tiles of {tile}"
    known = {
        moved(
            disable_passes=("partition_masked_loops",)
        ): "this counts the tiles that the mask leaves out; they are not visited",
        wanted // 2: "this is half of it: one head of two, or one byte a number",
        2 * wanted: "numbers of inputs and output are float16",
        wanted - 8 * tile: "this is what is loaded; the output is stored too",
        wanted // tile: "this is the number of tiles",
        8 * 4 * tile: "this is every tensor once; keys and values are loaded again for each block of queries",
    }
    if answer in known:
        raise NotYet(known[int(answer)])
    raise NotYet(f"{answer} bytes are {answer / tile:g} tiles of 32 × 32; the programs move a different number")
