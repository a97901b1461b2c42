"""What became of a model: its graphs, their regions with memory traffic before and after, and what stays apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from neptune_lab.errors import DefinitionError
from neptune_lab.torch_explain.parts import Part, parts_of
from neptune_lab.torch_regions import Partition, Region


@dataclass(frozen=True, eq=False)
class Explanation:
    """The partition of a model's graphs, for reading.

    Args:
        title: of the model or function.
        partitions: one per graph that torch traced, in the order in which they run.
        breaks: why torch traced several graphs: one sentence per place, with the user's line.
    """

    title: str
    partitions: tuple[Partition, ...]
    breaks: tuple[str, ...] = ()

    @cached_property
    def graphs(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each graph, in an order in which they can run."""
        found, first = [], 1
        for partition in self.partitions:
            found.append(parts_of(partition, first))
            first += len(partition.regions)
        return tuple(found)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The fused regions of all graphs, by their numbers: the first has number 1."""
        found = {p.number: p.region for parts in self.graphs for p in parts if p.region is not None}
        return tuple(found[n] for n in sorted(found))

    def region(self, number: int) -> Region:
        """A region by its number.

        Args:
            number: from 1.

        Returns:
            The region, with its operator and kernel.

        Raises:
            DefinitionError: there is no region of this number.
        """
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= len(self.regions):
            raise DefinitionError(
                f"{self.title} has no region {number!r}", help=f"it has {len(self.regions)}, counted from 1"
            )
        return self.regions[number - 1]

    def as_record(self) -> dict[str, Any]:
        """Plain data, ready for JSON: the record of each partition.

        Returns:
            The title, the partitions and the breaks.
        """
        return {
            "title": self.title,
            "partitions": [partition.as_record() for partition in self.partitions],
            "breaks": list(self.breaks),
        }

    def summary(self) -> str:
        """How much was fused, and what it saves.

        Returns:
            A sentence or two.
        """
        regions = self.regions
        apart = sum(len(p.nodes) for parts in self.graphs for p in parts if p.region is None)
        if not regions:
            return f"No region was fused; {count(apart, 'operation')} left apart."
        before, after = sum(r.before for r in regions), sum(r.after for r in regions)
        share = f" ({after / before:.0%})" if before >= 1.05 * after else ""
        move = "moves" if len(regions) == 1 else "move"
        moved = f"{move} {byte_text(before)} before and {byte_text(after)} after{share}"
        return f"{count(len(regions), 'region')} fused, which {moved}; {count(apart, 'operation')} left apart."

    def __str__(self) -> str:
        lines = [self.title, f"  {self.summary()}"]
        for number, parts in enumerate(self.graphs, 1):
            lines.append("")
            if len(self.graphs) > 1:
                lines += [f"  graph {number} of {len(self.graphs)}", ""]
            for part in parts:
                lines += [f"  {line}".rstrip() for line in part_text(part)]
        if self.breaks:
            lines += ["", "  torch traced several graphs:"]
            lines += [f"    {reason}" for reason in self.breaks]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        return str(self)


def part_text(part: Part) -> list[str]:
    """A part in a few lines: what it holds, its traffic or the reasons, and the user's lines.

    Args:
        part: of `Explanation.graphs`.

    Returns:
        Lines of text.
    """
    if part.region is not None:
        region = part.region
        kernels = count(len(region.kernel.htile.kernels), "kernel")
        moved = f"memory traffic {byte_text(region.before)} before, {byte_text(region.after)} after"
        return [
            f"{part.number:3}  fused  {region.title}: {part.operations}",
            f"            {moved}; {kernels}",
            *(f"            {line}" for line in region.lines),
        ]
    lines = []
    for reason in part.reasons:
        holds = f" ({reason.holds})" if reason.holds else ""
        lines.append(f"     apart  {reason.operations}{holds}")
        lines += [f"            {line.strip()}" for line in reason.text.splitlines()]
        lines += [f"            {line}" for line in reason.lines]
    return lines


def byte_text(size: int) -> str:
    """A number of bytes with three digits.

    >>> byte_text(12), byte_text(12345), byte_text(1234567890)
    ('12 B', '12.3 kB', '1.23 GB')
    """
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "kernel"), count(3, "kernel")
    ('1 kernel', '3 kernels')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


__all__ = ["Explanation", "byte_text", "count", "part_text"]
