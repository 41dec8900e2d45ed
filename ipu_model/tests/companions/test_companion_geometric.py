"""PyTorch Geometric's layers and graphs, as programs written for poptorch_geometric use them.

poptorch_geometric itself is not on PyPI. It makes batches of a fixed size, by padding with one more graph, gives them
to `poptorch.DataLoader` as ready-made batches, and registers the parsers of graphs; the names it takes from PopTorch
are tested in test_private_names.py. Layers that change the edges (self-loops, say) or count graphs have shapes that
depend on data: on an IPU this is done while the data are prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from companion_packages import Computes, need, seeded
from torch import Tensor, nn

import poptorch

need("torch_geometric")

from torch_geometric import nn as layers  # noqa: E402
from torch_geometric.data import Batch, Data, HeteroData  # noqa: E402
from torch_geometric.nn.models.schnet import InteractionBlock  # noqa: E402

poptorch.registerGeometricCustomArgParsers()

NODES, EDGES, FEATURES, GRAPHS = 12, 30, 8, 3
torch.manual_seed(2)
X = torch.randn(NODES, FEATURES)
EDGE_INDEX = torch.randint(0, NODES, (2, EDGES))
EDGE_FEATURES = torch.randn(EDGES, 4)
GRAPH_OF_NODE = torch.arange(GRAPHS).repeat_interleave(NODES // GRAPHS)

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GCNConv": lambda: layers.GCNConv(FEATURES, 6, add_self_loops=False),
    "SAGEConv": lambda: layers.SAGEConv(FEATURES, 6),
    "SAGEConv, maximum": lambda: layers.SAGEConv(FEATURES, 6, aggr="max"),
    "GINConv": lambda: layers.GINConv(nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, 6))),
    "GATConv": lambda: layers.GATConv(FEATURES, 6, heads=2, add_self_loops=False),
    "GATv2Conv": lambda: layers.GATv2Conv(FEATURES, 6, add_self_loops=False),
    "TransformerConv": lambda: layers.TransformerConv(FEATURES, 6, heads=2),
    "GraphConv": lambda: layers.GraphConv(FEATURES, 6),
    "TAGConv": lambda: layers.TAGConv(FEATURES, 6),
    "EdgeConv": lambda: layers.EdgeConv(nn.Linear(2 * FEATURES, 6)),
    "ResGatedGraphConv": lambda: layers.ResGatedGraphConv(FEATURES, 6),
    "GatedGraphConv": lambda: layers.GatedGraphConv(FEATURES, 2),
    "GENConv": lambda: layers.GENConv(FEATURES, 6),
    "PNAConv": lambda: layers.PNAConv(
        FEATURES, 6, ["mean", "max", "sum", "std"], ["identity", "amplification"], torch.tensor([1, 2, 3, 4])
    ),
    "GraphSAGE": lambda: layers.GraphSAGE(FEATURES, 16, 2, 3),
    "GIN": lambda: layers.GIN(FEATURES, 16, 2, 3, norm="batch"),
}


def assert_same_results(model: nn.Module, *inputs: Any) -> None:
    with torch.no_grad():
        expected = model.eval()(*inputs)
    torch.testing.assert_close(poptorch.inferenceModel(model)(*inputs), expected)


def mean_square(layer: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    return poptorch.identity_loss(layer(x, edge_index).square().mean(), "none")


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_and_trains_as_it_does_without_poptorch(name: str) -> None:
    assert_same_results(seeded(LAYERS[name]), X, EDGE_INDEX)
    model, plain = (Computes(mean_square, seeded(LAYERS[name])).train() for _ in range(2))
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.01)
    for _ in range(2):
        training(X, EDGE_INDEX)
        optimiser.zero_grad()
        plain(X, EDGE_INDEX).backward()
        optimiser.step()
    for value, expected in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(value, expected)


def on_edges_in_a_buffer(layer: nn.Module) -> nn.Module:
    model = Computes(lambda layer, x: layer(x, layer.constant_edges), layer)
    layer.register_buffer("constant_edges", EDGE_INDEX)
    return model


def pooling(name: str) -> nn.Module:
    return Computes(lambda _, x, batch: getattr(layers, name)(x, batch, GRAPHS))


POOLS = ("global_add_pool", "global_mean_pool", "global_max_pool")
WITH_EDGES = (X, EDGE_INDEX, EDGE_FEATURES)
MEETING = HeteroData()
MEETING["author"].x, MEETING["paper"].x = torch.randn(5, FEATURES), torch.randn(7, 4)
MEETING["author", "wrote", "paper"].edge_index = torch.stack([torch.randint(0, 5, (9,)), torch.randint(0, 7, (9,))])
COMPUTED: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    **{f"{name} of a known number of graphs": (pooling(name), (X, GRAPH_OF_NODE)) for name in POOLS},
    "features of edges, GINEConv": (layers.GINEConv(nn.Linear(FEATURES, 6), edge_dim=4), WITH_EDGES),
    "features of edges, NNConv": (layers.NNConv(FEATURES, 6, nn.Linear(4, FEATURES * 6)), WITH_EDGES),
    "features of edges, SchNet's": (
        InteractionBlock(FEATURES, 4, FEATURES, 4.0),
        (X, EDGE_INDEX, EDGE_FEATURES[:, 0].abs(), EDGE_FEATURES),
    ),
    "constant edges that a layer changes, GCN": (on_edges_in_a_buffer(layers.GCNConv(FEATURES, 6)), (X,)),
    "constant edges that a layer changes, Cheb": (on_edges_in_a_buffer(layers.ChebConv(FEATURES, 6, 2)), (X,)),
    "a graph of several kinds": (
        Computes(
            lambda layer, data: layer((data["author"].x, data["paper"].x), data["author", "wrote", "paper"].edge_index),
            layers.SAGEConv((FEATURES, 4), 6),
        ),
        (MEETING,),
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_results_are_those_without_poptorch(name: str) -> None:
    model, inputs = COMPUTED[name]
    assert_same_results(model, *inputs)


@pytest.mark.parametrize("layer", [layers.GCNConv(FEATURES, 6), layers.GATConv(FEATURES, 6)], ids=["GCN", "GAT"])
def test_added_self_loops_are_refused_as_every_shape_that_depends_on_data(layer: nn.Module) -> None:
    with pytest.raises(poptorch.Error, match="The shape of a result depends on data"):
        poptorch.inferenceModel(layer.eval())(X, EDGE_INDEX)


class Classifier(nn.Module):
    """Two GCN layers, the mean of each graph's nodes, and a class for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (layers.GCNConv(n, 16, add_self_loops=False) for n in (FEATURES, 16))
        self.out = nn.Linear(16, 2)

    def forward(self, data: Batch) -> Any:
        hidden = self.first(data.x, data.edge_index).relu()
        hidden = self.second(hidden, data.edge_index).relu()
        classes = self.out(layers.global_mean_pool(hidden, data.batch, size=4))
        # The last graph is padding.
        return (classes, nn.functional.cross_entropy(classes[:-1], data.y[:-1])) if self.training else classes


