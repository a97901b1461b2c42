"""The cell magic `%%explore`: runs a cell of plain PyTorch, and opens the explorer of the function that it defines.

`%load_ext neptune_lab` registers it.
"""

from __future__ import annotations

import ast
import shlex
from argparse import Namespace
from types import TracebackType
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from neptune_lab.errors import DefinitionError, NeptuneError, TextError
from neptune_lab.input_specs import parse_inputs

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from neptune_widgets.explorer import Explorer

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Registers the cell magic `%%explore`; IPython calls it for `%load_ext neptune_lab`.

    Args:
        shell: the shell that gets the magic.
    """
    shell.register_magics(ExploreMagics)


@magics_class
class ExploreMagics(Magics):
    """The magic, with the options that `%%explore?` lists."""

    @magic_arguments()
    @argument("inputs", nargs="*", help="The function's inputs, as in q=float16[1,4,256,64] scale=0.125")
    @argument("-f", "--function", help="Name of the function or module (default: the last one that the cell defines).")
    @argument("-o", "--output", help="Also assigns the explorer to this variable.")
    @argument("--template", help="rolling_update or split_k_update (default: chosen by shape).")
    @argument("--block-q", type=int, help="Rows per tile.")
    @argument("--block-kv", type=int, help="Columns per tile.")
    @cell_magic
    def explore(self, line: str, cell: str) -> Explorer:
        """Runs the cell, and opens the explorer of the function that it defines, for inputs of the given shapes.

        The function stays defined.  It may be plain PyTorch or a torch.nn.Module class without arguments.
        """
        parser = type(self).explore.parser  # type: ignore[attr-defined]  (`magic_arguments` puts it there)
        try:
            given = parser.parse_intermixed_args(shlex.split(line))
        except ValueError as error:
            raise UsageError(f"%%explore {line}: {error}") from error
        if given.output is not None and not given.output.isidentifier():
            raise UsageError(f"--output {given.output}: expected the name of a variable")
        assert self.shell is not None
        inputs = " ".join(given.inputs)
        try:
            made = _explored(self.shell, line, cell, inputs, given)
        except NeptuneError as error:
            _show_briefly(error, inputs)
            raise
        if given.output is not None:
            self.shell.user_ns[given.output] = made
        return made


def _explored(shell: InteractiveShell, line: str, cell: str, inputs: str, given: Namespace) -> Explorer:
    """The explorer of the function that the cell defines, after the cell has run."""
    specs = parse_inputs(inputs)
    name = _run(shell, line, cell, given.function)
    if name not in shell.user_ns:
        raise DefinitionError(f"the cell does not define {name!r}", help="--function names what the cell defines")

    from neptune_lab import from_torch
    from neptune_lab.pipeline import schedule
    from neptune_lab.torch_to_stages.arguments import callable_of, example_arguments
    from neptune_widgets.explorer import explore

    function = callable_of(shell.user_ns[name], name, "the cell")
    operator = from_torch(function, *example_arguments(function, specs))
    return explore(schedule(operator, given.template, block_q=given.block_q, block_kv=given.block_kv))


def _run(shell: InteractiveShell, line: str, cell: str, function: str | None) -> str:
    """Runs the cell as IPython does, with the line numbers that the page shows: its first line is the magic's.

    The name of the code is that of the whole cell, so that tracebacks and the debugger find it.

    Returns:
        The name of the function to explore: `function`, or that of the cell's last definition.
    """
    lines = cell.splitlines()  # of which IPython drops empty ones at the start
    empty = next((n for n, text in enumerate(lines) if text.strip()), 0)
    source = "\n" * (1 + empty) + shell.transform_cell(cell)
    number = shell.displayhook.prompt_count
    name = shell.compile.cache(source, number, raw_code=f"%%explore {line}\n{cell}")
    flags = shell.compile.flags | ast.PyCF_ONLY_AST
    try:
        tree = compile(source, name, "exec", flags, True)
    except SyntaxError as error:
        raise _not_python(shell, error, number) from error
    found = function or _last_definition(tree)
    body = shell.transform_ast(tree).body
    last = [body.pop()] if isinstance(body[-1], ast.Expr) else []
    flags = shell.compile.flags
    try:
        exec(compile(ast.Module(body, []), name, "exec", flags, True), shell.user_global_ns, shell.user_ns)
        if last:
            exec(compile(ast.Interactive(last), name, "single", flags, True), shell.user_global_ns, shell.user_ns)
    except Exception as error:
        _show_from(shell, error, name)
        raise
    return found


def _last_definition(tree: ast.Module) -> str:
    """The name of the last function or class on the top level of a cell.

    >>> _last_definition(ast.parse("def f(x): return x\\ng = 1"))
    'f'
    """
    names = [node.name for node in tree.body if isinstance(node, _DEFINITIONS)]
    if not names:
        raise DefinitionError(
            "the cell defines no function", help="define one below the first line, or name one: --function NAME"
        )
    return names[-1]


def _not_python(shell: InteractiveShell, error: SyntaxError, number: int) -> DefinitionError:
    """The refusal of a cell that cannot be parsed; IPython shows it as any other error of syntax."""
    where = "" if error.lineno is None else f", in cell In[{number}], line {error.lineno}"
    refusal = DefinitionError(f"{error.msg}{where}", help="mend this line: the cell must be Python")
    shown = shell.SyntaxTB.structured_traceback(type(error), error, None)
    refusal._render_traceback_ = lambda: shown  # type: ignore[attr-defined]
    return refusal


def _show_briefly(error: NeptuneError, inputs: str) -> None:
    """Lets IPython show an error of ours without the traceback of this package: it names the user's line itself."""
    if "_render_traceback_" in vars(error):
        return
    lines = [f"{type(error).__name__}: {error.reason}"]
    if isinstance(error, TextError) and error.line == 1 and error.column is not None:
        lines += [f"    {inputs}", f"    {' ' * (error.column - 1)}^"]
    if error.help is not None:
        lines.append(f"  help: {error.help}")
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]


def _show_from(shell: InteractiveShell, error: Exception, name: str) -> None:
    """Lets IPython show an error of the cell from the cell's own line on, as it does without the magic."""
    inner: TracebackType | None = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename != name:
        inner = inner.tb_next
    shown = shell.InteractiveTB.structured_traceback(type(error), error, inner)
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


__all__ = ["ExploreMagics", "load_ipython_extension"]
