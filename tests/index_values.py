"""The value of an index expression of a tile program."""

from __future__ import annotations

from neptune_lab.htile.nodes import Arith, IndexExpr, Int, Name
from neptune_lab.htile.walk import arith


def value(expr: IndexExpr, env: dict[str, int]) -> int:
    match expr:
        case Int(value=number):
            return number
        case Name(name=name):
            return env[name]
        case Arith(op=op, a=a, b=b):
            return arith(op, value(a, env), value(b, env))
