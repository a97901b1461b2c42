"""One kernel in Gluon: consumers, producer, and the entry that shares the memory out among them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neptune_lab.htile.nodes import Kernel, Program
from neptune_lab.htile.shapes import shape_of
from neptune_lab.htile.walk import reads, stores
from neptune_lab.htile_to_gluon.consumer import Consumer
from neptune_lab.htile_to_gluon.context import GluonContext, layout_lines, spelled
from neptune_lab.htile_to_gluon.fit import read
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.producer import emit_producer
from neptune_lab.htile_to_gluon.shared import Shared, shared_memory
from neptune_lab.htile_to_gluon.structure import Structure, Unfit
from neptune_lab.htile_to_gluon.visits import tiles
from neptune_lab.htile_to_triton.context import HostDescriptor
from neptune_lab.htile_to_triton.scope import Names

# What a multiprocessor of Hopper has.
SHARED_MEMORY = 227 * 1024
# By consumers: registers of a thread at the launch, then those of a consumer; the producer's. All of a multiprocessor's
# 65536 are dealt out (half of them for one consumer, so that two programs share a multiprocessor).
REGISTERS = {1: (128, 232), 2: (168, 240), 3: (128, 160)}
PRODUCER_REGISTERS = 24
WORD_SEPARATORS = str.maketrans({c: " " for c in "()[],.=:*+-/<>&|^"})


@dataclass(frozen=True, slots=True)
class Line:
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
    lines: tuple[Line, ...]
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
        Unfit: the kernel has not the form that is written in Gluon.
    """
    structure = read(program, kernel)
    asked: dict[str, dict[str, None]] = {}
    columns = shape_of(structure.parts[0].leading[0].store.target, program)[1]
    names = Names(taken)
    shared = shared_memory(program, structure, names, persistent=options.persistent)
    taken = taken | set(shared.parameters) | {n for r in shared.rings for n in (r.slot, r.phase)} | {"turn", "tile"}

    producer = GluonContext(program, kernel, structure, asked, taken, options, columns)
    emit_producer(producer, shared)
    taken |= {d.parameter for d in producer.host_descriptors.values()}
    ctx = GluonContext(program, kernel, structure, asked, taken, options, columns)
    used = {access.tensor for s in stores(kernel.body) for access in (s.target, *reads(s))}
    for tensor in program.tensors:
        if tensor.name in used and tensor.space != "chip":
            ctx.pointers[tensor.name] = ctx.names.fresh(f"{tensor.name}_ptr")
    consumer = Consumer(ctx, shared)
    consumer.emit()
    _check_memory(program, shared, consumer, options)

    outputs = list(ctx.host_descriptors.values())
    inputs = list(producer.host_descriptors.values())
    own = {b for b, _, _ in consumer.staged.values()} - {h.buffer for h in shared.held}
    body = _lines(ctx)
    words = {word for line in body for word in line.text.translate(WORD_SEPARATORS).split()}
    pointers = {t: p for t, p in ctx.pointers.items() if p in words}
    consumer_parameters = [
        *pointers.values(),
        *(d.parameter for d in outputs),
        *shared.parameters,
        *sorted(own),
    ]
    producer_parameters = [*(d.parameter for d in inputs), *shared.parameters]
    out = [
        *_function(kernel, f"{name}_producer", producer_parameters, _lines(producer)),
        Line(""),
        Line(""),
        *_function(kernel, f"{name}_consumer", [*consumer_parameters, f"{consumer.me}: gl.constexpr"], body),
        Line(""),
        Line(""),
        *_entry(kernel, name, shared, consumer, producer_parameters, consumer_parameters, pointers, inputs + outputs, asked,
                options, structure),
    ]
    for helper, nodes in asked.items():
        helpers.setdefault(helper, {}).update(nodes)
    layouts = layout_lines(set(ctx.layouts) | set(producer.layouts))
    return GluonKernel(
        name,
        tuple(out),
        tuple(layouts),
        tuple(pointers),
        tuple(inputs + outputs),
        tiles(kernel),
        REGISTERS[structure.consumers][0],
    )


