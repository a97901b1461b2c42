"""`attention` inside torch.compile: the kernel is compiled as the graph is traced, and the graph calls it as an op.

Dynamo runs this module's `traced` symbolically.  What it cannot trace (the compiler, the mods) runs in `_prepared`,
whose result Dynamo takes as a constant.  So `traced` reads everything that this constant depends on once more, which
makes Dynamo guard it: the mods' numbers are compared, and the tensors become inputs of the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch._dynamo.comptime import comptime

from neptune_lab.errors import DefinitionError, LaunchError
from neptune_lab.pytorch.arguments import PLAIN, Extras, Shape, as_input, has_columns, problem_of
from neptune_lab.pytorch.compiled import compiled_for
from neptune_lab.pytorch.mods import Path, follow, read
from neptune_lab.pytorch.packed import Places, packed_mods
from neptune_lab.runtime.torch_op import NAMESPACE

# The op's name; for each captured input, the path to its tensor (or its index among the places) and its dtype; the
# numbers with their paths.
_Prepared = tuple[str, tuple[tuple[Path | int, torch.dtype], ...], tuple[tuple[Path, Any], ...]]


def traced(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    score_mod: Any,
    mask_mod: Any,
    enable_gqa: bool,
    scale: Any,
    extras: Extras = PLAIN,
    places: Places | None = None,
) -> Any:
    """`attention` inside torch.compile: the outputs of its kernel, a tensor or a sequence of them.

    Args:
        q, k, v, score_mod, mask_mod, enable_gqa, scale: as for `attention`.
        extras: further outputs, and options.
        places: of packed sequences.

    Raises:
        LaunchError, DefinitionError: as `attention`.
    """
    recording = ""
    if torch.is_grad_enabled():
        recording = "q" if q.requires_grad else "k" if k.requires_grad else "v" if v.requires_grad else ""
    if k.ndim == v.ndim == q.ndim == 4 and k.shape[0] == v.shape[0] == 1 != q.shape[0]:
        k, v = k.expand(q.shape[0], -1, -1, -1), v.expand(q.shape[0], -1, -1, -1)
    comptime(_break_at_captures)
    q, k, v = (t if has_columns(t) else t.contiguous() for t in (q, k, v))
    shapes = _fixed(q.shape), _fixed(k.shape), _fixed(v.shape)
    strides = _fixed(q.stride()), _fixed(k.stride()), _fixed(v.stride())
    dtypes = q.dtype, k.dtype, v.dtype
    asked = extras.lse, extras.max_scores, extras.options
    packed = "" if places is None else "alike" if places.q_place is places.k_place else "apart"
    name, captured, numbers = _prepared(
        shapes, strides, dtypes, q.device, enable_gqa, scale, score_mod, mask_mod, recording, asked, packed
    )
    mods = score_mod, mask_mod
    for path, value in numbers:
        if follow(mods, path) != value:
            raise RuntimeError("a value that a mod reads changed while it was compiled")
    extra = []
    for path, dtype in captured:
        tensor = follow(places, (("item", path),)) if isinstance(path, int) else follow(mods, path)
        extra.append(as_input(tensor, q.device, dtype))
    op = getattr(getattr(torch.ops, NAMESPACE), name)
    return op.default(q, k, v, *extra)


def _break_at_captures(context: Any) -> None:
    """Breaks the graph if a mod captures a tensor of the compiled function, of which Dynamo has no value yet.

    Outside the graph the call runs as usual.

    Raises:
        DefinitionError: a graph break is not allowed.
    """
    for name in ("score_mod", "mask_mod"):
        mod = context.get_local(name)._i_will_not_complain_if_bc_breaks_VariableTracker()
        try:
            mod.as_python_constant()
        except Exception as error:  # noqa: BLE001  # Dynamo's exceptions, which differ between versions
            if type(error).__name__ != "ClosureConversionError":
                return
            refusal = DefinitionError(
                f"{name} captures a tensor that the compiled function takes or makes",
                help=f"make {name} outside of the compiled function, over a tensor that stays (its values may change), "
                "or compile without fullgraph=True, which leaves the graph for this call",
            )
            translator = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
            if getattr(translator, "one_graph", False) or getattr(translator, "error_on_graph_break", False):
                raise refusal from None
            context.graph_break()


def _fixed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A shape or strides as plain integers: `range` makes Dynamo specialise symbolic sizes."""
    return tuple(len(range(n)) for n in sizes)


@torch.compiler.assume_constant_result
def _prepared(
    shapes: tuple[Shape, Shape, Shape],
    strides: tuple[Shape, Shape, Shape],
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    device: torch.device,
    enable_gqa: bool,
    scale: float | None,
    score_mod: Any,
    mask_mod: Any,
    recording: str,
    asked: tuple[bool, bool, tuple[tuple[str, Any], ...]],
    packed: str,
) -> _Prepared:
    """Compiles the kernel and registers it as an op; the result lists what the graph has to read.

    Args:
        packed: "" without `Places`; "alike" if queries and keys have the same places, else "apart".
    """
    if recording:
        raise LaunchError(
            f"argument {recording} records gradients, and attention has no backward",
            help=f"call the compiled function under torch.no_grad(), or attention with {recording}.detach()",
        )
    problem = problem_of(*shapes, *dtypes, device, enable_gqa, scale, Extras(*asked), strides)
    reading = read(score_mod, mask_mod)
    if reading.numpy_numbers or not reading.exact:
        what = "a number of NumPy's" if reading.numpy_numbers else "an object whose changes cannot be seen"
        raise DefinitionError(f"inside torch.compile a mod reads {what}", help="keep numbers in plain variables")
    for tensor in reading.tensors:
        if isinstance(tensor, np.ndarray):
            raise DefinitionError(
                f"inside torch.compile a mod captures a NumPy array of shape {tensor.shape}",
                help="make it a torch tensor on q's device",
            )
    path_of: dict[int, Path | int] = {id(t): p for t, p in zip(reading.tensors, reading.paths, strict=True)}
    numbers = reading.numbers
    if packed:
        places = _examples(shapes, packed == "alike")
        path_of |= {id(place): index for index, place in reversed([*enumerate(places)])}
        score_mod, mask_mod = packed_mods(score_mod, mask_mod, places)
        reading = read(score_mod, mask_mod)
    compiled = compiled_for(problem, score_mod, mask_mod, reading, device)
    op = compiled.op
    paths = tuple((path_of[id(reading.tensors[index])], dtype) for index, dtype in compiled.captured)
    return op.__name__.partition(".")[0], paths, tuple((p, v) for p, v in numbers if v == v)


def _examples(shapes: tuple[Shape, Shape, Shape], alike: bool) -> Places:
    """Tensors like the places of a packed call; their values are not read."""
    q, k = (
        (torch.zeros(shape[2], dtype=torch.int32), torch.zeros(shape[2], dtype=torch.int32)) for shape in shapes[:2]
    )
    return Places(q[0], q[0], q[1], q[1]) if alike else Places(q[0], k[0], q[1], k[1])
