"""Emits a whole module: imports, helpers, kernels, and the plain function that launches them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from neptune_lab.errors import EmitError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.nodes import Kernel, Program
from neptune_lab.htile.printer import index_text
from neptune_lab.htile.sizes import at_samples
from neptune_lab.htile.spelling import check_spelling
from neptune_lab.htile.substitute import substitute_index
from neptune_lab.htile.verify import verify
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.htile_to_triton.context import Context, Extent, HostDescriptor, sizes_of
from neptune_lab.htile_to_triton.helpers import ALLOCATOR, ASK, COUNTERS, GROUPS, HELPERS, INTERPRETED
from neptune_lab.htile_to_triton.kernel import emit_kernel
from neptune_lab.htile_to_triton.launches import Together, launches_of, named
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.htile_to_triton.passing import FIRST
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.htile_to_triton.source import EmittedModule, KernelSource, SourceLine
from neptune_lab.htile_to_triton.waiting import Waiting
from neptune_lab.strict.dtypes import EIGHTS
from neptune_lab.strict.emitted import check_emitted
from neptune_lab.tensor_spec import strides_text

_CONTIGUOUS = "Contiguous tensors on one device"


class Writer:
    """The lines of a module; lines that compute are linked to their HTile nodes."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.lines: list[SourceLine] = []

    def plain(self, *texts: str) -> None:
        """Appends lines that do not compute; a text may have several."""
        self.text += [line for text in texts for line in text.split("\n")]

    def linked(self, kernel: str, text: str, nodes: tuple[str, ...], origin: str) -> None:
        """Appends a line that computes; the arguments are fields of `SourceLine`."""
        self.text.append(text)
        self.lines.append(SourceLine(kernel, len(self.text), text, nodes, origin))


def emit(program: Program, options: EmitOptions | None = None) -> EmittedModule:
    """`program` as a Triton module, every computing line linked to its HTile nodes.

    Args:
        program: HTile IR, verified here.
        options: None: the defaults, which every GPU supports.

    Raises:
        TileError: the program is not valid HTile IR.
        EmitError: the program cannot be expressed in Triton.
    """
    options = options or EmitOptions()
    if program.sizes:
        options = replace(options, loads="pointers")  # descriptors are of tensors of one shape
    for one in at_samples(program):
        verify(one)
    check_spelling(program)
    if not program.inputs:
        raise EmitError(
            f"program {program.name} has no inputs; expected one at least, whose device the launcher uses",
            help="give the operator an input, of one element if need be",
        )
    _check_dtypes(program, options)
    names = UniqueNames(HELPERS)
    entry = names.fresh(program.name)
    functions = [names.fresh(f"{k.name}_kernel" if k.name == program.name else k.name) for k in program.kernels]
    taken = {entry, *functions, *HELPERS, "_scratch", "_zeros", "_spare", "_counters"}
    helpers: dict[str, dict[str, None]] = {}
    launched = launches_of(program, options)
    functions = [functions[program.kernels.index(named(kernel, last))] for kernel, last in launched]
    contexts = [emit_kernel(program, kernel, helpers, taken, options, last) for kernel, last in launched]

    out = Writer()
    out.plain(*docstring(program, entry))
    if any(ctx.counters for ctx in contexts):
        out.plain("import functools", "")
    out.plain("import torch", "import triton", "import triton.language as tl")
    if any(ctx.host_descriptors for ctx in contexts):
        out.plain("from triton.tools.tensor_descriptor import TensorDescriptor")
    if ASK & helpers.keys():
        out.plain("", "", INTERPRETED)
    for helper, users in sorted(helpers.items()):
        out.plain("", "")
        write_helper(out, helper, users, functions, contexts)
    sources = []
    for function, (kernel, last), ctx in zip(functions, launched, contexts, strict=True):
        made = write_kernel(out, function, kernel, ctx)
        if isinstance(last, Waiting):
            waits = tuple(one.name for one in last.kernels)
            made = replace(made, waits=waits, grid=(last.part.extent * last.groups_on(options.target.sm_count),))
            made = replace(made, fused=not rounds_to_eights(last.whole))
        elif last is not None:
            made = replace(made, counters=last.groups, fused=made.fused and not rounds_to_eights(last.second))
        sources.append(made)
    out.plain("", "")
    if any(ctx.counters for ctx in contexts):
        out.plain(*COUNTERS.rstrip("\n").split("\n"), "", "")
    if any(source.waits for source in sources):
        out.plain(*GROUPS.rstrip("\n").split("\n"), "", "")
    scratch = any(ctx.uses_descriptors for ctx in contexts)
    if scratch:
        out.plain(*ALLOCATOR.rstrip("\n").split("\n"), "", "")
    _write_launcher(out, program, entry, list(zip(launched, sources, strict=True)), scratch, options.dependent_launch)
    text = "\n".join(out.text) + "\n"
    check_emitted(text, EmitError)
    return EmittedModule(program.name, entry, text, tuple(sources), tuple(out.lines))


