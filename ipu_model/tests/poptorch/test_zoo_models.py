"""Small models of many kinds, and programs in less common styles."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from modelling_support import quiet
from torch import Tensor, nn
from zoo_support import Function, Made, Squared, agree, check_inference, check_training, numbers

import poptorch

# Models written with the idioms of their public sources.


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


def cached_attention(m: Any, x: Tensor, attention_mask: Tensor | None = None, past: Any = None) -> Any:
    """Decoder attention with a constant mask, a mask of the padding and keys and values of earlier tokens."""
    q, k, v = (t.view(*t.shape[:2], m.heads, -1).permute(0, 2, 1, 3) for t in m.qkv(x).split(x.size(-1), 2))
    if past is not None:
        k, v = torch.cat((past[0], k), dim=-2), torch.cat((past[1], v), dim=-2)
    scores = q @ k.mT / torch.full([], v.size(-1) ** 0.5, dtype=v.dtype, device=v.device)
    lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
    scores = torch.where(m.bias[:, :, k.size(-2) - q.size(-2) : k.size(-2), : k.size(-2)], scores, lowest)
    if attention_mask is not None:
        scores = scores + (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -1e4
    mixed = (scores.softmax(-1).type(v.dtype) @ v).permute(0, 2, 1, 3).contiguous()
    return m.out(mixed.view(*x.shape)), (k, v)


def decoder() -> Made:
    seen = torch.ones(16, 16, dtype=torch.bool).tril().view(1, 1, 16, 16)
    return Made(cached_attention, buffers={"bias": seen}, qkv=nn.Linear(16, 48), out=nn.Linear(16, 16), heads=2)


def relative_bias(m: Any, scores: Tensor) -> Tensor:
    """Attention biases by logarithmic distance."""
    places = torch.arange(scores.size(-1), device=scores.device)
    far, half = places[None, :] - places[:, None], m.buckets // 2
    distance, exact = far.abs(), half // 2
    large = exact + (torch.log(distance.float() / exact + 1e-6) / math.log(5) * (half - exact)).to(torch.long)
    large = torch.min(large, torch.full_like(large, half - 1))
    buckets = (far > 0).to(torch.long) * half + torch.where(distance < exact, distance, large)
    return scores + m.table(buckets).permute(2, 0, 1).unsqueeze(0)


class RotaryBlock(nn.Module):
    """Rotary positions, grouped queries, a root-mean-square norm and a gated feed-forward layer."""

    def __init__(self, width: int = 16, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * groups * self.size, bias=False)
        self.gate, self.up, self.down = nn.Linear(width, 32), nn.Linear(width, 32), nn.Linear(32, width)
        self.weight = nn.Parameter(torch.ones(width))
        self.register_buffer("frequencies", 1e4 ** -(torch.arange(0, self.size, 2).float() / self.size))

    def norm(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        angles = torch.outer(torch.arange(length, device=x.device, dtype=x.dtype), self.frequencies)
        angles = torch.cat((angles, angles), dim=-1)

        def rotated(t: Tensor) -> Tensor:
            t = t.view(rows, length, -1, self.size).transpose(1, 2)
            left, right = t.chunk(2, -1)
            return t * angles.cos() + torch.cat((-right, left), -1) * angles.sin()

        normed = self.norm(x)
        k, v = self.kv(normed).chunk(2, dim=-1)
        k = rotated(k)[:, :, None].expand(-1, -1, 2, -1, -1).reshape(rows, self.heads, length, self.size)
        v = v.view(rows, length, self.groups, self.size).transpose(1, 2).repeat_interleave(2, 1)
        x = x + F.scaled_dot_product_attention(rotated(self.q(normed)), k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.down(F.silu(self.gate(self.norm(x))) * self.up(self.norm(x)))


def contrastive(m: Any, images: Tensor, texts: Tensor) -> Tensor:
    """Images and texts that find each other, with a learnt temperature."""
    images, texts = (t / t.norm(dim=-1, keepdim=True) for t in (m.images(images), m.texts(texts)))
    logits = m.scale.exp() * images @ texts.t()
    labels = torch.arange(logits.shape[0], device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def recommender(m: Any, dense: Tensor, categories: Tensor) -> Tensor:
    """Embedding bags and the products of every pair of features."""
    x = m.dense(dense)
    features = torch.stack([x, *(t(categories[:, k : k + 1]) for k, t in enumerate(m.tables))], dim=1)
    products = torch.bmm(features, features.transpose(1, 2))
    rows, columns = torch.tril_indices(4, 4, -1)
    return torch.sigmoid(m.top(torch.cat([x, products[:, rows, columns]], dim=1)))


def graph_network(m: Any, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
    """Messages along edges, normalised by degree, with attention; one row for each graph."""
    source, target = edges
    h = m.layer(x)
    degree = torch.zeros(len(x), device=x.device).scatter_add_(0, target, torch.ones(len(target), device=x.device))
    inverse = degree.pow(-0.5).masked_fill(degree == 0, 0.0)
    score = F.leaky_relu(m.score(torch.cat([h[source], h[target]], dim=1))).squeeze(-1)
    highest = torch.full((len(x),), -1e9).scatter_reduce(0, target, score.detach(), "amax")
    share = (score - highest[target]).exp()
    total = torch.zeros(len(x)).scatter_add(0, target, share) + 1e-9
    weight = inverse[source] * inverse[target] * share / total[target]
    h = torch.zeros_like(h).index_add_(0, target, h[source] * weight[:, None])
    return torch.zeros(2, 4).scatter_add(0, graph[:, None].expand(-1, 4), h.relu()).log_softmax(-1)


def experts(m: Any, x: Tensor) -> Tensor:
    """The best two of three experts."""
    weight, best = m.gate(x).topk(2, dim=-1)
    outputs = torch.stack([expert(x) for expert in m.experts], dim=1)
    return torch.einsum("bk,bke,bed->bd", weight.softmax(-1), F.one_hot(best, 3).to(x.dtype), outputs)


def codebook(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """A vector quantiser whose codes are moving averages, changed in forward."""
    h = m.layer(x)
    nearest = ((h[:, None] - m.codes[None]) ** 2).sum(-1).argmin(dim=1)
    chosen = m.codes[nearest]
    if m.training:
        hits = F.one_hot(nearest, 6).to(h.dtype)
        with torch.no_grad():
            m.uses.mul_(0.9).add_(hits.sum(0), alpha=0.1)
            m.codes.mul_(0.9).add_(0.1 * (hits.t() @ h) / m.uses.unsqueeze(1))
    return h + (chosen - h).detach(), F.mse_loss(h, chosen.detach())


class Straight(torch.autograd.Function):
    """Rounding with the gradient of a copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class Quantised(nn.Linear):
    """A layer trained with weights of eight bits."""

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.abs().max() / 127
        return F.linear(x, Straight.apply(self.weight / scale) * scale, self.bias)


