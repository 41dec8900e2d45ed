"""Which functions of PyTorch the compiler of PopTorch 3.4 takes, by its list of handlers (operators reference)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tracing_support import Net, traced

import poptorch
from ipu_model.capture.operators import table

# In these lines x and y are [2, 3, 4], m is [4, 4], v has 4 numbers, p lies between 0 and 1, i and k are indices, b is
# a mask. First what the user guide of PopTorch lists as supported, and functions that consist of such: none is refused.
SUPPORTED = """
x.expand(2, 2, 3, 4) | v.expand_as(x) | x.clone().fill_(1.0) | torch.fill(x, 2.0) | m.index_fill_(0, i, 1.0)
x.masked_fill(b, 1.0) | x.masked_fill_(b, v.sum()) | x.new_ones(2) | x.new_zeros(2) | torch.abs(x) | torch.acos(p)
torch.acosh(p + 1) | x + y | x.add_(y) | torch.addcdiv(x, y, p) | torch.addcmul(x, y, p) | torch.addmm(m, m, m)
torch.addmv(v, m, v) | torch.baddbmm(x @ y.mT, x, y.mT) | torch.all(b) | torch.all(b, 1) | torch.amax(x, 1)
torch.amin(x, 1) | torch.any(b) | torch.arange(4) | torch.arange(0, 1, 0.25) | torch.argmax(x) | torch.argmin(x, 1)
torch.argsort(x, 1) | torch.asin(p) | torch.asinh(x) | torch.atan(x) | torch.atan2(x, y) | torch.atanh(p / 2)
torch.bernoulli(p) | x.bernoulli_(0.5) | torch.bincount(i, minlength=4) | b & b | ~b | b.__or__(b) | b ^ b | i & i
~i | torch.bmm(x, y.mT) | torch.bucketize(x, v) | torch.cartesian_prod(v, v) | torch.cat([x, y]) | torch.cdist(m, m)
torch.cdist(m, m, p=1.0) | torch.ceil(x) | torch.chunk(x, 2, 2) | torch.clamp(x, 0, 1) | torch.clamp(x, y, y + 1)
torch.clamp_max(x, 1) | torch.clamp_min(x, 0) | torch.cos(x) | torch.cosh(x) | torch.count_nonzero(x)
torch.cross(m[:, :3], m[:, 1:], 1) | torch.linalg.cross(m[:, :3], m[:, 1:]) | torch.cumprod(x, 1) | torch.cumsum(x, 1)
torch.div(x, y) | x / 2 | torch.div(x, p, rounding_mode="floor") | torch.distributions.Bernoulli(p).sample()
torch.erf(x) | torch.erfc(x) | torch.distributions.Exponential(p).rsample()
torch.distributions.Normal(x, p).sample() | x.clone().exponential_() | torch.distributions.Normal(x, p).log_prob(y)
torch.distributions.Uniform(p, p + 1).rsample() | torch.eq(x, y) | torch.exp(x) | torch.expm1(x) | torch.floor(x)
x // p | torch.floor_divide(x, 2) | torch.fmod(x, 2.0) | torch.frac(x) | torch.full((2,), 1.0)
torch.full_like(x, 1.0) | torch.gather(m, 0, k) | x >= y | x > 0 | x <= y | x < y | x != y
m.index_reduce(0, i, m[:3], "amax") | torch.index_select(m, 0, i) | torch.isnan(x) | torch.linalg.matrix_norm(x)
torch.linalg.norm(x) | torch.linalg.vector_norm(x, dim=1) | torch.log(p) | torch.log10(p) | torch.log1p(p)
torch.log2(p) | torch.logical_and(b, b) | torch.logical_or(b, b) | torch.logical_not(b) | torch.logsumexp(x, 1)
x @ m | torch.matmul(m, v) | torch.max(x) | torch.max(x, 1) | torch.max(x, y) | torch.maximum(x, y) | torch.mean(x)
x.mean((1, 2)) | torch.median(x) | torch.median(x, 1) | torch.meshgrid(v, v, indexing="ij") | torch.min(x, 1)
torch.mul(x, y) | -x | torch.nansum(x) | torch.norm(x) | torch.norm(x, dim=1) | torch.norm(x, p=1)
torch.norm(x, p=3) | torch.normal(x, p) | torch.normal(0.0, 1.0, (2,)) | torch.ones(2) | torch.ones_like(x) | x**2
2**x | x**y | torch.prod(x) | x.prod(1) | torch.rand(2) | torch.randn(2) | torch.randperm(4) | torch.randint(4, (2,))
x.clone().uniform_() | x.clone().normal_() | x.clone().random_(0, 4) | torch.reciprocal(p) | torch.remainder(x, 2.0)
x % p | torch.reshape(x, (6, 4)) | torch.roll(x, 1, 1) | torch.round(x) | torch.rsqrt(p) | 1 - x
torch.scatter(m, 0, k, m) | m.scatter_(0, k, 1.0) | torch.scatter_add(m, 0, k, m) | m.T | x.mT
torch.scatter_reduce(m, 0, k, m, "amax") | torch.sigmoid(x) | torch.sign(x) | torch.sin(x) | torch.sinh(x)
torch.sort(x) | torch.split(x, 2, 2) | x.split([1, 3], 2) | torch.sqrt(p) | torch.square(x) | torch.squeeze(x[:1])
torch.stack([x, y]) | torch.std(x) | torch.std(x, 1) | torch.std_mean(x) | torch.sub(x, y) | torch.sum(x, 1)
torch.t(m) | torch.tan(x) | torch.take_along_dim(m, k, 0) | torch.tanh(x) | torch.tensordot(x, m, 1)
torch.topk(x, 2) | torch.transpose(x, 0, 1) | torch.triu(m) | torch.true_divide(x, y) | torch.trunc(x)
torch.unbind(x) | torch.unsqueeze(x, 0) | torch.var(x, 1) | torch.var_mean(x, 1) | torch.where(b, x, y)
torch.where(b, x, 0.0) | torch.zeros(2) | torch.zeros_like(x) | x.half().float() | m.index_put((i,), v)
m.index_put_((i,), v, accumulate=True) | m[i] | x[:, 1:, ::2] | x[..., None] | m[i, i] | x.flip(1) | x.repeat(2, 1, 1)
x.tile(2, 1, 1) | x.unfold(2, 2, 1) | x.narrow(2, 1, 2) | x.permute(2, 0, 1) | x.flatten(1) | x.view(6, 4)
x.view_as(y) | x.type_as(y) | x.contiguous() | x.detach() | x.movedim(0, 1) | x.swapaxes(0, 1)
x.as_strided((2,), (1,)) | torch.einsum("bij,bkj->bik", x, y) | torch.dot(v, v) | torch.mv(m, v) | torch.outer(v, v)
torch.select_scatter(m, v, 0, 1) | torch.linalg.matrix_norm(m, 1) | torch.inner(v, v) | torch.kron(m, m)
torch.chain_matmul(m, m) | torch.addr(m, v, v) | torch.dist(x, y) | torch.diagonal(m) | torch.diag(v) | torch.diag(m)
torch.diag_embed(v) | torch.rot90(m) | torch.isinf(x) | torch.isfinite(x) | torch.isclose(x, y)
torch.slice_scatter(m, m[:1], 0, 0, 1) | torch.rad2deg(x) | torch.deg2rad(x) | torch.rand_like(x)
torch.randn_like(x) | torch.randint_like(x, 4) | torch.empty_like(x) | torch.linspace(0, 1, 4)
torch.block_diag(m, m) | torch.hann_window(4) | torch.ldexp(x, i[0]) | torch.stack([x, y], 1)
torch.vmap(torch.sum)(x) | torch.nn.utils.parameters_to_vector([x, y]) | torch.cov(m) | torch.trapz(x) | torch.diff(x)
torch.vstack([x, y]) | torch.hstack([x, y]) | torch.broadcast_to(v, (2, 4)) | torch.broadcast_tensors(x, v)
torch.cumulative_trapezoid(x) | torch.repeat_interleave(x, 2, 1) | torch.tensor_split(x, 2, 2) | torch.fliplr(m)
torch.vander(v) | torch.nanmean(x) | torch.softmax(x, 1) | torch.log_softmax(x, 1) | torch.celu(x) | torch.selu(x)
torch.std_mean(x, 1) | torch.tensor([1.0, 2.0]) + 1 | torch.scalar_tensor(1.0) + 1 | torch.multiply(x, y)
torch.subtract(x, y) | torch.swapdims(x, 0, 1) | F.relu(x) | F.relu6(x) | F.elu(x) | F.celu(x) | F.selu(x) | F.gelu(x)
F.gelu(x, approximate="tanh") | F.silu(x) | F.mish(x) | F.leaky_relu(x) | F.rrelu(x) | F.rrelu(x, training=True)
F.hardshrink(x) | F.hardtanh(x) | F.hardswish(x) | F.hardsigmoid(x) | F.softplus(x) | F.softshrink(x) | F.softsign(x)
F.tanhshrink(x) | F.threshold(x, 0.1, 0.0) | F.logsigmoid(x) | F.softmin(x, 1) | F.glu(x, 2) | F.prelu(x, v[:3])
F.softmax(x, 1) | F.log_softmax(x, 1) | F.normalize(x) | F.gumbel_softmax(x, hard=True) | F.one_hot(i, 4)
F.dropout(x) | F.dropout(x, inplace=True) | F.dropout2d(x[..., None]) | F.alpha_dropout(x, training=True)
F.avg_pool1d(x, 2) | F.avg_pool2d(x, 2) | F.avg_pool3d(x[None], 2) | F.adaptive_avg_pool1d(x, 2)
F.adaptive_avg_pool2d(x, 2) | F.adaptive_avg_pool2d(x, 1) | F.adaptive_avg_pool3d(x[None], 2) | F.max_pool1d(x, 2)
F.max_pool2d(x, 2) | F.max_pool3d(x[None], 2) | F.max_pool2d(x, 2, return_indices=True) | F.lp_pool1d(x, 2, 2)
F.lp_pool2d(x, 2, 2) | F.pad(x, (1, 1)) | F.pad(x, (1, 1), value=2.0) | F.pad(x, (1, 1), "reflect")
F.pad(x[None], (1, 1, 1, 1), "reflect") | F.pad(x, (1, 1), "replicate") | F.pad(x, (1, 1), "circular")
F.pad(x[None], (1, 1, 1, 1), "replicate") | F.pad(x[None, None], (1, 1, 1, 1, 1, 1), "replicate")
F.unfold(x[None], 2) | F.fold(x.view(1, 4, 6), (3, 4), 2) | F.pixel_shuffle(x[None].view(1, 4, 3, 2), 2)
F.pixel_unshuffle(x.view(1, 1, 4, 6), 2) | F.interpolate(x, scale_factor=2)
F.interpolate(x, scale_factor=2, mode="linear") | F.interpolate(x[None], scale_factor=2)
F.interpolate(x[None], scale_factor=2, mode="bilinear") | F.interpolate(x[None], scale_factor=2, mode="bicubic")
F.interpolate(x[None, None], scale_factor=2) | F.conv1d(x, torch.ones(2, 3, 2))
F.conv_transpose1d(x, torch.ones(3, 2, 2)) | F.conv2d(x[None], torch.ones(2, 2, 2, 2)) | F.linear(x, m, v)
F.bilinear(v, v, torch.ones(2, 4, 4)) | F.embedding(i, m) | F.embedding_bag(i[None], m)
F.embedding_bag(i[None], m, mode="sum") | F.batch_norm(x, None, None, training=True)
F.batch_norm(x, v[:3], p[0, :, 0], training=False) | F.layer_norm(x, (4,)) | F.group_norm(x, 3) | F.instance_norm(x)
F.local_response_norm(x, 2) | F.rms_norm(x, (4,)) | F.scaled_dot_product_attention(x, x, x, b[:, :, :3])
F.cosine_similarity(x, y) | F.pairwise_distance(x, y) | F.scaled_dot_product_attention(x, x, x, is_causal=False)
F.binary_cross_entropy(p, p) | F.binary_cross_entropy_with_logits(x, p) | F.cross_entropy(m[:3], i)
F.cross_entropy(m, m.softmax(1)) | F.cross_entropy(x, x[:, 0].long() * 0)
F.cross_entropy(m[:3], i, label_smoothing=0.1) | F.nll_loss(m[:3], i) | F.kl_div(x, p)
F.nll_loss(x[..., None], x[:, 0, :, None].long() * 0) | F.l1_loss(x, y) | F.smooth_l1_loss(x, y) | F.mse_loss(x, y)
F.kl_div(x, p, log_target=True) | F.soft_margin_loss(x, y) | F.hinge_embedding_loss(x, y)
F.poisson_nll_loss(x, p, full=True) | F.margin_ranking_loss(x, y, p) | F.cosine_embedding_loss(m, m, v)
F.triplet_margin_loss(m, m, m) | F.multilabel_soft_margin_loss(m, m)
F.ctc_loss(x.permute(2, 0, 1).log_softmax(2), torch.ones(2, 1).long(), torch.tensor([4, 4]), torch.tensor([1, 1]))
F.triplet_margin_with_distance_loss(m, m, m)
poptorch.dynamic_slice(m, 0, i[:1], 2, 1) | poptorch.dynamic_update(m, m[:2], 0, i[:1], 2) | poptorch.fps(m, [0, 4])
poptorch.nop(x) | poptorch.nearest(m, m) | poptorch.for_loop(2, lambda t: t + 1, [x])
poptorch.cond(b.any(), lambda t: t, [x], lambda t: -t, [x])
poptorch.ctc_beam_search_decoder(x.permute(2, 0, 1), i[:2], beam_width=3)
poptorch.serializedMatMul(m, m, poptorch.MatMulSerializationMode.ReducingDim, 2)
"""

# What PyTorch 2.0 hands to the compiler under a name that has no handler.
REFUSED = """
torch.nan_to_num(x) -> nan_to_num | x.clone().nan_to_num_() -> nan_to_num | torch.linalg.svd(m) -> _linalg_svd
torch.linalg.inv(m) -> linalg_inv_ex | torch.linalg.cholesky(m) -> linalg_cholesky_ex
torch.linalg.det(m) -> _linalg_det | torch.linalg.solve(m, v) -> _linalg_solve_ex | torch.linalg.qr(m) -> linalg_qr
torch.linalg.eigh(m) -> _linalg_eigh
torch.linalg.matrix_norm(m, "nuc") -> _linalg_svd | torch.pinverse(m) -> linalg_pinv | torch.fft.rfft(x) -> _fft_r2c
torch.fft.fft(x) -> _fft_r2c | torch.stft(v, 4, return_complex=True) -> _fft_r2c | torch.lgamma(p) -> lgamma
F.grid_sample(x[None], m.view(1, 2, 4, 2), align_corners=False) -> grid_sampler_2d | torch.digamma(p) -> digamma
torch.erfinv(p) -> erfinv | x.clone().erfinv_() -> erfinv | torch.logcumsumexp(x, 1) -> logcumsumexp
torch.histc(x) -> histc | torch.kthvalue(x, 2) -> kthvalue | torch.multinomial(p[0], 2) -> multinomial
torch.searchsorted(v, x) -> searchsorted | x.masked_scatter(b, y) -> masked_scatter | torch.tril(m) -> tril
torch.eye(4) -> eye | torch.lerp(x, y, 0.5) -> lerp | m.index_add(0, i, m[:3]) -> index_add | x.cummax(1) -> cummax
m.index_copy_(0, i, m[:3]) -> index_copy | torch.trace(m) -> trace | torch.take(x, i) -> take | torch.exp2(x) -> exp2
torch.logaddexp(x, y) -> logaddexp | torch.fmax(x, y) -> fmax | torch.aminmax(x) -> aminmax | torch.isin(i, k) -> isin
torch.logical_xor(b, b) -> logical_xor | i << 1 -> __lshift__ | torch.bitwise_right_shift(i, 1) -> bitwise_right_shift
torch.xlogy(x, y) -> xlogy | torch.special.entr(p) -> special_entr | torch.hypot(x, y) -> hypot | torch.sgn(x) -> sgn
F.huber_loss(x, y) -> huber_loss | F.multi_margin_loss(m[:3], i) -> multi_margin_loss | F.pdist(m) -> _pdist_forward
F.adaptive_max_pool1d(x, 2) -> adaptive_max_pool2d | F.embedding(i, m, max_norm=1.0) -> embedding_renorm
F.interpolate(x[None], scale_factor=2, mode="nearest-exact") -> _upsample_nearest_exact2d
F.interpolate(x[None, None], scale_factor=2, mode="trilinear") -> upsample_trilinear3d
F.scaled_dot_product_attention(x, x, x, is_causal=True) -> tril | F.channel_shuffle(x[None].mT, 2) -> channel_shuffle
torch.distributions.Categorical(p).sample() -> multinomial | torch.distributions.Gamma(p, p).log_prob(p) -> lgamma
torch.distributions.Poisson(p).sample() -> poisson
F.affine_grid(m[:2, :3][None], (1, 1, 2, 2)) -> affine_grid_generator
torch.complex(x, y).abs() -> complex | x.renorm(2, 0, 1.0) -> renorm | torch.addbmm(m[:3, :3], x, y.mT) -> addbmm
"""
NAMES = ["x", "y", "m", "v", "p", "i", "k", "b"]


def values() -> list[Tensor]:
    torch.manual_seed(0)
    x, y, m = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.randn(4, 4)
    v, p = torch.tensor([0.1, 0.2, 0.3, 0.4]), 0.1 + 0.8 * torch.rand(2, 3, 4)
    return [x, y, m, v, p, torch.tensor([0, 2, 1]), torch.tensor([[0, 1, 2, 3], [1, 1, 1, 1]]), x > 0]


def model_of(expression: str) -> Net:
    code = compile(expression, "a line", "eval")
    known = {"torch": torch, "F": F, "poptorch": poptorch}
    return Net(lambda net, *inputs: eval(code, {**known, **dict(zip(NAMES, inputs))}))


def refused_ops(model: nn.Module, *inputs: Tensor, training: bool = False) -> set[str]:
    found = traced(model, *inputs, training=training).unsupported
    return {name.removeprefix("aten::") for name in found}


def expressions(text: str) -> list[str]:
    return [part.strip() for line in text.strip().splitlines() for part in line.split(" | ")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression", expressions(SUPPORTED))
def test_what_poptorch_compiles_is_not_refused(expression: str) -> None:
    assert refused_ops(model_of(expression), *values()) == set()


@pytest.mark.parametrize("line", expressions(REFUSED))
def test_what_has_no_handler_is_found_by_its_name(line: str) -> None:
    expression, _, name = line.rpartition(" -> ")
    assert name in refused_ops(model_of(expression), *values())


def attention(**options: Any) -> Net:
    inner = nn.MultiheadAttention(8, 2, batch_first=True)
    return Net(lambda net, x: net.inner(x, x, x, **options)[0], inner=inner)


LAYERS = [
    nn.LSTM(8, 6, 2, bidirectional=True), nn.GRU(8, 6), nn.RNN(8, 6), nn.LSTM(8, 6, proj_size=3), attention(),
    attention(need_weights=False), nn.BatchNorm1d(5), nn.GroupNorm(1, 5),
    nn.InstanceNorm1d(5, affine=True, track_running_stats=True), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    nn.utils.weight_norm(nn.Linear(8, 8)), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Softsign(),
    nn.Conv1d(5, 5, 3, padding=1, padding_mode="reflect"), nn.ConvTranspose1d(5, 2, 3), nn.Bilinear(8, 8, 3),
    nn.RReLU(), nn.PReLU(), nn.Dropout(), nn.Upsample(scale_factor=2), nn.Softmax(1),
    nn.Sequential(nn.Flatten(), nn.Linear(40, 3)),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_layers_are_not_refused_in_training(layer: nn.Module) -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        out = net.layer(x, x) if isinstance(layer, nn.Bilinear) else net.layer(x)
        return poptorch.identity_loss(out[0] if isinstance(out, tuple) else out, "sum")

    assert refused_ops(Net(forward, layer=layer), torch.randn(2, 5, 8), training=True) == set()


def test_no_op_is_both_compiled_and_refused() -> None:
    lists = table()
    assert not set(lists.instead) & set(f"{lists.handlers} {lists.taken_apart} {lists.newer}".split())
