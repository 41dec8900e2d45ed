"""Every published row against the model: never further off than when last recorded, and labelled for what it is."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ipu_model.errors import Error
from ipu_model.predict.band import Family, FamilyBand, family_bands
from ipu_model.predict.calibration import calibrated, fitted
from ipu_model.predict.profile import CloseBand, Verdict, close_band
from published import convolutional
from published.comparison import Compared, ComparedVerdict, Comparison, Outcome, compare_rows
from published.leave_one_out import LeftOut, Untested, leave_one_out
from published.predictions import Predictions
from published.record import (
    Record,
    bands_of,
    close_band_of_record,
    grown,
    left_out_verdicts,
    recorded,
    worsened,
    write_record,
)
from published.rows import Kind, Row, VerdictRow, published, read
from published.text import comparison_markdown, comparison_text, constants_text, left_out_text, trust

# Constants that sort programs or widen a band: they change no modelled value, so that no row can settle them.
_CHANGE_NO_VALUE = ("band.", "memory.close_")


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare_rows()


@pytest.fixture(scope="module")
def compared(comparison: Comparison) -> dict[str, Compared]:
    return {each.row.id: each for each in comparison.numbers}


class TestRows:
    def test_no_error_has_grown(self, compared: dict[str, Compared]) -> None:
        """The record is written by `python -m ipu_model validate --record`."""
        assert grown(compared.values(), recorded().errors) == ()

    def test_no_verdict_has_become_worse(self, comparison: Comparison) -> None:
        assert worsened(comparison.verdicts, recorded().outcomes) == ()

    def test_the_record_knows_every_row_and_no_other(self) -> None:
        hint = "`python -m ipu_model validate --record` writes it"
        assert set(recorded().errors) == {row.id for row in published().rows}, hint
        assert set(recorded().outcomes) == set(recorded().shares) == {row.id for row in published().verdicts}, hint

    def test_ids_are_unique_and_have_predictions(self) -> None:
        ids = [*(row.id for row in published().rows), *(row.id for row in published().verdicts)]
        assert len(set(ids)) == len(ids)
        predictions = Predictions()
        assert [each for each in ids if each not in predictions] == [], (
            "published/predictions.py says how to model a row"
        )

    def test_a_row_that_nothing_models_is_refused_by_name(self) -> None:
        with pytest.raises(Error, match=r"how to model the row new\.row: add a line to a table in predictions\.py"):
            Predictions().value("new.row")
        with pytest.raises(Error, match=r"the program of fits\.new: add a line to _VERDICTS in predictions\.py"):
            Predictions().memory("fits.new")

    def test_rows_settle_just_the_constants_that_are_labelled_fitted(self) -> None:
        settled = {name for row in published().rows for name in row.settles}
        assert settled == {name for name in fitted() if not name.startswith(_CHANGE_NO_VALUE)}

    def test_the_released_blind_rows_carry_the_errors_of_their_day(self) -> None:
        """The errors as they were published with the rows, in per cent."""
        found = {row.id.removeprefix("blind."): row.earlier_error for row in published().rows if row.blind is not None}
        assert {name: round(100 * error, 1) for name, error in found.items() if error is not None} == {
            "B1": 3.8, "B2": 8.1, "B3": -0.1, "B4": 6.9, "B5": 0.1, "B6": -4.9, "B7": -5.3, "B8": -0.3, "B9": 1.5,
            "B10": 10.6, "B11": -10.3, "B12": -9.4, "B13": 34.3, "B14": 30.6, "B15": 29.3,
        }  # fmt: skip

    def test_differences_and_sums_of_a_trace_are_arithmetic(self) -> None:
        """Two traces give two numbers for each phase: what a micro-batch takes, and a call at accumulation 3."""
        kinds = {row.id: row.kind for row in published().rows}
        assert kinds["day03.trace.ga8.stream_copy_mid"] is Kind.ARITHMETIC
        assert kinds["day03.trace.ga3.total"] is Kind.ARITHMETIC
        assert kinds["day03.received.ga3"] is Kind.ARITHMETIC

    def test_the_trace_adds_up(self, compared: dict[str, Compared]) -> None:
        phases = [
            c for name, c in compared.items() if name.startswith("day03.trace.ga8.") and not name.endswith("total")
        ]
        assert sum(each.modelled for each in phases) == pytest.approx(compared["day03.trace.ga8.total"].modelled)


ROW = Row("a", "a row", Kind.PREDICTION, 100.0, "cycles", "somewhere", "one run", 0.1)
RAN = VerdictRow("fits.a", "a program", Kind.PREDICTION, ran=True, source="somewhere")
FAILED = VerdictRow("fits.b", "a program", Kind.PREDICTION, ran=False, source="somewhere")


class TestVerdicts:
    @pytest.mark.parametrize(
        ("row", "verdict", "outcome"),
        [
            (RAN, Verdict.FITS, Outcome.RIGHT),
            (RAN, Verdict.DOES_NOT_FIT, Outcome.WRONG),
            (RAN, Verdict.CLOSE, Outcome.CLOSE),
            (FAILED, Verdict.FITS, Outcome.WRONG),
            (FAILED, Verdict.DOES_NOT_FIT, Outcome.RIGHT),
        ],
    )
    def test_a_verdict_is_right_wrong_or_open(self, row: VerdictRow, verdict: Verdict, outcome: Outcome) -> None:
        assert ComparedVerdict(row, 0.9, verdict).outcome is outcome

    def test_half_precision_fits_and_single_precision_does_not(self, comparison: Comparison) -> None:
        """The workshop's first step, in single precision, was out of memory; its second, in half precision, ran."""
        found = {each.row.id: each.outcome for each in comparison.verdicts}
        assert found["fits.day03.half"] is found["fits.day03.float"] is Outcome.RIGHT

    def test_none_is_wrong_for_a_program_whose_configuration_is_known(self, comparison: Comparison) -> None:
        known = [each for each in comparison.verdicts if not each.row.doubtful]
        assert [each.row.id for each in known if each.outcome is Outcome.WRONG] == []

    def test_the_close_band_is_the_one_that_the_recorded_outcomes_leave_open(self) -> None:
        assert close_band() == close_band_of_record(recorded())

    def test_a_doubtful_program_does_not_widen_the_close_band(self) -> None:
        """EfficientNet's cut is a guess."""
        shares = {row.id: 0.9 if row.ran else 1.2 for row in published().verdicts}

        def band(changed: dict[str, float]) -> CloseBand:
            return close_band_of_record(msgspec.structs.replace(recorded(), shares={**shares, **changed}))

        assert band({"fits.B15": 1.5}) == band({})
        assert band({"fits.F3.22": 1.4995}) == (1.0, 1.5)

    def test_leaving_a_program_out_that_set_the_band_shows_what_it_was_worth(self) -> None:
        """The first of two that failed at 97.5 and 98.5 %: only the second is left, and the band begins at 98.4 %."""
        other = msgspec.structs.replace(FAILED, id="fits.c")
        known = [(RAN, 0.97), (FAILED, 0.975), (other, 0.985)]
        compared = [ComparedVerdict(row, share, Verdict.CLOSE) for row, share in known]
        assert [each.outcome for each in left_out_verdicts(compared, recorded().errors)] == [
            Outcome.RIGHT,
            Outcome.WRONG,
            Outcome.CLOSE,
        ]


