"""The operator of a command line, and the choice to compile it with: the options that several commands share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neptune_lab.cli.from_file import FromFile, from_file, names_a_file
from neptune_lab.errors import DefinitionError

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Choice


def _size(help: str) -> Any:
    return Annotated[int | None, typer.Option(min=1, metavar="N", help=help)]


# Options of every command that takes an operator: the operator's sizes, then the template's.
SIZES = {
    "batch": "Number of sequences, or of products.",
    "heads": "Number of query heads.",
    "kv_heads": "Number of heads of keys and values.",
    "seq": "Number of positions: of queries and of keys.",
    "q_len": "Number of queries, if it is not --seq.",
    "kv_len": "Number of keys, if it is not --seq.",
    "head_dim": "Numbers per query and key.",
    "v_head_dim": "Numbers per value.",
    "window": "attention.window: keys that a query sees.",
    "prefix": "attention.prefix: keys that every query sees.",
    "latent": "mla: numbers per compressed key.",
    "rope": "mla: numbers per key with a rotary position.",
    "nope": "mla: numbers per query before W_uk; only the scale depends on it.",
    "rows": "Norms, softmax, losses: number of rows.",
    "cols": "Norms, softmax, losses: numbers per row.",
    "features": "performer: number of random features.",
    "m": "gemm_chain: rows of A and of the output.",
    "n": "gemm_chain: columns of A B, which the second product sums.",
    "k": "gemm_chain: columns of A, which the first product sums.",
    "h": "gemm_chain: columns of the output.",
}
OPTIONS: dict[str, Any] = {
    **{name: _size(help) for name, help in SIZES.items()},
    "cap": Annotated[float | None, typer.Option(help="For attention.softcap: scores are limited to ±cap.")],
    "eps": Annotated[float | None, typer.Option(help="The constant added under a square root, or to an exponential.")],
    "causal": Annotated[bool | None, typer.Option("--causal/--no-causal", help="Whether to apply the causal mask.")],
    "return_lse": Annotated[bool | None, typer.Option("--return-lse", help="Also return the log-sum-exp.")],
    "dtype": Annotated[str | None, typer.Option(help="Dtype of the inputs: float16, bfloat16 or float32.")],
}
TILES = {"block_q": "Rows of a tile.", "block_kv": "Columns of a tile: numbers of the loop's axis per iteration."}
SHARED: dict[str, Any] = {
    "operator": Annotated[
        str,
        typer.Argument(
            help="Operator or preset (`neptune-lab list` shows them with their sizes), or a function or module of "
            "PyTorch as FILE.py:NAME, with --inputs.",
            metavar="OPERATOR",
        ),
    ],
    "inputs": Annotated[
        str | None,
        typer.Option(help='For FILE.py:NAME: its inputs, as in "q=float16[1,4,256,64] scale=0.125".'),
    ],
    **OPTIONS,
    "template": Annotated[
        str | None, typer.Option(help="rolling_update or split_k_update (default: chosen by shape).")
    ],
    **{name: _size(help) for name, help in TILES.items()},
    "option": Annotated[
        list[str] | None,
        typer.Option(
            *("--option", "-O"),
            metavar="NAME=VALUE",
            help="Any other option of the template or of code generation; can be repeated.",
        ),
    ],
}


@dataclass(frozen=True)
class Request:
    """The operator that a command line names, and the choice of template and options to compile it with.

    Args:
        named: the operator, or the function of a file that it is traced from.
        choice: template and options.
        chosen: whether the command line gives any.
    """

    named: Operator | FromFile
    choice: Choice
    chosen: bool

    @cached_property
    def operator(self) -> Operator:
        """The operator; DefinitionError if a function cannot become one."""
        if not isinstance(self.named, FromFile):
            return self.named
        from neptune_lab.torch_to_stages import from_torch

        return from_torch(self.named.function, *self.named.arguments, name=self.named.title)


def with_operator(command: Callable[..., None]) -> Callable[..., None]:
    """`command(request, **its own options)` as a command that takes the shared options too."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run_command(**given: Any) -> None:
        shared = {name: given.pop(name) for name in SHARED}
        made = _operator_or_function(shared["operator"], shared["inputs"], {n: shared[n] for n in OPTIONS})
        options = {n: shared[n] for n in TILES if shared[n] is not None}
        for name, value in map(_option, shared["option"] or ()):
            if name in options:
                raise DefinitionError(f"{name} is given twice", help="leave one of the two options out")
            options[name] = value
        choice = _choice(shared["template"], options)
        command(Request(made, choice, shared["template"] is not None or bool(options)), **given)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(n, kind, annotation=a, default=inspect.Parameter.empty if n == "operator" else None)
        for n, a in SHARED.items()
    ]
    parameters += [p.replace(kind=kind) for p in own]
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    run_command.__name__, run_command.__doc__ = command.__name__, command.__doc__
    return run_command


