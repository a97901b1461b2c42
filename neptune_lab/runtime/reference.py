"""Computes a definition in float64 with torch, on any device, in chunks: the reference for kernels of any size.

The definition is plain JSON (`neptune_lab.records.definition_of` writes it), so that a machine without the compiler
computes the same reference.  Outputs are computed box by box: interval arithmetic over the indices gives the box of
every stage that a box of an output needs, and the stages are computed on those boxes.  As in `Operator.reference`,
nothing is rounded between stages.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from neptune_lab.errors import MeasureError
from neptune_lab.runtime.named import Named, aligned, contract, elementwise, fold, index_of_axis, take
from neptune_lab.strict.console import shown

Box: TypeAlias = tuple[range, ...]
Expression: TypeAlias = Sequence[Any]

# Elements of the largest box of a stage: 512 MiB in float64.
CHUNK = 1 << 26


def reference(
    definition: Mapping[str, Any], inputs: Sequence[Any], *, chunk: int = CHUNK, outputs: Sequence[str] | None = None
) -> tuple[Any, ...]:
    """The outputs of a definition in float64.

    Args:
        definition: JSON data in the form that `neptune_lab.records.definition` describes.
        inputs: torch tensors on one device, in the definition's order and shapes, of any dtype.
        chunk: the most elements of a stage that are computed at a time.
        outputs: names of the outputs to compute; None: all.

    Returns:
        One tensor per output, on the device of the inputs: float64, or the dtype of whole numbers and conditions.

    Raises:
        MeasureError: a wrong number or shape of inputs, or an operation that is not known here.
    """
    specs = definition["inputs"]
    shapes = [tuple(t["shape"]) for t in specs]
    if [tuple(t.shape) for t in inputs] != shapes:
        given_shapes = ", ".join(str(tuple(t.shape)) for t in inputs)
        raise MeasureError(
            f"the definition takes inputs of shapes {shapes}, got {given_shapes}",
            help="give the inputs in these shapes, in order",
        )
    given = dict(zip((t["name"] for t in specs), inputs, strict=True))
    return tuple(_whole_output(definition, given, name, chunk) for name in outputs or definition["outputs"])


def _whole_output(definition: Mapping[str, Any], given: Mapping[str, Any], output: str, chunk: int) -> Any:
    """One output, put together from its boxes."""
    import torch

    stages = {s["writes"]: s for s in definition["stages"]}
    whole: Any = None
    for box in _chunks(stages, output, chunk):
        piece = _on_boxes(stages, given, _needed(stages, output, box))[output]
        if whole is None:
            whole = torch.empty(stages[output]["shape"], dtype=piece.dtype, device=piece.device)
        whole[tuple(slice(r.start, r.stop) for r in box)] = piece
    return whole


def _chunks(stages: Mapping[str, Any], output: str, chunk: int) -> Iterator[Box]:
    """Boxes that cover the output: axes are cut from the outermost in, until every stage fits."""
    shape = stages[output]["shape"]
    sizes = list(shape)

    def largest() -> int:
        boxes = _needed(stages, output, tuple(range(n) for n in sizes))
        return max(math.prod(map(len, boxes[name])) for name in boxes if name in stages)

    for axis in range(len(shape)):
        while sizes[axis] > 1 and largest() > chunk:
            sizes[axis] = -(-sizes[axis] // 2)
    starts = itertools.product(*(range(0, n, step) for n, step in zip(shape, sizes, strict=True)))
    for start in starts:
        yield tuple(range(a, min(a + step, n)) for a, step, n in zip(start, sizes, shape, strict=True))


def _needed(stages: Mapping[str, Any], output: str, box: Box) -> dict[str, Box]:
    """The box of every stage and input that a box of the output reads, itself included."""
    boxes = {output: box}
    for name, stage in reversed(list(stages.items())):
        if name not in boxes:
            continue
        within = _ranges(stage, boxes[name])
        for buffer, *indices in _loads(stage["value"]):
            limits = stages[buffer]["shape"] if buffer in stages else None
            wanted = tuple(_interval(i, within) for i in indices)
            if limits is not None:  # what is read past an end is not used
                wanted = tuple(_inside(r, n) for r, n in zip(wanted, limits, strict=True))
            held = boxes.get(buffer)
            boxes[buffer] = wanted if held is None else tuple(map(_hull, held, wanted))
    return boxes


def _hull(a: range, b: range) -> range:
    return range(min(a.start, b.start), max(a.stop, b.stop))


def _inside(r: range, extent: int) -> range:
    start = min(max(r.start, 0), extent - 1)
    return range(start, max(min(r.stop, extent), start + 1))


def _ranges(stage: Mapping[str, Any], box: Box) -> dict[str, range]:
    """The values of a stage's iteration variables on a box of what it writes."""
    spatial = {name: r for (name, _), r in zip(stage["spatial"], box, strict=True)}
    return spatial | {name: range(extent) for name, extent in stage["reduce"]}


def _loads(e: Expression) -> Iterator[Sequence[Any]]:
    """(buffer, index...) of every read, those inside indices too."""
    if e[0] == "load":
        yield e[1:]
    for child in e[1:]:
        if isinstance(child, list | tuple):
            yield from _loads(child)


_EVERYTHING = range(-(1 << 62), 1 << 62)


