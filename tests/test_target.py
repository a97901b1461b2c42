"""Targets: names and figures, what a GPU can do, the GPU at hand, and that no other module has constants of a GPU."""

from __future__ import annotations

import ast
import math
import pickle
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict, replace
from functools import cache
from pathlib import Path

import by_name
import pytest
from devices import A100, H200, facts_of

import neptune_lab as nl
import neptune_lab.runtime
from neptune_lab.choice import CodeOptions
from neptune_lab.errors import EmitError
from neptune_lab.htile_to_gluon import GluonOptions
from neptune_lab.htile_to_triton import EmitOptions
from neptune_lab.operators import attention
from neptune_lab.target import ANY, DEFAULT, GPUS, MATRIX_UNITS, MOST_HOPPER_SMS, MOST_SHARED_MEMORY, Target, as_target

ROOT = Path(__file__).parents[1]
FEATURES = ("descriptors", "warpgroup_products", "hardware_tanh", "dependent_launch")
INTERPRETER = replace(H200, name="Triton's interpreter", interpreter=True, capability=None, sm_count=None)


# -- names and figures ----------------------------------------------------------------------------------------------


def test_the_public_name():
    assert nl.Target is Target


@pytest.mark.parametrize("name", GPUS)
def test_known_gpus_are_whole(name):
    target = Target(name)
    assert (target.kind == "cuda") == (target.capability is not None)
    assert 90 <= target.sm_count <= 400
    assert 64 * 1024 <= target.shared_memory <= MOST_SHARED_MEMORY
    assert target.ceiling is not None
    # Operations of the matrix units per byte of memory traffic: a rate in another unit would be far off.
    assert 100 < target.ceiling.tflops / target.ceiling.gbps * 1e3 < 500
    assert target == Target(name) == pickle.loads(pickle.dumps(target)) == replace(target)
    assert hash(target) == hash(Target(name))
    assert str(target) == name


@pytest.mark.parametrize("name", GPUS)
def test_memory_is_larger_and_slower_from_level_to_level(name):
    target = Target(name)
    registers, shared, l2, memory = target.memory_levels
    assert (shared.bytes, memory.gbps) == (target.shared_memory, target.gbps)
    sizes = [level.bytes * (1 if level.shared else target.sm_count) for level in (shared, l2, memory) if level.bytes]
    assert sizes[-1] == max(sizes)
    assert registers.bytes > shared.bytes
    rates = [level.gbps for level in (shared, l2, memory) if level.gbps]
    assert rates == sorted(rates, reverse=True)
    # Two operations for each of the products of float16 that a multiprocessor makes in a clock: a power of two.
    gigahertz = shared.gbps / target.sm_count / 128
    per_clock = target.tflops * 1e3 / target.sm_count / gigahertz
    assert abs(per_clock / 2 ** round(math.log2(per_clock)) - 1) < 0.03


def test_kinds_of_gpus_have_no_memory_sizes():
    assert Target().memory_levels == Target("cuda", (9, 0)).memory_levels == ()


def test_figures_of_the_h200():
    assert asdict(Target("h200")) == {
        "name": "h200",
        "capability": (9, 0),
        "sm_count": 132,
        "shared_memory": 227 * 1024,
        "tflops": 989.0,
        "gbps": 4800.0,
    }
    assert Target("h200") == DEFAULT


def test_figures_can_be_given():
    part = Target("h200", sm_count=16, gbps=600.0)
    assert (part.sm_count, part.gbps, part.tflops, part.shared_memory) == (16, 600.0, 989.0, 227 * 1024)
    with pytest.raises(FrozenInstanceError):
        part.sm_count = 8


