"""Random mods: their bodies as texts, over s, b, h, q, kv and the captured tensors of call_cases.py."""

from __future__ import annotations

import random
from typing import Any


def morton(n: Any) -> Any:
    """The even bits of a position side by side: its column on a canvas in Morton's order."""
    n = n & 0x55555555
    for shift, kept in ((1, 0x33333333), (2, 0x0F0F0F0F), (4, 0x00FF00FF), (8, 0x0000FFFF)):
        n = (n | (n >> shift)) & kept
    return n


def parity(n: Any) -> Any:
    """Whether an odd number of bits are set, as 0 or 1."""
    for shift in (8, 4, 2, 1):
        n = n ^ (n >> shift)
    return n & 1


def mask_text(rng: random.Random, depth: int) -> str:
    """The body of a mask_mod, of so many nested operations."""
    n, m = rng.choice([1, 2, 3, 5, 7, 9, 16]), rng.randrange(3)
    if depth:
        kind = rng.randrange(6)
        left, right = mask_text(rng, depth - 1), mask_text(rng, depth - 1)
        if kind == 0:
            return f"~({left})"
        if kind == 5:
            return f"torch.where(q % {n} > {m}, {left}, {right})"
        return f"({left}) {'&|&^'[kind - 1]} ({right})"
    return rng.choice(
        [
            "q >= kv", f"q - kv < {n}", f"kv < q + {n}", f"kv % {n} != {m}", f"q // {n} == kv // {n}", f"h != {m}",
            f"(q - kv).abs() <= {n}", f"torch.abs(q - kv) > {n}", "doc[q] == doc[kv]", "ids[q] == ids[kv]", "flags[kv]",
            "flags[q] | flags[kv]", "kv < lengths[b]", "kv <= q + offset", f"kv / {n} == kv // {n}",
            f"torch.floor(kv / {n}) <= torch.ceil(q / {n})", f"(q & {n}) == (kv & {n})", f"(kv >> 1) <= q + {m}",
            f"torch.minimum(q, kv) >= {m}", f"(q + {n}).clamp(max=20) >= kv", "wide[kv] > wide[q]", "q >= 0", "q < 0",
            "(q >= kv) & (q < kv)", f"q.float() * 0.7 > kv - {n}",
            # quotients and remainders of negative numbers
            f"(q - kv) // {n} >= -{m}", f"(kv - q) % {n} == {m}", f"(q - kv) // -{n} < {m}", f"(kv - q) % -{n} == -{m}",
            f"torch.remainder(kv - q, {n}) != {m}", f"(q - kv) * 0.7 % 1.5 < 0.{n}", f"((q - kv) >> 1) >= -{n}",
            f"torch.fmod(kv - q, {n}) >= {m}", f"torch.div(q - kv, {n}, rounding_mode='trunc') == 0",
            # captured tensors of every dtype, looked up with whatever is a whole number
            f"tiny[kv] * {n} > tiny[q]", "bytes[q] >= bytes[kv]", f"bytes[q] + {n} > bytes[kv]", "short[kv] // 7 > q",
            f"half[kv] > 0.{n}", "brain[q] <= half[kv]", "perm[q] >= perm[kv]", "doc[perm[kv]] == doc[q]",
            "table[h % 3, kv] >= q", "perm[table[1, kv]] <= q", "doc[kv - 1] == doc[q]", "perm[-q - 1] >= kv",
            f"flags[(kv * {n}) % S]", f"kv < gain * {n}", "bias[q, kv] > -0.5", "spread[q, kv] < strided[q]",
            # hashes, whose products leave 32 bits
            f"(q * 73856093 + kv * 19349663) % {n + 2} < 3", f"((q * 73856093) ^ 83492791) % {n + 2} != kv % 3",
            # bits of two numbers that vary
            f"(q & kv) % {n + 1} != {m}", f"(q ^ kv) < {2 * n}", f"((q | kv) & {n}) != {m}",
            f"((1 << (kv % 8)) & q) <= {n}",
            f"(q >> (kv % 4)) <= {n}", f"(1 << kv) % {n + 4} != {m}", f"(perm[q] & perm[kv]) != {n}",
            "(tiny[q] & tiny[kv]) >= 0",
            f"(bytes[q] ^ bytes[kv]) >= {16 * n}", f"(short[kv] >> {m}) % 3 != 0", f"(~q & kv) % {n + 1} == 0",
            f"(table[0, kv] ^ q) % 4 != {m}", "morton(q) // 4 >= morton(kv) // 4", f"(q << (kv % 5)) % {n + 3} > {m}",
            f"((q * 2654435761) & 0xFFFFFFFF) % {n + 2} >= kv % 3", f"(kv << (q - {n})) % 5 != {m}",
            f"((q > {n}) ^ (kv & 1)) == 0", f"parity(q ^ kv) == {m % 2}",
            # gathers through gathers
            "perm[perm[kv]] <= q", "flags[table[2, kv]]", f"torch.isin(kv % 8, torch.tensor([{m}, {n}, 7]))",
            f"doc[(q ^ {m}) % S] == doc[kv]", "relative[perm[q] + perm[kv]] > -0.7", f"(table[:, kv] > q - {n}).any(0)",
            # conditions as values
            "(q >= kv) == (kv > 3)", f"(q >= kv) + (kv < {n})", f"(kv % {n}).bool()", f"(q > kv) * {n} >= kv % 4",
            f"torch.isfinite(bias[q, kv]) & (kv != {m})", f"torch.sign(q - kv) >= {m - 1}",
            f"torch.logical_not(kv < {n})",
            # neighbourhoods in two dimensions, and dilated ones
            f"((q // {n} - kv // {n}).abs() <= 1) & ((q % {n} - kv % {n}).abs() <= {m})",
            f"((q // {n}).clamp({m}, 3) - kv // {n}).abs() <= 1", f"((q - kv) % {n} == 0) & ((q - kv).abs() <= 9)",
        ]
    )  # fmt: skip


