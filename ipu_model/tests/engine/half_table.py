"""The ops that half precision is tested on: one table for every family of ops, and one for the losses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from half_support import Case, below_one, integers, normal, positive
from torch import Tensor, nn

X = normal(6, 33)
IMAGE = normal(4, 8, 9, 9)


def contractions() -> list[Case]:
    x1, x3 = normal(3, 16, 20), normal(2, 6, 5, 6, 7)
    return [
        Case("conv1d", F.conv1d, {"input": x1, "weight": normal(12, 16, 3, scale=0.2), "bias": normal(12)}),
        Case("conv2d", partial(F.conv2d, stride=2, padding=1),
             {"input": IMAGE, "weight": normal(16, 8, 3, 3, scale=0.2), "bias": normal(16)}),
        Case("conv3d", partial(F.conv3d, dilation=2),
             {"input": x3, "weight": normal(4, 6, 2, 2, 2, scale=0.2), "bias": normal(4)}),
        Case("conv_transpose1d", F.conv_transpose1d, {"input": x1, "weight": normal(16, 5, 3, scale=0.2)}),
        Case("conv_transpose2d", partial(F.conv_transpose2d, stride=2, output_padding=1),
             {"input": IMAGE, "weight": normal(8, 6, 3, 3, scale=0.2), "bias": normal(6)}),
        Case("conv2d grouped", partial(F.conv2d, groups=4),
             {"input": IMAGE, "weight": normal(12, 2, 3, 3, scale=0.3), "bias": normal(12)}),
        Case("conv2d depthwise", partial(F.conv2d, groups=8, padding=1),
             {"input": IMAGE, "weight": normal(8, 1, 3, 3, scale=0.3), "bias": normal(8)}),
        Case("conv_transpose2d grouped", partial(F.conv_transpose2d, groups=2),
             {"input": IMAGE, "weight": normal(8, 3, 2, 2, scale=0.3)}),
        Case("linear", F.linear, {"input": X, "weight": normal(20, 33, scale=0.2), "bias": normal(20)}),
        Case("linear on sequences", F.linear,
             {"input": normal(2, 5, 33), "weight": normal(20, 33, scale=0.2), "bias": normal(20)}),
        Case("mm", torch.mm, {"input": normal(7, 200), "mat2": normal(200, 9, scale=0.1)}),
        Case("bmm", torch.bmm, {"input": normal(3, 7, 50), "mat2": normal(3, 50, 9, scale=0.1)}),
        Case("matmul broadcast", torch.matmul,
             {"input": normal(2, 1, 5, 40), "other": normal(3, 40, 6, scale=0.2)}),
        Case("matvec", torch.matmul, {"input": normal(12, 40), "other": normal(40, scale=0.2)}),
        Case("einsum", lambda a, b: torch.einsum("bik,bjk->bij", a, b),
             {"a": normal(3, 5, 40), "b": normal(3, 6, 40)}),
        Case("addmm", partial(torch.addmm, beta=0.5, alpha=2.0),
             {"input": normal(5), "mat1": normal(7, 30), "mat2": normal(30, 5)}),
    ]  # fmt: skip


def norms() -> list[Case]:
    def affine(count: int) -> dict[str, Tensor]:
        return {"weight": positive(count), "bias": normal(count)}

    train = partial(F.batch_norm, training=True)
    statistics = {"running_mean": normal(8, scale=0.1), "running_var": positive(8)}
    return [
        Case("batch_norm training", train, {"input": IMAGE, **affine(8)}, {}, statistics),
        Case("batch_norm evaluation", F.batch_norm, {"input": IMAGE, **affine(8)}, {}, statistics),
        Case("batch_norm on rows", train, {"input": normal(20, 8), **affine(8)}, {}, statistics),
        Case("layer_norm", partial(F.layer_norm, normalized_shape=(33,)), {"input": X, **affine(33)}),
        Case("layer_norm plain", partial(F.layer_norm, normalized_shape=(9, 9)), {"input": IMAGE}),
        Case("group_norm", partial(F.group_norm, num_groups=4), {"input": IMAGE, **affine(8)}),
        Case("instance_norm", F.instance_norm, {"input": IMAGE, **affine(8)}),
        Case("instance_norm evaluation", partial(F.instance_norm, use_input_stats=False),
             {"input": IMAGE, **affine(8)}, {}, statistics),
        Case("rms_norm", partial(F.rms_norm, normalized_shape=(33,)), {"input": X, "weight": positive(33)}),
        Case("normalize", F.normalize, {"input": X}),
    ]  # fmt: skip


def pools() -> list[Case]:
    small = normal(3, 4, 18)
    return [
        Case("max_pool1d", partial(F.max_pool1d, kernel_size=3, stride=2), {"input": small}),
        Case("max_pool2d overlapping", partial(F.max_pool2d, kernel_size=3, stride=1), {"input": IMAGE}),
        Case("max_pool3d", partial(F.max_pool3d, kernel_size=2, stride=1), {"input": normal(2, 2, 4, 4, 4)}),
        Case("avg_pool1d", partial(F.avg_pool1d, kernel_size=3), {"input": small}),
        Case("avg_pool2d", partial(F.avg_pool2d, kernel_size=3, stride=2, padding=1), {"input": IMAGE}),
        Case("avg_pool3d", partial(F.avg_pool3d, kernel_size=2), {"input": normal(2, 2, 4, 4, 4)}),
        Case("adaptive_avg_pool2d", partial(F.adaptive_avg_pool2d, output_size=4), {"input": IMAGE}),
        Case("adaptive_avg_pool2d to one", partial(F.adaptive_avg_pool2d, output_size=1), {"input": IMAGE}),
        Case("adaptive_max_pool2d", partial(F.adaptive_max_pool2d, output_size=4), {"input": IMAGE}),
        Case("interpolate nearest", partial(F.interpolate, scale_factor=2), {"input": IMAGE}),
        Case("interpolate bilinear", partial(F.interpolate, size=18, mode="bilinear"), {"input": IMAGE}),
        Case("interpolate bicubic", partial(F.interpolate, size=13, mode="bicubic"), {"input": IMAGE}),
        Case("pixel_shuffle", partial(F.pixel_shuffle, upscale_factor=2), {"input": IMAGE}),
        Case("unfold", partial(F.unfold, kernel_size=3), {"input": IMAGE}),
    ]  # fmt: skip


def attention() -> list[Case]:
    qkv = {"query": normal(2, 4, 10, 16), "key": normal(2, 4, 12, 16), "value": normal(2, 4, 12, 16)}
    square = {name: normal(2, 4, 10, 16) for name in qkv}
    mask = {"attn_mask": integers(2, 10, 12).bool().logical_or(torch.eye(10, 12, dtype=torch.bool))}
    attend = nn.MultiheadAttention(32, 4)
    shapes = {name: parameter.shape for name, parameter in attend.named_parameters()}

    def multi_head(x: Tensor, **weights: Tensor) -> Tensor:
        return F.multi_head_attention_forward(
            x, x, x, 32, 4, weights["in_weight"], weights["in_bias"], None, None, False, 0.0,
            weights["out_weight"],
            weights["out_bias"], need_weights=False,
        )[0]  # fmt: skip

    weights = {
        "in_weight": normal(*shapes["in_proj_weight"], scale=0.2), "in_bias": normal(*shapes["in_proj_bias"]),
        "out_weight": normal(*shapes["out_proj.weight"], scale=0.2),
        "out_bias": normal(*shapes["out_proj.bias"]),
    }  # fmt: skip
    sdpa = F.scaled_dot_product_attention
    return [
        Case("attention", sdpa, qkv),
        Case("attention causal", partial(sdpa, is_causal=True), square),
        Case("attention bool mask", sdpa, qkv, mask),
        Case("multi_head_attention", multi_head, {"x": normal(6, 3, 32), **weights}),
    ]  # fmt: skip


def activations() -> list[Case]:
    x = {"input": normal(40, 50, scale=1.0)}
    functions: dict[str, Callable[..., Tensor]] = {
        "relu": F.relu, "gelu": F.gelu, "gelu tanh": partial(F.gelu, approximate="tanh"), "silu": F.silu,
        "tanh": torch.tanh, "sigmoid": torch.sigmoid, "elu": F.elu, "selu": F.selu, "celu": F.celu,
        "leaky_relu": F.leaky_relu, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
        "hardtanh": partial(F.hardtanh, min_val=-0.3, max_val=0.7), "relu6": F.relu6, "softplus": F.softplus,
        "mish": F.mish, "logsigmoid": F.logsigmoid, "softsign": F.softsign, "hardshrink": F.hardshrink,
        "softshrink": F.softshrink, "softmax": partial(F.softmax, dim=1),
        "log_softmax": partial(F.log_softmax, dim=1),
        "glu": F.glu, "tanhshrink": F.tanhshrink, "threshold": partial(F.threshold, threshold=0.1, value=0.3),
    }  # fmt: skip
    return [
        *(Case(name, function, x) for name, function in functions.items()),
        Case("prelu", F.prelu, {**x, "weight": below_one(50)}),
    ]


def pointwise() -> list[Case]:
    a, p = normal(30, 40), positive(30, 40)
    row, column = normal(40), positive(30, 1)

    def unary(name: str, function: Callable[..., Any], x: Tensor = p) -> Case:
        return Case(name, function, {"input": x})

    return [
        Case("add broadcast", torch.add, {"input": a, "other": row}),
        Case("add scaled", partial(torch.add, alpha=0.3), {"input": a, "other": row}),
        Case("sub broadcast", torch.sub, {"input": a, "other": column}),
        Case("mul broadcast", torch.mul, {"input": a, "other": column}),
        Case("div broadcast", torch.div, {"input": a, "other": column}),
        unary("add a number", lambda input: input + 0.1, a),
        unary("multiply by a number", lambda input: input * 0.1, a),
        unary("divide by a number", lambda input: input / 7, a),
        unary("number minus", lambda input: 1.7 - input, a),
        Case("multiply by integers", torch.mul, {"input": a}, {"other": integers(5000, 40)}),
        Case("addcmul", torch.addcmul, {"input": a, "tensor1": row, "tensor2": column}),
        Case("addcdiv", torch.addcdiv, {"input": a, "tensor1": row, "tensor2": column}),
        Case("lerp", partial(torch.lerp, weight=0.3), {"input": a, "end": p}),
        unary("exp", torch.exp, a), unary("expm1", torch.expm1, a), unary("log", torch.log),
        unary("log1p", torch.log1p),
        unary("log2", torch.log2), unary("sqrt", torch.sqrt), unary("rsqrt", torch.rsqrt),
        unary("square", torch.square, a), unary("cube", partial(torch.pow, exponent=3), a),
        unary("power", partial(torch.pow, exponent=1.7)),
        Case("power tensor", torch.pow, {"input": p, "exponent": a}),
        unary("reciprocal", torch.reciprocal), unary("sin", torch.sin, a), unary("cos", torch.cos, a),
        unary("erf", torch.erf, a), unary("atan", torch.atan, a), unary("abs", torch.abs, a),
        unary("clamp", partial(torch.clamp, min=-0.7, max=0.3), a),
        Case("maximum", torch.maximum, {"input": a, "other": p}),
        Case("where", lambda c, a, b: torch.where(c, a, b), {"a": a, "b": p}, {"c": integers(2, 40).bool()}),
        unary("where number", lambda input: torch.where(input > 0.1, input, 0.3), a),
        unary("masked_fill", lambda input: input.masked_fill(input > 0.1, 0.3), a),
        unary("in place", lambda input: (input * 1).add_(0.1).mul_(0.3), a),
    ]  # fmt: skip


def reductions() -> list[Case]:
    a, p = normal(30, 40), positive(12, 7)

    def over(name: str, function: Callable[..., Any], x: Tensor = a) -> Case:
        return Case(name, function, {"input": x})

    return [
        over("sum", torch.sum), over("sum of rows", partial(torch.sum, dim=1)), over("mean", torch.mean),
        over("mean of columns", partial(torch.mean, dim=0, keepdim=True)), over("var", torch.var),
        over("var of rows", partial(torch.var, dim=1, correction=0)), over("std", partial(torch.std, dim=1)),
        over("norm", torch.linalg.vector_norm),
        over("norm of rows", partial(torch.linalg.vector_norm, dim=1)),
        over("norm of order 1", partial(torch.linalg.vector_norm, ord=1, dim=1)),
        over("prod", partial(torch.prod, dim=1), p), over("cumsum", partial(torch.cumsum, dim=1)),
        over("logsumexp", partial(torch.logsumexp, dim=1)), over("amax", partial(torch.amax, dim=1)),
        over("max", lambda input: input.max(dim=1).values), over("max of all", torch.max),
        over("median-like sort", lambda input: input.sort(dim=1).values),
        over("topk", lambda input: input.topk(5, dim=1).values),
    ]  # fmt: skip


def movements() -> list[Case]:
    a, rows = normal(30, 40), integers(30, 12)

    def moved(name: str, function: Callable[..., Any], x: Tensor = a) -> Case:
        return Case(name, function, {"input": x}, {"index": rows})

    return [
        Case("cat", lambda a, b: torch.cat([a, b], 1), {"a": a, "b": normal(30, 5)}),
        Case("stack", lambda a, b: torch.stack([a, b], 1), {"a": a, "b": normal(30, 40)}),
        Case("pad", partial(F.pad, pad=(1, 2), value=0.3), {"input": a}),
        Case("pad reflect", partial(F.pad, pad=(2, 1), mode="reflect"), {"input": a}),
        moved("index rows", lambda input, index: input[index]),
        moved("index_select", lambda input, index: input.index_select(0, index)),
        moved("gather", lambda input, index: input.gather(0, index.unsqueeze(1).expand(12, 40))),
        moved("scatter_add", lambda input, index: torch.zeros_like(input[:7]).scatter_add(
            0, (index % 7).unsqueeze(1).expand(12, 40), input[:12])),
        moved("index_add", lambda input, index: torch.ones_like(input).index_add(0, index, input[:12])),
        moved("embedding", lambda input, index: F.embedding(index, input)),
        moved("slice, flip and roll", lambda input, index: input[:, 3:17:2].flip(1).roll(1, 0)),
        moved("repeat", lambda input, index: input.repeat(2, 3)),
        moved("tril", lambda input, index: input.tril()),
        moved("slice assignment", _assign_slice),
    ]  # fmt: skip


def _assign_slice(input: Tensor, index: Tensor) -> Tensor:
    out = input * 0.1
    out[:, ::2] = 0.3
    out[3] += input[4]
    return out


def recurrent() -> list[Case]:
    modules = {
        "lstm": nn.LSTM(10, 12), "gru": nn.GRU(10, 12), "gru without biases": nn.GRU(10, 12, bias=False),
        "rnn": nn.RNN(10, 12), "rectified rnn": nn.RNN(10, 12, nonlinearity="relu"),
        "projected lstm": nn.LSTM(10, 12, proj_size=7),
    }  # fmt: skip

    def runs(module: nn.Module) -> Callable[..., Tensor]:
        def compute(x: Tensor, **weights: Tensor) -> Tensor:
            named = {name.replace("w_", "weight_").replace("b_", "bias_"): w for name, w in weights.items()}
            return torch.func.functional_call(module, named, (x,))[0]

        return compute

    def weights(module: nn.Module) -> dict[str, Tensor]:
        short = ((n.replace("weight_", "w_").replace("bias_", "b_"), p.shape) for n, p in module.named_parameters())
        return {name: normal(*shape, scale=0.3) for name, shape in short}

    return [Case(name, runs(module), {"x": normal(5, 3, 10), **weights(module)}) for name, module in modules.items()]


def table() -> list[Case]:
    """Every op but the losses."""
    groups = (contractions, norms, pools, attention, activations, pointwise, reductions, movements, recurrent)
    return [case for group in groups for case in group()]


REDUCTIONS = ("mean", "sum", "none")


def losses() -> list[Case]:
    """Each loss with each reduction; targets are inputs that get no gradient."""
    return [
        Case(f"{name} {reduction}", partial(function, reduction=reduction), weights, inputs)
        for name, function, weights, inputs in _losses()
        for reduction in REDUCTIONS
    ]


def _losses() -> list[tuple[str, Callable[..., Any], dict[str, Tensor], dict[str, Tensor]]]:
    x, logits = {"input": normal(12, 10)}, normal(12, 10)
    classes, signs = integers(10, 12), (integers(2, 12) * 2 - 1).half()
    rows, labels = {"input1": normal(12), "input2": normal(12)}, integers(2, 12, 10).half()
    shares = {"target": below_one(12, 10)}
    pair = {"input1": normal(12, 10), "input2": normal(12, 10)}
    log_probabilities = {"input": F.log_softmax(logits.float(), 1).half()}
    return [
        ("l1_loss", F.l1_loss, x, {"target": logits}),
        ("mse_loss", F.mse_loss, x, {"target": logits}),
        ("smooth_l1_loss", F.smooth_l1_loss, x, {"target": logits}),
        ("cross_entropy", F.cross_entropy, x, {"target": classes}),
        ("cross_entropy smoothed", partial(F.cross_entropy, label_smoothing=0.1), x, {"target": classes}),
        ("nll_loss", F.nll_loss, log_probabilities, {"target": classes}),
        ("binary_cross_entropy", F.binary_cross_entropy, {"input": below_one(12, 10)}, shares),
        ("binary_cross_entropy_with_logits", F.binary_cross_entropy_with_logits, x, shares),
        ("kl_div", F.kl_div, log_probabilities, shares),
        ("poisson_nll_loss", F.poisson_nll_loss, x, {"target": integers(5, 12, 10).half()}),
        ("hinge_embedding_loss", F.hinge_embedding_loss, {"input": normal(12)}, {"target": signs}),
        ("cosine_embedding_loss", F.cosine_embedding_loss, pair, {"target": signs}),
        ("soft_margin_loss", F.soft_margin_loss, {"input": normal(12)}, {"target": signs}),
        ("multilabel_soft_margin_loss", F.multilabel_soft_margin_loss, x, {"target": labels}),
        ("margin_ranking_loss", F.margin_ranking_loss, rows, {"target": signs}),
        ("triplet_margin_loss", F.triplet_margin_loss, {"anchor": normal(12, 10), "positive": normal(12, 10)},
         {"negative": normal(12, 10)}),
        ("ctc_loss", _ctc, {"logits": normal(9, 3, 6)}, {"targets": integers(5, 3, 4) + 1}),
    ]  # fmt: skip


def _ctc(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    log_probabilities = F.log_softmax(logits, 2)
    return F.ctc_loss(log_probabilities, targets, (9, 9, 8), (4, 3, 4), reduction=reduction)
