"""Lesson 09's explorer: every setting of its controls gives a figure or a reason, and its parts are the latency."""

from __future__ import annotations

import itertools

import pytest

from ipu_course import engine
from ipu_course.lessons.cnn_benchmarks import explorer
from ipu_course.lessons.cnn_benchmarks.explorer import (
    BATCHES,
    DATA,
    EIGHT_BITS,
    IPUS,
    NETWORKS,
    SYNTHETIC,
    Network,
    benchmark_result,
    benchmark_view,
    latency_parts,
)

SMALL = "ResNet-18 on small images"


@pytest.fixture(autouse=True)
def with_a_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every control can be tried with this one in a moment."""
    small = Network("resnet50-infer-generated", {"model": "resnet18", "image_size": 32})
    monkeypatch.setattr(explorer, "NETWORKS", {**NETWORKS, SMALL: small})


@pytest.mark.parametrize(("batch", "data", "ipus"), [*itertools.product((BATCHES[0], BATCHES[-1]), DATA, IPUS)])
def test_every_setting_has_a_figure(batch: int, data: str, ipus: int) -> None:
    view = benchmark_view(SMALL, batch, data, ipus)
    assert view.figure is not None
    assert len(view.rows) == 1


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_has_a_figure_at_the_end_of_the_sliders(network: str) -> None:
    view = benchmark_view(network, BATCHES[-1], EIGHT_BITS, IPUS[-1])
    assert view.figure is not None
    assert view.rows[0]["memory"] in ("fits", "too close to call", "does not fit")


@pytest.mark.parametrize("data", DATA)
def test_the_parts_are_the_latency(data: str) -> None:
    result = benchmark_result(SMALL, 8, data, 4)
    parts = latency_parts(result)
    assert sum(parts) == pytest.approx(1e3 * (result.latency_seconds or 0.0))
    # Synthetic images are not sent; a call still ends with the host being told.
    assert (parts.sending > 0.001) == (data != SYNTHETIC)


def test_what_is_refused_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "NETWORKS", {"refused": Network("resnet50-infer-generated", {"shards": 2})})
    view = benchmark_view("refused", 1, EIGHT_BITS, 1)
    assert view.figure is None
    assert "--pipeline-splits" in view.text


def test_without_a_model_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_available", lambda: False)
    benchmark_result.cache_clear()
    assert benchmark_view("ResNet-50", 2, SYNTHETIC, 1).text == engine.NOT_HERE
    benchmark_result.cache_clear()
