"""Pages that are written from the code each time the site is built, so that they cannot go stale.

They stand in docs/generated/, and copies of the notebooks in docs/course/; git ignores both folders.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from plain_docstrings import escape_markdown, summary, to_markdown
from sphinx.application import Sphinx

from neptune_lab.files import write_text

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent


# -- notebooks --------------------------------------------------------------------------------------------------------


def notebook(text: str) -> str:
    """A notebook as the site takes it: links in Jupyter's way are links in the site's.

    >>> notebook("[a](#1.-Set-up,-at-once) [b](01_rolling_update.ipynb#2.-Tags) [c](../README.md)")
    '[a](#1-set-up-at-once) [b](01_rolling_update.ipynb#2-tags) [c](../../README.md)'
    """
    text = re.sub(r"\]\(([\w-]+\.ipynb)?#([^)]+)\)", lambda found: f"]({found[1] or ''}#{_anchor(found[2])})", text)
    return re.sub(r"\]\(\.\./(?=[^)]+\))", "](../../", text)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower())


def without_scripts(text: str) -> str:
    """A notebook whose figures are SVG only: without the forms for plotly's script and for GitHub."""
    found = json.loads(text)
    for cell in found["cells"]:
        for output in cell.get("outputs", ()):
            if "image/svg+xml" in output.get("data", {}):
                for form in ("application/vnd.plotly.v1+json", "image/png"):
                    output["data"].pop(form, None)
    return json.dumps(found, ensure_ascii=False, indent=1)


def notebooks() -> dict[str, str]:
    """Path below docs/ and text of every notebook."""
    found = sorted((ROOT / "notebooks").glob("*.ipynb"))
    return {f"course/{path.name}": notebook(without_scripts(path.read_text(encoding="utf-8"))) for path in found}


# -- primitives, templates, passes ------------------------------------------------------------------------------------


def primitives() -> str:
    """A table of the registry, then an entry each: the call, what it does, before ⇒ after."""
    from neptune_lab.loop_schedule import PRIMITIVES, Schedule

    made = []
    for ours, title in ((True, "Primitives of Neptune"), (False, "Primitives of TVM")):
        chosen = [p for p in PRIMITIVES.values() if p.ours is ours]
        made += [f"## {title}", "| primitive | what it does |\n| --- | --- |"]
        made[-1] += "".join(f"\n| [`{p.name}`](#{p.name}) | {escape_markdown(p.summary)} |" for p in chosen)
        for p in chosen:
            method = getattr(Schedule, p.name)
            call = f"sch.{p.name}{_signature(method, skip=1)}"
            made += [f"### {p.name}", f"```python\n{call}\n```", to_markdown(p.apply.__doc__ or "")]
    return "\n\n".join(made) + "\n"


def templates() -> str:
    """Each template: its call and its docstring."""
    from neptune_lab.loop_schedule.templates import TEMPLATES

    made = []
    for name, template in TEMPLATES.items():
        call = f"nl.templates.{name}{_signature(inspect.unwrap(template))}"
        made += [f"### The template {name}", f"```python\n{call}\n```", to_markdown(template.__doc__ or "")]
    return "\n\n".join(made) + "\n"


def panes() -> str:
    """A table of the explorer's panes, in their order."""
    rows = [f"| {pane['title']} | {escape_markdown(pane['help'])} |" for pane in _explorer()["panes"]]
    return "\n".join(["| pane | what it shows |", "| --- | --- |", *rows]) + "\n"


def keys() -> str:
    """A table of the explorer's keys, as its help has them."""
    rows = [
        f"| {' '.join(f'<kbd>{key}</kbd>' for key in row['keys'])} | {escape_markdown(row['text'])} |"
        for row in _explorer()["keys"]
    ]
    return "\n".join(["| key | what it does |", "| --- | --- |", *rows]) + "\n"


def _explorer() -> dict[str, list[dict[str, Any]]]:
    """What the panes in widgets/src/panes/ declare, as the build of the front end writes it."""
    path = ROOT / "widgets" / "neptune_widgets" / "static" / "panes.json"
    return json.loads(path.read_text(encoding="utf-8"))


def passes() -> str:
    """A table of the HTile passes in their order, then an entry each."""
    from neptune_lab import htile_passes

    def line(rewrite: htile_passes.Pass) -> str:
        return escape_markdown(htile_passes.summary(rewrite))

    rows = [
        f"| {number if name in htile_passes.PASSES else 'asked for'} | [`{name}`](#{name}) | {line(rewrite)} |"
        for number, (name, rewrite) in enumerate(htile_passes.ALL_PASSES.items(), 1)
    ]
    made = ["\n".join(["| order | pass | what it does |", "| --- | --- | --- |", *rows])]
    for name, rewrite in htile_passes.ALL_PASSES.items():
        made.append(f"### {name}")
        if name != rewrite.__name__:
            made.append(f"[`{rewrite.__name__}`](#{rewrite.__name__}) again, on the result of the passes before it.")
            continue
        made += [line(rewrite), to_markdown(rewrite.__doc__ or "")]
    return "\n\n".join(made) + "\n"


