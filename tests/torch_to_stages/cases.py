"""Functions that use each ATen operation that has a lowering, as text, and the inputs that they take."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import torch

# Inputs by name: what a case's text can read.  Sizes differ from case to case (a, b, c).
KINDS = {
    "x": lambda a, b, c: torch.randn(a, b),
    "y": lambda a, b, c: torch.randn(a, b),
    "p": lambda a, b, c: torch.rand(a, b) + 0.2,
    "v": lambda a, b, c: torch.randn(b),
    "w": lambda a, b, c: torch.randn(b, c),
    "t": lambda a, b, c: torch.randn(a, b, c),
    "u": lambda a, b, c: torch.randn(a, c, b),
    "m": lambda a, b, c: torch.rand(a, b) < 0.5,
    "o": lambda a, b, c: torch.rand(a, b) < 0.5,
    "n": lambda a, b, c: torch.randint(-9, 9, (a, b), dtype=torch.int32),
    "i": lambda a, b, c: torch.randint(0, b, (a,)),
    "j": lambda a, b, c: torch.randint(0, b, (a, 3)),
    "q": lambda a, b, c: torch.randn(a, 4, b, c),
    "k": lambda a, b, c: torch.randn(a, 2, b + 1, c),
}

# One function per line.
TEXTS = """
torch.exp(x)
torch.exp2(x)
torch.log(p)
torch.log2(p)
torch.sqrt(p)
torch.rsqrt(p)
torch.tanh(x)
torch.sigmoid(x)
torch.sin(x)
torch.cos(x)
torch.erf(x)
torch.floor(x)
torch.ceil(x)
torch.round(x)
torch.abs(x)
torch.neg(x)
torch.square(x)
torch.reciprocal(p)
torch.relu(x)
torch.log10(p)
torch.tan(x)
torch.erfc(x)
torch.sign(x)
torch.trunc(x)
torch.frac(x)
torch.log1p(p)
torch.expm1(x)
torch.cosh(x)
torch.sinh(x)
torch.atan(3 * x)
torch.asin(torch.sin(x))
torch.acos(torch.sin(x))
torch.asinh(x)
torch.acosh(p + 1)
torch.atanh(torch.sin(x) * 0.9)
torch.sinc(x)
torch.deg2rad(x)
torch.rad2deg(x)
torch.special.ndtr(x)
torch.special.entr(x)
torch.nn.functional.relu6(3 * x)
torch.nn.functional.silu(x)
torch.nn.functional.hardsigmoid(x)
torch.nn.functional.hardswish(x)
torch.nn.functional.softplus(x)
torch.nn.functional.logsigmoid(x)
torch.nn.functional.gelu(x)
torch.nn.functional.gelu(x, approximate='tanh')
torch.nn.functional.leaky_relu(x, 0.2)
torch.nn.functional.elu(x)
torch.nn.functional.selu(x)
torch.nn.functional.celu(x)
torch.nn.functional.mish(x)
torch.nn.functional.hardtanh(x)
torch.nn.functional.hardshrink(x)
torch.nn.functional.softsign(x)
torch.abs(n)
torch.isnan(x / x.floor())
torch.isinf(x / x.floor())
torch.isfinite(x / x.floor())
torch.logical_not(m)
torch.bitwise_not(m)
torch.neg(n)
torch.logical_not(x.floor())
torch.nan_to_num(x / x.floor(), 1.0, 2.0, 3.0)
torch.positive(x)
x + y
x + 2
2 - x
x - v
x * y
x * v
x / p
1 / p
x + n
n + n
n * 3 - 1
n // 3
n % 3
x % 0.5
x // 0.5
torch.fmod(x, -0.25)
torch.div(x, 0.5, rounding_mode='trunc')
torch.div(x, -0.5, rounding_mode='floor')
x ** 2
x ** 3
x ** 4
p ** 0.5
p ** -1
p ** -2
p ** -0.5
p ** 1.7
p ** x
2.0 ** x
n ** 2
m * o
x * m
x + m
torch.add(x, y, alpha=3)
torch.sub(x, y, alpha=2)
torch.rsub(x, y, alpha=2)
torch.lerp(x, y, 0.3)
torch.lerp(x, y, p)
torch.addcmul(x, y, p, value=2)
torch.addcdiv(x, y, p)
torch.maximum(x, y)
torch.minimum(x, y)
torch.max(x, y)
torch.min(x, y)
x.clamp(-0.5, 0.5)
x.clamp(min=0.1)
x.clamp(max=0.1)
torch.clamp_min(x, 0.2)
torch.clamp_max(x, 0.2)
torch.clip(x, -1, 1)
torch.logaddexp(x, y)
torch.ops.aten.add.Scalar(x, 2)
torch.ops.aten.sub.Scalar(x, 2)
torch.ops.aten.rsub.Scalar(x, 2)
torch.ops.aten.clip(x, -1, 1)
torch.ops.aten.positive(x)
torch.remainder(x, -0.25)
x < y
x <= 0.3
x > y
x >= v
n == 3
n != 3
m == o
n < 0.5
m & o
m | o
m ^ o
torch.logical_and(m, o)
torch.logical_or(x > 0, o)
torch.logical_xor(m, o)
torch.where(m, x, y)
torch.where(m, x, 0.5)
torch.where(m, 0.5, x)
torch.where(m, 1.0, 2.0)
x.masked_fill(m, -1.5)
torch.ops.aten.bitwise_and(m, o)
torch.ops.aten.bitwise_or(m, o)
torch.ops.aten.__and__(m, o)
torch.ops.aten.__or__(m, o)
torch.ops.aten.where.Scalar(m, 1.0, 2.0)
torch.where(m, n, 7)
x.double() + 1
n.float() * 0.5
x.int() + n
(3 * x).to(torch.int8).float()
m.float()
x.bool()
x.type_as(n) + n
n.to(torch.float64)
n.to(y) + y
m.int()
torch.ops.prims.convert_element_type(n, torch.float32)
x.sum()
x.sum(0)
x.sum(-1, keepdim=True)
t.sum((0, 2))
m.sum(-1)
n.sum()
x.mean()
t.mean(1)
t.mean((1, 2), keepdim=True)
x.amax(-1)
x.amin(0)
x.max()
x.min()
n.amax(-1)
t.amax((0, 2))
x.max(-1)
x.min(0)
x.argmax(-1)
x.argmin(-1, keepdim=True)
t.argmax()
x.prod(-1)
p.prod()
m.any(-1)
m.all(0)
m.any()
x.any(-1)
torch.count_nonzero(n, 0)
x.var(-1)
x.var()
x.std(0)
x.var(-1, unbiased=False)
torch.var_mean(x, -1)
torch.std_mean(x, 0)
x.var(-1, correction=2)
x.var(-1, correction=0.5)
x.std(0, correction=100)
torch.var_mean(x, -1, correction=2.5)
m.amax(-1)
m.max(-1)
m.min(0)
m.amin()
x.norm()
x.norm(dim=-1)
torch.linalg.vector_norm(x, 1, -1)
torch.linalg.vector_norm(x, float('inf'))
torch.linalg.vector_norm(x, 3, -1)
torch.linalg.vector_norm(n * p, 0, -1)
torch.linalg.vector_norm(p, -1.5)
torch.logsumexp(x, -1)
torch.logsumexp(t, (1, 2), keepdim=True)
torch.special.logsumexp(x, 0)
torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1])
torch.ops.aten.norm.Scalar(x, 2)
x @ w
t @ u
x @ v
v @ w
v @ v
torch.bmm(t, u)
torch.mm(x, w)
torch.mv(x, v)
torch.dot(v, v)
torch.outer(v, v)
torch.addmm(w[0], x, w, beta=0.5, alpha=2)
torch.baddbmm(t[:1, :1, :1], t, u)
torch.nn.functional.linear(x, w.T)
torch.nn.functional.linear(t, w, v)
torch.einsum('abc,acd->abd', t, u)
torch.einsum('ab,cb', x, y)
torch.einsum('...c,bc->...b', t, w)
torch.einsum('ab,ab,b->a', x, y, v)
torch.einsum('ab->ba', x)
torch.einsum('abc->b', t)
torch.einsum('aa->a', x @ y.T)
q @ q.mT
torch.inner(x, y)
torch.tensordot(x, w, 1)
x @ t
torch.einsum('ab,bc', x, w)
torch.cdist(x, y)
torch.softmax(x, -1)
torch.softmax(t, 1)
torch.log_softmax(x, 0)
torch.nn.functional.softmin(x, -1)
torch.special.softmax(x, -1)
torch.special.log_softmax(x, -1)
torch.ops.aten._softmax(x, -1, False)
torch.ops.aten._log_softmax(x, -1, False)
torch.ops.aten._safe_softmax(x, -1)
torch.nn.functional.layer_norm(x, (x.shape[-1],), v, v)
torch.nn.functional.layer_norm(t, t.shape[1:])
torch.ops.aten.native_layer_norm(x, (x.shape[-1],), v, v, 1e-5)
torch.nn.functional.rms_norm(x, v.shape, v)
torch.nn.functional.rms_norm(x, x.shape[1:], None, 1e-3)
torch.nn.functional.normalize(x, dim=-1)
torch.nn.functional.group_norm(q, 2)
torch.nn.functional.instance_norm(t)
torch.nn.functional.batch_norm(x, v, v * v + 1, v, v)
torch.nn.functional.batch_norm(t, None, None, training=True)
torch.ops.aten._native_batch_norm_legit.no_stats(t, None, None, True, 0.1, 1e-3)
torch.nn.functional.cross_entropy(x, i)
torch.nn.functional.cross_entropy(x, i, reduction='none')
torch.nn.functional.cross_entropy(x, i, ignore_index=1, reduction='sum')
torch.nn.functional.cross_entropy(x, i, weight=v * v, ignore_index=1)
torch.nn.functional.cross_entropy(x, i, weight=v * v, label_smoothing=0.2)
torch.nn.functional.cross_entropy(x, i, label_smoothing=0.1, ignore_index=1, reduction='sum')
torch.nn.functional.cross_entropy(x, p, reduction='none')
torch.nn.functional.cross_entropy(x, p, weight=v * v, label_smoothing=0.3)
torch.nn.functional.nll_loss(x, i, weight=v * v)
torch.nn.functional.nll_loss(x, i)
torch.nn.functional.mse_loss(x, y)
torch.nn.functional.l1_loss(x, y)
torch.nn.functional.mse_loss(x, y, reduction='none')
torch.nn.functional.huber_loss(x, y)
torch.nn.functional.l1_loss(x, y, reduction='sum')
torch.nn.functional.smooth_l1_loss(x, y)
torch.nn.functional.binary_cross_entropy_with_logits(x, p)
torch.nn.functional.kl_div(x, p, reduction='sum')
torch.nn.functional.cosine_similarity(x, y)
torch.nn.functional.pairwise_distance(x, y)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.3)
torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=(q @ q.mT) > 0)
torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=q @ q.mT)
torch.nn.functional.dropout(x, 0.3, training=False)
x.T + 0
t.transpose(0, 2) * 2
t.permute(2, 0, 1) * 2
x[None] + t.mean()
x.unsqueeze(-1) * t
t.sum(1, keepdim=True).squeeze(1)
t.reshape(-1) + 1
t.flatten(1) @ t.flatten(1).T
t.view(t.shape[0], -1) * 2
x.reshape(-1, 1, x.shape[0]) + 1
x.expand(3, -1, -1) * 2
v.broadcast_to(x.shape) + x
v.expand_as(x) * x
t[:, 1] + 1
t[..., 0] * 2
x[:, 1:] - x[:, :-1]
x[:, ::2] + 1
x[-1] + v
x.narrow(1, 1, 2) * 2
torch.cat([x, y], 1) * 2
torch.cat([x, y, x], 0) + 1
torch.stack([x, y], 1) * 2
x.flip(1) + 1
sum(q.split(2, 1))
q.chunk(2, 1)[1] + 1
q.split([1, 3], 1)[1] + 1
sum(q.unbind(1))
torch.tensor_split(q, 2, dim=1)[1] + 1
x.repeat(2, 3) + 1
x.repeat_interleave(2, dim=1) * 2
torch.diagonal(t @ u, 0, 1, 2) + 1
torch.movedim(t, 0, 2) + 1
torch.moveaxis(t, (0, 1), (1, 0)) + 1
torch.moveaxis(t, 0, 1) + 1
torch.movedim(t, (0, 1), (1, 0)) + 1
t.swapaxes(0, 1) + 1
t.swapdims(0, 1) + 1
x.unflatten(1, (1, -1)) + 1
x.view_as(x) + 1
x.reshape_as(x) + 1
x.mT + 1
x.mH + 1
x.adjoint() + 1
x.detach() + 1
x.contiguous() + 1
x.clone() + 1
torch.ops.aten.alias(x) + 1
x.t() + 1
x.roll(1, 0) + 1
torch.ops.aten.lift_fresh_copy(x) + 1
torch.ops.aten.lift_fresh(x) + 1
x.resolve_conj() + 1
x.unfold(1, 2, 1) * 2
torch.ops.aten._unsafe_view(x, [x.numel()]) + 1
torch.ops.aten.numpy_T(x) + 1
torch.ops.aten.matrix_H(x) + 1
torch.nn.functional.pad(x, (1, 2), value=0.5) * 2
torch.nn.functional.pad(t, (0, -1, 1, 1)) + 1
x + torch.arange(x.shape[1])
x * torch.arange(1.0, 2 * x.shape[1], 2.0)
x.tril() + 1
x.triu(1) + 1
x + torch.full((1,), 3.0)
x + torch.ones_like(x)
x * torch.zeros_like(x)
(x @ y.T) * torch.eye(x.shape[0])
x + torch.ones(1) + torch.zeros(1)
x + torch.full_like(x, 2)
x + x.new_full((1,), 2.0)
x + x.new_ones(1)
x + x.new_zeros(1)
x + torch.scalar_tensor(2.0)
torch.where(x == x, x, torch.empty_like(x))
torch.where(x == x, x, torch.empty(1))
torch.where(x == x, x, x.new_empty(1))
torch.where(torch.ones(x.shape).tril() == 1, x, float('-inf')).softmax(-1)
(x + torch.full(x.shape, float('-inf')).triu(1)).softmax(-1)
torch.linspace(0, 1, x.shape[1]) * x
torch.nn.functional.embedding(i, w)
w[i] + 1
x[:, i] * 2
x.index_select(1, i) + 1
x.gather(1, j) + 1
torch.softmax(x.gather(1, (2 - j).clamp(0, 1)), -1)
x[torch.arange(x.shape[0]), i] + 1
x.gather(1, i[:, None]).squeeze(1) - x.logsumexp(-1)
torch.nn.functional.one_hot(i, 9) * 2.0
torch.take_along_dim(x, j, 1) + 1
torch.select_scatter(x, v[:1].expand(x.shape[0]) * 2, 1, -1) + 1
torch.slice_scatter(x, y[:, 1:3] * 2, 1, 1, 3) + 1
torch.ops.aten.copy(x, v) + 1
torch.ones(x.shape).sum(-1) + x.sum()
(v[:, None] + x[:1, :1] * 0).sum(-1)
v[:, None].expand(-1, 5).amax(-1) + 1
x.sum(1).expand(4, -1).prod(0)
torch.slice_scatter(x, y[:, 1::2] * 2, 1, 1, None, 2) + 1
x.scatter(1, j, 2.5) + 1
x.scatter(1, i[:, None], y[:, :1] * 2) + 1
t.scatter(1, i[:, None, None].expand(-1, 1, t.shape[2]), 3.0)
x.scatter(1, i[:, None].expand(-1, 9) * 0, -1.0)
torch.atan2(x, y)
torch.atan2(x * m, y * o)
torch.hypot(x, y * m)
torch.fmax(x, y)
torch.fmin(x.masked_fill(m, float('nan')), y.masked_fill(o, float('nan')))
torch.copysign(x, y) + torch.copysign(x, -1.0)
torch.signbit(x) | torch.signbit(n)
torch.round(x, decimals=1) - torch.round(x * 30, decimals=-1)
torch.nn.functional.softplus(x, beta=2.0, threshold=1.5)
torch.addmv(v, w.T, v[:w.shape[0]], beta=0.5) if w.shape[0] == w.shape[1] else torch.addmv(x[:, 0], x, v, alpha=2)
torch.addbmm(t[0, :, :1], t, u, beta=2)
torch.linalg.multi_dot([x, w, w.T, v])
torch.linalg.matmul(x, w) + torch.linalg.vecdot(x, y)[:, None]
torch.linalg.cross(t[..., :1].expand(-1, -1, 3), torch.stack([x, y, x * y], -1))
torch.linalg.norm(x, dim=-1) + torch.linalg.norm(x, 1) + torch.linalg.matrix_norm(t)
torch.dist(x, y)
torch.nn.functional.bilinear(x, y, w.T[:, :, None] * v, w[0])
torch.nn.functional.avg_pool1d(t, 2, 1)
torch.nn.functional.avg_pool2d(q, 2, 1, 1, count_include_pad=False)
torch.nn.functional.avg_pool2d(q, (2, 1), 2, (1, 0), ceil_mode=True)
torch.nn.functional.avg_pool3d(q, (2, 2, 1), divisor_override=3)
torch.nn.functional.max_pool1d(t, 2, 1, 1)
torch.nn.functional.max_pool2d(q, 2, 1, 1, return_indices=True)
torch.nn.functional.max_pool3d(q, (2, 2, 1), 1, dilation=(2, 1, 1))
torch.nn.functional.adaptive_avg_pool2d(q, (2, 1))
torch.nn.functional.adaptive_max_pool1d(t, 2)
v.repeat_interleave(2) * 2
q[torch.tensor([0, 1]), :, torch.tensor([0, 1])] + 1
x.index_copy(0, i[:2] * 0 + torch.arange(2), y[:2] * 2)
x.index_fill(1, torch.tensor([0, -2]), -1.0) + 1
m < o
(n & 6) + (n | 4) - (n ^ 1) + (~n & n)
n // -3 + n % -3 - n // (n * n + 1)
torch.div(n, 2, rounding_mode='trunc') + torch.div(n, -n * n - 1, rounding_mode='trunc')
n.fmod(-3) + torch.fmod(n, n * n + 2)
n ** 5 + n ** 7
n & 7
3 & n
n >> 2
n << 3
torch.bitwise_right_shift(n, 1) + torch.bitwise_left_shift(n, 2)
torch.where(i > 1, -100, i)
torch.where(i > 1, i, 7).clamp(max=3)
(n.long() * 1000000007).sum(-1)
(n * 200000000).sum()
n.long().prod(-1) * 1000000007
(x * 1e10).long()
torch.outer(torch.arange(5), v)
x * torch.ones(x.shape[1]).cumsum(0)
x[:, torch.argsort(torch.cos(torch.arange(x.shape[1]) * 7.0))] + 1
w[torch.log(torch.arange(1, 9).float()).long()] + 1
torch.view_as_real(torch.view_as_complex(torch.stack([x, y], -1)) * torch.polar(v.abs(), v))
torch.view_as_real(torch.polar(p, x) * torch.polar(p, y).conj() - torch.complex(x, y) * 2 + torch.complex(y, p))
torch.complex(x, y).T.flip(0).real + torch.complex(x, y).imag.T
torch.view_as_real(torch.exp(1j * x) * (1 + 2j) * p)
torch.zeros_like(x).scatter_add(1, j, y[:, :3]) + 1
n.scatter_add(1, j[:1, :2], n[1:2, 1:3])
x.scatter_reduce(1, j, y[:, :3], 'mean') + x.scatter_reduce(1, j, y[:, :3], 'amax', include_self=False)
x.scatter_reduce(1, j[:1], y[:1, :3], 'prod') + x.scatter_reduce(1, j, y[:, :3], 'amin')
n.scatter_reduce(1, j, n[:, :3], 'mean', include_self=False) - n.scatter_reduce(1, j, n[:, :3], 'mean')
n.long().scatter_reduce(1, j, n[:, :3].long() * 5000000000, 'amax', include_self=False)
x.scatter(1, j, 2.0, reduce='multiply') - x.scatter(1, j, y[:, :3], reduce='add')
x.index_add(1, j[0], y[:, :3], alpha=2) + 1
x.index_reduce(0, i * 0, y, 'amin') + x.index_reduce(0, i * 0, y, 'mean', include_self=False)
x.index_put((torch.arange(2).flip(0) - 2,), v) + 1
x.index_put((i % 2, j[:, 0]), v[0], accumulate=True) + 1
torch.ops.aten.index_put(t, [None, torch.tensor([0, -1])], t[:, :2] * 2) + 1
torch.ops.aten.index_put(q, [torch.tensor([0, 1]), None, torch.tensor([[1], [0]])], v[0]) + 1
x.index_put((m,), v[0]) + torch.ops.aten.index_put(x, [None, v > 0], y[:, :1], True)
torch.ops.aten._unsafe_index_put(x, [torch.arange(2)], v) + 1
x.repeat(1, 4).scatter(1, torch.arange(9).flip(0)[None].expand(x.shape[0], -1), y.repeat(1, 3)[:, :9])
v.sum().scatter_add(0, i[0] * 0, v[0]) + v.sum().index_add(0, i[0] * 0, v[0]) + v.sum().scatter(0, i[0] * 0, v[1])
torch.nn.functional.embedding_bag(j, w) + torch.nn.functional.embedding_bag(j, w, mode='max', padding_idx=1)
torch.nn.functional.embedding_bag(i, w, torch.tensor([0, 1, 1]), mode='mean') + 1
torch.nn.functional.embedding_bag(j, w, mode='sum', per_sample_weights=x[:, :3], padding_idx=-1) + 1
torch.ops.aten._embedding_bag(w, i, torch.tensor([0, 1, i.shape[0]]), False, 2, False, None, True)[0] + 1
torch.nn.functional.interpolate(t, size=5) + 1
torch.nn.functional.interpolate(q, scale_factor=2) - torch.nn.functional.interpolate(q, scale_factor=2, mode='bilinear')
torch.nn.functional.interpolate(q, size=(3, 5), mode='bilinear', align_corners=True) + 1
torch.nn.functional.grid_sample(q, torch.stack([x, y], -1)[:, None], align_corners=False) + 1
torch.angle(x) + torch.complex(x, y).angle() * torch.complex(x, y * o).abs()
torch.ldexp(x, n)
torch.diagonal_scatter(t, torch.diagonal(t, 1, 1, 2) * 2, 1, 1, 2) + 1
(x + 0).as_strided((2, 2), (1, 1), 1) + torch.as_strided_scatter(x + 0, v[:2], (2,), (2,), 1)[0, 0]
torch.nn.functional.rrelu(x) + torch.linalg.matrix_power(x @ y.T, 3)[:, :1] + (x @ y.T).matrix_power(0)[:, :1]
torch.pdist(x, 1.0)
x.cumsum(-1) + t.cumsum(1)[:, :1, 0] + x.sum().cumsum(0) + n.long().cumsum(0) * 3000000000
p.cumprod(0) + x.logcumsumexp(-1) + (40 * x).logcumsumexp(0)
(*x.round().cummax(-1), *n.cummin(0))
torch.ops.aten.bitwise_xor(m, o)
torch.ops.aten.special_xlogy(p, p)
torch.bucketize(n, torch.tensor([-3, 0, 2]), right=True) + torch.searchsorted(torch.tensor([-3, 0, 2]), n)
torch.cov(x, aweights=v * v) + torch.corrcoef(x) + torch.nn.functional.gaussian_nll_loss(x, y, p)
torch.baddbmm(t[:1, :1, :1] / 0, t, u, beta=0)
torch.cat([x[:, :0], x, x.new_zeros(x.shape[0], 0)], 1) + x[:, :0].sum(1, keepdim=True) + x[:, :0] @ w[:0, :1]
torch.tensor_split(x, 9, 1)[1] + torch.nn.functional.pad(x[:, :0], (1, 0)) + x.split([0, x.shape[1]], 1)[1].sum()
torch.nn.functional.scaled_dot_product_attention(q, q[0], q[0, :1])
torch.view_as_real(torch.cat([torch.complex(x, y), torch.polar(p, x)], 1)[:, 1:].sum(-1))
"""


@dataclass(frozen=True)
class Case:
    """Functions of named inputs, as texts: one function returns the results of all, since each trace takes time."""

    texts: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The inputs that the texts read, in order."""
        used = {n.id for text in self.texts for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
        return [n for n in KINDS if n in used]

    def function(self) -> Any:
        """The texts as a function to a tuple."""
        return eval(f"lambda {', '.join(self.names)}: ({', '.join(self.texts)},)", {"torch": torch})

    def inputs(self, seed: int) -> tuple[torch.Tensor, ...]:
        """Random inputs in sizes that depend on the seed."""
        generator = torch.Generator().manual_seed(seed)
        a, b, c = (int(torch.randint(low, low + 3, (1,), generator=generator)) for low in (2, 3, 2))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return tuple(KINDS[name](a, b, c) for name in self.names)


_EVERY = tuple(dict.fromkeys(TEXTS.strip().splitlines()))
_TOGETHER = 24
CASES = tuple(Case(_EVERY[n : n + _TOGETHER]) for n in range(0, len(_EVERY), _TOGETHER))
