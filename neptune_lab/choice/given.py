"""What a caller gives of a choice: an option that is given replaces that option alone, and the rest is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

from neptune_lab.choice.choice import Choice
from neptune_lab.choice.options import OF_GLUON, CodeOptions
from neptune_lab.errors import NeptuneError
from neptune_lab.loop_schedule.templates import CONFIGS, SplitKConfig, TileConfig

_CODE = {f.name: f.default for f in fields(CodeOptions)}
_SIZES = {f.name: f.default for f in fields(SplitKConfig)}
# Options that kernels in Gluon go without: who gives one gets Triton, unless `code` says otherwise.
OF_TRITON = frozenset(
    {"num_warps", "num_stages", "loads", "loop_stages", "dependent_launch", "combine", "hidden_tiles"}
)
# Who gives tiles of fewer columns gets Triton likewise: on an H200, 32 columns in Gluon and in Triton took 206 and 193
# us (4 x 16 x 2048 x 128, causal), 163 and 160 (2 x 16 x 3000 x 64, causal), 46 and 35 (2 x 32 in 8 x 700 x 64).
FEWEST_OF_GLUON = 64


@dataclass(frozen=True, slots=True)
class Given:
    """A template and options by name, as a caller gives them.

    Args:
        template: None: it is chosen.
        options: (name, value) of fields of the template's config and of `CodeOptions`, by name; also of those that have
            their default.

    >>> tuned = Choice.of("rolling_update", {"block_q": 128, "block_kv": 64, "num_warps": 8})
    >>> str(Given.of(None, {"block_kv": 32}).over(tuned))
    'rolling_update block_kv=32 block_q=128 num_warps=8'
    """

    template: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, template: str | None, options: Mapping[str, Any], where: str = "options") -> Given:
        """What is given, checked.

        Args:
            options: by name; a size that is None is chosen.
            where: their source, for messages.

        Raises:
            ScheduleError, EmitError: no such template or option, a value that it does not take, or options that
                exclude each other.
        """
        told = {name: value for name, value in options.items() if value is not None or name not in _SIZES}
        if template is None and "splits" in told:
            template = "split_k_update"
        if "code" not in told and any(name in OF_GLUON and value != _CODE[name] for name, value in told.items()):
            told["code"] = "gluon"
        choice = Choice.of(template, told, where)
        choice.code.check_together()
        return cls(template, tuple(sorted((name, choice.value(name)) for name in told)))

    @classmethod
    def of_parts(cls, template: str | None, config: TileConfig | None, code: CodeOptions | None) -> Given:
        """The same of a config, whose fields are given if they differ from their defaults, and of code options, whose
        fields are given if their names are (`CodeOptions.named`).

        Raises:
            ScheduleError: no such template, or one without splits that are given.
        """
        sizes = {} if config is None else {f.name: getattr(config, f.name) for f in fields(config)}
        told = {name: value for name, value in sizes.items() if value != _SIZES[name]}
        return cls.of(template, told | ({} if code is None else {name: getattr(code, name) for name in code.named}))

    def __bool__(self) -> bool:
        """Whether anything is given."""
        return self.template is not None or bool(self.options)

    @property
    def alone(self) -> Choice:
        """The choice in which nothing is chosen but what is given; the rest follows from the shape."""
        return Choice.of(self.template, dict(self.options))

    @property
    def language(self) -> str | None:
        """The language of the kernels that have these options; None: either."""
        given = dict(self.options)
        needs = any(name in OF_TRITON and value != (_SIZES | _CODE)[name] for name, value in given.items())
        columns = given.get("block_kv")
        needs = needs or (isinstance(columns, int) and columns < FEWEST_OF_GLUON)
        return given.get("code", "triton" if needs else None)

    def fits(self, choice: Choice) -> bool:
        """Whether what is given can replace parts of a choice: its kernel then has all of these options."""
        same = self.template in (None, choice.template) or choice.template is None
        return same and self.language in (None, choice.code.code)

    def over(self, choice: Choice) -> Choice:
        """The choice with what is given in place of its own; options of code that exclude what is given are left
        out."""
        if not self:
            return choice
        template, given = self.template or choice.template, dict(self.options)
        kind = CONFIGS.get(template or "", type(choice.sizes))
        own = {f.name: getattr(choice.sizes, f.name) for f in fields(choice.sizes)}
        names = {f.name for f in fields(kind)}
        told = {name: _merged(value, own.get(name)) for name, value in given.items() if name in names}
        config = kind(**{name: value for name, value in (own | told).items() if name in names})
        chosen = choice.config is not None or bool(told)
        return Choice(template, config if chosen else None, self.over_code(choice.code))

    def over_code(self, code: CodeOptions) -> CodeOptions:
        """Options of code with what is given in place of their own; as few of the others as possible are left out."""
        given = {name: value for name, value in self.options if name in _CODE}
        own = {name: getattr(code, name) for name, usual in _CODE.items() if getattr(code, name) != usual}
        for kept in _fewer({name: value for name, value in own.items() if name not in given}):
            with suppress(NeptuneError):
                code = CodeOptions(**kept, **given)
                code.check_together()
                return code
        raise AssertionError("what is given was checked")

    def __str__(self) -> str:
        """The template and the options, on one line."""
        named = [] if self.template is None else [f"template={self.template!r}"]
        return ", ".join([*named, *(f"{name}={value!r}" for name, value in self.options)])


def _merged(given: Any, own: Any) -> Any:
    """A size that is given; where a tuple has None for a nest, the size that was chosen for it."""
    if not isinstance(given, tuple):
        return given
    if isinstance(own, tuple):
        chosen = own if len(own) == len(given) else (None,) * len(given)
    else:
        chosen = (own,) * len(given)
    return tuple(other if size is None else size for size, other in zip(given, chosen, strict=True))


def _fewer(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The options, then all but one, and so on, to none."""
    for count in range(len(options), -1, -1):
        for names in combinations(options, count):
            yield {name: options[name] for name in names}


NOTHING = Given()

__all__ = ["NOTHING", "Given"]
