"""The setups: the operators of the papers' tables, at the sizes of their figures, the important ones first.

A setup is one operator at one size (Neptune, section 7, uses the term for one on one GPU).  Creating one needs only
NumPy, so that a machine without TVM can measure kernels that were compiled elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from neptune_lab.errors import MeasureError
from neptune_lab.operators import PRESETS, Operator, find, gemm_chain
from neptune_lab.operators.presets import TEN
from neptune_lab.runtime.accuracy import AttentionCase, case_of
from neptune_lab.strict.dtypes import itemsize

Group = Literal["attention", "norms", "performer", "chains", "modules", "batch"]

ROWS = (32, 256)
COLUMNS = (2**14, 2**15, 2**17)
BATCHES = (2, 4, 8, 16, 32)
BATCH_LENGTH = 8192
BATCH_OPERATORS = ("gqa_pf", "causal_pf", "gqa_dc", "causal_dc")
NORMS = ("l2_norm", "rms_norm_max", "rms_norm_quantize")
CHAINS = tuple(gemm_chain.PRESETS)
MODULES = tuple(name for name, preset in PRESETS.items() if preset.paper.startswith("MCFuser"))

# The lengths, the most informative first, since the time may run out.
_ORDER = (8192, 2048, 512, 32768)


@dataclass(frozen=True)
class Setup:
    """One operator at one size.

    Args:
        name: unique, such as "causal_pf-2048".
        row: the row of a table that it belongs to, such as "causal_pf".
        group: the table or figure that shows it.
        operator: its name for `operators.find`.
        sizes: arguments of that function.
        cold: L2 is flushed before each launch (decoding reads each key and value once); otherwise a CUDA graph is
            replayed.
    """

    name: str
    row: str
    group: Group
    operator: str
    sizes: Mapping[str, Any] = field(hash=False)
    cold: bool = False

    def __reduce__(self) -> tuple[type[Setup], tuple[Any, ...]]:
        """Pickles only the fields: an operator holds functions, which cannot be pickled."""
        return Setup, tuple(getattr(self, f.name) for f in fields(self))

    @cached_property
    def op(self) -> Operator:
        """The operator; TVM is loaded only when its program is used."""
        return find(self.operator)(**self.sizes)

    @property
    def is_attention(self) -> bool:
        """Whether it takes q, k and v and may be given to attention libraries."""
        return self.group in ("attention", "modules", "batch")

    @cached_property
    def case(self) -> AttentionCase:
        """Its form for attention libraries; of attention setups only."""
        return case_of(self.op)

    @cached_property
    def flops(self) -> float:
        """Operations of its matrix products, 0 if it has none; masked pairs of positions do not count."""
        shapes = {t.name: t.shape for t in self.op.inputs}
        if self.is_attention:
            batch, heads, _, width = shapes["q"]
            return 2.0 * batch * heads * seen_pairs(self.case) * (width + shapes["v"][-1])
        if self.group == "chains":
            batch, m, k = shapes["a"]
            _, n, h = shapes["d"]
            return 2.0 * batch * m * n * (k + h)
        if self.group == "performer":
            return 8.0 * prod(shapes["q"]) * shapes["proj"][0]
        return 0.0

    @cached_property
    def bytes(self) -> int:
        """Bytes of all inputs and outputs, once each."""
        return sum(_size(t.shape, t.dtype) for t in (*self.op.inputs, *self.op.outputs))

    @cached_property
    def kv_bytes(self) -> int:
        """Bytes of keys and values, once each; 0 if there are none."""
        return sum(_size(t.shape, t.dtype) for t in self.op.inputs if self.is_attention and t.name in "kv")


def seen_pairs(case: AttentionCase) -> int:
    """Pairs of a query and a key that the mask of a head leaves."""
    if not case.causal:
        return case.q_len * case.kv_len
    seen = np.arange(case.q_len, dtype=np.int64) + (case.kv_len - case.q_len) + 1
    return int(np.clip(seen, 0, case.window or case.kv_len).sum())


def all_setups() -> tuple[Setup, ...]:
    """Every setup, the most important first."""
    attention = [_attention(row, n) for n in _ORDER for row in TEN]
    norms = [_norm(row, rows, cols) for row in NORMS for rows in ROWS for cols in COLUMNS]
    performers = [_performer(n) for n in _ORDER]
    chains = [Setup(name, name, "chains", name, {}) for name in CHAINS]
    modules = [Setup(name, name, "modules", name, {}) for name in MODULES]
    batches = [_batch(row, b) for b in BATCHES for row in BATCH_OPERATORS]
    return (*attention, *norms, *performers, *chains, *modules, *batches)


def tiny_setups() -> tuple[Setup, ...]:
    """One or two setups of each group at tiny sizes, for Triton's interpreter: they test the benchmark itself."""
    small = {"head_dim": 16, "heads": 2}
    rows = ("causal_pf", "softcap_pf", "gqa_dc")
    attention = [_attention(row, n, {**small, **_kv_heads(row)}) for row in rows for n in (64, 128)]
    batches = [_batch("gqa_pf", b, 64, {**small, **_kv_heads("gqa_pf")}) for b in (1, 2)]
    chain = {"batch": 1, "m": 32, "n": 32, "k": 16, "h": 16}
    return (
        *attention,
        *(_norm(row, 4, n) for row in NORMS for n in (64, 128)),
        Setup("performer-64", "performer", "performer", "performer", {"heads": 2, "seq": 64, "features": 32} | _narrow),
        Setup("g1", "g1", "chains", "g1", chain),
        Setup("s1", "s1", "modules", "s1", {"heads": 2, "q_len": 32, "kv_len": 32, "head_dim": 16, "v_head_dim": 16}),
        *batches,
    )


