"""What is chosen for a kernel: a template, tile sizes, and options of code generation.

`autotune` ranks choices, `pipeline` compiles one, and `tuning` measures them.
"""

from neptune_lab.choice.choice import Choice
from neptune_lab.choice.given import NOTHING, Given
from neptune_lab.choice.options import CodeOptions

__all__ = ["NOTHING", "Choice", "CodeOptions", "Given"]
