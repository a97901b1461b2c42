"""One kernel: a `@triton.jit` function, statement by statement.

An on-chip tensor is one variable of the function; a loop becomes `for`; a global access becomes a load or a store
(memory.py), an expression Triton text (expressions.py).
"""

from __future__ import annotations

from typing import NoReturn, assert_never

from neptune_lab.errors import EmitError, TileError
from neptune_lab.htile.bounds import interval, loop_interval
from neptune_lab.htile.nodes import Access, Cast, Dot, For, Kernel, Name, Permute, Program, Stmt, Store, TileExpr
from neptune_lab.htile.shapes import shape_of_access
from neptune_lab.htile.walk import is_exception, read_tensors, stores, subexpressions, written_tensors
from neptune_lab.htile_to_triton.asked_together import loaded_in_loops, runs_once
from neptune_lab.htile_to_triton.beside_rows import vectors_beside_rows
from neptune_lab.htile_to_triton.context import ADD, COMPARE, Context
from neptune_lab.htile_to_triton.conversions import converted
from neptune_lab.htile_to_triton.expression_text import ExpressionText, with_dtype
from neptune_lab.htile_to_triton.expressions import emit, whole_tile
from neptune_lab.htile_to_triton.folds import rejected_reductions
from neptune_lab.htile_to_triton.held_rows import caching
from neptune_lab.htile_to_triton.last_program import Joined
from neptune_lab.htile_to_triton.launches import Together
from neptune_lab.htile_to_triton.lists import entry_of_list
from neptune_lab.htile_to_triton.loaded_again import loaded_again
from neptune_lab.htile_to_triton.memory import Condition, barrier, is_loaded, load, load_once, store
from neptune_lab.htile_to_triton.options import EmitOptions
from neptune_lab.htile_to_triton.passing import bind_parts, give, rows_of_group
from neptune_lab.htile_to_triton.program_order import at_place, heads_together, place_of
from neptune_lab.htile_to_triton.scope import Draft, Scope, UniqueNames
from neptune_lab.htile_to_triton.waiting import Waiting
from neptune_lab.strict.values import INT32_MAX
from neptune_lab.wrapping import Doc, Loose, call, flat, seq

MAX_GRID = (INT32_MAX, 65535, 65535)


def emit_kernel(
    program: Program,
    kernel: Kernel,
    helpers: dict[str, dict[str, None]],
    taken: set[str],
    options: EmitOptions,
    last: Together | None = None,
    waits: int | None = None,
    lets: bool = False,
) -> Context:
    """Emit `kernel`.

    Args:
        helpers: module-level helpers in use so far, with the nodes that use them; extended.
        taken: names of the module's functions.
        options: the emitter's choices.
        last: the kernels of this launch, if they are several, of which `kernel` is the first.
        waits: the statements before it waits for the launch before, with which it starts (`early_start`).
        lets: the next launch starts with this one.

    Returns:
        A context with the kernel's statements (`root`) and parameters (`pointers`, `host_descriptors`).

    Raises:
        EmitError: the kernel cannot be expressed in Triton.
    """
    for n, axis in enumerate(kernel.grid):
        if axis.extent > MAX_GRID[n]:
            _refuse_grid(kernel, axis.var, axis.extent, n)
    ctx = Context(program, kernel if last is None else last.whole, helpers, UniqueNames(taken), options)
    used = ctx.name_pointers()
    for n, axis in enumerate(kernel.grid):
        most = ctx.interval(Name(axis.var)).hi + 1
        if most > MAX_GRID[n]:
            _refuse_grid(kernel, axis.var, most, n)
    for size in program.sizes:
        name = ctx.names.fresh(size.name)
        ctx.sizes[size.name] = name
        ctx.variables[size.name] = (name, Draft([], kernel.name))
    if isinstance(last, Waiting):
        bind_parts(ctx, last)
    else:
        _bind_grid(ctx)
    for tensor in program.tensors:
        if tensor.name in used and tensor.space == "chip":
            ctx.tiles[tensor.name] = ctx.names.fresh(tensor.name)
    if waits == 0:
        _wait(ctx)
    if lets:
        ctx.line(f"{ctx.helper('_launch_dependents')}()")
    if isinstance(last, Waiting):
        rows_of_group(ctx, last, _body)
        return ctx
    ctx.late = loaded_in_loops(program, kernel, options)
    ctx.again = loaded_again(program, kernel, options.target) if last is None else {}
    ctx.caching = caching(program, kernel) if last is None and options.target.kind == "cuda" else {}
    ctx.beside = vectors_beside_rows(program, kernel) if last is None and options.target.kind == "cuda" else frozenset()
    ctx.once = runs_once(program, kernel, options)
    if ctx.once:
        _body_once(ctx, kernel)
    else:
        _body(ctx, kernel.body[: waits or 0])
        if waits:
            _wait(ctx)
        _body(ctx, kernel.body[waits or 0 :])
    if last is not None:
        _last_program(ctx, last)
    return ctx


