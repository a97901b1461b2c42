"""The masks that models of `transformers` get under attn_implementation="neptune_lab".

A model makes its masks once per forward pass, by the function that is registered for the name of the implementation.
Those of "sdpa" are bool, or None where a layer that is causal needs none; a layer that adds its mask to the scores
itself, or widens it by 0, would read them wrongly.  So a model has them only if its code is made for them; any other
has the floats of "eager", which `attention_forward` adds to the scores.
"""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from neptune_lab.pytorch.transformers_arguments import NAME
from neptune_lab.pytorch.warned import warn_once

# Without SDPA only for their soft caps and sinks, which `attention_forward` computes; nothing else reads their masks.
_CAPS_AND_SINKS = frozenset(
    "modeling_" + name
    for name in (
        "flint",
        "gemma2",
        "gpt_oss",
        "granite_swa",
        "granitemoe_swa",
        "mimo_v2_flash",
        "t5gemma",
        "vaultgemma",
    )
)
_BY_NAME = re.compile(r"""_attn_implementation\s*(==|!=|in|not in)\s*\(?[^)\n]*["']sdpa["']""")
# A layer that says by itself whether it is causal, and a module that tells its layers.  (UMT5's decoder of transformers
# 5.17 has layers with an argument for it, which nothing gives.)
_SAYS_CAUSAL = re.compile(r"self\.is_causal\s*=(?!\s*(is_causal|False)\b)")
_TELLS_CAUSAL = re.compile(r"\bis_causal=(?!(self\.)?is_causal\b|False\b)")
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


@dataclass(frozen=True)
class MaskKinds:
    """Which masks a model's code is made for.

    Args:
        bools: bool masks, as those of "sdpa".
        skipped: None in place of a causal mask.
        whole: None in place of a mask that hides nothing.
        own: a note if layers have attention of their own, which no implementation replaces; else "".
    """

    bools: bool = False
    skipped: bool = False
    whole: bool = False
    own: str = ""


def interface_mask(config: Any = None, **options: Any) -> torch.Tensor | None:
    """The mask (batch, 1, q_len, kv_len) of a forward pass: bool, floats that are added to the score, or None.

    Args:
        config: of the model that makes the mask.
        options: those of `transformers`' own functions of masks.
    """
    from transformers.masking_utils import eager_mask, sdpa_mask

    kinds = mask_kinds(type(config))
    if kinds.own:
        warn_once(f"attention of {kinds.own}", kinds.own)
    skipped = kinds.skipped and not _without_order(config)
    for name, allowed in (("allow_is_causal_skip", skipped), ("allow_is_bidirectional_skip", kinds.whole)):
        if not allowed:
            options[name] = False
    return (sdpa_mask if kinds.bools else eager_mask)(config=config, **options)


def _without_order(config: Any) -> bool:
    """Whether this configuration makes layers say that they are not causal.  Their masks may still be: PaliGemma's are
    for tokens without types."""
    return any(
        getattr(part, "use_bidirectional_attention", None) for part in (config, getattr(config, "text_config", None))
    )


def none_is_causal(config: Any) -> bool:
    """Whether None may stand for the causal mask of a causal layer with this configuration; else the model has no mask,
    and eager attention hides nothing.  (BridgeTower's layers of images say that they are causal.)"""
    return config is None or mask_kinds(type(config)).skipped


@torch.compiler.assume_constant_result  # Dynamo calls it once, while it traces
def mask_kinds(config: type) -> MaskKinds:
    """Which masks the code of the models of a configuration is made for; floats if that code is not found."""
    return _kinds_of(config)


@lru_cache(maxsize=1024)
def _kinds_of(config: type) -> MaskKinds:
    for base in config.__mro__:
        for name in (base.__module__.replace("configuration_", "modeling_"), base.__module__):
            module = sys.modules.get(name)
            models = [] if module is None else _models_of(module, base)
            if module is not None and models:
                return _kinds_in(module, models)
    return MaskKinds()


def _models_of(module: ModuleType, config: type) -> list[Any]:
    """The models of a module that have this configuration; all of its models if none says so."""
    from transformers.modeling_utils import PreTrainedModel

    found = [m for m in vars(module).values() if inspect.isclass(m) and issubclass(m, PreTrainedModel)]
    found = [m for m in found if m.__module__ == module.__name__]
    return [m for m in found if m.__dict__.get("config_class") is config] or found


def _kinds_in(module: ModuleType, models: list[Any]) -> MaskKinds:
    try:
        text = inspect.getsource(module)
    except (OSError, TypeError):
        return MaskKinds()
    if not all(model._can_set_attn_implementation() for model in models):
        if any(name.endswith("_ATTENTION_CLASSES") and NAME in classes for name, classes in vars(module).items()):
            return MaskKinds()  # (`transformers_classes` replaces their layers)
        note = (
            f"{module.__name__.rpartition('.')[2].removeprefix('modeling_')} has attention of its own, which "
            "attn_implementation='neptune_lab' does not replace: its layers run as under 'eager'"
        )
        return MaskKinds(own=note)
    made_for_sdpa = all(getattr(model, "_supports_sdpa", False) for model in models)
    bools = made_for_sdpa or module.__name__.rpartition(".")[2] in _CAPS_AND_SINKS
    layers = [part for part in re.split(r"^class ", text, flags=re.MULTILINE)[1:] if _INTERFACE in part]
    # `attention_forward` reads a mask of None by what the layer says of itself.  So a causal mask may be None only if
    # every layer says whether it is causal, and a mask that hides nothing only if no layer is causal whatever it is
    # given.  Code that compares the name with "sdpa" takes care of a None only under that name.  A module without such
    # layers makes masks for those of another, which says nothing of them.
    told = _TELLS_CAUSAL.search(text) is not None
    says = all(_SAYS_CAUSAL.search(part) or (told and "is_causal" in part) for part in layers)
    skipped = bools and bool(layers) and says and not _BY_NAME.search(text)
    return MaskKinds(bools, skipped, whole=not any("self.is_causal = True" in part for part in layers))


__all__ = ["MaskKinds", "interface_mask", "mask_kinds", "none_is_causal"]
