"""Options of code generation, which are chosen after the schedule: frozen data, checked when it is created."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from neptune_lab.errors import EmitError, ScheduleError
from neptune_lab.htile_passes import PASSES
from neptune_lab.htile_to_gluon import GluonOptions
from neptune_lab.htile_to_gluon.options import MOST_HEADS, SWITCHES
from neptune_lab.htile_to_gluon.options import MOST_STAGES as MOST_RING_STAGES
from neptune_lab.htile_to_triton import EmitOptions
from neptune_lab.htile_to_triton.options import COMBINE, LOADS, MOST_STAGES, TANH
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.loop_schedule.arguments import closed_fields
from neptune_lab.strict.console import printable, shown
from neptune_lab.strict.values import check_choice, check_integer, check_switch
from neptune_lab.target import ANY, Target

CODES = ("triton", "gluon")


@closed_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOptions:
    """Choices of code generation.

    Args:
        loads, tanh, loop_stages, dependent_launch, combine: as in `EmitOptions`.
        interleave: independent parts that the rows of a program are cut into, 1 or 2. With 2, the softmax of one half
            runs during the product of the other.
        hidden_tiles: how a loop finds the tiles that the values of inputs hide. "bounds": by the first and the last
            tile that a comparison of inputs shows, which skips most if they are sorted (`skip_tiles_by_data`). "list":
            by a list of the tiles in which the mask shows an element, made on the device at each call, which skips all,
            in whatever order the values are (`skip_tiles_by_list`). "auto": by bounds, and by a list where there are
            none and the list can pay.  Kernels in Gluon visit all tiles; those for all sizes find them by bounds.
        rounded_weights: how a softmax's weights are rounded to 8 bits, if they are. "single": each is one number, with
            errors of 2.5e-2 for normal inputs. "split": those of the first half of each tile of keys are two numbers
            (`split_rounded_weights`), with errors of 1.8e-2, which takes 17% to 18% longer in Gluon on an H200.
            "mixed": they are float16 (`mix_rounded_weights`), with the same errors, which takes 10% longer; "split"
            where tiles do not divide the keys, or the values do not have their keys last.
        disable_passes: names of HTile passes to leave out, to measure their effect.
        code: "triton", or "gluon": kernels of the right form are written in Gluon, for Hopper only. On an H200, prefill
            attention from 512 positions on takes 10 to 33% less time than the best form in Triton.
        ring_stages, ping_pong, tie, persistent, ahead, heads_together, deterministic, joint, one_consumer: as in
            `GluonOptions`; they have an effect with code="gluon" only.

    Raises:
        ScheduleError, EmitError: no such field, or a value that it does not take.
    """

    loads: Literal["pointers", "descriptors", "host_descriptors"] = "pointers"
    tanh: Literal["exp2", "hardware"] = "exp2"
    loop_stages: int | None = None
    dependent_launch: bool = False
    combine: Literal["kernel", "last_program", "waiting"] = "kernel"
    interleave: Literal[1, 2] = 1
    hidden_tiles: Literal["auto", "bounds", "list"] = "auto"
    rounded_weights: Literal["single", "split", "mixed"] = "single"
    disable_passes: tuple[str, ...] = ()
    code: Literal["triton", "gluon"] = "triton"
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
        for name, known in (("loads", LOADS), ("tanh", TANH), ("combine", COMBINE)):
            check_choice(name, getattr(self, name), known, EmitError)
        for name in ("dependent_launch", *SWITCHES):
            check_switch(name, getattr(self, name), EmitError)
        check_integer("loop_stages", self.loop_stages, 1, MOST_STAGES, EmitError, optional=True)
        check_integer("ring_stages", self.ring_stages, 1, MOST_RING_STAGES, EmitError)
        check_integer("heads_together", self.heads_together, 1, MOST_HEADS, EmitError, optional=True)
        check_choice("interleave", self.interleave, (1, 2), ScheduleError)
        check_choice("code", self.code, CODES, ScheduleError)
        check_choice("hidden_tiles", self.hidden_tiles, ("auto", "bounds", "list"), ScheduleError)
        check_choice("rounded_weights", self.rounded_weights, ("single", "split", "mixed"), ScheduleError)
        if self.code == "gluon" and self.hidden_tiles != "auto":
            raise ScheduleError(
                f"hidden_tiles={shown(self.hidden_tiles)} with code='gluon': kernels in Gluon visit all tiles",
                help="leave code out, or hidden_tiles",
            )
        if not isinstance(self.disable_passes, tuple):
            raise ScheduleError(
                f"disable_passes={shown(self.disable_passes)}: expected a tuple of names of passes",
                help='for example disable_passes=("longest_first",)',
            )
        if self.combine != "kernel" and self.code == "gluon":
            raise EmitError(
                f"combine={self.combine!r} with code='gluon': its kernels are not joined",
                help="leave code out, or take combine='kernel'",
            )
        for name in self.disable_passes:
            if not isinstance(name, str) or name not in PASSES:
                raise ScheduleError(
                    f"disable_passes={shown(name)}: there is no such pass",
                    help=nearest(printable(str(name)), list(PASSES), "passes"),
                )

    def emitter(self, target: Target | None) -> EmitOptions:
        """The emitter's part; without a target, for the GPU here, else `DEFAULT`, whose code the interpreter runs."""
        plain = self.loads == "pointers" and not self.dependent_launch and self.tanh == "exp2"
        return EmitOptions(
            self.loads,
            self.tanh,
            self.loop_stages,
            self.dependent_launch,
            target or (ANY if plain else Target.current()),
            self.combine,
        )

    def gluon(self, target: Target | None) -> GluonOptions:
        """The Gluon emitter's part, for `target`; None: as `emitter` has it."""
        emit = replace(self.emitter(target), target=target or Target.current())
        return GluonOptions(
            self.ring_stages,
            self.ping_pong,
            self.tie,
            self.persistent,
            self.ahead,
            self.heads_together,
            self.deterministic,
            self.joint,
            self.one_consumer,
            emit,
        )


# Fields that users look for among the arguments of `compile`, and where to give them.
PLACES = {field.name: "code=nl.CodeOptions" for field in fields(CodeOptions)}

__all__ = ["CODES", "PLACES", "CodeOptions"]
