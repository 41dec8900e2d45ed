"""Advice on the published programs: what their own authors went on to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipu_model.explore.advise import AdviceList, advise, other_loaders
from ipu_model.explore.options import Risk, with_options
from ipu_model.explore.split import split_before
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork
from ipu_model.predict.verdict import Verdict
from published.building import FLOAT
from published.convolutional import day03_program

SINGLE = day03_program(dtype=FLOAT, accumulation=3)


@pytest.fixture(scope="module")
def for_single_precision() -> AdviceList:
    return advise(SINGLE)


def test_single_precision_that_does_not_fit_is_told_to_go_half(for_single_precision: AdviceList) -> None:
    """published/day03-resnet101.md: the base configuration is out of memory; 16.16 with half-precision state fits.

    Of half precision with the state left in single precision nothing is published: the model may find that it fits, or
    that it is too close to call. Of the published program, with both in half precision, it may not doubt.
    """
    assert profile_program(SINGLE).verdict is Verdict.DOES_NOT_FIT
    first = for_single_precision[0]
    assert first.change.startswith("half precision")
    assert first.verdict is not Verdict.DOES_NOT_FIT
    assert first.max_tile_bytes_change < 0
    assert any(
        item.change.startswith("types of accumulators and first moments: float32 -> float16")
        for item in for_single_precision
    )
    both = with_options(SINGLE, half_precision=True, half_optimiser_state=True)
    assert profile_program(both).verdict is Verdict.FITS


def test_a_loader_that_limits_comes_before_everything_on_the_device() -> None:
    """The published 16-bit rows are bound by one loading process."""
    advice = advise(day03_program(accumulation=3), host=HostWork(0.8e-3, 0.034))
    assert [item.change.split(":")[0] for item in advice[:2]] == ["loader workers", "asynchronous data loading"]


def test_what_fits_is_not_advised_to_stop_fitting() -> None:
    program = day03_program(accumulation=3)
    assert profile_program(program).fits
    assert all(item.fits for item in advise(program))


def test_where_nothing_fits_the_least_memory_comes_first_and_nothing_promises_speed() -> None:
    program = with_options(day03_program(dtype=FLOAT, accumulation=16), available_memory_proportion=0.9)
    found = advise(replace(program, step=split_before(program, ()).step))
    assert not any(item.fits for item in found)
    changes = [item.max_tile_bytes_change for item in found]
    assert changes == sorted(changes)
    assert not any("samples/s" in item.effect for item in found)
    assert "ipu_model.make_it_fit(program) searches combinations" in found.note


def test_each_item_says_what_it_costs(for_single_precision: AdviceList) -> None:
    half = next(item for item in for_single_precision if item.change.startswith("half precision"))
    assert half.risk is Risk.NUMERICS
    assert "numerics change" in half.cost
    assert "->" in half.evidence


def test_a_notebook_shows_the_text(for_single_precision: AdviceList) -> None:
    pretty = pytest.importorskip("IPython.lib.pretty")
    assert pretty.pretty(for_single_precision) == str(for_single_precision)


@pytest.mark.parametrize(
    ("cores", "words"),
    [
        (0, "The host needs that many free cores."),
        (1, "The effect counts with 1 core; a host with a free core for each process loads faster."),
        (2, "The effect counts with 2 cores; a host with a free core for each process loads faster."),
        (4, "The host needs that many free cores."),
    ],
)
def test_more_workers_than_cores_are_said_to_share_them(cores: int, words: str) -> None:
    """One process loads now, so that four are proposed."""
    *_, workers = other_loaders(HostWork(seconds_per_sample=1e-3, cores_per_host=cores))
    assert workers.host.workers == 4
    assert workers.explanation == f"4 processes share the loading. {words}"
