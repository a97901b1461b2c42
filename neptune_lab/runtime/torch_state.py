"""What is active in torch around a call, each by one function of C: transforms, modes, a trace, the current GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_C: Any = torch._C

# The innermost transform of torch.func, or None.
transform: Callable[[], Any] = _C._functorch.peek_interpreter_stack
# The number of modes that see every operator.
modes: Callable[[], int] = _C._len_torch_dispatch_stack
# The state of torch.jit.trace, or None.
tracing: Callable[[], Any] = _C._get_tracing_state
# The index of the current GPU.
current_gpu: Callable[[], int] = getattr(_C, "_cuda_getDevice", torch.cuda.current_device)

__all__ = ["current_gpu", "modes", "tracing", "transform"]
