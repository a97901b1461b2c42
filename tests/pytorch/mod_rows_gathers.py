"""Gathers with computed indices, vectors of captured tensors, and tensors that a mod reaches through objects."""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from attention_reference import DEVICE
from mod_table import KV, B, D, H, Mod, Q, Row, draw, masks, scores, whole

REL = draw(H, Q + KV, seed=1)
SINGLE = draw(Q + KV, seed=2)
BUCKETS = draw(H, 9, seed=3)
BLOCKS = draw(2, 3, seed=4)
DISTANCES = whole(B, Q, KV, high=6, seed=5, dtype=torch.int32)
ROW, COLUMN = whole(Q, high=5, seed=6), whole(KV, high=6, seed=7)
NEGATIVE = whole(KV, low=-6, high=6, seed=8, dtype=torch.int32)
PAIRS = draw(B, 5, 6, seed=9)
PERMUTED = torch.randperm(KV, generator=torch.Generator().manual_seed(3)).to(DEVICE)
ZERO, TWO = torch.tensor(0, device=DEVICE), torch.tensor(2, device=DEVICE, dtype=torch.int32)
DEEP = draw(B, H, 4, KV, seed=10)
EDGES = draw(H, 3, 7, seed=11)
PATHS, PATH = whole(B, Q, KV, 3, high=7, seed=12, dtype=torch.int32), whole(B, Q, KV, high=4, seed=13)
PAGES = whole(B, 6, high=6, seed=14, dtype=torch.int32)
REL_H, REL_W = draw(B, H, Q, 4, seed=15), draw(B, H, Q, 6, seed=16)
BYTES = whole(KV, high=9, seed=17, dtype=torch.uint8)
HASHED = draw(16, seed=18)
PLACES = torch.linspace(0, 15.99, KV, device=DEVICE)


def t5_bucket_of_any(distance, buckets: int = 8, most: int = 16):
    """The same as transformers has it: the logarithm is that of 0 too, where it is not chosen."""
    side = buckets // 2
    bucket = (distance > 0).to(torch.long) * side
    distance = torch.abs(distance)
    exact = side // 2
    far = exact + (torch.log(distance.float() / exact) / math.log(most / exact) * (side - exact)).to(torch.long)
    return bucket + torch.where(distance < exact, distance, torch.min(far, torch.full_like(far, side - 1)))


def t5_bucket(distance, buckets: int = 8, most: int = 16):
    """T5's buckets of distances."""
    side = buckets // 2
    bucket = (distance > 0).to(torch.long) * side
    distance = torch.abs(distance)
    exact = side // 2
    far = exact + (torch.log(distance.float().clamp(min=1) / exact) / 2.0794415 * (side - exact)).to(torch.long)
    return bucket + torch.where(distance < exact, distance, torch.minimum(far, torch.full_like(far, side - 1)))


def t5_bucket_of_past(distance, buckets: int = 8, most: int = 16):
    """Of a decoder, with bounds that only the condition has: a distance below `exact` is its own bucket."""
    distance, exact = torch.clamp(-distance, min=0), buckets // 2
    far = torch.log(torch.clamp(distance, min=1).float() / exact) / math.log(most / exact) * (buckets - exact)
    return torch.where(distance < exact, distance, torch.clamp(exact + far.long(), max=buckets - 1))


def deberta_bucket(distance, buckets: int = 4):
    """DeBERTa v2's: the logarithm is rounded up, as a float that the sign multiplies."""
    size, most = distance.abs(), 16
    far = torch.ceil(torch.log(size / buckets) / math.log((most - 1) / buckets) * (buckets - 1)) + buckets
    bucket = torch.where(size <= buckets, distance.float(), far * torch.sign(distance)).long()
    return torch.clamp(bucket + 7, 0, 15)


def edge_bias(s, b, h, q, kv):
    """Graphormer's edge encoding."""
    length, total = PATH[b, q, kv], 0.0
    for n in range(3):
        total = total + torch.where(length > n, EDGES[h, n, PATHS[b, q, kv, n]], 0.0)
    return s + total / torch.clamp(length, min=1)


