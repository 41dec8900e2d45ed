"""Full-batch node classification: a two-layer GCN written with gather and scatter_add, masks for the splits."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch


def stochastic_block_model(nodes, classes, features, inside, between, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(nodes) % classes
    same = labels[:, None] == labels[None, :]
    probability = torch.where(same, torch.tensor(inside), torch.tensor(between))
    upper = torch.triu(torch.rand(nodes, nodes, generator=generator) < probability, diagonal=1)
    edge_index = torch.cat([upper.nonzero().t(), upper.nonzero().t().flip(0)], dim=1)
    x = F.one_hot(labels, features).float() + 1.5 * torch.randn(nodes, features, generator=generator)
    order = torch.randperm(nodes, generator=generator)
    train_mask, test_mask = torch.zeros(nodes, dtype=torch.bool), torch.zeros(nodes, dtype=torch.bool)
    train_mask[order[: nodes // 3]] = True
    test_mask[order[nodes // 3 :]] = True
    return x, edge_index, labels, train_mask, test_mask


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x, edge_index, edge_weight):
        x = self.linear(x)
        source, target = edge_index
        messages = x[source] * edge_weight.view(-1, 1)
        out = torch.zeros_like(x)
        out = out.scatter_add(0, target.view(-1, 1).expand_as(messages), messages)
        return out + self.bias


class GCN(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.conv1, self.conv2 = GraphConvolution(features, hidden), GraphConvolution(hidden, classes)

    @staticmethod
    def normalise(edge_index, nodes):
        loops = torch.arange(nodes)
        edge_index = torch.cat([edge_index, torch.stack([loops, loops])], dim=1)
        degree = torch.zeros(nodes).index_add(0, edge_index[1], torch.ones(edge_index.shape[1]))
        inverse = degree.pow(-0.5)
        return edge_index, inverse[edge_index[0]] * inverse[edge_index[1]]

    def forward(self, x, edge_index, y=None, train_mask=None):
        edge_index, weight = self.normalise(edge_index, x.shape[0])
        x = F.dropout(x, p=0.2, training=self.training)
        x = self.conv1(x, edge_index, weight).relu()
        out = F.log_softmax(self.conv2(x, edge_index, weight), dim=1)
        if self.training:
            # Boolean indexing gives shapes that are not known before the run: mask the labels instead.
            y = torch.where(train_mask, y, torch.full_like(y, -100))
            return out, F.nll_loss(out, y, ignore_index=-100)
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=120)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    x, edge_index, y, train_mask, test_mask = stochastic_block_model(args.nodes, 3, 8, 0.12, 0.01, seed=0)
    model = GCN(8, args.hidden, 3)
    optimizer = poptorch.optim.Adam(
        [
            {"params": model.conv1.parameters(), "weight_decay": 5e-4},
            {"params": model.conv2.parameters(), "weight_decay": 0.0},
        ],
        lr=0.02,
    )
    training_model = poptorch.trainingModel(model.train(), poptorch.Options(), optimizer)
    losses = []
    for epoch in range(args.epochs):
        _, loss = training_model(x, edge_index, y, train_mask)
        losses.append(loss.item())
        if epoch % 20 == 0:
            print(f"epoch {epoch}: {loss:.4f}")
    training_model.detachFromDevice()

    model.eval()
    inference_model = poptorch.inferenceModel(model)
    out = inference_model(x, edge_index)
    torch.testing.assert_close(out, model(x, edge_index), rtol=1e-3, atol=1e-4)
    accuracy = (out.argmax(dim=1) == y)[test_mask].float().mean().item()
    print(f"test accuracy {accuracy:.2%}")
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy > 0.75


if __name__ == "__main__":
    main()