class TestGrown:
    def test_larger_errors_are_found(self) -> None:
        assert grown([Compared(ROW, 106.0)], {"a": 0.05}) == (Compared(ROW, 106.0),)

    def test_an_error_of_the_other_sign_may_be_as_large(self) -> None:
        assert grown([Compared(ROW, 95.0)], {"a": 0.05}) == ()

    def test_unknown_rows_are_found(self) -> None:
        assert grown([Compared(ROW, 100.0)], {}) != ()

    def test_a_verdict_that_was_right_may_not_become_open(self) -> None:
        now = ComparedVerdict(RAN, 0.97, Verdict.CLOSE)
        assert worsened([now], {"fits.a": Outcome.RIGHT}) == (now,)
        assert worsened([now], {"fits.a": Outcome.CLOSE}) == worsened([now], {"fits.a": Outcome.WRONG}) == ()

    def test_record_and_bands_are_plain_json(self, tmp_path: Path) -> None:
        errors = {row.id: 0.06 for row in published().rows}
        files = (tmp_path / "record.json", tmp_path / "error_bands.json")
        write_record(Record(errors, {"fits.a": 0.97}, {"fits.a": Outcome.CLOSE}), *files)
        record, bands = (json.loads(file.read_text()) for file in files)
        assert record["errors"]["mlperf.step"] == 0.06
        assert record["outcomes"] == {"fits.a": "too close to call"}
        assert bands["inference"]["rows"] == sum(Family.INFERENCE in row.families for row in published().rows)


