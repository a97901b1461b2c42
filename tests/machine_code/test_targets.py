"""Every operator and preset, and every backward pass, compiled without a GPU for GPUs of each architecture: no spills,
matrix instructions for every product, and shared memory that a block can have.

Each pair that fails is in `KNOWN` with what it is; a pair of these that no longer fails fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import pytest

import neptune_lab as nl
from neptune_lab.errors import EmitError, MachineCodeError
from neptune_lab.htile.nodes import Dot
from neptune_lab.htile.shapes import dtype_of
from neptune_lab.htile.walk import stores, subexpressions
from neptune_lab.machine_code import ARCHITECTURES, MachineCode, architecture_of
from neptune_lab.machine_code.counts import kinds
from neptune_lab.operators import OPERATORS, PRESETS, Operator, find, gemm_chain, training
from neptune_lab.target import as_target

# One worker compiles all kernels, one after the other.
pytestmark = pytest.mark.xdist_group("targets")

TARGETS = ("sm_80", "sm_89", "sm_100", "sm_120", "gfx942", "gfx1100")
# Instructions for products of tiles in each architecture's text. (Blackwell's for data centers multiplies few rows as
# Ampere does.)
INSTRUCTIONS = {
    "sm_80": ("ptx", r"\bmma\.sync"),
    "sm_89": ("ptx", r"\bmma\.sync"),
    "sm_100": ("ptx", r"\btcgen05\.mma|\bmma\.sync"),
    "sm_120": ("ptx", r"\bmma\.sync"),
    "gfx942": ("amdgcn", r"\bv_mfma_"),
    "gfx1100": ("amdgcn", r"\bv_wmma_"),
}


def biased(score, b, h, q, kv):
    return score - 0.1 * (q - kv)


def banded(b, h, q, kv):
    return (q >= kv) & (q - kv < 200)


def attend(name: str, **own: object) -> Callable[[], Operator]:
    """Attention with the head width of most models."""
    usual = {"batch": 1, "heads": 8, "head_dim": 128, **({} if "q_len" in own else {"seq": 1024})}
    return lambda: OPERATORS[name](**{**usual, **own})


def rowwise(name: str, rows: int, cols: int) -> Callable[[], Operator]:
    return lambda: OPERATORS[name](rows=rows, cols=cols)


# Every operator at a usual size, by name.
EVERY = {
    "attention.alibi": attend("attention.alibi"),
    "attention.causal": attend("attention.causal"),
    "attention.general": lambda: OPERATORS["attention.general"](
        1, 8, 1024, 1024, 128, biased, banded, kv_heads=2, dtype="bfloat16"
    ),
    "attention.full": attend("attention.full", head_dim=192, v_head_dim=128, seq=1000),
    "attention.gqa": attend("attention.gqa", kv_heads=2),
    "attention.prefix": attend("attention.prefix", prefix=100),
    "attention.softcap": attend("attention.softcap", cap=30.0),
    "attention.window": attend("attention.window", window=256),
    "gemm_chain": lambda: OPERATORS["gemm_chain"](m=1024, n=1024, k=64, h=64),
    "mla": lambda: OPERATORS["mla"](batch=16, kv_len=8192),
    "norms.l2_norm": rowwise("norms.l2_norm", 4096, 4096),
    "norms.layer_norm": rowwise("norms.layer_norm", 4096, 4096),
    "norms.layer_norm_statistics": rowwise("norms.layer_norm_statistics", 4096, 4096),
    "norms.rms_norm_max": rowwise("norms.rms_norm_max", 4096, 16384),
    "norms.rms_norm_quantize": rowwise("norms.rms_norm_quantize", 32, 131072),
    "performer": lambda: OPERATORS["performer"](heads=8, seq=2048, features=64),
    "rows.cross_entropy": rowwise("rows.cross_entropy", 4096, 50257),
    "rows.log_sum_exp": rowwise("rows.log_sum_exp", 4096, 4096),
    "rows.softmax": rowwise("rows.softmax", 4096, 32768),
    "softmax.figure1": rowwise("softmax.figure1", 128, 4096),
}
MANY = {"batch": 4, "heads": 32, "seq": 2048}
EIGHTS = dict.fromkeys(("q_dtype", "k_dtype", "v_dtype"), "float8_e4m3fn")
# Other widths, dtypes, lengths and numbers of programs.
MORE = {
    "many programs": attend("attention.causal", **MANY),
    "many, softcap": attend("attention.softcap", **MANY, cap=30.0),
    "many, window of ragged length": attend("attention.window", **{**MANY, "seq": 2000}, window=300),
    "32 wide": attend("attention.causal", **MANY, head_dim=32),
    "64 wide": attend("attention.softcap", **MANY, head_dim=64, cap=30.0),
    "64 wide, few": attend("attention.window", head_dim=64, window=300),
    "80 wide": attend("attention.causal", **MANY, head_dim=80),
    "256 wide": attend("attention.softcap", **MANY, head_dim=256, cap=30.0),
    "float32": attend("attention.causal", dtype="float32"),
    "float32, 64 wide": attend("attention.causal", head_dim=64, dtype="float32", seq=1000),
    "e4m3": lambda: OPERATORS["attention.general"](
        1, 8, 1024, 1024, 128, None, None, "bfloat16", v_scale=(1, 8), **EIGHTS
    ),
    "decode": attend("attention.causal", heads=32, q_len=1, kv_len=8192),
    "decode in groups": attend("attention.gqa", heads=32, kv_heads=8, q_len=1, kv_len=8192),
    "decode, 256 wide": attend(
        "attention.softcap", heads=32, kv_heads=16, head_dim=256, q_len=1, kv_len=4096, cap=50.0
    ),
    "softmax of 1000": rowwise("rows.softmax", 8192, 1000),
    "g3": lambda: find("g3")(),
    "g6": lambda: find("g6")(),
    "g12": lambda: find("g12")(),
    "chain in float32": lambda: OPERATORS["gemm_chain"](m=1024, n=1024, k=64, h=64, dtype="float32"),
    "performer of 256 features": lambda: OPERATORS["performer"](heads=8, seq=2048),
}


def preset(name: str) -> Callable[[], Operator]:
    """A preset of attention, with 2048 positions or a cache of 8192; or a chain of products."""
    seq = {"seq": 8192 if PRESETS[name].decode else 2048} if name in PRESETS and PRESETS[name].takes_seq else {}
    return lambda: find(name)(**seq)


def backward(name: str) -> Callable[[], Operator]:
    return lambda: training(EVERY[name]()).backward


PUBLISHED = {name: preset(name) for name in (*PRESETS, *gemm_chain.PRESETS)}
BACKWARD = {f"backward of {name}": backward(name) for name in EVERY}
CASES = {**EVERY, **MORE, **PUBLISHED, **BACKWARD}
# What fails, by case and target: what is wrong with it.
MMA = ("sm_80", "sm_89", "sm_120")
KNOWN: dict[tuple[str, str], str] = {
    **dict.fromkeys(product(["e4m3"], ["sm_80", "gfx1100"]), "float8_e4m3fn, which is not available on target"),
    # Queries and a tile of latents are 512 wide, and are factors in registers.
    ("mla", "gfx1100"): "spills",
    # Four factors of whole rows: of bfloat16, in groups, or 192 wide, they do not fit.
    **dict.fromkeys(product([f"backward of attention.{n}" for n in ("full", "general", "gqa")], ["gfx1100"]), "spills"),
    # 8 bytes beside 168 registers, which leave room for a third program; 8 scalar registers, to lanes of a vector one.
    ("backward of attention.full", "sm_89"): "spills",
    ("backward of norms.rms_norm_max", "gfx942"): "spills",
    # 24 bytes beside 255 registers, in the loop of the window's edge.
    **dict.fromkeys(product(["many, window of ragged length"], ["sm_80", "sm_89"]), "spills"),
    # The sums of keys with values, and the projection, which stays in registers.
    ("performer", "gfx1100"): "spills",
    **dict.fromkeys(product(["performer of 256 features"], [*MMA, "gfx1100"]), "spills"),
}


def night() -> list[tuple[str, str]]:
    """Every operator for every target; further sizes and backward passes for three targets in turn, and published sizes
    for one; and every pair that is known to fail."""
    kept = {*KNOWN, *day()}
    turns = {name: len(TARGETS) if name in PUBLISHED else 1 if name in EVERY else 2 for name in CASES}
    return [
        (name, target)
        for (m, name), (n, target) in product(enumerate(CASES), enumerate(TARGETS))
        if (m + n) % turns[name] == 0 or (name, target) in kept
    ]


def day() -> list[tuple[str, str]]:
    """Each operator for one target in turn, and backward passes where tiles are chosen for them."""
    passes = [("backward of attention.causal", "gfx1100"), ("backward of norms.rms_norm_quantize", "sm_100")]
    return [*((name, TARGETS[n % len(TARGETS)]) for n, name in enumerate(EVERY)), *passes]


def faults(kernel: nl.Kernel, code: MachineCode) -> list[str]:
    """What is wrong with a kernel's machine code: "spills", "shared memory" or "products".

    Up to 16 bytes beside fewer than half of the registers do not count: ptxas leaves room for more programs.
    """
    limit = architecture_of(code.target).block_shared_memory
    text = code.text(code.last)
    spilled = re.findall(r"\.[sv]gpr_spill_count:\s*(\d+)", text)
    crowded = [k for k in code.kernels if k.resources.local_bytes > (16 if k.resources.registers < 128 else 0)]
    spills = bool(crowded) or any(map(int, spilled))
    assert code.last == "sass" or len(spilled) == 2 * len(code.kernels)
    found = ["spills"] if spills else []
    if any(k.resources.shared_bytes > limit for k in code.kernels):
        found.append("shared memory")
    matrix = sum(m.count for k in code.kernels for m in k.resources.counts.matrix)
    scalar = any(without_units(code, line) for line in dots(kernel))
    if has_instructions(kernel, code.target) and (scalar or matrix < len(dots(kernel))):
        found.append("products")
    return found


def dots(kernel: nl.Kernel) -> list[int]:
    """Lines of the source with a product of tiles."""
    return [n for n, line in enumerate(kernel.source.splitlines(), 1) if "tl.dot(" in line]


def without_units(code: MachineCode, line: int) -> bool:
    """Whether a product is made of scalar products. (Of two equal ones, the compiler may keep the other's line.)"""
    texts = [x.text for x in code.lines_of(line)]
    matrix = any("matrix" in kinds(text, code.last == "sass") for text in texts)
    return not matrix and any(re.search(r"\bFFMA|\bv_(pk_|dual_)?fmac?_", text) for text in texts)


def has_instructions(kernel: nl.Kernel, target: str) -> bool:
    """Whether the architecture has instructions for the products: of float32, only CDNA does."""
    return target == "gfx942" or all(dtype_of(dot.a, kernel.htile) != "float32" for dot in products(kernel))


def products(kernel: nl.Kernel) -> list[Dot]:
    """Products of tiles in the program of tiles."""
    every = (e for k in kernel.htile.kernels for s in stores(k.body) for e in subexpressions(s.value))
    return [e for e in every if isinstance(e, Dot)]


def check(name: str, target: str) -> None:
    known = KNOWN.get((name, target), "")
    if known not in ("", "spills"):
        with pytest.raises((EmitError, MachineCodeError), match=known):
            nl.compile(CASES[name](), target=target, validate="none").machine_code(target)
        return
    kernel = nl.compile(CASES[name](), target=target, validate="none")
    code = kernel.machine_code(target)
    assert "gluon" not in kernel.source
    assert faults(kernel, code) == ([known] if known else [])
    if has_instructions(kernel, target) and products(kernel):
        assert dots(kernel)
        stage, spelling = INSTRUCTIONS[target]
        assert re.search(spelling, code.text(stage))


def test_every_operator_and_every_target_is_here():
    assert set(EVERY) == set(OPERATORS)
    assert set(TARGETS) == set(INSTRUCTIONS) <= set(ARCHITECTURES)
    assert {as_target(name).matrix_unit for name in TARGETS} == {"mma", "tcgen05", "mfma", "wmma"}
    assert {target for _, target in day()} == set(TARGETS)
    assert {*day(), *KNOWN} <= {*night()}
    assert {name for name, _ in day()} >= set(EVERY)
    assert set(PUBLISHED) == {*PRESETS, *gemm_chain.PRESETS}


@pytest.mark.one_in(9)
@pytest.mark.parametrize(
    ("name", "target"),
    [pytest.param(*pair, marks=() if pair in day() else pytest.mark.nightly) for pair in night()],
)
def test_it_compiles_without_spills(name: str, target: str):
    check(name, target)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("target", "fault"), [("sm_80", "shared memory"), ("gfx942", "shared memory"), ("gfx1100", "spills")]
)
def test_hoppers_tiles_would_not_do(target: str, fault: str):
    """The check finds what the choice of tiles avoids."""
    large = nl.TileConfig(block_q=128, block_kv=64, num_warps=8)
    kernel = nl.compile(attend("attention.causal", head_dim=256)(), target="h200", validate="none", config=large)
    assert fault in faults(kernel, kernel.machine_code(target))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("attention.full", {"heads": 8, "seq": 1000, "head_dim": 192, "v_head_dim": 128}),
        ("attention.full", {"heads": 8, "seq": 1000, "head_dim": 256}),
        ("attention.causal", {"heads": 32, "seq": 4096, "head_dim": 256}),
        ("mla", {"heads": 16, "kv_len": 8192}),
    ],
    ids=["192 and 128 wide, split", "256 wide, split", "256 wide", "512 wide"],
)
def test_wide_backward_passes_fit_a_block_of_hopper(name: str, sizes: dict[str, int]):
    backward_pass = training(OPERATORS[name](batch=1, dtype="bfloat16", **sizes)).backward
    code = nl.compile(backward_pass, target="h200", validate="none").machine_code("sm_90")
    assert max(k.resources.shared_bytes for k in code.kernels) <= architecture_of("sm_90").block_shared_memory
    assert max(k.resources.local_bytes for k in code.kernels) <= 128  # (bytes that a thread spills)
