"""Facts of a graph are found once, and forgotten with it."""

from __future__ import annotations

import gc

import torch
from cost_support import Trained
from torch import nn
from tracing_support import traced

from ipu_model.graph import Graph
from ipu_model.per_graph import per_graph


def small() -> Graph:
    return traced(Trained(nn.Linear(2, 2)), torch.zeros(1, 2))


def test_each_graph_is_asked_once() -> None:
    asked: list[Graph] = []
    find = per_graph(lambda graph: asked.append(graph) or len(asked))
    one, other = small(), small()
    assert [find(one), find(other), find(one), find(other)] == [1, 2, 1, 2]
    assert asked == [one, other]


def test_a_graph_that_is_gone_leaves_nothing_behind() -> None:
    class Found:
        alive = 0

        def __init__(self) -> None:
            Found.alive += 1

        def __del__(self) -> None:
            Found.alive -= 1

    find = per_graph(lambda graph: Found())
    graph = small()
    find(graph)
    assert Found.alive == 1
    del graph
    gc.collect()
    assert Found.alive == 0
