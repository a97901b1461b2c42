"""A type checker finds wrong options: the options of compile are typed fields and arguments, not `**options`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import neptune_lab

# Each line that ends in a comment with a rule of pyright has that error, and no other line has one.
PROGRAM = """\
import neptune_lab as nl

op = nl.operators.attention.causal(seq=64)
nl.TileConfig(block_q=64, num_warps=(4, None))
nl.TileConfig(blok_q=64)  # reportCallIssue
nl.TileConfig(block_q="64")  # reportArgumentType
nl.TileConfig(splits=2)  # reportCallIssue
nl.SplitKConfig(splits=(2, None), block_q=64)
nl.CodeOptions(loads="descriptors", interleave=2)
nl.CodeOptions(loads="descriptor")  # reportArgumentType
nl.CodeOptions(interleave=3)  # reportArgumentType
nl.CodeOptions(num_warps=8)  # reportCallIssue
nl.compile(op, "rolling_update", block_q=64, config=nl.TileConfig(num_warps=8), code=nl.CodeOptions(code="gluon"))
nl.compile(op, num_warps=8)  # reportCallIssue
nl.compile(op, config=nl.CodeOptions())  # reportArgumentType
nl.compile(op, tuned="yes")  # reportArgumentType
kernel: nl.Kernel = nl.compile(op)
"""


@pytest.mark.nightly
def test_a_wrong_option_is_a_type_error(tmp_path: Path):
    root = Path(neptune_lab.__file__).parents[1]
    program = tmp_path / "options.py"
    program.write_text(PROGRAM)
    settings = {
        "extraPaths": [str(root), str(root / "widgets")],
        "typeCheckingMode": "basic",
        "include": ["options.py"],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = {n: line.rpartition("# ")[2] for n, line in enumerate(PROGRAM.splitlines()) if "  # " in line}
    assert {error["range"]["start"]["line"]: error["rule"] for error in found} == wrong
