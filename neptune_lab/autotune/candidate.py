"""A candidate: one template with one choice of its options, the unit that the tuner ranks, compiles and measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune_lab.errors import TuneError
from neptune_lab.runtime.choice import with_lists, with_tuples
from neptune_lab.strict.console import shown
from neptune_lab.strict.values import is_name

if TYPE_CHECKING:
    from neptune_lab.operators import Operator
    from neptune_lab.pipeline import Kernel
    from neptune_lab.target import Target

Option: TypeAlias = "int | str | bool | tuple[int | str | None, ...] | None"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A template's name and its options, sorted by name, so that equal choices are equal candidates.

    Args:
        template: "rolling_update" or "split_k_update".
        options: (name, value) in the order of the names.  A tuple has one entry a nest.  An option that is not
            listed has the template's (or the emitter's) default.
    """

    template: str
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        if not is_name(self.template):
            raise TuneError(
                f"template={shown(self.template)}: expected the name of a template",
                help="such as 'rolling_update' or 'split_k_update'",
            )
        names = [name for name, _ in self.options]
        if names != sorted(set(names)):
            raise TuneError(
                f"options={self.options!r}: expected each name once, in alphabetical order",
                help="write Candidate.of(template, name=value, ...)",
            )
        for name, value in self.options:
            if not is_name(name):
                raise TuneError(
                    f"options={shown(self.options)}: {shown(name)} is not the name of an option",
                    help="such as 'block_q' or 'num_warps'",
                )
            if not _is_option(value):
                raise TuneError(
                    f"{name}={shown(value)}: expected an int, str, bool, None, or a tuple of such",
                    help="such as block_q=64",
                )

    @classmethod
    def of(cls, template: str, **options: Option) -> Candidate:
        """The candidate with these options.

        >>> str(Candidate.of("rolling_update", block_q=128, block_kv=(64, None)))
        'rolling_update block_kv=64,- block_q=128'
        """
        return cls(template, tuple(sorted(options.items())))

    @property
    def kwargs(self) -> dict[str, Option]:
        """The options as keyword arguments of `compile`."""
        return dict(self.options)

    def but(self, **options: Option) -> Candidate:
        """This candidate with some options changed or added; itself where nothing changes.

        >>> Candidate.of("rolling_update", num_warps=4).but(num_warps=8).kwargs
        {'num_warps': 8}
        """
        changed = Candidate.of(self.template, **{**self.kwargs, **options})
        return self if changed == self else changed

    def compile(self, operator: Operator, *, target: Target | str | None = None, validate: str = "quick") -> Kernel:
        """`operator` compiled with this choice; `target` and `validate` are those of `pipeline.compile`.

        Raises:
            NeptuneError: a stage that refuses this choice (a template that does not fit, a tile that is too large).
        """
        from neptune_lab.pipeline import Choice, compile_choice

        choice = Choice.of(self.template, self.kwargs, "a candidate")
        return compile_choice(operator, choice, target=target, validate=validate)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data: {"template": name, "options": {name: value}}; a tuple becomes a list.

        >>> Candidate.from_json(Candidate.of("split_k_update", splits=(8, None)).to_json()).kwargs
        {'splits': (8, None)}
        """
        return {"template": self.template, "options": with_lists(self.kwargs)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Candidate:
        """What `to_json` wrote.

        Raises:
            TuneError: it is not of that form.
        """
        match data:
            case {"template": str(template), "options": dict(options)}:
                return cls.of(template, **with_tuples(options))
        raise TuneError(
            f"{data!r} is not a candidate: expected {{'template': name, 'options': {{name: value}}}}",
            help="write {'template': 'rolling_update', 'options': {'block_q': 64, 'block_kv': 64}}",
        )

    def __str__(self) -> str:
        return " ".join([self.template, *(f"{name}={_short(value)}" for name, value in self.options)])


def _is_option(value: object) -> bool:
    if isinstance(value, tuple):
        return all(not isinstance(v, tuple) and _is_option(v) for v in value)
    return value is None or isinstance(value, int | str | bool)


def _short(value: Option) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_short, value))
    return "-" if value is None else str(value)
