"""GraphSAGE on sampled neighbourhoods: the host samples fixed numbers of neighbours, batches never change shape."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn
from program_kit import accuracy

import poptorch

Graph = namedtuple("Graph", ["features", "labels", "neighbours"])
SampledBatch = namedtuple("SampledBatch", ["seeds", "first", "second"])


def make_graph(nodes=300, classes=4, features=8, degree=10, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, nodes)
    members = [np.flatnonzero(labels == c) for c in range(classes)]
    neighbours = np.stack(
        [
            np.where(
                generator.random(degree) < 0.85,
                generator.choice(members[label], degree),
                generator.integers(0, nodes, degree),
            )
            for label in labels
        ]
    )
    centres = generator.standard_normal((classes, features))
    x = centres[labels] + 1.5 * generator.standard_normal((nodes, features))
    return Graph(x.astype(np.float32), labels, neighbours)


class NeighbourSampler(torch.utils.data.Dataset):
    """Items are (features of seed, of its neighbours, of their neighbours), label."""

    def __init__(self, graph, nodes, fan_out):
        self.graph, self.nodes, self.fan_out = graph, nodes, fan_out

    def __len__(self):
        return len(self.nodes)

    def __getitem__(self, index):
        seed = self.nodes[index]
        first = np.random.choice(self.graph.neighbours[seed], self.fan_out[0], replace=False)
        second = np.stack([np.random.choice(self.graph.neighbours[n], self.fan_out[1]) for n in first])
        features = self.graph.features
        return SampledBatch(features[seed], features[first], features[second]), self.graph.labels[seed]


class MeanAggregator(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.others = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, neighbours):
        return self.own(x) + self.others(neighbours.mean(dim=-2))


class GraphSAGE(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.layer1, self.layer2 = MeanAggregator(features, hidden), MeanAggregator(hidden, classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, batch, labels=None):
        seeds = torch.relu(self.layer1(batch.seeds, batch.first))
        first = torch.relu(self.layer1(batch.first, batch.second))
        logits = self.layer2(nn.functional.normalize(seeds, dim=-1), nn.functional.normalize(first, dim=-1))
        if labels is None:
            return logits
        return logits, self.loss(logits, labels)


def main():
    args = SimpleNamespace(fan_out=[5, 4], batch_size=10, epochs=8)
    np.random.seed(0)
    torch.manual_seed(0)
    graph = make_graph()
    train_nodes, test_nodes = np.split(np.random.permutation(300), [240])

    opts = poptorch.Options()
    opts.deviceIterations(2)
    opts.Training.gradientAccumulation(2)
    opts.outputMode(poptorch.OutputMode.All)
    model = GraphSAGE(8, 16, 4)
    loader = poptorch.DataLoader(
        opts,
        NeighbourSampler(graph, train_nodes, args.fan_out),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
    )
    training_model = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.03))
    losses = []
    for epoch in range(args.epochs):
        for batch, labels in loader:
            assert isinstance(batch, SampledBatch)
            logits, loss = training_model(batch, labels)
            losses.append(loss.mean().item())
        print(f"epoch {epoch}: loss {losses[-1]:.3f}")
    assert logits.shape == (40, 4)
    assert loss.shape == (4,)
    training_model.detachFromDevice()

    test_options = poptorch.Options().deviceIterations(3)
    test_loader = poptorch.DataLoader(test_options, NeighbourSampler(graph, test_nodes, args.fan_out), batch_size=20)
    inference_model = poptorch.inferenceModel(model.eval(), test_options)
    ((batch, labels),) = list(test_loader)
    assert len(labels) == 60
    assert accuracy(inference_model(batch), labels) > 0.7


if __name__ == "__main__":
    main()