def _wait(ctx: Context) -> None:
    ctx.line(f"{ctx.helper('_wait')}()")


def _body_once(ctx: Context, kernel: Kernel) -> None:
    """The body as a loop of one iteration, which Triton does not know of (asked_together.py)."""
    scope = Scope(ctx.scope, frozenset())
    name = ctx.names.fresh("once")
    head = f"for {name} in range(tl.minimum(tl.num_programs(0), 1)):  # so that its tiles are asked for together"
    scope.header = Draft([head], kernel.name)
    scope.header.used_by(kernel.node_id)
    with ctx.inside(scope):
        _body(ctx, kernel.body)


def _last_program(ctx: Context, last: Joined) -> None:
    """The arrival of a program at its group's counter, and what the last of the group does.

    A barrier comes before the arrival, so that every thread has stored when the counter says so, and one after it, so
    that no thread reads before that.  The last program sets the counter back for the next launch.
    """
    ctx.node, ctx.origin = last.second.node_id, last.second.name
    ctx.counters = ctx.names.fresh("counters_ptr")
    counter = f"{ctx.counters} + {ctx.index(last.group, ADD + 1)}"
    arrived = ctx.names.fresh("arrived")
    ctx.line(f"# the last of {last.arriving} programs does what {last.second.name} would", comment=True)
    ctx.line("tl.debug_barrier()")
    ctx.line(f'{arrived} = tl.atomic_add({counter}, 1, sem="acq_rel", scope="gpu")')
    ctx.line("tl.debug_barrier()")
    scope = Scope(ctx.scope, frozenset())
    scope.header = Draft([f"if {arrived} == {last.arriving - 1}:"], last.second.name)
    scope.header.used_by(last.second.node_id)
    with ctx.inside(scope):
        ctx.line(f"tl.store({counter}, 0)")
        # What the group has stored is not stored again: it is loaded once.
        ctx.written = written_tensors(last.second)
        _body(ctx, last.body)


def _bind_grid(ctx: Context) -> None:
    """Defines the grid's variables at the top of the kernel."""
    names = [ctx.names.fresh(axis.var) for axis in ctx.kernel.grid]
    drafts = [Draft([f"{name} = tl.program_id({n})"], ctx.kernel.name) for n, name in enumerate(names)]
    together = heads_together(ctx.program, ctx.kernel)
    if together > 1:
        name = ctx.names.fresh("place")
        comment = f"  # {together} indices of {names[1]} side by side"
        place = Draft([f"{name} = {place_of(ctx.kernel, together)}{comment}"], ctx.kernel.name)
        ctx.root.prelude.append(place)
        for draft, own, value in zip(drafts, names, at_place(name, together), strict=False):
            draft.lines, draft.needs = [f"{own} = {value}"], (place,)
    for axis, name, draft in zip(ctx.kernel.grid, names, drafts, strict=True):
        ctx.variables[axis.var] = (name, draft)
        ctx.root.prelude.append(draft)


def _body(ctx: Context, body: tuple[Stmt, ...]) -> None:
    heading = ""
    for n, stmt in enumerate(body):
        ctx.node, ctx.origin = stmt.node_id, stmt.origin
        match stmt:
            case Store() if stmt.target.tensor in ctx.late:
                pass  # (its loops load it)
            case Store():
                # The name of the loop-IR block, once for adjacent stores, unless the variable has the same name.
                if stmt.origin not in ("", heading) and ctx.tiles.get(stmt.target.tensor) != stmt.origin:
                    ctx.line(f"# {stmt.origin}", comment=True)
                heading = stmt.origin
                _located(_store, ctx, stmt)
            case For():
                heading = ""
                _located(_loop, ctx, stmt)
                for reduction in rejected_reductions(stmt, body[n + 1 :], ctx.program):
                    ctx.node, ctx.origin = reduction.node_id, reduction.origin
                    name = ctx.tiles[reduction.target.tensor]
                    ctx.line(f"{name} = {name} + 0.0  # one reader: Triton fails where a fold has more")
            case _:
                assert_never(stmt)


