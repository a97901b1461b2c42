"""torch.autocast: the tensors of a call in the dtype of the region, as torch's own attention takes them."""

from __future__ import annotations

from typing import Any

import torch

# What autocast converts; float64 and 8 bits stay, as they do in torch.
_CONVERTED = torch.float16, torch.bfloat16, torch.float32
# The types of devices that kernels take; torch raises RuntimeError for those that have no autocast, such as "meta".
_DEVICES = "cpu", "cuda"


def under_autocast(*tensors: Any) -> tuple[Any, ...]:
    """The tensors, converted to the dtype of the autocast region of the first one's device, if it is in one.

    As for `torch.nn.functional.scaled_dot_product_attention` and FlexAttention, whose lists of operators hold attention
    among those of lower precision.  What is no tensor, or has another dtype, is returned as it is.
    """
    first = tensors[0]
    kind = first.device.type if isinstance(first, torch.Tensor) else None
    if kind not in _DEVICES or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(t.to(dtype) if isinstance(t, torch.Tensor) and t.dtype in _CONVERTED else t for t in tensors)
