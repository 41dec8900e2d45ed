"""The ops that half precision is tested on, by name: contractions, then everything else, then losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from half_support import Case, between, integers, normal
from torch import Tensor, nn


def on(x: Tensor, **functions: Callable[..., Any]) -> dict[str, Case]:
    """Return a case for each function of `x` alone."""
    return {name: Case(function, x) for name, function in functions.items()}


def named(module: Any, names: str, x: Tensor) -> dict[str, Case]:
    """Return a case for each function of `x` alone that PyTorch's module has under these names."""
    return on(x, **{name: getattr(module, name) for name in names.split()})


X, IMAGE, VOLUME = normal(6, 33), normal(4, 8, 9, 9), normal(2, 2, 4, 4, 4)
A, POSITIVE, COLUMN = normal(30, 40), between(0.1, 3, 30, 40), between(0.1, 3, 30, 1)
ROW, ROWS = normal(40), integers(30, 12)
WIDE, BIAS, LONG, COLUMNS = normal(2, 256, 6, 6), normal(16, scale=0.05), normal(8, 512), normal(512, 24, scale=0.05)
STACKS = normal(2, 8, 512), normal(2, 512, 24, scale=0.05)

# Many terms in every sum, so that half partials matter; some are short.
CONTRACTIONS = {
    "conv1d": Case(F.conv1d, normal(2, 256, 12), normal(16, 256, 3, scale=0.02), BIAS),
    "conv2d": Case(F.conv2d, WIDE, normal(16, 256, 3, 3, scale=0.02), BIAS),
    "conv2d strided": Case(partial(F.conv2d, stride=2, padding=1), WIDE, normal(16, 256, 3, 3, scale=0.02), BIAS),
    "conv2d grouped": Case(partial(F.conv2d, groups=2, padding=1), WIDE, normal(16, 128, 3, 3, scale=0.03), BIAS),
    "conv2d depthwise": Case(partial(F.conv2d, groups=8, padding=1), IMAGE, normal(8, 1, 3, 3, scale=0.3), normal(8)),
    "conv3d": Case(partial(F.conv3d, dilation=2), normal(1, 128, 4, 5, 4), normal(8, 128, 2, 2, 2, scale=0.03)),
    "conv_transpose1d": Case(F.conv_transpose1d, normal(3, 16, 20), normal(16, 5, 3, scale=0.2)),
    "conv_transpose2d": Case(
        partial(F.conv_transpose2d, stride=2, output_padding=1), WIDE, normal(256, 16, 3, 3, scale=0.02), BIAS
    ),
    "conv_transpose2d grouped": Case(partial(F.conv_transpose2d, groups=2), WIDE, normal(256, 8, 3, 3, scale=0.03)),
    "linear": Case(F.linear, LONG, normal(24, 512, scale=0.05), normal(24)),
    "linear on sequences": Case(F.linear, normal(2, 5, 33), normal(20, 33, scale=0.2), normal(20)),
    "mm": Case(torch.mm, LONG, COLUMNS),
    "bmm": Case(torch.bmm, *STACKS),
    "mv": Case(torch.mv, LONG, normal(512)),
    "dot": Case(torch.dot, between(0.1, 3, 512), between(0.1, 3, 512)),
    "matmul broadcast": Case(torch.matmul, normal(2, 1, 5, 40), normal(3, 40, 6, scale=0.2)),
    "einsum": Case(lambda a, b: torch.einsum("bik,bjk->bij", a, b), normal(3, 5, 40), normal(3, 6, 40)),
    "addmm": Case(partial(torch.addmm, beta=0.5, alpha=2.0), normal(24), LONG, COLUMNS),
    "baddbmm": Case(torch.baddbmm, normal(2, 8, 24), *STACKS),
}


def batch_norm(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor, training: bool = True) -> Tensor:
    return F.batch_norm(x, mean, variance, w, b, training=training)


def assign_slice(x: Tensor) -> Tensor:
    out = x * 0.1
    out[:, ::2] = 0.3
    out[3] += x[4]
    return out


def recurrent(module: nn.Module) -> Case:
    shapes = {name: weight.shape for name, weight in module.named_parameters()}

    def compute(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(shapes, weights)), (x,))[0]

    return Case(compute, normal(5, 3, 10), *(normal(*shape, scale=0.2) for shape in shapes.values()))


