"""Emits a whole module: imports, helpers, kernels, and the plain function that launches them."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import EmitError
from neptune_lab.htile import nodes as ir
from neptune_lab.htile.held_rows import held_row
from neptune_lab.htile.nodes import Kernel, Program
from neptune_lab.htile.sizes import at_samples
from neptune_lab.htile.spelling import check_spelling
from neptune_lab.htile.verify import verify
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.htile_to_triton.context import Context
from neptune_lab.htile_to_triton.early_start import early_starts
from neptune_lab.htile_to_triton.held_rows import registers
from neptune_lab.htile_to_triton.helpers import ALLOCATOR, ASK, COUNTERS, GROUPS, HELPERS, INTERPRETED
from neptune_lab.htile_to_triton.in_lanes import registers_in_lanes
from neptune_lab.htile_to_triton.kernel import emit_kernel
from neptune_lab.htile_to_triton.launcher import docstring, write_launcher
from neptune_lab.htile_to_triton.launches import Together, count_kept, launches_of, named
from neptune_lab.htile_to_triton.loaded_again import REGISTERS
from neptune_lab.htile_to_triton.options import DEFAULT_WARPS, EmitOptions
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.htile_to_triton.several_rows import registers_of_two_rows
from neptune_lab.htile_to_triton.source import EmittedModule, KernelSource, Writer
from neptune_lab.htile_to_triton.waiting import Waiting
from neptune_lab.strict.dtypes import EIGHTS
from neptune_lab.strict.emitted import check_emitted


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
    _check(program, options)
    names = UniqueNames(HELPERS)
    entry = names.fresh(program.name)
    functions = [names.fresh(f"{k.name}_kernel" if k.name == program.name else k.name) for k in program.kernels]
    taken = {entry, *functions, *HELPERS, "_scratch", "_zeros", "_spare", "_every", "_counters"}
    taken |= {"_made", "_kept_on", "_kept"}
    helpers: dict[str, dict[str, None]] = {}
    launched = launches_of(program, options)
    functions = [functions[program.kernels.index(named(kernel, last))] for kernel, last in launched]
    early = early_starts(program, launched, options)
    contexts = [
        emit_kernel(program, kernel, helpers, taken, options, last, early.get(n), n + 1 in early)
        for n, (kernel, last) in enumerate(launched)
    ]

    out = Writer()
    kept = count_kept(program, launched, [ctx.pointers for ctx in contexts])
    out.plain(*docstring(program, entry), *_imports(contexts, helpers, kept))
    for helper, users in sorted(helpers.items()):
        out.plain("", "")
        write_helper(out, helper, users, functions, contexts)
    sources = [
        _with_last(write_kernel(out, function, kernel, ctx), last, options)
        for function, (kernel, last), ctx in zip(functions, launched, contexts, strict=True)
    ]
    out.plain("", "")
    if any(ctx.counters for ctx in contexts):
        out.plain(*COUNTERS.rstrip("\n").split("\n"), "", "")
    if any(source.waits for source in sources):
        out.plain(*GROUPS.rstrip("\n").split("\n"), "", "")
    scratch = any(ctx.uses_descriptors for ctx in contexts)
    if scratch:
        out.plain(*ALLOCATOR.rstrip("\n").split("\n"), "", "")
    every = list(zip(launched, sources, strict=True))
    write_launcher(out, program, entry, every, scratch, early.keys(), kept)
    text = "\n".join(out.text) + "\n"
    check_emitted(text, EmitError)
    return EmittedModule(program.name, entry, text, tuple(sources), tuple(out.lines))


def _check(program: Program, options: EmitOptions) -> None:
    """Raise TileError unless the program is valid at several sizes, EmitError unless it has inputs and dtypes that the
    target knows."""
    for one in at_samples(program):
        verify(one)
    check_spelling(program)
    if not program.inputs:
        raise EmitError(
            f"program {program.name} has no inputs; expected one at least, whose device the launcher uses",
            help="give the operator an input, of one element if need be",
        )
    _check_dtypes(program, options)


def _imports(contexts: list[Context], helpers: dict[str, dict[str, None]], kept: int) -> list[str]:
    """What the module imports, and what it knows about where it runs."""
    lines = ["import functools", ""] if kept or any(ctx.counters for ctx in contexts) else []
    lines += ["import torch", "import triton", "import triton.language as tl"]
    if any(ctx.host_descriptors for ctx in contexts):
        lines.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    if ASK & helpers.keys():
        lines += ["", "", INTERPRETED]
    return lines


def _with_last(source: KernelSource, last: Together | None, options: EmitOptions) -> KernelSource:
    """A kernel whose programs share rows, with the kernels whose rows they wait for and how many run at once; or one
    whose last programs combine splits, with the number of its counters."""
    if isinstance(last, Waiting):
        waits = tuple(one.name for one in last.kernels)
        grid = (last.part.extent * last.groups_on(options.target.sm_count),)
        return replace(source, waits=waits, grid=grid, fused=not rounds_to_eights(last.whole), finds=None)
    if last is not None:
        fused = source.fused and not rounds_to_eights(last.second)
        return replace(source, counters=last.groups, fused=fused, finds=None)
    return source


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
    limit = REGISTERS if ctx.again else None
    held = held_row(ctx.program, kernel) if ctx.caching else None
    if held is not None and kernel.num_warps is not None:
        limit = registers(kernel.num_warps, held[1])
    if limit is None and ctx.options.target.kind == "cuda":
        limit = registers_of_two_rows(ctx.program, kernel)
    if ctx.options.target.kind == "cuda":
        limit = registers_in_lanes(kernel, kernel.num_warps or DEFAULT_WARPS, writes_rows=ctx.in_lanes) or limit
    fused = not rounds_to_eights(kernel)
    return replace(made, sizes=tuple(sizes), fused=fused, registers=limit, finds=kernel.finds)


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
