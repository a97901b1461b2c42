"""Options of the Gluon emitter: how producer and consumers work together."""

from __future__ import annotations

from dataclasses import dataclass, field

from neptune_lab.errors import EmitError
from neptune_lab.htile_to_triton import EmitOptions
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_integer, check_switch
from neptune_lab.target import DEFAULT

MOST_RING_STAGES = 6
# CUDA's limit on the grid's second axis.
MOST_HEADS = 65535
# The fields that are on or off.
SWITCHES = ("ping_pong", "tie", "persistent", "ahead", "deterministic", "joint", "one_consumer")


@dataclass(frozen=True, kw_only=True)
class GluonChoices:
    """Choices of code in Gluon: the fields that `GluonOptions` and `neptune_lab.choice.CodeOptions` share.

    Args:
        ring_stages: slots of each ring buffer in shared memory, in tiles; 2 is enough unless tiles are small.
        ping_pong: two consumers issue their products in turn, so that one computes exponentials while the other
            multiplies. No effect unless there are two consumers.
        tie: the left operand of the second product is converted to its narrow dtype before the wait for the previous
            product, not after.
        persistent: one program per multiprocessor, which takes tile after tile: best for short programs. Otherwise one
            program per tile.
        ahead: prefetch across tiles: a persistent program starts the first products of its next tile before it stores
            the outputs of the current one. If row blocks have different numbers of tiles, the assembler of Triton 3.6
            and 3.7 lacks registers for it, and serialises all products.
        heads_together: how many heads (all grid axes other than row blocks) run at the same time and share the L2
            cache; None: few, but enough to balance long and short tiles.
        one_consumer: two groups of warps are one consumer, whose code is compiled once, in about half the time. Each
            group has a relay at barriers in shared memory (relay.py). No effect on products of 8 bits, with `ahead`,
            and unless there are two.
        deterministic: False: two nests of a backward pass that compute the same tiles become one kernel (`joint`),
            which adds to one of the sums in the order in which programs come.
        joint: two nests become one kernel also with `deterministic`: a program then adds to a tile of the sum after the
            programs of all row blocks before its own.

    Raises:
        EmitError: a value that an option does not take.
    """

    ring_stages: int = 2
    ping_pong: bool = True
    tie: bool = False
    persistent: bool = False
    ahead: bool = False
    heads_together: int | None = None
    deterministic: bool = True
    joint: bool = False
    one_consumer: bool = False

    def __post_init__(self) -> None:
        check_integer("ring_stages", self.ring_stages, 1, MOST_RING_STAGES, EmitError)
        check_integer("heads_together", self.heads_together, 1, MOST_HEADS, EmitError, optional=True)
        for name in SWITCHES:
            check_switch(name, getattr(self, name), EmitError)


@dataclass(frozen=True, kw_only=True)
class GluonOptions(GluonChoices):
    """Options of the Gluon emitter: the fields of `GluonChoices`, and those of the Triton emitter.

    Args:
        emit: the options of the Triton emitter: the target, tanh, and kernels that cannot be emitted in Gluon.

    Raises:
        EmitError: a value that an option does not take, or a target that is not Hopper.
    """

    emit: EmitOptions = field(default_factory=lambda: EmitOptions(target=DEFAULT))

    def __post_init__(self) -> None:
        GluonChoices.__post_init__(self)
        if not isinstance(self.emit, EmitOptions):
            raise EmitError(
                f"emit={shown(self.emit)}: expected an EmitOptions", help="leave it out for the default, EmitOptions()"
            )
        if not self.emit.target.warpgroup_products:
            raise EmitError(
                f"code='gluon' is not available on target {self.emit.target}: it uses Hopper's warp group products",
                help="compile on a Hopper GPU, give target='h200' or Target('cuda', (9, 0)), or leave code out",
            )
