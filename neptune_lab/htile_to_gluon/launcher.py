"""The plain function that launches the kernels of a module in Gluon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from neptune_lab.htile.nodes import IndexExpr, Kernel, Name, Program
from neptune_lab.htile_to_gluon.context import MODULE_NAMES, gluon_dtype
from neptune_lab.htile_to_gluon.kernel import GluonKernel
from neptune_lab.htile_to_gluon.options import GluonOptions
from neptune_lab.htile_to_triton.context import Context, HostDescriptor
from neptune_lab.htile_to_triton.descriptors import BYTES
from neptune_lab.htile_to_triton.launcher import (
    described,
    descriptor_text,
    grid_text,
    launch_hints,
    python_text,
    signature,
    write_allocations,
    write_sizes,
)
from neptune_lab.htile_to_triton.scope import UniqueNames
from neptune_lab.htile_to_triton.source import KernelSource, Writer

# By the shape and dtype of a tile that the copy engine moves, the name of its layout in shared memory.
_Layouts: TypeAlias = Mapping[tuple[tuple[int, ...], str], str]


def write_launcher(
    out: Writer,
    program: Program,
    options: GluonOptions,
    entry: str,
    sources: list[KernelSource],
    emitted: list[GluonKernel | Context],
) -> None:
    """Writes the function, and before it the layouts of the tiles that it makes descriptors of.

    Args:
        entry: the function's name.
        sources, emitted: the kernels of the program, in its order; a `Context` is that of a kernel in Triton.
    """
    names = UniqueNames({entry, "PlainDescriptor", *MODULE_NAMES, *(source.name for source in sources)})
    arguments = {name: names.fresh(name) for name in program.inputs}
    layouts = _layouts(program, emitted)
    for (block, dtype), name in layouts.items():
        out.plain(f"{name} = {_layout_text(block, dtype)}")
    out.plain("", "", f"def {entry}({', '.join(arguments.values())}):", *signature(program))
    device = f"{arguments[program.inputs[0]]}.device"
    sizes = write_sizes(out, program, arguments, names)
    launcher = _Launcher(out, program, options.persistent, device, arguments, layouts, names, sizes)
    for kernel, source, done in zip(program.kernels, sources, emitted, strict=True):
        write_allocations(out, program, kernel, source, arguments, names, sizes)
        if isinstance(done, GluonKernel):
            launcher.write_launch(kernel, source, *launcher.of_gluon(kernel, source, done))
        else:
            launcher.write_launch(kernel, source, *launcher.of_triton(kernel, source))
    out.plain(f"    return {', '.join(arguments[name] for name in program.outputs)}")


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Writes launches.

    Args:
        persistent: whether there is one program per multiprocessor.
        device: text of the device of the inputs.
        arguments: the function's variable for each tensor; allocations add to them.
        layouts: of tiles, as `_layouts` gives them.
        names: those of the function's variables.
        sizes: the variable of each size that differs from call to call.
    """

    out: Writer
    program: Program
    persistent: bool
    device: str
    arguments: dict[str, str]
    layouts: _Layouts
    names: UniqueNames
    sizes: Mapping[str, Name]

    def of_gluon(self, kernel: Kernel, source: KernelSource, done: GluonKernel) -> tuple[str, list[str]]:
        """The grid of a kernel in Gluon and its arguments; writes the number of heads that run together, if it takes
        one."""
        args = [self.arguments[name] for name in source.arguments]
        args += [self._descriptor(made) for made in source.descriptors]
        args += [self.sizes[name].name for name in source.sizes]
        if done.together is not None:
            args.append(self.names.fresh("together"))
            text = f"    {args[-1]} = {self._heads(done.together, done.in_order)}"
            self.out.linked(source.name, text, (kernel.node_id,), kernel.name)
        args += [f"num_warps={done.warps}", f"maxnreg={done.registers}"]
        args += [] if done.fused else ["enable_fp_fusion=False"]
        programs = python_text(done.programs, self.sizes)
        return f"min({programs}, _multiprocessors({self.device}))," if self.persistent else f"{programs},", args

    def of_triton(self, kernel: Kernel, source: KernelSource) -> tuple[str, list[str]]:
        """The grid of a kernel in Triton, and its arguments."""
        args = [self.arguments[name] for name in source.arguments]
        args += [self.sizes[name].name for name in source.sizes]
        args += [descriptor_text(made, self.arguments[made.tensor], "PlainDescriptor") for made in source.descriptors]
        return grid_text(source.grid, kernel, self.sizes), [*args, *launch_hints(source)]

    def write_launch(self, kernel: Kernel, source: KernelSource, grid: str, args: list[str]) -> None:
        """Writes the call of a kernel, an argument a line."""
        for text in (f"    {source.name}[({grid})](", *(f"        {arg}," for arg in args), "    )"):
            self.out.linked(source.name, text, (kernel.node_id,), kernel.name)

    def _heads(self, together: tuple[IndexExpr, ...], in_order: bool) -> str:
        """Text of the number of heads that run at the same time."""
        given = [python_text(n, self.sizes) for n in together]
        if in_order:
            return f"_heads_in_order({', '.join(given[1:])})"
        programs = f"_multiprocessors({self.device})" if self.persistent else "0"
        return f"_heads_together({', '.join([*given, programs])})"

    def _descriptor(self, made: HostDescriptor) -> str:
        """Text of a descriptor."""
        layout = self.layouts[(_block(made), self.program.tensor(made.tensor).dtype)]
        return f"TensorDescriptor({self.arguments[made.tensor]}, {described(made, self.sizes)}, {layout})"


def _layouts(program: Program, emitted: list[GluonKernel | Context]) -> _Layouts:
    """The layouts of the tiles that kernels in Gluon get descriptors of."""
    blocks = dict.fromkeys(
        (_block(d), program.tensor(d.tensor).dtype)
        for kernel in emitted
        if isinstance(kernel, GluonKernel)
        for d in kernel.descriptors
    )
    return {(block, dtype): f"_SHARED_{'_'.join(map(str, block))}_{dtype.upper()}" for block, dtype in blocks}


def _layout_text(block: tuple[int, ...], dtype: str) -> str:
    """The expression of a tile's layout in shared memory."""
    if len(block) == 1:  # (a vector is not swizzled)
        return f"gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth={8 * BYTES[dtype]}, rank=1)"
    return f"gl.NVMMASharedLayout.get_default_for({[*block]}, {gluon_dtype(dtype)})"


def _block(made: HostDescriptor) -> tuple[int, ...]:
    """The shape of a tile, as the descriptor counts dimensions."""
    if made.is_vector:
        return made.block[1:]
    if made.in_halves:
        return (made.block[0] // 4, 2, made.block[1])
    return made.block if made.matrices is None else (1, *made.block)


__all__ = ["write_launcher"]
