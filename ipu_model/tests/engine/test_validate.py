"""Every published row against the model: as near as wanted, and never further than when last recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ipu_model.errors import Error
from ipu_model.predict.calibration import calibrated, constant_facts, fitted
from ipu_model.validate import comparison
from ipu_model.validate.comparison import (
    Compared,
    Row,
    compare_rows,
    grown,
    published_rows,
    recorded_errors,
    write_record,
)
from ipu_model.validate.leave_one_out import LeftOut, leave_one_out
from ipu_model.validate.predictions import Predictions
from ipu_model.validate.programs import resnet
from ipu_model.validate.text import comparison_text, constants_text, left_out_text


@pytest.fixture(scope="module")
def compared() -> dict[str, Compared]:
    return {each.row.id: each for each in compare_rows()}


class TestRows:
    @pytest.mark.parametrize("row", published_rows(), ids=lambda row: row.id)
    def test_the_model_is_as_near_as_wanted(self, row: Row, compared: dict[str, Compared]) -> None:
        assert abs(compared[row.id].error) <= row.wanted

    def test_no_error_has_grown(self, compared: dict[str, Compared]) -> None:
        """The record is written by `python -m ipu_model validate --record`."""
        assert grown(compared.values(), recorded_errors()) == ()

    def test_the_record_knows_every_row_and_no_other(self) -> None:
        assert set(recorded_errors()) == {row.id for row in published_rows()}

    def test_ids_are_unique_and_have_predictions(self) -> None:
        ids = [row.id for row in published_rows()]
        assert len(set(ids)) == len(ids)
        assert all(each in Predictions() for each in ids)

    def test_rows_settle_constants_that_exist(self) -> None:
        """Of calibration.toml, or rates of the host link, which machines.toml takes as they were measured."""
        known = {f"{section}.{name}" for section, facts in constant_facts().items() for name in facts}
        known |= {"machines.host_to_device", "machines.device_to_host"}
        assert {name for row in published_rows() for name in row.settles} <= known

    def test_each_fitted_constant_has_a_row(self) -> None:
        assert set(fitted()) <= {name for row in published_rows() for name in row.settles}


class TestVerdicts:
    def test_half_precision_fits_and_single_precision_does_not(self, compared: dict[str, Compared]) -> None:
        """published/day03-resnet101.md: 32.32 is out of memory, limit 624 KiB; 16.16 runs."""
        assert compared["day03.memory.half"].modelled < 624 < compared["day03.memory.float"].modelled

    def test_the_trace_adds_up(self, compared: dict[str, Compared]) -> None:
        phases = [
            c for name, c in compared.items() if name.startswith("day03.trace.ga8.") and not name.endswith("total")
        ]
        assert sum(each.modelled for each in phases) == pytest.approx(compared["day03.trace.ga8.total"].modelled)


class TestGrown:
    ROW = Row("a", "a row", 100.0, "cycles", "somewhere", 0.1, ())

    def test_larger_errors_are_found(self) -> None:
        assert grown([Compared(self.ROW, 106.0)], {"a": 0.05}) == (Compared(self.ROW, 106.0),)

    def test_an_error_of_the_other_sign_may_be_as_large(self) -> None:
        assert grown([Compared(self.ROW, 95.0)], {"a": 0.05}) == ()

    def test_unknown_rows_are_found(self) -> None:
        assert grown([Compared(self.ROW, 100.0)], {}) != ()

    def test_the_record_is_plain_json(self, tmp_path: Path) -> None:
        write_record([Compared(self.ROW, 106.0)], tmp_path / "record.json")
        assert json.loads((tmp_path / "record.json").read_text()) == {"a": 0.06}


@pytest.fixture(scope="module")
def found() -> dict[str, LeftOut]:
    return {each.row.id: each for each in leave_one_out()}


class TestOtherConstants:
    def test_a_row_follows_the_constants_that_it_is_asked_with(self) -> None:
        """A call of the host that takes a second longer: 1 / (t + 1) calls a second in place of 1 / t."""
        usual = calibrated()
        slower = usual.with_values({"host.call_seconds": usual.host.call_seconds + 1})
        before, after = (Predictions(each)["day03.calls.ga3"] for each in (usual, slower))
        assert 1 / after == pytest.approx(1 / before + 1)
        assert Predictions()["day03.calls.ga3"] == before

    def test_memory_follows_them_too(self) -> None:
        """Ten times the code of exchanges fills the fullest tile further, whatever was modelled before."""
        usual = calibrated()
        more = usual.with_values(
            {"memory.exchange_code_bytes_per_phase": 10 * usual.memory.exchange_code_bytes_per_phase}
        )
        before, after = (Predictions(each)["day03.memory.half"] for each in (usual, more))
        assert after > 1.05 * before


class TestLeaveOneOut:
    def test_one_line_for_every_row_with_a_fitted_constant(self, found: dict[str, LeftOut]) -> None:
        assert set(found) == {row.id for row in published_rows() if set(row.settles) & set(fitted())}

    def test_a_constant_with_one_row_only_is_not_tested(self, found: dict[str, LeftOut]) -> None:
        assert found["mnist.calls"].without is None

    def test_as_text(self, found: dict[str, LeftOut]) -> None:
        assert "no other row" in left_out_text(found.values())


class TestText:
    def test_every_row_has_a_line_with_its_error(self, compared: dict[str, Compared]) -> None:
        text = comparison_text(list(compared.values()))
        for each in compared.values():
            assert any(each.row.what in line and f"{each.error:+.1%}" in line for line in text.splitlines())

    def test_fitted_rows_are_marked(self, compared: dict[str, Compared]) -> None:
        lines = comparison_text(list(compared.values())).splitlines()
        assert sum(line.endswith(" fitted") for line in lines) == sum(row.is_fitted for row in published_rows())

    def test_constants_come_with_their_sources(self) -> None:
        assert "stream.ipu_bytes_per_second" in constants_text()
        assert "Calibrated on day03-resnet101" in constants_text()


class TestBadInput:
    def test_unknown_groups_are_listed(self) -> None:
        with pytest.raises(
            Error, match=r"No published row begins with day04.*amp, day03, gemm, link, mlperf, mnist, small, triad"
        ):
            compare_rows(["day04"])

    def test_a_row_without_a_value_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(comparison, "read_data", lambda name: {"row": [{"id": "x", "what": "y"}]})
        with pytest.raises(Error, match="row 'x': Object missing required field `value`"):
            comparison.published_rows.__wrapped__()

    def test_torchvision_is_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torchvision", None)  # importing it fails then
        resnet.mlperf_resnet50.cache_clear()
        with pytest.raises(Error, match="The published programs use torchvision"):
            compare_rows(["mlperf"])
