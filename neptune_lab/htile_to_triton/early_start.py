"""Which launches start while the one before them ends, and how far they come before they wait for its results.

    copies[s, j] = gamma[s + j]               copies[s, j] = gamma[s + j]
    m[i] = reduce(sum, x[i, ...])      ⇒      m[i] = reduce(sum, x[i, ...])     # runs beside the copies
    y[i, ...] = ... * copies[i%8, ...]        wait
                                              y[i, ...] = ... * copies[i%8, ...]

Copies of vectors (`shift_vectors`) take 4 µs and more, most of which is the start and the end of a launch, and rows are
reduced before they are scaled.

Formal statement.  A launch starts early only if the statements before its wait store to nothing but the chip, and read
nothing that a kernel of the program stores.  The launch before it is an ordinary one: it starts when all that its
inputs come from has ended, and what starts early starts after it did.  Nothing starts early that starts after an early
one, so when a program has waited, every launch before its own has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from neptune_lab.htile.nodes import Dot, Gather, Kernel, Program, Reduce, Store
from neptune_lab.htile.walk import expressions, read_tensors, written_tensors
from neptune_lab.htile_to_triton.last_program import Joined
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.htile_to_triton.waiting import Waiting

Launched = Sequence[tuple[Kernel, Joined | Waiting | None]]


def early_starts(program: Program, launched: Launched, options: EmitOptions) -> dict[int, int]:
    """The launches that start early, by number, and how many statements each has before its wait."""
    if options.dependent_launch:
        return dict.fromkeys(range(1, len(launched)), 0)
    found: dict[int, int] = {}
    if not options.target.dependent_launch or program.sizes:
        return found
    stored = frozenset[str]().union(*(written_tensors(kernel) for kernel in program.kernels)) - _on_chip(program)
    for n in range(1, len(launched)):
        (before, with_before), (kernel, last) = launched[n - 1], launched[n]
        if with_before is None and last is None and n - 1 not in found and _copies_vectors(program, before):
            count = _alone(program, kernel, stored)
            if count:
                found[n] = count
    return found


def _on_chip(program: Program) -> frozenset[str]:
    return frozenset(tensor.name for tensor in program.tensors if tensor.space == "chip")


def _copies_vectors(program: Program, kernel: Kernel) -> bool:
    """Whether a kernel stores nothing but elements of vectors."""
    own = [stmt for stmt in kernel.body if isinstance(stmt, Store)]
    read = {name for store in own for name in read_tensors(store)}
    plain = not any(isinstance(e, Reduce | Dot | Gather) for store in own for e in expressions(store))
    return len(own) == len(kernel.body) and plain and all(len(program.tensor(name).shape) == 1 for name in read)


def _alone(program: Program, kernel: Kernel, stored: frozenset[str]) -> int:
    """How many statements of a kernel without loops need none of these tensors, if they reduce something; else 0."""
    chip, count, reduces = _on_chip(program), 0, False
    for stmt in kernel.body:
        if not isinstance(stmt, Store):
            return 0
        if read_tensors(stmt) & stored or stmt.target.tensor not in chip:
            break
        reduces = reduces or any(isinstance(expr, Reduce) for expr in expressions(stmt))
        count += 1
    return count if reduces else 0


__all__ = ["early_starts"]