def score_text(rng: random.Random, depth: int) -> str:
    """The body of a score_mod."""
    x = score_text(rng, depth - 1) if depth else "s"
    c, n = rng.choice([0.5, 2.0, 7.0, 20.0]), rng.choice([1, 2, 3, 5, 7])
    return rng.choice(
        [
            f"({x}) * {c}", f"({x}) + slopes[h] * (kv - q)", f"({x}) + bias[q, kv]", f"({x}) + deep[b, h, q, kv]",
            f"torch.tanh(({x}) / {c}) * {c}", f"torch.where({mask_text(rng, 1)}, {x}, -torch.inf)",
            f"torch.where({mask_text(rng, 0)}, {x}, -1e4)",
            f"torch.where({mask_text(rng, 0)}, {x}, torch.finfo(torch.float32).min)",
            f"torch.where({mask_text(rng, 0)}, {x}, ({x}) * 0.5)", f"({x}) + torch.ceil(kv / {n})",
            f"({x}) + torch.floor((q - kv) / {n}) * 0.25", f"({x}).clamp(-{c}, {c})", f"torch.nn.functional.relu({x})",
            f"torch.nn.functional.gelu({x})", f"torch.nn.functional.silu({x})", f"(({x}) * 0.5) ** {n}",
            f"({x}).abs() + 0.1 * q", f"-({x})", f"torch.sigmoid({x}) * {c}", f"({x}) + wide[kv]", f"({x}) * wide[q]",
            f"({x}) + 0.9 ** (q - kv).abs()", f"torch.maximum({x}, bias[q, kv])", f"torch.exp(-({x}).abs())",
            f"({x}) - torch.log(1.0 + (q - kv).abs())", f"({x}) + (q * kv % {n}) * 0.1",
            f"({x}) * 1e-20", f"({x}) * 1e20", f"({x}) / 1e-20", f"({x}) * 1e-20 + bias[q, kv]", f"({x}) * gain",
            f"({x}).masked_fill({mask_text(rng, 0)}, -torch.inf)", f"({x}) + ((kv - q) // {n}) * 0.1",
            f"({x}) + ((kv - q) % -{n}) * 0.1", f"({x}) + (kv * 0.37) // 0.1 * 0.01", f"({x}) + (kv * 0.37 - 3) % 0.5",
            f"({x}) + relative[q - kv + S - 1]", f"({x}) + relative[kv - q]",
            f"({x}) + relative[(q - kv).clamp(-{n}, {n}) + {n}]", f"({x}) + spread[q, kv]",
            f"({x}) + strided[perm[kv]]",
            f"({x}) * (q >= kv)", f"({x}) + flags[kv] * {c}", f"({x}) + tiny[kv] * 0.01", f"({x}) + half[kv]",
            f"({x}) + brain[q]", f"({x}) / (1 + (q - kv).abs())", f"({x}) / (q - kv)", f"({x}) + torch.sqrt(kv - 1.0)",
            f"({x}) - torch.log1p((q - kv).abs())", f"torch.minimum({x}, strided[q])", f"torch.fmax({x}, bias[q, kv])",
            f"({x}) + torch.sign(bias[q, kv])", f"torch.where(flags[kv], {x}, strided[kv])", f"({x}) + perm[kv] * 0.1",
            f"({x}) + torch.cos((q - kv) * 0.{n})", f"F.softplus({x})", f"torch.nan_to_num({x}, {c})",
            f"({x}) + ((q ^ kv) & 7) * 0.1", f"({x}) - ((q & kv) | {n}) * 0.05", f"({x}) + (q << (kv % 4)) % 7 * 0.1",
            f"({x}) + ((kv * 4) >> (q % 5)) * 0.05", f"({x}) + torch.atan2((q - kv).float(), 1.0 + kv)",
            f"torch.atan({x}) * {c}", f"torch.asinh({x})", f"torch.sinh(torch.tanh({x}))",
            f"torch.logaddexp({x}, bias[q, kv])",
            f"({x}) + relative[perm[q] - perm[kv]]", f"({x}) + relative[perm[(q + kv) % S]]", f"({x}) / 2 ** (h + 1)",
            f"({x}) + strided[table[0, kv]]", f"({x}) + table[:, q].sum(0) * 0.01",
            f"({x}) * torch.sinc((q - kv) * 0.{n})", f"torch.copysign({x}, bias[q, kv])",
            f"({x}) + morton(q ^ kv) * 0.01",
            f"({x}) + (q * kv * 3000000) * 1e-9", f"torch.clamp({x}, min=-{c})", f"F.leaky_relu({x}, 0.{n})",
        ]
    )  # fmt: skip
