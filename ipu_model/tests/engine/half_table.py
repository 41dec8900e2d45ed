"""The ops that half precision is tested on: a table for every family of ops, and one for the losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from half_support import Case, between, integers, normal
from torch import Tensor, nn

Cases = dict[str, Case]
X = normal(6, 33)
IMAGE = normal(4, 8, 9, 9)
VOLUME = normal(2, 2, 4, 4, 4)
A, POSITIVE = normal(30, 40), between(0.1, 3, 30, 40)


def on(x: Tensor, **functions: Callable[..., Any]) -> Cases:
    """Return a case for each function of `x` alone."""
    return {name: Case(function, x) for name, function in functions.items()}


def named(module: Any, names: str, x: Tensor) -> Cases:
    """Return a case for each function of `x` alone that PyTorch's module has under these names."""
    return {name: Case(getattr(module, name), x) for name in names.split()}


def contractions() -> Cases:
    """Many terms in every sum, so that half partials matter; some are short."""
    wide, filters, bias = normal(2, 256, 6, 6), normal(16, 256, 3, 3, scale=0.02), normal(16, scale=0.05)
    rows, columns = normal(8, 512), normal(512, 24, scale=0.05)
    stacks = normal(2, 8, 512), normal(2, 512, 24, scale=0.05)
    transposed = partial(F.conv_transpose2d, stride=2, output_padding=1)
    return {
        "conv1d": Case(F.conv1d, normal(2, 256, 12), normal(16, 256, 3, scale=0.02), bias),
        "conv2d": Case(F.conv2d, wide, filters, bias),
        "conv2d strided": Case(partial(F.conv2d, stride=2, padding=1), wide, filters, bias),
        "conv2d grouped": Case(partial(F.conv2d, groups=2, padding=1), wide, normal(16, 128, 3, 3, scale=0.03), bias),
        "conv2d depthwise": Case(
            partial(F.conv2d, groups=8, padding=1), IMAGE, normal(8, 1, 3, 3, scale=0.3), normal(8)
        ),
        "conv3d": Case(
            partial(F.conv3d, dilation=2), normal(1, 128, 4, 5, 4), normal(8, 128, 2, 2, 2, scale=0.03), normal(8)
        ),
        "conv_transpose1d": Case(F.conv_transpose1d, normal(3, 16, 20), normal(16, 5, 3, scale=0.2)),
        "conv_transpose2d": Case(transposed, wide, normal(256, 16, 3, 3, scale=0.02), bias),
        "conv_transpose2d grouped": Case(partial(F.conv_transpose2d, groups=2), wide, normal(256, 8, 3, 3, scale=0.03)),
        "linear": Case(F.linear, rows, normal(24, 512, scale=0.05), normal(24)),
        "linear on sequences": Case(F.linear, normal(2, 5, 33), normal(20, 33, scale=0.2), normal(20)),
        "mm": Case(torch.mm, rows, columns),
        "bmm": Case(torch.bmm, *stacks),
        "mv": Case(torch.mv, rows, normal(512)),
        "dot": Case(torch.dot, between(0.1, 3, 512), between(0.1, 3, 512)),
        "matmul broadcast": Case(torch.matmul, normal(2, 1, 5, 40), normal(3, 40, 6, scale=0.2)),
        "einsum": Case(lambda a, b: torch.einsum("bik,bjk->bij", a, b), normal(3, 5, 40), normal(3, 6, 40)),
        "addmm": Case(partial(torch.addmm, beta=0.5, alpha=2.0), normal(24), rows, columns),
        "baddbmm": Case(torch.baddbmm, normal(2, 8, 24), *stacks),
    }


def norms() -> Cases:
    affine, rows = (between(0.1, 3, 8), normal(8)), (between(0.1, 3, 33), normal(33))
    statistics = normal(8, scale=0.1), between(0.1, 3, 8)

    def batch(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor, training: bool = True) -> Tensor:
        return F.batch_norm(x, mean, variance, w, b, training=training)

    def instance(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.instance_norm(x, mean, variance, w, b, use_input_stats=False)

    return {
        "batch_norm training": Case(batch, IMAGE, *affine, buffers=statistics),
        "batch_norm evaluation": Case(partial(batch, training=False), IMAGE, *affine, buffers=statistics),
        "batch_norm on rows": Case(batch, normal(20, 8), *affine, buffers=statistics),
        "layer_norm": Case(lambda x, w, b: F.layer_norm(x, (33,), w, b), X, *rows),
        "layer_norm plain": Case(lambda x: F.layer_norm(x, (9, 9)), IMAGE),
        "group_norm": Case(lambda x, w, b: F.group_norm(x, 4, w, b), IMAGE, *affine),
        "instance_norm": Case(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), IMAGE, *affine),
        "instance_norm evaluation": Case(instance, IMAGE, *affine, buffers=statistics),
        "rms_norm": Case(lambda x, w: F.rms_norm(x, (33,), w), X, rows[0]),
        "normalize": Case(F.normalize, X),
    }


