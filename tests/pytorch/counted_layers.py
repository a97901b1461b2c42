"""The layers of models of transformers that call this package's attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import neptune_lab as nl
from neptune_lab.pytorch import transformers_attention


def counted_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """For a fixture: the layers that called our attention; a model that falls back to another one would agree with
    itself."""
    found: list[Any] = []
    ours = transformers_attention.attention_forward

    def counted(module: Any, *args: Any, **named: Any) -> Any:
        found.append(module)
        return ours(module, *args, **named)

    monkeypatch.setattr(transformers_attention, "attention_forward", counted)
    nl.register_attention()
    yield found
    monkeypatch.undo()
    nl.register_attention()
