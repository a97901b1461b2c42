"""Measurement bundles: writes kernels to time on a machine without this compiler, and collects the results."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import neptune_lab.runtime
from neptune_lab.errors import MeasureError, NeptuneError
from neptune_lab.files import write_bytes, write_text
from neptune_lab.pipeline import Choice, compile_choice
from neptune_lab.records import Record, Store, best
from neptune_lab.runtime.bundle import SCHEMA, read_entry, read_manifest, read_results
from neptune_lab.runtime.task import Task
from neptune_lab.strict.console import shown
from neptune_lab.strict.files import shown_path
from neptune_lab.target import GPUS, Target
from neptune_lab.tuning.measuring import record_of, source_hash, task_of
from neptune_lab.tuning.tune import default_search

if TYPE_CHECKING:
    from neptune_lab.operators import Operator

_RUN = '''"""Measures the kernels of this bundle on the GPU here; needs torch, Triton and NumPy.

    python run.py              writes results.json; started again, it resumes
    python run.py --help       lists its options
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "lib"))

from neptune_lab.runtime.bundle import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(HERE))
'''

_COMMAND = "neptune-lab bundle"

Choices = Mapping["Operator", Sequence[Choice]]


def chosen(op: Operator, count: int | None, tuned: bool, device: str, seed: int = 0) -> list[Choice]:
    """Candidates of an operator for a bundle: those that the tuner would try first, or the best one in the records.

    Args:
        count: how many; None: the default of `compile`, or with `tuned` the best of the records.
        device: torch's name of the GPU whose records are used, or for which candidates are chosen.

    Raises:
        MeasureError: `tuned`, and there is no record of the operator on the device; or not, and the device is no
            known GPU.
    """
    if tuned:
        record = best(op, device)
        if record is None:
            raise MeasureError(
                f"there is no record of {op.name} with these sizes on {device}",
                help="tune it first: nl.tune(op), or omit --tuned",
            )
        return [Choice.from_json(record.candidate, "the tuning record")]
    target = Target.known(device)
    if target is None:
        raise MeasureError(
            f"device={shown(device)}: not a GPU whose figures are known",
            help=f"one of {', '.join(GPUS)}; or tune on it",
        )
    return [Choice()] if count is None else [*default_search(op, target, seed).ask(count)]


def write_bundle(choices: Choices, folder: str | Path, *, target: Target | None = None, seed: int = 0) -> Path:
    """Writes a bundle; `python DIR/run.py` measures it on a GPU machine, and `collect` reads the results.

    Args:
        choices: for each operator the candidates to measure; `Choice()` is the default of `compile`.
        folder: to write, new or empty.
        target: the GPU that code is emitted for, as for `compile`.
        seed: of the drawn inputs.

    Raises:
        MeasureError: the path is a file's, the folder holds files already, or no candidate of an operator compiles.
        FileError: a file cannot be written; the folder has no manifest then, and is no bundle.
    """
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise MeasureError(f"{root} is a file, and a bundle is a folder", help="give the path of a new folder")
    if root.exists() and any(root.iterdir()):
        raise MeasureError(f"{root} is not empty", help="give a new folder, or remove it first")
    entries = [_entry(root, n, op, candidates, target, seed) for n, (op, candidates) in enumerate(choices.items())]
    manifest = {"schema": SCHEMA, "made_by": f"neptune_lab {neptune_lab.__version__}", "entries": entries}
    write_text(root / "run.py", _RUN)
    _copy_runtime(root / "lib")
    # The last file: a folder with a manifest is a whole bundle.
    write_text(root / "manifest.json", json.dumps(manifest, indent=1) + "\n")
    return root


def _copy_runtime(lib: Path) -> None:
    """Copies the runtime and the checks of its inputs, with what they import of the package."""
    runtime = Path(neptune_lab.runtime.__file__).parent
    package = lib / "neptune_lab"
    names = ("__init__.py", "collector.py", "errors.py", "files.py", "hashed.py", "scalar_ops.py", "tensor_spec.py")
    own = [runtime.parent / name for name in names]
    for path in (*own, *sorted(runtime.rglob("*.py")), *sorted((runtime.parent / "strict").rglob("*.py"))):
        write_bytes(package / path.relative_to(runtime.parent), path.read_bytes(), parents=True)


def _entry(
    root: Path, number: int, op: Operator, candidates: Sequence[Choice], target: Target | None, seed: int
) -> dict[str, Any]:
    task = task_of(op, seed=seed)
    name = f"{number:02d}_{op.name}"
    sizes = "_".join(f"{k}{v}" for k, v in op.params.items() if isinstance(v, int) and not isinstance(v, bool))
    kernels = _kernels(root, name, op, candidates, target)
    return {
        "name": f"{name} {sizes}".strip(),
        "operator": op.name,
        "title": op.title,
        "params": op.params,
        "task": task.to_json(),
        "values": _write_values(root, name, task),
        "kernels": kernels,
    }


def _write_values(root: Path, name: str, task: Task) -> str | None:
    if not task.values:
        return None
    # NumPy's files have no bfloat16: its bits are saved, and the definition has the dtype.
    plain = {n: a.view(np.uint16) if a.dtype.name == "bfloat16" else a for n, a in task.values.items()}
    file = f"values/{name}.npz"
    packed = io.BytesIO()
    np.savez(packed, **plain)  # pyright: ignore[reportArgumentType]
    write_bytes(root / file, packed.getvalue(), parents=True)
    return file


def _kernels(
    root: Path, name: str, op: Operator, candidates: Sequence[Choice], target: Target | None
) -> list[dict[str, Any]]:
    """The manifest's rows of every candidate that compiles; equal sources are written once."""
    made: dict[str, dict[str, Any]] = {}
    refusal = "there are no candidates"
    for candidate in candidates:
        try:
            kernel = compile_choice(op, candidate, target=target)
        except NeptuneError as error:
            refusal = error.reason
            continue
        spec, digest = kernel.spec, source_hash(kernel.source)
        if digest in made:
            continue
        file = f"kernels/{name}_{len(made):03d}.py"
        write_text(root / file, kernel.source, parents=True)
        made[digest] = {
            "file": file,
            "name": spec.name,
            "entry": spec.entry,
            "source": digest,
            "candidate": candidate.to_json(),
        }
    if not made:
        raise MeasureError(
            f"no candidate of {op.name} compiles: {refusal}",
            help="omit --candidates, to bundle the choice of nl.compile(op)",
        )
    return list(made.values())


def collect(folder: str | Path, store: Store | None = None, results: str | Path | None = None) -> tuple[Record, ...]:
    """Adds a bundle's results to the records; returns them in the manifest's order.

    Args:
        folder: the bundle's.
        store: where records are kept; None: the user's own file.
        results: the file that `run.py` wrote; None: results.json in the folder.

    Raises:
        MeasureError: no bundle, or no results, there.
    """
    root = Path(folder)
    facts, measured = read_results(Path(results) if results else root / "results.json")
    records = []
    for data in read_manifest(root):
        entry = read_entry(root, data)
        for kernel in data.kernels:
            if kernel.file not in measured:
                continue
            text = entry.kernels[kernel.file].text
            if source_hash(text) != kernel.source:
                raise MeasureError(
                    f"{shown_path(root)}: {kernel.file} is not the kernel that the manifest describes",
                    help="write the bundle again, and measure it",
                )
            about, candidate = (data.operator, data.params), kernel.candidate.to_json()
            records.append(record_of(about, entry.task, candidate, text, facts, measured[kernel.file], _COMMAND))
    (store or Store()).put(*records)
    return tuple(records)
