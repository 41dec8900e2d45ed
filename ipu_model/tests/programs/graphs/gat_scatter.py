"""Graph attention with a softmax over the edges of each node, built from scatter_reduce and scatter_add."""

import torch
from program_kit import check_close, check_learned, inferred
from torch import nn

import poptorch

NODES, NEIGHBOURS, FEATURES, HEADS, HIDDEN = 40, 5, 6, 2, 8


def edge_softmax(scores, target, nodes):
    """Softmax over the incoming edges; the maximum of each node is subtracted for stability."""
    index = target.unsqueeze(-1).expand_as(scores)
    highest = torch.full((nodes, scores.shape[1]), -1e4).scatter_reduce(
        0, index, scores.detach(), reduce="amax", include_self=True
    )
    exponent = torch.exp(scores - torch.index_select(highest, 0, target))
    total = torch.zeros(nodes, scores.shape[1]).scatter_add_(0, index, exponent)
    return exponent / (torch.index_select(total, 0, target) + 1e-12)


class GATLayer(nn.Module):
    def __init__(self, inputs, outputs, concat=True):
        super().__init__()
        self.outputs, self.concat = outputs, concat
        self.project = nn.Linear(inputs, HEADS * outputs, bias=False)
        self.attend_source = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, HEADS, outputs)))
        self.attend_target = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, HEADS, outputs)))

    def forward(self, x, source, target):
        nodes = x.shape[0]
        h = self.project(x).view(nodes, HEADS, self.outputs)
        from_source, from_target = (h * self.attend_source).sum(-1), (h * self.attend_target).sum(-1)
        scores = nn.functional.leaky_relu(from_source[source] + from_target[target], 0.2)
        attention = edge_softmax(scores, target, nodes)
        out = torch.zeros(nodes, HEADS, self.outputs)
        messages = h[source] * attention.unsqueeze(-1)
        out.scatter_add_(0, target.view(-1, 1, 1).expand_as(messages), messages)
        return (out.flatten(1) if self.concat else out.mean(dim=1)), attention


class GAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = GATLayer(FEATURES, HIDDEN), GATLayer(HEADS * HIDDEN, 1, concat=False)

    def forward(self, x, source, target, y=None):
        x, attention = self.layer1(x, source, target)
        out = self.layer2(nn.functional.elu(x), source, target)[0].squeeze(-1)
        return (out, attention) if y is None else (out, nn.functional.mse_loss(out, y))


torch.manual_seed(4)
x = torch.randn(NODES, FEATURES)
target = torch.arange(NODES).repeat_interleave(NEIGHBOURS)
source = torch.randint(NODES, (NODES * NEIGHBOURS,))
y = torch.zeros(NODES).index_add(0, target, x[source, 0]) / NEIGHBOURS
model = GAT()
training_model = poptorch.trainingModel(model, optimizer=poptorch.optim.AdamW(model.parameters(), lr=0.02))
check_learned([training_model(x, source, target, y)[1].item() for _ in range(80)], 0.5)

training_model.detachFromDevice()
_, attention = inferred(model, x, source, target, tolerance=1e-3)
check_close(torch.zeros(NODES, HEADS).index_add_(0, target, attention), torch.ones(NODES, HEADS))
