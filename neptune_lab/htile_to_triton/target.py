"""What a GPU can do that emitted code may use: asked here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """The device that code is emitted for.

    Args:
        kind: "cuda", "hip" (AMD), or "any": code that runs on all of them and in Triton's interpreter.
        capability: CUDA compute capability, such as (9, 0); None for the other kinds.
    """

    kind: str = "any"
    capability: tuple[int, int] | None = None

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


ANY = Target()
HOPPER = Target("cuda", (9, 0))
