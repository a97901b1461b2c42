"""Planted bugs: each file in `mutations/` changes one function of the compiler, and some check must find it.

`python -m fuzz.mutants` from tests/ plants each in a copy of the process and writes which check found it first to
docs/concepts/mutations.md: validation of a few operators (`BATTERY`), fuzz cases, or tests.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from fuzz.battery import fuzzed, validation
from neptune_lab.pipeline.validate import forget

FOLDER = Path(__file__).parent / "mutations"
ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "concepts" / "mutations.md"
# Tests that look at one thing closely; they run for what validation and the fuzzer do not find.
TESTS = (
    "tests/loop_schedule/test_alignment.py",
    "tests/loop_schedule/test_updates.py",
    "tests/loop_schedule/test_standard.py",
    "tests/loop_schedule/test_vanishing.py",
    "tests/loop_ir/test_sign.py",
    "tests/loop_to_htile",
    "tests/htile",
    "tests/triton",
    "tests/pipeline/test_numbers.py",
    "tests/pytorch/test_special_values.py",
)


@dataclass(frozen=True)
class Mutation:
    """`old` is `new` in `function`, which is "module:name" or "module:Class.name"; `why` says what is wrong then."""

    name: str
    why: str
    function: str
    old: str
    new: str

    @property
    def qualified(self) -> str:
        """The function's name in its module."""
        return self.function.partition(":")[2]

    @property
    def module(self) -> str:
        return self.function.partition(":")[0]

    def path(self) -> Path:
        """The file of the module."""
        stem = ROOT / Path(*self.module.split("."))
        return stem.with_suffix(".py") if stem.with_suffix(".py").is_file() else stem / "__init__.py"

    def source(self) -> str:
        """The module's text with the change.

        Raises:
            LookupError: the function, or the old text in it, is not there (or there twice).
        """
        text = self.path().read_text(encoding="utf-8")
        qualified = self.qualified
        body: list[ast.stmt] = ast.parse(text).body
        found: ast.stmt | None = None
        for part in qualified.split("."):
            kinds = (ast.FunctionDef, ast.ClassDef)
            found = next((s for s in body if isinstance(s, kinds) and s.name == part), None)
            if not isinstance(found, kinds):
                raise LookupError(f"{self.name}: {self.module} has no {qualified}")
            body = found.body
        assert found is not None
        lines = text.splitlines(keepends=True)
        start, stop = found.lineno - 1, found.end_lineno or found.lineno
        inner = "".join(lines[start:stop])
        if inner.count(self.old) != 1:
            count = inner.count(self.old)
            raise LookupError(f"{self.name}: {self.function} has the old text {count} times: {self.old}")
        return "".join(lines[:start]) + inner.replace(self.old, self.new) + "".join(lines[stop:])


def read(path: Path) -> Mutation:
    """The mutation of a file; its first line, a comment, says what is wrong."""
    text = path.read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return Mutation(path.stem, text.splitlines()[0].removeprefix("# "), data["function"], data["old"], data["new"])


def mutations() -> list[Mutation]:
    """All of them, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.toml"))]


def plant(mutation: Mutation) -> None:
    """From now on, the function computes what the mutation says, wherever it was imported to.

    Raises:
        LookupError: as `Mutation.source`.
    """
    code = _code_of(compile(mutation.source(), str(mutation.path()), "exec", dont_inherit=True), mutation.qualified)
    target: Any = importlib.import_module(mutation.module)
    for part in mutation.qualified.split("."):
        target = getattr(target, part)
    inspect.unwrap(target).__code__ = code  # the function behind a cache
    if hasattr(target, "cache_clear"):
        target.cache_clear()
    forget()  # what was compiled before says nothing about a compiler with a bug


def _code_of(module: CodeType, qualified: str) -> CodeType:
    """The code of a function or method of a compiled module."""
    waiting = [module]
    while waiting:
        code = waiting.pop()
        if code.co_qualname == qualified:
            return code
        waiting += [c for c in code.co_consts if isinstance(c, CodeType)]
    raise LookupError(f"there is no {qualified}")


def found_by(mutation: Mutation, cases: int, seconds: float, wanted: Sequence[str]) -> str:
    """The check, of those wanted, that finds the mutation: a few words, or "" where none does."""
    for name, check in (("validation", validation), ("fuzz", lambda: fuzzed(cases, seconds))):
        if name in wanted and (said := _in_a_fork(mutation, check)):
            return f"{name}: {said}"
    if "tests" not in wanted:
        return ""
    path = os.pathsep.join([str(ROOT), str(ROOT / "widgets"), str(ROOT / "tests")])
    env = {**os.environ, "NEPTUNE_MUTATION": mutation.name, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "fuzz.planted", *TESTS]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return f"tests: {failed[0].split(' ')[1]}" if failed else ""


def _in_a_fork(mutation: Mutation, check: Callable[[], str]) -> str:
    """What `check` says in a copy of this process with the mutation planted; a copy that dies has found it, too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "the process dies"
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            plant(mutation)
            said = check()
        finally:
            os.write(writer, said.encode()[:4000])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return said or ("the process dies" if status else "")


def table(rows: list[tuple[Mutation, str]]) -> str:
    """The page of the docs."""
    lines = [
        "# Planted bugs",
        "",
        f"{len(rows)} mutations of the compiler's own checks, passes and emitters, each in `tests/fuzz/mutations/`.",
        "Each is planted by itself. The table names the first check that finds it: [validation](validation.md) of some",
        "thirty operators as they are compiled, the fuzzer, or the tests. `cd tests && python -m fuzz.mutants` writes",
        "this page.",
        "",
        "| mutation | function | what is wrong | found by |",
        "| --- | --- | --- | --- |",
    ]
    for mutation, found in rows:
        function = mutation.function.removeprefix("neptune_lab.").replace(":", ".")
        shown = found.replace("|", "\\|")[:160] or "**nothing**"
        lines.append(f"| {mutation.name} | `{function}` | {mutation.why} | {shown} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Plants all, or those that are named; 0 where each was found."""
    parser = argparse.ArgumentParser("fuzz.mutants", description="Which check finds which planted bug.")
    parser.add_argument("names", nargs="*", help="mutations (default: all; then the page of the docs is written)")
    parser.add_argument("--cases", type=int, default=5000, help="fuzz cases at most")
    parser.add_argument("--seconds", type=float, default=900.0, help="of fuzzing at most")
    parser.add_argument("--checks", default="validation,fuzz,tests", help="which checks, in this order")
    given = parser.parse_args()
    chosen = [m for m in mutations() if not given.names or m.name in given.names]
    if said := validation():  # it also fills the caches that all copies share
        raise SystemExit(f"without any mutation, the battery fails: {said}")
    rows: list[tuple[Mutation, str]] = []
    for mutation in chosen:
        found = found_by(mutation, given.cases, given.seconds, given.checks.split(","))
        rows.append((mutation, found))
        print(f"{mutation.name}: {found or 'NOT FOUND'}", flush=True)
    if not given.names:
        TABLE.write_text(table(rows), encoding="utf-8")
    return 0 if all(found for _, found in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
