"""Numerical errors of the ten attention operators, ours and torch's (Neptune, appendix F, Table 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import PRESETS, Operator, attention
from neptune_lab.operators.presets import TEN
from neptune_lab.pipeline.compile import compile
from neptune_lab.pipeline.kernel import Kernel
from neptune_lab.pipeline.realistic_inputs import attention_inputs, realistic_inputs, recorded_inputs
from neptune_lab.runtime import accuracy as compared
from neptune_lab.runtime import call_on_arrays, device_facts
from neptune_lab.runtime.accuracy import ALLOWED, ErrorSummary, case_of, error_summary, peers, run_peer
from neptune_lab.strict.typed import pack

OURS = "neptune_lab"

# Sizes that take Triton's interpreter a few seconds each; a GPU runs the published sizes.
INTERPRETED_HEADS = 4
SEQ = {"interpreter": 256, "gpu": 2048}


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One operator's errors.

    Args:
        operator: the preset.
        sizes: batch of one sample, heads, kv_heads, q_len, kv_len, head_dim.
        errors: by column, `OURS` first, over all samples; None if a peer does not support the operator.
        reasons: why a peer has no errors, by column.
        sample_rms: our root mean square error on each sample (the paper's Figure 20).
    """

    operator: str
    sizes: Mapping[str, int]
    errors: Mapping[str, ErrorSummary | None]
    reasons: Mapping[str, str]
    sample_rms: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """Our root mean square error over that of the best peer; None without a peer."""
        peers = [e.rms for name, e in self.errors.items() if name != OURS and e is not None]
        own = self.errors[OURS]
        if not peers or own is None:
            return None
        if not min(peers):
            return 1.0 if not own.rms else float("inf")
        return own.rms / min(peers)

    @property
    def ok(self) -> bool:
        """Whether the ratio is at most `ALLOWED`; true without a peer."""
        return self.ratio is None or self.ratio <= ALLOWED


@dataclass(frozen=True, slots=True)
class Report:
    """The table.

    Args:
        rows: one per operator.
        columns: by name, what each column is and where it ran; `OURS` first.
        inputs: what the inputs are.
        samples: the number of inputs.
    """

    rows: tuple[AccuracyRow, ...]
    columns: Mapping[str, str]
    inputs: str
    samples: int

    @property
    def ok(self) -> bool:
        """Whether every row is `ok`."""
        return all(row.ok for row in self.rows)

    def as_record(self) -> dict[str, Any]:
        """The report as plain JSON."""
        rows = [{**pack(row), "ratio": row.ratio, "ok": row.ok} for row in self.rows]
        return {
            "columns": dict(self.columns),
            "inputs": self.inputs,
            "samples": self.samples,
            "allowed_ratio": ALLOWED,
            "rows": rows,
        }


@dataclass(frozen=True, slots=True)
class AccuracySetup:
    """What is compared.

    Args:
        operators: presets among `TEN`.
        seq: keys, and for prefill queries; None: 256 in the interpreter, 2048 on a GPU.
        heads: query heads at most, with groups as large as published; None: 4 in the interpreter, all on a GPU.
        samples: the number of inputs, each of batch 1.
        recorded: q (samples, heads, length, head_dim), k and v (samples, kv_heads, length, .), in place of generated
            inputs; they determine all sizes, and decoding uses the last query.
        overrides: other arguments of the presets, such as head_dim.
    """

    operators: Sequence[str] = TEN
    seq: int | None = None
    heads: int | None = None
    samples: int = 1
    recorded: Mapping[str, np.ndarray] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


def accuracy(setup: AccuracySetup, progress: Callable[[str], None] = lambda name: None) -> Report:
    """Runs each operator and its peers on the same float16 inputs and compares with the float64 reference.

    Without a GPU our kernels run in Triton's interpreter, and the one peer is torch's SDPA on the CPU.

    Args:
        setup: what to compare.
        progress: called with each operator's name before it runs.

    Raises:
        DefinitionError: an unknown operator, no sample, or recorded inputs that do not fit.
        MeasureError: an output that is not finite although the reference is.
    """
    unknown = [name for name in setup.operators if name not in TEN]
    if unknown:
        raise DefinitionError(f"operator {unknown[0]!r} is not one of the ten", help=f"one of {', '.join(TEN)}")
    samples = setup.samples if setup.recorded is None else _recorded_samples(setup)
    if samples < 1:
        raise DefinitionError(f"samples={samples}: expected at least 1", help="leave it out for the default")
    facts = device_facts()
    device = "cpu" if facts.interpreter else "cuda"
    rows = []
    for name in setup.operators:
        progress(name)
        rows.append(_row(name, operator_of(name, setup, facts.interpreter), setup, samples, device))
    columns = {OURS: f"our kernel, {facts.name}"}
    for row in rows:
        for peer in row.errors:
            columns.setdefault(peer, _about(peer, facts.name))
    made = "made to resemble a trained model's (pipeline.realistic_inputs), float16"
    return Report(tuple(rows), columns, made if setup.recorded is None else "recorded, in float16", samples)


