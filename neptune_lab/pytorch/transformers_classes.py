"""Layers for models of `transformers` that choose a class by the name of the implementation.

Most models look up a function (`transformers_attention`).  Some have a dict of classes of their own, and raise a
KeyError for a name that is not in it.  They get a class under our name that is the eager one but for its attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from neptune_lab.pytorch import transformers_attention
from neptune_lab.pytorch.transformers_arguments import NAME, refuse_others


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
            def forward(self, *args: Any, **given: Any) -> Any:
                refuse_others(self, 0.0, {"output_attentions": given.get("output_attentions")})
                return super().forward(*args, **given)

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


def _of_falcon(eager: Any) -> Any:
    """Falcon's layer.  ALiBi is in the mask that its model makes, as sdpa's layer takes it; eager's adds it twice."""

    class Attention(eager):
        def forward(
            self,
            hidden_states: torch.Tensor,
            alibi: torch.Tensor | None,
            attention_mask: torch.Tensor | None,
            position_ids: torch.Tensor | None = None,
            layer_past: Any = None,
            use_cache: bool = False,
            output_attentions: bool = False,
            position_embeddings: Any = None,
            **others: Any,
        ) -> tuple[torch.Tensor, None]:
            query, key, value = (t.transpose(1, 2) for t in self._split_heads(self.query_key_value(hidden_states)))
            if alibi is None:
                rotated = import_module(eager.__module__).apply_rotary_pos_emb
                query, key = rotated(query, key, *position_embeddings)
            if layer_past is not None:
                key, value = layer_past.update(key, value, self.layer_idx)
            # (its layers with rotary positions have no dropout)
            dropout = self.attention_dropout.p if self.training and alibi is not None else 0.0
            given: Any = {"output_attentions": output_attentions}
            out, _ = transformers_attention.attention_forward(
                self, query, key, value, attention_mask, self.inv_norm_factor, dropout, **given
            )
            return self.dense(out.flatten(2)), None

    return Attention


def _of_captions(eager: Any) -> Any:
    """GIT's layer: its model makes one mask, of floats, for images and tokens."""

    class Attention(eager):
        def forward(
            self,
            hidden_states: torch.Tensor,
            attention_mask: torch.Tensor | None = None,
            past_key_values: Any = None,
            **others: Any,
        ) -> tuple[torch.Tensor, None]:
            query, key, value = _projected(self, hidden_states, hidden_states)
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, self.layer_idx)
            return _attended(self, query, key, value, attention_mask, bool(others.get("output_attentions")))

    return Attention


def _of_points(eager: Any) -> Any:
    """SuperGlue's layer, among the points of an image and between those of two."""

    class Attention(eager):
        def forward(
            self,
            hidden_states: torch.Tensor,
            attention_mask: torch.Tensor | None = None,
            encoder_hidden_states: torch.Tensor | None = None,
            encoder_attention_mask: torch.Tensor | None = None,
            output_attentions: bool = False,
        ) -> tuple[torch.Tensor, None]:
            states, mask = hidden_states, attention_mask
            if encoder_hidden_states is not None:
                states, mask = encoder_hidden_states, encoder_attention_mask
            query, key, value = _projected(self, hidden_states, states)
            return _attended(self, query, key, value, mask, output_attentions)

    return Attention


def _of_patches(eager: Any) -> Any:
    """Data2Vec's layer of images: the layer's biases of positions and the model's are added to the scores."""

    class Attention(eager):
        def forward(
            self,
            hidden_states: torch.Tensor,
            output_attentions: bool = False,
            relative_position_bias: torch.Tensor | None = None,
            interpolate_pos_encoding: bool = False,
            resolution: Any = None,
        ) -> tuple[torch.Tensor, None]:
            bias = relative_position_bias
            if self.has_relative_position_bias:
                window = tuple(size // self.config.patch_size for size in resolution)
                own = self.relative_position_bias(window, interpolate_pos_encoding, dim_size=hidden_states.shape[1])
                bias = own if bias is None else own + bias
            query, key, value = _projected(self, hidden_states, hidden_states)
            return _attended(self, query, key, value, bias, output_attentions)

    return Attention


def _projected(layer: Any, hidden: torch.Tensor, states: torch.Tensor) -> list[torch.Tensor]:
    """Queries of the hidden states, and keys and values of `states`: (batch, heads, length, head_dim)."""
    pairs = ((layer.query, hidden), (layer.key, states), (layer.value, states))
    sizes = layer.num_attention_heads, layer.attention_head_size
    return [project(of).unflatten(-1, sizes).transpose(1, 2) for project, of in pairs]


def _attended(
    layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, output_attentions: bool
) -> tuple[torch.Tensor, None]:
    """The results of all heads side by side, and None in place of the weights."""
    dropout = layer.dropout.p if layer.training else 0.0
    given: Any = {"output_attentions": output_attentions}
    out, _ = transformers_attention.attention_forward(
        layer, query, key, value, mask, layer.attention_head_size**-0.5, dropout, is_causal=False, **given
    )
    return out.flatten(2), None


def _with_table(table: torch.Tensor | None, mask: torch.Tensor | None, q_len: int, kv_len: int) -> Any:
    """The mask, and what a layer's table of the keys that each query sees hides: such tables are causal."""
    if table is None:
        return mask
    seen = table[:, :, kv_len - q_len : kv_len, :kv_len]
    if mask is None:
        return seen
    return seen & mask if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)


# By the names of a model, or its module, and of the dict: the class under our name, made of the eager one.
_MAKERS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("data2vec.modeling_data2vec_vision", "DATA2VEC_VISION_SELF_ATTENTION_CLASSES"): _of_patches,
    ("falcon", "FALCON_ATTENTION_CLASSES"): _of_falcon,
    ("git", "GIT_SELF_ATTENTION_CLASSES"): _of_captions,
    ("superglue", "SUPERGLUE_SELF_ATTENTION_CLASSES"): _of_points,
    ("bark", "BARK_ATTENTION_CLASSES"): _of_tokens(lambda layer: 1 / math.sqrt(layer.head_dim)),
    ("gpt_neo", "GPT_NEO_ATTENTION_CLASSES"): _of_tokens(lambda _: 1.0),
    ("gptj", "GPTJ_ATTENTION_CLASSES"): _of_tokens(lambda layer: 1 / float(layer.scale_attn)),
    ("sam", "SAM_VISION_ATTENTION_CLASSES"): _of_images,
    ("sam_hq", "SAM_HQ_VISION_ATTENTION_CLASSES"): _of_images,
    ("deepseek_ocr2", "DEEPSEEK_OCR2_SAM_VISION_ATTENTION_CLASSES"): _of_images,
    ("unlimited_ocr", "UNLIMITED_OCR_SAM_VISION_ATTENTION_CLASSES"): _of_images,
}


def module_name(model: str) -> str:
    """The module of a key of `_MAKERS`."""
    return f"transformers.models.{model if '.' in model else f'{model}.modeling_{model}'}"


def register_classes() -> None:
    """Adds our classes to the dicts of the models that the installed `transformers` has."""
    for (model, name), made in _MAKERS.items():
        try:
            module = import_module(module_name(model))
        except ImportError:  # another version
            continue
        classes = getattr(module, name, {})
        if "eager" in classes and NAME not in classes:
            classes[NAME] = made(classes["eager"])


__all__ = ["register_classes"]
