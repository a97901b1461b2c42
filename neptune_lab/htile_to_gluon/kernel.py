"""One kernel in Gluon: consumers, producer, and the entry that shares the memory out among them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from neptune_lab.htile.nodes import Kernel, Program
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import reads, stores
from neptune_lab.htile_to_gluon.consumer import Consumer
from neptune_lab.htile_to_gluon.context import GluonContext, layout_lines, spelled
from neptune_lab.htile_to_gluon.match import match_structure
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.producer import emit_producer
from neptune_lab.htile_to_gluon.shared_memory import SharedMemory, plan_shared_memory, tile_bytes
from neptune_lab.htile_to_gluon.structure import Structure, UnsupportedKernel
from neptune_lab.htile_to_gluon.tile_schedule import tiles
from neptune_lab.htile_to_triton.context import WIDTH, HostDescriptor
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.wrapping import Bracketed, lines

BARRIERS = 1024  # bytes put by for them
# By consumers: registers of a thread at the launch, and those of a consumer; then the producer's. All of a
# multiprocessor's 65536 are dealt out (half of them for one consumer, so that two programs share a multiprocessor).
REGISTERS = {1: (128, 232), 2: (168, 240), 3: (128, 160)}
PRODUCER_REGISTERS = 24
# The assembler asks for so many at the launch where a product has more than 128 columns.
WIDE_PRODUCT, WIDE_REGISTERS = 128, 168
WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line of a kernel's text, with the nodes that it belongs to (none: it computes nothing)."""

    text: str
    nodes: tuple[str, ...] = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class GluonKernel:
    """An emitted kernel.

    Args:
        name: the entry's name.
        lines: its functions, the entry last.
        constants: module-level layouts.
        pointers: (tensor, parameter) that the entry takes, in order; descriptors behind them.
        programs: tiles; with persistent programs, the most programs that make sense.
    """

    name: str
    lines: tuple[KernelLine, ...]
    constants: tuple[str, ...]
    pointers: tuple[str, ...]
    descriptors: tuple[HostDescriptor, ...]
    programs: int
    registers: int


def emit_kernel(
    program: Program,
    kernel: Kernel,
    name: str,
    helpers: dict[str, dict[str, None]],
    taken: set[str],
    options: GluonOptions,
) -> GluonKernel:
    """Emit `kernel` as the function `name` and two others.

    Args:
        helpers: module-level helpers asked for so far, with the nodes that use them; added to.
        taken: names of the module's functions.

    Raises:
        UnsupportedKernel: the kernel has not the form that is written in Gluon.
    """
    structure = match_structure(program, kernel)
    warps = _warps(program, kernel, structure, taken, options, depth=2 if options.persistent else 1)
    limit = options.emit.target.shared_memory
    if warps.size > limit and options.persistent:
        warps = _warps(program, kernel, structure, taken, options, depth=1)
    if warps.size > limit:
        raise UnsupportedKernel(
            f"its tiles take {warps.size} bytes of shared memory; a multiprocessor has {limit}",
            help="choose a smaller block_kv, or fewer stages",
        )
    registers = _launch_registers(program, structure)
    consumer, producer = _lines(warps.consumer.ctx), _lines(warps.producer)
    words = {word for line in consumer for word in WORD.findall(line.text)}
    pointers = {tensor: name for tensor, name in warps.consumer.ctx.pointers.items() if name in words}
    inputs = tuple(warps.producer.host_descriptors.values())
    outputs = tuple(warps.consumer.ctx.host_descriptors.values())
    for_producer = [*(d.parameter for d in inputs), *warps.shared.parameters]
    for_consumer = [
        *pointers.values(),
        *(d.parameter for d in outputs),
        *warps.shared.parameters,
        *warps.consumer.buffers,
    ]
    entry = _entry(name, warps, for_producer, for_consumer, inputs + outputs)
    warps.asked.setdefault("_barriers", {})[kernel.node_id] = None
    for helper, nodes in warps.asked.items():
        helpers.setdefault(helper, {}).update(nodes)
    blank = [KernelLine(""), KernelLine("")]
    return GluonKernel(
        name,
        (
            *_function(kernel, f"{name}_producer", for_producer, producer),
            *blank,
            *_function(kernel, f"{name}_consumer", [*for_consumer, f"{warps.consumer.me}: gl.constexpr"], consumer),
            *blank,
            *_function(
                kernel,
                name,
                [*pointers.values(), *(d.parameter for d in inputs + outputs)],
                [KernelLine(f"    {text}", (kernel.node_id,), kernel.name) for text in entry],
            ),
        ),
        tuple(layout_lines(set(warps.consumer.ctx.layouts))),
        tuple(pointers),
        inputs + outputs,
        tiles(kernel),
        registers,
    )


