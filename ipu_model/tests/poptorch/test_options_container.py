"""What every option object does with its keys (options reference, section 1.1)."""

from __future__ import annotations

import pytest

from poptorch.enums import OutputMode
from poptorch.options import Options, TensorLocationSettings, _DistributedOptions


def test_options_take_no_arguments() -> None:
    with pytest.raises(TypeError):
        Options(4)  # type: ignore[call-arg]  # the point of the test


def test_stored_keys_read_as_attributes_and_by_calling() -> None:
    options = Options().deviceIterations(4)
    assert options.device_iterations == 4
    assert options("device_iterations") == 4


@pytest.mark.parametrize("name", ["random_seed", "no_such_key", "_private"])
def test_reading_a_key_that_is_not_stored_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"Invalid attribute {name}\."):
        getattr(Options(), name)
    with pytest.raises(AttributeError, match=rf"Invalid attribute {name}\."):
        Options()(name)
    assert not hasattr(Options(), name)


def test_a_misspelt_attribute_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(AttributeError, match="Did you mean device_iterations"):
        _ = Options().device_iteration


def test_attribute_assignment_is_set() -> None:
    options = Options()
    options.replication_factor = 4
    assert options.replication_factor == 4
    assert "replication_factor=4" in repr(options)
    options.Training.gradient_accumulation = 8
    assert options.Training.gradient_accumulation == 8


def test_assigning_to_a_method_explains_that_it_is_one() -> None:
    with pytest.raises(AssertionError, match=r"Invalid option deviceIterations\. .* is a method"):
        Options().deviceIterations = 4  # type: ignore[method-assign, assignment]  # the mistake under test


def test_set_refuses_unknown_keys_and_suggests_a_stored_one() -> None:
    with pytest.raises(AssertionError, match=r"Invalid option deviceIteration\. .* device_iterations\?"):
        Options().set(deviceIteration=4)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("device_iterations", 4.0),
        ("device_iterations", "4"),
        ("auto_round_num_ipus", 1),
        ("input_cgt", 1),
        ("log_dir", None),
        ("anchored_tensors", []),
    ],
)
def test_set_refuses_values_of_another_type(key: str, value: object) -> None:
    options = Options()
    with pytest.raises(AssertionError, match=f"Unexpected type .* for option {key}"):
        options.set(**{key: value})
    assert repr(options) == repr(Options())


def test_a_bool_counts_as_an_int_and_is_stored_as_given() -> None:
    assert Options().deviceIterations(True).device_iterations is True


@pytest.mark.parametrize("value", [0, -3])
def test_counts_have_no_range_check(value: int) -> None:
    options = Options().deviceIterations(value).replicationFactor(value)
    options.Training.gradientAccumulation(value)
    assert options.device_iterations == options.replication_factor == value
    assert options.Training.gradient_accumulation == value


def test_set_changes_nothing_if_one_of_its_values_is_refused() -> None:
    options = Options()
    with pytest.raises(AssertionError):
        options.set(device_iterations=3, replication_factor="2")
    assert options.device_iterations == 1


def test_create_or_set_fixes_the_type_with_the_first_value() -> None:
    options = Options()
    assert options.createOrSet(my_key=1) is options
    assert options.exists("my_key")
    assert options.createOrSet(my_key=2).my_key == 2
    with pytest.raises(AssertionError, match="Unexpected type <class 'str'> for option my_key"):
        options.createOrSet(my_key="three")


def test_delete_if_exists_is_silent() -> None:
    options = Options().modelName("mine")
    options.deleteIfExists("model_name")
    options.deleteIfExists("model_name")
    assert not options.exists("model_name")


def test_undeclared_private_attributes_are_refused() -> None:
    with pytest.raises(AttributeError, match="Invalid private attribute _foo"):
        Options()._foo = 1


def test_a_subclass_may_have_private_attributes_if_it_sets_them_first() -> None:
    class Own(Options):
        def __init__(self) -> None:
            self._machine = "pod"
            super().__init__()

    options = Own()
    options._machine = "bow"
    assert options.clone()._machine == "bow"
    assert "_machine" not in repr(options), "it is no setting"


def test_the_class_of_a_sub_option_object_may_be_replaced() -> None:
    class Locked(_DistributedOptions):
        def disable(self) -> Locked:
            raise RuntimeError("locked")

    options = Options()
    options.Distributed.__class__ = Locked
    with pytest.raises(RuntimeError, match="locked"):
        options.Distributed.disable()
    assert options.Distributed.numProcesses == 1


def test_the_six_sub_options_are_read_only() -> None:
    options = Options()
    for name in ("Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart"):
        with pytest.raises(AttributeError):
            setattr(options, name, getattr(options, name))


def test_update_merges_into_a_dict_and_refuses_keys_in_common() -> None:
    settings = TensorLocationSettings().useOnChipStorage(False)
    assert settings.update({"other": 1}) == {"other": 1, "onChip": 0}
    with pytest.raises(AssertionError, match="keys in common: onChip"):
        settings.update({"onChip": 1})


def test_to_dict_is_a_copy() -> None:
    settings = TensorLocationSettings().minElementsForOffChip(4)
    settings.toDict()["minElementsForOffChip"] = 5
    assert settings.minElementsForOffChip is not None
    assert settings.toDict() == {"minElementsForOffChip": 4}


def test_options_compare_by_identity() -> None:
    options = Options()
    assert options == options  # identity is the point
    assert Options() != Options()


def test_an_enum_member_equals_the_stored_int() -> None:
    assert Options().output_mode == OutputMode.Default
    assert type(Options().output_mode) is int