def _choice(template: str | None, options: dict[str, Any]) -> Choice:
    """The choice of `--template`, `--block-q`, `--block-kv` and `-O name=value ...`."""
    from neptune_lab.pipeline import Choice

    Choice.of(template, {}, "--template")  # names the option that is wrong
    return Choice.of(template, options, "--option")


def _option(text: str) -> tuple[str, Any]:
    """`splits=4`, `loads=descriptors`, `block_q=64,32` (one per nest), `interleave=2`, `persistent=true`."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise DefinitionError(f"--option {text!r}: expected name=value", help="for example --option splits=4")
    known = {"true": True, "false": False, "none": None}

    def one(part: str) -> Any:
        if part.lower() in known:
            return known[part.lower()]
        return int(part) if re.fullmatch(r"-?[0-9]{1,30}", part) else part

    parts = [one(part) for part in value.split(",")]
    return name, tuple(parts) if len(parts) > 1 or name == "disable_passes" else parts[0]


def _operator_or_function(name: str, inputs: str | None, sizes: dict[str, Any]) -> Operator | FromFile:
    """The operator, or the function of a file with its inputs; DefinitionError if options of the other are given."""
    if not names_a_file(name):
        if inputs is not None:
            raise DefinitionError(
                f"{name} has no option --inputs", help="it is for FILE.py:NAME; an operator takes its sizes by name"
            )
        return _operator(name, sizes)
    given = [f"--{n.replace('_', '-')}" for n, v in sizes.items() if v is not None]
    if given:
        raise DefinitionError(f"{name} has no option {given[0]}", help="--inputs states the shapes and dtypes")
    return from_file(name, inputs)


def _operator(name: str, sizes: dict[str, Any]) -> Any:
    """The operator with the sizes of the command line; DefinitionError names an option that it does not take."""
    from neptune_lab.operators import find

    make = find(name)
    parameters = inspect.signature(make).parameters
    given = {k: v for k, v in sizes.items() if v is not None}
    for option in given:
        if option not in parameters:
            known = [f"--{p.replace('_', '-')}" for p in parameters if p in sizes]
            raise DefinitionError(
                f"{name} has no option --{option.replace('_', '-')}", help=f"it takes {', '.join(known)}"
            )
    lengths = {"seq", "q_len", "kv_len"} & set(parameters)
    if "seq" in lengths and parameters["seq"].default in (None, inspect.Parameter.empty) and not lengths & set(given):
        pair = ", or --q-len 1 --kv-len 128" if len(lengths) == 3 else ""
        raise DefinitionError(f"{name} needs --seq", help=f"for example --seq 128{pair}")
    missing = [p for p, v in parameters.items() if v.default is inspect.Parameter.empty and p not in given]
    if missing:
        raise DefinitionError(
            f"{name} needs --{missing[0].replace('_', '-')}",
            help="`neptune-lab list` lists the arguments of each operator",
        )
    return make(**given)
