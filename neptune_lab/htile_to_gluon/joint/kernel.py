"""The kernel of two nests in Gluon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from neptune_lab.htile import nodes as ir
from neptune_lab.htile_to_gluon.context import (
    MODULE_NAMES,
    GluonContext,
    SizeParameters,
    gluon_dtype,
    layout_lines,
)
from neptune_lab.htile_to_gluon.functions import KernelLine, function_lines, lines_of, specialized
from neptune_lab.htile_to_gluon.joint.consumer import JointConsumer
from neptune_lab.htile_to_gluon.joint.joining import Joined
from neptune_lab.htile_to_gluon.joint.pair_places import emit_pair_adder, stores_from_registers
from neptune_lab.htile_to_gluon.joint.plan import Plan, plan_of
from neptune_lab.htile_to_gluon.joint.producer import ADDER, CONSUMERS, TICKET, emit_adder, emit_producer
from neptune_lab.htile_to_gluon.kernel import BARRIERS, PRODUCER_REGISTERS, WIDE_REGISTERS, GluonKernel
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.registers import REGISTERS
from neptune_lab.htile_to_gluon.rows import ROWS
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import depends_on_sizes, heads_at_launch, tiles
from neptune_lab.htile_to_triton.context import HostDescriptor
from neptune_lab.htile_to_triton.module import rounds_to_eights
from neptune_lab.htile_to_triton.scope import UniqueNames

ADDER_REGISTERS = PRODUCER_REGISTERS


@dataclass(frozen=True, slots=True)
class _Bodies:
    """The bodies of the functions of a kernel of two nests.

    Args:
        producer, consumer, adder: the contexts that they were emitted in.
        pair_adder: None: no warp adds pairs.
        counter: the order, and its pointer; empty: programs add in any order.
    """

    producer: GluonContext
    consumer: GluonContext
    adder: GluonContext
    pair_adder: GluonContext | None
    counter: dict[str, str]


def emit_joint(
    made: Joined,
    name: str,
    helpers: dict[str, dict[str, None]],
    taken: set[str],
    options: GluonOptions,
) -> GluonKernel:
    """Emits the kernel of two nests as the function `name` and three others; arguments as for `kernel.emit_kernel`.

    Raises:
        UnsupportedKernel: shared memory or registers do not suffice, or the copy engine cannot load a tile.
    """
    used: dict[str, dict[str, None]] = {}
    kernel = made.kernel
    program, plan = _plan_that_fits(made, taken, options.emit.target.shared_memory)
    options = replace(options, ring_stages=2, persistent=False)
    at_launch = plan.order is not None and options.heads_together is None and depends_on_sizes(kernel)
    if options.heads_together is None and not depends_on_sizes(kernel):
        options = replace(options, heads_together=plan.heads_together(program))
    taken = taken | {*plan.parameters} | _names_of(plan)
    parameters = SizeParameters.of(program, UniqueNames(taken | MODULE_NAMES))
    taken |= {*parameters.sizes.values(), parameters.together}

    def context() -> GluonContext:
        ctx = GluonContext(program, kernel, plan.structure, used, taken, options, plan.queries, parameters)
        ctx.at_launch = at_launch
        return ctx

    bodies = _bodies(made, plan, context, taken)
    used.setdefault("_barriers", {})[kernel.node_id] = None
    for helper, nodes in used.items():
        helpers.setdefault(helper, {}).update(nodes)
    text, pointers, descriptors, sizes = _text(name, kernel, plan, bodies, parameters)
    return GluonKernel(
        name,
        text,
        tuple(layout_lines({*bodies.consumer.layouts})),
        pointers,
        descriptors,
        tiles(kernel),
        WIDE_REGISTERS,
        not rounds_to_eights(kernel),
        tuple(size for size, parameter in parameters.sizes.items() if parameter in sizes),
        heads_at_launch(bodies.producer) if parameters.together in sizes else None,
        in_order=at_launch,
    )


def _plan_that_fits(made: Joined, taken: set[str], limit: int) -> tuple[ir.Program, Plan]:
    """The program and its plan, with one slot for squares if two are too many, and pairs of float32 in registers if
    they are too many too.

    Raises:
        UnsupportedKernel: it takes more than `limit` bytes of shared memory.
    """
    names = UniqueNames(taken)
    program, plan = plan_of(made.program, made.joint, made.total, made.order, names, made.parts, made.finish)
    if plan.size + BARRIERS > limit:
        plan = replace(plan, slots=1)
    if plan.size + BARRIERS > limit and stores_from_registers(program, plan):
        plan = replace(plan, pairs=None, apart="", direct=True)
    if plan.size + BARRIERS > limit:
        raise UnsupportedKernel(f"its tiles take {plan.size + BARRIERS} bytes of shared memory, of {limit}")
    return program, plan


def _names_of(plan: Plan) -> set[str]:
    """The names that the functions of a plan use, other than their parameters for shared memory."""
    own = {TICKET, ADDER, "lane", "done", "turn", "parity", "phase", "at", "total", "total_pending", "whole"}
    own |= {plan.total.parameter, *(h.own for h in plan.held), *(v.name for v in plan.vectors)}
    own |= {v.descriptor.parameter for v in plan.vectors if v.descriptor is not None}
    own |= {n for r in (*plan.rings, *(s.ring for s in plan.squares)) for n in (r.slot, r.phase)}
    own |= {f"zeros_{n}" for n in (plan.queries, plan.share)}
    return own | ({plan.pairs.parameter} if plan.pairs else set[str]())


def _bodies(made: Joined, plan: Plan, context: Callable[[], GluonContext], taken: set[str]) -> _Bodies:
    """Emits the body of each function.

    Args:
        context: makes a context with the names that are taken by then.
        taken: these names; the descriptors of the producer are added.
    """
    producer = context()
    producer.name_pointers()
    emit_producer(producer, plan)
    taken |= {d.parameter for d in producer.host_descriptors.values()}
    consumer = context()
    consumer.name_pointers()
    if made.parts is not None:
        consumer.pointers[made.parts] = consumer.names.fresh(f"{made.parts}_ptr")
    if plan.direct and made.joint.pairs is not None:
        output = made.joint.pairs.stored_in
        consumer.pointers[output] = consumer.names.fresh(f"{output}_ptr")
    if made.finish is not None:
        output = made.joint.output.target.tensor
        consumer.pointers[output] = consumer.names.fresh(f"{output}_ptr")
    JointConsumer(consumer, plan).emit()
    adder = context()
    counter: dict[str, str] = {}
    if plan.order is not None:
        counter = {plan.order: consumer.names.fresh(f"{plan.order}_ptr")}
        adder.pointers |= counter
    emit_adder(adder, plan)
    pair_adder = context() if plan.pairs_staged else None
    if pair_adder is not None:
        pair_adder.pointers |= counter
        emit_pair_adder(pair_adder, plan)
    return _Bodies(producer, consumer, adder, pair_adder, counter)


def _text(
    name: str, kernel: ir.Kernel, plan: Plan, bodies: _Bodies, parameters: SizeParameters
) -> tuple[tuple[KernelLine, ...], tuple[str, ...], tuple[HostDescriptor, ...], list[str]]:
    """The functions, and what the launcher passes to the entry: tensors by pointers, by descriptors, and sizes."""
    producer, consumer, adder, counter = bodies.producer, bodies.consumer, bodies.adder, bodies.counter
    adds_pairs = bodies.pair_adder is not None and plan.pairs is not None
    ticket = [TICKET] if counter else []
    vectors = [v.descriptor for v in plan.vectors if v.descriptor is not None]
    loaded = [v.tensor.name for v in plan.vectors if v.descriptor is None]
    own_pointers = consumer.pointers_in(line.text for line in lines_of(consumer))
    pointers = own_pointers | {name: producer.pointers[name] for name in loaded} | counter
    copied = [*producer.host_descriptors.values(), *vectors]
    outputs = [*consumer.host_descriptors.values(), *([] if plan.pairs is None else [plan.pairs])]
    descriptors = (*copied, *outputs, plan.total)
    of_each = [parameters.used_in(line.text for line in lines_of(each)) for each in (producer, consumer, adder)]
    sizes = [name for name in (*parameters.sizes.values(), parameters.together) if any(name in of for of in of_each)]
    for_producer = [
        *(producer.pointers[name] for name in loaded),
        *(d.parameter for d in copied),
        *of_each[0],
        *plan.parameters,
        *ticket,
    ]
    for_consumer = [*own_pointers.values(), *(d.parameter for d in outputs), *of_each[1], *plan.parameters, *ticket]
    for_adder = [*counter.values(), plan.total.parameter, *of_each[2], *plan.for_adder, *ticket]
    for_pair_adder = [*counter.values(), *([plan.pairs.parameter] if plan.pairs else []), *plan.for_pairs, *ticket]
    warps = (
        *((f"{name}_consumer", [*for_consumer, str(n)]) for n in range(CONSUMERS)),
        (f"{name}_producer", for_producer),
        *((f"{name}_adder", [*for_adder, *([str(n)] if plan.adders > 1 else [])]) for n in range(plan.adders)),
        *([(f"{name}_pair_adder", for_pair_adder)] if adds_pairs else []),
    )
    entry = _entry(plan, warps, copied, "".join(counter.values()))
    blank = [KernelLine(""), KernelLine("")]
    numbered = [f"{ADDER}: gl.constexpr"] if plan.adders > 1 else []
    mine = [*for_consumer, f"{consumer.variables['%consumer'][0]}: gl.constexpr"]
    body = [KernelLine(f"    {text}", (kernel.node_id,), kernel.name) for text in entry]
    for_entry = [*pointers.values(), *(d.parameter for d in descriptors), *sizes]
    text = (
        *function_lines(kernel, f"{name}_producer", for_producer, lines_of(producer)),
        *blank,
        *function_lines(kernel, f"{name}_consumer", mine, lines_of(consumer)),
        *blank,
        *function_lines(kernel, f"{name}_adder", [*for_adder, *numbered], lines_of(adder)),
        *blank,
        *(
            ()
            if bodies.pair_adder is None
            else (*function_lines(kernel, f"{name}_pair_adder", for_pair_adder, lines_of(bodies.pair_adder)), *blank)
        ),
        *function_lines(kernel, name, for_entry, body, sizes),
    )
    return text, tuple(pointers), descriptors, sizes


def _entry(
    plan: Plan, warps: tuple[tuple[str, list[str]], ...], copied: list[HostDescriptor], counter: str
) -> list[str]:
    """The body of the entry: shared memory, barriers, and which warps do what.

    Args:
        warps: the functions of the groups of warps, and their arguments.
        counter: the pointer of the order; "": there is none.
    """
    described = {d.tensor: d.parameter for d in copied}
    dtype = gluon_dtype(plan.held[0].dtype)
    body: list[str] = []
    if counter:
        # Programs are numbered as they start, so those that one waits for have started.
        body.append(f"{TICKET} = gl.atomic_add({counter} + {CONSUMERS}, 1)")

    def allocate(buffer: str, shape: list[int], dtype: str, layout: str) -> None:
        body.append(f"{buffer} = gl.allocate_shared_memory({dtype}, {shape}, {layout})")

    for held in plan.held:
        shape = [1, *held.shape] if held.of_matrix else [*held.shape]
        allocate(held.buffer, shape, gluon_dtype(held.dtype), f"{described[held.access.tensor]}.layout")
        body.append(f"{held.ready} = _barriers(1, 1)")
    for ring, slots in (*((ring, 2) for ring in plan.rings), *((s.ring, plan.slots) for s in plan.squares)):
        shape = [slots, 1, *ring.shape] if ring.of_matrix else [slots, *ring.shape]
        allocate(ring.slots, shape, gluon_dtype(ring.dtype), f"{described[ring.tensor]}.layout")
        body.append(f"{ring.full} = _barriers({slots}, 1)")
        body.append(f"{ring.empty} = _barriers({slots}, {CONSUMERS})")
    for vector in plan.vectors:
        plain = "gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)"
        layout = plain if vector.descriptor is None else f"{vector.descriptor.parameter}.layout"
        allocate(vector.ring, [plan.slots_of(vector), plan.queries], "gl.float32", layout)
    square = [CONSUMERS * ROWS, plan.queries]
    layout = f"gl.NVMMASharedLayout.get_default_for({square}, {dtype})"
    if plan.pairs is not None:
        pairs = [*([] if plan.pairs.matrices is None else [1]), plan.queries, CONSUMERS * ROWS]
        if plan.apart:
            allocate(plan.apart, pairs, "gl.float32", f"{plan.pairs.parameter}.layout")
            body += [f"{name} = _barriers({CONSUMERS}, 1)" for name in (plan.pairs_staged, plan.pairs_freed) if name]
        else:
            square, layout = pairs, f"{plan.pairs.parameter}.layout"
    allocate(plan.turns, [2, *square], dtype, layout)
    body.append(f"{plan.turned} = _barriers(2, {CONSUMERS})")
    apart = [] if plan.total.matrices is None else [1]
    allocate(plan.stage, [CONSUMERS, *apart, ROWS, plan.share], "gl.float32", f"{plan.total.parameter}.layout")
    body.append(f"{plan.staged} = _barriers({CONSUMERS}, 1)")
    body.append(f"{plan.freed} = _barriers({CONSUMERS}, 1)")
    if plan.finish is not None:
        body.append(f"{plan.loaded} = _barriers({CONSUMERS}, 1)")
    alone = len(warps) - CONSUMERS
    registers = [REGISTERS[CONSUMERS][1], PRODUCER_REGISTERS, *[ADDER_REGISTERS] * (alone - 1)]
    return [*body, *specialized(warps, [4, *[1] * alone], registers)]


__all__ = ["emit_joint"]
