"""Whether a kernel for all sizes is written in Gluon, and with which options."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from neptune_lab.choice import NOTHING, Choice, CodeOptions, Given
from neptune_lab.htile.nodes import For
from neptune_lab.htile.walk import is_bounded_by_data
from neptune_lab.loop_schedule.templates import TileConfig
from neptune_lab.operators import Operator
from neptune_lab.pipeline.fallback import REFUSALS
from neptune_lab.pipeline.hopper import suited_to_odd_lengths
from neptune_lab.pipeline.tuned import choice_and_kernel, chooses_by_default
from neptune_lab.target import ANY, Target

# Tiles of kernels that skip tiles by data, of which no record says anything.
SKIPPING = TileConfig(block_q=128, block_kv=128)


def gluon_choice(
    op: Operator,
    template: str | None,
    config: TileConfig | None,
    code: CodeOptions | None,
    target: Target | None,
    given: Given = NOTHING,
) -> Choice | None:
    """The template, the tiles and the options in Gluon of a kernel for all sizes; None if it is in Triton.

    Args:
        op: the operator at the sizes for which the choice is made.
        template, config, code, target, given: those of `compile_for_sizes`.
    """
    if code is not None:
        return Choice(template, config, _suited(code)) if code.code == "gluon" else None
    if given.language == "triton" or template is not None or config is not None:
        return None
    if target is not None or chooses_by_default():
        gpu = target or Target.current(otherwise=ANY)
        if gpu.warpgroup_products:
            with suppress(*REFUSALS):
                found = _of_one_size(op, gpu, given)
                if found is not None:
                    return found
    if given.language != "gluon":
        return None
    own = given.alone
    return replace(own, code=given.over_code(_suited(own.code)))


def _of_one_size(op: Operator, gpu: Target, given: Given) -> Choice | None:
    """What the kernel of one size is made by, if that is in Gluon, or skips tiles by data."""
    found = choice_and_kernel(op, gpu, given)
    if found is None:
        return None
    choice, kernel = found
    if choice.code.code == "gluon":
        # (Where tiles do not divide the keys, no weight is float16.)
        code = _suited(replace(choice.code, rounded_weights="split"))
        return given.over(replace(choice, code=code))
    loops = (stmt for one in kernel.htile.kernels for stmt in one.body if isinstance(stmt, For))
    if choice.template == "rolling_update" and any(is_bounded_by_data(loop, kernel.htile) for loop in loops):
        return given.over(Choice(choice.template, SKIPPING, _suited(CodeOptions(code="gluon"))))
    return None


def _suited(code: CodeOptions) -> CodeOptions:
    """The options of one size, for all: tiles do not divide the keys, and the number of heads that run together follows
    from the size of each launch."""
    return replace(suited_to_odd_lengths(code), heads_together=None)


__all__ = ["gluon_choice"]
