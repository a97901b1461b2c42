"""Emits a whole module: layouts, helpers, kernels, and the plain function that launches them."""

from __future__ import annotations

from dataclasses import replace

from neptune_lab.errors import EmitError
from neptune_lab.htile.nodes import Kernel, Program, Store
from neptune_lab.htile.sizes import at_samples
from neptune_lab.htile.spelling import check_spelling
from neptune_lab.htile.verify import verify
from neptune_lab.htile.walk import evaluate, stores
from neptune_lab.htile_to_gluon.helpers import EXTREMA, HELPERS
from neptune_lab.htile_to_gluon.joint import Joined, emit_joint, joined
from neptune_lab.htile_to_gluon.kernel import GluonKernel, emit_kernel
from neptune_lab.htile_to_gluon.launch_helpers import HEADS_IN_ORDER, HEADS_TOGETHER, MULTIPROCESSORS
from neptune_lab.htile_to_gluon.launcher import write_launcher
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_gluon.structure import UnsupportedKernel
from neptune_lab.htile_to_triton.context import Context
from neptune_lab.htile_to_triton.helpers import ASK, INTERPRETED
from neptune_lab.htile_to_triton.helpers import HELPERS as TRITON_HELPERS
from neptune_lab.htile_to_triton.kernel import emit_kernel as emit_triton_kernel
from neptune_lab.htile_to_triton.launcher import (
    docstring,
)
from neptune_lab.htile_to_triton.module import write_helper, write_kernel
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.htile_to_triton.source import EmittedModule, KernelSource, Writer
from neptune_lab.strict.emitted import check_emitted


def why_unsupported(program: Program, kernel: Kernel, options: GluonOptions | None = None) -> str | None:
    """The reason why `kernel` cannot be emitted in Gluon; None if it can."""
    try:
        emit_kernel(program, kernel, kernel.name, {}, set(), options or GluonOptions())
    except UnsupportedKernel as reason:
        return reason.reason
    return None


def emit(program: Program, options: GluonOptions | None = None) -> EmittedModule:
    """`program` as a module of Gluon kernels, every computing line linked to its HTile nodes.

    A kernel that has not the form of match.py is emitted in Triton, in the same module, with a note.  With
    `deterministic=False` or `joint`, two nests become one kernel (`joint`), and the others are in Triton.

    Args:
        program: HTile IR, verified here.
        options: for a Hopper GPU; None: the defaults.

    Raises:
        TileError: the program is not valid HTile IR.
        EmitError: no kernel of the program can be emitted in Gluon; the message has the reason for each.  With
            `deterministic=False` or `joint`: it has no two nests that can be one kernel.
    """
    for one in at_samples(program):
        verify(one)
    check_spelling(program)
    options = options or GluonOptions()
    join = _joined(program, options) if (options.joint or not options.deterministic) else None
    program = program if join is None else join.program
    names = UniqueNames([*HELPERS, *TRITON_HELPERS])
    entry = names.fresh(program.name)
    functions = [names.fresh(f"{k.name}_kernel" if k.name == program.name else k.name) for k in program.kernels]
    of_warps = {f"{f}_{what}" for f in functions for what in ("producer", "consumer", "adder")}
    taken = {
        entry,
        *functions,
        *of_warps,
        *HELPERS,
        *TRITON_HELPERS,
        "_scratch",
        "_multiprocessors",
        "_heads_together",
        "_heads_in_order",
    }
    helpers: dict[str, dict[str, None]] = {}
    triton_helpers: dict[str, dict[str, None]] = {}
    reasons: dict[str, str] = {}
    emitted: list[GluonKernel | Context] = []
    for kernel, function in zip(program.kernels, functions, strict=True):
        if join is not None:
            if kernel is join.kernel:
                emitted.append(_emitted_joint(join, function, helpers, taken, options))
            else:
                emitted.append(emit_triton_kernel(program, kernel, triton_helpers, taken, options.emit))
            continue
        try:
            emitted.append(emit_kernel(program, kernel, function, helpers, taken, options))
        except UnsupportedKernel as reason:
            reasons[kernel.name] = reason.reason
            emitted.append(emit_triton_kernel(program, kernel, triton_helpers, taken, options.emit))
    if len(reasons) == len(program.kernels):
        by_kernel = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise EmitError(
            f"code='gluon': no kernel of {program.name} can be emitted in Gluon ({by_kernel})",
            help='compile with code=nl.CodeOptions(code="triton")',
        )
    notes = tuple(f"{name} is emitted in Triton: {reason}." for name, reason in reasons.items())
    return replace(_module(program, options, entry, functions, emitted, helpers, triton_helpers), notes=notes)


def _joined(program: Program, options: GluonOptions) -> Joined:
    try:
        return joined(program, in_order=options.deterministic, together=options.heads_together)
    except UnsupportedKernel as reason:
        raise _not_joint(program, reason, options) from reason


def _emitted_joint(
    join: Joined, function: str, helpers: dict[str, dict[str, None]], taken: set[str], options: GluonOptions
) -> GluonKernel:
    try:
        return emit_joint(join, function, helpers, taken, options)
    except UnsupportedKernel as reason:
        raise _not_joint(join.program, reason, options) from reason


