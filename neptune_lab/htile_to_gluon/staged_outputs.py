"""Outputs of a consumer that go through shared memory to the copy engine."""

from __future__ import annotations

from dataclasses import dataclass

from neptune_lab.htile.nodes import Access, Slice, Tensor
from neptune_lab.htile_to_gluon.context import GluonContext
from neptune_lab.htile_to_gluon.shared_memory import SharedMemory
from neptune_lab.htile_to_triton.context import HostDescriptor
from neptune_lab.htile_to_triton.descriptors import host_descriptor, leaves_matrix
from neptune_lab.strict.dtypes import HALVES
from neptune_lab.wrapping import Doc, call


@dataclass(frozen=True, slots=True)
class StagedOutput:
    """An output's tile in shared memory.

    Args:
        buffer: its name there.
        shape, dtype: of the tile.
        of_matrix: whether it is copied to one of several matrices.
    """

    buffer: str
    shape: tuple[int, ...]
    dtype: str
    of_matrix: bool


class StagedOutputs:
    """The outputs of one consumer.

    Args:
        me: the consumer's number, in the text.
        matrices: whether outputs that leave a matrix are staged too; else, they are stored through pointers.
    """

    def __init__(self, ctx: GluonContext, shared: SharedMemory, me: str, *, matrices: bool) -> None:
        self.ctx, self.shared, self.me, self.matrices = ctx, shared, me, matrices
        self.rows, self.each = ctx.structure.rows, ctx.structure.each
        self.of: dict[str, StagedOutput] = {}  # by the output's name

    @property
    def buffers(self) -> dict[str, StagedOutput]:
        """Those with shared memory of their own, by output."""
        resident = {h.buffer for h in self.shared.resident}
        return {tensor: staged for tensor, staged in self.of.items() if staged.buffer not in resident}

    def descriptor(self, target: Access, tensor: Tensor) -> tuple[HostDescriptor, tuple[str, ...]] | None:
        """The descriptor through which an output is stored, and the tile's place there; None: it has none."""
        if tensor.dtype not in HALVES:
            return None
        rows, columns = ([s.extent for s in target.index if isinstance(s, Slice)] + [1, 1])[:2]
        together = self.rows if rows == self.each else rows
        if not self.matrices and leaves_matrix(tensor, (together, columns)):
            return None
        return host_descriptor(self.ctx, target, together)

    def copy_out(
        self, tensor: Tensor, shape: tuple[int, ...], result: Doc, made: HostDescriptor, place: tuple[str, ...]
    ) -> None:
        """Stores an output through shared memory and the copy engine, from a resident tile's buffer or its own; of rows
        past the end of a matrix, the copy engine stores none."""
        ctx = self.ctx
        staged = self._staged(tensor, shape, made.matrices is not None)
        self.of[tensor.name] = staged
        if self.shared.persistent:
            ctx.line("tma.store_wait(0)")
            ctx.line(f"{ctx.helper('_meet')}()")
        mine = f"{staged.buffer}.index({self.me})"
        reshaped = f".reshape({[*shape]})" if staged.of_matrix else ""
        ctx.line(call(f"{mine}{reshaped}.store", result))
        ctx.line("fence_async_shared()")
        ctx.line(call(ctx.helper("_copy_out"), made.parameter, f"[{', '.join(place)}]", mine))

    def _staged(self, tensor: Tensor, shape: tuple[int, ...], of_matrix: bool) -> StagedOutput:
        """The output's place in shared memory: the one it has, a resident tile's that is free by then, or a new one."""
        alike = (shape, tensor.dtype, of_matrix)
        reusable = [h.buffer for h in self.shared.resident if (h.shape, h.dtype, h.of_matrix) == alike]
        taken = {staged.buffer for staged in self.of.values()}
        if tensor.name in self.of:
            buffer = self.of[tensor.name].buffer
        elif not self.shared.persistent and reusable and reusable[0] not in taken:
            buffer = reusable[0]
        else:
            buffer = self.ctx.names.fresh(f"{tensor.name}_staged")
        return StagedOutput(buffer, *alike)


__all__ = ["StagedOutput", "StagedOutputs"]
