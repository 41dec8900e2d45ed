"""Calibration constants are read once, carry unit and source, and can be replaced by passing others."""

from __future__ import annotations

import pytest

from ipu_model.errors import Error
from ipu_model.predict.calibration import calibrated, constant_facts


def test_every_entry_of_the_file_has_a_field_with_its_value() -> None:
    found = {
        f"{section}.{name}": getattr(getattr(calibrated(), section), name)
        for section, facts in constant_facts().items()
        for name in facts
    }
    expected = {f"{s}.{name}": fact.value for s, facts in constant_facts().items() for name, fact in facts.items()}
    assert found == expected


def test_every_constant_has_a_unit_a_source_and_one_of_four_labels() -> None:
    for facts in constant_facts().values():
        for name, fact in facts.items():
            assert fact.unit, name
            assert fact.source, name
            assert fact.confidence in ("published", "derived", "estimated", "fitted"), name


def test_other_values_leave_the_calibration_itself_and_all_other_constants_as_they_are() -> None:
    before = calibrated()
    changed = before.with_values({"cost.sync_cycles": 500, "memory.close_low": 0.5})
    assert (changed.cost.sync_cycles, changed.memory.close_low) == (500, 0.5)
    assert changed.cost.exchange_fixed_cycles == before.cost.exchange_fixed_cycles
    assert calibrated() == before
    assert changed != before


def test_unknown_constants_are_refused_by_name() -> None:
    with pytest.raises(Error, match=r"no constant cost\.speed"):
        calibrated().with_values({"cost.speed": 1})


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_numbers_that_no_machine_has_are_refused(value: float) -> None:
    with pytest.raises(Error, match="sync_cycles cannot be"):
        calibrated().with_values({"cost.sync_cycles": value})
