"""What stands for a modelled result without an IPU Model: every computation with it gives it, and it never raises."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from typing import Any, Callable

import numpy
import pytest
import torch

from ipu_course import engine
from ipu_course.not_modelled import NONE_HERE, NOT_MODELLED

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.matmul,
    divmod,
]
COMPARISONS = [operator.eq, operator.lt, operator.le, operator.gt, operator.ge]
OTHERS: list[Any] = [2, 0.5, numpy.float64(2), numpy.ones(3), torch.ones(3), torch.tensor(2), NOT_MODELLED]


@pytest.mark.parametrize("other", OTHERS, ids=repr)
@pytest.mark.parametrize("operation", BINARY)
def test_arithmetic_gives_it_again_from_both_sides(operation: Callable[[Any, Any], Any], other: Any) -> None:
    assert operation(NOT_MODELLED, other) is NOT_MODELLED
    assert operation(other, NOT_MODELLED) is NOT_MODELLED


@pytest.mark.parametrize("operation", [operator.neg, operator.pos, abs, round, math.floor, math.ceil, math.trunc])
def test_so_does_arithmetic_on_it_alone(operation: Callable[[Any], Any]) -> None:
    assert operation(NOT_MODELLED) is NOT_MODELLED


def test_rounding_to_digits_gives_it_again() -> None:
    assert round(1000 * NOT_MODELLED.call_seconds, 1) is NOT_MODELLED


def test_attributes_items_slices_and_calls_give_it_again() -> None:
    found = NOT_MODELLED.profile(host=None, replicas=16).memory[0].bytes_by_category["code"][1:]
    assert found is NOT_MODELLED


@pytest.mark.parametrize("other", [0, 1.5, math.nan, "text", None, NOT_MODELLED])
@pytest.mark.parametrize("compare", COMPARISONS)
def test_no_comparison_holds_but_that_it_is_unequal(compare: Callable[[Any, Any], Any], other: object) -> None:
    assert compare(NOT_MODELLED, other) is False
    assert compare(other, NOT_MODELLED) is False
    assert (NOT_MODELLED != other) is True  # noqa: SIM300  # this side is what is tested


def test_it_is_false_and_holds_nothing() -> None:
    assert not NOT_MODELLED
    assert len(NOT_MODELLED) == 0
    assert 3 not in NOT_MODELLED
    assert list(NOT_MODELLED) == list(reversed(list(NOT_MODELLED))) == sorted(NOT_MODELLED) == []
    assert [point.value for point in NOT_MODELLED.sweep("replicas", [1, 2])] == []
    assert dict(NOT_MODELLED.shares.items()) == {}


def test_the_largest_of_none_is_the_default_and_among_numbers_it_stays_where_it_is() -> None:
    assert max(NOT_MODELLED, default=NOT_MODELLED) is NOT_MODELLED
    assert max(NOT_MODELLED, 3) is NOT_MODELLED
    assert max(3, NOT_MODELLED) == 3
    assert len(sorted([3, NOT_MODELLED, 1])) == 3


@pytest.mark.parametrize("form", ["", ".1f", ",", ".0%", ">10", "d", "e", "{wide}"])
def test_every_format_says_that_there_is_no_model(form: str) -> None:
    assert format(NOT_MODELLED, form) == NONE_HERE


def test_text_of_it_says_so_too() -> None:
    assert f"{NOT_MODELLED.call_seconds:.1f} ms" == "no IPU Model here ms"
    assert str(NOT_MODELLED) == repr(NOT_MODELLED) == "%s" % (NOT_MODELLED,) == NONE_HERE  # noqa: UP031
    assert "{:,.0f}".format(NOT_MODELLED) == NONE_HERE  # noqa: UP032


def test_as_a_float_it_is_nan_so_that_a_figure_leaves_a_gap() -> None:
    assert math.isnan(float(NOT_MODELLED))
    assert numpy.isnan(numpy.array([1.0, float(NOT_MODELLED)])).tolist() == [False, True]


def test_it_stays_the_one_object_when_copied_or_sent_to_another_process() -> None:
    for same in (copy.copy(NOT_MODELLED), copy.deepcopy([NOT_MODELLED])[0], pickle.loads(pickle.dumps(NOT_MODELLED))):
        assert same is NOT_MODELLED
    assert {NOT_MODELLED: 1}[NOT_MODELLED] == 1


def test_it_has_none_of_the_methods_that_notebooks_look_for() -> None:
    assert not hasattr(NOT_MODELLED, "_repr_html_")
    assert not hasattr(NOT_MODELLED, "_ipython_display_")


def test_without_an_ipu_model_every_door_function_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    nothing: Any = None
    found = [
        engine.host_work(0.1, 0.1, False, 0, "nowhere"),
        engine.profile(nothing),
        engine.profile_module(nothing, (), nothing),
        engine.modelled_module(nothing, (), nothing),
        engine.machine_ipus("POD16"),
        engine.memory_verdict(nothing),
        engine.fits_in_a_word(nothing),
        engine.may_run(nothing),
        engine.start_seconds(nothing),
        engine.figure("timeline", nothing),
        engine.text_report(nothing),
    ]
    assert all(each is NOT_MODELLED for each in found)


def test_what_is_asked_of_a_missing_profile_is_missing_too() -> None:
    assert engine.memory_verdict(NOT_MODELLED) is NOT_MODELLED
    assert engine.modelled_module(NOT_MODELLED, (), NOT_MODELLED) is NOT_MODELLED
