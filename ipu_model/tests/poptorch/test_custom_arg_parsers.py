"""Registering custom argument types (execution reference, section 15.3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import poptorch
from ipu_model.errors import Error
from poptorch._dataloader.items import ItemStructure
from poptorch._utils import ICustomArgParser, getCustomParser, registerCustomArgParser
from poptorch.profiling import Channel


class Parser(ICustomArgParser):
    """Does nothing; only which parser is found matters here."""

    def yieldTensors(self, struct: object) -> list[object]:
        return []

    def reconstruct(self, original_structure: object, tensor_iterator: Iterator[object]) -> object:
        return original_structure


class Grandparent:
    """A registered base class."""


class Parent(Grandparent):
    """Registered or not."""


class Child(Parent):
    """Never registered."""


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for custom in (Grandparent, Parent, Child):
        registerCustomArgParser(custom, None)


def test_the_exact_type_comes_first_and_then_the_order_of_registration() -> None:
    for_grandparent, for_parent = Parser(), Parser()
    registerCustomArgParser(Grandparent, for_grandparent)
    registerCustomArgParser(Parent, for_parent)
    assert getCustomParser(Grandparent()) is for_grandparent
    assert getCustomParser(Parent()) is for_parent
    assert getCustomParser(Child()) is for_grandparent
    assert getCustomParser(3) is None


def test_none_forgets_a_type() -> None:
    registerCustomArgParser(Parent, Parser())
    registerCustomArgParser(Parent, None)
    registerCustomArgParser(Parent, None)
    assert getCustomParser(Child()) is None


@pytest.mark.parametrize("wrong", [Parser, "parser", object()])
def test_a_parser_must_be_one(wrong: object) -> None:
    with pytest.raises(Error, match="arg_parser must inherit from ICustomArgParser"):
        registerCustomArgParser(Parent, wrong)


def test_the_interface_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ICustomArgParser()


def test_a_loader_whose_parser_was_taken_away_says_so() -> None:
    registerCustomArgParser(Parent, Parser())
    structure = ItemStructure.of(Parent())
    assert structure.flatten(Child()) == []  # a derived type has the same parser
    registerCustomArgParser(Parent, None)
    with pytest.raises(ValueError, match="must look like the first one, a Parent"):
        structure.flatten(Parent())
    with pytest.raises(AssertionError, match="parser of Parent was unregistered while a loader still uses it"):
        structure.rebuild([])


def test_tracing_channels_do_nothing() -> None:
    channel = Channel("dataset")
    traced = object()
    assert channel.instrument(traced, "__getitem__") is traced
    with channel.tracepoint("epoch"):
        pass
    with pytest.raises(ZeroDivisionError), channel.tracepoint("epoch"):
        raise ZeroDivisionError


def test_comparing_nested_results() -> None:
    one = torch.ones(2)
    assert poptorch.testing.allclose((one, [one]), (one, [one + 1e-9]))
    for other in ((one, [one + 1]), (one,), (one, one), one):
        assert not poptorch.testing.allclose((one, [one]), other)
