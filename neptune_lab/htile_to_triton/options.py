"""Options of the Triton emitter, which change results only by rounding; the tuner chooses among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neptune_lab.errors import EmitError
from neptune_lab.strict.values import check_choice, check_integer, check_switch
from neptune_lab.target import ANY, MOST_STAGES, Target, as_target

# Iterations that Triton may load ahead. Each needs its tiles in shared memory, and no GPU has memory for more.
# Triton's defaults of a kernel.
DEFAULT_WARPS, DEFAULT_STAGES = 4, 3
LOADS = ("pointers", "descriptors", "host_descriptors")
TANH = ("exp2", "hardware")
# What combines the parts of a split reduction; and of rows that programs share.
COMBINE_SPLITS = ("kernel", "last_program")
COMBINE = (*COMBINE_SPLITS, "waiting")


@dataclass(frozen=True, kw_only=True)
class TritonChoices:
    """Choices of code in Triton, which hold for every target: the fields that `EmitOptions` and
    `neptune_lab.choice.CodeOptions` share.

    Args:
        loads: how tiles are loaded and stored. "pointers": by one pointer per element. "descriptors": Hopper's copy
            engine moves tiles of contiguous rows, and each program makes the descriptors that it needs.
            "host_descriptors": the launcher makes the descriptors, which is faster for short programs; only for tiles
            that do not reach past the end of their tensor.
        tanh: "exp2" (relative error about 1e-7), or "hardware" (about 5e-4, one instruction instead of four). On an
            H200, attention with a soft cap takes 21% less time with "hardware", and its error against float64 is the
            same to two digits.
        loop_stages: software pipeline stages of loops without a product; None: Triton's default, no pipeline.
        dependent_launch: a kernel starts while the previous one ends, and waits on the GPU for its results. On an H200
            this saves about 1 µs of a decode kernel's 9 to 40 µs; large kernels take longer with it (a performer 10%).
        combine: what combines the parts of a split reduction. "kernel": a second kernel. "last_program": the program
            that finishes last among those of a row, so that there is one launch: 0.97 of the time of decoding single
            heads on an H200, but 1.0 to 2.8 for groups of heads. "waiting": programs that share rows (`share_rows`)
            wait for what the others of their row pass on, in one launch that loads each element once. The last two are
            for NVIDIA's GPUs only.

    Raises:
        EmitError: a value that an option does not take.
    """

    loads: Literal["pointers", "descriptors", "host_descriptors"] = "pointers"
    tanh: Literal["exp2", "hardware"] = "exp2"
    loop_stages: int | None = None
    dependent_launch: bool = False
    combine: Literal["kernel", "last_program", "waiting"] = "kernel"

    def __post_init__(self) -> None:
        check_choice("combine", self.combine, COMBINE, EmitError)
        check_choice("loads", self.loads, LOADS, EmitError)
        check_choice("tanh", self.tanh, TANH, EmitError)
        check_integer("loop_stages", self.loop_stages, 1, MOST_STAGES, EmitError, optional=True)
        check_switch("dependent_launch", self.dependent_launch, EmitError)

    def check_together(self) -> None:
        """Raise EmitError if two of the options exclude each other; the tuner's space has such pairs, and skips
        them."""
        if self.dependent_launch and self.loads == "descriptors":
            # The next launch reuses the memory of this launch's descriptors, so the two must not overlap in time.
            raise EmitError(
                "dependent_launch=True overwrites the descriptors that a kernel made with loads='descriptors'",
                help="take loads='host_descriptors' or 'pointers'",
            )
        for name, value, usual in (
            ("loads", self.loads, "pointers"),
            ("dependent_launch", self.dependent_launch, False),
        ):
            # Copies by the copy engine are not ordered with the arrival at a counter; and a kernel that starts early
            # has no kernel to wait for.
            if self.combine != "kernel" and value != usual:
                raise EmitError(
                    f"combine={self.combine!r} with {name}={value!r}: expected {name}={usual!r}",
                    help=f"leave {name} out, or take combine='kernel'",
                )


@dataclass(frozen=True, kw_only=True)
class EmitOptions(TritonChoices):
    """Options of the Triton emitter: the fields of `TritonChoices`, and a target.

    Args:
        target: the GPU to emit for, or its name.

    Raises:
        EmitError: a value that an option does not take, or that the target does not support.
    """

    target: Target = ANY

    def __post_init__(self) -> None:
        TritonChoices.__post_init__(self)
        object.__setattr__(self, "target", as_target(self.target))
        requires = {
            f"loads={self.loads!r}": self.loads != "pointers" and not self.target.descriptors,
            "dependent_launch=True": self.dependent_launch and not self.target.dependent_launch,
            "tanh='hardware'": self.tanh == "hardware" and not self.target.hardware_tanh,
            f"combine={self.combine!r}": self.combine != "kernel" and self.target.kind == "hip",
        }
        for what, missing in requires.items():
            if missing:
                raise EmitError(
                    f"{what} is not available on target {self.target}",
                    help="give a GPU that has it, such as target='h200' or Target('cuda', (9, 0)), or leave target out",
                )
        self.check_together()
