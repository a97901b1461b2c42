"""A compiled kernel: every stage it went through, and a way to run it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from neptune_lab.choice import CodeOptions
from neptune_lab.errors import MachineCodeError, NotPickledError
from neptune_lab.files import write_text
from neptune_lab.htile import outline, printer, sizes
from neptune_lab.htile.nodes import Name
from neptune_lab.htile.nodes import Program as TileProgram
from neptune_lab.htile_to_triton import EmittedModule
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.schedule import Schedule
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators.index_limits import IndexLimits, check_indices
from neptune_lab.pipeline import record
from neptune_lab.pipeline.captured_inputs import CapturedInputs, for_other_sizes
from neptune_lab.pipeline.exceptions import exceptions_met
from neptune_lab.pipeline.schedule_traffic import schedule_traffic
from neptune_lab.pipeline.spec import spec_of
from neptune_lab.relative_error import relative_error
from neptune_lab.strict.console import no_attribute
from neptune_lab.strict.values import check_integer
from neptune_lab.trace import Trace

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from neptune_lab.machine_code import MachineCode
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline.other_sizes import OtherSizes
    from neptune_lab.pipeline.validate import Validated
    from neptune_lab.runtime import KernelSpec, LoadedKernel
    from neptune_lab.target import Target
    from neptune_lab.traffic import TrafficRecord


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled operator, as `nl.compile` returns it: call it with torch tensors.

    Args:
        schedule: the schedule that was compiled (a copy; later edits of the original do not change it).
        translated: the HTile program before any pass.
        passes: each HTile pass that ran, with the program before and after it and its notes, in order.
        triton: the emitted module with its provenance.
        validated: which comparisons with the definition were run during compilation.
        code: the options of code generation that it was compiled with.
        target: the GPU that its code was emitted for; None: none was named.
        least: the smallest value of each size that is known at the launch only (`pipeline.for_sizes`); the operator,
            the schedule and the loops are then those of a sample.
        other_sizes: the kernels for tensors of other sizes, if the operator has them (`from_torch`).
        chosen: what its template, tiles and code were chosen by (`tuned.chosen_kernel`); "": the caller, or the shape.
    """

    schedule: Schedule
    translated: TileProgram
    passes: tuple[record.AppliedPass, ...]
    triton: EmittedModule
    validated: Validated | None = None
    code: CodeOptions = field(default_factory=CodeOptions)
    target: Target | None = None
    least: Mapping[str, int] = field(default_factory=dict)
    chosen: str = ""
    other_sizes: OtherSizes | None = None

    if not TYPE_CHECKING:  # for checkers it would make every name one of a kernel's

        def __getattr__(self, name: str) -> NoReturn:
            if hasattr(type(self), name):
                object.__getattribute__(self, name)  # a property that raised an AttributeError: its own is told
            raise no_attribute("a Kernel", name, dir(type(self)))

    @property
    def operator(self) -> Operator:
        """The operator that was compiled."""
        return self.schedule.operator

    @property
    def program(self) -> Program:
        """The scheduled loop program."""
        return self.schedule.program

    @property
    def htile(self) -> TileProgram:
        """The HTile program that Triton was written from."""
        return self.passes[-1].program if self.passes else self.translated

    @property
    def htile_text(self) -> str:
        """`htile` as text."""
        return printer.to_text(self.htile)

    @property
    def outline(self) -> str:
        """A summary of `htile`: loops, what each loads, multiplies, masks and stores, and lines of code per kernel."""
        together = {name for k in self.triton.kernels for name in k.waits[:-1]}
        tiles, said = (k for k in self.htile.kernels if k.name not in together), dict[str, str]()
        for k in self.triton.kernels:
            said |= dict.fromkeys(k.waits[:-1], f"in {k.name}, whose programs wait for each other")
            said[next(tiles).name] = f"{len(k.text.splitlines())} lines of {k.language.capitalize()}"
            if k.counters:
                said[next(tiles).name] = f"in the last programs of {k.name}"
        return outline.outline(self.at_hint, said)

    @property
    def source(self) -> str:
        """The text of the Triton module, which imports only torch and Triton."""
        return self.triton.text

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why the kernel is as it is: which template was chosen and by what, which exceptions of
        docs/concepts/numbers.md the program meets, what could not be fused, and what could not be validated."""
        steps = (step.as_record() for step in self.schedule.steps)
        said = [str(step["arguments"]["text"]) for step in steps if step["primitive"] == "remark"]
        met = exceptions_met(self.schedule, self.translated, self.passes)
        if met:
            chosen = said[:1] if said and said[0].partition(":")[0] in TEMPLATES else []
            said = [*chosen, f"Numbers, with these exceptions: {'; '.join(met)}.", *said[len(chosen) :]]
        if self.chosen:
            said.append(f"Chosen by {self.chosen}.")
        if self.validated is not None and self.validated.note:
            said.append(f"{self.validated}.")
        return tuple(said)

    @cached_property
    def trace(self) -> Trace:
        """The record of the whole compilation."""
        made = record.kernel_record(
            self.operator.name, self.program, self.translated, self.passes, self.triton, self.schedule.sources
        )
        said = record.operator_record(self.operator)
        if self.least:
            free = {s.name: f"any from {self.least.get(s.name, 1)} to {s.most}" for s in self.htile.sizes}
            said = replace(
                said,
                params={**said.params, **free},
                inputs=record.tensor_records(self.spec.inputs),
                outputs=record.tensor_records(self.spec.outputs),
            )
        made = replace(made, validated="" if self.validated is None else str(self.validated))
        return Trace(said, record.steps_record(self.schedule), made, record.versions())

    @cached_property
    def _loaded(self) -> LoadedKernel:
        from neptune_lab.runtime import load

        return load(self.spec)

    @cached_property
    def _launch(self) -> Callable[..., Any]:
        """What a call launches: a function of PyTorch takes tensors of any strides, and so does its kernel."""
        from neptune_lab.runtime.strided import of_any_strides

        return of_any_strides(self._loaded) if self.operator.copies else self._loaded

    @cached_property
    def spec(self) -> KernelSpec:
        """The runtime's view of the kernel: the module's text, its entry function, inputs and outputs."""
        return spec_of(self.operator, self.htile, self.triton, self.least)

    def __call__(self, /, *tensors: Any, **named: Any) -> Any:
        """Launches on CUDA tensors, or in Triton's interpreter if there is no GPU.

        Args:
            tensors: the operator's inputs, in order; of an operator from `from_torch` also of other sizes, for which
                kernels are compiled. Those that a mod captured may be omitted: then their values at the time of the
                definition are used, copied once to the first tensor's device.
            named: the inputs after these by their names, in any order.

        Returns:
            The output as a new tensor, or a tuple of them if the operator has several, in its shapes and dtypes.

        Raises:
            LaunchError: wrong number, name, shape, dtype, device or contiguity of an argument.
        """
        if "torch._dynamo" in sys.modules:
            from neptune_lab.runtime.refusals import break_graph

            break_graph()
        if named:
            tensors = self._captured.in_order(tensors, named)
        try:
            fits = self.other_sizes is None or self._fits(tensors)
        except RuntimeError:  # a nested tensor, which has no shape, is for the kernel's own checks to refuse
            fits = True
        if self.other_sizes is not None and not fits:
            other = self.other_sizes.kernel(tensors)
            return other(*for_other_sizes(self.operator, other.operator, tensors))
        if self._limits:
            check_indices(self._limits, tensors)
        return self._launch(*self._captured.appended(tensors))

    def check_indices(self, tensors: Sequence[Any]) -> None:
        """Raise LaunchError for a position or a label out of range, if it is in the memory of the CPU.

        Args:
            tensors: the operator's inputs, in order.
        """
        check_indices(self._limits, tensors)

    def __copy__(self) -> Kernel:
        """The kernel itself, as a deep copy is."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        """The kernel itself, which never changes: a model that holds it can be copied."""
        return self

    def __reduce__(self) -> Any:
        raise NotPickledError(
            f"the kernel {self.operator.name} cannot be pickled",
            help="kernel.export(path) writes it to a file of its own; in another process, compile the operator again",
        )

    @cached_property
    def _limits(self) -> tuple[IndexLimits, ...]:
        """What integers a call on the CPU may give; nothing for sizes with names, since a limit is one size's."""
        return self.operator.index_limits if self.operator.family is None else ()

    def _fits(self, tensors: Sequence[Any]) -> bool:
        """Whether the first tensors have sizes of this kernel, or are for its own checks to refuse."""
        inputs = self.spec.inputs
        if not self.spec.ranges:
            shapes = self._shapes
            same = all(getattr(t, "shape", shape) == shape for t, shape in zip(tensors, shapes, strict=False))
            return same or not all(hasattr(t, "shape") for t in tensors)
        own = len(inputs) - len(self.operator.captured)
        if len(tensors) not in (own, len(inputs)) or not all(hasattr(t, "shape") for t in tensors):
            return True
        from neptune_lab.runtime.sized import sizes_in

        shapes = [*(tuple(t.shape) for t in tensors[:own]), *(t.shape for t in inputs[own:])]
        return sizes_in(self.spec, shapes) is not None

    @cached_property
    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tensor.shape for tensor in self.spec.inputs)

    @cached_property
    def _captured(self) -> CapturedInputs:
        return CapturedInputs(self.operator)

    def export(self, path: str | Path) -> Path:
        """Saves the module to a file that needs only torch and Triton. Without a GPU, and without Triton's interpreter,
        its function raises a RuntimeError that says so; a TypeError or a ValueError for tensors that the kernel would
        read wrongly.

        Args:
            path: the Python file to write.

        Returns:
            The file's path.

        Raises:
            FileError: the file cannot be written; a file that was there is unchanged.
        """
        from neptune_lab.runtime.exported import exported

        return write_text(path, exported(self.spec))

    def machine_code(self, target: Target | str | None = None) -> MachineCode:
        """Compiles the kernel to machine code; no GPU is needed.

        Triton compiles in another process, with the arguments of a real launch whose tensors are aligned to 16 bytes.

        Args:
            target: an architecture ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx1100"), the
                name of a known GPU ("h200"), or a `Target`; None: sm_90.

        Returns:
            The text of each stage from Triton IR to SASS or AMDGCN, each line linked to lines of `source`; registers,
            shared memory, occupancy, and instructions by kind.

        Raises:
            MachineCodeError: no such target, the kernel is written for another one, or Triton or the assembler fails.
        """
        from neptune_lab.machine_code import machine_code

        return machine_code(self.spec, target)

    def traffic(self, target: Target | str | None = None, blocks: int | None = None) -> TrafficRecord:
        """Counts bytes and operations of the definition, of each phase of each step, and of the kernel.

        Args:
            target: the GPU, as a `Target` or by name; None: an H200.
            blocks: blocks that reside on one multiprocessor at once, for the model of the L2 cache; None: as many as
                the kernel's machine code admits, which Triton compiles in seconds, or one if it cannot be compiled for
                the target. The result has the number that was taken.

        Returns:
            A row per form: bytes from and to HBM, bytes that loads and stores move, bytes on chip, operations, and the
            roofline's time. `print` shows it as a table.

        Raises:
            EmitError: no such target.
            MachineCodeError: `blocks` is no positive integer.
        """
        from neptune_lab.target import DEFAULT, as_target

        gpu = DEFAULT if target is None else as_target(target)
        if blocks is None:
            blocks = self._resident_blocks(gpu)
        check_integer("blocks", blocks, 1, 64, MachineCodeError)
        return schedule_traffic(self.schedule, self.at_hint, gpu, blocks)

    @property
    def at_hint(self) -> TileProgram:
        """`htile` at the sizes of the definition and the schedule: for counting, where sizes have names."""
        given = ((self.htile.tensor(t.name).sizes or (), t.shape) for t in self.operator.inputs)
        pairs = (pair for names, shape in given for pair in zip(names, shape, strict=False))
        return sizes.at(self.htile, {size.name: extent for size, extent in pairs if isinstance(size, Name)})

    def _resident_blocks(self, target: Target) -> int:
        """Blocks that one multiprocessor holds of each launch at once; 1 if there is no machine code for the target."""
        try:
            launches = self.machine_code(target).kernels
        except (MachineCodeError, PackageNotFoundError):  # a kind of GPU, Gluon for another GPU; Triton is not here
            return 1
        return max(1, min(launch.resources.occupancy.blocks for launch in launches))

    def as_torch_op(self, name: str | None = None) -> OpOverload:
        """The kernel as a torch operator, torch.ops.neptune_lab.<name>, for torch.compile and CUDA graphs.

        Calling this again returns the same operator.

        Args:
            name: a Python identifier; None: the program's name and a digest of its source.

        Returns:
            A function from the operator's inputs, with its strides and including those that a mod captured, to
            new tensors.  It can be pickled: a process that loads it registers it, without compiling it again.

        Raises:
            LaunchError: `name` is no name of an operator, or another kernel has it.
        """
        from neptune_lab.pipeline.as_torch_op import as_torch_op

        return as_torch_op(self.spec, self._limits, name)

    def with_gradients(self) -> Callable[..., Any]:
        """The kernel's operator as a function of torch tensors that gives gradients, also under torch.compile.

        Returns:
            A function from the operator's inputs to its output or a tuple of its outputs; inputs that a mod captured
            may be omitted.  Its forward kernel also gives what the backward kernels read, so it is not this one.  Of
            a function of PyTorch it takes other sizes too: each combination of sizes has kernels of its own.

        Raises:
            DefinitionError: the operator has no float input, or no derivative.
            ScheduleError, TileError, EmitError: a stage of the compiler refused.
        """
        from neptune_lab.pipeline.with_gradients import with_gradients

        return with_gradients(self.operator if self.other_sizes is None else self.other_sizes.at_first)

    def relative_error(self, seed: int = 0) -> float:
        """Runs on random inputs, and compares with the float64 reference.

        Args:
            seed: of the random inputs.

        Returns:
            The largest relative error of an output (Frobenius norm). It is infinite if only one of the two has a NaN or
            an infinity at some element (a fully masked row is NaN in both), or if infinities differ in sign.

        Raises:
            LaunchError: the kernel cannot be launched.
        """
        from neptune_lab.runtime import call_on_arrays

        inputs = tuple(self.operator.random_inputs(seed).values())
        want = self.operator.reference(*inputs)
        wanted = want if isinstance(want, tuple) else (want,)
        return max(relative_error(a, b) for a, b in zip(call_on_arrays(self._loaded, inputs), wanted, strict=True))

    def __repr__(self) -> str:
        launches = ", ".join(f"{k.name}{k.grid}" for k in self.triton.kernels)
        return f"<Kernel {self.spec.signature}; launches {launches}>"
