# needs: torch_geometric
"""Traffic forecasting on a sensor graph: a gated recurrent cell whose gates are graph convolutions."""

import argparse

import torch
import torch.nn as nn
from torch_geometric.nn import ChebConv
from torch_geometric.utils import get_laplacian

import poptorch


class GConvGRUCell(nn.Module):
    def __init__(self, inputs, hidden, order=2):
        super().__init__()
        self.hidden = hidden
        self.gates = ChebConv(inputs + hidden, 2 * hidden, order)
        self.candidate = ChebConv(inputs + hidden, hidden, order)

    def forward(self, x, h, edge_index, edge_weight):
        reset, update = torch.sigmoid(self.gates(torch.cat([x, h], -1), edge_index, edge_weight)).chunk(2, dim=-1)
        candidate = torch.tanh(self.candidate(torch.cat([x, reset * h], -1), edge_index, edge_weight))
        return update * h + (1 - update) * candidate


class Forecaster(nn.Module):
    def __init__(self, nodes, edge_index, edge_weight, hidden=16):
        super().__init__()
        self.register_buffer("edge_index", edge_index)
        self.register_buffer("edge_weight", edge_weight)
        self.nodes = nodes
        self.cell = GConvGRUCell(1, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, window, target=None):
        steps = window.shape[1]
        h = torch.zeros(window.shape[0], self.nodes, self.cell.hidden, dtype=window.dtype)
        for t in range(steps):
            h = self.cell(window[:, t, :, None], h, self.edge_index, self.edge_weight)
        prediction = self.head(h).squeeze(-1) + window[:, -1]
        if target is None:
            return prediction
        return prediction, nn.functional.l1_loss(prediction, target)


def signals(nodes, length):
    time = torch.arange(length).unsqueeze(1)
    phase = torch.linspace(0, 3, nodes)
    return torch.sin(0.4 * time + phase) + 0.02 * torch.randn(length, nodes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--window", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    ring = torch.arange(args.nodes)
    edge_index = torch.cat([torch.stack([ring, ring.roll(1)]), torch.stack([ring.roll(1), ring])], dim=1)
    edge_index, edge_weight = get_laplacian(edge_index, normalization="sym", num_nodes=args.nodes)
    keep = edge_index[0] != edge_index[1]
    series = signals(args.nodes, 150)
    windows = series.unfold(0, args.window + 1, 1).transpose(1, 2)
    dataset = torch.utils.data.TensorDataset(windows[:, :-1].contiguous(), windows[:, -1].contiguous())

    model = Forecaster(args.nodes, edge_index[:, keep], edge_weight[keep].abs())
    opts = poptorch.Options().deviceIterations(3)
    loader = poptorch.DataLoader(opts, dataset, batch_size=6, shuffle=True)
    trainer = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.01))
    losses = []
    for epoch in range(args.epochs):
        epoch_losses = [trainer(*batch)[1].item() for batch in loader]
        losses.append(sum(epoch_losses) / len(epoch_losses))
        print(f"epoch {epoch}: mean absolute error {losses[-1]:.4f}")
    forecaster = poptorch.inferenceModel(model)
    prediction = forecaster(dataset.tensors[0][:4])
    assert prediction.shape == (4, args.nodes)
    assert losses[-1] < 0.6 * losses[0]


if __name__ == "__main__":
    main()
