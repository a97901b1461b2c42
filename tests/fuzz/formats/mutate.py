"""Seeded changes of a file: of its bytes, its words, its JSON, its ZIP members, its database rows."""

from __future__ import annotations

import io
import json
import pickle
import re
import sqlite3
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

# What a field is never expected to be.  Text and numbers that break naive readers: far too large, of another type,
# terminal escapes, paths out of the folder, NUL, lone surrogates, and code.
NUMBERS = (0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 1e308, -1e308, 1e-320, 0.5, float("nan"), float("inf"))
TEXTS = (
    "", "\0", "\x1b[2J\x1b[31mred", "../../../etc/passwd", "/etc/passwd", "a" * 5000, "\ud800", "0", "nan", "-",
    "é\u202e", "{}", "__class__", "kernels/../../x.py", "con\n", "\r\n", "__import__('os')", "None", "true", "1e999",
)  # fmt: skip
BYTES = (
    b"\0",
    b"\xff",
    b"{",
    b"}",
    b"[",
    b'"',
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 450,
    b"\xed\xa0\x80",
    b"[" * 3000,
    b"\\u0000",
)


def payloads(canary: Path) -> tuple[str, ...]:
    """Texts that make the file `canary` if Python runs them."""
    call = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    return (call, f"1):\n        pass\n{call}\nfor _ in range(1", f'x"""\n{call}\n"""', f"1\n{call}\n")


def change_bytes(data: bytes, rng: Random) -> bytes:
    """One to four changes of single bytes or of pieces."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        size = rng.choice((1, 1, 2, 8, 100, 1000))
        match rng.randrange(7):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at:at] = rng.choice(BYTES)
            case 2:
                del out[at : at + size]
            case 3:
                out[at:at] = out[at : at + size]
            case 4:
                out[at : at + size] = rng.randbytes(min(size, 16))
            case 5:
                del out[at:]
            case _:
                other = rng.randrange(len(out) + 1)
                out[at : at + size] = out[other : other + size]
    return bytes(out)


def change_words(data: bytes, rng: Random, canary: Path) -> bytes:
    """One to four words or signs replaced by others of the text or by hostile ones, left out, or repeated; or lines."""
    words = re.findall(r"\n *|\w+|\S|[ ]+", data.decode())
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(words))
        match rng.randrange(6):
            case 0 | 1:
                words[at] = rng.choice(words)
            case 2:
                words[at] = str(_hostile(rng, canary))
            case 3:
                words[at : at + rng.choice((1, 1, 5, 40))] = ()
            case 4:
                words[at:at] = words[at : at + rng.choice((1, 2, 10, 60))]
            case _:
                words[at] = rng.choice(
                    ("(" * 300, "-" * 300, "1+" * 300, "\n" + " " * 5000, "0" * 5000, "@", '@"', "`", "#")
                )
    return "".join(words).encode("utf-8", "surrogatepass")


def change_json(data: bytes, rng: Random, canary: Path) -> bytes:
    """One to three changes of a value, a key, or a subtree."""
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = _change(tree, rng, canary)
    text = json.dumps(tree)
    if rng.random() < 0.05:
        text = text.replace('": ', '": 1, "twice": 1, "twice": ', 1)
    return text.encode("utf-8", "surrogatepass")


def _hostile(rng: Random, canary: Path) -> Any:
    match rng.randrange(8):
        case 0 | 1:
            return rng.choice(NUMBERS)
        case 2 | 3:
            return rng.choice(TEXTS)
        case 4:
            return rng.choice(payloads(canary))
        case 5:
            return rng.choice((None, True, False, [], {}, [None], {"": None}))
        case 6:
            deep: Any = 0
            for _ in range(rng.choice((3, 70, 400))):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            return deep
        case _:
            return [rng.choice(NUMBERS)] * rng.choice((1, 3, 2000))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(parent, key) of every value, so that what is deep is drawn as often as what is not."""
    found: list[tuple[Any, Any]] = []
    todo = [tree]
    while todo:
        parent = todo.pop()
        for key in parent if isinstance(parent, dict) else range(len(parent)):
            found.append((parent, key))
            if isinstance(parent[key], dict | list):
                todo.append(parent[key])
    return found


