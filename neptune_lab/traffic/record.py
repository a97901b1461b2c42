"""What is counted of a program: bytes by tensor and level, operations, and the roofline's time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class TensorTraffic:
    """Bytes of one tensor.

    Args:
        name: of the tensor.
        bytes: its size.
        loaded, stored: bytes that loads and stores move between the multiprocessors and the L2 cache (of a loop
            program: that its statements read and write), each as often as it is moved.
        read, written: bytes that come from and go to HBM.
        exact: False if the tensor is read through indices that are data: then all of it counts as touched, or what the
            loads can touch at most.
    """

    name: str
    bytes: int
    loaded: int = 0
    stored: int = 0
    read: int = 0
    written: int = 0
    exact: bool = True


@dataclass(frozen=True, slots=True)
class StageTraffic:
    """What one kernel of a form moves and computes: a top-level loop nest of a loop program, or an emitted kernel.

    Args:
        name: of its blocks, in order and separated by commas; of the emitted kernel.
        read, written: bytes that come from and go to HBM.
        moved: bytes that its loads and stores move, see `Traffic.moved`.
        chip: bytes read from and written to tensors that stay on chip.
        operations: on values.
    """

    name: str
    read: int = 0
    written: int = 0
    moved: int = 0
    chip: int = 0
    operations: int = 0


@dataclass(frozen=True, slots=True)
class Roofline:
    """Least times at a GPU's rates, in microseconds; the GPU's figures are of its data sheet.

    Args:
        gpu: its name.
        memory_us: HBM bytes at the memory's rate.
        compute_us: all operations at the rate of float16 products.
    """

    gpu: str
    memory_us: float
    compute_us: float

    @property
    def bound(self) -> Literal["bytes", "operations"]:
        """What takes longer."""
        return "bytes" if self.memory_us >= self.compute_us else "operations"

    @property
    def us(self) -> float:
        """The longer of the two."""
        return max(self.memory_us, self.compute_us)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one form of a program moves and computes.

    Args:
        name: which form: "definition", a step's phase, or "kernel".
        step: index of the step in the record; None for the kernel.
        phase: key of the step's phase; "" for the kernel.
        tensors: in HBM: arguments, and intermediates that do not stay on chip.
        chip: bytes read from and written to tensors that stay on chip, each as often as it happens.
        products: operations of matrix products of tiles, two per multiplication; 0 for a loop program.
        operations: all operations on values, products included.
        stages: its kernels, in order; the sums of their figures are those of the whole.
        roofline: at the GPU that was asked for; None if its rates are not known.
    """

    name: str
    step: int | None
    phase: str
    tensors: tuple[TensorTraffic, ...]
    chip: int
    products: int
    operations: int
    stages: tuple[StageTraffic, ...] = ()
    roofline: Roofline | None = None

    @property
    def read(self) -> int:
        """Bytes from HBM."""
        return sum(t.read for t in self.tensors)

    @property
    def written(self) -> int:
        """Bytes to HBM."""
        return sum(t.written for t in self.tensors)

    @property
    def hbm(self) -> int:
        """Bytes from and to HBM."""
        return self.read + self.written

    @property
    def moved(self) -> int:
        """Bytes that loads and stores of tensors in HBM move, whether the L2 cache serves them or not."""
        return sum(t.loaded + t.stored for t in self.tensors)

    @property
    def exact(self) -> bool:
        """Whether every tensor's indices are known without the data."""
        return all(t.exact for t in self.tensors)

    def as_record(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        totals = {"read": self.read, "written": self.written, "moved": self.moved, "exact": self.exact}
        bound = {} if self.roofline is None else {"bound": self.roofline.bound, "us": self.roofline.us}
        return asdict(self) | totals | bound
