"""Choices of the emitter that change no numbers beyond rounding, and that a tuner picks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal as Lit

from neptune_lab.errors import EmitError
from neptune_lab.strict.values import check_choice, check_integer, check_switch
from neptune_lab.target import ANY, Target, as_target

# Iterations that Triton may load ahead; each holds its tiles in shared memory, of which no GPU has so much.
MOST_STAGES = 16
LOADS = ("pointers", "descriptors", "host_descriptors")
TANH = ("exp2", "hardware")


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """How a program is written in Triton.

    Args:
        loads: "pointers"; "descriptors": tiles that are contiguous rows go through Hopper's copy engine, each program
            makes the descriptors it needs; "host_descriptors": the launcher makes them, which programs with little to
            do are glad of, and which asks for tiles that end where their tensor does.
        tanh: "exp2" (error about 1e-7), or "hardware" (about 5e-4, one instruction in place of four: attention with a
            soft cap takes 21% less on an H200, and its error against float64 is the same to two digits).
        loop_stages: how many iterations ahead loops without a product load; None: Triton's default, none.
        dependent_launch: a kernel starts while the one before it ends, and waits for its results on the GPU: about
            1 µs of a decode kernel's 9 to 40 on an H200. Large kernels lose more than they win (a performer 10%).
        target: the GPU to emit for, or its name.
    """

    loads: Lit["pointers", "descriptors", "host_descriptors"] = "pointers"
    tanh: Lit["exp2", "hardware"] = "exp2"
    loop_stages: int | None = None
    dependent_launch: bool = False
    target: Target = ANY

    def __post_init__(self) -> None:
        check_choice("loads", self.loads, LOADS, EmitError)
        check_choice("tanh", self.tanh, TANH, EmitError)
        check_integer("loop_stages", self.loop_stages, 1, MOST_STAGES, EmitError, optional=True)
        check_switch("dependent_launch", self.dependent_launch, EmitError)
        object.__setattr__(self, "target", as_target(self.target))
        asked = {
            f"loads={self.loads!r}": self.loads != "pointers" and not self.target.descriptors,
            "dependent_launch=True": self.dependent_launch and not self.target.dependent_launch,
            "tanh='hardware'": self.tanh == "hardware" and not self.target.hardware_tanh,
        }
        for what, missing in asked.items():
            if missing:
                raise EmitError(
                    f"{what} is not available on target {self.target}",
                    help="give a GPU that has it, such as target='h200' or Target('cuda', (9, 0)), or leave target out",
                )
        if self.dependent_launch and self.loads == "descriptors":
            # Each launch has memory for its descriptors, which the next one is given too: the two must not overlap.
            raise EmitError(
                "dependent_launch=True overwrites the descriptors that a kernel made with loads='descriptors'",
                help="take loads='host_descriptors' or 'pointers'",
            )
