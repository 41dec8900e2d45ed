"""Heat on a mesh: the graph Laplacian is a sparse constant, a conductivity is learned from an observation."""

from types import SimpleNamespace

import torch
import torch.nn as nn

import poptorch


def grid_laplacian(side):
    nodes = side * side
    index = torch.arange(nodes).view(side, side)
    pairs = torch.cat(
        [
            torch.stack([index[:, :-1].flatten(), index[:, 1:].flatten()]),
            torch.stack([index[:-1].flatten(), index[1:].flatten()]),
        ],
        dim=1,
    )
    pairs = torch.cat([pairs, pairs.flip(0)], dim=1)
    degree = torch.bincount(pairs[0], minlength=nodes).float()
    loops = torch.arange(nodes).repeat(2, 1)
    indices = torch.cat([pairs, loops], dim=1)
    values = torch.cat([-torch.ones(pairs.shape[1]), degree])
    return torch.sparse_coo_tensor(indices, values, (nodes, nodes)).coalesce()


class HeatModel(nn.Module):
    def __init__(self, laplacian, steps, conductivity):
        super().__init__()
        self.laplacian = laplacian
        self.rows, self.columns = laplacian.indices()
        self.entries = laplacian.values()
        self.steps = steps
        self.log_conductivity = nn.Parameter(torch.tensor(conductivity).log())

    def apply_laplacian(self, u):
        return torch.sparse.mm(self.laplacian, u)

    def forward(self, u, observed=None):
        rate = torch.exp(self.log_conductivity)
        for _ in range(self.steps):
            u = u - rate * self.apply_laplacian(u)
        if observed is None:
            return u
        return u, nn.functional.mse_loss(u, observed, reduction="sum")


def main():
    args = SimpleNamespace(side=8, steps=5, true_conductivity=0.1)
    torch.manual_seed(0)
    laplacian = grid_laplacian(args.side)
    start = torch.zeros(args.side**2, 1)
    start[args.side**2 // 2 + args.side // 2] = 10.0
    observed = start
    for _ in range(args.steps):
        observed = observed - args.true_conductivity * laplacian.to_dense() @ observed

    model = HeatModel(laplacian, args.steps, conductivity=0.02)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    trainer = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    losses = [trainer(start, observed)[1].item() for _ in range(60)]
    estimate = model.log_conductivity.exp().item()
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.6f}, conductivity {estimate:.4f} (true {args.true_conductivity})")
    trainer.destroy()
    final = poptorch.inferenceModel(model)(start)
    assert abs(final.sum().item() - 10.0) < 1e-3
    assert losses[-1] < 0.01 * losses[0]
    assert abs(estimate - args.true_conductivity) < 0.01


if __name__ == "__main__":
    main()
