"""Reads arrays from .npz and .pt files within limits, without running any code in them.

Both are ZIP archives.  The directory of an archive states the unpacked size of each member; the sizes are summed before
anything is unpacked, and a member of another size is refused.  The pickle in a .pt file may name three things, which
are created here; torch is not used.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from neptune_lab.strict.console import shown
from neptune_lab.strict.files import shown_path
from neptune_lab.strict.values import Refusal

# Unpacked bytes and members of an archive.
MOST_BYTES = 8 << 30
MOST_MEMBERS = 4096
# Bytes of the header of an array.
MOST_HEADER = 4096
# Bytes of the pickle that describes a .pt file's tensors.
MOST_PICKLE = 1 << 20

# What parsing a damaged archive, header or pickle raises, by the documentation of zipfile, zlib, NumPy and pickle;
# pickle's list is "not necessarily limited to" AttributeError, EOFError, ImportError and IndexError.
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, pickle.UnpicklingError, struct.error, EOFError, OSError, ValueError, TypeError),
    *(KeyError, IndexError, AttributeError, ImportError, OverflowError, MemoryError, RecursionError, RuntimeError),
    AssertionError,
)
_ARRAY = re.compile(r"[A-Za-z_]\w{0,199}\.npy")
_STORAGE = re.compile(
    r"[\w.-]{1,200}/(data/\d{1,9}|data\.pkl|version|byteorder|\.data/serialization_id|\.format_version|\.storage_alignment)"
)


class _Problem(Exception):
    """What is wrong with an archive; raised again as the caller's error."""


def read_npz(path: Path, error: Refusal, *, most: int = MOST_BYTES) -> dict[str, np.ndarray]:
    """The arrays of a .npz file of booleans and numbers, by name.

    Args:
        most: the most bytes that they may have in all.

    Raises:
        error: no such file, no .npz file, members that are no plain arrays, or more bytes than `most`.
    """

    def arrays(file: zipfile.ZipFile, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        for name in sizes:
            if not _ARRAY.fullmatch(name):
                raise _Problem(f"the member {shown(name)}, which is no array's name")
        return {name.removesuffix(".npy"): _array(name, _member(file, name, size)) for name, size in sizes.items()}

    return _opened(path, error, most, arrays, ".npz file of plain arrays")


def read_pt(path: Path, error: Refusal, *, most: int = MOST_BYTES) -> dict[str, np.ndarray]:
    """The tensors of a dict that `torch.save` wrote, by name, in float32 (float64 stays).

    Args:
        most: the most bytes that they may have in all.

    Raises:
        error: no such file, none that `torch.save` wrote, anything in it but a dict of tensors, or more bytes than
            `most`.
    """

    def tensors(file: zipfile.ZipFile, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        for name in sizes:
            if not _STORAGE.fullmatch(name):
                raise _Problem(f"the member {shown(name)}, which torch.save does not write")
        roots = {name.split("/")[0] for name in sizes}
        root = next(iter(roots), "")
        described = f"{root}/data.pkl"
        if len(roots) != 1 or described not in sizes or sizes[described] > MOST_PICKLE:
            raise _Problem("no description of tensors")
        if f"{root}/byteorder" in sizes and _member(file, f"{root}/byteorder", sizes[f"{root}/byteorder"]) != b"little":
            raise _Problem("another byte order than little")
        loaded = _Tensors(_member(file, described, sizes[described]), file, root, sizes, most).load()
        if not isinstance(loaded, dict) or not all(
            isinstance(v, np.ndarray) and isinstance(k, str) for k, v in loaded.items()
        ):
            raise _Problem("something else than a dict of tensors")
        return dict(loaded)

    return _opened(path, error, most, tensors, ".pt file of a dict of plain tensors")


def _opened(path: Path, error: Refusal, most: int, read: Any, what: str) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as file:
            return read(file, _sizes(file, most))
    except _Problem as problem:
        raise error(f"{shown_path(path)} is no {what}: it has {problem}") from problem
    except FileNotFoundError as cause:
        raise error(f"there is no file {shown_path(path)}") from cause
    except _DAMAGED as cause:
        raise error(f"{shown_path(path)} is no {what}: {shown(str(cause))}") from cause


def _sizes(file: zipfile.ZipFile, most: int) -> dict[str, int]:
    """The unpacked sizes of the members by name; _Problem if there are too many bytes or members."""
    members = file.infolist()
    if len(members) > MOST_MEMBERS:
        raise _Problem(f"{len(members):,} members, of {MOST_MEMBERS:,} at most")
    sizes = {info.filename: info.file_size for info in members}
    if len(sizes) != len(members):
        raise _Problem("two members of one name")
    if sum(sizes.values()) > most:
        raise _Problem(f"{sum(sizes.values()):,} bytes unpacked, of {most:,} at most")
    for info in members:
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _Problem(f"the member {shown(info.filename)}, which is encrypted or packed in another way")
    return sizes


def _member(file: zipfile.ZipFile, name: str, size: int) -> bytes:
    """A member, which has as many bytes as the directory says."""
    with file.open(name) as packed:
        data = packed.read(size + 1)
    if len(data) != size:
        raise _Problem(f"a member {shown(name)} of another size than its directory says")
    return data


# As numpy.save writes it, which sorts the three keys.
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-z?][0-9]{0,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,18}, ?)*[0-9]{0,18})\), \}\s*"
)


