"""score_mods of attention-gym and of PyTorch's tests, written anew, and functions and methods of torch in them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from mod_table import KV, B, H, Mod, Q, Row, draw, scores, whole

SLOPES = torch.exp2(-8.0 * torch.arange(1, H + 1) / H).to(draw(1).device)
HEADS, BATCHES, QUERIES, KEYS = draw(H, seed=1), draw(B, seed=2), draw(Q, seed=3), draw(KV, seed=4)
BIAS = draw(B, H, Q, KV, seed=5)
HALF = draw(H, Q, KV, seed=6, dtype=torch.float16)
BRAIN = draw(H, seed=7, dtype=torch.bfloat16)
GATE = torch.tensor(0.7, device=SLOPES.device)
KINDS = whole(KV, high=3, seed=9)
FLAGS = whole(KV, high=2, seed=10).bool()


def alibi(s, b, h, q, kv):
    return s + SLOPES[h] * (kv - q)


def computed_alibi(s, b, h, q, kv):
    return s + (kv - q) * torch.exp2(-((h + 1) * 8.0 / H))


def capped(cap: float) -> Mod:
    return lambda s, b, h, q, kv: cap * torch.tanh(s / cap)


def after(*mods: Mod) -> Mod:
    def mod(s, b, h, q, kv):
        for part in mods:
            s = part(s, b, h, q, kv)
        return s

    return mod


def causal(s, b, h, q, kv):
    return torch.where(q >= kv, s, -float("inf"))


def activation(function: Mod, offset: float = 1.0) -> Mod:
    return lambda s, b, h, q, kv: torch.log(function(s) + offset)


GYM = {
    "identity": lambda s, b, h, q, kv: s,
    "alibi": alibi,
    "alibi, computed": computed_alibi,
    "softcap 20": capped(20.0),
    "softcap 1": capped(1),
    "softcap, then alibi": after(capped(5), alibi),
    "alibi, then softcap, causal": after(alibi, capped(5), causal),
    "activation gelu": activation(F.gelu),
    "activation relu": activation(F.relu),
    "activation sigmoid": activation(torch.sigmoid),
    "activation silu": activation(F.silu, 2.0),
    "activation softplus": activation(F.softplus),
    "activation squared relu": activation(lambda x: F.relu(x) ** 2),
    "activation elu": activation(F.elu, 2.0),
    "activation gelu tanh": activation(lambda x: F.gelu(x, approximate="tanh")),
    "activation erf": activation(torch.erf, 2.0),
}

PYTORCH = {
    "times two": lambda s, b, h, q, kv: s * 2,
    "squared": lambda s, b, h, q, kv: s * s,
    "causal score": causal,
    "inverse causal score": lambda s, b, h, q, kv: torch.where(q <= kv, s, float("-inf")),
    "relative": lambda s, b, h, q, kv: s + (q - kv),
    "relative causal": lambda s, b, h, q, kv: torch.where(q >= kv, s + (q - kv), float("-inf")),
    "head offset": lambda s, b, h, q, kv: s * HEADS[h],
    "trig": lambda s, b, h, q, kv: torch.sin(torch.cos(s)) + torch.tan(b),
    "trig, branching": lambda s, b, h, q, kv: torch.cos(s) * torch.sin(s) + torch.tan(b),
    "all positions": lambda s, b, h, q, kv: s + HEADS[h] + BATCHES[b] + QUERIES[q] + KEYS[kv],
    "all positions, products": lambda s, b, h, q, kv: s * HEADS[h] * BATCHES[b] + QUERIES[q] * KEYS[kv],
    "bias (q, kv)": lambda s, b, h, q, kv: s + BIAS[0, 0][q, kv],
    "bias (b, h, q, kv)": lambda s, b, h, q, kv: s + BIAS[b, h, q, kv],
    "bias (h, q, kv) in half": lambda s, b, h, q, kv: s + HALF[h, q, kv],
    "bias one index at a time": lambda s, b, h, q, kv: s + BIAS[b][h][q][kv],
    "bias with the first head": lambda s, b, h, q, kv: s + BIAS[b, 0][q][kv],
    "bias (b, h) by one": lambda s, b, h, q, kv: s + BIAS[b, h][q, kv],
    "bias in bfloat16": lambda s, b, h, q, kv: s + BRAIN[h],
    "captured scale": lambda s, b, h, q, kv: s * GATE,
    "captured scale, sigmoid": lambda s, b, h, q, kv: s * torch.sigmoid(GATE),
    "gate by head": lambda s, b, h, q, kv: s * torch.sigmoid(HEADS[h].to(torch.float32)),
    "gate by head in bfloat16": lambda s, b, h, q, kv: s + torch.sigmoid(BRAIN[h].float()),
    "symmetric": lambda s, b, h, q, kv: s + QUERIES[q] + KEYS[kv],
    "outer product": lambda s, b, h, q, kv: s + QUERIES[q] * KEYS[kv],
    "skip odd keys": lambda s, b, h, q, kv: torch.where(kv % 2 == 0, s, float("-inf")),
    "kinds of tokens": lambda s, b, h, q, kv: torch.where(KINDS[q] == KINDS[kv], s, -float("inf")),
    "padding as a score": lambda s, b, h, q, kv: torch.where(FLAGS[kv] | (kv == 0), s, -float("inf")),
    "padded dense causal": lambda s, b, h, q, kv: torch.where((q >= kv) & (kv < 17), s, -float("inf")),
    "silu": lambda s, b, h, q, kv: F.silu(s),
    "many operations": lambda s, b, h, q, kv: torch.sigmoid(s) * torch.tanh(s) - torch.exp(-s.abs()) + s.square(),
    "constant": lambda s, b, h, q, kv: s * 0 + 1,
    "of positions only": lambda s, b, h, q, kv: (q - kv) * 0.1,
    "log of distance": lambda s, b, h, q, kv: s - torch.log1p((q - kv).abs().float()),
    "log length scale": lambda s, b, h, q, kv: s * torch.log(q + 2.0) / math.log(Q),
    "natural decay": lambda s, b, h, q, kv: s + math.log(0.9) * (q - kv).abs(),
    "rounded distance": lambda s, b, h, q, kv: s + torch.ceil(kv / 7),
    "rounded distance of both": lambda s, b, h, q, kv: s + torch.floor((q - kv) / 7) * 0.5,
    "finfo.min": lambda s, b, h, q, kv: torch.where(q >= kv, s, torch.finfo(torch.float32).min),
    "minus 1e4": lambda s, b, h, q, kv: torch.where(q >= kv, s, -1e4),
    "masked by a product": lambda s, b, h, q, kv: s + (q < kv) * -10000.0,
    "masked by 1 - mask": lambda s, b, h, q, kv: s + (1.0 - FLAGS[kv].float()) * -1e9,
}  # fmt: skip

METHODS = {
    ".tanh()": lambda s, b, h, q, kv: s.tanh(),
    ".abs()": lambda s, b, h, q, kv: s.abs(),
    ".clamp(lo, hi)": lambda s, b, h, q, kv: s.clamp(-0.5, 0.5),
    ".clamp(min=)": lambda s, b, h, q, kv: s.clamp(min=-0.5),
    ".clamp(max=)": lambda s, b, h, q, kv: s.clamp(max=0.25),
    ".clamp of tensors": lambda s, b, h, q, kv: s.clamp(-HEADS[h].abs(), HEADS[h].abs()),
    ".pow(2)": lambda s, b, h, q, kv: s.pow(2),
    ".pow(3)": lambda s, b, h, q, kv: s.pow(3),
    ".pow(-2)": lambda s, b, h, q, kv: (s.abs() + 1).pow(-2),
    "** 0.5": lambda s, b, h, q, kv: (s * s + 1) ** 0.5,
    "number ** position": lambda s, b, h, q, kv: s * 0.9**kv,
    ".float()": lambda s, b, h, q, kv: s + q.float() / 10 - kv.float() / 7,
    ".half()": lambda s, b, h, q, kv: s + (q / 3.0).half(),
    ".bfloat16()": lambda s, b, h, q, kv: s + (kv / 4.0).bfloat16(),
    ".to(dtype)": lambda s, b, h, q, kv: s + (q - kv).to(torch.float32) * 0.1,
    ".to(s.dtype)": lambda s, b, h, q, kv: s + (q - kv).to(s.dtype) * 0.1,
    ".to(device)": lambda s, b, h, q, kv: s.to(s.device) + HEADS[h].to(s.device),
    ".to(device, dtype)": lambda s, b, h, q, kv: s + kv.to(s.device, torch.float32) * 0.1,
    ".type(dtype)": lambda s, b, h, q, kv: s + kv.type(torch.float32) * 0.1,
    ".type_as": lambda s, b, h, q, kv: s + kv.type_as(s) * 0.1,
    ".int()": lambda s, b, h, q, kv: s + (kv * 0.3).int(),
    ".long()": lambda s, b, h, q, kv: s + (kv * 0.3 - 2).long(),
    ".bool()": lambda s, b, h, q, kv: torch.where((kv % 3).bool(), s, 0.0),
    ".masked_fill": lambda s, b, h, q, kv: s.masked_fill(q < kv, -torch.inf),
    ".where": lambda s, b, h, q, kv: s.where(q >= kv, -5.0),
    ".exp()": lambda s, b, h, q, kv: s.exp() * 0.1,
    ".log()": lambda s, b, h, q, kv: (s.abs() + 1).log(),
    ".sqrt()": lambda s, b, h, q, kv: (s.abs() + 1).sqrt(),
    ".rsqrt()": lambda s, b, h, q, kv: (s.abs() + 1).rsqrt(),
    ".sigmoid()": lambda s, b, h, q, kv: s.sigmoid(),
    ".relu()": lambda s, b, h, q, kv: s.relu(),
    ".neg()": lambda s, b, h, q, kv: s.neg(),
    ".add, .sub, .mul, .div": lambda s, b, h, q, kv: s.add(1).sub(kv, alpha=2).mul(0.5).div(3),
    ".floor(), .ceil()": lambda s, b, h, q, kv: s + (kv / 3).floor() - (q / 4).ceil(),
    ".round()": lambda s, b, h, q, kv: s + (kv / 3).round(),
    ".trunc()": lambda s, b, h, q, kv: s + ((q - kv) / 3).trunc(),
    ".sign()": lambda s, b, h, q, kv: s + (q - kv).sign(),
    ".square()": lambda s, b, h, q, kv: s.square(),
    ".reciprocal()": lambda s, b, h, q, kv: (s.abs() + 1).reciprocal(),
    ".maximum, .minimum": lambda s, b, h, q, kv: s.maximum(HEADS[h]).minimum(KEYS[kv] + 2),
    ".eq, .ne, .lt, .ge": lambda s, b, h, q, kv: torch.where(q.eq(kv) | q.ne(3) & kv.lt(9) & q.ge(2), s, -3.0),
    ".logical_and, .logical_not": lambda s, b, h, q, kv: s.masked_fill((q < 3).logical_and(kv > 3).logical_not(), 0.5),
    ".sin(), .cos()": lambda s, b, h, q, kv: s.sin() + s.cos(),
    ".log1p(), .expm1()": lambda s, b, h, q, kv: s.abs().log1p() + (s * 0.1).expm1(),
    ".erf()": lambda s, b, h, q, kv: s.erf(),
    ".nan_to_num()": lambda s, b, h, q, kv: (s / (q - kv)).nan_to_num(0.0, 1.0, -1.0),
    ".remainder, .fmod": lambda s, b, h, q, kv: s + (q - kv).remainder(5) - (q - kv).fmod(3),
    ".floor_divide": lambda s, b, h, q, kv: s + (q - kv).floor_divide(5),
    ".item-free numbers": lambda s, b, h, q, kv: s + float(Q) / KV,
    ".contiguous().detach().clone()": lambda s, b, h, q, kv: s.contiguous().detach().clone(),
    ".view(()), .squeeze()": lambda s, b, h, q, kv: s.squeeze() + kv.reshape(()) * 0.1,
    ".unsqueeze(0)[0]": lambda s, b, h, q, kv: s + kv.unsqueeze(0)[0] * 0.1,
    ".new_tensor": lambda s, b, h, q, kv: s + s.new_tensor(0.5) * kv,
    ".new_full": lambda s, b, h, q, kv: torch.where(q >= kv, s, s.new_full((), -4.0)),
    ".expand_as": lambda s, b, h, q, kv: s + GATE.expand_as(s),
    ".hypot": lambda s, b, h, q, kv: torch.hypot(s, s.new_ones(()) * 2),
    ".logaddexp": lambda s, b, h, q, kv: torch.logaddexp(s, HEADS[h]),
    ".lerp": lambda s, b, h, q, kv: torch.lerp(s, KEYS[kv].to(s.dtype), 0.25),
    ".sinh, .cosh": lambda s, b, h, q, kv: torch.sinh(s * 0.3) + torch.cosh(s * 0.3),
    ".softsign": lambda s, b, h, q, kv: F.softsign(s),
    ".mish": lambda s, b, h, q, kv: F.mish(s),
    ".hardswish": lambda s, b, h, q, kv: F.hardswish(s) + F.hardsigmoid(s),
    ".selu, .celu": lambda s, b, h, q, kv: F.selu(s) + F.celu(s, 1.5),
    ".tanhshrink": lambda s, b, h, q, kv: F.tanhshrink(s) + F.softshrink(s, 0.3) + F.hardshrink(s, 0.3),
    ".threshold": lambda s, b, h, q, kv: F.threshold(s, 0.1, -1.0),
    ".prelu": lambda s, b, h, q, kv: F.logsigmoid(s) + F.relu6(s) + F.hardtanh(s),
    ".clip": lambda s, b, h, q, kv: s.clip(-1, 1),
    ".clamp_min_": lambda s, b, h, q, kv: s.clamp_min(-1).clamp_max(1),
    ".shape and .ndim": lambda s, b, h, q, kv: s * (2 if s.ndim == 0 and s.shape == () and s.dim() == 0 else 3),
    ".numel()": lambda s, b, h, q, kv: s * s.numel(),
    ".dtype": lambda s, b, h, q, kv: s * (2 if s.dtype.is_floating_point and not q.dtype.is_floating_point else 3),
    ".is_floating_point()": lambda s, b, h, q, kv: s * (2 if s.is_floating_point() else 3),
    ".size()": lambda s, b, h, q, kv: s * (2 if s.size() == () else 3),
    "torch.scalar_tensor": lambda s, b, h, q, kv: torch.where(q >= kv, s, torch.scalar_tensor(-4.0)),
    "torch.tensor": lambda s, b, h, q, kv: torch.where(q >= kv, s, torch.tensor(-4.0, device=GATE.device)),
    "torch.full": lambda s, b, h, q, kv: torch.where(q >= kv, s, torch.full((), -4.0, device=GATE.device)),
    "torch.full_like": lambda s, b, h, q, kv: torch.where(q >= kv, s, torch.full_like(s, -4.0)),
    "torch.zeros_like": lambda s, b, h, q, kv: torch.where(q >= kv, s, torch.zeros_like(s)),
    "torch.div, floor": lambda s, b, h, q, kv: s + torch.div(q - kv, 4, rounding_mode="floor"),
    "torch.div, trunc": lambda s, b, h, q, kv: s + torch.div(q - kv, 4, rounding_mode="trunc"),
    "torch.addcmul": lambda s, b, h, q, kv: torch.addcmul(s, HEADS[h], KEYS[kv], value=0.5),
    "torch.bitwise_and": lambda s, b, h, q, kv: s + torch.bitwise_and(q, 5) - torch.bitwise_or(kv, 2),
    "~ of a position": lambda s, b, h, q, kv: s + (~q + kv) * 0.1,
    "abs()": lambda s, b, h, q, kv: s - abs(q - kv) * 0.2,
    "Python's max of numbers": lambda s, b, h, q, kv: s * max(2, 1),
    "math functions of numbers": lambda s, b, h, q, kv: s * math.sqrt(2) + math.log(2.0),
    "torch.where of three scores": lambda s, b, h, q, kv: torch.where(q > kv, s, torch.where(q == kv, s * 2, s - 1)),
    "torch.maximum": lambda s, b, h, q, kv: torch.maximum(s, torch.minimum(KEYS[kv], HEADS[h])),
    "torch.pow of a number": lambda s, b, h, q, kv: s + torch.pow(2.0, -h.float()),
    "torch.exp of a head": lambda s, b, h, q, kv: s - torch.exp(-h.float()) * (q - kv).abs(),
    "torch.copysign": lambda s, b, h, q, kv: torch.copysign(s, KEYS[kv]),
    "torch.heaviside": lambda s, b, h, q, kv: torch.heaviside(s, HEADS[h].to(s.dtype)),
    "torch.isclose": lambda s, b, h, q, kv: torch.where(torch.isnan(s) | torch.isinf(s), 0.0, s),
}  # fmt: skip

CODES = whole(max(Q, KV), low=-40, high=40, seed=11, dtype=torch.int32)
BYTES = whole(KV, high=256, seed=12, dtype=torch.uint8)


def in_place_bits(s, b, h, q, kv):
    code = q + 0 * kv
    code ^= kv
    code <<= 1
    code |= 1
    code &= 0x1F
    code >>= 1
    return s + code * 0.1


def parity(n):
    for shift in (8, 4, 2, 1):
        n = n ^ (n >> shift)
    return n & 1


def hashed(b, h, q, kv):
    """A 32-bit hash of a position, as for dropout without random numbers."""
    n = (q * 2654435761 + kv * 40503 + h * 97 + b) & 0xFFFFFFFF
    n = ((n >> 16) ^ n) * 0x45D9F3B & 0xFFFFFFFF
    return (n >> 16) ^ n


ARCS = {
    ".atan": lambda s, b, h, q, kv: torch.atan(s),
    "torch.atan2": lambda s, b, h, q, kv: torch.atan2(s, HEADS[h]),
    "torch.asin, acos": lambda s, b, h, q, kv: torch.asin(torch.tanh(s)) + 2 * torch.acos(torch.tanh(s)),
    "arcsinh, arccosh, arctanh": lambda s, b, h, q, kv: (
        torch.asinh(s) + torch.acosh(1 + s * s) + torch.atanh(torch.sin(s) * 0.9)
    ),
    "angle on a canvas": lambda s, b, h, q, kv: s + torch.atan2((q // 6 - kv // 6).float(), (q % 6 - kv % 6).float()),
    "degrees and radians": lambda s, b, h, q, kv: s * torch.deg2rad(q * 10.0) - torch.rad2deg(s) * 0.01,
    "sinc": lambda s, b, h, q, kv: s * torch.sinc((q - kv) / 5),
    "logit": lambda s, b, h, q, kv: torch.logit(torch.sigmoid(s)) + torch.logit(torch.sigmoid(s), eps=0.3),
    "special functions": lambda s, b, h, q, kv: torch.special.ndtr(s) + torch.special.entr(s.abs()) + torch.erfc(s),
    "xlogy": lambda s, b, h, q, kv: s + torch.xlogy(kv, q + 1) * 0.1,
    "logaddexp2, ldexp": lambda s, b, h, q, kv: torch.logaddexp2(s, HEADS[h]) + torch.ldexp(s, -h),
    "signbit, sgn": lambda s, b, h, q, kv: torch.where(torch.signbit(s), s * 2, s) + torch.sgn(kv - q),
}
BITS = {
    "& | ^ of two positions": lambda s, b, h, q, kv: s + ((q & kv) - (q | kv) + (q ^ kv)) * 0.1,
    "& of negative numbers": lambda s, b, h, q, kv: s + ((q - kv) & (kv - 5)) * 0.1,
    "<< by a position": lambda s, b, h, q, kv: s + (1 << (kv % 5)) * 0.1,
    ">> by a position": lambda s, b, h, q, kv: s + (q >> (kv % 3)) * 0.1,
    "in place": in_place_bits,
    "of captured integers": lambda s, b, h, q, kv: s + ((CODES[q] & CODES[kv]) ^ (CODES[q] | kv)) % 16 * 0.1,
    "of captured bytes": lambda s, b, h, q, kv: s + (BYTES[kv] << 3) * 0.01 + ((BYTES[kv] ^ 0x5A) >> 2) * 0.01,
    "bytes beside numbers of more bits": lambda s, b, h, q, kv: (
        torch.where(BYTES[kv] >= 300, s, -1.0) + BYTES[kv] // 300 * 0.1 + torch.where(BYTES[kv] > -1, 0.5, 0.0)
    ),
    "of conditions and numbers": lambda s, b, h, q, kv: s + ((q > kv) & kv) * 0.1 + ((q > 3) | (kv & 1)) * 0.2,
    "number on the left": lambda s, b, h, q, kv: s + ((5 & q) + (3 ^ kv) + (8 | q) + (64 >> h)) * 0.05,
    "torch.bitwise_": lambda s, b, h, q, kv: (
        s + torch.bitwise_xor(torch.bitwise_and(q, kv), torch.bitwise_not(q)) * 0.1 + torch.bitwise_or(q, kv)
    ),
    "torch shifts": lambda s, b, h, q, kv: (
        s + torch.bitwise_left_shift(q, kv % 7) % 9 * 0.1 + torch.bitwise_right_shift(q * 9, torch.bitwise_and(kv, 3))
    ),
    "methods": lambda s, b, h, q, kv: s + q.bitwise_and(kv) * 0.1 + q.__xor__(kv) * 0.1 + q.__lshift__(h) * 0.05,
    "<< beyond 32 bits": lambda s, b, h, q, kv: s + (1 << (kv + 20)) % 97 * 0.1,
    "<< beyond 64 bits, and by less than 0": lambda s, b, h, q, kv: s + ((3 << (kv * 4)) + (3 << (q - kv))) % 97 * 0.1,
    ">> by more than there are bits": lambda s, b, h, q, kv: s + ((q - kv) >> (kv * 5)) * 0.5 + (q >> (kv - q)) * 0.1,
    "a power of two": lambda s, b, h, q, kv: s / 2**h + torch.pow(2, kv % 5) * 0.1,
    "parity of bits": lambda s, b, h, q, kv: torch.where(parity(q ^ kv) == 1, s, -s),
    "gray codes": lambda s, b, h, q, kv: s + ((q ^ (q >> 1)) == (kv ^ (kv >> 1))) * 2.0,
    "hash for dropout": lambda s, b, h, q, kv: torch.where(hashed(b, h, q, kv) % 10 < 7, s, -torch.inf),
    "a bit of a number": lambda s, b, h, q, kv: torch.where(((0xA5 >> (kv % 8)) & 1) == 1, s, -3.0),
}  # fmt: skip

ROWS: dict[str, Row] = {
    **scores(GYM),
    **scores(PYTORCH),
    **scores(METHODS),
    **scores(ARCS),
    **scores(BITS),
    **{f"{name}, float16": Row(score=PYTORCH[name], dtype=torch.float16) for name in ("head offset", "relative")},
    **{f"{name}, bfloat16": Row(score=GYM[name], dtype=torch.bfloat16) for name in ("alibi", "softcap 20")},
    **{f"{name}, two queries": Row(score=GYM[name], sizes=(1, 4, 2, 2, 40, 16)) for name in ("alibi, computed",)},
}