def _signature(function: Callable[..., Any], skip: int = 0) -> str:
    """The parameters without annotations, which the text below explains."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[skip:]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


# -- operators --------------------------------------------------------------------------------------------------------


def operators() -> str:
    """Every operator with its arguments, and every preset with its sizes."""
    from neptune_lab.operators import OPERATORS, PRESETS, gemm_chain

    made = ["### Operators", "| operator | what it computes |\n| --- | --- |"]
    made[-1] += "".join(f"\n| `{name}` | {escape_markdown(summary(make))} |" for name, make in OPERATORS.items())
    made += ["### Presets", "| preset | operator | sizes | from |\n| --- | --- | --- | --- |"]
    for p in PRESETS.values():
        sizes = ", ".join(f"{n}={v}" for n, v in p.sizes.items())
        made[-1] += f"\n| `{p.name}` | `attention.{p.operator.removesuffix('_')}` | {sizes} | {p.model}; {p.paper} |"
    for name, chain in gemm_chain.PRESETS.items():
        sizes = ", ".join(f"{n}={v}" for n, v in chain.items())
        made[-1] += f"\n| `{name}` | `gemm_chain` | {sizes} | MCFuser, Table II |"
    return "\n\n".join(made) + "\n"


def torch_operations() -> str:
    """A table of the ATen operations that `from_torch` takes, and one of those that it refuses by their names."""
    from neptune_lab.torch_to_stages.definitions import DEFINITIONS
    from neptune_lab.torch_to_stages.lowering import lowering_of, taken_operations
    from neptune_lab.torch_to_stages.refusals import HELP

    families: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in taken_operations():
        lowering: Any = lowering_of(name)
        plain = getattr(lowering, "func", lowering)
        file = plain.__module__.rpartition(".")[2]
        families[file][summary(plain)].append(name)
    rows = [
        f"| {file} | {', '.join(f'`{name}`' for name in names)} | {escape_markdown(text)} |"
        for file, texts in families.items()
        for text, names in texts.items()
    ]
    defined = dict.fromkeys(name.partition(".")[0] for name in DEFINITIONS)
    rows.append(f"| definitions | {', '.join(f'`{name}`' for name in defined)} | Made of the others. |")
    made = ["| family | ATen operations | what they compute |", "| --- | --- | --- |", *rows, ""]
    helps: dict[str, list[str]] = defaultdict(list)
    for name, help in HELP.items():
        helps[help].append(name)
    made += ["| refused | help |", "| --- | --- |"]
    made += [f"| {', '.join(f'`{n}`' for n in names)} | {escape_markdown(help)} |" for help, names in helps.items()]
    return "\n".join(made) + "\n"


# -- the command line -------------------------------------------------------------------------------------------------


def command_line() -> str:
    """Every command with its arguments and options, as the program itself has them."""
    from typer.main import get_command

    from neptune_lab.cli import app

    group: Any = get_command(app)
    made = ["| command | what it does |\n| --- | --- |"]
    for name, command in group.commands.items():
        made[0] += (
            f"\n| [`{name}`](#{_slug(f'neptune-lab {name}')}) | {escape_markdown(command.help.split(chr(10))[0])} |"
        )
    for name, command in group.commands.items():
        usage = " ".join(["neptune-lab", name, "[OPTIONS]", *(_argument(p) for p in _kind(command, "argument"))])
        made += [f"## neptune-lab {name}", f"```text\n{usage}\n```", to_markdown(command.help or "")]
        made += ["\n".join(_parameters(command))]
    return "\n\n".join(made) + "\n"


def _kind(command: Any, kind: str) -> list[Any]:
    return [p for p in command.params if p.param_type_name == kind]


def _argument(parameter: Any) -> str:
    name = parameter.metavar or (parameter.name or "").upper()
    return f"{name}..." if parameter.nargs == -1 else name


def _parameters(command: Any) -> Iterator[str]:
    """A list item a parameter; sizes, which have no help of their own, together in one."""
    sizes = [p for p in command.params if _kind_of(p) is int and p.param_type_name == "option" and not p.help]
    for p in command.params:
        if p in sizes:
            if p is sizes[0]:
                yield f"- {', '.join(f'`{q.opts[0]}`' for q in sizes)}: sizes, positive integers."
        elif p.name != "help":
            yield _parameter(p)


def _parameter(p: Any) -> str:
    """Names, help, what it may be, default."""
    if p.param_type_name == "argument":
        names = f"`{p.metavar or (p.name or '').upper()}`"
    else:
        names = ", ".join(f"`{n}`" for n in (*p.opts, *p.secondary_opts))
    kind = _kind_of(p)
    choices = ", ".join(f"`{c.value}`" for c in kind) if isinstance(kind, type) and issubclass(kind, Enum) else ""
    default = getattr(p.default, "value", p.default)
    said = [
        escape_markdown(p.help or ""),
        f"One of {choices}." if choices else "",
        "" if default is None or isinstance(default, bool) or p.required else f"Default: `{default}`.",
        "Required." if p.required else "",
        "May be given several times." if p.multiple else "",
    ]
    text = " ".join(filter(None, said))
    return f"- {names}" + (f": {text}" if text else "")


def _kind_of(p: Any) -> Any:
    return p.type_descriptor.annotation


def _slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


# -- the benchmark ----------------------------------------------------------------------------------------------------


def benchmark() -> str:
    """The tables of the run that comes with the package."""
    from neptune_lab.bench.command import SHIPPED
    from neptune_lab.bench.measured import read
    from neptune_lab.bench.report import for_readme

    return for_readme(read(SHIPPED))


# -- errors -----------------------------------------------------------------------------------------------------------


def errors() -> str:
    """Every error class, and for each the messages that the code raises with what it says would help."""
    from neptune_lab import errors as module

    classes = {n: c for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, Exception)}
    found = dict(raised(frozenset(classes)))
    made = ["| error | what it means |\n| --- | --- |"]
    made[0] += "".join(f"\n| [`{n}`](#{n.lower()}) | {escape_markdown(summary(c))} |" for n, c in classes.items())
    for name, cls in classes.items():
        made += [f"## {name}", to_markdown(cls.__doc__ or "")]
        for package, messages in found.get(name, {}).items():
            made += [f"**`{package}`**", "\n".join(f"- {m}" for m in messages)]
    return "\n\n".join(made) + "\n"


def raised(names: frozenset[str]) -> Iterator[tuple[str, Mapping[str, list[str]]]]:
    """For each error class, by package: "message. *help*", values as {…}; read from the source, nothing is run."""
    found: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    calls = re.compile(rf"\b({'|'.join(names)})\(")
    for folder in (ROOT / "neptune_lab", ROOT / "widgets" / "neptune_widgets"):
        for path in sorted(folder.rglob("*.py")):
            package = ".".join(path.relative_to(folder.parent).with_suffix("").parts[:2])
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if calls.search(text) else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                    if not node.args:
                        continue
                    message = _template(node.args[0])
                    if message:
                        help = next((_template(k.value) for k in node.keywords if k.arg == "help"), "")
                        entry = escape_markdown(message) + (f" *Help: {escape_markdown(help)}*" if help else "")
                        found[node.func.id][package][entry] = None
    for name, packages in found.items():
        yield name, {package: list(entries) for package, entries in packages.items()}


def _template(node: ast.expr) -> str:
    """A message with its values as {name}; "" where it is not written out in place."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return " ".join(node.value.split())
    if isinstance(node, ast.JoinedStr):
        return " ".join("".join(_piece(v) for v in node.values).split())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _template(node.left), _template(node.right)
        return f"{left or '{…}'} {right or '{…}'}".strip() if left or right else ""
    return ""


