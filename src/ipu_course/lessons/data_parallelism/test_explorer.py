"""Lesson 10's explorer: every setting of its knobs gives a figure or PopTorch's reason, and its row fits the model."""

from __future__ import annotations

from typing import Any

import pytest
from explorer_settings import some_of
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_support import one_weight

from ipu_course import engine
from ipu_course.lessons.data_parallelism import explorer as data_parallelism
from ipu_course.lessons.data_parallelism.explorer import (
    ACCUMULATIONS,
    CORES,
    HOSTS,
    IMAGE_SECONDS,
    INSTANCES,
    REPLICAS,
    WORKERS,
    explore_scaling,
    scaling_view,
)


@pytest.fixture(scope="module")
def modelled() -> engine.ModelledModule:
    return one_weight()


KNOBS: tuple[Any, ...] = (REPLICAS, tuple(INSTANCES.values()), WORKERS, HOSTS, ACCUMULATIONS, (False, True))


def is_complete(modelled: engine.ModelledModule, setting: tuple[Any, ...]) -> bool:
    view = scaling_view(modelled, *setting)
    if view.figure is None:
        return view.text.startswith("PopTorch cannot run this: ")
    return len(view.rows) == 1


@pytest.mark.parametrize("setting", some_of(*((knob[0], knob[-1]) for knob in KNOBS)))
def test_an_extreme_has_a_figure_or_a_reason(modelled: engine.ModelledModule, setting: tuple[Any, ...]) -> None:
    assert is_complete(modelled, setting)


@settings(max_examples=20, deadline=None)
@given(st.tuples(*(st.sampled_from(knob) for knob in KNOBS)))
def test_so_has_every_other_setting(setting: tuple[Any, ...]) -> None:
    assert is_complete(one_weight(), setting)


@pytest.mark.parametrize(
    ("replicas", "instances", "workers", "hosts", "loaders"),
    [
        (64, 0, 8, 1, 8),  # one process has its 8 workers
        (64, 0, 0, 1, 1),  # or none: the process itself
        (64, 1, 1, 1, 64),  # 64 instances, and a core for each
        (64, 1, 4, 1, CORES),  # four loaders take turns on each core
        (64, 1, 4, 4, 4 * CORES),
    ],
)
def test_a_host_loads_as_fast_as_its_loaders_or_cores(
    modelled: engine.ModelledModule, replicas: int, instances: int, workers: int, hosts: int, loaders: int
) -> None:
    """The tiny program takes far more images than any host here loads, so the loaders set the rate."""
    (row,) = scaling_view(modelled, replicas, instances, workers, hosts, 16, False).rows
    assert row["limited by"] == "host loader"
    assert row["images a second"] == f"{loaders / IMAGE_SECONDS:,.0f}"


def test_a_constant_global_batch_divides_the_accumulation(modelled: engine.ModelledModule) -> None:
    (row,) = scaling_view(modelled, 16, 0, 64, 1, 64, True).rows
    assert (row["accumulation"], row["global batch"]) == (4, "128")  # micro-batch 2


def test_too_small_an_accumulation_is_refused_with_a_reason(modelled: engine.ModelledModule) -> None:
    view = scaling_view(modelled, 16, 0, 8, 1, 4, True)
    assert view.figure is None
    assert "divides 4" in view.text


def test_the_circle_is_at_the_chosen_setting(modelled: engine.ModelledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(data_parallelism, "scaling_figure", lambda *given: seen.append(given))
    scaling_view(modelled, 8, 2, 8, 1, 16, False)
    replicas, theory, rates, chosen, _ = seen[0]
    assert chosen == (8, rates[REPLICAS.index(8)])
    assert theory == pytest.approx([theory[0] * count for count in replicas])


def test_without_a_model_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    explore_scaling(None)
    assert capsys.readouterr().out.strip() == engine.NOT_HERE
