"""The rebuilt programs of the published rows, what else is published of them, and the error bands that rows give.

A program has the band of the published rows of its families; without rows it is wide and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cost_support import Trained, calling, stepped
from torch import Tensor, nn, zeros

from ipu_model.explore.options import with_options
from ipu_model.predict import memory_of_program, profile_program
from ipu_model.predict.band import Family, FamilyBand, error_band
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.costs import costs_of
from ipu_model.predict.order import traffic_of
from ipu_model.predict.profile import Verdict
from ipu_model.predict.program import Program, Recomputation
from published import convolutional, transformers
from published.building import FLOAT, HALF
from published.convolutional import (
    day03_program,
    digits_program,
    small_resnet50_program,
)

KIB = 1024


class TestResNet101:
    """published/day03-resnet101.md: two IPUs, micro-batch 64, accumulation 3."""

    PROGRAM, SINGLE = (day03_program(dtype=dtype, accumulation=3) for dtype in (HALF, FLOAT))

    def test_the_cut_moves_two_mebibytes_each_way(self) -> None:
        """64 x 1024 x 4 x 4 fp16 forward, its gradient back; inputs of 1.5 MiB to IPU 0 and 64 labels to IPU 1."""
        traffic = traffic_of(self.PROGRAM.step)
        assert costs_of(self.PROGRAM.step).fallbacks == ()
        assert (traffic.on, traffic.back) == ((2_097_152, 0), (0, 2_097_152))
        assert traffic.inputs == (1_572_864, 256)
        # Published: IPU 1 sends 141 kB in a run. Logits are 64 x 1000 fp16; loss and accuracy a number each.
        assert traffic.outputs == (0, 128_000 + 2 + 4)

    @pytest.mark.parametrize(
        ("program", "least", "most"),
        [
            # Most tiles hold about 480 to 560 KiB; on the first IPU the model lacks up to 15 KiB of code
            # (`memory.reserved_bytes`). PopVision prints KiB under the label kB.
            (PROGRAM, 480 - 15, 560),
            # About 720 to 800 KiB on nearly every tile of both IPUs; 3 % are what "about" leaves.
            (SINGLE, 720 * 0.97 - 15, 800 * 1.03),
        ],
    )
    def test_tiles(self, program: Program, least: float, most: float) -> None:
        for ipu in memory_of_program(program):
            tiles = np.array(ipu.tiles) / KIB
            assert np.mean((tiles > least) & (tiles < most)) > 0.9
            assert program is self.SINGLE or tiles[-1] < 0.9 * np.median(tiles)  # a dip where one IPU ends

    def test_it_does_not_fit_without_recomputation(self) -> None:
        kept = memory_of_program(replace(self.PROGRAM, recomputation=Recomputation.NONE))
        assert kept.verdict is Verdict.DOES_NOT_FIT
        assert not kept.fits


# --- error bands

DAY03 = day03_program(accumulation=8)
WIDE = (calibrated().band.without_rows_low, calibrated().band.without_rows_high)
# Bands for these tests, so that they do not depend on how good the model is today.
BANDS = {
    Family.CONVOLUTIONS: FamilyBand(0.92, 1.08, 4, 0.04),
    Family.TRANSFORMERS: FamilyBand(0.70, 1.30, 4, 0.20),
    Family.INFERENCE: FamilyBand(0.93, 1.09, 6, 0.05),
    Family.PRODUCTS: FamilyBand(0.95, 1.05, 1, 0.03),
    Family.GROUPED: FamilyBand(0.60, 1.60, 1, 0.25),
    Family.SMALL: FamilyBand(0.75, 1.25, 3, 0.20),
    Family.MANY_REPLICAS: FamilyBand(0.88, 1.12, 2, 0.06),
}


def trained(layer: nn.Module, *shape: int, function: Callable[[Tensor], Tensor] = torch.neg) -> Program:
    module = Trained(calling(lambda layer, x: function(layer(x)), layer))
    return Program(stepped(module, zeros(*shape)), True)


def grouped_inference() -> Program:
    network = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=4))
    return Program(stepped(network, zeros(2, 4, 8, 8), training=False), training=False)


def changed(program: Program = DAY03, **options: object) -> Callable[[], Program]:
    return lambda: with_options(program, **options)


def banded(program: Program) -> tuple[tuple[float, float], str]:
    profile = profile_program(program)
    band, note = error_band(program, profile.ops, profile.shares, BANDS)
    return tuple(band), note


def attended(x: Tensor) -> Tensor:
    """Return fused attention, which has a softmax of its own kind."""
    return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(
    ("program", "band", "said"),
    [
        (lambda: DAY03, (0.92, 1.08), ""),
        (transformers.bert_base_program, (0.70, 1.30), "4 published rows of training of transformers: on today"),
        # Its state is off chip and sharded, and takes 2 % of the time.
        (transformers.bert_large_program, (0.70, 1.30), "training of transformers"),
        (lambda: trained(nn.Linear(64, 64), 2, 4, 512, 64, function=attended), None, "training of transformers"),
        (lambda: transformers.vit_inference_program(8), (0.93, 1.09), ""),
        (convolutional.efficientnet_program, (0.60, 1.60), "one published row of grouped convolutions"),
        (convolutional.mlperf_pod64_program, (0.88, 1.12), ""),  # the wider of both bands
        (digits_program, (0.75, 1.25), "work this small"),
        (small_resnet50_program, (0.75, 1.25), "work this small"),
        (lambda: trained(nn.Linear(2048, 2048), 64, 2048), (0.95, 1.05), ""),
        # What no published row does has the wide band, or that of rows if it is wider.
        (changed(execution="interleaved"), WIDE, "No published row covers interleaved execution"),
        (changed(execution="sharded"), WIDE, "No published row covers sharded execution"),
        (changed(optimiser_off_chip=True), WIDE, "covers a large share of the time for tensors in streaming memory"),
        (changed(machine="C600"), WIDE, "No published row covers training on the chip C600"),
        (changed(machine="POD256", replicas=64), WIDE, "No published row covers replicas in several racks"),
        (
            lambda: with_options(convolutional.efficientnet_program(), machine="POD256", replicas=128),
            (0.60, 1.60),
            "No published row covers replicas in several racks",
        ),
        (grouped_inference, None, "No published row covers inference with grouped convolutions"),
        (
            lambda: trained(nn.LSTM(2048, 2048), 64, 2048, function=lambda results: results[0]),
            WIDE,
            "No published row covers recurrent layers",
        ),
        (
            lambda: trained(nn.Linear(2048, 2048), 64, 2048, function=lambda x: torch.fft.rfft(x).real),
            WIDE,
            "No published row covers ops whose cost is an estimate",
        ),
    ],
)  # fmt: skip
def test_a_program_has_the_widest_band_of_its_families_and_a_note_if_it_is_wide(
    program: Callable[[], Program], band: tuple[float, float] | None, said: str
) -> None:
    found, note = banded(program())
    assert band is None or found == band
    assert said in note
    assert bool(said) == bool(note)
    assert ("No published row covers" in note) == ("covers" in said)


def test_a_family_without_rows_has_the_wide_band() -> None:
    profile = profile_program(DAY03)
    band, note = error_band(DAY03, profile.ops, profile.shares, {})
    assert tuple(band) == WIDE
    assert "No published row covers training of convolutional networks" in note


def test_a_profile_has_the_band_and_its_reason() -> None:
    """The note reaches whoever reads a profile, in fp32 as in fp16."""
    profile = profile_program(transformers.swin_program())
    assert any("training of transformers" in note for note in profile.notes)
    assert profile.error_band.low < 1 < profile.error_band.high