def pools() -> Cases:
    lines = on(
        normal(3, 4, 18),
        max_pool1d=partial(F.max_pool1d, kernel_size=3, stride=2),
        avg_pool1d=partial(F.avg_pool1d, kernel_size=3),
    )
    volumes = on(
        VOLUME,
        max_pool3d=partial(F.max_pool3d, kernel_size=2, stride=1),
        avg_pool3d=partial(F.avg_pool3d, kernel_size=2),
    )
    return (
        lines
        | volumes
        | on(
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
        )
    )


def attention() -> Cases:
    attend, shape = F.scaled_dot_product_attention, (2, 4, 10, 16)
    queries = normal(*shape), normal(2, 4, 12, 16), normal(2, 4, 12, 16)
    mask = integers(2, 10, 12).bool().logical_or(torch.eye(10, 12, dtype=torch.bool))

    def multi_head(x: Tensor, w_in: Tensor, b_in: Tensor, w_out: Tensor, b_out: Tensor) -> Tensor:
        unused = None, None, False, 0.0
        return F.multi_head_attention_forward(
            x, x, x, 32, 4, w_in, b_in, *unused, w_out, b_out, need_weights=False
        )[0]  # fmt: skip

    return {
        "attention": Case(attend, *queries),
        "attention causal": Case(partial(attend, is_causal=True), *(normal(*shape) for _ in range(3))),
        "attention bool mask": Case(attend, *queries, inputs=[mask]),
        "multi_head_attention": Case(
            multi_head, normal(6, 3, 32), normal(96, 32, scale=0.2), normal(96), normal(32, 32, scale=0.2), normal(32)
        ),
    }


def activations() -> Cases:
    x = normal(40, 50)
    names = """
        relu gelu silu tanh sigmoid elu selu celu leaky_relu hardswish hardsigmoid relu6 softplus mish logsigmoid
        softsign hardshrink softshrink glu tanhshrink
    """
    return (
        named(F, names, x)
        | {"prelu": Case(F.prelu, x, between(0.05, 0.95, 50))}
        | on(
            x,
            gelu_tanh=partial(F.gelu, approximate="tanh"),
            hardtanh=partial(F.hardtanh, min_val=-0.3, max_val=0.7),
            softmax=partial(F.softmax, dim=1),
            log_softmax=partial(F.log_softmax, dim=1),
            threshold=partial(F.threshold, threshold=0.1, value=0.3),
        )
    )


def pointwise() -> Cases:
    row, column = normal(40), between(0.1, 3, 30, 1)
    return {
        "add broadcast": Case(torch.add, A, row),
        "add scaled": Case(partial(torch.add, alpha=0.3), A, row),
        "sub broadcast": Case(torch.sub, A, column),
        "mul broadcast": Case(torch.mul, A, column),
        "div broadcast": Case(torch.div, A, column),
        "multiply by integers": Case(torch.mul, A, inputs=[integers(5000, 40)]),
        "addcmul": Case(torch.addcmul, A, row, column),
        "addcdiv": Case(torch.addcdiv, A, row, column),
        "lerp": Case(partial(torch.lerp, weight=0.3), A, POSITIVE),
        "power tensor": Case(torch.pow, POSITIVE, A),
        "maximum": Case(torch.maximum, A, POSITIVE),
        "where": Case(lambda a, b, c: torch.where(c, a, b), A, POSITIVE, inputs=[integers(2, 40).bool()]),
        "power": Case(partial(torch.pow, exponent=1.7), POSITIVE),
        **named(torch, "exp expm1 square sin cos erf atan abs", A),
        **named(torch, "log log1p log2 sqrt rsqrt reciprocal", POSITIVE),
        **on(
            A,
            add_a_number=lambda x: x + 0.1,
            multiply_by_a_number=lambda x: x * 0.1,
            divide_by_a_number=lambda x: x / 7,
            number_minus=lambda x: 1.7 - x,
            cube=lambda x: x**3,
            clamp=lambda x: x.clamp(-0.7, 0.3),
            where_number=lambda x: torch.where(x > 0.1, x, 0.3),
            masked_fill=lambda x: x.masked_fill(x > 0.1, 0.3),
            in_place=lambda x: (x * 1).add_(0.1).mul_(0.3),
        ),
    }


def reductions() -> Cases:
    by_row = {
        f"{name} of rows": Case(partial(getattr(torch, name), dim=1), A)
        for name in ("sum", "std", "cumsum", "logsumexp", "amax")
    }
    return (
        by_row
        | named(torch, "sum mean var max", A)
        | {"prod": Case(lambda x: x.prod(1), POSITIVE[:12, :7])}
        | on(
            A,
            mean_of_columns=lambda x: x.mean(0, keepdim=True),
            var_of_rows=lambda x: x.var(1, correction=0),
            norm=torch.linalg.vector_norm,
            norm_of_rows=partial(torch.linalg.vector_norm, dim=1),
            norm_of_order_1=partial(torch.linalg.vector_norm, ord=1, dim=1),
            max_of_rows=lambda x: x.max(dim=1).values,
            sort=lambda x: x.sort(dim=1).values,
            topk=lambda x: x.topk(5, dim=1).values,
        )
    )


