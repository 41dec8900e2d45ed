"""Values known while a graph is recorded: of constants alone, as they are at that point."""

from __future__ import annotations

import torch
import torch.fx
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ipu_model.capture.known_values import is_data_dependent, is_mask, known_values, places
from ipu_model.graph import TensorSpec

aten = torch.ops.aten


def graph_of(start: Tensor) -> tuple[torch.fx.Graph, torch.fx.Node, torch.fx.Node, dict[str, Tensor]]:
    """A graph with one input and one constant."""
    graph = torch.fx.Graph()
    data, constant = graph.placeholder("data"), graph.get_attr("constant")
    for node in (data, constant):
        node.meta["spec"] = TensorSpec.of(start)
    return graph, data, constant, {"constant": start}


def values(wanted: torch.fx.Node, constants: dict[str, Tensor], changeable: frozenset[str] = frozenset()) -> object:
    found = known_values([wanted], constants, changeable)
    return None if found is None else found[0].tolist()


def test_what_comes_of_constants_is_known_and_what_comes_of_data_is_not() -> None:
    graph, data, constant, constants = graph_of(torch.tensor([1.0, 2.0]))
    doubled = graph.call_function(aten.mul.Tensor, (constant, 2))
    mixed = graph.call_function(aten.add.Tensor, (doubled, data))
    assert values(doubled, constants) == [2.0, 4.0]
    assert values(mixed, constants) is None


def test_random_numbers_are_not_known() -> None:
    graph, _, constant, constants = graph_of(torch.ones(2))
    drawn = graph.call_function(aten.rand_like.default, (constant,))
    assert values(drawn, constants) is None


def test_what_only_has_the_shape_of_data_is_known() -> None:
    graph, data, _, constants = graph_of(torch.zeros(3))
    assert values(graph.call_function(aten.ones_like.default, (data,)), constants) == [1.0, 1.0, 1.0]


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=4), st.integers(-5, 5))
def test_values_are_those_after_everything_written_so_far(start: list[int], added: int) -> None:
    """Also through a view; what was computed before keeps its value, and the constant itself stays."""
    graph, _, constant, constants = graph_of(torch.tensor(start))
    before = graph.call_function(aten.mul.Tensor, (constant, 3))
    first = graph.call_function(aten.select.int, (constant, 0, 0))
    graph.call_function(aten.add_.Tensor, (first, added))
    assert values(constant, constants) == [start[0] + added, *start[1:]]
    assert values(before, constants) == [3 * number for number in start]
    assert constants["constant"].tolist() == start


def test_data_written_to_a_constant_make_it_unknown() -> None:
    graph, data, constant, constants = graph_of(torch.zeros(2))
    graph.call_function(aten.copy_.default, (constant, data))
    assert values(constant, constants) is None


def test_a_tensor_that_outlives_the_call_is_known_until_forward_writes_to_it() -> None:
    graph, _, constant, constants = graph_of(torch.zeros(2))
    kept = frozenset({"constant"})
    assert values(constant, constants, kept) == [0.0, 0.0]
    graph.call_function(aten.add_.Tensor, (constant, 1))
    assert values(constant, constants, kept) is None
    assert values(constant, constants) == [1.0, 1.0]


def test_which_ops_and_indices_need_values() -> None:
    assert is_data_dependent(aten.nonzero.default)
    assert is_data_dependent(aten._local_scalar_dense.default)
    assert not is_data_dependent(aten.add.Tensor)
    assert is_mask(torch.tensor([True]))
    assert not is_mask(torch.tensor([1]))
    assert not is_mask(None)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4))
def test_places_pick_what_the_mask_picks(rows: list[list[bool]]) -> None:
    mask = torch.tensor(rows)
    numbers = torch.arange(mask.numel()).reshape(mask.shape)
    assert torch.equal(numbers[places(mask)], numbers[mask])
