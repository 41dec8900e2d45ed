# needs: torch_geometric
"""Energies of small clusters with a SchNet made from PyG's interaction blocks; edges within the cutoff are padded."""

import math

import torch
import torch.nn as nn
from torch_geometric.nn import global_add_pool
from torch_geometric.nn.models.schnet import GaussianSmearing, InteractionBlock, ShiftedSoftplus

import poptorch

ATOMS, MOLECULES, CUTOFF, HIDDEN = 5, 8, 4.0, 24
EDGES = MOLECULES * ATOMS * (ATOMS - 1)


class SchNetModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, HIDDEN, padding_idx=0)
        self.smearing = GaussianSmearing(0.0, CUTOFF, 16)
        self.interactions = nn.ModuleList(InteractionBlock(HIDDEN, 16, HIDDEN, CUTOFF) for _ in range(2))
        self.lin1, self.act, self.lin2 = nn.Linear(HIDDEN, HIDDEN // 2), ShiftedSoftplus(), nn.Linear(HIDDEN // 2, 1)

    def forward(self, z, edge_weight, edge_index, batch, energy=None):
        h = self.embedding(z)
        edge_attr = self.smearing(edge_weight)
        for interaction in self.interactions:
            h = h + interaction(h, edge_index, edge_weight, edge_attr)
        h = self.lin2(self.act(self.lin1(h)))
        out = global_add_pool(h, batch, size=MOLECULES).view(-1)
        if energy is None:
            return out
        return out, nn.functional.mse_loss(out, energy)


class Clusters(torch.utils.data.Dataset):
    """Random positions; the energy is a sum of Morse-like pair potentials. One item is a batch of molecules."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        z = torch.randint(1, 4, (MOLECULES, ATOMS), generator=generator)
        positions = 1.5 * torch.randn(MOLECULES, ATOMS, 3, generator=generator)
        distance = torch.cdist(positions, positions)
        off = ~torch.eye(ATOMS, dtype=torch.bool)
        pairs = (1 - torch.exp(-(distance - 1.5))).clamp(-1, 1).square() - 1
        envelope = 0.5 * (torch.cos(distance.clamp(max=CUTOFF) * math.pi / CUTOFF) + 1)
        energy = 0.5 * (pairs * envelope * off).sum(dim=(1, 2))
        local = off.nonzero().t()
        edge_index = torch.cat([local + ATOMS * m for m in range(MOLECULES)], dim=1)
        weights = torch.cat([distance[m][off] for m in range(MOLECULES)]).clamp(max=CUTOFF)
        return z.flatten(), weights, edge_index, torch.arange(MOLECULES).repeat_interleave(ATOMS), energy


def main():
    torch.manual_seed(0)
    model = SchNetModel()
    opts = poptorch.Options().modelName("schnet")
    loader = torch.utils.data.DataLoader(Clusters(), batch_size=None, shuffle=True)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=5e-3)
    training_model = poptorch.trainingModel(model, opts, optimizer)
    losses = []
    for epoch in range(8):
        epoch_loss = [training_model(*batch)[1].item() for batch in loader]
        losses.append(sum(epoch_loss) / len(epoch_loss))
        print(f"epoch {epoch}: {losses[-1]:.4f}")
    z, weights, edge_index, batch, _ = Clusters()[0]
    assert edge_index.shape == (2, EDGES)
    training_model.detachFromDevice()
    inference_model = poptorch.inferenceModel(model.eval())
    predicted = inference_model(z, weights, edge_index, batch)
    torch.testing.assert_close(predicted, model(z, weights, edge_index, batch), rtol=1e-3, atol=1e-3)
    assert losses[-1] < 0.6 * losses[0]


if __name__ == "__main__":
    main()
