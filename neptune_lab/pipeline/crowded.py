"""How kernels with several products per tile load their tiles: by the copy engine, on GPUs that have one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from math import prod

from neptune_lab.errors import EmitError
from neptune_lab.htile.walk import loops_in
from neptune_lab.htile_passes.partition_masked_loops import CROWDED_PRODUCTS, products_of
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.lower import emitted_with
from neptune_lab.target import ANY, Target

# The fewest elements of the largest tile tensor, such as the scores of all heads.  With fewer, the kernels take less
# time than their launcher, which makes descriptors in Python: with 32 causal heads of 2048 positions and width 128 on
# an H100, three kernels of 256 us together took 410 us to call with descriptors, and 277 us with pointers.
FEWEST_ELEMENTS = 1 << 28


def with_copy_engine(kernel: Kernel) -> Kernel:
    """The kernel with `loads="host_descriptors"` if a loop of it has three products or more, as in the backward pass of
    attention: the registers of such loops are full, and the copy engine needs none for pointers.

    On an H100 the backward pass takes 6 to 14% less time with it at three sizes, and 0.5% more at a fourth.

    Args:
        kernel: compiled with `loads="pointers"`.

    Returns:
        The kernel; the same object if no loop has that many, the kernel is short, the GPU has no copy engine, tiles do
        not divide the rows, or the emitter refuses.
    """
    target = kernel.target or Target.current(otherwise=ANY)
    largest = max((prod(t.shape) for t in kernel.htile.tensors if t.space == "chip"), default=0)
    if not target.descriptors or largest < FEWEST_ELEMENTS:
        return kernel
    every = (loop for part in kernel.htile.kernels for loop in loops_in(part.body))
    if not any(len(products_of(loop)) >= CROWDED_PRODUCTS for loop in every):
        return kernel
    with suppress(EmitError):
        made = emitted_with(kernel, replace(kernel.code, loads="host_descriptors"))
        return made if "TensorDescriptor(" in made.source else kernel  # tiles that do not divide the rows have none
    return kernel


__all__ = ["with_copy_engine"]
