# needs: torch_geometric
"""The classic two-layer PyG model on one graph; self loops are added by a transform before the device sees them."""

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv

import poptorch

NODES, CLASSES = 90, 3


def make_data():
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(NODES) % CLASSES
    source = torch.randint(NODES, (NODES * 6,), generator=generator)
    jump = CLASSES * torch.randint(1, NODES // CLASSES, (NODES * 6,), generator=generator)
    target = (source + jump) % NODES
    noise = torch.randint(NODES, (2, NODES), generator=generator)
    edge_index = torch.cat([torch.stack([source, target]), noise], dim=1)
    x = F.one_hot(y, 8).float() + torch.randn(NODES, 8, generator=generator)
    data = Data(x=x, y=y, edge_index=edge_index, train_mask=torch.arange(NODES) < 45)
    return T.Compose([T.ToUndirected(), T.AddSelfLoops(), T.NormalizeFeatures()])(data)


class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        if kind == "gcn":
            self.conv1 = GCNConv(8, 16, add_self_loops=False)
            self.conv2 = GCNConv(16, CLASSES, add_self_loops=False)
        else:
            self.conv1, self.conv2 = SAGEConv(8, 16), SAGEConv(16, CLASSES)

    def forward(self, x, edge_index, y=None, train_mask=None):
        x = self.conv1(x, edge_index).relu()
        x = F.dropout(x, p=0.3, training=self.training)
        x = F.log_softmax(self.conv2(x, edge_index), dim=1)
        if self.training:
            y = torch.where(train_mask, y, -100)
            return x, F.nll_loss(x, y)
        return x


def run(kind, data):
    model = Net(kind)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)
    training_model = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    for epoch in range(60):
        _, loss = training_model(data.x, data.edge_index, data.y, data.train_mask)
        if epoch == 0:
            first = loss.item()
    training_model.detachFromDevice()
    model.eval()
    inference_model = poptorch.inferenceModel(model)
    out = inference_model(data.x, data.edge_index)
    torch.testing.assert_close(out, model(data.x, data.edge_index), rtol=1e-3, atol=1e-3)
    accuracy = (out.argmax(dim=1) == data.y)[~data.train_mask].float().mean().item()
    print(f"{kind}: loss {first:.3f} -> {loss.item():.3f}, accuracy {accuracy:.2%}")
    return first, loss.item(), accuracy


def main():
    torch.manual_seed(12345)
    data = make_data()
    for kind in ("gcn", "sage"):
        first, last, accuracy = run(kind, data)
        assert last < 0.6 * first
        assert accuracy > 0.7


if __name__ == "__main__":
    main()
