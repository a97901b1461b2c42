"""From PyTorch: `attention` takes FlexAttention's arguments, `scaled_dot_product_attention` those of torch's own."""

from neptune_lab.runtime.device import ask_for_interpreter

ask_for_interpreter()  # before the imports below, since torch.compile's modules import Triton

from neptune_lab.pytorch.flex_attention import attention  # noqa: E402
from neptune_lab.pytorch.paged import paged_attention  # noqa: E402
from neptune_lab.pytorch.sdpa import scaled_dot_product_attention  # noqa: E402
from neptune_lab.pytorch.transformers_attention import register_attention  # noqa: E402

__all__ = ["attention", "paged_attention", "register_attention", "scaled_dot_product_attention"]