_narrow = {"head_dim": 16}


def choose(setups: Sequence[Setup], patterns: Iterable[str]) -> tuple[Setup, ...]:
    """The setups whose name, row or group one of the patterns matches (as file names are), in their order.

    Raises:
        MeasureError: a pattern that matches none.
    """
    wanted = tuple(patterns)
    for pattern in wanted:
        if not any(_matches(setup, pattern) for setup in setups):
            names = ", ".join(dict.fromkeys(s.row for s in setups))
            raise MeasureError(f"no setup matches {pattern!r}", help=f"rows are {names}; a name is a row and a size")
    return tuple(s for s in setups if not wanted or any(_matches(s, pattern) for pattern in wanted))


def _matches(setup: Setup, pattern: str) -> bool:
    return any(fnmatchcase(text, pattern) for text in (setup.name, setup.row, setup.group))


def _attention(row: str, length: int, sizes: Mapping[str, Any] | None = None) -> Setup:
    return Setup(f"{row}-{length}", row, "attention", row, {"seq": length, **(sizes or {})}, cold=PRESETS[row].decode)


def _batch(row: str, batch: int, length: int = BATCH_LENGTH, sizes: Mapping[str, Any] | None = None) -> Setup:
    made = {"seq": length, "batch": batch, **(sizes or {})}
    return Setup(f"{row}-{length}-batch{batch}", row, "batch", row, made, cold=PRESETS[row].decode)


def _norm(row: str, rows: int, cols: int) -> Setup:
    sizes = {"rows": rows, "cols": cols, "dtype": "float16"}
    return Setup(f"{row}-{rows}x{cols}", row, "norms", f"norms.{row}", sizes)


def _performer(length: int) -> Setup:
    sizes = {"heads": 8, "seq": length, "head_dim": 64, "features": 256}
    return Setup(f"performer-{length}", "performer", "performer", "performer", sizes)


def _kv_heads(row: str) -> dict[str, int]:
    return {"kv_heads": 1} if "kv_heads" in PRESETS[row].sizes else {}


def _size(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * itemsize(dtype)
