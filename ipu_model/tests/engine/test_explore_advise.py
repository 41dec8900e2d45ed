"""Advice on the published programs: what their own authors went on to do."""

from __future__ import annotations

from dataclasses import replace

from ipu_model.explore.advise import advise
from ipu_model.explore.options import Risk, with_options
from ipu_model.explore.split import split_before
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork
from ipu_model.predict.verdict import Verdict
from ipu_model.validate.programs import FLOAT, day03_program


def test_single_precision_that_does_not_fit_is_told_to_go_half() -> None:
    """published/day03-resnet101.md: the base configuration is out of memory, half precision fits."""
    advice = advise(day03_program(dtype=FLOAT, accumulation=3))
    assert advice[0].change.startswith("half precision")
    assert advice[0].verdict is not Verdict.DOES_NOT_FIT
    assert advice[0].max_tile_bytes_change < 0


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


def test_each_item_says_what_it_costs() -> None:
    found = advise(day03_program(dtype=FLOAT, accumulation=3))
    half = next(item for item in found if item.change.startswith("half precision"))
    assert half.risk is Risk.NUMERICS
    assert "numerics change" in half.cost
    assert "->" in half.evidence
