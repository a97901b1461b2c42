"""Layers for models of `transformers` that choose a class by the name of the implementation.

Most models look up a function (`transformers_attention`).  Some have a dict of classes of their own, and raise a
KeyError for a name that is not in it.  Those of which the class computes its scores in a method, or as SAM's layers
do, get a class under our name that is the eager one but for its attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from neptune_lab.pytorch import transformers_attention
from neptune_lab.pytorch.transformers_arguments import NAME


def _of_images(eager: Any) -> Any:
    """SAM's layer of images: positions of rows and columns are a bias, which depends on the queries."""

    class Attention(eager):
        def forward(self, hidden_states: torch.Tensor, output_attentions: bool = False) -> tuple[torch.Tensor, None]:
            batch, height, width, _ = hidden_states.shape
            heads, places = self.num_attention_heads, height * width
            qkv = self.qkv(hidden_states).reshape(batch, places, 3, heads, -1).permute(2, 0, 3, 1, 4)
            query, key, value = qkv.unbind(0)
            bias = None
            if self.use_rel_pos:
                size = height, width
                flat = query.reshape(batch * heads, places, -1)
                bias = self.get_decomposed_rel_pos(flat, self.rel_pos_h, self.rel_pos_w, size, size)
                bias = bias.reshape(batch, heads, places, places)
            given: Any = {"output_attentions": output_attentions}
            dropout = self.dropout if self.training else 0.0
            out, _ = transformers_attention.attention_forward(
                self, query, key, value, None, self.scale, dropout, is_causal=False, position_bias=bias, **given
            )
            return self.proj(out.reshape(batch, height, width, -1)), None

    return Attention


def _of_tokens(scaling: Callable[[Any], float]) -> Callable[[Any], Any]:
    """The class of a layer whose method computes the scores; `scaling` gives their factor."""

    def made(eager: Any) -> Any:
        class Attention(eager):
            def _attn(
                self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None
            ) -> tuple[torch.Tensor, None]:
                mask = _with_table(getattr(self, "bias", None), attention_mask, query.shape[2], key.shape[2])
                dropout = self.attn_dropout.p if self.training else 0.0
                query, key = query.to(value.dtype), key.to(value.dtype)  # (some compute in float32, as kernels sum)
                out, _ = transformers_attention.attention_forward(
                    self, query, key, value, mask, scaling(self), dropout, is_causal=False
                )
                return out.transpose(1, 2), None

        return Attention

    return made


def _with_table(table: torch.Tensor | None, mask: torch.Tensor | None, q_len: int, kv_len: int) -> Any:
    """The mask, and what a layer's table of the keys that each query sees hides: such tables are causal."""
    if table is None:
        return mask
    seen = table[:, :, kv_len - q_len : kv_len, :kv_len]
    if mask is None:
        return seen
    return seen & mask if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)


# By the names of a model and of its dict: the class under our name, made of the eager one.
_MAKERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("bark", "BARK_ATTENTION_CLASSES"): _of_tokens(lambda layer: 1 / math.sqrt(layer.head_dim)),
    ("gpt_neo", "GPT_NEO_ATTENTION_CLASSES"): _of_tokens(lambda _: 1.0),
    ("gptj", "GPTJ_ATTENTION_CLASSES"): _of_tokens(lambda layer: 1 / float(layer.scale_attn)),
    ("sam", "SAM_VISION_ATTENTION_CLASSES"): _of_images,
    ("sam_hq", "SAM_HQ_VISION_ATTENTION_CLASSES"): _of_images,
    ("deepseek_ocr2", "DEEPSEEK_OCR2_SAM_VISION_ATTENTION_CLASSES"): _of_images,
    ("unlimited_ocr", "UNLIMITED_OCR_SAM_VISION_ATTENTION_CLASSES"): _of_images,
}


def register_classes() -> None:
    """Adds our classes to the dicts of the models that the installed `transformers` has."""
    for (model, name), made in _MAKERS.items():
        try:
            module = import_module(f"transformers.models.{model}.modeling_{model}")
        except ImportError:  # another version
            continue
        classes = getattr(module, name, {})
        if "eager" in classes and NAME not in classes:
            classes[NAME] = made(classes["eager"])


__all__ = ["register_classes"]
