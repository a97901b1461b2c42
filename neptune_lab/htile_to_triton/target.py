"""What a GPU can do that emitted code may use: asked here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neptune_lab.errors import EmitError
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import check_choice, is_integer

KINDS = ("cuda", "hip", "any")


@dataclass(frozen=True, slots=True)
class Target:
    """The device that code is emitted for.

    Args:
        kind: "cuda", "hip" (AMD), or "any": code that runs on all of them and in Triton's interpreter.
        capability: CUDA compute capability, such as (9, 0); None for the other kinds.
    """

    kind: str = "any"
    capability: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS, EmitError)
        found = self.capability
        if found is None:
            return
        pair = isinstance(found, tuple) and len(found) == 2 and all(is_integer(n) and 0 <= n < 100 for n in found)
        if self.kind != "cuda" or not pair:
            raise EmitError(
                f"capability={shown(found)} of kind={self.kind!r}: expected two integers with kind='cuda', else None",
                help="for example Target('cuda', (9, 0)) for Hopper",
            )

    @property
    def descriptors(self) -> bool:
        """Tensor descriptors that a copy engine serves (Hopper and later); elsewhere Triton spells them as pointers."""
        return self._at_least(9)

    @property
    def warpgroup_products(self) -> bool:
        """Hopper's products of four warps, which no other GPU has."""
        return self.kind == "cuda" and self.capability is not None and self.capability[0] == 9

    @property
    def hardware_tanh(self) -> bool:
        """An instruction for tanh, with a relative error of about 2**-11."""
        return self._at_least(7, 5)

    @property
    def dependent_launch(self) -> bool:
        """A kernel that starts while the one before it ends."""
        return self._at_least(9)

    def _at_least(self, major: int, minor: int = 0) -> bool:
        return self.kind == "cuda" and self.capability is not None and self.capability >= (major, minor)

    def __str__(self) -> str:
        return self.kind if self.capability is None else f"{self.kind} {self.capability[0]}.{self.capability[1]}"


def check_target(value: Any) -> None:
    """Raise EmitError unless `value` is a Target."""
    if not isinstance(value, Target):
        raise EmitError(
            f"target={shown(value)}: expected a Target, or None",
            help="write target=Target('cuda', (9, 0)) for Hopper, or leave it out for the GPU at hand",
        )


ANY = Target()
HOPPER = Target("cuda", (9, 0))
