"""Operators of the attention family: what mods capture, bits of positions, params and ties."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators.attention_formats import Formats, formats_of
from neptune_lab.operators.attention_reference import reference
from neptune_lab.operators.attention_sizes import AttentionSizes, EmptyRows, KeyPlace, MaskMod, ScoreMod
from neptune_lab.operators.attention_stages import define_attention, input_specs, scores, softmax_outputs
from neptune_lab.operators.base import (
    WHOLE,
    Arrays,
    Operator,
    Params,
    TensorSpec,
    source_of,
    tensor_expressions,
)
from neptune_lab.operators.calling import call_mod
from neptune_lab.operators.capture import Captures, capture, converted
from neptune_lab.operators.mod_ties import extremes
from neptune_lab.operators.scalar import Scalar
from neptune_lab.operators.stages import stage_name
from neptune_lab.operators.stopped_gradients import as_recorded, stopped_by
from neptune_lab.operators.ties import HALVES_TIES, Ties, merged, without_indices
from neptune_lab.operators.whole_limits import whole_numbers
from neptune_lab.strict.values import check_choice, check_number, check_switch

if TYPE_CHECKING:
    from neptune_lab.loop_ir.nodes import Program


# What may capture tensors.
_MODS = ("score_mod", "mask_mod", "place")
# The stages in the order of the definition; TVM orders them as the outputs depend on them.
_STAGES = ("qk", "score", "s_max", "s_exp", "s_sum", "p", "acc", "out", "lse", "max_scores")
_INPUTS = ("q", "k", "v", "q_scale", "k_scale", "v_scale")


def _steps(values: np.ndarray, dtype: str) -> np.ndarray:
    """Random numbers, for int8 as whole numbers of many values."""
    return np.clip(np.rint(values * 32), -127, 127) if dtype == "int8" else values


def attention_operator(
    name: str,
    title: str,
    sizes: AttentionSizes,
    params: Params,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    live: bool = False,
    place: KeyPlace | None = None,
) -> Operator:
    """An operator of the attention family.

    Args:
        name: the operator's name.
        title: one line for people.
        sizes: the sizes.
        params: the operator's params; dtype and scale are required, return_lse, return_max, empty_rows and those of
            `formats_of` optional.
        score_mod: from a scaled score to a new one; None: unchanged.
        mask_mod: if it is false, the score is -inf; None: no mask.
        live: as in `capture`.
        place: where the keys of each sample are, if `sizes.pages` says that k and v are caches of pages.

    Returns:
        The operator, from `q`, `k`, `v`, their scales and the captured tensors to `out`, and with return_lse and
        return_max to `lse` and `max_scores` after it.

    Raises:
        DefinitionError: a param has a wrong value, or a mod cannot be compiled.
    """
    scale = params["scale"]
    return_lse, return_max = params.get("return_lse", False), params.get("return_max", False)
    empty_rows = params.get("empty_rows", "nan")
    formats = formats_of(params, sizes.samples_and_heads)
    specs = input_specs(sizes, formats)
    check_switch("return_lse", return_lse, DefinitionError)
    check_choice("empty_rows", empty_rows, get_args(EmptyRows), DefinitionError)
    if scale is None:
        scale = sizes.head_dim**-0.5
    check_number("scale", scale, DefinitionError)
    scale = float(scale)
    captures = captured_by(sizes, score_mod, mask_mod, live, place)
    shapes = sizes.shapes
    outputs = {"out": formats.out}
    outputs |= {name: "float32" for name, made in (("lse", return_lse), ("max_scores", return_max)) if made}

    def build() -> Program:
        return _program(name, captures, sizes, formats, scale, return_lse, return_max, empty_rows)

    def compute(q: np.ndarray, k: np.ndarray, v: np.ndarray, *extra: np.ndarray) -> Arrays:
        scales = dict(zip((t.name for t in formats.scale_specs), extra, strict=False))
        q, k, v = formats.values(q, k, v, scales, paged=sizes.pages is not None)
        values = dict(zip(captures.arrays, extra[len(scales) :], strict=True))
        score, mask, own = (captures.bind(argument, values) for argument in _MODS)
        every = zip(
            ("out", "lse", "max_scores"), reference(sizes, q, k, v, score, mask, scale, empty_rows, own), strict=True
        )
        return tuple(array for name, array in every if name in outputs)

    def draw(rng: np.random.Generator) -> Arrays:
        tensors = (_steps(rng.standard_normal(t.shape), t.dtype) for t in specs[:3])
        return (*tensors, *(rng.uniform(0.5, 1.5, t.shape) for t in formats.scale_specs))

    mods = [mod for mod in (score_mod, mask_mod, place) if mod is not None]
    return Operator(
        name=name,
        title=title,
        doc="Neptune, Figure 12 (appendix A)",
        params={**params, "scale": scale},
        inputs=(
            *specs,
            *(TensorSpec(n, a.shape, str(a.dtype)) for n, a in captures.arrays.items()),
        ),
        outputs=tuple(TensorSpec(n, shapes[n], t) for n, t in outputs.items()),
        source="\n\n".join(map(source_of, (*mods, define_attention, scores, softmax_outputs))),
        build=build,
        compute=compute,
        draw=draw,
        captured=captures.arrays,
        ties=partial(_ties_as_recorded, name, captures, sizes, formats, scale),
        gradient_stops=stopped_by(captures),
    )


def _program(
    name: str,
    captures: Captures,
    sizes: AttentionSizes,
    formats: Formats,
    scale: float,
    return_lse: bool,
    return_max: bool,
    empty_rows: EmptyRows,
) -> Program:
    """The definition as a loop-scalar program. Positions have 32 bits, or 64 if a mod computes more than 32 hold."""
    from neptune_lab.loop_ir.int32_range import OFFSETS, exceeds_int32
    from neptune_lab.loop_ir.tvm_compat import from_te

    te = tensor_expressions()
    extra = {n: te.placeholder(a.shape, str(a.dtype), name=n) for n, a in captures.arrays.items()}
    score, mask, place = (captures.bind(argument, extra) for argument in _MODS)
    placeholders = tuple(extra.values())

    def program_of(wide: bool) -> Program:
        with whole_numbers(wide=wide):
            parts = define_attention(
                sizes, score, mask, formats, scale, return_lse, placeholders, empty_rows, wide, return_max, place
            )
        return from_te(name, *parts)

    with as_recorded():
        try:
            program = program_of(wide=False)
            exceeded = exceeds_int32(program, captured=OFFSETS)
        except DefinitionError:  # TVM has folded two constants to one that int32 does not hold
            exceeded = True
        program = captures.within(program_of(wide=True) if exceeded else program)
    return replace(program, body=tuple(sorted(program.body, key=lambda stmt: _STAGES.index(stage_name(stmt)))))


def _ties_as_recorded(*args: Any) -> dict[str, Ties]:
    with as_recorded():
        return _ties(*args)


def _ties(name: str, captures: Captures, sizes: AttentionSizes, formats: Formats, scale: float) -> dict[str, Ties]:
    """The derivatives of a score mod's `relu`, `clamp` and the like at their limits.

    Each is found as the scores of a definition whose mod returns it, so that it is written as in the operator's own.
    """
    from neptune_lab.loop_ir.nodes import Cast
    from neptune_lab.loop_ir.tree import find_block
    from neptune_lab.loop_ir.tvm_compat import from_te

    if captures.mods.get("score_mod") is None:
        return {}
    te = tensor_expressions()
    extra = {n: te.placeholder(a.shape, str(a.dtype), name=n) for n, a in captures.arrays.items()}
    mod, placeholders = captures.bind("score_mod", extra), tuple(extra.values())
    args = te.placeholder((1,), "float32", name="one_score")(0), *(te.var(n, "int32") for n in ("b", "h", "q", "kv"))
    parts = [part for _, part in extremes(mod, *map(Scalar, args))]
    if all(part == HALVES_TIES for part in parts):
        return {}
    found: list[Ties] = []
    for n, part in enumerate(parts):
        for wide in (False, True):
            with suppress(DefinitionError), whole_numbers(wide=wide):  # (positions of 32 bits may be too few)
                one = define_attention(
                    sizes,
                    lambda *args, n=n: Scalar(extremes(mod, *args)[n][0]),
                    None,
                    formats,
                    scale,
                    captured=placeholders,
                    wide=wide,
                )
                # (not `captures.within`: indices do not count, and a condition around this part may keep one inside)
                term = find_block(from_te(name, *one), "score")[1].body.value
                found.append({without_indices(term.arg if isinstance(term, Cast) else term): part})
    return {"score": merged(found)}


def captured_by(
    sizes: AttentionSizes,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    live: bool = False,
    place: KeyPlace | None = None,
) -> Captures:
    """The tensors that the mods and `place` read; `live` as in `capture`.

    The mods are called on the first and last positions, so that mistakes in them are reported early and without TVM.

    Raises:
        DefinitionError: a mod cannot be compiled, or reads outside a tensor.
    """
    mods: dict[str, Any] = dict(zip(_MODS, (score_mod, mask_mod, place), strict=True))
    captures = capture(mods, {*_STAGES, *_INPUTS}, live)
    values = {n: converted(a, np.int64 if str(a.dtype) in WHOLE else np.float64) for n, a in captures.arrays.items()}
    ends = [np.unique([0, n - 1]) for n in (sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len)]
    index = np.ix_(*ends)
    used: set[str] = set()
    if score_mod is not None:
        score = np.zeros([len(e) for e in ends])
        call_mod("score_mod", captures.bind("score_mod", values, used), score, *index)
    if mask_mod is not None:
        call_mod("mask_mod", captures.bind("mask_mod", values, used), *index)
    if place is not None:
        captures.bind("place", values, used)(Scalar(index[0]), Scalar(index[3]))
    return captures.only(used)
