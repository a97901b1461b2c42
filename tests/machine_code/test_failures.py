"""What a compilation to machine code says if it fails for a reason that is not the kernel's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from neptune_lab.errors import MachineCodeError
from neptune_lab.machine_code import compile as compiling
from neptune_lab.machine_code import machine_code
from neptune_lab.machine_code.ahead import DISK, Failure
from neptune_lab.runtime import KernelSpec


def test_a_full_disk_is_not_blamed_on_the_tiles(monkeypatch, tmp_path):
    monkeypatch.setenv("NEPTUNE_LAB_CACHE", str(tmp_path))
    answer = Failure(DISK, "k", "No space left on device")
    monkeypatch.setattr(compiling, "_child", [SimpleNamespace(call=lambda *_, timeout: answer)])
    spec = KernelSpec(name="k", entry="k", text=str(tmp_path), inputs=(), outputs=())
    with pytest.raises(MachineCodeError, match=r"Triton's cache in .* cannot be written: No space left") as caught:
        machine_code(spec, "sm_90")
    assert str(tmp_path / "machine_code") in caught.value.reason
    assert "make room there" in (caught.value.help or "")
