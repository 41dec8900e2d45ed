"""Writing a report into a folder."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from report_support import ADVICE, inference_profile

from ipu_model.errors import Error
from ipu_model.report import profile_json
from ipu_model.report.files import write_report
from ipu_model.report.text_files import write_text


def test_a_report_is_three_files_in_a_folder_that_is_made(tmp_path) -> None:
    folder = tmp_path / "runs" / "first"
    files = write_report(inference_profile(), str(folder), ADVICE)
    assert sorted(file.name for file in folder.iterdir()) == ["profile.json", "report.html", "trace.json"]
    assert profile_json.read(files.profile) == inference_profile()
    assert ADVICE[0].change in files.html.read_text(encoding="utf-8")
    assert json.loads(files.trace.read_text(encoding="utf-8"))["traceEvents"]


def test_the_same_profile_gives_the_same_files(tmp_path) -> None:
    for name in ("a", "b"):
        write_report(inference_profile(), tmp_path / name)
    for name in ("profile.json", "report.html", "trace.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_second_report_takes_the_place_of_the_first(tmp_path) -> None:
    write_report(inference_profile(), tmp_path)
    write_report(replace(inference_profile(), name="second"), tmp_path)
    assert profile_json.read(tmp_path).name == "second"
    assert len(list(tmp_path.iterdir())) == 3


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(Error, match="taken cannot be made"):
        write_report(inference_profile(), tmp_path / "taken")
    with pytest.raises(Error, match="below cannot be made"):
        write_report(inference_profile(), tmp_path / "taken" / "below")


def test_a_profile_that_cannot_be_written_writes_nothing(tmp_path) -> None:
    with pytest.raises(Error, match="above 0"):
        write_report(replace(inference_profile(), samples_per_call=0), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_replaced_leaves_no_half_of_a_new_one(tmp_path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(Error, match=r"page\.html cannot be written: Is a directory"):
        write_text(tmp_path / "page.html", "text")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
