"""Launchers that launch compiled kernels themselves, in as little of the host's time as possible.

The launcher of a generated module makes tensors and launches kernels:

    def attention(q, k, v):
        sums = torch.empty((1, 4, 1, 8), dtype=torch.float32, device=q.device)
        out = torch.empty((1, 4, 1, 64), dtype=torch.float16, device=q.device)
        attention_local[(8, 1, 4)](q, k, v, sums, num_warps=2)
        attention_combine[(1, 4, 1)](out, sums)
        return out

Once its kernels are compiled (`precompiled`), `direct` writes it anew: shapes, dtypes and the device are constants; the
tensors that it does not return are parts of one allocation; pointers are read once, tested for alignment, and passed as
numbers.  A function in C launches (`native_launch`); where there is none, Triton's launch function, which takes numbers
without asking the driver about each, and the arguments of launches with descriptors are kept (`kept_launches`).

    def attention(q, k, v):
        _q, _k, _v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        _made = _empty(128, dtype=_uint8, device=_device)
        _sums = _made.data_ptr()
        out = _empty(_shape_0, dtype=_dtype_0, device=_device)
        _out = out.data_ptr()
        if <a negated tensor, another device, a profiler's hook, an unaligned pointer>: return _slow(q, k, v)
        _stream = _get_stream(_index)
        _launch_0(8, 1, 4, _stream, _q, _k, _v, _sums)
        _launch_1(1, 4, 1, _stream, _out, _sums)
        return out

What that saves of a whole call is in docs/using/pytorch.md (scripts/call_cost.py).
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from neptune_lab.runtime.kept_launches import KeptLaunch, names_in
from neptune_lab.runtime.launch_memory import Allocation, Memory, Unknown, allocation_of
from neptune_lab.runtime.native_launch import Argument, native_launch

# Names that only the written launcher has.
_PREFIX = "_nl_"
# The place of the test for negated values in a launcher's text.
_TESTS = "<negated>"
# The function of a module that gives the counters of programs that arrive (`htile_to_triton.helpers.COUNTERS`).
_COUNTERS = "_counters"
# The function of a module that gives what follows from no argument of a call (`htile_to_triton.helpers.KEPT`).
_KEPT = "_kept"
# The functions of a module that say how many heads run at once (`htile_to_gluon.launch_helpers`).
_TOGETHER = ("_heads_together", "_heads_in_order")
# The attributes of a launcher: the same launcher without a test for negated values, and what it is written of.
_UNNEGATED, SOURCE = "unnegated", "source"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel that is compiled for one device, and the options of its launch."""

    kernel: Any
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """What a launcher is written of: a function of a generated module, and its kernels by name."""

    function: ast.FunctionDef
    module: ModuleType
    kernels: Mapping[str, Compiled]
    device: Any


def direct(
    text: str, entry: str, module: ModuleType, kernels: Mapping[str, Compiled], device: Any, slow: Callable[..., Any]
) -> Callable[..., Any] | None:
    """The launcher `entry` of a module, written anew for one device; None if it cannot be.

    Args:
        text: of the module.
        kernels: its kernels by name, as the launches with aligned pointers compiled them.
        device: of the tensors.
        slow: called where a condition of the kernels does not hold: a pointer that is not aligned, a tensor whose
            memory holds negated values, another current device, a profiler that has to see each launch.
    """
    function = next(n for n in reversed(ast.parse(text).body) if isinstance(n, ast.FunctionDef) and n.name == entry)
    return direct_of(Source(function, module, kernels, device), slow)


def direct_of(source: Source, slow: Callable[..., Any]) -> Callable[..., Any] | None:
    """`direct` of a launcher that is parsed."""
    try:
        written = _Rewrite(source.function, source.module, source.kernels, source.device, slow)
    except Unknown:
        return None
    made, other = (_function(text, source.function.name, written.names) for text in written.texts)
    made.__dict__ |= {_UNNEGATED: other, SOURCE: source}
    return made


def unnegated(launcher: Callable[..., Any]) -> Callable[..., Any]:
    """A launcher of `direct`, for tensors of which it is known that their memory holds no negated values."""
    return getattr(launcher, _UNNEGATED, launcher)


def _function(text: str, entry: str, names: Mapping[str, Any]) -> FunctionType:
    own = dict(names)
    exec(compile(text, f"<direct launcher of {entry}>", "exec"), own)
    made = own[entry]
    assert isinstance(made, FunctionType)
    return made


