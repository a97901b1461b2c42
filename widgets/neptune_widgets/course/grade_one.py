"""The limited process in which `grade` runs the answers of one notebook: `python -m …course.grade_one FD`.

It reads a task as JSON from standard input, and writes one line of JSON per exercise to the file descriptor FD.  The
judges are imported before any of the student's code runs, and are called here, not by the student's cells.
"""

from __future__ import annotations

import ast
import importlib
import json
import linecache
import os
import symtable
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from neptune_widgets.course.exercise import Exercise
from neptune_widgets.course.grade import Limits, judged, python_of


def needed(sources: Sequence[str], last: int) -> list[int]:
    """The cells that cell `last` needs, in order: those before it that assign, import or define a name that it reads.

    >>> needed(["a = 1", "b = a", "c = 2", "print(c)", "f(b)"], 4)
    [0, 1, 4]
    """
    wanted, found = _names(sources[last])[0], [last]
    for n in reversed(range(last)):
        reads, writes = _names(sources[n])
        if writes & wanted:
            wanted |= reads
            found.append(n)
    return found[::-1]


def _names(source: str) -> tuple[set[str], set[str]]:
    """The global names that a cell reads, and those that it assigns, imports or defines."""
    try:
        top = symtable.symtable(python_of(source), "<cell>", "exec")
    except (SyntaxError, ValueError, RecursionError):
        return set(), set()
    symbols = top.get_symbols()
    writes = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    reads, inner = {symbol.get_name() for symbol in symbols if symbol.is_referenced()}, top.get_children()
    while inner:
        table = inner.pop()
        reads |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
        inner = [*inner, *table.get_children()]
    return reads, writes


def grade(sources: Sequence[str], question: Mapping[str, Any], judge: Exercise) -> tuple[str, str]:
    """State and text of one answer.

    Args:
        sources: the student's code cells.
        question: of `grade.Question`.
        judge: the exercise.
    """
    asked = [n for n, source in enumerate(sources) if (call := judged(source)) and call[1] == question["function"]]
    if not asked:
        return _unread(sources, question["function"])
    sources = [python_of(source) for source in sources]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for n in needed(sources, asked[-1]):
        tree = ast.parse(sources[n])
        if n == asked[-1] or judged(sources[n]):
            tree.body.pop()  # the student's own call: the judge is called below
        _execute(tree, sources[n], n, namespace)
    _, _, arguments = judged(sources[asked[-1]]) or ("", "", [])
    verdict = judge(*(eval(compile(ast.Expression(a), "<answer>", "eval"), namespace) for a in arguments))
    return verdict.state, verdict.text


def _unread(sources: Sequence[str], function: str) -> tuple[str, str]:
    """The grade of an exercise that no cell calls in its last line: the cell is gone, or is no Python."""
    for source in sources:
        try:
            ast.parse(python_of(source))
        except (SyntaxError, ValueError, RecursionError) as error:
            if f".{function}(" in source:
                return "wrong", f"its cell raises {type(error).__name__}: {error}"
    return "missing", "no cell's last line calls the exercise"


def _execute(tree: ast.Module, source: str, number: int, namespace: dict[str, Any]) -> None:
    name = f"<cell {number + 1}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(tree, name, "exec"), namespace)


def _limit(limits: Limits) -> None:
    """Applies the limits to this process; where the system has none, the parent's clock is what is left."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in (
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def main(task: Mapping[str, Any], report: int) -> None:
    """Grades each exercise of the task, and reports each as it is done."""
    _limit(Limits(**task["limits"]))
    judges = [getattr(importlib.import_module(q["module"]), q["function"]) for q in task["questions"]]
    for question, judge in zip(task["questions"], judges, strict=True):
        try:
            state, text = grade(task["cells"], question, judge)
        except BaseException as error:  # noqa: BLE001  a student's cell may raise anything, SystemExit too
            state, text = "wrong", f"its cells raise {type(error).__name__}: {error}"
        line = {"number": question["number"], "state": state, "text": text[:1500]}
        os.write(report, (json.dumps(line) + "\n").encode())


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()), int(sys.argv[1]))