def _check_dtypes(program: Program, options: EmitOptions) -> None:
    """Raise EmitError for e4m3 on a GPU that does not convert it."""
    if options.target.e4m3:
        return
    for tensor in program.tensors:
        if tensor.dtype == "float8_e4m3fn":
            raise EmitError(
                f"tensor {tensor.name} has dtype float8_e4m3fn, which is not available on target {options.target}",
                help="it needs compute capability 8.9 (Ada, Hopper) or later; float8_e5m2 and int8 do not",
            )


def docstring(program: Program, entry: str, kernels: str = "Triton kernels") -> list[str]:
    """The lines of a module's docstring, with a call of its launcher."""
    call = f"{', '.join(program.outputs)} = {entry}({', '.join(program.inputs)})"
    return [
        f'"""{program.name}: {kernels} generated by neptune_lab; needs torch and Triton only.',
        "",
        f"    {call}",
        '"""',
        "",
    ]


def write_helper(out: Writer, helper: str, users: dict[str, None], functions: list[str], ctxs: list[Context]) -> None:
    """Writes a helper function, linked to its users.

    Args:
        users: ids of the HTile nodes that use it.
        functions, ctxs: the names and contexts of the module's Triton kernels.
    """
    user = next(iter(users))
    kernel, origin = functions[0], ""
    for function, ctx in zip(functions, ctxs, strict=True):
        for stmt in stores(ctx.kernel.body):
            if stmt.node_id == user:
                kernel, origin = function, stmt.origin
    for line in HELPERS[helper].rstrip("\n").split("\n"):
        if line.startswith("    ") and not line.lstrip().startswith(('"""', "else:")):
            out.linked(kernel, line, tuple(users), origin)
        else:
            out.plain(line)


def write_kernel(out: Writer, function: str, kernel: Kernel, ctx: Context) -> KernelSource:
    """Writes the kernel that `ctx` holds as the function `function`."""
    out.plain("", "")
    first = len(out.text)
    drafts = list(ctx.root.drafts("    "))
    texts = [line for _, draft in drafts for line in draft.lines]
    pointers, sizes = ctx.pointers_in(texts), ctx.sizes_in(texts)
    # Triton would compile a version for a size of 1, and one for multiples of 16.
    once = f"(do_not_specialize=[{', '.join(map(repr_of, sizes.values()))}])" if sizes else ""
    out.plain(f"@triton.jit{once}")
    descriptors = tuple(ctx.host_descriptors.values())
    counters = [ctx.counters] if ctx.counters else []
    parameters = [*pointers.values(), *counters, *(d.parameter for d in descriptors), *sizes.values()]
    out.linked(function, f"def {function}({', '.join(parameters)}):", (kernel.node_id,), kernel.name)
    for indent, draft in drafts:
        for line in draft.lines:
            if draft.is_comment:
                out.plain(indent + line)
            else:
                out.linked(function, indent + line, tuple(draft.nodes), draft.origin)
    if not ctx.root.body:
        out.plain("    pass")
    text = "\n".join(out.text[first:]) + "\n"
    grid = tuple(axis.extent for axis in kernel.grid) or (1,)
    made = KernelSource(function, text, grid, tuple(pointers), descriptors, kernel.num_warps, ctx.num_stages)
    return replace(made, sizes=tuple(sizes), fused=not rounds_to_eights(kernel))


def rounds_to_eights(kernel: ir.Kernel) -> bool:
    """Whether the kernel converts computed values to floats of 8 bits.

    A fused multiply-add rounds one product of `x * c - m * c` only, so the difference may be far above 0 although
    x <= m.  Weights of a softmax that grow by this stay right in wider floats, since their sum grows too; floats of 8
    bits end at 448.
    """
    every = (part for store in stores(kernel.body) for part in subexpressions(store.value))
    return any(isinstance(part, ir.Cast) and part.dtype in EIGHTS for part in every)


