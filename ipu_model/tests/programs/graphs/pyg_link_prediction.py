# needs: torch_geometric
"""Link prediction with a graph auto-encoder: negative edges sampled on the host, GATConv encoder on the device."""

import torch
import torch.nn as nn
from torch_geometric.nn import GATConv, LayerNorm
from torch_geometric.utils import negative_sampling, to_undirected

import poptorch


class Encoder(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.conv1 = GATConv(inputs, hidden, heads=2, add_self_loops=False)
        self.norm = LayerNorm(2 * hidden, mode="node")
        self.conv2 = GATConv(2 * hidden, outputs, heads=1, concat=False, add_self_loops=False)

    def forward(self, x, edge_index):
        return self.conv2(self.norm(self.conv1(x, edge_index)).relu(), edge_index)


class LinkPredictor(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    @staticmethod
    def decode(z, edges):
        return (torch.index_select(z, 0, edges[0]) * torch.index_select(z, 0, edges[1])).sum(dim=-1)

    def forward(self, x, edge_index, positive, negative):
        z = self.encoder(x, edge_index)
        logits = torch.cat([self.decode(z, positive), self.decode(z, negative)])
        labels = torch.cat([torch.ones(positive.shape[1]), torch.zeros(negative.shape[1])])
        if not self.training:
            return torch.sigmoid(logits), labels
        return logits, nn.functional.binary_cross_entropy_with_logits(logits, labels)


def community_graph(nodes, communities):
    member = torch.arange(nodes) % communities
    source = torch.randint(nodes, (nodes * 5,))
    target = (source + communities * torch.randint(1, nodes // communities, source.shape)) % nodes
    edge_index = to_undirected(torch.stack([source, target]), num_nodes=nodes)
    x = torch.randn(communities, 8)[member] + 0.7 * torch.randn(nodes, 8)
    loops = torch.arange(nodes).repeat(2, 1)
    return x, edge_index, torch.cat([edge_index, loops], dim=1)


def auc(scores, labels):
    positive, negative = scores[labels == 1], scores[labels == 0]
    return (positive[:, None] > negative[None, :]).float().mean().item()


def main():
    torch.manual_seed(1)
    x, edge_index, with_loops = community_graph(48, 4)
    model = LinkPredictor(Encoder(8, 16, 8))
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    training_model = poptorch.trainingModel(model.train(), optimizer=optimizer)
    losses = []
    for epoch in range(60):
        negative = negative_sampling(edge_index, num_nodes=48, num_neg_samples=100, method="dense")
        positive = edge_index[:, torch.randperm(edge_index.shape[1])[:100]]
        _, loss = training_model(x, with_loops, positive, negative)
        losses.append(loss.item())
        if epoch % 20 == 19:
            print(f"epoch {epoch + 1}: {loss:.4f}")
    training_model.detachFromDevice()
    inference_model = poptorch.inferenceModel(model.eval())
    scores, labels = inference_model(x, with_loops, positive, negative)
    area = auc(scores, labels)
    print(f"area under the curve {area:.3f}")
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert area > 0.75


if __name__ == "__main__":
    main()
