"""The error band of a program is that of the published rows of its family; without rows it is wide and says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cost_support import Trained
from torch import Tensor, nn, zeros
from tracing_support import traced

from ipu_model.capture.describe import step_of
from ipu_model.explore.options import with_options
from ipu_model.predict import profile_program
from ipu_model.predict.band import Family, FamilyBand, error_band
from ipu_model.predict.calibration import calibrated
from ipu_model.predict.profile import ErrorBand
from ipu_model.predict.program import Program
from published import convolutional, transformers
from published.convolutional import day03_program, digits_program, small_resnet50_program

DAY03 = day03_program(accumulation=8)
WIDE = ErrorBand(calibrated().band.without_rows_low, calibrated().band.without_rows_high)
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


def band_of(program: Program) -> tuple[ErrorBand, str]:
    profile = profile_program(program)
    return error_band(program, profile.ops, profile.shares, BANDS)


class LastStep(nn.LSTM):
    """An LSTM that returns the sequence alone."""

    def __init__(self) -> None:
        super().__init__(2048, 2048)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


class Spectrum(nn.Linear):
    """A linear layer whose results are transformed: no published row has such an op."""

    def __init__(self) -> None:
        super().__init__(2048, 2048)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(super().forward(x)).real


class Attention(nn.Linear):
    """A linear layer whose results attend to themselves."""

    def __init__(self) -> None:
        super().__init__(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        projected = super().forward(x)
        return F.scaled_dot_product_attention(projected, projected, projected)


class TestFamilies:
    def test_large_convolutions_that_were_compared_have_a_narrow_band_and_no_note(self) -> None:
        assert band_of(DAY03) == (ErrorBand(0.92, 1.08), "")

    def test_transformers_have_the_band_of_transformers_and_a_note(self) -> None:
        band, note = band_of(transformers.bert_base_program())
        assert band == ErrorBand(0.70, 1.30)
        assert "4 published rows of training of transformers" in note
        assert "20%" in note

    def test_fused_attention_makes_a_transformer_too(self) -> None:
        """`scaled_dot_product_attention` has a softmax of its own kind."""
        graph = traced(Trained(Attention()), zeros(2, 4, 512, 64))
        assert "training of transformers" in band_of(Program(step_of(graph), True))[1]

    def test_inference_of_transformers_is_inference(self) -> None:
        assert band_of(transformers.vit_inference_program(8)) == (ErrorBand(0.93, 1.09), "")

    def test_grouped_convolutions_widen_the_band_of_convolutions(self) -> None:
        band, note = band_of(convolutional.efficientnet_program())
        assert band == ErrorBand(0.60, 1.60)
        assert "one published row of grouped convolutions" in note

    def test_many_replicas_take_the_wider_of_both_bands(self) -> None:
        assert band_of(convolutional.mlperf_pod64_program()) == (ErrorBand(0.88, 1.12), "")

    @pytest.mark.parametrize("program", [digits_program, small_resnet50_program])
    def test_little_work_at_a_time_is_a_family_of_its_own(self, program: Callable[[], Program]) -> None:
        band, note = band_of(program())
        assert band == ErrorBand(0.75, 1.25)
        assert "work this small" in note


class TestWithoutRows:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"execution": "interleaved"}, "interleaved execution"),
            ({"execution": "sharded"}, "sharded execution"),
            ({"optimiser_off_chip": True}, "tensors in streaming memory"),
            ({"machine": "C600"}, "training on the chip C600"),
            ({"machine": "POD256", "replicas": 64}, "replicas in several racks"),
        ],
    )  # fmt: skip
    def test_ways_of_running_without_a_published_row_have_the_wide_band(self, change, said: str) -> None:
        band, note = band_of(with_options(DAY03, **change))
        assert band == WIDE
        assert said in note

    def test_the_published_bert_programs_cover_a_little_streaming_memory_and_sharded_state(self) -> None:
        """Their optimiser's state is off chip and sharded, and takes 2 % of the time."""
        assert "No published row" not in band_of(transformers.bert_large_program())[1]

    def test_a_family_without_rows_has_the_wide_band(self) -> None:
        profile = profile_program(DAY03)
        band, note = error_band(DAY03, profile.ops, profile.shares, {})
        assert band == WIDE
        assert "No published row covers training of convolutional networks" in note

    def test_a_band_of_rows_that_is_wider_than_the_wide_one_counts(self) -> None:
        grouped = with_options(convolutional.efficientnet_program(), machine="POD256", replicas=128)
        assert band_of(grouped)[0] == ErrorBand(0.60, 1.60)

    def test_inference_with_grouped_convolutions(self) -> None:
        network = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, groups=4))
        graph = traced(network, zeros(2, 4, 8, 8), training=False)
        assert "inference with grouped convolutions" in band_of(Program(step_of(graph), training=False))[1]

    @pytest.mark.parametrize(
        ("network", "said"),
        [(LastStep(), "recurrent layers"), (Spectrum(), "ops whose cost is an estimate")],
    )
    def test_families_of_ops_that_no_published_row_holds_are_named(self, network: nn.Module, said: str) -> None:
        band, note = band_of(Program(step_of(traced(Trained(network), zeros(64, 2048))), True))
        assert band == WIDE
        assert f"No published row covers {said}" in note

    def test_a_large_linear_layer_is_covered(self) -> None:
        graph = traced(Trained(nn.Linear(2048, 2048)), zeros(64, 2048))
        assert band_of(Program(step_of(graph), True)) == (ErrorBand(0.95, 1.05), "")


def test_a_profile_has_the_band_and_its_reason() -> None:
    """The note reaches whoever reads a profile, in fp32 as in fp16."""
    found = profile_program(transformers.swin_program())
    assert any("training of transformers" in note for note in found.notes)
    assert found.error_band.low < 1 < found.error_band.high
