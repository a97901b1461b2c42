"""The text of an exported module: the kernel's module, which first looks for a device that can run it and at its
arguments, which nothing else checks there."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neptune_lab.runtime.spec import KernelSpec
    from neptune_lab.tensor_spec import TensorSpec

_NO_DEVICE = """
# Triton itself would say "0 active drivers".
{no_device} = not {found}


def {expect}(sizes, device, name, given, dtype, shape, strides):
    \"\"\"Raises an error unless a kernel reads the tensor as it lies in memory.

    Args:
        sizes: by name, those that the tensors before have; the tensor's are added.
        device: of the first tensor.
        shape: numbers, or names of sizes.
        strides: numbers, or (factor, name of a size); None: the tensor is contiguous.
    \"\"\"
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"{{name}} is of type {{type(given).__name__}}; expected a torch.Tensor")
    if given.dtype != dtype:
        raise TypeError(f"{{name}} has dtype {{given.dtype}}; expected {{dtype}}: give {{name}}.to({{dtype}})")
    fits = given.dim() == len(shape)
    for extent, own in zip(shape, given.shape):
        fits = fits and own == (sizes.setdefault(extent, own) if isinstance(extent, str) else extent)
    if not fits:
        known = f" with {{sizes}}" if sizes else ""
        raise ValueError(f"{{name}} has shape {{tuple(given.shape)}}; expected {{shape}}{{known}}")
    if given.device != device:
        raise ValueError(f"{{name}} is on {{given.device}}; expected {{device}}, where the first argument is")
    if strides is None:
        fits = given.is_contiguous()
    else:
        strides = [s[0] * sizes[s[1]] if isinstance(s, tuple) else s for s in strides]
        fits = all(size == 1 or own == s for size, own, s in zip(given.shape, given.stride(), strides))
    if not fits:
        expected = f"strides {{strides}}" if strides else f"a contiguous tensor: copy it with {{name}}.contiguous()"
        raise ValueError(f"{{name}} has strides {{given.stride()}}; expected {{expected}}")
    if given.is_neg():
        raise ValueError(f"the memory of {{name}} holds negated values: give {{name}}.resolve_neg()")
    if given.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{{name}} records gradients, and the kernel has no backward: give {{name}}.detach()")
"""
_CHECK = """\
    if {no_device}:
        raise RuntimeError("{name} needs a GPU{hint}")
"""
_HINT = "; without one, set TRITON_INTERPRET=1 before Python starts"


def exported(spec: KernelSpec) -> str:
    """A module's text with checks in its entry function.

    Args:
        spec: of a module that imports torch and Triton at its top, and whose entry function has a docstring.

    Returns:
        The text. Without a GPU, and without Triton's interpreter, the function raises a RuntimeError that says so; it
        raises a TypeError or a ValueError for arguments that the kernel would read wrongly.
    """
    text, entry = spec.text, spec.entry
    body = ast.parse(text).body
    available = "torch.accelerator.is_available()"
    interpreted = any(isinstance(s, ast.Import) and s.names[0].name == "triton" for s in body)  # Gluon never is
    found = f"(triton.knobs.runtime.interpret or {available})" if interpreted else available
    function = next(s for s in body if isinstance(s, ast.FunctionDef) and s.name == entry)
    imports = [s for s in body if isinstance(s, ast.Import | ast.ImportFrom)]
    lines = text.splitlines(keepends=True)
    after_imports, after_docstring = imports[-1].end_lineno, function.body[0].end_lineno
    assert after_imports is not None
    assert after_docstring is not None
    expect, sizes, no_device = (_unused(name, text) for name in ("_expect", "expected_sizes", "NO_DEVICE"))
    return "".join(
        [
            *lines[:after_imports],
            _NO_DEVICE.format(found=found, expect=expect, no_device=no_device),
            *lines[after_imports:after_docstring],
            _CHECK.format(name=entry, hint=_HINT if interpreted else "", no_device=no_device),
            *_expectations(spec, [argument.arg for argument in function.args.args], expect, sizes),
            *lines[after_docstring:],
        ]
    )


def _unused(name: str, text: str) -> str:
    """The name, or one with underscores behind it if the text of a module has it."""
    while name in text:
        name += "_"
    return name


def _expectations(spec: KernelSpec, arguments: Sequence[str], expect: str, found: str) -> list[str]:
    """Lines of the entry function that check its arguments with the function `expect`; `found` has their sizes."""
    first = f'getattr({arguments[0]}, "device", None)'
    made = [f"    {found} = {{}}\n"]
    for tensor, argument in zip(spec.inputs, arguments, strict=True):
        names = (tensor.sizes if spec.ranges else None) or ("",) * len(tensor.shape)
        shape = tuple(name or extent for name, extent in zip(names, tensor.shape, strict=True))
        expected = f"torch.{tensor.dtype}, {shape!r}, {_strides(tensor)!r}"
        made.append(f'    {expect}({found}, {first}, "{tensor.name}", {argument}, {expected})\n')
    for name, least, most in spec.ranges:
        made += [
            f'    if not {least} <= {found}["{name}"] <= {most}:\n',
            f'        raise ValueError(f"{name} is {{{found}[{name!r}]}}; expected {least} to {most}")\n',
        ]
    return made


def _strides(tensor: TensorSpec) -> tuple[int | tuple[int, str], ...] | None:
    """The strides of an input: numbers, or a factor and the name of a size; None: it is contiguous."""
    if tensor.strides is None:
        return None
    names, steps = tensor.sizes or (), tensor.steps or ("",) * len(tensor.strides)
    every = zip(tensor.strides, steps, strict=True)
    return tuple((s // tensor.shape[names.index(name)], name) if name else s for s, name in every)