def test_kinds_take_what_is_known_of_their_capability():
    assert Target("cuda", (9, 0)).shared_memory == Target("h200").shared_memory
    assert Target("cuda", (8, 0)).shared_memory == Target("a100").shared_memory
    assert Target("cuda", (7, 0)).shared_memory == Target("cuda").shared_memory == ANY.shared_memory == 96 * 1024
    assert Target("hip").shared_memory == Target("mi300x").shared_memory
    for kind in (ANY, Target("cuda", (9, 0)), Target("hip")):
        assert kind.sm_count == DEFAULT.sm_count
        assert kind.ceiling is None


def test_what_each_can_do():
    can = {str(t): tuple(getattr(t, f) for f in FEATURES) for t in (*map(Target, GPUS), ANY, Target("cuda"))}
    hopper, blackwell, older, nothing = (
        (True,) * 4,
        (True, False, True, True),
        (False, False, True, False),
        (False,) * 4,
    )
    assert can == {
        "a100": older,
        "h100": hopper,
        "h200": hopper,
        "b200": blackwell,
        "l40s": older,
        "rtx 4090": older,
        "rtx 5090": blackwell,
        "mi300x": nothing,
        "rx 7900 xtx": nothing,
        "any": nothing,
        "cuda": nothing,
    }
    assert Target("cuda", (7, 5)).hardware_tanh
    assert not Target("cuda", (7, 0)).hardware_tanh
    assert str(Target("cuda", (9, 0))) == "cuda 9.0"


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["h20", "H200", "", "sm90", None, 9, ["h200"], ("h200",), "h200\n"])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    for act in (lambda: Target(name), lambda: as_target(name)):
        with pytest.raises(EmitError, match="expected ") as caught:
            act()
        for known in GPUS:
            assert repr(known) in (caught.value.help or "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "h200", "capability": (8, 0)}, r"capability=\(8, 0\) of name='h200'"),
        ({"name": "mi300x", "capability": (9, 4)}, r"capability=\(9, 4\) of name='mi300x'"),
        ({"name": "any", "capability": (9, 0)}, r"capability=\(9, 0\) of name='any'"),
        ({"name": "h200", "capability": (9.0, 0)}, r"capability=\(9.0, 0\)"),
        ({"name": "h200", "sm_count": -1}, "sm_count=-1: expected an integer from 0"),
        ({"name": "h200", "sm_count": True}, "sm_count=True"),
        ({"name": "h200", "shared_memory": 1.5}, r"shared_memory=1\.5"),
        ({"name": "h200", "gbps": float("inf")}, "gbps=inf: expected a positive finite number"),
        ({"name": "h200", "tflops": 0}, "tflops=0: expected a positive finite number"),
    ],
)
def test_figures_that_are_none(arguments, message):
    with pytest.raises(EmitError, match=message):
        Target(**arguments)


# -- the GPU at hand ------------------------------------------------------------------------------------------------


@pytest.fixture
def at_hand(monkeypatch):
    def set_device(facts):
        monkeypatch.setattr(neptune_lab.runtime, "has_gpu", lambda: facts is not None)
        monkeypatch.setattr(neptune_lab.runtime, "device_facts", lambda: facts)

    return set_device


AMD = replace(facts_of(Target("mi300x"), "AMD Instinct MI300X"), capability=(9, 4), cuda=None, shared_memory=None)
L4 = replace(A100, name="NVIDIA L4", capability=(8, 9), sm_count=58, shared_memory=99 * 1024)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (H200, Target("h200")),
        (A100, Target("a100")),
        (replace(A100, name="NVIDIA A100-SXM4-40GB"), Target("a100")),
        (replace(H200, name="NVIDIA H100 80GB HBM3"), Target("h100")),
        (replace(H200, sm_count=16), Target("h200", sm_count=16)),
        (replace(H200, shared_memory=None), Target("h200")),
        (L4, Target("cuda", (8, 9), 58, 99 * 1024)),
        (replace(L4, name="NVIDIA RTX A1000 Laptop GPU"), Target("cuda", (8, 9), 58, 99 * 1024)),
        (AMD, Target("mi300x")),
        (replace(AMD, name="AMD Instinct MI210", sm_count=104), Target("hip", sm_count=104)),
    ],
)
def test_the_gpu_at_hand(at_hand, facts, found):
    at_hand(facts)
    assert Target.current() == Target.of(facts) == found
    assert Target.current(otherwise=ANY) == found