def radiance(m: Any, origins: Tensor, directions: Tensor) -> Tensor:
    """Colours along rays."""
    points = origins[:, None] + directions[:, None] * torch.linspace(0, 1, 5)[None, :, None]
    waves = [wave(points * 2**k) for k in range(3) for wave in (torch.sin, torch.cos)]
    found = m.field(torch.cat(waves, dim=-1))
    opaque = 1 - torch.exp(-F.softplus(found[..., 3]) * 0.2)
    passed = torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10], 1).cumprod(1)[:, :-1]
    return ((opaque * passed)[..., None] * found[..., :3].sigmoid()).sum(1)


def detector(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes from anchors and a grid; the best ones."""
    rows, _, height, width = x.shape
    p = m.head(x).view(rows, 2, 7, height, width).permute(0, 1, 3, 4, 2).contiguous()
    grid = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    middle = (p[..., :2].sigmoid() * 2 - 0.5 + torch.stack(grid[::-1], -1)) * 8
    boxes = torch.cat((middle, (p[..., 2:4].sigmoid() * 2) ** 2 * m.anchors, p[..., 4:].sigmoid()), -1)
    boxes = boxes.view(rows, -1, 7)
    scores, best = (boxes[..., 4] * boxes[..., 5:].amax(-1)).topk(4, dim=1)
    return boxes.gather(1, best[..., None].expand(-1, -1, 7)), scores


def distilled(m: Any, x: Tensor) -> Tensor:
    """A student of a frozen teacher."""
    with torch.no_grad():
        wanted = (m.teacher(x) / 2).softmax(-1)
    return F.kl_div((m.student(x) / 2).log_softmax(-1), wanted, reduction="batchmean") * 4


def actor_critic(m: Any, states: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
    """Policy gradient, value and entropy."""
    chances = torch.distributions.Categorical(logits=m.policy(states))
    advantage = returns - m.value(states).squeeze(-1)
    gain = (chances.log_prob(actions) * advantage.detach()).mean() + 0.01 * chances.entropy().mean()
    return advantage.pow(2).mean() - gain


def speech(m: Any, x: Tensor, text: Tensor, lengths: Tensor, text_lengths: Tensor) -> Tensor:
    """Convolution, recurrence and connectionist temporal classification."""
    x = F.hardtanh(m.convolution(x), 0, 20)
    states, _ = m.rnn(x.flatten(1, 2).transpose(1, 2))
    return F.ctc_loss(m.out(states).log_softmax(-1).transpose(0, 1), text, lengths, text_lengths)


MODELS: dict[str, Any] = {
    "decoder with a mask": lambda: (
        decoder(),
        numbers(2, 6, 16),
        torch.ones(2, 6, dtype=torch.long),
    ),
    "decoder with a cache": lambda: (
        decoder(),
        numbers(2, 1, 16),
        None,
        (numbers(2, 2, 3, 8), numbers(2, 2, 3, 8, seed=1)),
    ),
    "relative positions": lambda: (Made(relative_bias, table=nn.Embedding(8, 2), buckets=8), numbers(2, 2, 5, 5)),
    "rotary positions": lambda: (RotaryBlock(), numbers(2, 5, 16)),
    "images and texts": lambda: (
        Made(
            contrastive,
            images=nn.Linear(8, 4),
            texts=nn.Linear(6, 4),
            scale=nn.Parameter(torch.ones([]) * math.log(2.0)),
        ),
        numbers(5, 8),
        numbers(5, 6),
    ),
    "recommender": lambda: (
        Made(
            recommender,
            tables=nn.ModuleList(nn.EmbeddingBag(10, 4, mode="sum") for _ in range(3)),
            dense=nn.Linear(5, 4),
            top=nn.Linear(10, 1),
        ),
        numbers(4, 5),
        whole(10, 4, 3),
    ),
    "graph network": lambda: (
        Made(graph_network, layer=nn.Linear(4, 4), score=nn.Linear(8, 1)),
        numbers(6, 4),
        whole(6, 2, 10),
        torch.tensor([0, 0, 0, 1, 1, 1]),
    ),
    "mixture of experts": lambda: (
        Made(experts, gate=nn.Linear(4, 3), experts=nn.ModuleList(nn.Linear(4, 4) for _ in range(3))),
        numbers(5, 4),
    ),
    "vector quantiser": lambda: (
        Made(codebook, buffers={"codes": numbers(6, 4, seed=1), "uses": torch.ones(6)}, layer=nn.Linear(4, 4)),
        numbers(5, 4),
    ),
    "quantised weights": lambda: (Quantised(4, 4), numbers(3, 4)),
    "radiance field": lambda: (
        Made(radiance, field=nn.Sequential(nn.Linear(18, 16), nn.Softplus(), nn.Linear(16, 4))),
        numbers(4, 3),
        numbers(4, 3, seed=1),
    ),
    "detector": lambda: (
        Made(
            detector,
            buffers={"anchors": torch.tensor([[1.0, 2.0], [2.0, 1.0]]).view(1, 2, 1, 1, 2)},
            head=nn.Conv2d(3, 14, 1),
        ),
        numbers(2, 3, 3, 3),
    ),
    "distillation": lambda: (
        Made(distilled, teacher=nn.Linear(4, 3).requires_grad_(False), student=nn.Linear(4, 3)),
        numbers(5, 4),
    ),
    "actor and critic": lambda: (
        Made(actor_critic, policy=nn.Linear(4, 2), value=nn.Linear(4, 1)),
        numbers(5, 4),
        whole(2, 5),
        numbers(5),
    ),
    "speech": lambda: (
        Made(
            speech,
            convolution=nn.Conv2d(1, 4, 3, (2, 1), 1),
            rnn=nn.GRU(16, 8, batch_first=True, bidirectional=True),
            out=nn.Linear(16, 5),
        ),
        numbers(2, 1, 8, 10),
        whole(4, 2, 3) + 1,
        torch.tensor([10, 9]),
        torch.tensor([3, 2]),
    ),
}


# Styles: sparse layers, hooks, functions with gradients of their own, data classes.

A, IMAGES = numbers(3, 4), numbers(2, 3, 5, 5)
ROWS = torch.tensor([[1, 5, 0], [3, 3, 9]])


def adaptive(m: Any, x: Tensor, classes: Tensor | None = None) -> Any:
    """A classifier of ten classes, of which the rare ones share projections."""
    x = m.layer(x)
    return (x, m.softmax.predict(x)) if classes is None else m.softmax(x, classes)


def rare_classes() -> Made:
    softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 10, cutoffs=[3, 6], div_value=2.0, head_bias=True)
    return Made(adaptive, layer=nn.Linear(4, 4), softmax=softmax)


def warp(m: Any, x: Tensor) -> Tensor:
    """Images moved by a flow that a convolution finds: the gradient reaches the grid, not the images."""
    ticks = torch.linspace(-1, 1, x.shape[-1])
    grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), dim=-1)
    return F.grid_sample(x, grid + 0.1 * m.flow(x).permute(0, 2, 3, 1), align_corners=True)


class InParts(torch.autograd.Function):
    """A function that writes its result in parts and has a gradient of its own."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        result[:, 0] = x[:, 0] * 2
        result[:, 1:].copy_(x[:, 1:])
        return result

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Hooked(nn.Module):
    """A weight whose gradient is doubled by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.weight.register_hook(lambda gradient: gradient * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def anchored(m: Any, x: Tensor) -> Tensor:
    """Plain attributes that are arrays of NumPy."""
    return m.layer(x).reshape(-1, m.width) * torch.tensor(m.anchors, dtype=x.dtype)


STYLES: dict[str, Any] = {
    "sparse embedding": lambda: (nn.Embedding(10, 4, sparse=True), ROWS),
    "sparse bags": lambda: (nn.EmbeddingBag(10, 4, mode="sum", sparse=True), ROWS),
    "adaptive softmax": lambda: (rare_classes(), A, torch.tensor([9, 0, 4])),
    "adaptive softmax of one row": lambda: (rare_classes(), A[0], torch.tensor(7)),
    "the best classes of an adaptive softmax": lambda: (rare_classes(), A),
    "flow": lambda: (Made(warp, flow=nn.Conv2d(3, 2, 3, padding=1)), IMAGES),
    "a function that writes in parts": lambda: (nn.Sequential(nn.Linear(4, 4), Function(InParts.apply)), A),
    "arrays": lambda: (Made(anchored, layer=nn.Linear(4, 4), anchors=np.arange(4.0), width=np.int64(4)), A),
    "inverse hyperbolic": lambda: (
        Function(lambda x: (x.asinh(), (x.abs() + 1.1).acosh(), (x.tanh() * 0.9).atanh(), torch.fmax(x, -x))), A),
}  # fmt: skip


def test_a_gradient_hook_of_a_weight_runs() -> None:
    """Written out: a copy of a module would leave the hooks of its weights behind."""
    torch.manual_seed(0)
    model = Squared(Hooked())
    reference = Squared(Hooked())
    reference.load_state_dict(model.state_dict())
    wrapped = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=0.1))
    wrapped(A)
    reference(A)[1].backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    wrapped.copyWeightsToHost()
    agree(model.state_dict(), reference.state_dict())


@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_margin_losses_in_half_precision_are_those_of_float32_rounded_once(loss: Any) -> None:
    targets = torch.tensor([1, 3, 0]) if loss is F.multi_margin_loss else torch.tensor([[1, 2, -1, 0]] * 3)
    scores = A.half()

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Parameter(scores.clone())

        def forward(self, targets: Tensor) -> Tensor:
            return poptorch.identity_loss(loss(self.scores, targets), reduction="none")

    model = Scored()
    wrapped = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=1.0))
    found = wrapped(targets)
    plain = scores.float().requires_grad_()
    expected = loss(plain, targets)
    expected.backward()
    assert torch.equal(found, expected.detach().half())
    torch.testing.assert_close(model.scores.detach(), (scores.float() - plain.grad).half(), rtol=1e-3, atol=1e-3)


@dataclass
class Batch:
    images: Tensor
    scale: Tensor
    times: int = 2


@dataclass(frozen=True)
class Found:
    scores: Tensor
    missing: Tensor | None = None
    others: dict[str, Any] | None = None


def of_classes(m: Any, batch: Batch) -> Found:
    """Takes and returns instances of data classes, one of them inside a dict of the other."""
    scores = m.layer(batch.images) * batch.scale * batch.times
    return Found(scores, None, {"shifted": Found(scores + 1)})


def test_data_classes_go_in_and_come_out() -> None:
    model, batch = Made(of_classes, layer=nn.Linear(4, 2)), Batch(A, numbers(3, 2))
    found, expected = poptorch.inferenceModel(copy.deepcopy(model), quiet())(batch), model(batch)
    assert type(found) is Found
    assert found.missing is None
    agree([found.scores, found.others["shifted"].scores], [expected.scores, expected.others["shifted"].scores])


class Holder:
    """An object that is no container."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


REFUSED: dict[str, tuple[Any, str]] = {
    "an object": (lambda: Function(Holder), "inside an object of type Holder.*registerCustomArgParser"),
    "a distribution": (lambda: Function(lambda x: torch.distributions.Normal(x, 1.0)), "an object of type Normal"),
    "a set": (lambda: Function(lambda x: {x}), "an object of type set"),
    "a generator": (
        lambda: Function(lambda x: x + torch.randn(4, generator=torch.Generator())), r"torch\.Generator.*randomSeed"),
    "a lazy module": (lambda: nn.Sequential(nn.LazyLinear(3)), r"'0\.weight' is not initialised: call forward"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_device_cannot_take_is_refused_by_name(name: str) -> None:
    model, words = REFUSED[name]
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(model(), quiet())(A)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_a_scripted_part_is_refused_with_its_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.trace(nn.Linear(4, 4), A))
    with pytest.raises(poptorch.Error, match=r"scripted module .*'1' is one"):
        poptorch.inferenceModel(model, quiet())


@pytest.mark.parametrize("name", [*MODELS, *STYLES])
def test_training_agrees_with_pytorch(name: str) -> None:
    torch.manual_seed(0)
    check_training(*(MODELS | STYLES)[name](), rate=1e-2)


INFERRED = [
    "decoder with a cache", "vector quantiser", "detector",
    "adaptive softmax", "the best classes of an adaptive softmax", "flow",
]  # fmt: skip


@pytest.mark.parametrize("name", INFERRED)
def test_inference_agrees_with_pytorch(name: str) -> None:
    torch.manual_seed(0)
    check_inference(*(MODELS | STYLES)[name]())