@dataclass(slots=True)
class _Rewrite:
    """The parts of the written launcher."""

    function: ast.FunctionDef
    module: ModuleType
    kernels: Mapping[str, Compiled]
    device: Any
    slow: Callable[..., Any]
    names: dict[str, Any] = field(default_factory=dict)
    inside: dict[str, Any] = field(default_factory=dict)  # dtypes of the tensors that are parts of one allocation
    derived: dict[str, str] = field(default_factory=dict)  # numbers that follow from sizes, and their texts
    texts: tuple[str, ...] = ()  # of the launcher, and without a test for negated values

    def __post_init__(self) -> None:
        from triton import knobs
        from triton.runtime import driver

        from neptune_lab.runtime.torch_state import current_gpu

        active: Any = driver.active
        arguments = [argument.arg for argument in self.function.args.args]
        used = {node.id for node in ast.walk(self.function) if isinstance(node, ast.Name)} | set(arguments)
        if any(name.startswith(_PREFIX) for name in used):
            raise Unknown
        self.names = {
            f"{_PREFIX}slow": self.slow,
            f"{_PREFIX}device": self.device,
            f"{_PREFIX}index": self.device.index,
            f"{_PREFIX}current": current_gpu,
            f"{_PREFIX}stream": active.get_current_stream,
            f"{_PREFIX}knobs": knobs.runtime,
        }
        lines = self._lines(arguments)
        negated = " or ".join(f"{name}.is_neg()" for name in arguments)
        self.texts = tuple("\n".join(lines).replace(_TESTS, test) + "\n" for test in (f"{negated} or ", ""))
        self._take_names()

    def _take_names(self) -> None:
        """Adds what the written launcher reads of the module, such as a function that the grid calls."""
        nodes = [node for node in ast.walk(ast.parse(self.texts[0])) if isinstance(node, ast.Name)]
        own = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
        own |= {argument.arg for argument in self.function.args.args}
        for name in {node.id for node in nodes} - own - self.names.keys():
            if hasattr(self.module, name):
                self.names[name] = getattr(self.module, name)
            elif not hasattr(builtins, name):
                raise Unknown

    def _lines(self, arguments: list[str]) -> list[str]:
        """The text of the function that launches at once, and leaves to the launcher what differs from the usual.

        Raises:
            Unknown: the launcher has a form that this one is not written for.
        """
        sizes, before, allocations, launches, returned = self._statements()
        outputs = [node.id for node in returned]
        if not set(outputs) <= allocations.keys():
            raise Unknown  # it returns an argument
        inside = {name: made for name, made in allocations.items() if name not in outputs}
        self.inside = {name: made.dtype for name, made in inside.items()}
        given = ", ".join(arguments)
        slow = f"return {_PREFIX}slow({given})"
        memory = Memory(_PREFIX, self.device)
        made = memory.together(inside)
        for name in outputs:
            made += memory.alone(name, allocations[name])
        self.names |= memory.names
        launched = [self._launched(n, call) for n, call in enumerate(launches)]
        sizes += self._at_once([*sizes, *before, *made, *(lines[0] for lines in launched if len(lines) == 1)])
        return [
            f"def {self.function.name}({given}):",
            f"    if {_TESTS}{_PREFIX}current() != {_PREFIX}index or {self._hooked()}:",
            f"        {slow}",
            *(f"    {_PREFIX}p_{name} = {name}.data_ptr()" for name in arguments),
            f"    if ({' | '.join(f'{_PREFIX}p_{name}' for name in arguments)}) & 15:",
            f"        {slow}",
            *(f"    {line}" for line in (*sizes, *before, *made)),
            f"    {_PREFIX}s = {_PREFIX}stream({_PREFIX}index)",
            *(f"    {line}" for lines in launched for line in lines),
            f"    return {', '.join(outputs)}",
        ]

    def _at_once(self, lines: list[str]) -> list[str]:
        """The derived numbers that lines read; those that only kept launches read are computed with their arguments."""
        read = names_in("\n".join(lines))
        found: list[str] = []
        for name, text in reversed(self.derived.items()):
            if name in read:
                found.append(f"{name} = {text}")
                read |= names_in(text)
        return found[::-1]

    def _statements(
        self,
    ) -> tuple[list[str], list[str], dict[str, Allocation], list[ast.Call], list[ast.Name]]:
        """Sizes, calls that are kept, tensors that are made, launches, and what is returned."""
        sizes: list[str] = []
        before: list[str] = []
        allocations: dict[str, Allocation] = {}
        launches: list[ast.Call] = []
        for statement in self.function.body:
            match statement:
                case ast.Expr(value=ast.Constant()):
                    continue
                case ast.Expr(value=ast.Call(func=ast.Subscript(value=ast.Name()))) as launch:
                    assert isinstance(launch.value, ast.Call)
                    launches.append(launch.value)
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="triton"), attr="set_allocator"))):
                    before.append(ast.unparse(statement))
                    for node in ast.walk(statement):
                        if isinstance(node, ast.Name):
                            self.names[node.id] = getattr(self.module, node.id)
                case ast.Assign(targets=[ast.Name()], value=ast.Subscript(value=ast.Attribute(attr="shape"))):
                    sizes.append(ast.unparse(statement))
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(ast.Name(id=maker), [_, count])) if (
                    maker == _COUNTERS
                ):
                    before.append(f"{name} = {maker}({_PREFIX}device, {ast.unparse(count)})")
                    before.append(f"{_PREFIX}p_{name} = {name}.data_ptr()")
                case ast.Assign(targets=[ast.Tuple(elts=made)], value=ast.Call(ast.Name(id=maker))) if maker == _KEPT:
                    kept = [element.id for element in made if isinstance(element, ast.Name)]
                    before.append(f"({', '.join(kept)},) = {maker}({_PREFIX}device)")
                    before += [f"{_PREFIX}p_{name} = {name}.data_ptr()" for name in kept]
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(ast.Name(id=maker))) if maker in _TOGETHER:
                    self.derived[name] = ast.unparse(_Answers(self.module, self.device).visit(statement.value))
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                    allocations[name] = allocation_of(call)
                case ast.Return(value=ast.Name() as one):
                    return sizes, before, allocations, launches, [one]
                case ast.Return(value=ast.Tuple(elts=elements)) if all(isinstance(e, ast.Name) for e in elements):
                    return sizes, before, allocations, launches, [e for e in elements if isinstance(e, ast.Name)]
                case _:
                    raise Unknown
        raise Unknown

    def _hooked(self) -> str:
        """Whether a profiler waits for launches; Triton calls its hooks, of which there are none, at each launch."""
        tests = []
        for name in ("launch_enter_hook", "launch_exit_hook"):
            hook = f"{_PREFIX}knobs.{name}"
            chain = self.names[f"{_PREFIX}no_{name}"] = getattr(self.names[f"{_PREFIX}knobs"], name)
            tests.append(f"{hook} is not {_PREFIX}no_{name}")
            if chain is not None:
                if not isinstance(getattr(chain, "calls", None), list):
                    raise Unknown
                tests.append(f"{hook}.calls")
        return " or ".join(tests)

    def _launched(self, number: int, call: ast.Call) -> list[str]:
        """A launch: the launch function of Triton with everything that does not change bound to names."""
        assert isinstance(call.func, ast.Subscript)
        assert isinstance(call.func.value, ast.Name)
        compiled = self.kernels.get(call.func.value.id)
        if compiled is None or {k.arg: self._value(k.value) for k in call.keywords} != compiled.options:
            raise Unknown
        kernel = compiled.kernel
        run, function, packed = kernel.run, kernel.function, kernel.packed_metadata
        grid = call.func.slice.elts if isinstance(call.func.slice, ast.Tuple) else [call.func.slice]
        over = ", ".join([*map(self._extent, grid), *["1"] * (3 - len(grid))])
        own, form, metas = launch_function(run)
        prefix = f"{_PREFIX}{number}_"
        if form != "run":
            found = native_launch(kernel, run, metas, self.device.index, [*map(self._passed, call.args)])
            if found is not None:
                self.names[f"{prefix}launch"], given = found
                return [f"{prefix}launch({', '.join([over, f'{_PREFIX}s', *given])})"]
        kept = KeptLaunch(prefix, metas)
        self.names |= {f"{prefix}launch": own, f"{prefix}function": function, f"{prefix}packed": packed}
        arguments = ", ".join([self._argument(kept, argument) for argument in call.args])
        head = f"{over}, {_PREFIX}s, {prefix}function"
        if form == "run":
            head += f", {prefix}packed, None, None, None, {arguments}"
        else:
            self.names |= {f"{prefix}grid": run.launch_cooperative_grid, f"{prefix}dependent": run.launch_pdl}
            head += f", {prefix}grid, {prefix}dependent"
        if form == "arguments last":
            self.names |= {f"{prefix}kinds": run.arg_annotations, f"{prefix}signature": run.kernel_signature}
            last = f"{prefix}kinds, {prefix}signature, ({arguments},)"
            head += f", {prefix}packed, None, None, None, None, None, {last}"
        elif form == "arguments in place":
            head += f", None, None, {prefix}packed, None, None, None, {arguments}"
        if not kept.descriptors:
            return [f"{prefix}launch({head})"]
        variables = {name for name in names_in(f"f({head})") if name.startswith(f"{_PREFIX}p_")} | {f"{_PREFIX}s"}
        lines = kept.lines(f"{prefix}launch", head, variables | self._sizes, self.derived)
        self.names |= kept.names
        return lines

    def _extent(self, extent: ast.expr) -> str:
        """An extent of a grid; a function of the module that is asked about a tensor's device is its answer."""
        answered = _Answers(self.module, self.device).visit(extent)
        if not {n.id for n in ast.walk(answered) if isinstance(n, ast.Name)} <= self._sizes | {"min", "max"}:
            raise Unknown
        return ast.unparse(answered)

    @property
    def _sizes(self) -> set[str]:
        """The variables of sizes, and of numbers that follow from them."""
        return {t.id for n in self.function.body if isinstance(n, ast.Assign) for t in _shapes(n)}

    def _value(self, option: ast.expr) -> Any:
        try:
            return ast.literal_eval(option)
        except ValueError:
            raise Unknown from None

    def _passed(self, argument: ast.expr) -> Argument:
        """An argument of a launch: an address, a size, or a descriptor."""
        match argument:
            case ast.Name(id=name):
                return Argument(name if name in self._sizes else f"{_PREFIX}p_{name}")
            case ast.Constant(value=int(size)):
                return Argument(str(size))
            case ast.Call(func=ast.Name(id=maker), args=[ast.Name(id=tensor), *rest], keywords=[]):
                return Argument(f"{_PREFIX}p_{tensor}", getattr(self.module, maker), rest)
        raise Unknown

    def _argument(self, kept: KeptLaunch, argument: ast.expr) -> str:
        """An argument of a launch: an address, a size, or a descriptor."""
        match argument:
            case ast.Name(id=name):
                return name if name in self._sizes else f"{_PREFIX}p_{name}"
            case ast.Constant(value=int(size)):
                return str(size)
            case ast.Call(func=ast.Name(id=maker), args=[ast.Name(id=tensor), *rest], keywords=[]):
                inside = self.inside.get(tensor)
                whole = "" if tensor in self.inside else tensor
                return kept.descriptor(getattr(self.module, maker), f"{_PREFIX}p_{tensor}", whole, rest, inside)
        raise Unknown


