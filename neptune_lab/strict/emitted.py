"""Checks emitted modules as Python, in addition to the checks of names and numbers that they are made from.

The emitters use a small part of Python.  `check_emitted` parses a module's text and refuses anything else, so that text
from an unchecked option or from a damaged cache entry is never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from neptune_lab.strict.console import shown
from neptune_lab.strict.values import Refusal

_IMPORTS = frozenset({"functools", "torch", "triton"})
_IMPORTED_FROM = frozenset(
    {
        "triton.tools.tensor_descriptor",
        "triton.language",
        "triton.experimental",
        "triton.experimental.gluon",
        "triton.experimental.gluon.language.nvidia.hopper",
        "triton.experimental.gluon.nvidia.hopper",
    }
)
# A function that reaches into Triton's compiler, where Gluon has no name for what it does: word by word, with what it
# alone may import.
_INSIDE = frozenset(
    {("triton.experimental.gluon.language._core", "builtin", None), ("triton._C.libtriton", "ir", "compiler_ir")}
)
ADD_OUT = '''@builtin
def _add_out(rows, place, tile, _semantic=None):
    """Adds a tile in shared memory to one in global memory: the copy engine adds each element in one operation."""
    at = _semantic._convert_to_ir_values(place, require_i64=False)
    _semantic.builder.create_async_tma_reduce(compiler_ir.DESCRIPTOR_REDUCE_KIND.ADD, rows.handle, at, tile.handle)
'''
_KNOWN_FUNCTIONS = {
    function.name: ast.dump(function) for function in ast.parse(ADD_OUT).body if isinstance(function, ast.FunctionDef)
}
_DECORATORS = frozenset({"triton.jit", "gluon.jit", "functools.cache"})
_BUILTINS = frozenset({"range", "min", "max", "float", "int", "hasattr", "len", "dict"})
# Allowed attributes of attributes of an imported module; everything else is `module.name`.
_CHAINS = frozenset(
    {
        "tl.PropagateNan.ALL",
        "tl.target_info.cuda_capability_geq",
        "tl.target_info.is_cuda",
        "triton.knobs.runtime.interpret",
        "torch.cuda.get_device_properties",
        "torch.cuda.is_current_stream_capturing",
        "torch.cuda.current_stream",
        "gl.NVMMASharedLayout.get_default_for",
    }
    | {f"tl.extra.cuda.gdc_{what}" for what in ("wait", "launch_dependents")}
)
# The names that emitted modules use of torch and Triton, which can do far more than compute.
_TORCH = frozenset(
    {
        "empty",
        "empty_strided",
        "zeros",
        "bool",
        "float8_e4m3fn",
        "float8_e5m2",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    }
    | {f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)}
)
_TRITON = frozenset({"jit", "set_allocator"})

_NODES = (
    # statements
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.For, ast.While),
    *(ast.If, ast.Expr, ast.Pass, ast.Import, ast.ImportFrom, ast.alias),
    # expressions
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Attribute),
    *(ast.Subscript, ast.Slice, ast.Name, ast.List, ast.Tuple, ast.JoinedStr, ast.FormattedValue),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop),
)

# The same for a look-up by exact type, which takes a tenth of the time.
_KINDS = frozenset(_NODES)


def check_emitted(text: str, error: Refusal) -> None:
    """Raise `error` unless `text` is a module such as the emitters write.

    Formal statement: the module imports torch, triton and functools only, and only at its top; every statement there
    is a docstring, an import, an assignment or a function; every name that is read is a parameter, a variable, a name
    of the module, or one of a few builtins; no attribute is private, and only those names of torch and triton that
    launch and allocate.  A function that equals one of `_KNOWN_FUNCTIONS` is not looked into.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as cause:
        raise error(f"an emitted module is not Python: {cause}") from cause
    problem = next(_problems(tree), None)
    if problem is not None:
        node, what = problem
        raise error(
            f"an emitted module has {what} in line {getattr(node, 'lineno', 0)}, which no emitter writes",
            help="this is a mistake of the compiler, or the text was changed; nothing of it was run",
        )