def graph(index: int) -> Data:
    """Return a graph; graphs are of different sizes, and the mean of the features gives the class away."""
    draw, nodes = torch.Generator().manual_seed(index), 4 + index % 3
    features = torch.randn(nodes, FEATURES, generator=draw) + index % 2
    edges = torch.randint(0, nodes, (2, 8), generator=draw)
    return Data(x=features, edge_index=edges, y=torch.tensor([index % 2]))


def fixed_size(batch: list[Data], nodes: int = 24, edges: int = 40) -> Batch:
    """Return a batch of this size, with one more graph of the missing nodes and edges."""
    padding = Data(
        x=torch.zeros(nodes - sum(data.num_nodes for data in batch), FEATURES),
        edge_index=torch.zeros(2, edges - sum(data.num_edges for data in batch), dtype=torch.long),
        y=torch.tensor([0]),
    )
    return Batch.from_data_list([*batch, padding])


def loader(options: poptorch.Options, **more: Any) -> poptorch.DataLoader:
    """Return a loader as poptorch_geometric makes it: of ready-made batches, joined to those of a call."""
    batches = [list(range(first, first + 3)) for first in range(0, 36, 3)]
    graphs: Any = [graph(index) for index in range(36)]
    return poptorch.DataLoader(options, graphs, batch_sampler=batches, collate_fn=fixed_size, **more)


@pytest.mark.parametrize("workers", [0, 2])
def test_graphs_are_trained_on_in_batches_of_a_fixed_size(workers: int) -> None:
    torch.manual_seed(0)
    options = poptorch.Options().deviceIterations(2)
    model = Classifier().train()
    training = poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=0.02))
    losses = [float(training(batch)[1].mean()) for _ in range(8) for batch in loader(options, num_workers=workers)]
    assert losses[-1] < 0.25 * losses[0]


def test_a_batch_of_graphs_is_an_argument_and_those_of_a_call_are_joined_attribute_by_attribute() -> None:
    first, second = fixed_size([graph(i) for i in range(3)]), fixed_size([graph(i) for i in range(3, 6)])
    assert_same_results(Classifier(), first)
    joined = next(iter(loader(poptorch.Options().deviceIterations(2))))
    for name in ("x", "edge_index", "y", "batch"):
        assert torch.equal(joined[name], torch.cat([first[name], second[name]]))