GATHERS = {
    "rel[(q - kv) + S]": lambda s, b, h, q, kv: s + SINGLE[(q - kv) + KV - 1],
    "rel[h, q - kv + S]": lambda s, b, h, q, kv: s + REL[h, q - kv + KV],
    "rel[h][q - kv + S]": lambda s, b, h, q, kv: s + REL[h][q - kv + KV],
    "rel[kv - q], from the end": lambda s, b, h, q, kv: s + SINGLE[kv - q],
    "rel[kv - q], beside positions of 64 bits": lambda s, b, h, q, kv: (
        s + SINGLE[kv - q] * ((q * 73856093 + kv * 19349663) % 5 < 3)
    ),
    "rel[q + kv]": lambda s, b, h, q, kv: s + SINGLE[q + kv],
    "rel[|q - kv|]": lambda s, b, h, q, kv: s + SINGLE[torch.abs(q - kv)],
    "rel[clamp(q - kv)]": lambda s, b, h, q, kv: s + BUCKETS[h, (q - kv).clamp(-4, 4) + 4],
    "rel[torch.clamp]": lambda s, b, h, q, kv: s + BUCKETS[h, torch.clamp(kv - q + 4, 0, 8)],
    "rel[minimum]": lambda s, b, h, q, kv: s + BUCKETS[h, torch.minimum((q - kv).abs(), torch.full_like(q, 8))],
    "t5": lambda s, b, h, q, kv: s + BUCKETS[h, t5_bucket(kv - q)],
    "t5, with the logarithm of 0": lambda s, b, h, q, kv: s + BUCKETS[h, t5_bucket_of_any(kv - q)],
    "t5 of the past": lambda s, b, h, q, kv: s + BUCKETS[h, t5_bucket_of_past(kv - q)],
    "deberta v2": lambda s, b, h, q, kv: s + HASHED[deberta_bucket(q - kv)],
    "a short table, guarded": lambda s, b, h, q, kv: torch.where(
        (q - kv).abs() < 9, s + BUCKETS[h, (q - kv).abs().clamp(max=8)], s
    ),
    "nested choices": lambda s, b, h, q, kv: (
        s + BUCKETS[h, torch.where(q - kv < 4, torch.where(q < kv, 0, q - kv), 4 + torch.where(q - kv < 8, 1, 2))]
    ),
    "a product with a comparison": lambda s, b, h, q, kv: s + BUCKETS[h, ((q - kv).abs() < 9) * (q - kv).abs()],
    "positions between captured floats": lambda s, b, h, q, kv: s + HASHED[PLACES[kv].floor().long()],
    "sandwich": lambda s, b, h, q, kv: s + SINGLE[q - kv + KV - 1] * BUCKETS[h, 0],
    "t[kv // 16]": lambda s, b, h, q, kv: s + BLOCKS[0, kv // 16],
    "t[q // 16, kv // 8]": lambda s, b, h, q, kv: s + BLOCKS[q // 16, kv // 8],
    "t[kv % 3]": lambda s, b, h, q, kv: s + BLOCKS[1, kv % 3],
    "t[b % 2]": lambda s, b, h, q, kv: s + BLOCKS[b % 2, h % 3],
    "t[h // 2]": lambda s, b, h, q, kv: s + BLOCKS[h // 2, 1],
    "t[idx[q]]": lambda s, b, h, q, kv: s + SINGLE[ROW[q]],
    "t[idx[idx[q]]]": lambda s, b, h, q, kv: s + SINGLE[PERMUTED[ROW[q]]],
    "t[idx[b, q, kv]]": lambda s, b, h, q, kv: s + BUCKETS[h, DISTANCES[b, q, kv]],
    "rel[b, i[q], j[kv]]": lambda s, b, h, q, kv: s + PAIRS[b, ROW[q], COLUMN[kv]],
    "negative indices": lambda s, b, h, q, kv: s + SINGLE[NEGATIVE[kv]],
    "negative constants": lambda s, b, h, q, kv: s + REL[-1, q] + REL[h, -kv - 1],
    "idx of bytes": lambda s, b, h, q, kv: s + BUCKETS[h, BYTES[kv].int()],
    "an index of bytes itself": lambda s, b, h, q, kv: s + BUCKETS[h, BYTES[kv].long()],
    "0-d index": lambda s, b, h, q, kv: s + DEEP[b, h, ZERO, kv],
    "0-d index of int32": lambda s, b, h, q, kv: s + DEEP[b, h, TWO, kv],
    "0-d index plus 1": lambda s, b, h, q, kv: s + DEEP[b, h, TWO + 1, kv],
    "a constant in the middle": lambda s, b, h, q, kv: s + DEEP[b, h, 1, kv],
    "two tables": lambda s, b, h, q, kv: s + REL_H[b, h, q, kv // 6] + REL_W[b, h, q, kv % 6],
    "graphormer": lambda s, b, h, q, kv: s + BUCKETS[h, DISTANCES[b, q, kv]],
    "graphormer's edges": edge_bias,
    "an index by where": lambda s, b, h, q, kv: s + SINGLE[torch.where(q >= kv, q - kv, 0)],
    "an index by a comparison": lambda s, b, h, q, kv: s + BUCKETS[h, (q >= kv).long()],
    "a hash": lambda s, b, h, q, kv: s + HASHED[(q * 7 + kv * 13) & 15],
    "a float made an index": lambda s, b, h, q, kv: s + HASHED[(q * 0.3).long()],
    "pages": lambda s, b, h, q, kv: s + SINGLE[PAGES[b, kv // 4] * 4 + kv % 4],
    "an index of 8 bits": lambda s, b, h, q, kv: s + DEEP[b, h, 0, PERMUTED[kv]],
}  # fmt: skip

ROPE_Q, ROPE_K = draw(B, H, Q, 6, seed=20), draw(B, 1, KV, 6, seed=21)
PLACES_Q, PLACES_K = draw(Q, 3, seed=22), draw(KV, 3, seed=23)
FACTORS = draw(5, seed=24)
CHOSEN = whole(B, H, Q, 3, high=KV, seed=25)
MATRIX = draw(3, 3, seed=26)

VECTORS = {
    "mla dot": lambda s, b, h, q, kv: s + 0.5 * torch.dot(ROPE_Q[b, h, q], ROPE_K[b, h // H, kv]),
    "dot with @": lambda s, b, h, q, kv: s + ROPE_Q[b, h, q] @ ROPE_K[b, 0, kv],
    ".dot()": lambda s, b, h, q, kv: s + ROPE_Q[b, h, q].dot(ROPE_K[b, 0, kv]),
    "sum of a product": lambda s, b, h, q, kv: s + (ROPE_Q[b, h, q] * ROPE_K[b, 0, kv]).sum(),
    "sum(-1) of a product": lambda s, b, h, q, kv: s + (ROPE_Q[b, h, q] * ROPE_K[b, 0, kv]).sum(-1),
    "torch.sum of a product": lambda s, b, h, q, kv: s + torch.sum(ROPE_Q[b, h, q] * ROPE_K[b, 0, kv], dim=-1),
    "distance": lambda s, b, h, q, kv: s - (PLACES_Q[q] - PLACES_K[kv]).pow(2).sum().sqrt(),
    "squared distance": lambda s, b, h, q, kv: s - ((PLACES_Q[q] - PLACES_K[kv]) ** 2).sum(dim=-1),
    "distance by norm": lambda s, b, h, q, kv: s - torch.norm(PLACES_Q[q] - PLACES_K[kv]),
    "distance by linalg": lambda s, b, h, q, kv: s - torch.linalg.vector_norm(PLACES_Q[q] - PLACES_K[kv]),
    "largest distance": lambda s, b, h, q, kv: s - (PLACES_Q[q] - PLACES_K[kv]).abs().max(),
    "amin": lambda s, b, h, q, kv: s - (PLACES_Q[q] * PLACES_K[kv]).amin(-1),
    "mean of a vector": lambda s, b, h, q, kv: s + PLACES_Q[q].mean(),
    "prod of a vector": lambda s, b, h, q, kv: s + PLACES_Q[q].prod(),
    "captured .sum()": lambda s, b, h, q, kv: s + FACTORS.sum(),
    "captured .mean()": lambda s, b, h, q, kv: s * FACTORS.mean(),
    "captured .max()": lambda s, b, h, q, kv: s * FACTORS.max(),
    "captured, computed, then read": lambda s, b, h, q, kv: s + torch.sigmoid(BUCKETS)[h, 0],
    "captured.float()[h]": lambda s, b, h, q, kv: s + BUCKETS.float()[h, 1],
    "captured * 2, then read": lambda s, b, h, q, kv: s + (BUCKETS * 2)[h, 3],
    "a slice": lambda s, b, h, q, kv: s + BUCKETS[:, 2][h],
    "a slice with a start": lambda s, b, h, q, kv: s + REL[:, 3:][h, q],
    "a slice summed": lambda s, b, h, q, kv: s + BUCKETS[h, 2:5].sum(),
    "an ellipsis": lambda s, b, h, q, kv: s + PAIRS[b, ..., 2][ROW[q]],
    "a whole axis, then an index": lambda s, b, h, q, kv: s + PAIRS[:, ROW[q]][b, COLUMN[kv]],
    "unpacked coordinates": lambda s, b, h, q, kv: (
        s - sum(abs(x - y) for x, y in zip(PLACES_Q[q], PLACES_K[kv], strict=True))
    ),
    "unbound coordinates": lambda s, b, h, q, kv: s - (PLACES_Q[q].unbind()[0] - PLACES_K[kv].unbind()[1]).abs(),
    "a transpose": lambda s, b, h, q, kv: s + BUCKETS.T[2, h],
    "a mT": lambda s, b, h, q, kv: s + PAIRS.mT[b, COLUMN[kv], ROW[q]],
    "a view": lambda s, b, h, q, kv: s + BLOCKS.view(-1)[kv % 6],
    "a flatten": lambda s, b, h, q, kv: s + BLOCKS.flatten()[kv % 6],
    "a squeeze": lambda s, b, h, q, kv: s + ROPE_K.squeeze(1)[b, kv, 2],
    "an unsqueeze": lambda s, b, h, q, kv: s + FACTORS.unsqueeze(0)[0, kv % 5],
    "a permute": lambda s, b, h, q, kv: s + PAIRS.permute(1, 2, 0)[ROW[q], COLUMN[kv], b],
    "index_select": lambda s, b, h, q, kv: s + torch.index_select(FACTORS, 0, (kv % 5).reshape(1))[0],
    "gather": lambda s, b, h, q, kv: s + FACTORS.gather(0, (kv % 5).reshape(1))[0],
    "a vector of indices": lambda s, b, h, q, kv: s + SINGLE[CHOSEN[b, h, q]].sum(),
    "a matrix and a vector": lambda s, b, h, q, kv: s + (MATRIX @ PLACES_K[kv]).dot(PLACES_Q[q]),
    "stack": lambda s, b, h, q, kv: s + torch.stack([q * 0.1, kv * 0.2]).sum(),
    "lens by len()": lambda s, b, h, q, kv: s + FACTORS[kv % len(FACTORS)] + FACTORS[q % FACTORS.shape[0]],
    "size(0)": lambda s, b, h, q, kv: s + FACTORS[kv % FACTORS.size(0)] * FACTORS.numel(),
    "dtype of a table": lambda s, b, h, q, kv: s + FACTORS[0].to(FACTORS.dtype) + kv.to(FACTORS.dtype) * 0.1,
}  # fmt: skip

VECTOR_MASKS = {
    "top-k by any": lambda b, h, q, kv: (CHOSEN[b, h, q] == kv).any() | (kv == 0),
    "top-k by any(dim)": lambda b, h, q, kv: (CHOSEN[b, h, q, :] == kv).any(dim=-1) | (kv == 0),
    "top-k by torch.any": lambda b, h, q, kv: torch.any(CHOSEN[b, h, q] == kv) | (kv == 0),
    "top-k by sum": lambda b, h, q, kv: ((CHOSEN[b, h, q] == kv).sum() > 0) | (kv == 0),
    "not chosen, by all": lambda b, h, q, kv: (CHOSEN[b, h, q] != kv).all(),
    "near places": lambda b, h, q, kv: (PLACES_Q[q] - PLACES_K[kv]).square().sum(-1) < 6.0,
    "number of offsets before": lambda b, h, q, kv: (PLACES_K[:5, 0] < 0).sum() > kv - q,
}


@dataclass
class Held:
    slope: torch.Tensor
    width: int = 7


class Alibi:
    def __init__(self):
        self.slope, self.table, self.names = SINGLE, {"rel": REL}, [SINGLE, BUCKETS]

    def score(self, s, b, h, q, kv):
        return s + self.slope[h] * (kv - q)

    def __call__(self, s, b, h, q, kv):
        return s + self.table["rel"][h, q - kv + KV]


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("slope", SINGLE)
        self.weight = torch.nn.Parameter(BUCKETS, requires_grad=False)
        self.inner = torch.nn.ParameterDict({"a": torch.nn.Parameter(SINGLE, requires_grad=False)})

    def score(self, s, b, h, q, kv):
        return s + self.slope[h] * self.weight[h, kv % 9]

    def nested(self, s, b, h, q, kv):
        return s + self.inner["a"][q - kv + KV]


HELD, OBJECT, LAYER = Held(SINGLE), Alibi(), Layer()
NAMED, SPACE = namedtuple("Named", "slope rel")(SINGLE, REL), SimpleNamespace(inner=SimpleNamespace(slope=SINGLE), n=3)


def with_attribute(s, b, h, q, kv):
    return s + with_attribute.slope[h] * with_attribute.factor


with_attribute.slope, with_attribute.factor = SINGLE, 0.5


def windowed(b, h, q, kv):
    return (q >= kv) & (q - kv < windowed.width)


windowed.width = 4


def made(table: torch.Tensor) -> Mod:
    def inner(h, n):
        return table[h, n]

    return lambda s, b, h, q, kv: s + inner(h, q - kv + KV)


OBJECTS = {
    "a method": OBJECT.score,
    "a callable object": OBJECT,
    "an attribute of an object": lambda s, b, h, q, kv: s + OBJECT.slope[h] * kv,
    "a dict of an object": lambda s, b, h, q, kv: s + OBJECT.table["rel"][h, q],
    "a list of an object": lambda s, b, h, q, kv: s + OBJECT.names[1][h, 0],
    "a dataclass": lambda s, b, h, q, kv: s + HELD.slope[h] * HELD.width,
    "a namedtuple": lambda s, b, h, q, kv: s + NAMED.slope[h] + NAMED.rel[h, kv],
    "a SimpleNamespace": lambda s, b, h, q, kv: s + SPACE.inner.slope[h] * SPACE.n,
    "a module's buffer": LAYER.score,
    "a module's nested parameter": LAYER.nested,
    "a function's attribute": with_attribute,
    "a closure of a closure": made(REL),
    "a partial with a tensor": functools.partial(lambda table, s, b, h, q, kv: s + table[h, kv], REL),
    "a partial with a keyword": functools.partial(lambda s, b, h, q, kv, *, table: s + table[h, kv], table=REL),
    "a default": lambda s, b, h, q, kv, table=REL: s + table[h, kv],
    "a list of tensors": (lambda tables: lambda s, b, h, q, kv: s + tables[0][h, q] + tables[1][h, 0])([REL, BUCKETS]),
    "a tuple in a dict": (lambda t: lambda s, b, h, q, kv: s + t["x"][1][h, q])({"x": (1, REL)}),
    "one tensor by two names": (lambda x, y: lambda s, b, h, q, kv: s + x[h, q] * y[h, kv])(REL, REL),
    "a view of a tensor": (lambda x: lambda s, b, h, q, kv: s + x[kv])(REL[1]),
    "a strided view": (lambda x: lambda s, b, h, q, kv: s + x[kv % 9])(BUCKETS.T[:, 2]),
    "an expanded view": (lambda x: lambda s, b, h, q, kv: s + x[q, kv])(SINGLE[:KV].expand(Q, KV)),
}  # fmt: skip

ROWS: dict[str, Row] = {
    **scores(GATHERS),
    "a hash of a shift": Row(lambda s, b, h, q, kv: s + HASHED[((q << 2) ^ kv) % 16]),
    **scores(VECTORS),
    **masks(VECTOR_MASKS),
    **scores(OBJECTS),
    **masks({"a mask's attribute": windowed, "a lambda of a mask": lambda b, h, q, kv: windowed(b, h, q + D, kv)}),
}
