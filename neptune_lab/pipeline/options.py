"""Code options of `compile`: what is chosen behind the schedule, in one dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from neptune_lab.errors import ScheduleError
from neptune_lab.htile_passes import PASSES
from neptune_lab.htile_to_gluon import GluonOptions
from neptune_lab.htile_to_triton import ANY, HOPPER, EmitOptions, Target
from neptune_lab.loop_ir.tree import nearest

CODES = ("triton", "gluon")


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """Choices of code generation.

    Args:
        loads, tanh, loop_stages, dependent_launch: as in `EmitOptions`.
        interleave: independent parts that the rows of a program are cut into, 1 or 2. With 2 the softmax of one half
            runs while the product of the other does.
        without: names of HTile passes that are left out, to see what each is worth.
        code: "triton", or "gluon": kernels that have the form are written in Gluon, for Hopper only. On an H200 prefill
            attention from 512 positions on takes a tenth to a third less than in the best form in Triton.
        ring_stages, ping_pong, tie, persistent, ahead, heads_together: as in `GluonOptions`; they say something with
            code="gluon" only.
    """

    loads: str = "pointers"
    tanh: str = "exp2"
    loop_stages: int | None = None
    dependent_launch: bool = False
    interleave: int = 1
    without: tuple[str, ...] = ()
    code: str = "triton"
    ring_stages: int = 2
    ping_pong: bool = True
    tie: bool = False
    persistent: bool = False
    ahead: bool = False
    heads_together: int | None = None

    def __post_init__(self) -> None:
        for name in self.without:
            if name not in PASSES:
                raise ScheduleError(
                    f"without={name!r}: there is no such pass", help=nearest(name, list(PASSES), "passes")
                )
        if self.interleave not in (1, 2):
            raise ScheduleError(f"interleave={self.interleave}: expected 1 or 2")
        if self.code not in CODES:
            raise ScheduleError(f"code={self.code!r}: expected one of {', '.join(map(repr, CODES))}")

    def emitter(self, target: Target | None) -> EmitOptions:
        """The emitter's part, for `target`; None: the GPU at hand, else Hopper, whose code the interpreter runs too."""
        plain = self.loads == "pointers" and not self.dependent_launch and self.tanh == "exp2"
        return EmitOptions(
            self.loads,  # pyright: ignore[reportArgumentType]
            self.tanh,  # pyright: ignore[reportArgumentType]
            self.loop_stages,
            self.dependent_launch,
            target or (ANY if plain else target_at_hand()),
        )

    def gluon(self, target: Target | None) -> GluonOptions:
        """The Gluon emitter's part, for `target`; None: as `emitter` has it."""
        emit = replace(self.emitter(target), target=target or target_at_hand())
        return GluonOptions(
            self.ring_stages, self.ping_pong, self.tie, self.persistent, self.ahead, self.heads_together, emit
        )


NAMES = frozenset(field.name for field in fields(CodeOptions))


def split(options: Mapping[str, Any]) -> tuple[CodeOptions, dict[str, Any]]:
    """The code options among `options`, and the others, which are a template's."""
    mine = {name: value for name, value in options.items() if name in NAMES}
    if "without" in mine:
        mine["without"] = tuple(mine["without"])
    return CodeOptions(**mine), {name: value for name, value in options.items() if name not in NAMES}


def target_at_hand(otherwise: Target = HOPPER) -> Target:
    """The GPU here; `otherwise` where there is none."""
    from neptune_lab.runtime import device_facts, has_gpu

    facts = device_facts() if has_gpu() else None
    if facts is None or facts.interpreter:
        return otherwise
    return Target("cuda", facts.capability) if facts.capability and facts.cuda else Target("hip")
