"""From PyTorch: `attention` takes FlexAttention's arguments, eagerly, inside torch.compile and in CUDA graphs."""

from neptune_lab.pytorch.flex_attention import attention

__all__ = ["attention"]
