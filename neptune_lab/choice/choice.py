"""A choice of template, tile sizes and code options, which is what the tuner calls a candidate.

Records, bundles and `-O` hold its flat form:

    {"template": "rolling_update", "options": {"block_kv": 64, "block_q": 128, "loads": "descriptors"}}

The flat form leaves out fields that have their defaults.  A name in it is a field of the template's config or of
`CodeOptions`, and the two share no name, so a file can set no other argument of `compile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from neptune_lab.choice.options import CodeOptions
from neptune_lab.errors import ScheduleError
from neptune_lab.loop_ir.tree import nearest
from neptune_lab.loop_schedule.templates import CONFIGS, SplitKConfig, TileConfig
from neptune_lab.loop_schedule.templates.config import PerNest
from neptune_lab.runtime.choice import StoredChoice, choice_of, with_tuples
from neptune_lab.strict.console import shown

_CODE = tuple(f.name for f in fields(CodeOptions))


@dataclass(frozen=True, slots=True)
class Choice:
    """The arguments that `compile` makes a kernel with.

    Args:
        template: "rolling_update" or "split_k_update"; None: the operator's own, else by shape.
        config: the template's tile sizes; None: nothing is chosen, all of it follows from the shape.
        code: the options of code generation.

    >>> Choice.from_json(Choice("split_k_update", SplitKConfig(splits=(8, None))).to_json()).options
    {'splits': (8, None)}
    """

    template: str | None = None
    config: TileConfig | None = None
    code: CodeOptions = field(default_factory=CodeOptions)

    @classmethod
    def of(cls, template: str | None, options: Mapping[str, Any], where: str = "options") -> Choice:
        """The choice of a flat form; a list stands for a tuple.

        Args:
            options: fields of the template's config and of `CodeOptions`, by name.
            where: their source, for messages.

        Raises:
            ScheduleError, EmitError: no such template or option, or a value that it does not take.
        """
        if template is not None and (not isinstance(template, str) or template not in CONFIGS):
            raise ScheduleError(
                f"{where}: there is no template {shown(template)}", help=nearest(str(template), [*CONFIGS], "templates")
            )
        kind = CONFIGS.get(template or "", SplitKConfig if "splits" in options else TileConfig)
        sizes = tuple(f.name for f in fields(kind))
        for name in options:
            if name not in sizes and name not in _CODE:
                owner = "" if template is None else f"template {template!r} has no option"
                raise ScheduleError(
                    f"{where}: {owner or 'there is no option'} {shown(name)}",
                    help=nearest(str(name), [*sizes, *_CODE], "options"),
                )
        plain = with_tuples(options)
        config = kind(**{name: value for name, value in plain.items() if name in sizes})
        code = CodeOptions(**{name: value for name, value in plain.items() if name in _CODE})
        return cls(template, None if config == kind() else config, code)

    @classmethod
    def from_json(cls, data: Any, where: str = "choice") -> Choice:
        """What `to_json` wrote.

        Raises:
            ScheduleError, EmitError: it has another form, or as `of`.
        """
        checked = choice_of(data, where, ScheduleError)
        return cls.of(checked["template"], checked["options"], where)

    @property
    def sizes(self) -> TileConfig:
        """The config, or its defaults if nothing is chosen."""
        return self.config or CONFIGS.get(self.template or "", TileConfig)()

    @property
    def splits(self) -> PerNest:
        """The number of splits; None if the template chooses it, or does not split."""
        return self.config.splits if isinstance(self.config, SplitKConfig) else None

    def value(self, option: str) -> Any:
        """The value of an option of the flat form, its default if it is left out."""
        return getattr(self.code if option in _CODE else self.sizes, option)

    @property
    def options(self) -> dict[str, Any]:
        """The flat form: the fields that differ from their defaults, by name, in alphabetical order."""
        parts = (self.config, self.code) if self.config is not None else (self.code,)
        differing = {
            f.name: getattr(part, f.name) for part in parts for f in fields(part) if getattr(part, f.name) != f.default
        }
        return dict(sorted(differing.items()))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data: {"template": name, "options": {name: value}}; a tuple becomes a list."""
        return self._flat.to_json()

    @property
    def _flat(self) -> StoredChoice:
        return StoredChoice(self.template, self.options)

    def __str__(self) -> str:
        """The template and the options that differ from their defaults, on one line.

        >>> str(Choice("rolling_update", TileConfig(block_q=128, block_kv=(64, None))))
        'rolling_update block_kv=64,- block_q=128'
        """
        return str(self._flat)


__all__ = ["Choice"]
