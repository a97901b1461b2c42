"""Planted bugs: each file in `mutations/` changes one function of the compiler, and some check must find it.

`python -m fuzz.find_mutants NAME` from tests/ plants one in a copy of the process, and says which checks find it.  The
documentation lists all of them (`planted_bugs` of docs/_ext/written_pages.py).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from neptune_lab.pipeline.validate import forget

FOLDER = Path(__file__).parent / "mutations"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutation:
    """`old` is `new` in `function`, which is "module:name" or "module:Class.name".

    Args:
        why: what is wrong then, a sentence.
        tests: tests of which one fails ("tests/…/test_x.py::test_y", or a file).
        validation: what the validation of a compile says of it: the operator of the battery, and the form of the
            program that is wrong, or the error; "" if it finds nothing.
    """

    name: str
    why: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    validation: str = ""

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
    why = text.splitlines()[0].removeprefix("# ")
    tests = tuple(data.get("tests", ()))
    return Mutation(path.stem, why, data["function"], data["old"], data["new"], tests, data.get("validation", ""))


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
    target = target.fget if isinstance(target, property) else target
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
