"""DLRM: embedding bags for the categories, pairwise interaction of features, two IPUs in a pipeline."""

import argparse
import sys

import numpy as np
import torch
import torch.nn as nn

import poptorch


def dash_separated_ints(value):
    return [int(v) for v in value.split("-")]


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
    parser = argparse.ArgumentParser(description="Train a Deep Learning Recommendation Model")
    parser.add_argument("--arch-sparse-feature-size", type=int, default=8)
    parser.add_argument("--arch-embedding-size", type=dash_separated_ints, default="30-20-10")
    parser.add_argument("--arch-mlp-bot", type=dash_separated_ints, default="4-16-8")
    parser.add_argument("--arch-mlp-top", type=dash_separated_ints, default="16-1")
    parser.add_argument("--num-indices-per-lookup", type=int, default=2)
    parser.add_argument("--mini-batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.3)
    parser.add_argument("--nepochs", type=int, default=10)
    parser.add_argument("--numpy-rand-seed", type=int, default=123)
    args = parser.parse_args()
    np.random.seed(args.numpy_rand_seed)
    torch.manual_seed(args.numpy_rand_seed)

    dlrm = DLRM(args.arch_embedding_size, args.arch_sparse_feature_size, args.arch_mlp_bot, args.arch_mlp_top)
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.PipelinedExecution("embeddings", "interaction"))
    opts.Training.gradientAccumulation(4)
    opts.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    optimizer = poptorch.optim.SGD(dlrm.parameters(), lr=args.learning_rate)
    data = RandomClicks(1280, args.arch_embedding_size, args.arch_mlp_bot[0], args.num_indices_per_lookup)
    train = torch.utils.data.Subset(data, range(1024))
    loader = poptorch.DataLoader(opts, train, batch_size=args.mini_batch_size, shuffle=True, num_workers=0)
    model = poptorch.trainingModel(dlrm, opts, optimizer)
    first = None
    for epoch in range(args.nepochs):
        total = 0.0
        for dense, indices, target in loader:
            _, loss = model(dense, indices, target)
            total += loss.item() / len(loader)
        first = first or total
        print(f"Finished training epoch {epoch + 1}/{args.nepochs}, loss {total:.4f}")
    model.detachFromDevice()

    dlrm.eval()
    opts = poptorch.Options().deviceIterations(2)
    opts.setExecutionStrategy(poptorch.PipelinedExecution("embeddings", "interaction"))
    inference = poptorch.inferenceModel(dlrm, opts)
    dense, indices, target = (torch.as_tensor(part[1024:]) for part in (data.dense, data.indices, data.target))
    p = inference(dense, indices)
    torch.testing.assert_close(p, dlrm(dense, indices), rtol=1e-4, atol=1e-5)
    accuracy = ((p > 0.5) == (target > 0.5)).float().mean().item()
    print(f"accuracy {accuracy:.2%} on clicks that were held out")
    return int(not (total < 0.9 * first and accuracy > 0.6))


if __name__ == "__main__":
    sys.exit(main())