def repr_of(name: str) -> str:
    """A name as a text in Python."""
    return f'"{name}"'


def _write_launcher(
    out: Writer,
    program: Program,
    entry: str,
    launches: list[tuple[tuple[Kernel, Together | None], KernelSource]],
    scratch: bool,
    dependent: bool,
) -> None:
    names = UniqueNames({entry, *(source.name for _, source in launches)})
    arguments = {name: names.fresh(name) for name in program.inputs}
    out.plain(f"def {entry}({', '.join(arguments.values())}):", *signature(program))
    sizes = write_sizes(out, program, arguments, names)
    if scratch:
        out.plain("    triton.set_allocator(_scratch)")
    for number, ((kernel, last), source) in enumerate(launches):
        write_allocations(out, program, kernel, source, arguments, names, sizes)
        args = [arguments[name] for name in source.arguments]
        if source.counters:
            args.append(names.fresh("counters"))
            line = f"    {args[-1]} = _counters({arguments[program.inputs[0]]}.device, {source.counters})"
            out.linked(source.name, line, (kernel.node_id,), kernel.name)
        args += [descriptor_text(d, arguments[d.tensor]) for d in source.descriptors]
        args += [sizes[name].name for name in source.sizes]
        args += launch_hints(source)
        args += ["launch_pdl=True"] if dependent and number else []
        launch = f"    {source.name}[({grid_text(source.grid, kernel, sizes)})]({', '.join(args)})"
        if isinstance(last, Waiting):
            _write_waiting(out, last, source, args, arguments[program.inputs[0]], names)
            continue
        out.linked(source.name, launch, (kernel.node_id,), kernel.name)
    out.plain(f"    return {', '.join(arguments[name] for name in program.outputs)}")


def _write_waiting(
    out: Writer, last: Waiting, source: KernelSource, args: list[str], tensor: str, names: UniqueNames
) -> None:
    """Writes the launch of programs that wait for each other; `tensor` is one on the device."""
    parts, hints = last.part.extent, len(launch_hints(source))
    groups, counters = names.fresh("groups"), names.fresh("counters")
    args = [*args[: len(args) - hints], counters, *args[len(args) - hints :]]
    args += [f"maxnreg={last.registers}", "launch_cooperative_grid=True"]
    words = f"{2 * FIRST} + {2 * last.depth * last.words} * {groups}"
    lines = [
        f"{groups} = _groups({tensor}.device, {parts}, {last.row.extent}, {last.resident})",
        f"{counters} = _counters({tensor}.device, {words})",
        f"for _ in range({len(last.kernels)} if INTERPRETED else 1):",
        f"    {source.name}[({parts} * {groups},)]({', '.join(args)})",
    ]
    for line in lines:
        out.linked(source.name, f"    {line}", (last.whole.node_id,), last.whole.name)


def write_sizes(out: Writer, program: Program, arguments: Mapping[str, str], names: UniqueNames) -> dict[str, ir.Name]:
    """Writes the launcher's lines that read sizes; the result is its variables, by size.

    Args:
        arguments: the launcher's variables, by tensor.
        names: its names; extended.
    """
    sizes = {size.name: ir.Name(names.fresh(size.name)) for size in program.sizes}
    for name, variable in sizes.items():
        tensor, dimension = place_of(program, name)
        out.plain(f"    {variable.name} = {arguments[tensor]}.shape[{dimension}]")
    return sizes


def descriptor_text(made: HostDescriptor, tensor: str, maker: str = "TensorDescriptor") -> str:
    """The call that makes a descriptor of `tensor`."""
    return f"{maker}({tensor}, {described(made)})"


