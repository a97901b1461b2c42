"""Runs notebooks on a GPU, and puts the results into this repository.

On the machine with the GPU (nbclient, ipykernel, plotly and TVM are there, a browser is not):

    python scripts/record_gpu.py -o FOLDER            # 06_gpu; or name others

writes the executed notebooks, and the measurements of their cells to recorded/*.json.  Then, in a checkout after
`make setup`:

    python scripts/record_gpu.py --keep FOLDER

removes output that is specific to that machine, draws the figures as SVG, and copies notebooks and records to
notebooks/.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from neptune_lab.files import write_bytes, write_text

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
RECORDED = "recorded"
CELL_SECONDS = 600


class NotRecorded(Exception):
    """Nothing was recorded or kept; the text says why."""


def record(names: Sequence[str], out: Path, command: str, notebooks: Path = NOTEBOOKS) -> list[Path]:
    """Executes copies of notebooks in `out`; their measurements are written to out/recorded.

    Args:
        names: of the notebooks, without their ending.
        command: the command that the records name.

    Raises:
        NotRecorded: there is no GPU, or no such notebook.
        nbclient.exceptions.CellExecutionError: a cell failed; the notebook is written up to that cell.
    """
    import nbformat
    from nbclient import NotebookClient

    from neptune_lab.runtime import has_gpu

    if not has_gpu():
        raise NotRecorded("there is no GPU here")
    for name in names:
        if not (notebooks / f"{name}.ipynb").is_file():
            raise NotRecorded(f"there is no notebook {name!r}")
    out.mkdir(parents=True, exist_ok=True)
    made = []
    for name in names:
        notebook = nbformat.read(notebooks / f"{name}.ipynb", as_version=4)
        client = NotebookClient(
            notebook,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(out)}},
        )
        target = out / f"{name}.ipynb"
        try:
            client.execute(env=environment(command))
        finally:
            write_text(target, nbformat.writes(notebook).rstrip("\n") + "\n")
        made.append(target)
    return made


def environment(command: str) -> dict[str, str]:
    """The kernel's variables: this checkout on its path, and the command for the records."""
    from neptune_widgets.course.measured import RECORDING

    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(ROOT), str(ROOT / "widgets"), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": path, RECORDING: command}


def keep(folder: Path, notebooks: Path = NOTEBOOKS) -> list[Path]:
    """Puts executed notebooks and their records into `notebooks`, cleaned and with their figures drawn.

    Raises:
        NotRecorded: nothing to keep, a notebook that failed, or one whose source has changed since.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    import nbformat

    write_clean = import_module("notebook_checks").write_clean
    found = sorted(folder.glob("*.ipynb"))
    if not found:
        raise NotRecorded(f"{folder} holds no notebook")
    executed = {path.name: nbformat.read(path, as_version=4).cells for path in found}
    for name, cells in executed.items():
        _demand_whole(name, cells)
        here = nbformat.read(notebooks / name, as_version=4).cells
        if [cell.source for cell in here] != [cell.source for cell in cells]:
            raise NotRecorded(f"{name} was changed since it was recorded: record it again")
    for name, cells in executed.items():
        for cell in cells:
            if cell.cell_type == "code":
                cell.outputs = [out for out in cell.outputs if not _passing(out)]
        write_clean(notebooks / name, cells)
    for path in sorted((folder / RECORDED).glob("*.json")):
        write_bytes(notebooks / RECORDED / path.name, path.read_bytes(), parents=True)
    return [notebooks / name for name in executed]


def _demand_whole(name: str, cells: Sequence[Any]) -> None:
    """Every cell ran, and none failed or complained."""
    for cell in cells:
        for out in cell.get("outputs", ()):
            if out.output_type == "error":
                raise NotRecorded(f"{name} failed with {out.ename}: {out.evalue}\n{cell.source}")
            if out.get("name") == "stderr":
                raise NotRecorded(f"{name} wrote to standard error: {out.text}\n{cell.source}")
        if cell.cell_type == "code" and not cell.execution_count:
            raise NotRecorded(f"{name} was not run to its end; this cell was not:\n{cell.source}")


def _passing(out: Any) -> bool:
    """Whether an output was only for the running cell: a live widget, or a line of status that was emptied."""
    data = out.get("data", {})
    live = "application/vnd.jupyter.widget-view+json" in data
    return live or (bool(data) and not any(str(form).strip() for form in data.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebooks", nargs="*", default=["06_gpu"], help="names (default: 06_gpu)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--out", type=Path, help="run the notebooks on the GPU and write them to this folder")
    where.add_argument("--keep", type=Path, help="take executed notebooks and records from this folder")
    given = parser.parse_args(arguments)
    try:
        if given.keep:
            made = keep(given.keep)
        else:
            said = shlex.join(["python", "scripts/record_gpu.py", *given.notebooks])  # without a folder of this machine
            made = record(given.notebooks, given.out, f"{said} -o FOLDER")
    except NotRecorded as why:
        print(f"nothing recorded: {why}", file=sys.stderr)
        return 1
    print("\n".join(str(path) for path in made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
