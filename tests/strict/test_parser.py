"""Threads that parse at once: CPython 3.11.0 to 3.11.7 counts the depth of all their syntax trees in one place."""

from __future__ import annotations

import ast
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from neptune_widgets.schedule_text import parse as parse_schedule

from neptune_lab.errors import EmitError
from neptune_lab.repair.expression_text import parse as parse_expression
from neptune_lab.strict.emitted import check_emitted
from neptune_lab.strict.parser import one_at_a_time
from neptune_lab.trace.linking import _statements

THREADS, TIMES = 4, 3
DEEP = "x = " + "".join(f"({n} + " for n in range(60)) + "0" + ")" * 60 + "\n"
MODULE = DEEP * 20


def in_tritons_interpreter() -> None:
    from triton.runtime.interpreter import ASTTransformer, FunctionRewriter

    rewriter = FunctionRewriter(in_tritons_interpreter)
    rewriter.ast_transformer = ASTTransformer()
    rewriter._transform_ast("def f():\n" + "".join(f"    {line}\n" for line in MODULE.splitlines()))


PARSES: dict[str, Callable[[], object]] = {
    "emitted module": lambda: check_emitted(MODULE, EmitError),
    "expression": lambda: parse_expression("+".join(f"exp(a{n}*(b - c))" for n in range(40))),
    "schedule": lambda: parse_schedule("\n".join(f'sch.tile("qk", i={n}, j=64)' for n in range(1, 60))),
    "links": lambda: list(_statements(MODULE)),
    "Triton's interpreter": in_tritons_interpreter,
}


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector runs often, and lets another thread run each time."""

    def give_way(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(give_way)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("what", PARSES)
def test_threads_parse_at_once(what: str, collector):
    gate = threading.Barrier(THREADS, timeout=300)

    def parse(depth: int) -> None:
        if depth:  # the fault shows between stacks of different depths only
            return parse(depth - 1)
        gate.wait()
        for _ in range(TIMES):
            PARSES[what]()

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(parse, 3 * n) for n in range(THREADS)]:
            future.result(timeout=300)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("text", ["x", "x +"])
def test_the_collector_is_left_as_it_was(on: bool, text: str):
    def parse(source: str) -> ast.AST:
        assert not gc.isenabled()
        return compile(source, "<text>", "exec", ast.PyCF_ONLY_AST)

    was = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        try:
            one_at_a_time(parse)(text)
        except SyntaxError:
            assert text == "x +"
        assert gc.isenabled() == on
    finally:
        (gc.enable if was else gc.disable)()
