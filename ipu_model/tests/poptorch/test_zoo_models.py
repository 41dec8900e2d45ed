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
from zoo_support import Function, Squared, agree, check_inference, check_training, numbers

import poptorch

# Models written with the idioms of their public sources.


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0))


class CachedAttention(nn.Module):
    """Decoder attention with a constant mask, a mask of the padding and keys and values of earlier tokens."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.register_buffer("bias", torch.ones(16, 16, dtype=torch.bool).tril().view(1, 1, 16, 16), persistent=False)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, past: Any = None) -> Any:
        q, k, v = (t.view(*t.shape[:2], self.heads, -1).permute(0, 2, 1, 3) for t in self.qkv(x).split(x.size(-1), 2))
        if past is not None:
            k, v = torch.cat((past[0], k), dim=-2), torch.cat((past[1], v), dim=-2)
        scores = q @ k.mT / torch.full([], v.size(-1) ** 0.5, dtype=v.dtype, device=v.device)
        lowest = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
        scores = torch.where(self.bias[:, :, k.size(-2) - q.size(-2) : k.size(-2), : k.size(-2)], scores, lowest)
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -1e4
        mixed = (scores.softmax(-1).type(v.dtype) @ v).permute(0, 2, 1, 3).contiguous()
        return self.out(mixed.view(*x.shape)), (k, v)


class RelativeBias(nn.Module):
    """Attention biases by logarithmic distance."""

    def __init__(self, buckets: int = 8) -> None:
        super().__init__()
        self.table, self.buckets = nn.Embedding(buckets, 2), buckets

    def forward(self, scores: Tensor) -> Tensor:
        places = torch.arange(scores.size(-1), device=scores.device)
        far, half = places[None, :] - places[:, None], self.buckets // 2
        distance, exact = far.abs(), half // 2
        large = exact + (torch.log(distance.float() / exact + 1e-6) / math.log(5) * (half - exact)).to(torch.long)
        large = torch.min(large, torch.full_like(large, half - 1))
        buckets = (far > 0).to(torch.long) * half + torch.where(distance < exact, distance, large)
        return scores + self.table(buckets).permute(2, 0, 1).unsqueeze(0)


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


class Contrastive(nn.Module):
    """Images and texts that find each other, with a learnt temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.texts = nn.Linear(8, 4), nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.ones([]) * math.log(2.0))

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        images, texts = (t / t.norm(dim=-1, keepdim=True) for t in (self.images(images), self.texts(texts)))
        logits = self.scale.exp() * images @ texts.t()
        labels = torch.arange(logits.shape[0], device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


class Recommender(nn.Module):
    """Embedding bags and the products of every pair of features."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(10, 4, mode="sum") for _ in range(3))
        self.dense, self.top = nn.Linear(5, 4), nn.Linear(10, 1)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.dense(dense)
        features = torch.stack([x, *(t(categories[:, k : k + 1]) for k, t in enumerate(self.tables))], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        return torch.sigmoid(self.top(torch.cat([x, products[:, rows, columns]], dim=1)))


class GraphNetwork(nn.Module):
    """Messages along edges, normalised by degree, with attention; one row for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.score = nn.Linear(4, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        source, target = edges
        h = self.layer(x)
        degree = torch.zeros(len(x), device=x.device).scatter_add_(0, target, torch.ones(len(target), device=x.device))
        inverse = degree.pow(-0.5).masked_fill(degree == 0, 0.0)
        score = F.leaky_relu(self.score(torch.cat([h[source], h[target]], dim=1))).squeeze(-1)
        highest = torch.full((len(x),), -1e9).scatter_reduce(0, target, score.detach(), "amax")
        share = (score - highest[target]).exp()
        total = torch.zeros(len(x)).scatter_add(0, target, share) + 1e-9
        weight = inverse[source] * inverse[target] * share / total[target]
        h = torch.zeros_like(h).index_add_(0, target, h[source] * weight[:, None])
        return torch.zeros(2, 4).scatter_add(0, graph[:, None].expand(-1, 4), h.relu()).log_softmax(-1)


class Experts(nn.Module):
    """The best two of three experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight, best = self.gate(x).topk(2, dim=-1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return torch.einsum("bk,bke,bed->bd", weight.softmax(-1), F.one_hot(best, 3).to(x.dtype), outputs)


class Codebook(nn.Module):
    """A vector quantiser whose codes are moving averages, changed in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("codes", numbers(6, 4, seed=1))
        self.register_buffer("uses", torch.ones(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.layer(x)
        nearest = ((h[:, None] - self.codes[None]) ** 2).sum(-1).argmin(dim=1)
        chosen = self.codes[nearest]
        if self.training:
            hits = F.one_hot(nearest, 6).to(h.dtype)
            with torch.no_grad():
                self.uses.mul_(0.9).add_(hits.sum(0), alpha=0.1)
                self.codes.mul_(0.9).add_(0.1 * (hits.t() @ h) / self.uses.unsqueeze(1))
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


class Radiance(nn.Module):
    """Colours along rays."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(18, 16), nn.Softplus(), nn.Linear(16, 4))

    def forward(self, origins: Tensor, directions: Tensor) -> Tensor:
        points = origins[:, None] + directions[:, None] * torch.linspace(0, 1, 5)[None, :, None]
        waves = [wave(points * 2**k) for k in range(3) for wave in (torch.sin, torch.cos)]
        found = self.field(torch.cat(waves, dim=-1))
        opaque = 1 - torch.exp(-F.softplus(found[..., 3]) * 0.2)
        passed = torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10], 1).cumprod(1)[:, :-1]
        return ((opaque * passed)[..., None] * found[..., :3].sigmoid()).sum(1)


class Detector(nn.Module):
    """Boxes from anchors and a grid; the best ones."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 14, 1)
        self.register_buffer("anchors", torch.tensor([[1.0, 2.0], [2.0, 1.0]]).view(1, 2, 1, 1, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, _, height, width = x.shape
        p = self.head(x).view(rows, 2, 7, height, width).permute(0, 1, 3, 4, 2).contiguous()
        grid = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        middle = (p[..., :2].sigmoid() * 2 - 0.5 + torch.stack(grid[::-1], -1)) * 8
        boxes = torch.cat((middle, (p[..., 2:4].sigmoid() * 2) ** 2 * self.anchors, p[..., 4:].sigmoid()), -1)
        boxes = boxes.view(rows, -1, 7)
        scores, best = (boxes[..., 4] * boxes[..., 5:].amax(-1)).topk(4, dim=1)
        return boxes.gather(1, best[..., None].expand(-1, -1, 7)), scores


class Distilled(nn.Module):
    """A student of a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = (self.teacher(x) / 2).softmax(-1)
        return F.kl_div((self.student(x) / 2).log_softmax(-1), wanted, reduction="batchmean") * 4


class ActorCritic(nn.Module):
    """Policy gradient, value and entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, states: Tensor, actions: Tensor, returns: Tensor) -> Tensor:
        chances = torch.distributions.Categorical(logits=self.policy(states))
        advantage = returns - self.value(states).squeeze(-1)
        gain = (chances.log_prob(actions) * advantage.detach()).mean() + 0.01 * chances.entropy().mean()
        return advantage.pow(2).mean() - gain


class Speech(nn.Module):
    """Convolution, recurrence and connectionist temporal classification."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.rnn = nn.Conv2d(1, 4, 3, (2, 1), 1), nn.GRU(16, 8, batch_first=True, bidirectional=True)
        self.out = nn.Linear(16, 5)

    def forward(self, x: Tensor, text: Tensor, lengths: Tensor, text_lengths: Tensor) -> Tensor:
        x = F.hardtanh(self.convolution(x), 0, 20)
        states, _ = self.rnn(x.flatten(1, 2).transpose(1, 2))
        return F.ctc_loss(self.out(states).log_softmax(-1).transpose(0, 1), text, lengths, text_lengths)


MODELS: dict[str, Any] = {
    "decoder with a mask": lambda: (CachedAttention(), numbers(2, 6, 16), torch.ones(2, 6, dtype=torch.long)),
    "decoder with a cache": lambda: (
        CachedAttention(), numbers(2, 1, 16), None, (numbers(2, 2, 3, 8), numbers(2, 2, 3, 8, seed=1))),
    "relative positions": lambda: (RelativeBias(), numbers(2, 2, 5, 5)),
    "rotary positions": lambda: (RotaryBlock(), numbers(2, 5, 16)),
    "images and texts": lambda: (Contrastive(), numbers(5, 8), numbers(5, 6)),
    "recommender": lambda: (Recommender(), numbers(4, 5), whole(10, 4, 3)),
    "graph network": lambda: (GraphNetwork(), numbers(6, 4), whole(6, 2, 10), torch.tensor([0, 0, 0, 1, 1, 1])),
    "mixture of experts": lambda: (Experts(), numbers(5, 4)),
    "vector quantiser": lambda: (Codebook(), numbers(5, 4)),
    "quantised weights": lambda: (Quantised(4, 4), numbers(3, 4)),
    "radiance field": lambda: (Radiance(), numbers(4, 3), numbers(4, 3, seed=1)),
    "detector": lambda: (Detector(), numbers(2, 3, 3, 3)),
    "distillation": lambda: (Distilled(), numbers(5, 4)),
    "actor and critic": lambda: (ActorCritic(), numbers(5, 4), whole(2, 5), numbers(5)),
    "speech": lambda: (
        Speech(), numbers(2, 1, 8, 10), whole(4, 2, 3) + 1, torch.tensor([10, 9]), torch.tensor([3, 2])),
}  # fmt: skip


# Styles: sparse layers, hooks, functions with gradients of their own, data classes.

A, IMAGES = numbers(3, 4), numbers(2, 3, 5, 5)
ROWS = torch.tensor([[1, 5, 0], [3, 3, 9]])


class Adaptive(nn.Module):
    """A classifier of ten classes, of which the rare ones share projections."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(4, 10, cutoffs=[3, 6], div_value=2.0, head_bias=True)

    def forward(self, x: Tensor, classes: Tensor | None = None) -> Any:
        x = self.layer(x)
        return (x, self.softmax.predict(x)) if classes is None else self.softmax(x, classes)


class Warp(nn.Module):
    """Images moved by a flow that a convolution finds: the gradient reaches the grid, not the images."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        ticks = torch.linspace(-1, 1, x.shape[-1])
        grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), dim=-1)
        return F.grid_sample(x, grid + 0.1 * self.flow(x).permute(0, 2, 3, 1), align_corners=True)


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


class Anchored(nn.Module):
    """Plain attributes that are arrays of NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.anchors, self.width = nn.Linear(4, 4), np.arange(4.0), np.int64(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).reshape(-1, self.width) * torch.tensor(self.anchors, dtype=x.dtype)


STYLES: dict[str, Any] = {
    "sparse embedding": lambda: (nn.Embedding(10, 4, sparse=True), ROWS),
    "sparse bags": lambda: (nn.EmbeddingBag(10, 4, mode="sum", sparse=True), ROWS),
    "adaptive softmax": lambda: (Adaptive(), A, torch.tensor([9, 0, 4])),
    "adaptive softmax of one row": lambda: (Adaptive(), A[0], torch.tensor(7)),
    "the best classes of an adaptive softmax": lambda: (Adaptive(), A),
    "flow": lambda: (Warp(), IMAGES),
    "a function that writes in parts": lambda: (nn.Sequential(nn.Linear(4, 4), Function(InParts.apply)), A),
    "arrays": lambda: (Anchored(), A),
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


class OfClasses(nn.Module):
    """Takes and returns instances of data classes, one of them inside a dict of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, batch: Batch) -> Found:
        scores = self.layer(batch.images) * batch.scale * batch.times
        return Found(scores, None, {"shifted": Found(scores + 1)})


def test_data_classes_go_in_and_come_out() -> None:
    model, batch = OfClasses(), Batch(A, numbers(3, 2))
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
