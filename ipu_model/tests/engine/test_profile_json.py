"""The JSON form of a profile: exact in both directions; what is no profile is refused with the field's name."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from report_strategies import PROFILES
from report_support import inference_profile, pipeline_profile

from ipu_model.errors import Error
from ipu_model.predict.profile import FORMAT, OpProfile, Profile
from ipu_model.report import profile_json, text_files
from ipu_model.report.profile_json import from_json, to_json

FORMAT_1 = Path(__file__).with_name("profile_format_1.json")
"""`inference_profile()` as the first version that had a file format wrote it."""


OP_FIELDS = len(fields(OpProfile))


def changed(edit, profile: Profile | None = None) -> str:
    """Return the JSON of a profile after `edit` changed its data in place."""
    data = json.loads(to_json(profile or inference_profile()))
    edit(data)
    return json.dumps(data)


def without(name: str):
    return lambda data: data.pop(name)


class TestRoundTrip:
    @given(PROFILES)
    def test_every_profile_comes_back_equal(self, profile: Profile) -> None:
        assert from_json(to_json(profile)) == profile

    def test_a_large_profile_is_compact_and_plain_ascii(self) -> None:
        profile = pipeline_profile()
        text = to_json(profile)
        assert from_json(text) == profile
        assert text.isascii()
        # 2 x 1472 tiles and 640 liveness steps of up to 3 numbers and 702 ops of 16 values: about 100 bytes a row
        assert len(text) < 100 * (2 * 1472 + 640 + 702)

    def test_integers_stay_integers_and_floats_floats(self) -> None:
        profile = replace(inference_profile(), options={"a": 1, "b": 1.0, "c": True, "d": "1"})
        assert [type(value) for value in from_json(to_json(profile)).options.values()] == [int, float, bool, str]

    def test_numbers_of_numpy_are_numbers(self) -> None:
        profile = replace(inference_profile(), samples_per_call=np.int64(3), call_seconds=np.float64(0.1))
        assert from_json(to_json(profile)) == profile

    def test_a_mistake_in_a_profile_is_found_when_it_is_written(self) -> None:
        with pytest.raises(Error, match=r"profile\.compilation_seconds is inf: it must be a finite number"):
            to_json(replace(inference_profile(), compilation_seconds=float("inf")))
        with pytest.raises(Error, match=r"profile\.options\['rate'\] is nan: it must be a finite number"):
            to_json(replace(inference_profile(), options={"rate": float("nan")}))
        with pytest.raises(Error, match=r"profile\.call_seconds cannot be 0\.0: it must be above 0"):
            to_json(replace(inference_profile(), call_seconds=0.0))
        with pytest.raises(Error, match=r"profile\.notes\[0\]: expected `str`, got `int`"):
            to_json(replace(inference_profile(), notes=(3,)))  # type: ignore[arg-type]


class TestRefused:
    @pytest.mark.parametrize("version", [FORMAT + 1, 0, "1", None, True, [FORMAT]])
    def test_another_format(self, version: object) -> None:
        with pytest.raises(Error, match=rf"has format .*, and this version reads format {FORMAT} only. Another"):
            from_json(changed(lambda data: data.update(format=version)))

    def test_the_file_of_an_earlier_version_says_to_run_the_program_again(self, tmp_path) -> None:
        with pytest.raises(Error, match=r"profile_format_1\.json: .* An earlier version .*: run or model the program"):
            profile_json.read(FORMAT_1)

    @pytest.mark.parametrize("name", [name for name in json.loads(to_json(inference_profile())) if name != "format"])
    def test_a_missing_field_is_named(self, name: str) -> None:
        with pytest.raises(Error, match=f"profile: object missing required field `{name}`"):
            from_json(changed(without(name)))

    def test_an_unknown_field_is_named(self) -> None:
        with pytest.raises(Error, match="profile: object contains unknown field `speed`"):
            from_json(changed(lambda data: data.update(speed=1)))

    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (lambda d: d.update(name=3), r"profile\.name: expected `str`, got `int`"),
            (lambda d: d.update(training=1), r"profile\.training: expected `bool`, got `int`"),
            (lambda d: d.update(samples_per_call=1.5), r"profile\.samples_per_call: expected `int`, got `float`"),
            (lambda d: d.update(samples_per_call=True), r"profile\.samples_per_call: expected `int`, got `bool`"),
            (lambda d: d.update(call_seconds="1"), r"profile\.call_seconds: expected `float`, got `str`"),
            (lambda d: d.update(call_seconds=None), r"profile\.call_seconds: expected `float`, got `null`"),
            (lambda d: d.update(machine=[]), r"profile\.machine: expected `object`, got `array`"),
            (lambda d: d["machine"].pop("tiles"), r"profile\.machine: object missing required field `tiles`"),
            (lambda d: d.update(notes="x"), r"profile\.notes: expected `array`, got `str`"),
            (lambda d: d.update(notes=[{}]), r"profile\.notes\[0\]: expected `str`, got `object`"),
            (lambda d: d.update(shares={"main": "x"}), r"profile\.shares\[\.\.\.\]: expected `float`, got `str`"),
            (lambda d: d.update(options={"x": []}), r"profile\.options\[\.\.\.\]: expected `.*str.*`, got `array`"),
            (lambda d: d.update(ops=[]), r"profile\.ops: expected `object`, got `array`"),
            (lambda d: d["ops"].pop("rows"), r"profile\.ops: object missing required field `rows`"),
            (
                lambda d: d["ops"]["columns"].append("speed"),
                rf"profile\.ops\.columns: expected `array` of length {OP_FIELDS}, got {OP_FIELDS + 1}",
            ),
            (
                lambda d: d["ops"]["columns"].remove("plan"),
                rf"profile\.ops\.columns: expected `array` of length {OP_FIELDS}, got {OP_FIELDS - 1}",
            ),
            (
                lambda d: d["ops"]["columns"].__setitem__(1, "speed"),
                r"profile\.ops\.columns\[1\]: invalid enum value 'speed'",
            ),
            (
                lambda d: d["ops"]["rows"][0].pop(),
                rf"profile\.ops\[0\]: expected `array` of at least length {OP_FIELDS}, got {OP_FIELDS - 1}",
            ),
            (
                lambda d: d["timeline"]["rows"][0].__setitem__(2, "x"),
                r"profile\.timeline\[0\]\.start: expected `float`",
            ),
            (lambda d: d["timeline"]["rows"][0].__setitem__(3, -1), r"profile\.timeline\[0\] has -1\.0 seconds"),
            (
                lambda d: d["memory"]["ipus"]["rows"][0][1]["rows"][0].__setitem__(2, "x"),
                r"profile\.memory\.ipus\[0\]\.categories\[0\]\.total_bytes: expected `float`, got `str`",
            ),
            (lambda d: d["memory"]["ipus"]["rows"].clear(), r"profile\.memory\.ipus is empty"),
            (lambda d: d["machine"].update(clock_hz=0), r"profile\.machine\.clock_hz cannot be 0"),
            (
                lambda d: d.update(cycles={"columns": [], "rows": []}),
                r"profile\.cycles\.columns: expected `array` of length 8",
            ),
        ],
    )
    def test_a_field_of_another_type_or_size_is_named(self, edit, message: str) -> None:
        with pytest.raises(Error, match=message):
            from_json(changed(edit))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "not JSON"),
            ("{", "not JSON"),
            ("[]", "no field 'format'"),
            ("3", "no field 'format'"),
            ("{}", "no field 'format'"),
            ('{"format": NaN}', "holds NaN"),
            ('{"format": 1, "format": 1}', "the field 'format' twice"),
            ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
            ('{"format": ' + "9" * 5000 + "}", "not JSON"),
        ],
    )
    def test_other_text(self, text: str, message: str) -> None:
        with pytest.raises(Error, match=message):
            from_json(text)

    def test_a_number_beyond_all_floats(self) -> None:
        text = changed(lambda data: data["memory"]["ipus"]["rows"][0][2].__setitem__(5, "here"))
        with pytest.raises(Error, match=r"profile\.memory\.ipus\[0\]\.tiles\[5\] is inf: it must be a finite number"):
            from_json(text.replace('"here"', "1e999"))

    def test_a_huge_value_is_not_repeated_in_the_message(self) -> None:
        with pytest.raises(Error) as caught:
            from_json(changed(lambda data: data.update(training="x" * 10_000)))
        assert len(caught.value.message) < 200


class TestFiles:
    def test_a_profile_is_read_from_its_file_or_its_folder(self, tmp_path) -> None:
        profile = inference_profile()
        profile_json.write(profile, tmp_path / "profile.json")
        assert profile_json.read(tmp_path / "profile.json") == profile_json.read(tmp_path) == profile
        assert [file.name for file in tmp_path.iterdir()] == ["profile.json"]

    def test_a_folder_with_one_models_folder_is_enough(self, tmp_path) -> None:
        (tmp_path / "training").mkdir()
        profile_json.write(pipeline_profile(), tmp_path / "training" / "profile.json")
        assert profile_json.read(tmp_path) == pipeline_profile()

    def test_several_models_are_listed(self, tmp_path) -> None:
        for name in ("inference", "training"):
            (tmp_path / name).mkdir()
            profile_json.write(pipeline_profile(), tmp_path / name / "profile.json")
        with pytest.raises(Error, match=r"several profiles, choose one: .*inference, .*training"):
            profile_json.read(tmp_path)

    def test_a_file_larger_than_any_profile_is_refused_by_name(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr(text_files, "_MOST_CHARACTERS", 1000)
        (tmp_path / "profile.json").write_text(" " * 1001, encoding="utf-8")
        with pytest.raises(Error, match=r"profile\.json is too large"):
            profile_json.read(tmp_path)

    def test_an_error_names_the_file(self, tmp_path) -> None:
        file = tmp_path / "broken.json"
        file.write_text("{")
        with pytest.raises(Error, match=r"broken\.json: This is not JSON"):
            profile_json.read(file)
        with pytest.raises(Error, match=r"missing\.json cannot be read: No such file"):
            profile_json.read(tmp_path / "missing.json")
        with pytest.raises(Error, match=r"profile\.json cannot be read: No such file"):
            profile_json.read(tmp_path)
        file.write_bytes(b"\xff\xfe")
        with pytest.raises(Error, match="not a text file in UTF-8"):
            profile_json.read(file)

    def test_a_profile_that_cannot_be_written_leaves_the_file_as_it_was(self, tmp_path) -> None:
        file = tmp_path / "profile.json"
        profile_json.write(inference_profile(), file)
        before = file.read_bytes()
        with pytest.raises(Error, match="above 0"):
            profile_json.write(replace(inference_profile(), call_seconds=0.0), file)
        assert file.read_bytes() == before

    def test_a_folder_that_is_missing_is_an_error(self, tmp_path) -> None:
        with pytest.raises(Error, match="cannot be written: No such file"):
            profile_json.write(inference_profile(), tmp_path / "missing" / "profile.json")