def described(made: HostDescriptor, sizes: Mapping[str, ir.Name] | None = None) -> str:
    """The arguments of a descriptor after its tensor: shape, strides and block.

    Args:
        sizes: the launcher's variables, by size that is known at the launch.
    """
    shape: Sequence[Extent] = made.shape
    strides: Sequence[Extent] = [made.stride, 1]
    block = [*made.block]
    if made.is_vector:
        shape, strides, block = shape[1:], [1], block[1:]
    if made.matrices is not None:
        count, stride = made.matrices
        shape, strides, block = [count, *shape], [stride, *strides], [1, *block]
    if made.in_halves:
        (rows, columns), (keys, width) = made.shape, made.block
        assert isinstance(rows, int), "tiles in halves are of tensors of one shape"
        shape, strides, block = [rows // 4, 4, columns], [4 * made.stride, made.stride, 1], [keys // 4, 2, width]
    shape_text, strides_text = (
        ", ".join(str(n) if isinstance(n, int) else python_text(n, sizes or {}) for n in part)
        for part in (shape, strides)
    )
    return f"[{shape_text}], [{strides_text}], {block}"


def write_allocations(
    out: Writer,
    program: Program,
    kernel: Kernel,
    source: KernelSource,
    arguments: dict[str, str],
    names: UniqueNames,
    sizes: Mapping[str, ir.Name] | None = None,
) -> None:
    """Writes the launcher's lines that allocate what a kernel takes and no variable of the launcher holds yet.

    Args:
        arguments: the launcher's variables, by tensor; extended.
        names: its names; extended.
        sizes: its variables, by size that is known at the launch.
    """
    device = f"{arguments[program.inputs[0]]}.device"
    for name in (*source.arguments, *(d.tensor for d in source.descriptors)):
        if name not in arguments:
            tensor = program.tensor(name)
            arguments[name] = names.fresh(name)
            extents = [python_text(size, sizes or {}) for size in sizes_of(tensor)]
            maker, shape = "empty", f"({', '.join(extents)}{',' if len(extents) == 1 else ''})"
            if tensor.strides is not None:
                strides = [python_text(step, sizes or {}) for step in tensor.steps or map(ir.Int, tensor.strides)]
                maker, shape = "empty_strided", f"{shape}, ({', '.join(strides)}{',' if len(strides) == 1 else ''})"
            line = f"    {arguments[name]} = torch.{maker}({shape}, dtype=torch.{tensor.dtype}, device={device})"
            out.linked(source.name, line, (kernel.node_id,), kernel.name)


def launch_hints(source: KernelSource) -> list[str]:
    """The arguments of a launch for the kernel's hints."""
    hints = {"num_warps": source.num_warps, "num_stages": source.num_stages}
    given = [f"{key}={value}" for key, value in hints.items() if value is not None]
    return given if source.fused else [*given, "enable_fp_fusion=False"]


def grid_text(grid: tuple[int, ...], kernel: Kernel | None = None, sizes: Mapping[str, ir.Name] | None = None) -> str:
    """The items of a grid, as in a tuple.

    Args:
        kernel: whose grid it is, if it depends on `sizes`.
        sizes: the launcher's variables, by size that is known at the launch.
    """
    items = list(map(str, grid))
    for n, axis in enumerate(kernel.grid if kernel is not None else ()):
        if axis.size is not None:
            items[n] = python_text(axis.size, sizes or {})
    return ", ".join(items) + ("," if len(grid) == 1 else "")


def python_text(expr: ir.IndexExpr, sizes: Mapping[str, ir.Name]) -> str:
    """An index expression of sizes in Python, with the launcher's variables."""
    for name, variable in sizes.items():
        expr = substitute_index(expr, name, variable)
    return index_text(expr)


def place_of(program: Program, size: str) -> tuple[str, int]:
    """The first input and dimension that has a size.

    Raises:
        EmitError: there is none.
    """
    for name in program.inputs:
        for n, expr in enumerate(sizes_of(program.tensor(name))):
            if expr == ir.Name(size):
                return name, n
    raise EmitError(
        f"no input of program {program.name} has a dimension of size {size}, which is known at the launch only",
        help="give it such an input, or a constant size",
    )


def _strides_text(tensor: ir.Tensor) -> str:
    if tensor.steps is None:
        return strides_text(tensor.strides)
    return f" strides ({', '.join(map(index_text, tensor.steps))})"


def signature(program: Program) -> list[str]:
    """The launcher's docstring: its arguments and results."""

    tensors = [program.tensor(name) for name in (*program.inputs, *program.outputs)]
    strided = any(tensor.strides is not None for tensor in tensors)

    def described(names: tuple[str, ...]) -> list[str]:
        tensors = [program.tensor(name) for name in names]
        return [
            f"        {t.name}: {t.dtype}[{', '.join(map(index_text, sizes_of(t)))}]{_strides_text(t)}" for t in tensors
        ]

    return [
        f'    """{"Tensors on one device, contiguous where no strides are given" if strided else _CONTIGUOUS}.',
        "",
        "    Args:",
        *described(program.inputs),
        "",
        "    Returns:",
        *described(program.outputs),
        '    """',
    ]
