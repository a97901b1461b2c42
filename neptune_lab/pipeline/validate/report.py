"""The result of validation: a line for the record, or an error with a script that repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neptune_lab.choice import CodeOptions
from neptune_lab.errors import FileError, ValidationError
from neptune_lab.hashed import digest_of, full_text
from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Validated:
    """What was compared with the definition.

    Args:
        mode: "quick", "full" or "none".
        stages: the forms of the program that were run: "loops", "tiles", "Triton".
        data: the kinds of inputs.
        sizes: the shapes of the inputs; "" if nothing was run.
        note: why something was not run; "" if everything was.
    """

    mode: str
    stages: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    sizes: str = ""
    note: str = ""

    def __repr__(self) -> str:
        return f"<Validated: {self}>"

    def __str__(self) -> str:
        if not self.stages:
            return f"not validated{f': {self.note}' if self.note else ''}"
        what = f"validated ({self.mode}): {', '.join(self.stages)} against the definition at {self.sizes}"
        data = f", on {len(self.data)} kinds of data" if len(self.data) > 1 else f", on {', '.join(self.data)}"
        return what + data + (f"; {self.note}" if self.note else "")


def shapes_of(definition: Program) -> str:
    """The shapes of the inputs, as a line.

    >>> shapes_of(Program("f", (), (), (), ()))
    ''
    """
    return ", ".join(f"{name}[{', '.join(map(str, definition.buffer(name).shape))}]" for name in definition.inputs)


def failed(
    stage: str, scheduled: Schedule, code: CodeOptions, kind: str, inputs: Mapping[str, np.ndarray], what: str
) -> ValidationError:
    """The error, after its script was written."""
    definition = scheduled.definition
    path = _written(script(scheduled, code, inputs, stage), definition.name)
    where = f"\n  repeat it with: python {path}" if path is not None else ""
    return ValidationError(
        f"{definition.name}: {stage} differs from the definition at {shapes_of(definition)}, on {kind}: {what}{where}",
        node=stage,
        help="this is a mistake of the compiler, please report it with that script; another template, "
        'or validate="none", goes on without this check',
        stage=stage,
        script=None if path is None else str(path),
    )


def script(scheduled: Schedule, code: CodeOptions, inputs: Mapping[str, np.ndarray], stage: str) -> str:
    """A Python file that compiles the same program and compares it on the same inputs; it needs neptune_lab only."""
    arrays = "".join(
        f"    {name!r}: np.array({np.asarray(a).tolist()!r}, dtype={a.dtype.name!r}).reshape({a.shape}),\n"
        for name, a in inputs.items()
    )
    operator = scheduled.operator
    strides = {t.name: t.strides for t in (*operator.inputs, *operator.outputs) if t.strides is not None}
    layouts = f", {strides!r}" if strides else ""
    return (
        f'"""{scheduled.definition.name}: {stage} differs from the definition.  Written by neptune_lab."""\n\n'
        "import numpy as np\n\n"
        "from neptune_lab.loop_ir.nodes import *\n"
        "from neptune_lab.loop_ir.nodes import Block, Buffer, Cast, Const, Iter, Load, Loop, Op, Program, Store, Var\n"
        "from neptune_lab.loop_ir.roles import RepairInfo, Role\n"
        "from neptune_lab.choice import CodeOptions\n"
        "from neptune_lab.pipeline.validate import repeat\n\n"
        'inf, nan = float("inf"), float("nan")\n\n'
        f"definition = {full_text(scheduled.definition)}\n\n"
        f"steps = r'''{scheduled.to_json()}'''\n\n"
        f"inputs = {{\n{arrays}}}\n\n"
        f"repeat(definition, steps, {code!r}, inputs{layouts})\n"
    )


def _written(text: str, name: str) -> Path | None:
    """The file's path; None if it cannot be written."""
    from neptune_lab.files import write_text
    from neptune_lab.runtime import cache_directory

    digest = digest_of(text)[:12]
    path = cache_directory() / "validation" / f"{name}_{digest}.py"
    try:
        return write_text(path, text, parents=True)
    except FileError:
        return None