@pytest.mark.parametrize("facts", [None, INTERPRETER, replace(H200, interpreter=True)])
def test_without_a_gpu_the_default(at_hand, facts):
    at_hand(facts)
    assert Target.current() is DEFAULT
    assert Target.current(otherwise=ANY) is ANY


def test_facts_of_the_interpreter_say_nothing_of_a_gpu():
    assert Target.of(INTERPRETER) is ANY


def test_names_are_found_as_whole_words():
    assert Target.known("NVIDIA GeForce RTX 4090") == Target("rtx 4090")
    for device in ("a toaster", "NVIDIA RTX A1000", "NVIDIA GH200 480GB", ""):
        assert Target.known(device) is None


def test_the_module_imports_neither_torch_nor_triton_nor_tvm():
    code = (
        "import sys; from neptune_lab.target import Target; Target('h200'), Target('cuda', (9, 0)), Target.known('x');"
        "print(sorted({'torch', 'triton', 'tvm', 'numpy', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


# -- compiling for one ----------------------------------------------------------------------------------------------

TINY = attention.causal(batch=1, heads=1, seq=64, head_dim=16)
TILES = {"block_q": 32, "block_kv": 32}


@pytest.mark.nightly
def test_compile_takes_a_target_or_a_name():
    sources = {
        by_name.compile(TINY, "rolling_update", target=target, loads="descriptors", validate="none", **TILES).source
        for target in ("h200", "b200", Target("h200"), Target("cuda", (9, 0)), None)
    }
    assert len(sources) == 1
    (source,) = sources
    assert "make_tensor_descriptor" in source
    with pytest.raises(EmitError, match=r"loads='descriptors' is not available on target a100\n.*'h200'"):
        by_name.compile(TINY, "rolling_update", target="a100", loads="descriptors", **TILES)
    assert EmitOptions(target="h200").target == Target("h200")  # pyright: ignore[reportArgumentType]


@pytest.mark.nightly
def test_default_code_is_the_same_for_every_gpu_of_a_matrix_unit():
    """Without a known unit it is that of the default GPU."""
    targets = (None, *GPUS, "any", "cuda", "hip", Target("h200", sm_count=2, shared_memory=1024))
    sources: dict[str, set[str]] = {}
    for target in targets:
        unit = as_target(target or "any").matrix_unit or "wgmma"
        sources.setdefault(unit, set()).add(nl.compile(TINY, target=target, validate="none").source)
    assert set(sources) == set(MATRIX_UNITS)
    assert {len(texts) for texts in sources.values()} == {1}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("sm_80", Target("cuda", (8, 0))),
        ("sm_120", Target("cuda", (12, 0))),
        ("gfx942", Target("mi300x")),
        ("gfx1100", Target("rx 7900 xtx")),
        ("rtx4090", Target("rtx 4090")),
        ("rx7900", Target("rx 7900 xtx")),
    ],
)
def test_architectures_and_other_names(name, target):
    assert as_target(name) == target


@pytest.mark.parametrize("name", GPUS)
def test_products_of_fewer_bits_are_at_least_as_fast(name):
    target = Target(name)
    wide, half, eight = (target.product_tflops(d) for d in ("float32", "bfloat16", "float8_e4m3fn"))
    assert wide < half == target.tflops <= eight


@pytest.mark.parametrize("tuned", [False, True])
def test_compile_with_an_unknown_name(tuned):
    with pytest.raises(EmitError, match=r"target='h20': expected a Target(.|\n)*names are 'a100', 'h100', 'h200'"):
        nl.compile(TINY, tuned=tuned, target="h20")


