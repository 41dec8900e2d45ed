"""Advice on the published programs: what their own authors went on to do."""

from __future__ import annotations

from ipu_model.explore.advise import advise
from ipu_model.predict import profile_program
from ipu_model.predict.host import HostWork
from ipu_model.validate.programs import FLOAT, day03_program


def test_single_precision_that_does_not_fit_is_told_to_go_half() -> None:
    """published/day03-resnet101.md: the base configuration is out of memory, half precision fits."""
    advice = advise(day03_program(dtype=FLOAT, accumulation=3))
    assert advice[0].change.startswith("half precision")
    assert advice[0].fits
    assert advice[0].max_tile_bytes_change < 0


def test_a_loader_that_limits_comes_before_everything_on_the_device() -> None:
    """The published 16-bit rows are bound by one loading process."""
    advice = advise(day03_program(accumulation=3), host=HostWork(0.8e-3, 0.034))
    assert [item.change.split(":")[0] for item in advice[:2]] == ["loader workers", "asynchronous data loading"]


def test_what_fits_is_not_advised_to_stop_fitting() -> None:
    program = day03_program(accumulation=3)
    assert profile_program(program).fits
    assert all(item.fits for item in advise(program))
