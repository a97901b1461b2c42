"""From PyTorch: `attention` takes FlexAttention's arguments, eagerly, inside torch.compile and in CUDA graphs."""

from neptune_lab.runtime.device import ask_for_interpreter

ask_for_interpreter()  # before the imports below, since torch.compile's modules import Triton

from neptune_lab.pytorch.flex_attention import attention  # noqa: E402

__all__ = ["attention"]