def test_without_a_target_options_are_for_the_gpu_at_hand(at_hand):
    hardware = CodeOptions(tanh="hardware")
    at_hand(A100)
    assert hardware.emitter(None).target == Target("a100")
    assert CodeOptions().emitter(None).target == Target("a100")
    with pytest.raises(EmitError, match="code='gluon' is not available on target a100"):
        CodeOptions(code="gluon").gluon(None)
    at_hand(None)
    assert hardware.emitter(None).target == DEFAULT
    assert CodeOptions().emitter(None).target == ANY
    assert CodeOptions(code="gluon").gluon(None).emit.target == GluonOptions().emit.target == DEFAULT


def test_a_gluon_kernel_has_the_targets_shared_memory():
    op = attention.causal(batch=1, heads=1, seq=256, head_dim=64)
    options = {"block_q": 128, "block_kv": 64, "code": "gluon", "validate": "none"}
    assert "@gluon.jit" in by_name.compile(op, "rolling_update", target="h200", **options).source
    with pytest.raises(EmitError, match=r"bytes of shared memory; a multiprocessor has 32768"):
        by_name.compile(op, "rolling_update", target=Target("h200", shared_memory=32 * 1024), **options)


# -- one source -----------------------------------------------------------------------------------------------------


def _sources(but: str):
    """Our Python files but one."""
    for folder in ("neptune_lab", "widgets/neptune_widgets", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != ROOT / "neptune_lab" / but:
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def _number(node: ast.AST) -> float | None:
    """The value of a literal, or of a product or shift of literals."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.LShift):
        left, right = _number(node.left), _number(node.right)
        if left is not None and right is not None:
            return left * right if isinstance(node.op, ast.Mult) else left * 2**right
    return None


# Three digits, an exponent, another base, or a product or shift: a text without these has no literal of 100 or above.
LARGE_NUMBER = re.compile(r"\d[\d_]{2}|\d[\s()]*(?:\*|<<)[\s()]*\d|\d\.?[eE]\d|0[xXoObB]|\d\.\d+[eE]")


@cache
def figures() -> frozenset[float]:
    """Those of known GPUs; powers of two and small numbers mean too many other things."""
    gpus = [Target(name) for name in GPUS]
    found = {n for g in gpus for n in (g.sm_count, g.shared_memory, g.tflops, g.gbps)} | {MOST_HOPPER_SMS}
    return frozenset(n for n in found if n and n >= 100 and bin(int(n)).count("1") > 1)


def constants(text: str) -> list[tuple[int, float]]:
    """Lines and values of the figures of known GPUs that `text` has as literals."""
    if not LARGE_NUMBER.search(text):
        return []
    known = figures()
    numbers = ((getattr(node, "lineno", 0), _number(node)) for node in ast.walk(ast.parse(text)))
    return [(line, n) for line, n in numbers if n in known]


def asked_elsewhere(text: str) -> list[str]:
    """Comparisons of compute capabilities in `text`."""
    return re.findall(r"capability(?:\[\d\])? *(?:>=|<=|>|<|==|!=) *[\d(]|get_device_capability", text)


def test_the_search_finds_constants():
    text = "SMS = 132\nBYTES = 227 * 1024\nSAME = 232_448\nSHIFTED = 227 << 10\nALL = 144\nRATE = 4800.0\nOTHER = 64\n"
    assert [line for line, _ in constants(text)] == [1, 2, 3, 4, 5, 6]
    assert asked_elsewhere("if facts.capability >= (9, 0) or target.capability[0] == 9: ...") != []


@pytest.mark.nightly
def test_no_other_module_has_constants_of_a_gpu():
    assert {str(path): found for path, text in _sources("gpu_figures.py") if (found := constants(text))} == {}


def test_no_other_module_compares_capabilities():
    assert {str(path): found for path, text in _sources("target.py") if (found := asked_elsewhere(text))} == {}