AFFINE, STATISTICS = (between(0.1, 3, 8), normal(8)), (normal(8, scale=0.1), between(0.1, 3, 8))
ATTEND, QUERIES = F.scaled_dot_product_attention, (normal(2, 4, 10, 16), normal(2, 4, 12, 16), normal(2, 4, 12, 16))
MASK = integers(2, 10, 12).bool().logical_or(torch.eye(10, 12, dtype=torch.bool))
OTHERS = {
    "batch_norm training": Case(batch_norm, IMAGE, *AFFINE, buffers=STATISTICS),
    "batch_norm evaluation": Case(partial(batch_norm, training=False), IMAGE, *AFFINE, buffers=STATISTICS),
    "layer_norm": Case(lambda x, w, b: F.layer_norm(x, (33,), w, b), X, between(0.1, 3, 33), normal(33)),
    "group_norm": Case(lambda x, w, b: F.group_norm(x, 4, w, b), IMAGE, *AFFINE),
    "instance_norm": Case(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), IMAGE, *AFFINE),
    "rms_norm": Case(lambda x, w: F.rms_norm(x, (33,), w), X, between(0.1, 3, 33)),
    "normalize": Case(F.normalize, X),
    **on(normal(3, 4, 18), max_pool1d=partial(F.max_pool1d, kernel_size=3, stride=2)),
    **on(VOLUME, max_pool3d=partial(F.max_pool3d, kernel_size=2, stride=1)),
    **on(
        IMAGE,
        max_pool2d_overlapping=partial(F.max_pool2d, kernel_size=3, stride=1),
        avg_pool2d=partial(F.avg_pool2d, kernel_size=3, stride=2, padding=1),
        adaptive_avg_pool2d=partial(F.adaptive_avg_pool2d, output_size=4),
        adaptive_avg_pool2d_to_one=partial(F.adaptive_avg_pool2d, output_size=1),
        adaptive_max_pool2d=partial(F.adaptive_max_pool2d, output_size=4),
        interpolate_nearest=partial(F.interpolate, scale_factor=2),
        interpolate_bilinear=partial(F.interpolate, size=18, mode="bilinear"),
        interpolate_bicubic=partial(F.interpolate, size=13, mode="bicubic"),
        pixel_shuffle=partial(F.pixel_shuffle, upscale_factor=2),
        unfold=partial(F.unfold, kernel_size=3),
    ),
    "attention": Case(ATTEND, *QUERIES),
    "attention bool mask": Case(ATTEND, *QUERIES, inputs=[MASK]),
    "attention added mask": Case(ATTEND, *QUERIES, inputs=[torch.zeros(10, 12).masked_fill(~MASK, -torch.inf).half()]),
    **named(F, "relu gelu silu tanh sigmoid elu selu celu leaky_relu hardswish hardsigmoid relu6 softplus mish", A),
    **named(F, "logsigmoid softsign hardshrink softshrink glu tanhshrink", A),
    "prelu": Case(F.prelu, A, between(0.05, 0.95, 40)),
    "add broadcast": Case(torch.add, A, ROW),
    "sub broadcast": Case(torch.sub, A, COLUMN),
    "mul broadcast": Case(torch.mul, A, COLUMN),
    "div broadcast": Case(torch.div, A, COLUMN),
    "multiply by integers": Case(torch.mul, A, inputs=[integers(5000, 40)]),
    "addcmul": Case(torch.addcmul, A, ROW, COLUMN),
    "addcdiv": Case(torch.addcdiv, A, ROW, COLUMN),
    "lerp": Case(partial(torch.lerp, weight=0.3), A, POSITIVE),
    "power tensor": Case(torch.pow, POSITIVE, A),
    "maximum": Case(torch.maximum, A, POSITIVE),
    "where": Case(lambda a, b, c: torch.where(c, a, b), A, POSITIVE, inputs=[integers(2, 40).bool()]),
    "prod": Case(lambda x: x.prod(1), POSITIVE[:12, :7]),
    "cat": Case(lambda a, b: torch.cat([a, b], 1), A, POSITIVE[:, :5]),
    "gather": Case(lambda x, i: x.gather(0, i[:, None].expand(12, 40)), A, inputs=[ROWS]),
    "scatter_add": Case(
        lambda x, i: torch.zeros_like(x[:7]).scatter_add(0, (i % 7)[:, None].expand(12, 40), x[:12]), A, inputs=[ROWS]
    ),
    "index_add": Case(lambda x, i: torch.ones_like(x).index_add(0, i, x[:12]), A, inputs=[ROWS]),
    "index_select": Case(lambda x, i: x.index_select(0, i), A, inputs=[ROWS]),
    "embedding": Case(lambda x, i: F.embedding(i, x), A, inputs=[ROWS]),
    **named(torch, "log log1p log2 sqrt rsqrt reciprocal", POSITIVE),
    **named(torch, "exp expm1 square sin cos erf atan abs sum mean var max tril", A),
    **on(A, **{f"{name} of rows": partial(getattr(torch, name), dim=1) for name in ("sum", "std", "cumsum", "amax")}),
    **on(
        A, gelu_tanh=partial(F.gelu, approximate="tanh"), hardtanh=partial(F.hardtanh, min_val=-0.3, max_val=0.7),
        softmax=partial(F.softmax, dim=1), log_softmax=partial(F.log_softmax, dim=1),
        threshold=partial(F.threshold, threshold=0.1, value=0.3), pad=partial(F.pad, pad=(1, 2), value=0.3),
        pad_reflect=partial(F.pad, pad=(2, 1), mode="reflect"), slice_assignment=assign_slice,
        norm=torch.linalg.vector_norm, norm_of_rows=partial(torch.linalg.vector_norm, dim=1),
        norm_of_order_1=partial(torch.linalg.vector_norm, ord=1, dim=1),
    ),
    **on(
        A, add_a_number=lambda x: x + 0.1, multiply_by_a_number=lambda x: x * 0.1, divide_by_a_number=lambda x: x / 7,
        number_minus=lambda x: 1.7 - x, cube=lambda x: x**3, clamp=lambda x: x.clamp(-0.7, 0.3),
        where_number=lambda x: torch.where(x > 0.1, x, 0.3), masked_fill=lambda x: x.masked_fill(x > 0.1, 0.3),
        in_place=lambda x: (x * 1).add_(0.1).mul_(0.3), mean_of_columns=lambda x: x.mean(0, keepdim=True),
        var_of_rows=lambda x: x.var(1, correction=0), max_of_rows=lambda x: x.max(dim=1).values,
        sort=lambda x: x.sort(dim=1).values, topk=lambda x: x.topk(5, dim=1).values, repeat=lambda x: x.repeat(2, 3),
        slice_flip_and_roll=lambda x: x[:, 3:17:2].flip(1).roll(1, 0),
    ),
    "lstm": recurrent(nn.LSTM(10, 12)),
    "gru": recurrent(nn.GRU(10, 12)),
    "gru without biases": recurrent(nn.GRU(10, 12, bias=False)),
    "rnn": recurrent(nn.RNN(10, 12)),
    "rectified rnn": recurrent(nn.RNN(10, 12, nonlinearity="relu")),
}  # fmt: skip


