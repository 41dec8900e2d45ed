"""Profiling leaves a report of the performance model in `<folder>/<model name>/` (options reference 3.2)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from modelling_support import Chain, quiet

import ipu_model
import poptorch
from ipu_model import HostWork

VARIABLE = "POPLAR_ENGINE_OPTIONS"
X = torch.ones(2, 8)


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def compiled(options: poptorch.Options) -> poptorch.PoplarExecutor:
    executor = poptorch.inferenceModel(Chain(1), options)
    executor.compile(X)
    return executor


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def reports(name: str) -> set[str]:
    return {f"{name}/{file}" for file in ("profile.json", "program.ipu", "report.html", "trace.json")}


def test_nothing_is_written_unless_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compiled(quiet())(X)
    assert files(tmp_path) == set()


def test_compiling_writes_it_and_the_log_says_where(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        compiled(quiet().enableProfiling(str(tmp_path)).modelName("net"))
    assert reports("net") <= files(tmp_path)
    assert f"report of the model 'net' is in {tmp_path / 'net'}" in caplog.text


def test_training_and_inference_have_folders_of_their_own(tmp_path: Path) -> None:
    model = Chain(1)
    options = quiet().enableProfiling(str(tmp_path))
    poptorch.trainingModel(model, options).compile(X, X)
    poptorch.inferenceModel(model, options).compile(X)
    assert reports("training") | reports("inference") <= files(tmp_path)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("a/b", "a_b"), ("../up", ".._up"), ("/root", "_root"), ("..", "_.."), (".", "_."), ("", "_"),
        ("zero\0byte", "zero_byte"), ("half\ud800", "half_"), ("ResNet ü✓", "ResNet ü✓"), ("x" * 300, "x" * 200),
        ("é" * 150, "é" * 100),
    ],
)  # fmt: skip
def test_a_models_name_is_the_name_of_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    """Separators, what no file system takes and names that are too long for one never lead to another place."""
    compiled(quiet().enableProfiling(str(tmp_path / "here")).modelName(name))
    assert {file.parent for file in tmp_path.rglob("profile.json")} == {tmp_path / "here" / folder}


def test_the_default_folder_is_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compiled(quiet().enableProfiling())
    assert reports("inference") <= files(tmp_path)


def test_the_environment_asks_for_it_and_its_folder_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    monkeypatch.setenv(VARIABLE, json.dumps({"autoReport.all": "true", "autoReport.directory": str(there)}))
    compiled(quiet().enableProfiling(str(tmp_path / "here")))
    assert {"profile.json", "program.ipu", "report.html", "trace.json"} == files(there)
    assert not (tmp_path / "here").exists()


def test_further_models_get_folders_in_the_environments_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"autoReport.all": "true", "autoReport.directory": str(tmp_path)}))
    for _ in range(2):
        compiled(quiet().modelName("first"))
        compiled(quiet().modelName("second"))
    assert json.loads((tmp_path / "profile.json").read_text())["name"] == "first"
    assert files(tmp_path) == {"profile.json", "program.ipu", "report.html", "trace.json"} | reports("second")


def test_the_environment_switches_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"autoReport.all": "false"}')
    compiled(quiet().enableProfiling(str(tmp_path)))
    assert files(tmp_path) == set()


def test_an_offline_target_is_enough(tmp_path: Path) -> None:
    compiled(quiet().useOfflineIpuTarget().enableProfiling(str(tmp_path)))
    assert reports("inference") <= files(tmp_path)


def test_it_holds_the_executors_profile(tmp_path: Path) -> None:
    executor = compiled(quiet().enableProfiling(str(tmp_path)))
    written = json.loads((tmp_path / "inference" / "profile.json").read_text())
    profile = ipu_model.profile(executor, host=HostWork())
    assert written["device_seconds_per_call"] == pytest.approx(profile.device_seconds_per_call)
    assert len(written["timeline"]) == len(profile.timeline) > 0


def test_without_the_execution_profile_it_has_no_timeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, '{"autoReport.outputExecutionProfile": "false"}')
    compiled(quiet().enableProfiling(str(tmp_path)))
    assert json.loads((tmp_path / "inference" / "profile.json").read_text())["timeline"] == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    executor = poptorch.inferenceModel(Chain(1), quiet().enableProfiling(str(taken)))
    with pytest.raises(poptorch.Error, match=rf"{taken.name}.* cannot be made.*enableProfiling\(folder\)"):
        executor.compile(X)
    assert not executor.isCompiled()


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_variable_that_cannot_be_read_stops_the_compilation(
    text: str, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    executor = poptorch.inferenceModel(Chain(1), quiet())
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(poptorch.Error, match=VARIABLE):
        executor.compile(X)
    monkeypatch.delenv(VARIABLE)
    executor.compile(X)
