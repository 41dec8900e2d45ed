"""Graph attention with a softmax over the edges of each node, built from scatter_reduce and index_add."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

NODES, NEIGHBOURS, FEATURES, HEADS, HIDDEN = 40, 5, 6, 2, 8


def edge_softmax(scores, target, nodes):
    """Softmax over the incoming edges; the maximum of each node is subtracted for stability."""
    index = target.unsqueeze(-1).expand_as(scores)
    highest = torch.full((nodes, scores.shape[1]), -1e4).scatter_reduce(
        0, index, scores.detach(), reduce="amax", include_self=True
    )
    exponent = torch.exp(scores - torch.index_select(highest, 0, target))
    total = torch.zeros(nodes, scores.shape[1]).index_add_(0, target, exponent)
    return exponent / (torch.index_select(total, 0, target) + 1e-12)


class GATLayer(nn.Module):
    def __init__(self, inputs, outputs, heads, concat=True):
        super().__init__()
        self.heads, self.outputs, self.concat = heads, outputs, concat
        self.project = nn.Linear(inputs, heads * outputs, bias=False)
        self.attend_source = nn.Parameter(torch.empty(1, heads, outputs))
        self.attend_target = nn.Parameter(torch.empty(1, heads, outputs))
        nn.init.xavier_uniform_(self.attend_source)
        nn.init.xavier_uniform_(self.attend_target)

    def forward(self, x, source, target):
        nodes = x.shape[0]
        h = self.project(x).view(nodes, self.heads, self.outputs)
        from_source = (h * self.attend_source).sum(-1)
        from_target = (h * self.attend_target).sum(-1)
        scores = F.leaky_relu(from_source[source] + from_target[target], 0.2)
        attention = edge_softmax(scores, target, nodes)
        messages = h[source] * attention.unsqueeze(-1)
        out = torch.zeros(nodes, self.heads, self.outputs)
        out.index_add_(0, target, messages)
        return (out.flatten(1) if self.concat else out.mean(dim=1)), attention


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = GATLayer(FEATURES, HIDDEN, HEADS)
        self.layer2 = GATLayer(HEADS * HIDDEN, 1, HEADS, concat=False)

    def forward(self, x, source, target, y=None):
        x, attention = self.layer1(x, source, target)
        out, _ = self.layer2(F.elu(x), source, target)
        out = out.squeeze(-1)
        if y is None:
            return out, attention
        return out, F.mse_loss(out, y)


def make_graph():
    x = torch.randn(NODES, FEATURES)
    target = torch.arange(NODES).repeat_interleave(NEIGHBOURS)
    source = torch.randint(NODES, (NODES * NEIGHBOURS,))
    y = torch.zeros(NODES).index_add(0, target, x[source, 0]) / NEIGHBOURS
    return x, source, target, y


def main():
    torch.manual_seed(4)
    graph = make_graph()
    model = GAT()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.02)
    training_model = poptorch.trainingModel(model, optimizer=optimizer)
    losses = [training_model(*graph)[1].item() for _ in range(80)]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")

    inference_model = poptorch.inferenceModel(model.eval())
    out, attention = inference_model(*graph[:3])
    per_node = torch.zeros(NODES, HEADS).index_add_(0, graph[2], attention)
    torch.testing.assert_close(per_node, torch.ones(NODES, HEADS), rtol=1e-4, atol=1e-4)
    training_model.detachFromDevice()
    torch.testing.assert_close(out, model(*graph[:3])[0], rtol=1e-3, atol=1e-4)
    assert losses[-1] < 0.5 * losses[0]


if __name__ == "__main__":
    main()
