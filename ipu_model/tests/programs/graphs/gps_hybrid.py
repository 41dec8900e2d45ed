"""A hybrid of message passing and attention over packed molecules, with gradient hooks and a deep copy of the best."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn as nn

import poptorch

PACK, NODES, EDGES, DIM = 4, 20, 40, 16


@dataclass
class PackedGraphs:
    nodes: torch.Tensor
    senders: torch.Tensor
    receivers: torch.Tensor
    graph: torch.Tensor
    target: torch.Tensor | None = None


class PackedGraphsParser(poptorch.ICustomArgParser):
    FIELDS = ("nodes", "senders", "receivers", "graph", "target")

    def yieldTensors(self, struct):
        for field in self.FIELDS:
            if getattr(struct, field) is not None:
                yield getattr(struct, field)

    def reconstruct(self, original_structure, tensor_iterator):
        return PackedGraphs(
            **{
                field: None if getattr(original_structure, field) is None else next(tensor_iterator)
                for field in self.FIELDS
            }
        )


poptorch.registerCustomArgParser(PackedGraphs, PackedGraphsParser())


class GPSLayer(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm_local, self.norm_global, self.norm_out = (nn.LayerNorm(dim) for _ in range(3))
        self.feed_forward = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, senders, receivers, mask):
        batch = torch.arange(x.shape[0]).unsqueeze(1)
        messages = self.message(torch.cat([x[batch, senders], x[batch, receivers]], dim=-1))
        index = receivers.unsqueeze(-1).expand_as(messages)
        local = torch.zeros_like(x).scatter_add_(1, index, messages)
        attended, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        x = self.norm_local(x + local) + self.norm_global(x + attended)
        return self.norm_out(x + self.feed_forward(x))


class GPS(nn.Module):
    def __init__(self, layers=2, heads=2):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(5, DIM, padding_idx=0)
        self.layers = nn.ModuleList(GPSLayer(DIM, heads) for _ in range(layers))
        self.head = nn.Linear(DIM, 1)

    def forward(self, data):
        same = data.graph.unsqueeze(1) == data.graph.unsqueeze(2)
        mask = torch.where(same, 0.0, -1e4).repeat_interleave(self.heads, dim=0)
        x = self.embed(data.nodes)
        for layer in self.layers:
            x = layer(x, data.senders, data.receivers, mask)
        per_node = self.head(x) * (data.nodes != 0).unsqueeze(-1)
        index = data.graph.long()
        out = torch.zeros(x.shape[0], PACK + 1).scatter_add(1, index, per_node.squeeze(-1))[:, 1:]
        if data.target is None:
            return out
        return out, nn.functional.l1_loss(out, data.target)


def packed_batch(count, with_target=True):
    nodes, graph = torch.zeros(count, NODES, dtype=torch.int32), torch.zeros(count, NODES, dtype=torch.int32)
    senders, receivers = torch.full((count, EDGES), NODES - 1), torch.full((count, EDGES), NODES - 1)
    target = torch.zeros(count, PACK)
    for i in range(count):
        start = edge = 0
        for g in range(PACK):
            size = int(torch.randint(2, 5, ()))
            kinds = torch.randint(1, 5, (size,), dtype=torch.int32)
            nodes[i, start : start + size], graph[i, start : start + size] = kinds, g + 1
            for a in range(size - 1):
                for s, r in ((a, a + 1), (a + 1, a)):
                    senders[i, edge], receivers[i, edge] = start + s, start + r
                    edge += 1
            target[i, g] = (kinds.float() - 2.5).sum() + 0.5 * float(((kinds[:-1] == 1) & (kinds[1:] == 1)).sum())
            start += size
    return PackedGraphs(nodes, senders, receivers, graph, target if with_target else None)


def main():
    args = SimpleNamespace(batch_size=8, steps=60)
    torch.manual_seed(0)
    model = GPS()
    norms = []
    handle = model.layers[0].register_forward_hook(lambda _, inputs, output: norms.append(tuple(output.shape)))
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    trainer = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    best, best_loss, history = None, float("inf"), []
    for step in range(args.steps):
        _, loss = trainer(packed_batch(args.batch_size))
        history.append(loss.item())
        if step % 10 == 9 and sum(history[-10:]) / 10 < best_loss:
            best_loss = sum(history[-10:]) / 10
            trainer.copyWeightsToHost()
            best = copy.deepcopy(model)
            print(f"step {step + 1}: best so far {best_loss:.3f}")
    handle.remove()
    trainer.destroy()
    assert set(norms) == {(args.batch_size, NODES, DIM)}
    assert not isinstance(best, poptorch.PoplarExecutor)

    inference = poptorch.inferenceModel(best.eval())
    data = packed_batch(args.batch_size, with_target=False)
    out = inference(data)
    torch.testing.assert_close(out, best(data), rtol=1e-3, atol=1e-3)
    assert best_loss < 0.6 * sum(history[:5]) / 5


if __name__ == "__main__":
    main()
