"""The text of an exported module: the kernel's module, which first looks for a device that can run it."""

from __future__ import annotations

import ast

_NO_DEVICE = """
# Triton itself would say "0 active drivers".
NO_DEVICE = not {found}
"""
_CHECK = """\
    if NO_DEVICE:
        raise RuntimeError("{name} needs a GPU{hint}")
"""
_HINT = "; without one, set TRITON_INTERPRET=1 before Python starts"


def exported(text: str, entry: str) -> str:
    """A module's text with a check in its entry function.

    Args:
        text: the module, which imports torch and Triton at its top.
        entry: the name of its entry function, which has a docstring.

    Returns:
        The text. Without a GPU, and without Triton's interpreter, the function raises a RuntimeError that says so.
    """
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
    return "".join(
        [
            *lines[:after_imports],
            _NO_DEVICE.format(found=found),
            *lines[after_imports:after_docstring],
            _CHECK.format(name=entry, hint=_HINT if interpreted else ""),
            *lines[after_docstring:],
        ]
    )
