"""Lesson 16: two layers fail for two reasons, every check means what it says, and the text tells what is computed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lesson_words import notes, outputs, text

from ipu_course.exercises import judge, letting_errors_through
from ipu_course.lessons.numerics_layer_by_layer import lesson
from ipu_course.lessons.numerics_layer_by_layer.exercises import CHOOSE, MEND, ROUND, UNIT_TEST, WINDOW_BY_LAYER
from ipu_course.lessons.numerics_layer_by_layer.faults_found import faults_found
from ipu_course.lessons.numerics_layer_by_layer.float64_check import reference_check, unit_test_cases
from ipu_course.lessons.numerics_layer_by_layer.layer_values import (
    ACTIVATION_GRADIENTS,
    GRADIENTS,
    LARGEST_HALF,
    UPDATED,
    WEIGHT_GRADIENTS,
    WEIGHTS,
    LayerValues,
    half_ulp,
    largest_gradient,
    range_shares,
)
from ipu_course.lessons.numerics_layer_by_layer.mending_check import MENDING_SCALE, NEAR, mended
from ipu_course.lessons.numerics_layer_by_layer.planted_faults import TESTED
from ipu_course.lessons.numerics_layer_by_layer.rounding_check import neighbours
from ipu_course.lessons.numerics_layer_by_layer.scaling_check import CASES, chosen_scaling, scaling_for, scaling_hint
from ipu_course.lessons.numerics_layer_by_layer.sensor_variants import SensibleUnits, mended_but_unit
from ipu_course.lessons.numerics_layer_by_layer.standstill import about, lost_updates
from ipu_course.lessons.numerics_layer_by_layer.two_sensors import (
    LAYERS,
    ROWS,
    SensorTraining,
    TwoSensors,
    readings,
    train,
)

HALF, SINGLE = torch.float16, torch.float32
HALF_NUMBERS = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trainings(one_thread: None) -> dict[str, SensorTraining]:
    return {
        "32.32": train(TwoSensors(), SINGLE),
        "16.16": train(TwoSensors().half(), HALF),
        "scaled": train(TwoSensors().half(), HALF, loss_scaling=MENDING_SCALE),
        "mended": train(mended(), HALF, loss_scaling=MENDING_SCALE),
        "stochastic": train(TwoSensors().half(), HALF, loss_scaling=MENDING_SCALE, stochastic_rounding=True),
    }


class TestTrainings:
    def test_each_ends_where_the_text_says(self, trainings: dict[str, SensorTraining]) -> None:
        assert 60 < trainings["16.16"].accuracy < 70  # the text: about 65
        found = {name: about(training.accuracy) for name, training in trainings.items() if name != "16.16"}
        assert found == {"32.32": 90, "scaled": 85, "mended": 90, "stochastic": 90}

    def test_no_training_gives_itself_away(self, trainings: dict[str, SensorTraining]) -> None:
        for training in trainings.values():
            assert training.finite
            assert training.losses[-1] < training.losses[0]

    def test_one_layer_needs_loss_scaling_and_another_one_something_else(
        self, trainings: dict[str, SensorTraining]
    ) -> None:
        way = {
            name: {layer: training.moved[layer] / trainings["32.32"].moved[layer] for layer in LAYERS}
            for name, training in trainings.items()
        }
        assert way["16.16"]["upper"] < 0.4  # the notes: 30 % of the way
        assert way["16.16"]["lower"] < 0.02
        assert way["scaled"]["upper"] > 0.9
        assert way["scaled"]["lower"] < 0.02
        for cure in ("mended", "stochastic"):
            assert all(share > 0.9 for share in way[cure].values())
        assert all(way[name][layer] > 0.9 for name in way for layer in ("mix", "head"))

    def test_the_mended_network_is_as_good_as_fp32(self, trainings: dict[str, SensorTraining]) -> None:
        assert trainings["mended"].accuracy > trainings["32.32"].accuracy - NEAR
        assert trainings["mended"].weight_bytes == 11_854
        assert trainings["16.16"].weight_bytes * 2 == trainings["32.32"].weight_bytes

    def test_each_cure_alone_is_not_enough(self) -> None:
        assert train(mended(), HALF).accuracy < 80
        assert train(TwoSensors().half(), HALF, stochastic_rounding=True).accuracy < 80

    def test_sensible_units_need_no_cure_and_an_op_in_fp16_undoes_one(
        self, trainings: dict[str, SensorTraining]
    ) -> None:
        sensible = train(SensibleUnits().half(), HALF)
        assert about(sensible.accuracy) == 95
        assert sensible.accuracy > trainings["32.32"].accuracy + 2
        narrow = train(mended_but_unit(), HALF, loss_scaling=MENDING_SCALE)
        assert narrow.finite
        assert narrow.accuracy < 60

    def test_the_sensors_share_the_digit_between_them(self) -> None:
        counts, volts, labels = readings(False, SINGLE)
        assert counts.shape == (len(labels), ROWS * 28)
        assert volts.shape == (len(labels), (28 - ROWS) * 28)
        assert float(counts.max()) == 4095
        assert float(volts.max()) == pytest.approx(0.002)

    def test_the_first_weights_are_the_same_and_leave_the_random_numbers_alone(self) -> None:
        before = torch.get_rng_state()
        first, second = TwoSensors(), TwoSensors()
        assert torch.equal(before, torch.get_rng_state())
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
        sizes = first.lower.weight.detach().abs()
        assert 16 <= float(sizes.min()) <= float(sizes.max()) <= 32


class TestRecord:
    def test_the_gradients_of_upper_vanish_and_its_weight_gradients_look_harmless(self, record: LayerValues) -> None:
        assert range_shares(record["upper", ACTIVATION_GRADIENTS]).zero == 1
        assert range_shares(record["upper", WEIGHT_GRADIENTS]).zero < 0.1
        assert all(range_shares(record[layer, ACTIVATION_GRADIENTS]).zero < 0.01 for layer in LAYERS[1:])

    def test_nothing_overflows_without_scaling(self, record: LayerValues) -> None:
        assert all(range_shares(tensor).overflow == 0 for tensor in record.values())

    def test_the_text_compares_the_gradients_of_the_two_sensors(self, record: LayerValues) -> None:
        """More than 2^15 times as large."""
        upper, lower = (float(record[layer, ACTIVATION_GRADIENTS].abs().max()) for layer in ("upper", "lower"))
        assert lower > 2**15 * upper

    def test_the_updates_of_lower_are_lost_and_no_others(self, record: LayerValues) -> None:
        assert lost_updates(record, "lower") > 0.99
        assert all(lost_updates(record, layer) < 0.2 for layer in ("upper", "mix", "head"))
        assert float(half_ulp(record["lower", WEIGHTS]).median()) == 2**-7

    def test_the_window_of_exercise_1_is_that_of_the_record(self, record: LayerValues) -> None:
        exponents = range(0, 33, 4)
        enough = [e for e in exponents if range_shares(record["upper", ACTIVATION_GRADIENTS], e).zero < 0.01]
        safe = [e for e in exponents if largest_gradient(record) * 2.0**e <= LARGEST_HALF]
        layers = {layer: max(float(record[layer, kind].abs().max()) for kind in GRADIENTS) for layer in LAYERS}
        first = max(layers, key=lambda layer: layers[layer])
        assert WINDOW_BY_LAYER.find_hint(enough[0], safe[-1], first) is None
        assert range_shares(record["upper", ACTIVATION_GRADIENTS], 8).zero == pytest.approx(0.03, abs=0.005)

    def test_the_choice_with_five_powers_of_headroom_is_the_scaling_of_the_check(self, record: LayerValues) -> None:
        assert scaling_for(..., record, headroom=5) == MENDING_SCALE

    def test_an_update_is_what_the_text_says(self, record: LayerValues) -> None:
        updates = (record["lower", UPDATED] - record["lower", WEIGHTS]).abs()
        assert f"{float(updates.median()):.1g}" == "0.001"


class TestRanges:
    @pytest.mark.parametrize(
        ("value", "kind"),
        [(2.0**-25, "zero"), (2.0**-24, "subnormal"), (1.01 * 2.0**-25, "subnormal"), (2.0**-14, "normal"),
         (65504.0, "normal"), (65536.0, "overflow"), (-1e-9, "zero")],
    )  # fmt: skip
    def test_each_value_is_counted_where_fp16_puts_it(self, value: float, kind: str) -> None:
        assert getattr(range_shares(torch.tensor([value, 0.0])), kind) == 1

    def test_zeros_do_not_count(self) -> None:
        assert range_shares(torch.zeros(3)) == (0, 0, 0)
        assert range_shares(torch.tensor([0.0, 0.0, 1e-9, 1.0])).zero == 0.5

    @given(st.floats(2.0**-24, 60_000, width=32))
    def test_half_an_ulp_is_half_the_distance_to_the_next_number(self, value: float) -> None:
        number = torch.tensor(value).half()
        following = (number.view(torch.int16) + 1).view(torch.float16)
        assert float(half_ulp(number)) * 2 == float(following.double() - number.double())

    @given(st.floats(-60_000, 60_000, width=32))
    def test_neighbours_are_the_nearest_numbers_on_both_sides(self, value: float) -> None:
        low, high = neighbours(value)
        grid = HALF_NUMBERS[HALF_NUMBERS.isfinite()].double()
        assert low == float(grid[grid <= value].max())
        assert high == float(grid[grid >= value].min())


class TestScaling:
    @given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=5), st.integers(0, 8))
    def test_the_choice_is_the_largest_that_fits(self, sizes: list[float], headroom: int) -> None:
        gradients = [torch.tensor([size, 0.0]) for size in sizes]
        scaling = chosen_scaling(gradients, headroom)
        largest = max(float(each.abs().max()) for each in gradients)
        assert math.log2(scaling) % 1 == 0
        assert largest * scaling * 2**headroom <= LARGEST_HALF < largest * scaling * 2 ** (headroom + 1)

    def test_the_check_knows_eight_distributions(self) -> None:
        assert len(CASES) == 8
        assert "eight distributions" in text("16")

    def test_a_wrong_function_is_not_used(self, record: LayerValues) -> None:
        assert scaling_for(lambda gradients, headroom: 3.0, record, 5) == MENDING_SCALE
        assert scaling_for(lambda gradients: 1 / 0, record, 5) == MENDING_SCALE


class TestUnitTests:
    def test_the_reference_passes_right_layers_and_fails_all_others(self) -> None:
        cases = unit_test_cases()
        assert [reference_check(case.layer, case.inputs, case.roundings) for case in cases] == [
            case.passes for case in cases
        ]
        assert sum(case.passes for case in cases) == 9  # the task: nine right and six wrong pairs
        assert len(cases) == 15

    def test_the_usual_inputs_find_nothing(self) -> None:
        assert faults_found() == 0

    def test_a_layer_and_its_faulty_twin_agree_in_float64(self) -> None:
        for each in TESTED:
            inputs = each.inputs.double()
            torch.testing.assert_close(each.right()(inputs), each.faulty()(inputs), rtol=1e-9, atol=1e-9)

    def test_a_tolerance_for_each_output_fails_a_right_softmax(self) -> None:
        """The notes say so."""

        def own_ulps(layer: Any, inputs: Any, roundings: int) -> bool:
            from ipu_course.lessons.numerics_layer_by_layer.planted_faults import in_half

            exact = layer.double()(inputs.double())
            return bool(((in_half(layer, inputs).double() - exact).abs() <= roundings * half_ulp(exact)).all())

        softmax = TESTED[0]
        assert not own_ulps(softmax.right(), softmax.inputs, softmax.roundings)


class TestText:
    def test_the_notes_have_the_numbers_of_the_notebook(self) -> None:
        assert "computed: 100" in outputs("16")
        assert "computed: 85" in outputs("16")
        assert "computed: 0" in outputs("16")
        assert "loss scaling: 2^20" in outputs("16")
        assert "11,854 bytes" in notes("numerics_layer_by_layer")
        assert "11,854" in outputs("16")

    def test_the_chance_of_the_example_is_right(self) -> None:
        low, high = neighbours(24.003)
        assert (low, high) == (24.0, 24.015625)
        assert round(100 * (24.003 - low) / (high - low)) == 19
        assert "about 19 % of all cases" in text("16")


ANSWERS = st.one_of(
    st.none(), st.text(max_size=3), st.integers(), st.floats(), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from([*LAYERS, "a"]), st.text(max_size=3)), st.just(len), st.just(TwoSensors),
    st.just(lambda *given: None), st.just(lambda *given: given[0]),
)  # fmt: skip


@given(ANSWERS, ANSWERS)
def test_no_answer_makes_a_check_raise(answer: object, other: object) -> None:
    reference = SensorTraining((1.0,), 90.0, dict.fromkeys(LAYERS, 1.0), 1)
    with letting_errors_through():
        judge(WINDOW_BY_LAYER, [answer, other, answer])
        judge(MEND, [answer, other], reference)
    for exercise in (CHOOSE, ROUND, UNIT_TEST):
        assert judge(exercise, [answer]).correct is not True


def test_the_lesson_has_its_number() -> None:
    assert lesson.number == "16"
    assert scaling_hint(chosen_scaling) is None