def _not_joint(program: Program, reason: UnsupportedKernel, options: GluonOptions) -> EmitError:
    option = "joint=True" if options.joint else "deterministic=False"
    return EmitError(
        f"{option}: no two nests of {program.name} can be one kernel ({reason.reason})",
        help=f"leave {option.partition('=')[0]} out",
    )


def _module(
    program: Program,
    options: GluonOptions,
    entry: str,
    functions: list[str],
    emitted: list[GluonKernel | Context],
    helpers: dict[str, dict[str, None]],
    triton_helpers: dict[str, dict[str, None]],
) -> EmittedModule:
    out = Writer()
    gluons = [kernel for kernel in emitted if isinstance(kernel, GluonKernel)]
    contexts = [kernel for kernel in emitted if isinstance(kernel, Context)]
    out.plain(*docstring(program, entry, "Gluon kernels for Hopper"))
    cached = options.persistent or any(kernel.together is not None for kernel in gluons)
    _write_imports(out, cached, contexts, helpers)
    if ASK & triton_helpers.keys():
        out.plain("", "", INTERPRETED)
    out.plain("", "NEEDS_GPU = True  # Triton's interpreter does not know Gluon")
    constants = dict.fromkeys(line for kernel in gluons for line in kernel.constants)
    out.plain("# Layouts: of a warp group's product, of vectors beside it, of a left operand in registers.", *constants)
    _write_helpers(out, program, functions, helpers)
    for helper, users in sorted(triton_helpers.items()):
        out.plain("", "")
        in_triton = [f for f, kernel in zip(functions, emitted, strict=True) if isinstance(kernel, Context)]
        write_helper(out, helper, users, in_triton, contexts)
    sources: list[KernelSource] = []
    for function, kernel, done in zip(functions, program.kernels, emitted, strict=True):
        if isinstance(done, GluonKernel):
            sources.append(_write_gluon(out, program, done))
        else:
            sources.append(write_kernel(out, function, kernel, done))
    if options.persistent:
        out.plain("", "", *MULTIPROCESSORS.rstrip("\n").split("\n"))
    chosen = {kernel.in_order for kernel in gluons if kernel.together is not None}
    for text in [text for in_order, text in ((False, HEADS_TOGETHER), (True, HEADS_IN_ORDER)) if in_order in chosen]:
        out.plain("", "", *text.rstrip("\n").split("\n"))
    out.plain("", "")
    write_launcher(out, program, options, entry, sources, emitted)
    text = "\n".join(out.text) + "\n"
    check_emitted(text, EmitError)
    return EmittedModule(program.name, entry, text, tuple(sources), tuple(out.lines))


def _write_imports(out: Writer, cached: bool, contexts: list[Context], helpers: dict[str, dict[str, None]]) -> None:
    """Writes the imports; `contexts` are those of the kernels in Triton, and `cached` if functions are."""
    out.plain(*(["import functools", ""] if cached else []), "import torch")
    if contexts:
        out.plain("import triton", "import triton.language as tl")
    out.plain(
        "from triton.experimental import gluon",
        "from triton.experimental.gluon import language as gl",
        "from triton.experimental.gluon.language.nvidia.hopper import (",
        "    fence_async_shared,",
        "    mbarrier,",
        "    tma,",
        "    warpgroup_mma,",
        "    warpgroup_mma_wait,",
        ")",
        "from triton.experimental.gluon.nvidia.hopper import TensorDescriptor",
    )
    if "_add_out" in helpers:
        out.plain("from triton._C.libtriton import ir as compiler_ir")
        out.plain("from triton.experimental.gluon.language._core import builtin")
    if EXTREMA & helpers.keys():
        out.plain("from triton.language import PropagateNan")
    if any(ctx.host_descriptors for ctx in contexts):
        out.plain("from triton.tools.tensor_descriptor import TensorDescriptor as PlainDescriptor")


def _write_helpers(out: Writer, program: Program, functions: list[str], helpers: dict[str, dict[str, None]]) -> None:
    wanted = set(helpers)
    for name, (_, calls) in HELPERS.items():
        if name in helpers:
            wanted |= set(calls)
    origin = {s.node_id: (f, s) for f, k in zip(functions, program.kernels, strict=True) for s in stores(k.body)}
    for name, (text, _) in HELPERS.items():
        if name not in wanted:
            continue
        users = tuple(helpers.get(name, ())) or (program.kernels[0].node_id,)
        function, user = origin.get(users[0], (functions[0], None))
        out.plain("", "")
        for line in text.rstrip("\n").split("\n"):
            if line.lstrip().startswith("return"):
                out.linked(function, line, users, user.origin if isinstance(user, Store) else "")
            else:
                out.plain(line)


def _write_gluon(out: Writer, program: Program, kernel: GluonKernel) -> KernelSource:
    out.plain("", "")
    first = len(out.text)
    for line in kernel.lines:
        if line.nodes:
            out.linked(kernel.name, line.text, line.nodes, line.origin)
        else:
            out.plain(line.text)
    text = "\n".join(out.text[first:]) + "\n"
    sample = {size.name: size.sample for size in program.sizes}
    grid, fused = (evaluate(kernel.programs, sample),), kernel.fused
    made = KernelSource(
        kernel.name, text, grid, kernel.pointers, kernel.descriptors, kernel.warps, None, language="gluon"
    )
    return replace(made, fused=fused, sizes=kernel.sizes)