def _lines(ctx: GluonContext) -> list[Line]:
    return [
        Line(indent + spelled(text), tuple(draft.nodes), draft.origin)
        for indent, draft in ctx.root.drafts("    ")
        for text in draft.lines
    ]


def _function(kernel: Kernel, name: str, parameters: list[str], body: list[Line]) -> list[Line]:
    head = f"def {name}({', '.join(parameters)}):"
    lines = [head] if len(head) <= 116 else [f"def {name}(", *(f"    {p}," for p in parameters), "):"]
    return [Line("@gluon.jit"), *(Line(text, (kernel.node_id,), kernel.name) for text in lines), *body]


def _entry(
    kernel: Kernel,
    name: str,
    shared: Shared,
    consumer: Consumer,
    producer_parameters: list[str],
    consumer_parameters: list[str],
    pointers: dict[str, str],
    descriptors: list[HostDescriptor],
    asked: dict[str, dict[str, None]],
    options: GluonOptions,
    structure: Structure,
) -> list[Line]:
    by_tensor = {(d.tensor, d.block): d.parameter for d in descriptors}
    asked.setdefault("_barriers", {})[kernel.node_id] = None
    body: list[str] = []

    def allocate(buffer: str, number: int, tensor: str, shape: tuple[int, ...], dtype: str) -> None:
        extents = ", ".join(map(str, (number, *shape)))
        layout = f"{by_tensor[(tensor, shape)]}.layout"
        body.append(f"{buffer} = gl.allocate_shared_memory(gl.{dtype}, [{extents}], {layout})")

    number = structure.consumers
    for held in shared.held:
        allocate(held.buffer, number, held.access.tensor, held.shape, held.dtype)
        body += [f"{barrier} = _barriers({number}, 1)" for barrier in (held.ready, held.spent)[: 1 + shared.persistent]]
    for ring in shared.rings:
        allocate(ring.slots, options.stages, ring.tensor, ring.shape, ring.dtype)
        body.append(f"{ring.full} = _barriers({options.stages}, 1)")
        body.append(f"{ring.empty} = _barriers({options.stages}, {number})")
    kept = {h.buffer for h in shared.held}
    for tensor, (buffer, shape, dtype) in consumer.staged.items():
        if buffer not in kept:
            allocate(buffer, number, tensor, shape, dtype)
    body.append("gl.warp_specialize(")
    body.append("    [")
    for n in range(number):
        body.append(f"        ({name}_consumer, ({', '.join([*consumer_parameters, str(n)])})),")
    body.append(f"        ({name}_producer, ({', '.join(producer_parameters)})),")
    body.append("    ],")
    registers = [str(REGISTERS[number][1])] * (number - 1)
    body.append(f"    [{', '.join(['4'] * (number - 1) + ['1'])}],")
    body.append(f"    [{', '.join([*registers, str(PRODUCER_REGISTERS)])}],")
    body.append(")")
    parameters = [*pointers.values(), *(d.parameter for d in descriptors)]
    lines = [Line(f"    {text}", (kernel.node_id,), kernel.name) for text in body]
    return _function(kernel, name, parameters, lines)


def _check_memory(program: Program, shared: Shared, consumer: Consumer, options: GluonOptions) -> None:
    size = {"float16": 2, "bfloat16": 2}
    total = sum(math.prod(h.shape) * size[h.dtype] * consumer.structure.consumers for h in shared.held)
    total += sum(math.prod(r.shape) * size[r.dtype] * options.stages for r in shared.rings)
    kept = {h.buffer for h in shared.held}
    for buffer, shape, dtype in consumer.staged.values():
        total += 0 if buffer in kept else math.prod(shape) * size[dtype] * consumer.structure.consumers
    if total + 1024 > SHARED_MEMORY:
        raise Unfit(
            f"its tiles take {total} bytes of shared memory; a multiprocessor has {SHARED_MEMORY}",
            help="choose a smaller block_kv, or fewer stages",
        )


