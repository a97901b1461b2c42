"""Inputs with the statistics of a trained model's attention, generated or recorded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neptune_lab.errors import DefinitionError
from neptune_lab.operators import Operator

ROPE_BASE = 10000.0
SPREAD = 1.5  # of q's and k's elements about their mean, so that scores spread by SPREAD**2
SINK_SCORE = 6.0  # by how much a score with the first key exceeds the others, about
OUTLIER = 8.0  # of a key's few large channels, where other channels are about SPREAD
V_SCALE = 0.1
FREEDOM = 4  # of Student's t distribution: few, hence heavy tails


def realistic_inputs(op: Operator, seed: int = 0) -> dict[str, np.ndarray]:
    """q, k and v of an attention operator with the statistics of a trained model's, by name, in the inputs' dtypes.

    They replace recorded activations (the paper records a language model's on real text), which need weights and text
    that are not part of this project.  Heads are independent, and one seed gives one result:

    - q and k are normal about a mean of length sqrt(head_dim) / 2 that the query heads of a group share with their
      key head, so that keys and queries point the same way;
    - in every key, one channel is about eight times as large as the others (an outlier channel), which changes the
      rounding of the scores but not the softmax;
    - the first key exceeds all others by about 6 in every score, an attention sink, and its value is small;
    - q and k are rotated by their position (RoPE, base 10000, halves paired); the outlier and the sink are in the pair
      that turns slowest, as they do in trained models;
    - v has heavy tails: Student's t with four degrees of freedom, times 0.1.

    Args:
        op: an operator with the inputs q (batch, heads, q_len, head_dim), k and v (batch, kv_heads, kv_len, .); the
            last query is at the position of the last key.
        seed: of the random numbers.

    Raises:
        DefinitionError: the operator has other inputs, or an odd head_dim.
    """
    q_spec, k_spec, v_spec = attention_inputs(op)
    batch, heads, q_len, width = q_spec
    kv_heads, kv_len = k_spec[1], k_spec[2]
    if width % 2:
        raise DefinitionError(
            f"head_dim={width}: expected an even one, since RoPE turns pairs of channels", help="such as head_dim=64"
        )
    rng = np.random.default_rng(seed)
    slow, paired = width // 2 - 1, width - 1
    mean = rng.standard_normal((batch, kv_heads, 1, width))
    mean *= np.sqrt(width) / 2 / np.linalg.norm(mean, axis=-1, keepdims=True)
    k = mean + SPREAD * rng.standard_normal(k_spec)
    q = np.repeat(mean, heads // kv_heads, axis=1) + SPREAD * rng.standard_normal(q_spec)
    k[..., slow] = OUTLIER * SPREAD
    k[..., paired] = 0
    q[..., paired] = 2 * SPREAD
    k[:, :, 0, paired] = SINK_SCORE * np.sqrt(width) / (2 * SPREAD)
    v = V_SCALE * rng.standard_t(FREEDOM, v_spec)
    v[:, :, 0] *= 0.05
    made = (_rotated(q, np.arange(kv_len - q_len, kv_len)), _rotated(k, np.arange(kv_len)), v)
    return _in_dtypes(op, made)


def recorded_inputs(op: Operator, tensors: Mapping[str, np.ndarray], sample: int = 0) -> dict[str, np.ndarray]:
    """Sample number `sample` of recorded q, k and v in the operator's dtypes; of q the last q_len positions.

    Raises:
        DefinitionError: a tensor is missing, or its shape is not the operator's.
    """
    wanted = dict(zip("qkv", attention_inputs(op), strict=True))
    arrays = []
    for name, shape in wanted.items():
        if name not in tensors:
            raise DefinitionError(f"the recorded inputs have no {name!r}", help=f"they hold {', '.join(tensors)}")
        array = np.asarray(tensors[name])
        if array.ndim != len(shape):
            raise DefinitionError(
                f"recorded {name} has shape {array.shape}: expected (samples, heads, length, width)",
                help="save the recorded arrays with four dimensions",
            )
        array = array[sample : sample + 1]
        if name == "q":
            array = array[:, :, -shape[2] :]
        if array.shape != shape:
            raise DefinitionError(
                f"recorded {name} has shape {array.shape}, {op.name} takes {shape}",
                help="record at this shape, or make the operator for the recorded one",
            )
        arrays.append(array)
    return _in_dtypes(op, tuple(arrays))


def attention_inputs(op: Operator) -> tuple[tuple[int, ...], ...]:
    """The shapes of q, k and v; DefinitionError if these are not the operator's first inputs."""
    names = [t.name for t in op.inputs[:3]]
    if names != ["q", "k", "v"] or any(len(t.shape) != 4 for t in op.inputs[:3]):
        raise DefinitionError(f"{op.name} takes {', '.join(map(str, op.inputs))}", help="an operator of `attention`")
    return tuple(t.shape for t in op.inputs[:3])


def _in_dtypes(op: Operator, arrays: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    every = (*arrays, *op.captured.values())
    return {t.name: np.ascontiguousarray(a, dtype=t.dtype) for t, a in zip(op.inputs, every, strict=True)}


def _rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Channel n and channel n + head_dim / 2 turned by position * ROPE_BASE ** (-2n / head_dim)."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate((a * cos - b * sin, a * sin + b * cos), axis=-1)