def _piece(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    inner = value.value if isinstance(value, ast.FormattedValue) else value
    return "{" + (ast.unparse(inner) if isinstance(inner, ast.Name | ast.Attribute) else "…") + "}"


# -- planted bugs -----------------------------------------------------------------------------------------------------


def planted_bugs() -> str:
    """A table of the mutations in tests/fuzz/mutations/: what is wrong, in which function, and what finds it."""
    from fuzz.mutants import mutations  # pyright: ignore[reportMissingImports]

    made = ["| mutation | what is wrong | function | validation | test |", "| --- | --- | --- | --- | --- |"]
    for m in mutations():
        function = m.function.removeprefix("neptune_lab.").replace(":", ".")
        tests = ", ".join(f"`{test}`" for test in m.tests)
        made.append(
            f"| {m.name} | {escape_markdown(m.why)} | `{function}` | {escape_markdown(m.validation)} | {tests} |"
        )
    return "\n".join(made) + "\n"


# -- written ----------------------------------------------------------------------------------------------------------

PAGES: Mapping[str, Callable[[], str]] = {
    "generated/primitives.md": primitives,
    "generated/templates.md": templates,
    "generated/passes.md": passes,
    "generated/panes.md": panes,
    "generated/keys.md": keys,
    "generated/operators.md": operators,
    "generated/torch_operations.md": torch_operations,
    "generated/command_line.md": command_line,
    "generated/benchmark.md": benchmark,
    "generated/errors.md": errors,
    "generated/planted_bugs.md": planted_bugs,
}


def write(folder: Path = DOCS) -> None:
    """Writes every page and notebook that has changed, and removes notebooks that are gone."""
    texts = {name: page() for name, page in PAGES.items()} | notebooks()
    for old in (folder / "course").glob("*.ipynb"):
        if f"course/{old.name}" not in texts:
            old.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text, parents=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Writes the pages before Sphinx looks for its sources."""
    app.connect("config-inited", lambda app, config: write())
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