def _change(tree: Any, rng: Random, canary: Path) -> Any:
    if not isinstance(tree, dict | list) or not tree or rng.random() < 0.02:
        return _hostile(rng, canary)
    parents: dict[int, list[tuple[Any, Any]]] = {}
    for parent, key in _places(tree):
        parents.setdefault(id(parent), []).append((parent, key))
    parent, key = rng.choice(rng.choice(list(parents.values())))
    match rng.randrange(7):
        case 0 | 1 | 2:
            parent[key] = _hostile(rng, canary)
        case 3:
            del parent[key]
        case 4 if isinstance(parent, dict):
            parent[str(rng.choice((*TEXTS, "more", "schema")))] = _hostile(rng, canary)
        case 5 if isinstance(parent, dict):
            parent[rng.choice(TEXTS)] = parent.pop(key)
        case 4 | 5:
            parent.insert(key, parent[key])
        case _:
            other, place = rng.choice(_places(tree))
            parent[key] = json.loads(json.dumps(other[place]))
    return tree


class _Payload:
    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return eval, (self.text,)


def change_archive(data: bytes, rng: Random, canary: Path) -> bytes:
    """Members renamed, doubled, cut, packed, replaced by bombs, pickles and headers that lie."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = [(info.filename, file.read(info)) for info in file.infolist()]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))) as file:
        hit = rng.randrange(len(members))
        for n, (name, content) in enumerate(members):
            if n == hit:
                name, content = _changed_member(name, content, rng, canary)
            file.writestr(name, content)
            if n == hit and rng.random() < 0.1:
                file.writestr(name.swapcase(), content)
    return change_bytes(out.getvalue(), rng) if rng.random() < 0.2 else out.getvalue()


def _changed_member(name: str, content: bytes, rng: Random, canary: Path) -> tuple[str, bytes]:
    match rng.randrange(9):
        case 0:
            return rng.choice((f"../{name}", "/etc/passwd.npy", "x/../../y.npy", "é.npy", "a b.npy", "k.NPY")), content
        case 1:
            return name, change_bytes(content, rng)
        case 2:
            return name, _header(rng) + content
        case 3:
            return name, _header(rng)
        case 4:
            return name, bytes(rng.choice((0, 1, 1 << 20)))
        case 5:
            return name, pickle.dumps(_Payload(payloads(canary)[0]))
        case 6:
            file = io.BytesIO()
            np.save(file, np.array([_Payload(payloads(canary)[0]), 1], dtype=object), allow_pickle=True)
            return name, file.getvalue()
        case 7:
            file = io.BytesIO()
            kind = rng.choice(("<U3", "S4", "M8[s]", "c16", "i2,f4", "?", ">f8", "g", "f2", "u1"))
            np.save(file, np.zeros(rng.choice(((), (0,), (3,), (1, 2, 3, 4))), kind))
            return name, file.getvalue()
        case _:
            return name, content[: rng.randrange(len(content) + 1)]


def _header(rng: Random) -> bytes:
    shape = rng.choice(("(10**9,)", "(1000000000000,)", "(-1,)", "(2.5,)", "('a',)", "()", "(1,) * 100", "((" * 500))
    kind = rng.choice(("<f4", "|O", "<f8", "V1000000000", "nonsense", "__import__('os')"))
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + bytes((rng.choice((1, 2, 3, 9)), 0)) + len(text).to_bytes(2, "little") + text


def change_rows(data: bytes, rng: Random, canary: Path, folder: Path) -> bytes:
    """Values of rows replaced, tables dropped or of other columns."""
    path = folder / "changing.sqlite"
    path.write_bytes(data)
    db = sqlite3.connect(path)
    try:
        (table,) = db.execute("select name from sqlite_master where type = 'table'").fetchone()
        columns = [row[1] for row in db.execute(f"pragma table_info({table})")]
        match rng.randrange(8):
            case 0:
                db.execute(f"drop table {table}")
            case 1:
                db.execute(f"alter table {table} rename column {rng.choice(columns)} to other")
            case 2:
                db.execute(f"create view other as select * from {table}")
            case 3 | 4:
                texts = [text for (text,) in db.execute(f"select record from {table}")]
                changed = change_json(texts[0].encode(), rng, canary).decode("utf-8", "replace")
                db.execute(f"update {table} set record = ? where rowid = 1", (changed,))
            case _:
                value = _hostile(rng, canary)
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    value = str(value)
                if isinstance(value, str):
                    value = (
                        value.encode("utf-8", "replace").decode()
                        if rng.random() < 0.7
                        else value.encode("utf-8", "replace")
                    )
                elif isinstance(value, list | dict):
                    value = json.dumps(value).encode()
                column = rng.choice(columns)
                db.execute(f"update or ignore {table} set {column} = ? where rowid = ?", (value, rng.choice((1, 2))))
        db.commit()
    except sqlite3.Error:
        db.rollback()  # such as a record that is null, which the table does not take
    finally:
        db.close()
    found = path.read_bytes()
    path.unlink()
    return found