def _interval(e: Expression, within: Mapping[str, range]) -> range:
    """The values that an index can have; all values if it depends on data."""
    match e:
        case ["const", value, _]:
            return range(int(value), int(value) + 1)
        case ["var", name]:
            return within[name]
        case ["add" | "sub" | "mul" | "floordiv" | "min" | "max" as name, left, right]:
            a, b = _interval(left, within), _interval(right, within)
            if _EVERYTHING in (a, b) or (name == "floordiv" and b.start <= 0):
                return _EVERYTHING
            ends = [_WHOLE[name](x, y) for x in (a.start, a.stop - 1) for y in (b.start, b.stop - 1)]
            return range(min(ends), max(ends) + 1)
        case ["floormod", _, ["const", value, _]] if value > 0:
            return range(int(value))
        case ["cast", _, arg]:
            return _interval(arg, within)
        case ["select", _, yes, no]:
            return _hull(_interval(yes, within), _interval(no, within))
    return _EVERYTHING


_WHOLE = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "min": min,
    "max": max,
}


def _on_boxes(stages: Mapping[str, Any], given: Mapping[str, Any], boxes: Mapping[str, Box]) -> dict[str, Any]:
    """The value of every stage on its box, as a tensor of the box's shape; each is dropped after its last reader."""
    import torch

    device = next(iter(given.values())).device
    last = {b: name for name, s in stages.items() if name in boxes for b, *_ in _loads(s["value"])}
    held: dict[str, Any] = {}
    for name, stage in stages.items():
        if name not in boxes:
            continue
        within = _ranges(stage, boxes[name])
        run = _Stage(given, held, boxes, within, device)
        order = tuple(n for n, _ in stage["spatial"])
        if stage["reducer"]:
            made = run.reduced(stage["reducer"], stage["value"], order)
        else:
            made = run.value(stage["value"])
        made = aligned(made, order)
        if stage["dtype"] != "bool" and not stage["dtype"].startswith(("int", "uint")):
            made = made.to(torch.float64)
        held[name] = made.expand([len(within[n]) for n in order]).contiguous()
        for buffer in [b for b, reader in last.items() if reader == name]:
            held.pop(buffer, None)
    return held


class _Stage:
    """One stage on one box: expressions as tensors whose axes are named after the iteration variables."""

    def __init__(
        self,
        given: Mapping[str, Any],
        held: Mapping[str, Any],
        boxes: Mapping[str, Box],
        within: Mapping[str, range],
        device: Any,
    ) -> None:
        self.given, self.held, self.boxes, self.within, self.device = given, held, boxes, within, device

    def value(self, e: Expression) -> Named:
        """The expression over all values of its variables."""
        import torch

        match e:
            case ["const", value, dtype]:
                kind = torch.float64 if "float" in dtype else torch.bool if dtype == "bool" else torch.int64
                wanted = float(value) if kind is torch.float64 else value
                return Named((), torch.tensor(wanted, dtype=kind, device=self.device))
            case ["var", name]:
                r = self.within[name]
                return Named((name,), torch.arange(r.start, r.stop, device=self.device))
            case ["cast", dtype, arg]:
                operand = self.value(arg)
                if "float" in dtype:
                    return Named(operand.axes, operand.tensor.to(torch.float64))
                kind = torch.bool if dtype == "bool" else torch.int64
                return Named(operand.axes, operand.tensor.to(kind))
            case ["load", buffer, *indices]:
                return self.load(buffer, indices)
            case [name, *args]:
                return elementwise(name, [self.value(a) for a in args])
        raise MeasureError(
            f"{shown(e)} is no expression of a definition", help="write the bundle again with this version"
        )

    def load(self, buffer: str, indices: Sequence[Expression]) -> Named:
        """A read: plain variables are slices, others gather."""
        import torch

        if buffer in self.given:
            tensor, starts = self.given[buffer], (0,) * len(indices)
        else:
            tensor, starts = self.held[buffer], tuple(r.start for r in self.boxes[buffer])
        places = []
        for axis, (index, start) in enumerate(zip(indices, starts, strict=True)):
            if index[0] == "var":
                places.append(index_of_axis(index[1], self.within[index[1]], start))
                continue
            loaded = self.value(index)
            # The value at an index that is out of range is not used: a condition selects another.
            inside = (loaded.tensor.to(torch.int64) - start).clamp(0, tensor.shape[axis] - 1)
            places.append(Named(loaded.axes, inside))
        loaded = take(tensor, places)
        return Named(loaded.axes, loaded.tensor.to(torch.float64)) if tensor.is_floating_point() else loaded

    def reduced(self, reducer: str, term: Expression, keep: tuple[str, ...]) -> Named:
        """The term folded over every variable that is not in `keep`."""
        over = tuple(n for n in self.within if n not in keep)
        factors = [self.value(f) for f in _factors(term)] if reducer == "sum" else []
        if len(factors) > 1:
            axes = functools.reduce(set.union, (set(f.axes) for f in factors), set())
            if all(set(f.axes) != axes for f in factors):
                missing = math.prod(len(self.within[n]) for n in over if n not in axes)
                summed = contract(factors, keep)
                return Named(summed.axes, summed.tensor * missing) if missing > 1 else summed
        terms = self.value(term)
        return fold(reducer, terms, {n: len(self.within[n]) for n in over})


def _factors(e: Expression) -> list[Expression]:
    """The factors of a product, through casts to floats."""
    match e:
        case ["mul", a, b]:
            return _factors(a) + _factors(b)
        case ["cast", dtype, arg] if "float" in dtype and arg[0] in ("mul", "cast"):
            return _factors(arg)
    return [e]