class _Answers(ast.NodeTransformer):
    """Replaces `function(tensor.device)` by what the module's function says of the device."""

    def __init__(self, module: ModuleType, device: Any) -> None:
        self._module, self._device = module, device

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.Attribute(value=ast.Name(), attr="device")]) if hasattr(
                self._module, name
            ):
                return ast.Constant(getattr(self._module, name)(self._device))
        return self.generic_visit(node)


def _shapes(statement: ast.Assign) -> list[ast.Name]:
    """The variable that an assignment of a size makes, or of a number that follows from sizes."""
    value = statement.value
    made = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _TOGETHER
    return [t for t in statement.targets if (made or isinstance(value, ast.Subscript)) and isinstance(t, ast.Name)]


def launch_function(run: Any) -> tuple[Any, str, list[Any] | None]:
    """Triton's function for a launch, how its arguments are ordered, and the kinds of the kernel's descriptors.

    `run` of a compiled kernel tests at each launch whether the kernel needs memory, and makes descriptors anew; what
    it calls then differs between Triton's versions.  For versions that are not known here, it is `run` itself.
    """
    import triton
    from triton.backends.nvidia import driver

    plain = type(run) is getattr(driver, "CudaLauncher", None) and not (
        run.global_scratch_size or run.profile_scratch_size
    )
    version = tuple(map(int, triton.__version__.split(".")[:2]))
    if not plain or version not in ((3, 6), (3, 7)):
        return run, "run", None
    own, metas = run.launch, None
    if inspect.isfunction(own):  # it makes descriptors
        held = inspect.getclosurevars(own).nonlocals
        if "launcher" not in held or "tensordesc_meta" not in held or not hasattr(driver, "make_tensordesc_arg"):
            return run, "run", None
        own, metas = held["launcher"], list(held["tensordesc_meta"])
    return own, "arguments last" if version == (3, 7) else "arguments in place", metas


__all__ = ["SOURCE", "Compiled", "Source", "direct", "direct_of", "launch_function", "unnegated"]
