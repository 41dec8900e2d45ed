"""Heat on a mesh: the graph Laplacian is a sparse constant, a conductivity is learned from an observation."""

import torch
from program_kit import check_learned
from torch import nn

import poptorch

SIDE, STEPS, CONDUCTIVITY = 8, 5, 0.1


def grid_laplacian():
    nodes = SIDE**2
    index = torch.arange(nodes).view(SIDE, SIDE)
    right = torch.stack([index[:, :-1].flatten(), index[:, 1:].flatten()])
    down = torch.stack([index[:-1].flatten(), index[1:].flatten()])
    pairs = torch.cat([right, down, right.flip(0), down.flip(0)], dim=1)
    degree = torch.bincount(pairs[0], minlength=nodes).float()
    indices = torch.cat([pairs, torch.arange(nodes).repeat(2, 1)], dim=1)
    return torch.sparse_coo_tensor(indices, torch.cat([-torch.ones(pairs.shape[1]), degree]), (nodes, nodes)).coalesce()


class HeatModel(nn.Module):
    def __init__(self, laplacian, conductivity):
        super().__init__()
        self.laplacian = laplacian
        self.rows, self.columns = laplacian.indices()
        self.entries = laplacian.values()
        self.log_conductivity = nn.Parameter(torch.tensor(conductivity).log())

    def forward(self, u, observed=None):
        rate = torch.exp(self.log_conductivity)
        for _ in range(STEPS):
            u = u - rate * torch.sparse.mm(self.laplacian, u)
        return u if observed is None else (u, nn.functional.mse_loss(u, observed, reduction="sum"))


laplacian = grid_laplacian()
start = torch.zeros(SIDE**2, 1)
start[SIDE**2 // 2 + SIDE // 2] = 10.0
observed = start
for _ in range(STEPS):
    observed = observed - CONDUCTIVITY * laplacian.to_dense() @ observed

model = HeatModel(laplacian, conductivity=0.02)
trainer = poptorch.trainingModel(model, poptorch.Options(), poptorch.optim.Adam(model.parameters(), lr=0.1))
check_learned([trainer(start, observed)[1].item() for _ in range(60)], 0.01)
assert abs(model.log_conductivity.exp().item() - CONDUCTIVITY) < 0.01
trainer.destroy()
assert abs(poptorch.inferenceModel(model)(start).sum() - 10.0) < 1e-3
