"""Options of code generation, which are chosen after the schedule: frozen data, checked when it is created."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from neptune_lab.errors import EmitError, ScheduleError
from neptune_lab.htile_passes import PASSES
from neptune_lab.htile_to_gluon import GluonOptions
from neptune_lab.htile_to_gluon.options import GluonChoices
from neptune_lab.htile_to_triton import EmitOptions
from neptune_lab.htile_to_triton.options import TritonChoices
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.loop_schedule.arguments import closed_fields
from neptune_lab.strict.console import printable, shown
from neptune_lab.strict.values import check_choice
from neptune_lab.target import ANY, Target

CODES = ("triton", "gluon")
# Options that kernels in Triton do not have. (`deterministic` allows another order, and asks for none.)
OF_GLUON = tuple(field.name for field in fields(GluonChoices) if field.name != "deterministic")


@closed_fields
@dataclass(frozen=True, kw_only=True)
class CodeOptions(GluonChoices, TritonChoices):
    """Choices of code generation: the fields of `neptune_lab.htile_to_triton.options.TritonChoices`; those of
    `neptune_lab.htile_to_gluon.options.GluonChoices`, which have an effect with code="gluon" only; and these.

    Args:
        interleave: independent parts that the rows of a program are cut into, 1 or 2. With 2, the softmax of one half
            runs during the product of the other.
        hidden_tiles: how a loop finds the tiles that the values of inputs hide. "bounds": by the first and the last
            tile that a comparison of inputs shows, which skips most if they are sorted (`skip_tiles_by_data`). "list":
            by a list of the tiles in which the mask shows an element, made on the device at each call, which skips all,
            in whatever order the values are (`skip_tiles_by_list`). "auto": by bounds, and by a list where there are
            none and the list can pay.  Kernels in Gluon visit all tiles; those for all sizes find them by bounds.
            A list of tiles that positions alone show is made once ("auto" and "list").  Tiles past limits that values
            set to positions, such as lengths, need neither (`skip_tiles_by_positions`),
            and in decoding those before the first and after the last key of a mask (`skip_tiles_by_flags`).
        rounded_weights: how a softmax's weights are rounded to 8 bits, if they are. "split": those of the first half of
            each tile of keys are two numbers (`split_rounded_weights`), with errors of 1.8e-2 for normal inputs.
            "single": each is one number, with errors of 2.5e-2, which takes 15% less time in Gluon on an H200. "mixed":
            those of the first half are float16 (`mix_rounded_weights`), with the errors of "split" in 10% more time
            than "single"; "split" where tiles do not divide the keys, or the values do not have their keys last.
        disable_passes: names of HTile passes to leave out, to measure their effect.
        code: "triton", or "gluon": kernels of the right form are written in Gluon, for Hopper only. On an H200, prefill
            attention from 512 positions on takes 10 to 33% less time than the best form in Triton.

    Raises:
        ScheduleError, EmitError: no such field, or a value that it does not take.
    """

    interleave: Literal[1, 2] = 1
    hidden_tiles: Literal["auto", "bounds", "list"] = "auto"
    rounded_weights: Literal["single", "split", "mixed"] = "split"
    disable_passes: tuple[str, ...] = ()
    code: Literal["triton", "gluon"] = "triton"

    def __new__(cls, *_: Any, **given: Any) -> CodeOptions:
        """Notes which options are given by name."""
        made = object.__new__(cls)
        object.__setattr__(made, "_named", tuple(sorted(given)))
        return made

    @property
    def named(self) -> tuple[str, ...]:
        """The options that were given by name, also with their defaults; two that compare equal may differ in it."""
        return vars(self)["_named"]

    def __post_init__(self) -> None:
        TritonChoices.__post_init__(self)
        GluonChoices.__post_init__(self)
        check_choice("interleave", self.interleave, (1, 2), ScheduleError)
        check_choice("code", self.code, CODES, ScheduleError)
        check_choice("hidden_tiles", self.hidden_tiles, ("auto", "bounds", "list"), ScheduleError)
        check_choice("rounded_weights", self.rounded_weights, ("single", "split", "mixed"), ScheduleError)
        for field in fields(GluonChoices):
            value = getattr(self, field.name)
            if self.code != "gluon" and field.name in OF_GLUON and value != field.default:
                raise ScheduleError(
                    f"{field.name}={shown(value)} with code='triton': it is an option of kernels in Gluon",
                    help=f"take code='gluon', which is for Hopper, or leave {field.name} out",
                )
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

    @property
    def in_triton(self) -> CodeOptions:
        """The same options for code in Triton, which does not have Gluon's own."""
        if self.code == "triton":
            return self
        gluon = {field.name: field.default for field in fields(GluonChoices) if field.name in OF_GLUON}
        return replace(self, code="triton", **gluon)

    def emitter(self, target: Target | None) -> EmitOptions:
        """The emitter's part; without a target, for the GPU here, else for any, or for `DEFAULT` where only some GPUs
        have what the options ask for, whose code the interpreter runs."""
        plain = self.loads == "pointers" and not self.dependent_launch and self.tanh == "exp2"
        here = Target.current(otherwise=ANY if plain else None)
        return EmitOptions(**_part(self, TritonChoices), target=target or here)

    def gluon(self, target: Target | None) -> GluonOptions:
        """The Gluon emitter's part, for `target`; None: as `emitter` has it."""
        emit = replace(self.emitter(target), target=target or Target.current())
        return GluonOptions(**_part(self, GluonChoices), emit=emit)


def _part(code: CodeOptions, kind: type[TritonChoices | GluonChoices]) -> dict[str, Any]:
    """The fields of `code` that it has from `kind`."""
    return {field.name: getattr(code, field.name) for field in fields(kind)}


# Fields that users look for among the arguments of `compile`, and where to give them.
PLACES = {field.name: "code=nl.CodeOptions" for field in fields(CodeOptions)}

__all__ = ["CODES", "PLACES", "CodeOptions"]
