"""Profiling leaves a report of the performance model in `<folder>/<model name>/` (options reference 3.2)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from modelling_support import Chain, quiet

import ipu_model
import poptorch
from ipu_model import HostWork

VARIABLE = "POPLAR_ENGINE_OPTIONS"
REPORT = {"profile.json", "program.ipu", "report.html", "trace.json"}
X = torch.ones(2, 8)


@pytest.fixture(autouse=True)
def _no_options_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


def compiled(options: poptorch.Options) -> poptorch.PoplarExecutor:
    executor = poptorch.inferenceModel(Chain(1), options)
    executor.compile(X)
    return executor


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def reports(*names: str) -> set[str]:
    return {f"{name}/{file}" for name in names for file in REPORT}


ALL = {"autoReport.all": "true", "autoReport.directory": "there"}


@pytest.mark.parametrize(
    ("options", "environment", "written"),
    [
        (quiet, {}, set()),
        (lambda: quiet().enableProfiling(), {}, reports("inference")),
        (lambda: quiet().useOfflineIpuTarget().enableProfiling("here"), {}, reports("here/inference")),
        (lambda: quiet().enableProfiling("here"), ALL, {f"there/{file}" for file in REPORT}),
        (lambda: quiet().enableProfiling("here"), {"autoReport.all": "false"}, set()),
    ],
    ids=["not asked for", "no folder", "offline target", "the environment's folder", "switched off there"],
)
def test_a_report_is_written_where_it_is_asked_for(
    options: Callable[[], poptorch.Options], environment: dict[str, str], written: set[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if environment:
        monkeypatch.setenv(VARIABLE, json.dumps(environment))
    compiled(options())
    assert files(tmp_path) == written


def test_training_and_inference_have_folders_of_their_own_and_the_log_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, options = Chain(1), quiet().enableProfiling(str(tmp_path))
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        poptorch.trainingModel(model, options).compile(X, X)
    poptorch.inferenceModel(model, options).compile(X)
    assert files(tmp_path) == reports("training", "inference")
    assert f"report of the model 'training' is in {tmp_path / 'training'}" in caplog.text


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("a/b", "a_b"), ("../up", ".._up"), ("/root", "_root"), ("..", "_.."), (".", "_."), ("", "_"),
        ("zero\0byte", "zero_byte"), ("half\ud800", "half_"), ("ResNet ü✓", "ResNet ü✓"), ("x" * 300, "x" * 200),
        ("é" * 150, "é" * 100),
    ],
)  # fmt: skip
def test_a_models_name_is_the_name_of_one_folder(tmp_path: Path, name: str, folder: str) -> None:
    """Separators, what no file system takes and names that are too long for one never lead to another place."""
    compiled(quiet().enableProfiling("here").modelName(name))
    assert {file.parent for file in tmp_path.rglob("profile.json")} == {tmp_path / "here" / folder}


def test_further_models_get_folders_in_the_environments_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"autoReport.all": "true", "autoReport.directory": str(tmp_path)}))
    for _ in range(2):
        compiled(quiet().modelName("first"))
        compiled(quiet().modelName("second"))
    assert json.loads((tmp_path / "profile.json").read_text())["name"] == "first"
    assert files(tmp_path) == REPORT | reports("second")


def test_it_holds_the_executors_profile_and_a_timeline_unless_that_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written() -> dict[str, Any]:
        compiled(quiet().enableProfiling())
        found: dict[str, Any] = json.loads((tmp_path / "inference" / "profile.json").read_text())
        return found

    profile = ipu_model.profile(compiled(quiet()), host=HostWork())
    assert written()["device_seconds_per_call"] == pytest.approx(profile.device_seconds_per_call)
    assert len(written()["timeline"]) == len(profile.timeline) > 0
    monkeypatch.setenv(VARIABLE, '{"autoReport.outputExecutionProfile": "false"}')
    assert written()["timeline"] == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    executor = poptorch.inferenceModel(Chain(1), quiet().enableProfiling(str(taken)))
    with pytest.raises(poptorch.Error, match=rf"{taken.name}.* cannot be made.*enableProfiling\(folder\)"):
        executor.compile(X)
    assert not executor.isCompiled()


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_variable_that_cannot_be_read_stops_the_compilation(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = poptorch.inferenceModel(Chain(1), quiet())
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(poptorch.Error, match=VARIABLE):
        executor.compile(X)
    monkeypatch.delenv(VARIABLE)
    executor.compile(X)