def _about(peer: str, device: str) -> str:
    if peer == compared.SDPA_ON_CPU:
        return "torch's scaled_dot_product_attention, CPU, from float16, computed as torch does there"
    return f"torch's {peer}, {device}; a mask or bias other than causal goes to SDPA as a float16 tensor"


def operator_of(name: str, setup: AccuracySetup, interpreter: bool) -> Operator:
    """The preset at the sizes of the setup."""
    decode = PRESETS[name].decode
    if setup.recorded is not None:
        (_, heads, q_len, width), (_, kv_heads, kv_len, _), (*_, v_width) = (
            np.shape(setup.recorded[tensor]) for tensor in "qkv"
        )
        lengths = {"q_len": 1 if decode else q_len, "kv_len": kv_len}
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": width, "v_head_dim": v_width, **lengths}
        return attention.preset(name, **{**sizes, **setup.overrides, "dtype": "float16"})
    published = PRESETS[name].sizes
    heads, kv_heads = published["heads"], published.get("kv_heads", published["heads"])
    most = setup.heads or (INTERPRETED_HEADS if interpreter else heads)
    group = min(heads // kv_heads, most)
    heads = max(1, min(heads, most) // group) * group
    seq = setup.seq or SEQ["interpreter" if interpreter else "gpu"]
    return attention.preset(
        name, seq=seq, **{"heads": heads, "kv_heads": heads // group, **setup.overrides, "dtype": "float16"}
    )


def _recorded_samples(setup: AccuracySetup) -> int:
    """How many recorded samples to use; DefinitionError if q, k or v is missing or does not have four dimensions."""
    assert setup.recorded is not None
    for name in "qkv":
        if name not in setup.recorded:
            raise DefinitionError(
                f"the recorded inputs have no {name!r}", help=f"they hold {', '.join(setup.recorded) or 'nothing'}"
            )
        if np.ndim(setup.recorded[name]) != 4:
            raise DefinitionError(
                f"recorded {name} has shape {np.shape(setup.recorded[name])}: expected (samples, heads, length, width)",
                help="save the recorded arrays with four dimensions",
            )
    return min(setup.samples, *(len(setup.recorded[name]) for name in "qkv"))


def _row(name: str, op: Operator, setup: AccuracySetup, samples: int, device: str) -> AccuracyRow:
    kernel = compile(op)
    columns: dict[str, list[np.ndarray]] = {OURS: []}
    others, reasons = peers(case_of(op), device), dict[str, str]()
    wanted: list[np.ndarray] = []
    for ours, inputs, want in _samples(kernel, setup, samples):
        wanted.append(want)
        columns[OURS].append(ours)
        for peer, run in others.items():
            if peer in reasons:
                continue
            got = run_peer(run, inputs, device)
            if isinstance(got, str):
                reasons[peer] = got
            else:
                columns.setdefault(peer, []).append(got)
    errors = {c: None if c in reasons else error_summary(columns[c], wanted) for c in (OURS, *others)}
    each = tuple(error_summary([a], [b]).rms for a, b in zip(columns[OURS], wanted, strict=True))
    (_, heads, q_len, width), (_, kv_heads, kv_len, _), _ = attention_inputs(op)
    sizes = {"heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len, "head_dim": width}
    return AccuracyRow(name, sizes, errors, reasons, each)


def _samples(
    kernel: Kernel, setup: AccuracySetup, samples: int
) -> Iterator[tuple[np.ndarray, tuple[np.ndarray, ...], np.ndarray]]:
    """Our output, the inputs, and the reference, sample by sample."""
    op = kernel.operator
    for n in range(samples):
        made = realistic_inputs(op, n) if setup.recorded is None else recorded_inputs(op, setup.recorded, n)
        inputs = tuple(made.values())
        want = op.reference(*inputs)
        assert isinstance(want, np.ndarray)
        yield call_on_arrays(kernel._loaded, inputs)[0], inputs, want
