"""The constants of `data/calibration.toml`: explained, counted, and open to experiments."""

from __future__ import annotations

import pytest

from ipu_model.constants import calibration_in_use, constant_facts, constants_as, fitted, values
from ipu_model.errors import Error
from ipu_model.predict.calibration import CostConstants


class TestFacts:
    def test_every_constant_has_unit_source_and_confidence(self) -> None:
        for section, facts in constant_facts().items():
            for name, fact in facts.items():
                assert fact.unit, (section, name)
                assert len(fact.source) > 12, (section, name)
                assert fact.confidence in {"published", "derived", "estimated", "fitted"}, (section, name)

    def test_fitted_constants_name_what_they_were_calibrated_on(self) -> None:
        for name in fitted():
            section, constant = name.split(".")
            assert "Calibrated on" in constant_facts()[section][constant].source, name


class TestOtherNumbers:
    def test_they_hold_inside_the_with_only(self) -> None:
        before = calibration_in_use().cost.sync_cycles
        with constants_as({"cost.sync_cycles": 500}):
            assert calibration_in_use().cost.sync_cycles == 500
        assert calibration_in_use().cost.sync_cycles == before

    def test_the_rest_stays_as_it_is(self) -> None:
        with constants_as({"cost.sync_cycles": 500}):
            assert (
                values("cost", CostConstants).exchange_fixed_cycles == calibration_in_use().cost.exchange_fixed_cycles
            )

    def test_an_error_inside_restores_them(self) -> None:
        before = calibration_in_use().cost
        with pytest.raises(ZeroDivisionError), constants_as({"cost.sync_cycles": 1}):
            raise ZeroDivisionError
        assert calibration_in_use().cost == before

    def test_unknown_constants_are_refused(self) -> None:
        with pytest.raises(Error, match=r"no constant cost.speed"), constants_as({"cost.speed": 1}):
            pass

    def test_impossible_values_are_refused(self) -> None:
        with constants_as({"cost.sync_cycles": -1}), pytest.raises(Error, match="sync_cycles cannot be -1"):
            calibration_in_use()