def _problems(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """What a module has that an emitted module cannot have, with the place: other imports and statements, and names
    that it does not define."""
    modules: set[str] = set()
    known = set(_BUILTINS)
    for statement in tree.body:
        match statement:
            case ast.Import(names):
                for alias in names:
                    # `import a.b` binds a, `import a.b as c` binds a.b itself
                    if not (alias.name in _IMPORTS and alias.asname is None) and (alias.name, alias.asname) != (
                        "triton.language",
                        "tl",
                    ):
                        yield statement, f"an import of {shown(alias.name)}"
                    modules.add(alias.asname or alias.name)
            case ast.ImportFrom(module, names, level):
                if not level and {(module, a.name, a.asname) for a in names} <= _INSIDE:
                    continue  # (no name that other functions may read)
                if level or module not in _IMPORTED_FROM:
                    yield statement, f"an import from {shown(module)}"
                known |= {alias.asname or alias.name for alias in names}
                modules |= {alias.asname or alias.name for alias in names}
            case ast.FunctionDef(name=name):
                known.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                known.add(name)
            case ast.Expr(ast.Constant()):
                pass
            case _:
                yield statement, f"a statement of kind {type(statement).__name__}"
    known |= modules
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            if statement.name in _KNOWN_FUNCTIONS and ast.dump(statement) == _KNOWN_FUNCTIONS[statement.name]:
                continue
            yield from _function(statement, known, modules)
        elif isinstance(statement, ast.Assign | ast.Expr):
            yield from _names(_nodes(statement), known, modules)


def _function(function: ast.FunctionDef, known: set[str], modules: set[str]) -> Iterator[tuple[ast.AST, str]]:
    for decorator in function.decorator_list:
        if ast.unparse(decorator) not in _DECORATORS and not _without_versions(decorator):
            yield decorator, "a decorator"
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.defaults or arguments.kw_defaults:
        yield function, "a parameter with a default"
    parameters = [node for node in _nodes(arguments) if isinstance(node, ast.arg)]
    body = [node for statement in function.body for node in _nodes(statement)]
    bound = {parameter.arg for parameter in parameters}
    bound |= {node.id for node in body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if bound & (modules | _BUILTINS):
        yield function, "a variable with the name of a module"
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef):
            yield node, f"{type(node).__name__} in a function"
    yield from _names(body, known | bound, modules)
    for parameter in parameters:
        if parameter.annotation is not None:
            yield from _names(_nodes(parameter.annotation), known, modules)


def _without_versions(decorator: ast.expr) -> bool:
    """Whether a decorator is `triton.jit(do_not_specialize=[...])` with names, or the same of `gluon.jit`."""
    match decorator:
        case ast.Call(func, [], [ast.keyword("do_not_specialize", ast.List(names))]):
            named = all(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in names)
            return ast.unparse(func) in ("triton.jit", "gluon.jit") and named
    return False


def _nodes(root: ast.AST) -> list[ast.AST]:
    """The nodes of a tree, each before those below it: `ast.walk` takes four times as long."""
    nodes = [root]
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
    return nodes


def _names(nodes: list[ast.AST], known: set[str], modules: set[str]) -> Iterator[tuple[ast.AST, str]]:
    inside: set[int] = set()  # attributes that a longer chain holds
    for node in nodes:
        if type(node) not in _KINDS and not isinstance(node, _NODES):
            yield node, f"an expression of kind {type(node).__name__}"
        elif isinstance(node, ast.Name) and node.id not in known:
            yield node, f"the name {shown(node.id)}"
        elif isinstance(node, ast.Attribute):
            if node.attr.startswith("_"):
                yield node, f"the attribute {shown(node.attr)}"
            if id(node) not in inside:
                yield from _chain(node, modules, inside)


def _chain(node: ast.Attribute, modules: set[str], inside: set[int]) -> Iterator[tuple[ast.AST, str]]:
    """Attributes of an imported module."""
    names = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        inside.add(id(value))
        names.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name) or value.id not in modules:
        return
    text = ".".join([value.id, *reversed(names)])
    if len(names) > 1:
        if text not in _CHAINS:
            yield node, shown(text)
    elif (value.id == "torch" and names[0] not in _TORCH) or (value.id == "triton" and names[0] not in _TRITON):
        yield node, shown(text)