@dataclass(frozen=True, slots=True)
class _Warps:
    """Both functions of a kernel, emitted for one layout of the shared memory; `asked`: helpers with their users."""

    shared: SharedMemory
    producer: GluonContext
    consumer: Consumer
    asked: dict[str, dict[str, None]]

    @property
    def size(self) -> int:
        """Bytes of shared memory."""
        outputs = sum(tile_bytes(shape, dtype) for _, shape, dtype in self.consumer.buffers.values())
        return self.shared.size + self.shared.consumers * outputs + BARRIERS


def _warps(
    program: Program, kernel: Kernel, structure: Structure, taken: set[str], options: GluonOptions, depth: int
) -> _Warps:
    asked: dict[str, dict[str, None]] = {}
    columns = shape_of(structure.first.leading[0].store.target, program)[1]
    shared = plan_shared_memory(program, structure, UniqueNames(taken), options, depth)
    taken = taken | shared.names | {"turn", "tile", "done"}
    producer = GluonContext(program, kernel, structure, asked, taken, options, columns)
    emit_producer(producer, shared)
    taken = taken | {d.parameter for d in producer.host_descriptors.values()}
    ctx = GluonContext(program, kernel, structure, asked, taken, options, columns)
    used = {access.tensor for s in stores(kernel.body) for access in (s.target, *reads(s))}
    for tensor in program.tensors:
        if tensor.name in used and tensor.space != "chip":
            ctx.pointers[tensor.name] = ctx.names.fresh(f"{tensor.name}_ptr")
    consumer = Consumer(ctx, shared)
    consumer.emit()
    return _Warps(shared, producer, consumer, asked)


def _launch_registers(program: Program, structure: Structure) -> int:
    """Registers of a thread at the launch."""
    asked = REGISTERS[structure.consumers][0]
    products = (*structure.first.leading, *structure.first.trailing)
    if all(shape_of(p.store.target, program)[1] <= WIDE_PRODUCT for p in products):
        return asked
    if structure.consumers > 2:
        raise UnsupportedKernel("three consumers have too few registers for its products", help="choose block_q=128")
    return WIDE_REGISTERS


def _lines(ctx: GluonContext) -> list[KernelLine]:
    return [
        KernelLine(indent + spelled(text), tuple(draft.nodes), draft.origin)
        for indent, draft in ctx.root.drafts("    ")
        for text in draft.lines
    ]


def _function(kernel: Kernel, name: str, parameters: list[str], body: list[KernelLine]) -> list[KernelLine]:
    texts = lines(Bracketed(f"def {name}(", tuple(parameters), "):"), WIDTH)
    return [KernelLine("@gluon.jit"), *(KernelLine(text, (kernel.node_id,), kernel.name) for text in texts), *body]


def _entry(
    name: str,
    warps: _Warps,
    for_producer: list[str],
    for_consumer: list[str],
    descriptors: tuple[HostDescriptor, ...],
) -> list[str]:
    """The body of the entry: shared memory, barriers, and which warps do what with how many registers."""
    shared, number = warps.shared, warps.shared.consumers
    described = {(d.tensor, d.block): d.parameter for d in descriptors}
    body: list[str] = []

    def allocate(buffer: str, slots: int, tensor: str, shape: tuple[int, ...], dtype: str) -> None:
        extents = ", ".join(map(str, (slots, *shape)))
        rows, columns = shape
        layout = f"{described[(tensor, (rows, columns))]}.layout"
        body.append(f"{buffer} = gl.allocate_shared_memory(gl.{dtype}, [{extents}], {layout})")

    for resident in shared.resident:
        allocate(resident.buffer, shared.resident_slots, resident.access.tensor, resident.shape, resident.dtype)
        for barriers in (resident.ready, resident.spent) if shared.persistent else (resident.ready,):
            body.append(f"{barriers} = _barriers({shared.resident_slots}, 1)")
    for ring in shared.rings:
        allocate(ring.slots, shared.stages, ring.tensor, ring.shape, ring.dtype)
        body.append(f"{ring.full} = _barriers({shared.stages}, 1)")
        body.append(f"{ring.empty} = _barriers({shared.stages}, {number})")
    for buffer, (tensor, shape, dtype) in warps.consumer.buffers.items():
        allocate(buffer, number, tensor, shape, dtype)
    body += ["gl.warp_specialize(", "    ["]
    for arguments, function in (
        *(([*for_consumer, str(n)], f"{name}_consumer") for n in range(number)),
        (for_producer, f"{name}_producer"),
    ):
        body += lines(Bracketed("(", (function, Bracketed("(", tuple(arguments), ")")), "),"), WIDTH - 4, " " * 8)
    registers = [REGISTERS[number][1]] * (number - 1) + [PRODUCER_REGISTERS]
    warps_of = [4] * (number - 1) + [1]
    return [*body, "    ],", f"    {warps_of},", f"    {registers},", ")"]
