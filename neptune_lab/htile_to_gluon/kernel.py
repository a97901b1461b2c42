"""One kernel in Gluon: consumer, producer, and the entry that allocates shared memory and starts the warps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune_lab.htile.nodes import IndexExpr, Kernel, Program
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile_to_gluon.consumer import Consumer
from neptune_lab.htile_to_gluon.context import (
    MODULE_NAMES,
    GluonContext,
    SizeParameters,
    gluon_dtype,
    layout_lines,
)
from neptune_lab.htile_to_gluon.data_bounds import DataBounds, with_variables
from neptune_lab.htile_to_gluon.functions import KernelLine, function_lines, lines_of, specialized
from neptune_lab.htile_to_gluon.key_order import keys_in_halves
from neptune_lab.htile_to_gluon.match import match_structure
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.producer import emit_producer
from neptune_lab.htile_to_gluon.promoting import PromotingConsumer
from neptune_lab.htile_to_gluon.registers import REGISTERS
from neptune_lab.htile_to_gluon.relay import Relay
from neptune_lab.htile_to_gluon.shared_memory import SharedMemory, plan_shared_memory, tile_bytes
from neptune_lab.htile_to_gluon.structure import Structure, UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import heads_at_launch, tiles
from neptune_lab.htile_to_gluon.unscaled import unscaled
from neptune_lab.htile_to_gluon.widths import enlarged
from neptune_lab.htile_to_triton.context import HostDescriptor
from neptune_lab.htile_to_triton.module import rounds_to_eights
from neptune_lab.htile_to_triton.scope import UniqueNames

BARRIERS = 1024  # bytes reserved for barriers
PRODUCER_REGISTERS = 24
# Registers per thread at the launch that the assembler needs if a product has more than 128 columns.
WIDE_PRODUCT, WIDE_REGISTERS = 128, 168


@dataclass(frozen=True, slots=True)
class GluonKernel:
    """An emitted kernel.

    Args:
        name: the entry's name.
        lines: its functions, the entry last.
        constants: definitions of module-level layouts.
        pointers: tensors that the entry takes by pointer, in order.
        descriptors: tensor descriptors that it takes after them.
        sizes: sizes that are known at the launch and that it takes after these.
        together: if it then takes how many heads run at the same time: what that follows from (`heads_at_launch`).
        in_order: whether programs add in order, and so many heads run at the same time as fit the cache.
        programs: the number of tiles, which is the grid's size or, with persistent programs, its limit.
        registers: registers per thread at the launch.
        fused: as in `KernelSource`.
        warps: of the first consumer, which the launch has.
    """

    name: str
    lines: tuple[KernelLine, ...]
    constants: tuple[str, ...]
    pointers: tuple[str, ...]
    descriptors: tuple[HostDescriptor, ...]
    programs: IndexExpr
    registers: int
    fused: bool
    sizes: tuple[str, ...] = ()
    together: tuple[IndexExpr, IndexExpr, IndexExpr] | None = None
    in_order: bool = False
    warps: int = 4


def emit_kernel(
    program: Program,
    kernel: Kernel,
    name: str,
    helpers: dict[str, dict[str, None]],
    taken: set[str],
    options: GluonOptions,
) -> GluonKernel:
    """Emits `kernel` as the function `name` and two others.

    Args:
        helpers: module-level helpers in use so far, with the nodes that use them; extended.
        taken: names of the module's functions.

    Raises:
        UnsupportedKernel: the kernel has not the form that can be emitted in Gluon.
    """
    program, kernel = enlarged(program, kernel)
    kernel, bounds = with_variables(kernel)
    structure = match_structure(program, kernel, bounds)
    program, structure = unscaled(program, structure) if structure.promoted else (program, structure)
    structure = replace(structure, in_halves=keys_in_halves(program, structure))
    structure = replace(structure, whole=options.one_consumer and can_be_whole(structure, options))
    _check_halves(structure)
    registers = _launch_registers(program, structure)
    warps = _fitting_warps(program, kernel, structure, bounds, taken, options)
    functions = _functions(kernel, name, warps)
    warps.helpers.setdefault("_barriers", {})[kernel.node_id] = None
    for helper, nodes in warps.helpers.items():
        helpers.setdefault(helper, {}).update(nodes)
    return GluonKernel(
        name,
        tuple(functions),
        tuple(layout_lines(set(warps.consumer.ctx.layouts))),
        tuple(warps.pointers),
        warps.inputs + warps.outputs,
        tiles(kernel),
        registers,
        not rounds_to_eights(kernel),
        tuple(size for size, parameter in warps.parameters.sizes.items() if parameter in warps.sizes),
        heads_at_launch(warps.producer) if warps.parameters.together in warps.sizes else None,
        warps=structure.warps,
    )


def _check_halves(structure: Structure) -> None:
    halves = next((p.halves for p in structure.first.trailing if p.halves is not None), None)
    if halves is not None and structure.in_halves is None:
        raise UnsupportedKernel(
            f"weights of float16 multiply {halves.tensor}, but the keys of a tile cannot be loaded in halves",
            help='choose rounded_weights="split"',
        )


@dataclass(frozen=True, slots=True)
class _Warps:
    """Producer and consumer of a kernel, emitted for one plan of the shared memory.

    Args:
        relay: of each group of warps, if one consumer has several.
        helpers: module-level helpers that they use, with the nodes that use them.
    """

    shared: SharedMemory
    producer: GluonContext
    consumer: Consumer
    relay: Consumer | None
    helpers: dict[str, dict[str, None]]
    parameters: SizeParameters

    @property
    def size(self) -> int:
        """Bytes of shared memory."""
        outputs = sum(tile_bytes(staged.shape, staged.dtype) for staged in self.consumer.outputs.buffers.values())
        return self.shared.size + self.shared.consumers * outputs + BARRIERS

    @property
    def pointers(self) -> dict[str, str]:
        """The tensors that are accessed through pointers, with their parameters."""
        return self.consumer.ctx.pointers_in(line.text for ctx in self.contexts for line in lines_of(ctx))

    @property
    def contexts(self) -> tuple[GluonContext, ...]:
        """Those of all functions."""
        return (self.producer, self.consumer.ctx, *([] if self.relay is None else [self.relay.ctx]))

    @property
    def sizes(self) -> list[str]:
        """The parameters of the kernel for what is known at the launch only."""
        return self.parameters.used_in(line.text for ctx in self.contexts for line in lines_of(ctx))

    @property
    def inputs(self) -> tuple[HostDescriptor, ...]:
        """The descriptors that the producer loads through."""
        return tuple(self.producer.host_descriptors.values())

    @property
    def outputs(self) -> tuple[HostDescriptor, ...]:
        """The descriptors that the consumer stores through."""
        return tuple(self.consumer.ctx.host_descriptors.values())


def _fitting_warps(
    program: Program,
    kernel: Kernel,
    structure: Structure,
    bounds: DataBounds,
    taken: set[str],
    options: GluonOptions,
) -> _Warps:
    """Producer and consumer with as many resident tiles, and buffers of outputs, as shared memory has space for."""
    limit = options.emit.target.shared_memory
    size = 0
    for depth in (2, 1) if options.persistent else (1,):
        for staged in (True, False):
            warps = _warps(program, kernel, structure, bounds, taken, options, depth, staged=staged)
            if warps.size <= limit:
                return warps
            size = size or warps.size
    raise UnsupportedKernel(
        f"its tiles take {size} bytes of shared memory; a multiprocessor has {limit}",
        help="choose a smaller block_kv, or fewer stages",
    )


def _warps(
    program: Program,
    kernel: Kernel,
    structure: Structure,
    bounds: DataBounds,
    taken: set[str],
    options: GluonOptions,
    depth: int,
    *,
    staged: bool,
) -> _Warps:
    """Emits the functions of the producer, of the consumers, and of a relay if the code of two consumers is one.

    Args:
        depth: how many tiles of resident operands are in shared memory.
        staged: whether outputs are stored through shared memory.
    """
    helpers: dict[str, dict[str, None]] = {}
    columns = shape_of(structure.first.leading[0].store.target, program)[1]
    shared = plan_shared_memory(program, structure, UniqueNames(taken), options, depth)
    taken = taken | shared.names | {"turn", "tile", "done"}
    parameters = SizeParameters.of(program, UniqueNames(taken | MODULE_NAMES))
    taken |= {*parameters.sizes.values(), parameters.together}
    producer = GluonContext(program, kernel, structure, helpers, taken, options, columns, parameters, bounds)
    producer.name_bounds()
    taken |= set(producer.pointers.values())
    emit_producer(producer, shared)
    taken = taken | {d.parameter for d in producer.host_descriptors.values()}
    ctx = GluonContext(program, kernel, structure, helpers, taken, options, columns, parameters, bounds)
    ctx.name_pointers()
    ctx.pointers |= producer.pointers
    consumer = (PromotingConsumer if structure.promoted else Consumer)(ctx, shared, staged=staged)
    consumer.emit()
    relay = None
    if structure.whole:
        ctx = GluonContext(program, kernel, structure, helpers, taken, options, columns, parameters, bounds)
        ctx.pointers |= producer.pointers
        relay = Relay(ctx, shared)
        relay.emit()
    return _Warps(shared, producer, consumer, relay, helpers, parameters)


def _functions(kernel: Kernel, name: str, warps: _Warps) -> list[KernelLine]:
    """The producer's function, the consumer's and the entry."""
    pointers, inputs, outputs = warps.pointers, warps.inputs, warps.outputs
    of_producer, of_consumer = lines_of(warps.producer), lines_of(warps.consumer.ctx)
    sizes_of_each = [warps.parameters.used_in(line.text for line in body) for body in (of_producer, of_consumer)]
    pointers_of_producer = warps.producer.pointers_in(line.text for line in of_producer).values()
    for_producer = [
        *pointers_of_producer,
        *(d.parameter for d in inputs),
        *sizes_of_each[0],
        *warps.shared.parameters,
    ]
    for_consumer = [
        *pointers.values(),
        *(d.parameter for d in outputs),
        *sizes_of_each[1],
        *warps.shared.parameters,
        *(staged.buffer for staged in warps.consumer.outputs.buffers.values()),
    ]
    of_relay = [] if warps.relay is None else lines_of(warps.relay.ctx)
    for_relay = [
        *warps.producer.pointers_in(line.text for line in of_relay).values(),
        *warps.parameters.used_in(line.text for line in of_relay),
        *warps.shared.parameters,
    ]
    entry = _entry(name, warps, for_producer, for_consumer, for_relay, inputs + outputs)
    blank = [KernelLine(""), KernelLine("")]
    consumer_parameters = [*for_consumer, f"{warps.consumer.me}: gl.constexpr"]
    entry_parameters = [*pointers.values(), *(d.parameter for d in inputs + outputs), *warps.sizes]
    entry_lines = [KernelLine(f"    {text}", (kernel.node_id,), kernel.name) for text in entry]
    return [
        *function_lines(kernel, f"{name}_producer", for_producer, of_producer),
        *blank,
        *function_lines(kernel, f"{name}_consumer", consumer_parameters, of_consumer),
        *blank,
        *([] if warps.relay is None else _relay_lines(kernel, name, [*for_relay, warps.relay.me], of_relay)),
        *function_lines(kernel, name, entry_parameters, entry_lines, warps.sizes),
    ]


def _relay_lines(kernel: Kernel, name: str, parameters: list[str], body: list[KernelLine]) -> list[KernelLine]:
    typed = [*parameters[:-1], f"{parameters[-1]}: gl.constexpr"]
    return [*function_lines(kernel, f"{name}_relay", typed, body), KernelLine(""), KernelLine("")]


def can_be_whole(structure: Structure, options: GluonOptions) -> bool:
    """Whether the code of its two groups of warps can be that of one consumer."""
    return structure.warp_groups == 2 and not structure.promoted and not structure.eights and not options.ahead


def _launch_registers(program: Program, structure: Structure) -> int:
    """Registers per thread at the launch."""
    products = (*structure.first.leading, *structure.first.trailing)
    if all(shape_of(p.store.target, program)[1] <= WIDE_PRODUCT for p in products):
        return REGISTERS[structure.warp_groups][0]
    if structure.warp_groups > 2:
        raise UnsupportedKernel(
            f"with {structure.rows} rows per program, there are too few registers for products of more than "
            f"{WIDE_PRODUCT} columns",
            help="choose block_q=128",
        )
    return WIDE_REGISTERS


def _entry(
    name: str,
    warps: _Warps,
    for_producer: list[str],
    for_consumer: list[str],
    for_relay: list[str],
    descriptors: tuple[HostDescriptor, ...],
) -> list[str]:
    """The body of the entry: shared memory, barriers, and which warps do what with how many registers."""
    number = warps.shared.consumers
    groups = warps.consumer.structure.warp_groups  # each arrives, itself or by its relay
    relays = 0 if warps.relay is None else groups
    functions = [
        *((f"{name}_consumer", [*for_consumer, str(n)]) for n in range(number)),
        (f"{name}_producer", for_producer),
        *((f"{name}_relay", [*for_relay, str(n)]) for n in range(relays)),
    ]
    registers = [REGISTERS[groups][1]] * (number - 1) + [PRODUCER_REGISTERS] * (1 + relays)
    warps_of = [4] * (number - 1) + [1] * (1 + relays)
    return [*_allocations(warps, descriptors), *specialized(functions, warps_of, registers)]


def _allocations(warps: _Warps, descriptors: tuple[HostDescriptor, ...]) -> list[str]:
    """Lines that allocate tiles and barriers in shared memory; a tile has the layout of its descriptor."""
    shared, number = warps.shared, warps.shared.consumers
    groups = warps.consumer.structure.warp_groups
    described = {(d.tensor, d.block): d.parameter for d in descriptors}
    body: list[str] = []

    def allocate(
        buffer: str,
        slots: int,
        tensor: str,
        shape: tuple[int, ...],
        dtype: str,
        of_matrix: bool = False,
        in_halves: bool = False,
    ) -> None:
        of_slot = (1, *shape) if of_matrix else (shape[0] // 2, 2, shape[1]) if in_halves else shape
        extents = ", ".join(map(str, (slots, *of_slot)))
        rows, columns = shape
        layout = f"{described[(tensor, (rows, columns))]}.layout"
        body.append(f"{buffer} = gl.allocate_shared_memory({gluon_dtype(dtype)}, [{extents}], {layout})")

    for resident in shared.resident:
        tensor, of_matrix = resident.access.tensor, resident.of_matrix
        allocate(resident.buffer, shared.resident_slots, tensor, resident.shape, resident.dtype, of_matrix)
        body.append(f"{resident.ready} = _barriers({shared.resident_slots}, 1)")
        if shared.persistent:
            body.append(f"{resident.spent} = _barriers({shared.resident_slots}, {groups // number})")
    for ring in shared.rings:
        allocate(ring.slots, shared.stages, ring.tensor, ring.shape, ring.dtype, ring.of_matrix, ring.in_halves)
        if (halves := ring.halves) is not None:
            rows, columns = halves.shape
            layout = f"{described[(halves.tensor, (rows, columns))]}.layout"
            extents = f"[{2 * shared.stages}, {rows // 4}, 2, {columns}]"
            body.append(f"{halves.slots} = gl.allocate_shared_memory({gluon_dtype(halves.dtype)}, {extents}, {layout})")
        body.append(f"{ring.full} = _barriers({shared.stages}, 1)")
        body.append(f"{ring.empty} = _barriers({shared.stages}, {groups})")
    for tensor, staged in warps.consumer.outputs.buffers.items():
        allocate(staged.buffer, number, tensor, staged.shape, staged.dtype, staged.of_matrix)
    return body
