# needs: torch_geometric
"""Graph regression with GIN on batches padded to a fixed size; whole Batch objects are passed to the model."""

import argparse

import torch
import torch.nn as nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool

import poptorch


class BatchParser(poptorch.ICustomArgParser):
    """Tells PopTorch which tensors are in a batch, and how to make a batch from tensors."""

    @staticmethod
    def keys(struct):
        return sorted(key for key, value in struct.to_dict().items() if isinstance(value, torch.Tensor))

    def yieldTensors(self, struct):
        for key in self.keys(struct):
            yield struct[key]

    def reconstruct(self, original_structure, tensor_iterator):
        values = {key: next(tensor_iterator) for key in self.keys(original_structure)}
        return Batch(**values)


poptorch.registerCustomArgParser(Batch, BatchParser())


class FixedSizeCollater:
    """Adds one padding graph whose nodes and edges fill the batch up."""

    def __init__(self, num_nodes, num_edges):
        self.num_nodes, self.num_edges = num_nodes, num_edges

    def __call__(self, graphs):
        nodes = sum(g.num_nodes for g in graphs)
        edges = sum(g.num_edges for g in graphs)
        pad_nodes, pad_edges = self.num_nodes - nodes, self.num_edges - edges
        assert pad_nodes > 0
        assert pad_edges >= 0
        padding = Data(
            x=torch.zeros(pad_nodes, graphs[0].x.shape[1]),
            edge_index=torch.zeros(2, pad_edges, dtype=torch.long),
            y=torch.zeros(1, 1),
        )
        batch = Batch.from_data_list([*graphs, padding])
        mask = torch.ones(len(graphs) + 1)
        mask[-1] = 0
        return Batch(x=batch.x, edge_index=batch.edge_index, batch=batch.batch, y=batch.y, graphs_mask=mask)


def molecule(generator):
    nodes = int(torch.randint(4, 9, (), generator=generator))
    x = torch.nn.functional.one_hot(torch.randint(4, (nodes,), generator=generator), 4).float()
    chain = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    extra = torch.randint(nodes, (2, 2), generator=generator)
    edges = torch.cat([chain, extra], dim=1)
    edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    bonded = (x[edge_index[0], 0] * x[edge_index[1], 1]).sum()
    return Data(x=x, edge_index=edge_index, y=(0.5 * x[:, 2].sum() + 0.3 * bonded).view(1, 1))


class GIN(nn.Module):
    def __init__(self, hidden=24, graphs=9):
        super().__init__()
        self.graphs = graphs
        self.conv1 = GINConv(nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden)), train_eps=True)
        self.conv2 = GINConv(nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
        self.readout = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, data):
        h1 = self.conv1(data.x, data.edge_index).relu()
        h2 = self.conv2(h1, data.edge_index).relu()
        pooled = torch.cat([global_add_pool(h, data.batch, size=self.graphs) for h in (h1, h2)], dim=1)
        out = self.readout(pooled)
        if self.training:
            error = (out - data.y).square().squeeze(-1) * data.graphs_mask
            return out, poptorch.identity_loss(error.sum() / data.graphs_mask.sum(), reduction="none")
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    graphs = [molecule(generator) for _ in range(96)]
    collater = FixedSizeCollater(num_nodes=args.batch_size * 8 + 1, num_edges=args.batch_size * 18)
    loader = torch.utils.data.DataLoader(graphs, batch_size=args.batch_size, shuffle=True, collate_fn=collater)

    model = GIN(graphs=args.batch_size + 1)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    training_model = poptorch.trainingModel(model.train(), poptorch.Options(), optimizer)
    losses = []
    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:
            out, loss = training_model(batch)
            total += loss.item()
        losses.append(total / len(loader))
        print(f"epoch {epoch}: {losses[-1]:.4f}")
    assert out.shape == (args.batch_size + 1, 1)
    training_model.detachFromDevice()

    model.eval()
    inference_model = poptorch.inferenceModel(model)
    batch = collater(graphs[: args.batch_size])
    torch.testing.assert_close(inference_model(batch), model(batch), rtol=1e-3, atol=1e-3)
    assert losses[-1] < 0.4 * losses[0]


if __name__ == "__main__":
    main()
