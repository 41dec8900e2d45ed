"""A hybrid of message passing and attention over packed molecules, with gradient hooks and a deep copy of the best."""

import copy
from dataclasses import dataclass

import torch
from program_kit import inferred
from torch import nn

import poptorch

PACK, NODES, EDGES, DIM, HEADS, BATCH = 4, 20, 40, 16, 2, 8
FIELDS = ("nodes", "senders", "receivers", "graph", "target")


@dataclass
class PackedGraphs:
    nodes: torch.Tensor
    senders: torch.Tensor
    receivers: torch.Tensor
    graph: torch.Tensor
    target: torch.Tensor | None = None


class PackedGraphsParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield from (getattr(struct, field) for field in FIELDS if getattr(struct, field) is not None)

    def reconstruct(self, original_structure, tensor_iterator):
        parts = [None if getattr(original_structure, field) is None else next(tensor_iterator) for field in FIELDS]
        return PackedGraphs(*parts)


poptorch.registerCustomArgParser(PackedGraphs, PackedGraphsParser())


class GPSLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.attention = nn.MultiheadAttention(dim, HEADS, batch_first=True)
        self.norm_local, self.norm_global = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, senders, receivers, mask):
        batch = torch.arange(x.shape[0]).unsqueeze(1)
        messages = self.message(torch.cat([x[batch, senders], x[batch, receivers]], dim=-1))
        index = receivers.unsqueeze(-1).expand_as(messages)
        local = torch.zeros_like(x).scatter_add_(1, index, messages)
        attended, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        return self.norm_local(x + local) + self.norm_global(x + attended)


class GPS(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, DIM, padding_idx=0), nn.Linear(DIM, 1)
        self.layers = nn.ModuleList(GPSLayer(DIM) for _ in range(2))

    def forward(self, data):
        same = data.graph.unsqueeze(1) == data.graph.unsqueeze(2)
        mask = torch.where(same, 0.0, -1e4).repeat_interleave(HEADS, dim=0)
        x = self.embed(data.nodes)
        for layer in self.layers:
            x = layer(x, data.senders, data.receivers, mask)
        per_node = self.head(x) * (data.nodes != 0).unsqueeze(-1)
        sums = torch.zeros(x.shape[0], PACK + 1).scatter_add(1, data.graph.long(), per_node.squeeze(-1))
        out = sums[:, 1:]
        return out if data.target is None else (out, nn.functional.l1_loss(out, data.target))


def packed_batch(with_target=True):
    """Chains of atoms; a target is the sum of its atoms' kinds, with a bonus for neighbours of the first kind."""
    nodes, graph = torch.zeros(2, BATCH, NODES, dtype=torch.int32)
    senders, receivers = torch.full((2, BATCH, EDGES), NODES - 1)
    target = torch.zeros(BATCH, PACK)
    for i in range(BATCH):
        start = edge = 0
        for g in range(PACK):
            size = int(torch.randint(2, 5, ()))
            kinds = torch.randint(1, 5, (size,), dtype=torch.int32)
            nodes[i, start : start + size], graph[i, start : start + size] = kinds, g + 1
            chain = torch.arange(start, start + size)
            senders[i, edge : edge + 2 * size - 2] = torch.cat([chain[:-1], chain[1:]])
            receivers[i, edge : edge + 2 * size - 2] = torch.cat([chain[1:], chain[:-1]])
            target[i, g] = (kinds.float() - 2.5).sum() + 0.5 * float(((kinds[:-1] == 1) & (kinds[1:] == 1)).sum())
            start, edge = start + size, edge + 2 * size - 2
    return PackedGraphs(nodes, senders, receivers, graph, target if with_target else None)


torch.manual_seed(0)
model = GPS()
shapes = []
handle = model.layers[0].register_forward_hook(lambda _, inputs, output: shapes.append(tuple(output.shape)))
optimizer = poptorch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
trainer = poptorch.trainingModel(model, poptorch.Options(), optimizer)
best_loss, history = float("inf"), []
for step in range(60):
    history.append(trainer(packed_batch())[1].item())
    if step % 10 == 9 and sum(history[-10:]) / 10 < best_loss:
        best_loss = sum(history[-10:]) / 10
        trainer.copyWeightsToHost()
        best = copy.deepcopy(model)
handle.remove()
trainer.destroy()
assert set(shapes) == {(BATCH, NODES, DIM)}
assert not isinstance(best, poptorch.PoplarExecutor)
assert best_loss < 0.6 * sum(history[:5]) / 5
inferred(best, packed_batch(with_target=False), tolerance=1e-3)
