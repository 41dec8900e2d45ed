"""What the programs share and are not about: data, a loop over it, common layers, and checks."""

import torch
from torch import nn

import popart
import poptorch


class Items(torch.utils.data.Dataset):
    """`length` items; `make(index, generator)` makes one, with a generator that is seeded by `seed` and the index."""

    def __init__(self, length, make, seed=0):
        self.length, self.make, self.seed = length, make, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index, torch.Generator().manual_seed(self.seed + index))


def stacked(items):
    """Stack items to a batch: a tuple of tensors for items that are tuples."""
    return tuple(torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*items))


def train(executor, batches, epochs=1, after=None):
    """Call the executor with every batch, and `after` after each call; return each call's loss, its last output."""
    losses = []
    for epoch in range(epochs):
        for batch in batches:
            outputs = executor(**batch) if isinstance(batch, dict) else executor(*batch)
            loss = outputs[-1] if isinstance(outputs, (tuple, list)) else outputs
            losses.append(loss.float().mean().item())
            if after is not None:
                after()
        print(f"epoch {epoch}: {len(losses)} calls, loss {losses[-1]:.4f}")
    return losses


def following(scheduler, executor):
    """Return what to do after each call: the executor gets the scheduler's next rate."""

    def follow():
        scheduler.step()
        executor.setOptimizer(scheduler.optimizer)

    return follow


def save_memory(opts):
    """Set what production scripts set in PopART for this."""
    schedule = int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized)
    opts._Popart.set("accumulateOuterFragmentSettings.schedule", schedule)
    opts._Popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    opts._Popart.set("disableGradAccumulationTensorStreams", True)
    opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))


def check_learned(losses, share, count=1):
    """Check that the last `count` losses are less than this share of the first ones."""
    assert sum(losses[-count:]) < share * sum(losses[:count]), losses


def check_close(results, expected, tolerance=1e-4):
    torch.testing.assert_close(results, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def inferred(model, *inputs, options=None, tolerance=1e-4):
    """Return what a model computes on the IPU, which is what it computes on the CPU."""
    results = poptorch.inferenceModel(model.eval(), options)(*inputs)
    with torch.no_grad():
        check_close(results, model(*inputs), tolerance)
    return results


def on_ipu(function, options=None):
    """Return an inference model that computes a function."""
    module = nn.Module()
    module.forward = function
    return poptorch.inferenceModel(module, options)


def accuracy(scores, labels):
    """Return the share of labels that have the highest score."""
    return (scores.argmax(dim=-1) == labels).float().mean().item()


class Over(nn.Module):
    """Something that is computed with a network."""

    def __init__(self, network):
        super().__init__()
        self.network = network


class WithLoss(Over):
    """A network's output, and its loss where a call has a target."""

    def __init__(self, network, loss):
        super().__init__(network)
        self.loss = loss

    def forward(self, x, target=None):
        output = self.network(x)
        return output if target is None else (output, self.loss(output, target))


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself; a mask is added to the scores."""

    def __init__(self, dim, heads, bias=True):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias), nn.Linear(dim, dim, bias)

    def forward(self, x, mask=None):
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + mask
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, dim))


class TransformerLayer(nn.Module):
    """Attention and two linear layers, each added to its input after a norm; `attention` may be another one."""

    def __init__(self, dim, heads, attention=None, activation=nn.GELU):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = attention or SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), activation(), nn.Linear(2 * dim, dim))

    def forward(self, x, *others):
        x = x + self.attention(self.norm1(x), *others)
        return x + self.mlp(self.norm2(x))
