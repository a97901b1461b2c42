"""The table: every operator and preset, by every schedule, in every dtype, against its float64 reference.

The everyday table takes each operator with one schedule of each template, and presets, which are operators at other
sizes, with one; dtypes and lengths take turns.  Of the presets that differ in sizes alone, S1 to S9 and G1 to G12, it
takes half.  The night takes every operator and preset by every schedule in every dtype, at lengths in turn.
Published sizes are shrunk, their proportions kept where they tell operators apart.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import by_name
import numpy as np
import pytest

from neptune_lab.htile import interpret
from neptune_lab.loop_schedule.templates import TEMPLATES
from neptune_lab.operators import OPERATORS, PRESETS, attention, find, gemm_chain
from neptune_lab.operators.base import Operator
from neptune_lab.pipeline import Kernel
from neptune_lab.runtime import interpreting

TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}  # relative, Frobenius norm
TILES = {"block_q": 16, "block_kv": 16}

# 1000 splits are as many as there are tiles; 5 tiles divide into neither 2 nor 3 equal splits.
SCHEDULES: dict[str, dict[str, Any]] = {
    "rolling": {"template": "rolling_update"},
    "split_each_tile": {"template": "split_k_update", "splits": 1000},
    "split_in_2": {"template": "split_k_update", "splits": 2},
    "split_in_3": {"template": "split_k_update", "splits": 3},
}
# Rows (queries) and columns (keys), in tiles of 16: dividing, not dividing, more than one, one.
LENGTHS = [(17, 70), (32, 64), (33, 65), (20, 49)]
SHORT = [(1, 1), (1, 70), (2, 3), (16, 16), (17, 17)]


class Entry(NamedTuple):
    """A row of the table: how to make the operator for (rows, columns) and a dtype, and the dtypes that it takes."""

    make: Callable[[int, int, str], Operator]
    dtypes: tuple[str, ...] = tuple(TOLERANCE)
    stepped: tuple[str, ...] = ()  # outputs in integers
    rounds: bool = False  # intermediates are rounded to the dtype


def rowwise(name: str, *dtypes: str) -> Entry:
    return Entry(
        lambda rows, cols, dtype: OPERATORS[name](rows=rows, cols=cols, dtype=dtype), dtypes or tuple(TOLERANCE)
    )


def chain(name: str) -> Entry:
    """G1 to G12 with every size a sixteenth, and the lengths of the table for m and n where they are the operator's."""
    small = {size: max(1, n // 16) for size, n in gemm_chain.PRESETS.get(name, {"k": 320, "h": 400}).items()}
    small["batch"] = min(small.get("batch", 1), 2)

    def make(rows: int, cols: int, dtype: str) -> Operator:
        return find(name)(**{**small, "m": rows, "n": cols, "dtype": dtype})

    return Entry(make, rounds=True)


def attend(name: str, **own: Any) -> Entry:
    def make(rows: int, cols: int, dtype: str) -> Operator:
        sizes = {"batch": 1, "heads": 1, "head_dim": 16, "q_len": rows, "kv_len": max(rows, cols)}
        return OPERATORS[name](**{**sizes, **own, "dtype": dtype})

    return Entry(make)


def preset(name: str) -> Entry:
    """A preset with at most four heads in groups as large as they can be, and heads a quarter as wide."""
    found = PRESETS[name]
    heads, kv_heads = found.sizes["heads"], found.sizes.get("kv_heads", found.sizes["heads"])
    group = min(heads // kv_heads, 4)
    own: dict[str, Any] = {
        "heads": group if group > 1 or "v_head_dim" in found.sizes else 2,
        "head_dim": found.sizes["head_dim"] // 4,
    }
    if "v_head_dim" in found.sizes:
        own["v_head_dim"] = found.sizes["v_head_dim"] // 4
    if kv_heads != heads:
        own["kv_heads"] = own["heads"] // group
    if "window" in found.sizes:
        own["window"] = 21
    if "cap" in found.sizes:
        own["cap"] = 2.0  # small enough for the scores of random inputs to feel it

    def make(rows: int, cols: int, dtype: str) -> Operator:
        lengths = {"q_len": 1 if found.decode else rows, "kv_len": max(rows, cols)}
        return attention.preset(name, **{**own, **lengths, "dtype": dtype})

    return Entry(make)


def biased(score, b, h, q, kv):
    return score - 0.1 * (q - kv)


def banded(b, h, q, kv):
    return (q >= kv) & (q - kv < 20)


TABLE: dict[str, Entry] = {
    "attention.alibi": attend("attention.alibi", heads=2),
    "attention.causal": attend("attention.causal", batch=2),
    "attention.general": attend("attention.general", score_mod=biased, mask_mod=banded, heads=2, kv_heads=1),
    "attention.full": attend("attention.full", v_head_dim=20),
    "attention.gqa": attend("attention.gqa", heads=4, kv_heads=2),
    "attention.prefix": attend("attention.prefix", prefix=5),
    "attention.softcap": attend("attention.softcap", cap=2.0, heads=2, kv_heads=1),
    "attention.window": attend("attention.window", window=21),
    "gemm_chain": chain("gemm_chain"),
    "mla": Entry(
        lambda rows, cols, dtype: OPERATORS["mla"](
            heads=2, q_len=rows, kv_len=max(rows, cols), latent=16, rope=8, nope=8, dtype=dtype
        )
    ),
    "norms.l2_norm": rowwise("norms.l2_norm"),
    "norms.layer_norm": rowwise("norms.layer_norm"),
    "norms.layer_norm_statistics": rowwise("norms.layer_norm_statistics"),
    "norms.rms_norm_max": rowwise("norms.rms_norm_max"),
    "norms.rms_norm_quantize": rowwise("norms.rms_norm_quantize")._replace(stepped=("q",)),
    "performer": Entry(
        lambda rows, cols, dtype: OPERATORS["performer"](heads=1, seq=cols, head_dim=16, features=rows, dtype=dtype),
        rounds=True,
    ),
    "rows.cross_entropy": rowwise("rows.cross_entropy"),
    "rows.log_sum_exp": rowwise("rows.log_sum_exp"),
    "rows.softmax": rowwise("rows.softmax"),
    "softmax.figure1": rowwise("softmax.figure1", "float32"),
    **{name: preset(name) for name in PRESETS},
    **{name: chain(name) for name in gemm_chain.PRESETS},
}


def check(name: str, schedule: str, dtype: str, rows: int, cols: int) -> None:
    """The kernel equals the reference to the dtype's tolerance, and the schedule the definition to 1e-9 in float64.

    A preset is an operator at other sizes, so its schedule is not checked again.  An integer output may differ in a
    few elements by one: values that stand exactly between two steps, which bfloat16 inputs make, go either way.
    """
    entry = TABLE[name]
    kernel = by_name.compile(entry.make(rows, cols, dtype), **TILES, **SCHEDULES[schedule])
    # Triton's interpreter cuts numbers off where a GPU rounds them to bfloat16, so it is up to twice as far off.
    cut_off = entry.rounds and dtype == "bfloat16" and interpreting()
    assert kernel.relative_error() <= TOLERANCE[dtype] * (2 if cut_off else 1)
    if cut_off:
        assert tile_error(kernel) <= TOLERANCE[dtype]
    if name in OPERATORS:
        errors = dict(kernel.schedule.check().outputs)
        assert all(error <= (1e-3 if output in entry.stepped else 1e-9) for output, error in errors.items())


def tile_error(kernel: Kernel) -> float:
    """The relative error of the first output, with NumPy as the interpreter of HTile, which rounds as a GPU does."""
    inputs = kernel.operator.random_inputs()
    found = interpret(kernel.htile, inputs)[kernel.operator.outputs[0].name]
    wanted = kernel.operator.reference(*inputs.values())
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def turns() -> list[tuple[str, str, str, int, int]]:
    """Each operator with each kind of schedule, each preset with one; dtypes, lengths and splits take turns.

    Operators have three schedules, and so meet each dtype; one of the two with splits is for the night.
    """
    found = []
    for n, (name, entry) in enumerate(TABLE.items()):
        some = ["split_in_2", "split_in_3"][n // 2 % 2]
        schedules = ["rolling", "split_each_tile", some] if name in OPERATORS else [["rolling", some][n % 2]]
        for m, schedule in enumerate(schedules):
            found.append((name, schedule, entry.dtypes[(n + m) % len(entry.dtypes)], *LENGTHS[(n + m) % 4]))
    return found


def by_day(name: str, schedule: str) -> bool:
    """Each operator's rolling loop, with either every tile or few splits in turn; not two of four neighbours among S1
    to S9 and G1 to G12."""
    n = list(TABLE).index(name)
    if name in OPERATORS:
        return schedule == "rolling" or (schedule == "split_each_tile") == (n % 3 == 0)
    return not name[1:].isdigit() or n // 2 % 2 == 0


def test_every_operator_and_preset_is_in_the_table():
    assert set(TABLE) == {*OPERATORS, *PRESETS, *gemm_chain.PRESETS}
    assert {name for name, *_ in turns()} == set(TABLE)
    taken = {(name, schedule) for name, schedule, *_ in turns() if by_day(name, schedule)}
    assert {schedule for _, schedule in taken} == set(SCHEDULES)
    for names in (*({name} for name in OPERATORS), set(PRESETS), set(gemm_chain.PRESETS)):
        assert {SCHEDULES[schedule]["template"] for name, schedule in taken if name in names} == set(TEMPLATES)


def test_the_table_takes_every_dtype_an_operator_takes():
    """An operator with a dtype of its own says so in its entry; all others take the three."""
    for name, entry in TABLE.items():
        assert "dtype" in inspect.signature(find(name)).parameters
        for dtype in entry.dtypes:
            assert entry.make(4, 4, dtype).inputs[0].dtype == dtype


@pytest.mark.one_in(72)
@pytest.mark.parametrize(
    ("name", "schedule", "dtype", "rows", "cols"),
    [pytest.param(*turn, marks=() if by_day(*turn[:2]) else pytest.mark.nightly) for turn in turns()],
)
def test_table(name: str, schedule: str, dtype: str, rows: int, cols: int) -> None:
    check(name, schedule, dtype, rows, cols)


# The two kinds of schedule take turns, so that each operator and each length meets both.
SHORT_TURNS = [
    (name, ["rolling", "split_each_tile"][(n + m) % 2], *lengths)
    for n, name in enumerate(["attention.causal", "rows.softmax", "gemm_chain", "norms.l2_norm"])
    for m, lengths in enumerate(SHORT)
]


@pytest.mark.one_in(12)
@pytest.mark.parametrize(("name", "schedule", "rows", "cols"), SHORT_TURNS)
def test_short_lengths(name: str, schedule: str, rows: int, cols: int) -> None:
    check(name, schedule, "float32", rows, cols)


# Lengths are subtests: pytest takes four seconds to collect them as 6,000 tests, in every run and every worker.
@pytest.mark.nightly
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, entry in TABLE.items() for dtype in entry.dtypes])
def test_full_table(name: str, dtype: str, schedule: str, subtests: pytest.Subtests) -> None:
    """Lengths in turn: an operator meets each with some of its schedules and dtypes, and so does a preset, which is an
    operator at other sizes and meets one length at a time."""
    every = 3 if name in OPERATORS else 10
    first = (3 * TABLE[name].dtypes.index(dtype) + list(SCHEDULES).index(schedule) + list(TABLE).index(name)) % every
    for rows, cols in [*SHORT, *LENGTHS, (70, 70)][first::every]:
        with subtests.test(rows=rows, cols=cols):
            check(name, schedule, dtype, rows, cols)
