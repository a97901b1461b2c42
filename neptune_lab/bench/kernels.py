"""Our kernels: compiled here, or read from a directory that was written on a machine with TVM.

The directory holds one file for each distinct kernel (it needs only torch and Triton) and manifest.json, which has the
file and function of each setup and variant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from neptune_lab.bench.ablation import Variant
from neptune_lab.bench.setups import Setup
from neptune_lab.errors import MeasureError, NeptuneError
from neptune_lab.files import write_text
from neptune_lab.hashed import digest_of
from neptune_lab.runtime import KernelSpec
from neptune_lab.runtime.spec import Ranges, TileLaunches
from neptune_lab.strict.console import shown
from neptune_lab.strict.files import MIB, inside, read_text, shown_path
from neptune_lab.strict.json_text import at_place, check_schema, field_of, read_json
from neptune_lab.strict.typed import OMIT_DEFAULT, Line, Name, Text, Words, pack, unpack
from neptune_lab.target import Target
from neptune_lab.tensor_spec import TensorSpec

SCHEMA = 1
MANIFEST = "manifest.json"
MOST_SOURCE = 4 * MIB

# Notes of kernels: one that `compile` chooses without a record and without the model, and one of a variant's own
# template and options, whose other sizes are the template's.
BY_SHAPE = "what the shape suggests"
OF_VARIANT = "the template's own tiles"


@dataclass(frozen=True)
class Compiled:
    """One of our kernels, ready to load, or the reason why there is none.

    Args:
        spec: the module and how it is called; None if it was refused.
        options: template and options that it was compiled with.
        note: what chose it, `BY_SHAPE` or `OF_VARIANT`, or the refusal.
    """

    spec: KernelSpec | None
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


Kernels = Callable[[Setup, Variant], Compiled]


def compiled(setup: Setup, variant: Variant, device: str | None = None) -> Compiled:
    """The setup's kernel, compiled now; needs TVM.

    Args:
        device: the GPU that it is compiled for, and whose tuning records are used, by its name; None: the local GPU.

    Raises:
        MeasureError: the device is not known.
    """
    from neptune_lab.pipeline import Choice, compile_choice, compile_chosen

    target = None if device is None else target_of(device)
    try:
        if variant.tuned is not None:
            choice, kernel = compile_chosen(setup.op, target, measured=variant.tuned)
            chosen = choice or Choice()
            options = {"template": chosen.template or "by shape", **chosen.options}
            return Compiled(kernel.spec, options, kernel.chosen or BY_SHAPE)
        choice = Choice.of(variant.template, variant.options, "the variant")
        kernel = compile_choice(setup.op, choice, target=target, validate="none")
    except NeptuneError as error:
        return Compiled(None, dict(variant.options), error.reason)
    return Compiled(kernel.spec, {"template": variant.template or "by shape", **variant.options}, OF_VARIANT)


def target_of(device: str) -> Target:
    """The GPU of this name; MeasureError if it is not known."""
    target = Target.known(device)
    if target is None:
        raise MeasureError(f"device {shown(device)} is no known GPU", help="such as 'NVIDIA H200'")
    return target


def export(
    pairs: Iterable[tuple[Setup, Variant]],
    directory: Path,
    kernels: Kernels = compiled,
    progress: Callable[[str], None] = lambda name: None,
) -> Path:
    """Writes the kernels of these setups and variants to a directory; the manifest's path.

    Raises:
        MeasureError: the path is a file's.
        FileError: a file cannot be written.
    """
    if directory.exists() and not directory.is_dir():
        raise MeasureError(f"{shown_path(directory)} is a file", help="give the path of a folder, which may be new")
    entries: dict[str, dict[str, Any]] = {}
    for setup, variant in pairs:
        progress(f"{setup.name}: {variant.name}")
        made = kernels(setup, variant)
        entry: dict[str, Any] = {"options": dict(made.options), "note": made.note}
        if made.spec is not None:
            digest = digest_of(made.spec.text)[:16]
            module = f"{made.spec.name}_{digest}.py"
            write_text(directory / module, made.spec.text, parents=True)
            said = {key: value for key, value in pack(made.spec).items() if key != "text"}
            entry |= {"module": module, "spec": said}
        entries.setdefault(setup.name, {})[variant.name] = entry
    path = directory / MANIFEST
    return write_text(path, json.dumps({"schema": SCHEMA, "kernels": entries}, indent=1) + "\n", parents=True)


@dataclass(frozen=True)
class Directory:
    """Kernels that `export` wrote, as a function of setup and variant.

    Args:
        path: the directory.
    """

    path: Path
    _kernels: Mapping[str, Mapping[str, _Kernel | _Refused]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        manifest = self.path / MANIFEST
        if not manifest.is_file():
            raise MeasureError(f"there is no {manifest}", help="neptune-lab bench --export-kernels writes one")
        name, help = shown_path(manifest), "neptune-lab bench --export-kernels writes them"
        record = read_json(manifest, MeasureError, help=help)
        check_schema(record, SCHEMA, name, "exported kernels", MeasureError, help=help)
        with at_place(name, MeasureError, help=help):
            listed = field_of(record, "kernels", "the file", MeasureError)
            kernels = unpack(listed, dict[str, dict[str, dict[str, Any]]], "kernels", MeasureError)
            entries = {
                setup: {
                    v: unpack(entry, _Kernel if "module" in entry else _Refused, f"kernels.{setup}.{v}", MeasureError)
                    for v, entry in variants.items()
                }
                for setup, variants in kernels.items()
            }
        object.__setattr__(self, "_kernels", entries)

    def __call__(self, setup: Setup, variant: Variant) -> Compiled:
        """The kernel, or a refusal if the directory has none."""
        entry = self._kernels.get(setup.name, {}).get(variant.name)
        if entry is None:
            return Compiled(None, {}, f"the kernels in {self.path.name} have none for it")
        if isinstance(entry, _Refused):
            return Compiled(None, entry.options, entry.note)
        text = read_text(inside(self.path, entry.module, MeasureError), MOST_SOURCE, MeasureError)
        said = entry.spec
        spec = KernelSpec(said.name, said.entry, text, said.inputs, said.outputs, said.ranges, said.tiles)
        return Compiled(spec, entry.options, entry.note)


@dataclass(frozen=True, slots=True)
class _Spec:
    name: Line
    entry: Name
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    ranges: Ranges = field(default=(), metadata=OMIT_DEFAULT)
    tiles: tuple[TileLaunches, ...] = field(default=(), metadata=OMIT_DEFAULT)


@dataclass(frozen=True, slots=True)
class _Kernel:
    options: dict[str, Any]
    note: Annotated[str, Words()]
    module: Annotated[str, Text(200)]
    spec: _Spec


@dataclass(frozen=True, slots=True)
class _Refused:
    options: dict[str, Any]
    note: Annotated[str, Words()]