def _located(emitter, ctx: Context, stmt: Stmt) -> None:
    """Runs an emitter; its errors name the statement."""
    try:
        emitter(ctx, stmt)
    except (EmitError, TileError) as error:
        if error.node is not None:
            raise
        raise EmitError(error.reason, node=stmt.node_id, help=error.help) from error


def _refuse_grid(kernel: Kernel, axis: str, extent: int, n: int) -> NoReturn:
    raise EmitError(
        f"grid axis {axis} of kernel {kernel.name} has {extent} instances; expected at most {MAX_GRID[n]} on axis "
        f"{'xyz'[n]}",
        node=kernel.node_id,
        help="put the longest axis first",
    )


def _loop(ctx: Context, loop: For) -> None:
    start, stop = ctx.index(loop.start), ctx.index(loop.stop)
    first = last = ""
    if loop.within is not None:
        first, last = (_bound(ctx, bound) for bound in loop.within)
        start, stop = f"tl.maximum({start}, {first})", f"tl.minimum({stop}, {last})"
    scope = Scope(ctx.scope, frozenset((loop.var,)))
    name = ctx.name_for(("loop", loop.var), loop.var, scope)
    part = f"  # {loop.part}" if loop.part else ""
    place = name
    condition = is_exception(loop, ctx.program)  # (LLVM would compute a loop of one without a branch, and then select)
    if condition:
        head = [f"if ({first} <= 0) & ({last} > 0){_unless_left_out(ctx, loop)}:{part}"]
    elif loop.without is not None:
        place = ctx.name_for(("loop", f"{loop.var}_place"), f"{loop.var}_place", scope)
        at, count = _left_out(ctx, loop, loop.without, start, stop)
        head = [f"for {place} in {_range(ctx, loop, start, f'{stop} - {count}')}:{part}"]
        head.append(f"    {name} = {place} + tl.where({place} >= {at}, {count}, 0)")
    elif loop.listed is None:
        head = [f"for {name} in {_range(ctx, loop, start, stop)}:{part}"]
    else:
        place, entry = entry_of_list(ctx, loop.var, loop.listed[0], scope)
        count = load_once(ctx, loop.listed[1], ())
        head = [f"for {place} in {_range(ctx, loop, '0', count)}:{part}", f"    {name} = {entry}"]
    counted, least = (place, 0 if loop.listed else ctx.interval(loop.start).lo)
    scope.header = Draft(head, loop.origin)
    scope.header.used_by(loop.node_id)
    with ctx.inside(scope):
        bind_loop(ctx, loop)
        ctx.variables[loop.var] = (name, scope.header)
        if scope.parent is ctx.root and ctx.late:
            _load_rows(ctx, loop, "" if condition else f"{counted} >= {least}")
        _body(ctx, loop.body)


def _load_rows(ctx: Context, loop: For, condition: str) -> None:
    """The loads of the tiles that are loaded in each loop that reads them.

    Args:
        condition: one that holds in each iteration, but not as far as Triton knows; "": none.
    """
    read = frozenset().union(*(read_tensors(store) for store in stores(loop.body)))
    extra: list[Condition] = [(condition, COMPARE)] if condition else []
    for name, stmt in ctx.late.items():
        if name in read:
            assert isinstance(stmt.value, Access)
            ctx.node, ctx.origin = stmt.node_id, stmt.origin
            ctx.line(seq(f"{ctx.tiles[name]} = ", load(ctx, stmt.value, (0, 1), extra)))
            ctx.defined[name] = ctx.padding.shape(shape_of_access(stmt.target))


def _left_out(ctx: Context, loop: For, without: tuple[Access, Access], start: str, stop: str) -> tuple[str, str]:
    """Where the iterations that a loop leaves out begin, between `start` and `stop`, and how many they are.

    Formal statement: with a <= b, those of [a, b) that are not in [f, l) are x for x in [a, g) and x + n for x in
    [g, b - n), where g = min(max(f, a), b) and n = max(min(l, b) - g, 0); with b < a there are none.
    """
    ctx.node, ctx.origin = loop.node_id, loop.origin
    first, last = (_bound(ctx, bound) for bound in without)
    at, count = (ctx.name_for((word, loop.var), f"{loop.var}_{word}", ctx.scope) for word in ("gap", "left_out"))
    ctx.line(f"{at} = tl.minimum(tl.maximum({first}, {start}), {stop})")
    ctx.line(f"{count} = tl.maximum(tl.minimum({last}, {stop}) - {at}, 0)")
    return at, count