class TestBands:
    def test_the_bands_in_use_are_those_of_the_recorded_errors(self) -> None:
        assert family_bands() == bands_of(recorded().errors)

    def test_a_family_is_as_uncertain_as_its_rows_were_wrong_that_day_and_are_today(self) -> None:
        """The row of grouped convolutions was 29.5 % off when it was scored and is 20 % off here: twice the root mean
        square, times sqrt(1 + 1/1) because it is a single measurement."""
        logs = [math.log(10682 / 8263), math.log(1.2)]
        width = 2 * math.sqrt((logs[0] ** 2 + logs[1] ** 2) / 2) * math.sqrt(2)
        errors = {**{row.id: 0.0 for row in published().rows}, "blind.B15": 0.2}
        assert bands_of(errors)[Family.GROUPED] == FamilyBand(
            round(math.exp(-width), 3), round(math.exp(width), 3), rows=1, largest_error=0.2
        )

    def test_rows_of_one_measurement_count_as_one(self) -> None:
        """Three rows of one trace: their spread, times sqrt(2) as for a single measurement."""
        trace = [row for row in published().rows if Family.SMALL in row.families]
        assert len(trace) == 3
        errors = {row.id: row.earlier_error or 0.0 for row in published().rows}
        logs = [math.log1p(errors[row.id]) for row in trace]
        factor = math.exp(2 * math.sqrt(sum(each * each for each in logs) / 3) * math.sqrt(2))
        assert bands_of(errors)[Family.SMALL].high == pytest.approx(factor, abs=0.001)

    def test_fitted_rows_and_arithmetic_narrow_no_band(self) -> None:
        evidence = {row.kind for row in published().rows if row.families}
        assert evidence <= {Kind.PREDICTION, Kind.SCORED_BLIND}


@pytest.fixture(scope="module")
def left_out() -> tuple[tuple[LeftOut, ...], tuple[Untested, ...]]:
    return leave_one_out()


class TestOtherConstants:
    def test_a_row_follows_the_constants_that_it_is_asked_with(self) -> None:
        """A call of the host that takes a second longer: 1 / (t + 1) calls a second in place of 1 / t."""
        usual = calibrated()
        slower = usual.with_values({"host.call_seconds": usual.host.call_seconds + 1})
        before, after = (Predictions(each).value("day03.calls.ga3") for each in (usual, slower))
        assert 1 / after == pytest.approx(1 / before + 1)
        assert Predictions().value("day03.calls.ga3") == before

    def test_memory_follows_them_too(self) -> None:
        """Ten times the code of exchanges fills the fullest tile further, whatever was modelled before."""
        usual = calibrated()
        more = usual.with_values(
            {"memory.exchange_code_bytes_per_phase": 10 * usual.memory.exchange_code_bytes_per_phase}
        )
        before, after = (Predictions(each).value("day03.memory.half") for each in (usual, more))
        assert after > 1.05 * before


class TestLeaveOneOut:
    def test_every_fitted_row_is_tested_or_says_why_not(self, left_out: tuple) -> None:
        tested, untested = left_out
        assert {each.row.id for each in (*tested, *untested)} == {
            row.id for row in published().rows if row.kind is Kind.FITTED
        }

    def test_the_phases_of_one_trace_are_not_independent(self, left_out: tuple) -> None:
        """Two traces: the third row that they give is their difference, which any two determine."""
        assert "day03.micro_batch.stream_copy_begin" in {each.row.id for each in left_out[1]}

    def test_compilations_of_other_programs_are_independent(self, left_out: tuple) -> None:
        tested = {each.row.id: each for each in left_out[0]}
        assert abs(tested["day03.compilation"].without) < 0.25
        assert abs(tested["day03.compilation"].without) > abs(tested["day03.compilation"].with_all)

    def test_a_constant_with_one_row_only_is_named(self, left_out: tuple) -> None:
        found = {each.row.id: each.constants for each in left_out[1]}
        assert found["mnist.calls"] == ("published_host.mnist_image_seconds",)
        assert "published_host.mnist_image_seconds" in left_out_text(*left_out)


