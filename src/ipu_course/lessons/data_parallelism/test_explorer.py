"""Lesson 10's explorer: every setting of its knobs gives a figure or PopTorch's reason, and its row fits the model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_support import one_weight

from ipu_course import engine
from ipu_course.lessons.data_parallelism import explorer
from ipu_course.lessons.data_parallelism.exercises import EFFICIENT_REPLICAS, HOSTS
from ipu_course.lessons.data_parallelism.explorer import CORES, IMAGE_SECONDS, REPLICAS, SCALING, scaling_view
from ipu_course.published_resnet50 import published_resnet50

STATES = list(SCALING.states())


@pytest.fixture(scope="module")
def modelled() -> engine.ModelledModule:
    return one_weight()


@pytest.fixture(scope="module")
def resnet() -> engine.ModelledModule:
    found = published_resnet50()
    assert found
    return found


def is_complete(modelled: engine.ModelledModule, setting: dict[str, Any]) -> bool:
    view = scaling_view(modelled, **setting)
    if view.figure is None:
        return view.text.startswith("PopTorch cannot run this: ")
    return len(view.rows) == 1


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(STATES))
def test_every_setting_has_a_figure_or_a_reason(setting: dict[str, Any]) -> None:
    assert is_complete(one_weight(), setting)


@pytest.mark.parametrize("setting", [STATES[0], STATES[-1]], ids=["first", "last"])
def test_so_have_the_extremes(modelled: engine.ModelledModule, setting: dict[str, Any]) -> None:
    assert is_complete(modelled, setting)


@pytest.mark.parametrize(
    ("replicas", "instances", "workers", "hosts", "loaders"),
    [
        (64, 0, 8, 1, 8),  # one process has its 8 workers
        (64, 4, 1, 1, 16),  # 16 instances, and a core for each
        (64, 2, 4, 1, CORES),  # 128 workers take turns on 64 cores
        (64, 2, 8, 4, 4 * CORES),
    ],
)
def test_a_host_loads_as_fast_as_its_loaders_or_cores(
    modelled: engine.ModelledModule, replicas: int, instances: int, workers: int, hosts: int, loaders: int
) -> None:
    """The tiny program takes far more images than any host here loads, so the loaders set the rate."""
    (row,) = scaling_view(modelled, replicas, instances, workers, hosts, 16, False).rows
    assert row["bottleneck"] == "host, loading"
    assert row["images/s"] == f"{loaders / IMAGE_SECONDS:,.0f}"


def test_a_constant_global_batch_divides_the_accumulation(modelled: engine.ModelledModule) -> None:
    (row,) = scaling_view(modelled, 16, 0, 16, 1, 64, True).rows
    assert (row["accumulation"], row["global batch"]) == (4, "128")  # micro-batch 2


def test_too_small_an_accumulation_is_refused_with_a_reason(modelled: engine.ModelledModule) -> None:
    view = scaling_view(modelled, 16, 0, 8, 1, 3, True)
    assert view.figure is None
    assert "divides 3" in view.text


def test_the_circle_is_at_the_chosen_setting(modelled: engine.ModelledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(explorer, "scaling_figure", lambda *given: seen.append(given))
    scaling_view(modelled, 8, 2, 8, 1, 16, False)
    replicas, theory, rates, chosen, _ = seen[0]
    assert chosen == (8, rates[REPLICAS.index(8)])
    assert theory == pytest.approx([theory[0] * count for count in replicas])


def efficiency(resnet: engine.ModelledModule, **setting: Any) -> int:
    """The per cent that the explorer shows, with an instance of 8 workers for every 2 replicas."""
    (row,) = scaling_view(resnet, instances=2, workers=8, **setting).rows
    return int(str(row["efficiency"]).rstrip("%"))


def test_exercise_4s_hosts_are_the_fewest_that_are_efficient(resnet: engine.ModelledModule) -> None:
    reached = {
        hosts: efficiency(resnet, replicas=64, hosts=hosts, accumulation=16, constant=False) for hosts in (1, 2, 4)
    }
    assert min(hosts for hosts, percent in reached.items() if percent > 90) == HOSTS
    assert (reached[1], reached[2]) == (24, 49)  # the hints' numbers


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_exercise_4s_replicas_are_the_most_that_are_efficient(resnet: engine.ModelledModule, hosts: int) -> None:
    reached = {
        replicas: efficiency(resnet, replicas=replicas, hosts=hosts, accumulation=64, constant=True)
        for replicas in REPLICAS
    }
    assert max(replicas for replicas, percent in reached.items() if percent > 90) == EFFICIENT_REPLICAS
    assert reached[16] == 88  # the hint's number
