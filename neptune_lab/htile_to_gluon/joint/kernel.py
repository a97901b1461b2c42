"""The kernel of two nests in Gluon, and the program around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile.walk import rewrite, same_index
from neptune_lab.htile_to_gluon.context import GluonContext, gluon_dtype, layout_lines
from neptune_lab.htile_to_gluon.joint.consumer import JointConsumer, emit_producer
from neptune_lab.htile_to_gluon.joint.match import Joint, joint_of
from neptune_lab.htile_to_gluon.joint.plan import Plan, plan_of
from neptune_lab.htile_to_gluon.kernel import (
    BARRIERS,
    PRODUCER_REGISTERS,
    WIDE_REGISTERS,
    GluonKernel,
    KernelLine,
    function_lines,
    lines_of,
)
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.registers import REGISTERS
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import tiles
from neptune_lab.htile_to_triton.context import WIDTH, HostDescriptor
from neptune_lab.htile_to_triton.module import rounds_to_eights
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.wrapping import Bracketed, lines

CONSUMERS = 2


@dataclass(frozen=True, slots=True)
class Joined:
    """A program with the kernel of two nests in place of these.

    Args:
        program: the sum of one nest is a tensor in global memory, which begins at 0 and which a kernel reads at the
            end. `kernel`, of the other nest, also adds to it, which its statements do not say.
        joint: the nests; `total`: the tensor.
    """

    program: ir.Program
    joint: Joint
    total: str

    @property
    def kernel(self) -> ir.Kernel:
        """The kernel that is to be emitted by `emit_joint`."""
        return self.joint.kernel


def joined(program: ir.Program) -> Joined:
    """Joins two nests of a program.

    Before => after:

        for j: y[i] = y[i] + x[i, j] @ k[j]          total[i] = 0, in an earlier kernel or in one of its own
        out[i] = g(y[i])                             the other nest, which adds to total[i]
                                                     out[i] = g(total[i])

    Raises:
        UnsupportedKernel: it has no two nests that can be joined.
    """
    joint = joint_of(program)
    output = joint.output
    names = UniqueNames([t.name for t in program.tensors])
    total = names.fresh(joint.total.removesuffix("_sum") + "_total")
    shape = program.tensor(output.target.tensor).shape
    if program.tensor(output.target.tensor).strides is not None:
        raise UnsupportedKernel(f"{output.target.tensor} is not contiguous")

    def visit(expr: ir.TileExpr) -> ir.TileExpr:
        return replace(expr, tensor=total) if isinstance(expr, ir.Access) and expr.tensor == joint.total else expr

    finish = replace(joint.other, body=(replace(output, value=rewrite(output.value, visit)),), num_stages=None)
    kernels: list[ir.Kernel] = []
    zeroed = False
    for kernel in program.kernels:
        if kernel is joint.other:
            continue
        if kernel is joint.kernel:
            if not zeroed:
                zero = ir.Store(f"{output.node_id}.zero", replace(output.target, tensor=total), _ZERO, output.origin)
                kernels.append(
                    replace(joint.other, node_id=f"{finish.node_id}.zero", name=f"{total}_zero", body=(zero,))
                )
            kernels += [kernel, finish]
            continue
        beside = None if zeroed else _zero_beside(program, kernel, output, total)
        zeroed = zeroed or beside is not None
        kernels.append(kernel if beside is None else replace(kernel, body=(*kernel.body, beside)))
    tensors = (*program.tensors, ir.Tensor(total, shape, "float32", "global"))
    return Joined(replace(program, tensors=tensors, kernels=tuple(kernels)), joint, total)


_ZERO = ir.Literal(0.0, "float32")


def _zero_beside(program: ir.Program, kernel: ir.Kernel, output: ir.Store, total: str) -> ir.Store | None:
    """The store of 0 to the rows of the total that a kernel stores one value of; None if it stores no such values."""
    shape = program.tensor(output.target.tensor).shape
    for stmt in kernel.body:
        if not isinstance(stmt, ir.Store) or stmt.mask is not None:
            continue
        target = program.tensor(stmt.target.tensor)
        if target.space == "chip" or target.shape != shape[:-1] or len(stmt.target.index) != len(target.shape):
            continue
        *outer, rows = stmt.target.index
        (*others, _, columns) = output.target.index
        alike = len(outer) == len(others) and all(map(_same, outer, others)) and isinstance(columns, ir.Slice)
        if alike and isinstance(rows, ir.Slice) and shape[-2] % rows.extent == 0:
            index = (*outer, rows, columns)
            return ir.Store(f"{output.node_id}.zero", ir.Access(total, index), _ZERO, output.origin)
    return None


def _same(a: ir.Index, b: ir.Index) -> bool:
    return not isinstance(a, ir.NewAxis) and not isinstance(b, ir.NewAxis) and same_index(a, b)


def emit_joint(
    made: Joined,
    name: str,
    helpers: dict[str, dict[str, None]],
    taken: set[str],
    options: GluonOptions,
) -> GluonKernel:
    """Emits the kernel of two nests as the function `name` and two others; arguments as for `kernel.emit_kernel`.

    Raises:
        UnsupportedKernel: shared memory or registers do not suffice, or the copy engine cannot load a tile.
    """
    used: dict[str, dict[str, None]] = {}
    program, plan = plan_of(made.program, made.joint, made.total, UniqueNames(taken))
    limit = options.emit.target.shared_memory
    if plan.size + BARRIERS > limit:
        raise UnsupportedKernel(f"its tiles take {plan.size + BARRIERS} bytes of shared memory, of {limit}")
    options = replace(options, stages=2, persistent=False)
    vectors = [v.descriptor for v in plan.vectors]
    own = {"done", "turn", "parity", "before_at", "total", "total_pending", plan.total.parameter}
    own |= {h.own for h in plan.held} | {v.name for v in plan.vectors} | {d.parameter for d in vectors}
    own |= {n for r in plan.rings for n in (r.slot, r.phase)} | {f"zeros_{n}" for n in (plan.queries, plan.share)}
    taken = taken | {*plan.parameters} | own
    kernel = made.kernel
    producer = GluonContext(program, kernel, plan.structure, used, taken, options, plan.queries)
    emit_producer(producer, plan)
    taken |= {d.parameter for d in producer.host_descriptors.values()}
    ctx = GluonContext(program, kernel, plan.structure, used, taken, options, plan.queries)
    ctx.name_pointers()
    JointConsumer(ctx, plan).emit()
    used.setdefault("_barriers", {})[kernel.node_id] = None
    for helper, nodes in used.items():
        helpers.setdefault(helper, {}).update(nodes)
    pointers = ctx.pointers_in(line.text for line in lines_of(ctx))
    copied = [*producer.host_descriptors.values(), *vectors]
    stored = [*ctx.host_descriptors.values(), plan.total]
    for_producer = [*(d.parameter for d in copied), *plan.parameters]
    for_consumer = [*pointers.values(), *(d.parameter for d in stored), *plan.parameters]
    entry = _entry(name, plan, for_producer, for_consumer, copied)
    blank = [KernelLine(""), KernelLine("")]
    mine = [*for_consumer, f"{ctx.variables['%consumer'][0]}: gl.constexpr"]
    body = [KernelLine(f"    {text}", (kernel.node_id,), kernel.name) for text in entry]
    text = [
        *function_lines(kernel, f"{name}_producer", for_producer, lines_of(producer)),
        *blank,
        *function_lines(kernel, f"{name}_consumer", mine, lines_of(ctx)),
        *blank,
        *function_lines(kernel, name, [*pointers.values(), *(d.parameter for d in (*copied, *stored))], body),
    ]
    return GluonKernel(
        name,
        tuple(text),
        tuple(layout_lines({*ctx.layouts})),
        tuple(pointers),
        (*copied, *stored),
        tiles(kernel),
        WIDE_REGISTERS,
        not rounds_to_eights(kernel),
    )


def _entry(
    name: str, plan: Plan, for_producer: list[str], for_consumer: list[str], copied: list[HostDescriptor]
) -> list[str]:
    """The body of the entry: shared memory, barriers, and which warps do what."""
    described = {d.tensor: d.parameter for d in copied}
    dtype = gluon_dtype(plan.held[0].dtype)
    body: list[str] = []

    def allocate(buffer: str, shape: list[int], dtype: str, layout: str) -> None:
        body.append(f"{buffer} = gl.allocate_shared_memory({dtype}, {shape}, {layout})")

    for held in plan.held:
        allocate(held.buffer, [*held.shape], gluon_dtype(held.dtype), f"{described[held.access.tensor]}.layout")
        body.append(f"{held.ready} = _barriers(1, 1)")
    for ring in plan.rings:
        allocate(ring.slots, [2, *ring.shape], gluon_dtype(ring.dtype), f"{described[ring.tensor]}.layout")
        body.append(f"{ring.full} = _barriers(2, 1)")
        body.append(f"{ring.empty} = _barriers(2, {CONSUMERS})")
    for vector in plan.vectors:
        allocate(vector.ring, [2, plan.queries], "gl.float32", f"{vector.descriptor.parameter}.layout")
    square = [CONSUMERS * ROWS, plan.queries]
    allocate(plan.turns, [2, *square], dtype, f"gl.NVMMASharedLayout.get_default_for({square}, {dtype})")
    body.append(f"{plan.turned} = _barriers(2, {CONSUMERS})")
    allocate(plan.stage, [CONSUMERS, ROWS, plan.share], "gl.float32", f"{plan.total.parameter}.layout")
    body += ["gl.warp_specialize(", "    ["]
    for arguments, function in (
        *(([*for_consumer, str(n)], f"{name}_consumer") for n in range(CONSUMERS)),
        (for_producer, f"{name}_producer"),
    ):
        body += lines(Bracketed("(", (function, Bracketed("(", tuple(arguments), ")")), "),"), WIDTH - 4, " " * 8)
    return [*body, "    ],", "    [4, 1],", f"    {[REGISTERS[CONSUMERS][1], PRODUCER_REGISTERS]},", ")"]


__all__ = ["Joined", "emit_joint", "joined"]