def _unless_left_out(ctx: Context, loop: For) -> str:
    """What is asked of a loop of one iteration besides, if it may be left out."""
    if loop.without is None:
        return ""
    first, last = (_bound(ctx, bound) for bound in loop.without)
    return f" & (({first} > 0) | ({last} <= 0))"


def _bound(ctx: Context, bound: Access) -> str:
    """The name of one of two elements that bound a loop."""
    on_chip = ctx.program.tensor(bound.tensor).space == "chip"
    return ctx.tiles[bound.tensor] if on_chip else load_once(ctx, bound, ())


def bind_loop(ctx: Context, loop: For) -> None:
    """Bounds the variable of a loop; sizes at which it never runs do not count inside of it."""
    runs = [env for env in ctx.envs if interval(loop.stop, env).hi > interval(loop.start, env).lo]
    ctx.envs = runs or ctx.envs
    ctx.loops = (*ctx.loops, loop)
    for env in ctx.envs:
        env[loop.var] = loop_interval(loop, env)


def _range(ctx: Context, loop: For, start: str, stop: str) -> str:
    """`range`, or `tl.range` with the arguments that the options require."""
    bounds = stop if start == "0" else f"{start}, {stop}"
    extra: list[str] = []
    stages = ctx.options.loop_stages or (None if _has_dot(ctx.kernel) else ctx.kernel.num_stages)
    if stages is not None and not _has_dot(loop):
        # Triton pipelines loads automatically only if a product uses them.
        extra.append(f"num_stages={stages}")
    if not extra:
        return f"range({bounds})"
    return f"tl.range({', '.join([bounds if start != '0' else f'0, {stop}', *extra])})"


def _has_dot(part: For | Kernel) -> bool:
    return any(isinstance(expr, Dot) for stmt in stores(part.body) for expr in subexpressions(stmt.value))


def _store(ctx: Context, stmt: Store) -> None:
    tensor = ctx.program.tensor(stmt.target.tensor)
    if tensor.space == "chip":
        _store_tile(ctx, stmt, tensor.name, tensor.dtype)
        return
    extra: list[Condition] = []
    if stmt.mask is not None:
        emitted = emit(ctx, stmt.mask)
        extra.append((flat(emitted.doc), emitted.level))
    value = with_dtype(emit(ctx, stmt.value), tensor.dtype)
    ctx.line(give(ctx, stmt.target, value) if tensor.name in ctx.passed else store(ctx, stmt.target, value, extra))


def _store_tile(ctx: Context, stmt: Store, name: str, dtype: str) -> None:
    shape = shape_of_access(stmt.target)
    direct = _direct_load(ctx, stmt.value) if ctx.shape(stmt.value) == shape else None
    value: Doc = whole_tile(ctx, stmt.value, shape, dtype) if direct is None else direct.doc
    if stmt.mask is not None and name in ctx.defined:
        value = call("tl.where", emit(ctx, stmt.mask).doc, value, ctx.tiles[name])
    padded = ctx.padding.shape(shape)
    if ctx.scope.parent is not None and ctx.defined.get(name, padded) != padded:
        raise EmitError(
            f"tile {name} of shape {padded} replaces one of shape {ctx.defined[name]} inside a loop; Triton "
            "expects one shape for a variable that a loop carries",
            help="give the two tiles two names",
        )
    ctx.line(seq(f"{ctx.tiles[name]} = ", Loose(value)))
    ctx.defined[name] = padded


def _direct_load(ctx: Context, expr: TileExpr, order: tuple[int, ...] | None = None) -> ExpressionText | None:
    """A value that is one load, perhaps permuted or cast, without a name of its own; None for any other value, and for
    a tile that an earlier line has loaded: a store between both would keep Triton from loading once."""
    match expr:
        case Access(tensor=name) if ctx.program.tensor(name).space != "chip":
            order = order or tuple(range(len(ctx.shape(expr))))
            if is_loaded(ctx, expr, order):
                return None
            barrier(ctx, expr)
            return ExpressionText(load(ctx, expr, order))
        case Permute(arg=arg, order=own):
            return _direct_load(ctx, arg, own if order is None else tuple(own[n] for n in order))
        case Cast(arg=arg, dtype=dtype):
            emitted = _direct_load(ctx, arg, order)
            return None if emitted is None else converted(ctx, emitted, ctx.dtype(arg), dtype)
        case _:
            return None