def _array(name: str, data: bytes) -> np.ndarray:
    """The array of a .npy file."""
    wide = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}.get(data[:8])
    if wide is None:
        raise _Problem(f"the member {shown(name)}, which is no array of version 1 or 2")
    start = 8 + wide
    stop = start + int.from_bytes(data[8:start], "little")
    header = _HEADER.fullmatch(data[start:stop]) if stop - start <= MOST_HEADER else None
    if header is None:
        raise _Problem(f"an array {shown(name)} with another header than one of numbers")
    dtype = np.dtype(header[1].decode())
    shape = tuple(int(extent) for extent in header[3].decode().replace(" ", "").split(",") if extent)
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise _Problem(f"an array {shown(name)} of dtype {dtype}, which is not a number")
    if len(shape) > 32 or math.prod(shape) * dtype.itemsize != len(data) - stop:
        raise _Problem(f"an array {shown(name)} of shape {shown(shape)}, which is not what it holds")
    flat = np.frombuffer(data, dtype, offset=stop)
    shaped = flat.reshape(shape[::-1]).T if header[2] == b"True" else flat.reshape(shape)
    return np.array(shaped, dtype.newbyteorder("="))


# -- torch.save -----------------------------------------------------------------------------------------------------

# torch's storage classes; bfloat16 is read as its bits.
_STORAGES = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype("<u2"),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("<i1"),
    "ByteStorage": np.dtype("<u1"),
    "BoolStorage": np.dtype("<u1"),
}


class _Storage:
    """A storage class of torch, as the pickle names it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def _refuse_state(_: Any) -> None:
    raise _Problem("something else than tensors: an object with a state")


class _Tensors(pickle._Unpickler):  # pyright: ignore[reportAttributeAccessIssue] - in C, a memo of any size is made
    """Reads the pickle of a .pt file: a tensor becomes an array; anything but tensors and plain data is refused."""

    # The pickle may set no state: NumPy's arrays have a __setstate__ of their own.
    dispatch: ClassVar = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: _refuse_state}  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(self, data: bytes, file: zipfile.ZipFile, root: str, sizes: dict[str, int], most: int) -> None:
        super().__init__(io.BytesIO(data))
        self._file, self._root, self._sizes, self._left = file, root, sizes, most
        self._storages: dict[tuple[str, str], np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if module == "torch" and name in _STORAGES:
            return _Storage(name)
        raise _Problem(f"something else than tensors: {shown(f'{module}.{name}')}")

    def persistent_load(self, pid: Any) -> np.ndarray:
        match pid:
            case ("storage", _Storage(kind=kind), str(key), str(), int(count)) if key.isdigit():
                name = f"{self._root}/data/{key}"
                dtype = _STORAGES[kind]
                if self._sizes.get(name) != count * dtype.itemsize:
                    raise _Problem(f"a storage {shown(name)} of another size than it says")
                if (key, kind) not in self._storages:
                    elements = np.frombuffer(_member(self._file, name, self._sizes[name]), dtype)
                    wide = kind == "BFloat16Storage"
                    self._storages[key, kind] = (elements.astype("<u4") << 16).view("<f4") if wide else elements
                return self._storages[key, kind]
        raise _Problem("a storage of another form")

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> np.ndarray:
        numbers = (offset, *shape, *strides)
        fits = isinstance(storage, np.ndarray) and len(shape) == len(strides) and len(rest) <= 3
        if not fits or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
            raise _Problem("a tensor of another form")
        size = math.prod(shape)
        self._left -= 8 * size
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if self._left < 0 or (size and last >= storage.size):
            raise _Problem(f"a tensor of shape {shown(shape)}, which is more than it holds")
        if not size:
            return np.empty(shape, np.float32)
        steps = [step * storage.itemsize for step in strides]
        view = np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)
        return np.array(view, np.float64 if storage.dtype == np.float64 else np.float32)