def smoothed_cross_entropy(x: Tensor, target: Tensor, reduction: str) -> Tensor:
    return F.cross_entropy(x, target, label_smoothing=0.1, reduction=reduction)


def ctc_loss(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return F.ctc_loss(F.log_softmax(logits, 2), targets, (9, 9, 8), (4, 3, 4), reduction=reduction)


SCORES, TARGET, VECTOR, SHARES = normal(12, 10), normal(12, 10), normal(12), between(0.05, 0.95, 12, 10)
CLASSES, SIGNS = integers(10, 12), (integers(2, 12) * 2 - 1).half()
LOGARITHMS = F.log_softmax(TARGET.float(), 1).half()
# Functions, what gets gradients, and the target, which gets none.
LOSSES: list[tuple[list[Callable[..., Any]], list[Tensor], Tensor]] = [
    ([F.l1_loss, F.mse_loss, F.smooth_l1_loss], [SCORES], TARGET),
    ([F.cross_entropy, smoothed_cross_entropy], [SCORES], CLASSES),
    ([F.nll_loss], [LOGARITHMS], CLASSES),
    ([F.binary_cross_entropy], [between(0.05, 0.95, 12, 10)], SHARES),
    ([F.binary_cross_entropy_with_logits], [SCORES], SHARES),
    ([F.kl_div], [LOGARITHMS], SHARES),
    ([F.poisson_nll_loss], [SCORES], integers(5, 12, 10).half()),
    ([F.hinge_embedding_loss, F.soft_margin_loss], [VECTOR], SIGNS),
    ([F.cosine_embedding_loss], [SCORES, TARGET], SIGNS),
    ([F.multilabel_soft_margin_loss], [SCORES], integers(2, 12, 10).half()),
    ([F.margin_ranking_loss], [VECTOR, normal(12)], SIGNS),
    ([F.triplet_margin_loss], [SCORES, TARGET], normal(12, 10)),
    ([ctc_loss], [normal(9, 3, 6)], integers(5, 3, 4) + 1),
]
TABLE = (
    CONTRACTIONS
    | OTHERS
    | {
        f"{function.__name__} {reduction}": Case(partial(function, reduction=reduction), *weights, inputs=[target])
        for functions, weights, target in LOSSES
        for function in functions
        for reduction in ("mean", "sum", "none")
    }
)
