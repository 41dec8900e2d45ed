"""Pass structures of one's own to a model: a registered parser for a graph batch, and nested standard containers."""

import collections
from typing import Dict, List, NamedTuple, Tuple

import torch
from program_kit import check_learned

import poptorch


class GraphBatch:
    """Nodes and a dense adjacency matrix, with a name that is no tensor."""

    def __init__(self, nodes, adjacency, name):
        self.nodes, self.adjacency, self.name = nodes, adjacency, name


class GraphBatchParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.nodes
        yield struct.adjacency

    def reconstruct(self, original_structure, tensor_iterator):
        return GraphBatch(next(tensor_iterator), next(tensor_iterator), original_structure.name)


poptorch.registerCustomArgParser(GraphBatch, GraphBatchParser())


class Targets(NamedTuple):
    value: torch.Tensor
    weight: torch.Tensor


class GraphModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2 = torch.nn.Linear(4, 16), torch.nn.Linear(16, 1)

    def forward(self, graph: GraphBatch, targets: Targets, scales: List[torch.Tensor], extra=None):
        assert graph.name == "molecules"
        x = torch.relu(self.linear1(graph.adjacency @ graph.nodes))
        out = self.linear2(graph.adjacency @ x).sum(1).squeeze(-1) * scales[0] + scales[1]
        loss = (targets.weight * (out - targets.value) ** 2).mean()
        if extra is not None:
            loss = loss + 0.0 * extra["penalty"].sum()
        return {"out": out, "graph": GraphBatch(x, graph.adjacency, graph.name)}, poptorch.identity_loss(loss, "none")


class Containers(torch.nn.Module):
    def forward(self, pair: Tuple[torch.Tensor, torch.Tensor], table: Dict[str, torch.Tensor], flag: bool = True):
        a, b = pair
        total = sum(table.values())
        ordered = collections.OrderedDict((name, value + a) for name, value in table.items())
        return (a + b, [total, (a,)], ordered) if flag else a


torch.manual_seed(0)
model = GraphModel()
opts = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.01))
losses = []
for _ in range(30):
    graph = GraphBatch(torch.randn(16, 6, 4), torch.softmax(torch.randn(16, 6, 6), -1), "molecules")
    targets = Targets(graph.nodes.sum((1, 2)), torch.ones(16))
    scales = [torch.full((16,), 0.5), torch.zeros(16)]
    outputs, loss = training(graph, targets, scales, extra={"penalty": torch.ones(16)})
    losses.append(loss.mean().item())
assert outputs["out"].shape == (16,)
assert isinstance(outputs["graph"], GraphBatch) and outputs["graph"].nodes.shape == (16, 6, 16)
check_learned(losses, 0.6)

infer = poptorch.inferenceModel(Containers())
a, b = torch.arange(3.0), torch.ones(3)
first, (total, (copy,)), ordered = infer((a, b), {"x": a, "y": b})
assert first.tolist() == [1, 2, 3] and total.tolist() == [1, 2, 3] and copy.tolist() == [0, 1, 2]
assert list(ordered) == ["x", "y"] and ordered["y"].tolist() == [1, 2, 3]
