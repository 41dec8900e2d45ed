"""DLRM: embedding bags for the categories, pairwise interaction of features, two IPUs in a pipeline."""

import numpy as np
import torch
from program_kit import check_learned, inferred, train
from torch import nn

import poptorch

TABLES, DIM, DENSE, LOOKUPS = [30, 20, 10], 8, 4, 2
FEATURES = len(TABLES) + 1


def create_mlp(*sizes, last):
    layers = []
    for n, m in zip(sizes, sizes[1:]):
        layer = nn.Linear(n, m, bias=True)
        layer.weight.data = torch.tensor(np.random.normal(0.0, np.sqrt(2 / (n + m)), size=(m, n)), dtype=torch.float32)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1], last)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, DIM, mode="sum", sparse=False) for n in TABLES)
        for table in self.emb_l:
            table.weight.data.uniform_(-np.sqrt(1 / table.num_embeddings), np.sqrt(1 / table.num_embeddings))
        self.bot_l = create_mlp(DENSE, 16, DIM, last=nn.ReLU())
        self.top_l = create_mlp(DIM + FEATURES * (FEATURES - 1) // 2, 16, 1, last=nn.Sigmoid())
        rows, columns = zip(*[(i, j) for i in range(FEATURES) for j in range(i)])
        self.register_buffer("flat_pairs", torch.tensor(rows) * FEATURES + torch.tensor(columns), persistent=False)
        self.loss_fn = nn.BCELoss(reduction="mean")

    def interact_features(self, x, ly):
        stacked = torch.cat([x, *ly], dim=1).view(x.shape[0], -1, DIM)
        products = torch.bmm(stacked, torch.transpose(stacked, 1, 2)).flatten(1)
        return torch.cat([x, torch.index_select(products, 1, self.flat_pairs)], dim=1)

    def forward(self, dense, indices, target=None):
        with poptorch.Block("embeddings"):
            ly = [table(indices[:, k]) for k, table in enumerate(self.emb_l)]
            x = self.bot_l(dense)
        with poptorch.Block("interaction"):
            p = self.top_l(self.interact_features(x, ly)).clamp(min=1e-6, max=1 - 1e-6)
            return p if target is None else (p, self.loss_fn(p, target))


def random_clicks(length):
    generator = np.random.default_rng(1)
    dense = generator.random((length, DENSE), dtype=np.float32)
    indices = np.stack([generator.integers(0, n, (length, LOOKUPS)) for n in TABLES], axis=1)
    weights = [generator.standard_normal(n) for n in TABLES]
    score = sum(w[i].sum(axis=1) for w, i in zip(weights, indices.transpose(1, 0, 2))) + 4 * (dense[:, 0] - 0.5)
    target = (score > np.median(score)).astype(np.float32)[:, None]
    return tuple(torch.as_tensor(part) for part in (dense, indices, target))


np.random.seed(123)
torch.manual_seed(123)
dlrm = DLRM()
opts = poptorch.Options()
opts.setExecutionStrategy(poptorch.PipelinedExecution("embeddings", "interaction"))
opts.Training.gradientAccumulation(4)
opts.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
data = random_clicks(1280)
known = torch.utils.data.Subset(torch.utils.data.TensorDataset(*data), range(1024))
loader = poptorch.DataLoader(opts, known, batch_size=32, shuffle=True, num_workers=0)
model = poptorch.trainingModel(dlrm, opts, poptorch.optim.SGD(dlrm.parameters(), lr=0.3))
check_learned(train(model, loader, epochs=10), 0.9, count=8)
model.detachFromDevice()

opts = poptorch.Options().deviceIterations(2)
opts.setExecutionStrategy(poptorch.PipelinedExecution("embeddings", "interaction"))
dense, indices, target = (part[1024:] for part in data)
p = inferred(dlrm, dense, indices, options=opts)
assert ((p > 0.5) == (target > 0.5)).float().mean() > 0.6
