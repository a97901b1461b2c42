"""Random definitions that normalisations may rewrite: products whose factors have scales, sums and concatenations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from neptune_lab.loop_ir.nodes import Program
from neptune_lab.loop_ir.parser import from_text

ROWS, KEYS, COLUMNS = 4, 6, 3


@dataclass
class _Text:
    """A definition as text, stage by stage."""

    rng: np.random.Generator
    buffers: list[str] = field(default_factory=list)
    nests: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def one_of(self, *choices: str) -> str:
        return str(self.rng.choice(choices))

    def input(self, name: str, shape: str, dtype: str) -> str:
        """A new input, and its elements in float32."""
        self.inputs.append(name)
        self.buffers.append(f"  input {name} {dtype}[{shape}]")
        return f"float32({name}[{{}}])" if dtype != "float32" else f"{name}[{{}}]"

    def stage(self, name: str, loops: dict[str, int], value: str, dtype: str = "float32", kind: str = "global") -> str:
        shape = ", ".join(map(str, loops.values()))
        self.buffers.append(f"  {kind} {name} {dtype}[{shape}]")
        axes = ", ".join(loops)
        self.nests.append(
            f"for {axes} in grid({shape}):\n    block {name}({axes}):\n        {name}[{axes}] = {value}\n"
            if len(loops) > 1
            else f"for {axes} in range({shape}):\n    block {name}({axes}):\n        {name}[{axes}] = {value}\n"
        )
        return name

    def fold(self, name: str, loops: dict[str, int], folded: dict[str, int], op: str, term: str) -> str:
        every, axes = {**loops, **folded}, ", ".join(loops)
        shape = ", ".join(map(str, loops.values()))
        self.buffers.append(f"  global {name} float32[{shape}]")
        start = {"max": "-inf", "add": "0.0"}[op]
        own = f"{name}[{axes}]"
        body = f"{own} = max({own}, {term})" if op == "max" else f"{own} += {term}"
        self.nests.append(
            f"for {', '.join(every)} in grid({', '.join(map(str, every.values()))}):\n"
            f"    block {name}({axes}, {', '.join(f'reduce {v}' for v in folded)}):\n"
            f"        init {own} = {start}\n        {body}\n"
        )
        return name

    def program(self) -> Program:
        head = f"program drawn({', '.join(self.inputs)}) -> out\n"
        return from_text(head + "\n".join(self.buffers) + "\n\n" + "".join(self.nests))


def random_product(seed: int) -> Program:
    """A product of which a factor may have a scale per row, or be a difference, of values of any magnitude.

    Args:
        seed: the same seed gives the same definition.

    Returns:
        A definition; its stage "product" is the product.
    """
    t = _Text(np.random.default_rng(seed))
    rows, both = {"i": ROWS}, {"i": ROWS, "j": KEYS}
    weights = [_weights(t, n, rows, both) for n in range(int(t.rng.integers(1, 3)))]
    factor = weights[0]
    if len(weights) > 1:
        factor = f"{weights[0]} {t.one_of('+', '-')} {weights[1]} * {t.one_of('0.3', '-2.0', '1.0')}"
    dtype = t.one_of("float32", "float16")
    t.stage("p", both, f"float16({factor})" if dtype == "float16" else factor, dtype)
    v = t.input("v", f"{KEYS}, {COLUMNS}", t.one_of("float16", "float32", "bfloat16")).format("j, c")
    p = "float32(p[i, j])" if dtype == "float16" else "p[i, j]"
    t.fold("product", {"i": ROWS, "c": COLUMNS}, {"j": KEYS}, "add", f"{p} * {v}")
    t.stage("out", {"i": ROWS, "c": COLUMNS}, "product[i, c]", kind="output")
    return t.program()


def _weights(t: _Text, n: int, rows: dict[str, int], both: dict[str, int]) -> str:
    """A factor over (i, j): a numerator and what divides or multiplies it."""
    x = t.input(f"x{n}", f"{ROWS}, {KEYS}", t.one_of("float16", "float32")).format("i, j")
    part = {"k": KEYS // 2 if t.rng.random() < 0.15 else KEYS}  # some reductions see a part of the row only
    xk = x.replace("j", "k")
    kind = t.one_of("softmax", "softmax", "sink", "norm", "largest", "plain", "cat")
    if kind == "cat":
        return _concatenated(t, n, rows, x)
    if kind in ("softmax", "sink"):
        t.fold(f"m{n}", rows, part, "max", xk)
        top = f"m{n}[i]"
        if kind == "sink":
            s = t.input(f"s{n}", f"{ROWS}", "float32").format("i")
            top = f"{t.stage(f'top{n}', rows, f'max(m{n}[i], {s})')}[i]"
        t.stage(f"e{n}", both, f"exp({x} - {top})")
        t.fold(f"r{n}", rows, part, "add", f"e{n}[i, k]")
        total = f"r{n}[i]"
        if kind == "sink" and t.rng.random() < 0.7:
            total = f"({total} + exp({s} - {top}))"
        return f"e{n}[i, j] / {total}"
    if kind == "norm":
        t.fold(f"q{n}", rows, part, "add", f"{xk} * {xk}")
        return f"{x} / {t.one_of(f'max(sqrt(q{n}[i]), 1e-12)', f'sqrt(q{n}[i])')}{t.one_of('', ' * 10.0')}"
    if kind == "largest":
        t.fold(f"a{n}", rows, part, "max", f"abs({xk})")
        return f"round({x} / a{n}[i] * 127.0) {t.one_of('*', '/')} a{n}[i]"
    s = t.input(f"s{n}", f"{ROWS}", t.one_of("float16", "float32")).format("i")
    return f"{x} {t.one_of('*', '/')} {s}"


def _concatenated(t: _Text, n: int, rows: dict[str, int], x: str) -> str:
    """A softmax over a row and one more element, before or after it."""
    s = t.input(f"s{n}", f"{ROWS}", t.one_of("float16", "float32")).format("i")
    longer, first = KEYS + 1, t.rng.random() < 0.5
    parts = (s, x.replace("j", "j - 1")) if first else (x, s)
    t.stage(f"c{n}", {"i": ROWS, "j": longer}, f"where(j < {1 if first else KEYS}, {parts[0]}, {parts[1]})")
    t.fold(f"m{n}", rows, {"k": longer}, "max", f"c{n}[i, k]")
    t.stage(f"e{n}", {"i": ROWS, "j": longer}, f"exp(c{n}[i, j] - m{n}[i])")
    t.fold(f"r{n}", rows, {"k": longer}, "add", f"e{n}[i, k]")
    return f"e{n}[i, {'j + 1' if first else 'j'}] / r{n}[i]"


def random_entropy(seed: int) -> Program:
    """A sum of what may be probabilities times their logarithms, of values of any magnitude.

    Args:
        seed: the same seed gives the same definition.

    Returns:
        A definition; its stage "sum" is the sum.
    """
    t = _Text(np.random.default_rng(seed))
    rows, both = {"i": ROWS}, {"i": ROWS, "j": KEYS}

    def rarely() -> bool:
        return bool(t.rng.random() < 0.12)

    x = t.input("x", f"{ROWS}, {KEYS}", t.one_of("float16", "float32")).format("i, j")
    s = t.input("s", f"{ROWS}", "float32").format("i")
    part, whole = {"k": KEYS // 2}, {"k": KEYS}
    t.fold("m", rows, part if rarely() else whole, "max", x.replace("j", "k"))
    top = f"{t.stage('top', rows, f'max(m[i], {s})')}[i]" if rarely() else "m[i]"
    t.stage("e", both, f"exp({x} - {top})")
    term = t.one_of("e[i, k] * 2.0", "e[i, k] + 0.5", "e[i, k] * e[i, k]") if rarely() else "e[i, k]"
    t.fold("r", rows, part if rarely() else whole, "add", term)
    total = f"{t.stage('more', rows, f'r[i] + exp({s} - {top})')}[i]" if rarely() else "r[i]"
    other = f"({x} - {s})" if rarely() else f"({x} - {top})"
    log = f"{x} - ({top} + log({total}))" if rarely() else f"{other} - log({total})"
    t.stage("l", both, log)
    p = t.one_of("exp(l[i, j])", f"e[i, j] / {total}", f"exp({x} - {top} - log({total}))")
    second = f"log(e[i, j] / {total})" if rarely() else "l[i, j]"
    factors = (p, second) if t.rng.random() < 0.5 else (second, p)
    t.fold("sum", rows, {"j": KEYS}, "add", f"({factors[0]}) * ({factors[1]})")
    t.stage("out", rows, f"sum[i] * {s}", kind="output")
    return t.program()


def random_twice(seed: int) -> Program:
    """A row that is scaled, and whose maximum and sum are computed twice, in spellings that may differ in a number.

    Args:
        seed: the same seed gives the same definition.

    Returns:
        A definition; its stages "m" and "n", and "r" and "o", may be the same, and "s" and "u" are maps of inputs.
    """
    t = _Text(np.random.default_rng(seed))
    rows, both, along = {"i": ROWS}, {"i": ROWS, "j": KEYS}, {"k": KEYS}
    x = t.input("x", f"{ROWS}, {KEYS}", t.one_of("float16", "float32")).format("i, j")
    factor, other = (t.one_of("0.5", "0.5", "-2.0", "0.0", "-0.0") for _ in range(2))

    def scaled(name: str, by: str) -> str:
        """A stage, or its value, read at (i, j)."""
        dtype = t.one_of("", "float32", "float32", "float16")
        if not dtype:
            return f"({x} * {by})"
        t.stage(name, both, f"float16({x} * {by})" if dtype == "float16" else f"{x} * {by}", dtype)
        return f"float32({name}[i, j])" if dtype == "float16" else f"{name}[i, j]"

    first, second = scaled("s", factor), scaled("u", other)
    part = along if t.rng.random() < 0.8 else {"k": KEYS // 2}
    t.fold("m", rows, along, "max", first.replace("j", "k"))
    t.fold("n", rows, part, "max" if t.rng.random() < 0.8 else "add", second.replace("j", "k"))
    t.fold("r", rows, along, "add", f"{first} - m[i]".replace("j", "k"))
    t.fold("o", rows, part, "add", f"{second} - n[i]".replace("j", "k"))
    kind = t.one_of("rows", "all")
    value = f"{first} - n[i] + r[i] / (o[i] + 1.0)" if kind == "all" else "m[i] - n[i] + r[i] / (o[i] + 1.0)"
    t.stage("out", both if kind == "all" else rows, value, kind="output")
    return t.program()


__all__ = ["random_entropy", "random_product", "random_twice"]
