"""DLRM: embedding bags for the categories, pairwise interaction of features, two IPUs in a pipeline."""

import numpy as np
import torch
import torch.nn as nn
from program_kit import train

import poptorch


def create_mlp(sizes, sigmoid_layer):
    layers = nn.ModuleList()
    for i in range(len(sizes) - 1):
        layer = nn.Linear(sizes[i], sizes[i + 1], bias=True)
        deviation = np.sqrt(2 / (sizes[i] + sizes[i + 1]))
        layer.weight.data = torch.tensor(
            np.random.normal(0.0, deviation, size=(sizes[i + 1], sizes[i])), dtype=torch.float32
        )
        layers.append(layer)
        layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    def __init__(self, table_sizes, dim, bottom, top):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, dim, mode="sum", sparse=False) for n in table_sizes)
        for table in self.emb_l:
            table.weight.data.uniform_(-np.sqrt(1 / table.num_embeddings), np.sqrt(1 / table.num_embeddings))
        self.bot_l = create_mlp(bottom, sigmoid_layer=-1)
        features = len(table_sizes) + 1
        self.top_l = create_mlp([dim + features * (features - 1) // 2, *top], sigmoid_layer=len(top) - 1)
        rows, columns = zip(*[(i, j) for i in range(features) for j in range(i)])
        self.register_buffer("flat_pairs", torch.tensor(rows) * features + torch.tensor(columns), persistent=False)
        self.loss_fn = nn.BCELoss(reduction="mean")

    def interact_features(self, x, ly):
        batch, dim = x.shape
        stacked = torch.cat([x, *ly], dim=1).view(batch, -1, dim)
        products = torch.bmm(stacked, torch.transpose(stacked, 1, 2)).flatten(1)
        return torch.cat([x, torch.index_select(products, 1, self.flat_pairs)], dim=1)

    def forward(self, dense, indices, target=None):
        with poptorch.Block("embeddings"):
            ly = [table(indices[:, k]) for k, table in enumerate(self.emb_l)]
            x = self.bot_l(dense)
        with poptorch.Block("interaction"):
            z = self.interact_features(x, ly)
            p = self.top_l(z).clamp(min=1e-6, max=1 - 1e-6)
            if target is None:
                return p
            return p, self.loss_fn(p, target)


class RandomClicks(torch.utils.data.Dataset):
    def __init__(self, length, table_sizes, dense, lookups):
        generator = np.random.default_rng(1)
        self.dense = generator.random((length, dense), dtype=np.float32)
        self.indices = np.stack([generator.integers(0, n, (length, lookups)) for n in table_sizes], axis=1)
        weights = [generator.standard_normal(n) for n in table_sizes]
        score = sum(w[i].sum(axis=1) for w, i in zip(weights, self.indices.transpose(1, 0, 2)))
        score = score + 4 * (self.dense[:, 0] - 0.5)
        self.target = (score > np.median(score)).astype(np.float32)[:, None]

    def __len__(self):
        return len(self.dense)

    def __getitem__(self, i):
        return self.dense[i], self.indices[i], self.target[i]


def main():
    np.random.seed(123)
    torch.manual_seed(123)
    table_sizes = [30, 20, 10]
    dlrm = DLRM(table_sizes, dim=8, bottom=[4, 16, 8], top=[16, 1])
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.PipelinedExecution("embeddings", "interaction"))
    opts.Training.gradientAccumulation(4)
    opts.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    optimizer = poptorch.optim.SGD(dlrm.parameters(), lr=0.3)
    data = RandomClicks(1280, table_sizes, dense=4, lookups=2)
    known = torch.utils.data.Subset(data, range(1024))
    loader = poptorch.DataLoader(opts, known, batch_size=32, shuffle=True, num_workers=0)
    model = poptorch.trainingModel(dlrm, opts, optimizer)
    losses = train(model, loader, epochs=10)
    model.detachFromDevice()

    dlrm.eval()
    opts = poptorch.Options().deviceIterations(2)
    opts.setExecutionStrategy(poptorch.PipelinedExecution("embeddings", "interaction"))
    inference = poptorch.inferenceModel(dlrm, opts)
    dense, indices, target = (torch.as_tensor(part[1024:]) for part in (data.dense, data.indices, data.target))
    p = inference(dense, indices)
    torch.testing.assert_close(p, dlrm(dense, indices), rtol=1e-4, atol=1e-5)
    right = ((p > 0.5) == (target > 0.5)).float().mean().item()
    print(f"accuracy {right:.2%} on clicks that were held out")
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    assert right > 0.6


if __name__ == "__main__":
    main()
