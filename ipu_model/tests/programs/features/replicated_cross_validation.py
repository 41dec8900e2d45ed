"""k-fold cross-validation: a new model per fold, replicated training, replicated inference that returns all outputs."""

import statistics
from types import SimpleNamespace

import torch
from torch.utils.data import Subset, TensorDataset

import poptorch


class Classifier(torch.nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(features, 32), torch.nn.GroupNorm(4, 32), torch.nn.ELU(), torch.nn.Linear(32, classes)
        )

    def forward(self, x, y=None):
        logits = self.net(x)
        probabilities = torch.softmax(logits, dim=-1)
        if y is not None:
            return probabilities, torch.nn.functional.cross_entropy(logits, y)
        return probabilities


def k_fold(n, k, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    folds = order.chunk(k)
    for i in range(k):
        yield torch.cat([fold for j, fold in enumerate(folds) if j != i]).tolist(), folds[i].tolist()


def make_dataset(n=192, features=10, classes=4):
    g = torch.Generator().manual_seed(1)
    centres = torch.randn(classes, features, generator=g) * 1.5
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(centres[y] + torch.randn(n, features, generator=g), y)


def train_options(args):
    opts = poptorch.Options()
    opts.replicationFactor(args.replicas)
    opts.Training.gradientAccumulation(2)
    opts.outputMode(poptorch.OutputMode.Sum)
    return opts


def inference_options(args):
    opts = poptorch.Options()
    opts.replicationFactor(args.replicas)
    opts.deviceIterations(3)
    opts.outputMode(poptorch.OutputMode.All)
    return opts


def run_fold(args, dataset, train_indices, test_indices):
    model = Classifier(10, 4)
    train_opts, test_opts = train_options(args), inference_options(args)
    train_loader = poptorch.DataLoader(train_opts, Subset(dataset, train_indices), batch_size=4, shuffle=True)
    # A fold has 48 samples, one call of three iterations on four replicas.
    test_loader = poptorch.DataLoader(test_opts, Subset(dataset, test_indices), batch_size=4)

    model.train()
    training = poptorch.trainingModel(model, train_opts, poptorch.optim.AdamW(model.parameters(), lr=0.02))
    for _ in range(args.epochs):
        for x, y in train_loader:
            _, loss = training(x, y)
            assert loss.numel() == args.replicas
    training.destroy()

    model.eval()
    inference = poptorch.inferenceModel(model, test_opts)
    outputs, labels = [], []
    for x, y in test_loader:
        outputs.append(inference(x))
        labels.append(y)
    inference.destroy()
    outputs, labels = torch.cat(outputs), torch.cat(labels)
    assert len(outputs) == len(labels) == len(test_indices), (outputs.shape, labels.shape)
    torch.testing.assert_close(outputs.sum(-1), torch.ones(len(outputs)), rtol=0, atol=1e-5)
    return (outputs.argmax(1) == labels).float().mean().item()


def main():
    args = SimpleNamespace(k=4, epochs=5, replicas=4)
    torch.manual_seed(0)
    dataset = make_dataset()
    scores = []
    for number, (train, test) in enumerate(k_fold(len(dataset), args.k, 0)):
        scores.append(run_fold(args, dataset, train, test))
        print(f"fold {number}: {scores[-1]:.3f}")
    print(f"mean {statistics.mean(scores):.3f} +- {statistics.stdev(scores):.3f}")
    assert statistics.mean(scores) > 0.85


if __name__ == "__main__":
    main()