def movements() -> Cases:
    rows = integers(30, 12)
    wide = (rows % 7).unsqueeze(1).expand(12, 40)

    def assign_slice(x: Tensor) -> Tensor:
        out = x * 0.1
        out[:, ::2] = 0.3
        out[3] += x[4]
        return out

    return {
        "cat": Case(lambda a, b: torch.cat([a, b], 1), A, normal(30, 5)),
        "stack": Case(lambda a, b: torch.stack([a, b], 1), A, POSITIVE),
        "index rows": Case(lambda x, i: x[i], A, inputs=[rows]),
        "index_select": Case(lambda x, i: x.index_select(0, i), A, inputs=[rows]),
        "gather": Case(lambda x, i: x.gather(0, i), A, inputs=[rows.unsqueeze(1).expand(12, 40)]),
        "scatter_add": Case(lambda x, i: torch.zeros_like(x[:7]).scatter_add(0, i, x[:12]), A, inputs=[wide]),
        "index_add": Case(lambda x, i: torch.ones_like(x).index_add(0, i, x[:12]), A, inputs=[rows]),
        "embedding": Case(lambda x, i: F.embedding(i, x), A, inputs=[rows]),
        **on(
            A,
            pad=partial(F.pad, pad=(1, 2), value=0.3),
            pad_reflect=partial(F.pad, pad=(2, 1), mode="reflect"),
            slice_flip_and_roll=lambda x: x[:, 3:17:2].flip(1).roll(1, 0),
            repeat=lambda x: x.repeat(2, 3),
            tril=torch.tril,
            slice_assignment=assign_slice,
        ),
    }


def recurrent() -> Cases:
    modules = {
        "lstm": nn.LSTM(10, 12),
        "projected lstm": nn.LSTM(10, 12, proj_size=7),
        "gru": nn.GRU(10, 12),
        "gru without biases": nn.GRU(10, 12, bias=False),
        "rnn": nn.RNN(10, 12),
        "rectified rnn": nn.RNN(10, 12, nonlinearity="relu"),
    }

    def case_of(module: nn.Module) -> Case:
        shapes = {name: weight.shape for name, weight in module.named_parameters()}

        def compute(x: Tensor, *weights: Tensor) -> Tensor:
            return torch.func.functional_call(module, dict(zip(shapes, weights)), (x,))[0]

        return Case(compute, normal(5, 3, 10), *(normal(*shape, scale=0.3) for shape in shapes.values()))

    return {name: case_of(module) for name, module in modules.items()}


def losses() -> Cases:
    """Each loss with each reduction; targets are inputs that get no gradient."""

    def ctc(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
        return F.ctc_loss(F.log_softmax(logits, 2), targets, (9, 9, 8), (4, 3, 4), reduction=reduction)

    x, target, row = normal(12, 10), normal(12, 10), normal(12)
    shares, labels = between(0.05, 0.95, 12, 10), integers(2, 12, 10).half()
    classes, signs = integers(10, 12), (integers(2, 12) * 2 - 1).half()
    logarithms = F.log_softmax(target.float(), 1).half()
    functions: dict[str, tuple[Callable[..., Any], list[Tensor], Tensor]] = {
        "l1_loss": (F.l1_loss, [x], target),
        "mse_loss": (F.mse_loss, [x], target),
        "smooth_l1_loss": (F.smooth_l1_loss, [x], target),
        "cross_entropy": (F.cross_entropy, [x], classes),
        "cross_entropy smoothed": (partial(F.cross_entropy, label_smoothing=0.1), [x], classes),
        "nll_loss": (F.nll_loss, [logarithms], classes),
        "binary_cross_entropy": (F.binary_cross_entropy, [between(0.05, 0.95, 12, 10)], shares),
        "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, [x], shares),
        "kl_div": (F.kl_div, [logarithms], shares),
        "poisson_nll_loss": (F.poisson_nll_loss, [x], integers(5, 12, 10).half()),
        "hinge_embedding_loss": (F.hinge_embedding_loss, [row], signs),
        "cosine_embedding_loss": (F.cosine_embedding_loss, [x, target], signs),
        "soft_margin_loss": (F.soft_margin_loss, [row], signs),
        "multilabel_soft_margin_loss": (F.multilabel_soft_margin_loss, [x], labels),
        "margin_ranking_loss": (F.margin_ranking_loss, [row, normal(12)], signs),
        "triplet_margin_loss": (F.triplet_margin_loss, [x, target], normal(12, 10)),
        "ctc_loss": (ctc, [normal(9, 3, 6)], integers(5, 3, 4) + 1),
    }
    return {
        f"{name} {reduction}": Case(partial(function, reduction=reduction), *weights, inputs=[targets])
        for name, (function, weights, targets) in functions.items()
        for reduction in ("mean", "sum", "none")
    }


TABLE = {
    **contractions(), **norms(), **pools(), **attention(), **activations(), **pointwise(), **reductions(),
    **movements(), **recurrent(), **losses(),
}  # fmt: skip