class TestText:
    def test_five_lines_come_first_and_begin_with_the_blind_scores(self, comparison: Comparison) -> None:
        lines = trust(comparison, bands_of(recorded().errors))
        assert len(lines) == 5
        assert lines[0].startswith("Scored blind")
        assert "5.1% at the median, on 26 published rows" in lines[0]
        assert "11.0% at the median, 45% at worst, on 12 training programs of transformers" in lines[0]
        assert "15 rows were released since then" in lines[1]
        assert "On the day of scoring, the median error was 6.9% and the largest 34.3%." in lines[1]
        assert "16 programs that ran or were out of memory: 9 right, 7 too close to call, 0 wrong" in lines[3]
        assert f"If each of all {len(published().verdicts)} is left out in turn" in lines[3]
        text = comparison_text(comparison)
        assert text.index(lines[0][:50]) < text.index("\nScored blind ") < text.index("\nFitted ")

    def test_a_part_of_the_verdicts_is_not_enough_to_leave_one_out(self, comparison: Comparison) -> None:
        """Without one of them, what is too close follows from all the others, of which a part would give too little."""
        part = replace(comparison, verdicts=comparison.verdicts[:-1])
        lines = trust(part, bands_of(recorded().errors))
        assert "whose outcome is known here" in lines[3]
        assert "left out" not in lines[3]

    def test_every_row_has_a_line_with_its_error(self, comparison: Comparison) -> None:
        lines = comparison_text(comparison).splitlines()
        for each in comparison.numbers:
            assert any(each.row.what in line and f"{each.error:+.1%}" in line for line in lines)

    def test_the_page_has_a_table_for_each_kind_and_one_for_memory(self, comparison: Comparison) -> None:
        page = comparison_markdown(comparison)
        headings = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
        assert headings == ["How far to trust the model", "Scored blind", "Predictions", "Fitted", "Arithmetic",
                            "Cuts that are not published", "Memory: what ran and what did not"]  # fmt: skip

    def test_an_uneven_cut_of_a_program_is_slower_than_its_even_one(
        self, comparison: Comparison, compared: dict[str, Compared]
    ) -> None:
        """A pipeline is as fast as its slowest stage, and the rows assume stages of about the same time."""
        assert {each.row.id for each in comparison.cuts} == {"blind.B13", "blind.B15"}
        assert all(each.modelled < compared[each.row.id].modelled for each in comparison.cuts)
        page = comparison_markdown(comparison)
        assert all(f"| {each.cut} |" in page and f"| {each.error:+.1%} |" in page for each in comparison.cuts)

    def test_constants_come_with_their_sources(self) -> None:
        assert "stream.ipu_bytes_per_second" in constants_text()
        assert "Calibrated on day03-resnet101" in constants_text()


class TestBadInput:
    def test_unknown_groups_are_listed(self) -> None:
        with pytest.raises(Error, match=r"No published row begins with day04.*amp, blind, day03, fits, gemm, guide"):
            compare_rows(["day04"])

    def test_a_row_without_a_value_is_refused(self) -> None:
        with pytest.raises(Error, match=r"published.toml: Object missing required field `value` - at `\$.row\[0\]`"):
            read(b'[[row]]\nid = "x"\nwhat = "y"\nkind = "prediction"')

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"kind": "fitted"}, r"a fitted row cannot settle \[\]"),
            ({"settles": ["cost.sync_cycles"]}, "a prediction row cannot settle"),
            ({"kind": "scored blind"}, "a scored blind row cannot have the blind value None"),
            ({"kind": "guess"}, "guess"),
            ({"kind": "arithmetic", "before": 90.0}, "only predictions have"),
        ],
    )
    def test_a_kind_that_contradicts_the_row_is_refused(self, change: dict, said: str) -> None:
        row = {**msgspec.to_builtins(ROW), **change}
        lines = [f"{name} = {json.dumps(value)}" for name, value in row.items() if value is not None]
        with pytest.raises(Error, match=said):
            read("\n".join(["[[row]]", *lines]).encode())

    def test_torchvision_is_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torchvision", None)  # importing it fails then
        convolutional.mlperf_resnet50.cache_clear()
        with pytest.raises(Error, match="The published programs use torchvision"):
            compare_rows(["mlperf"])
