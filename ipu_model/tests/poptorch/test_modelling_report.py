"""Compilation leaves a report where that is asked for (options reference 3.2), and fails if tiles are too small."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import Module, inference, pickled, quiet, with_loss
from modelling_support import Chain
from torch import nn

import ipu_model
import poptorch
from ipu_model.predict.profile import Verdict
from ipu_model.report.files import read

VARIABLE, IGNORE = "POPLAR_ENGINE_OPTIONS", "IPU_MODEL_IGNORE_MEMORY"
REPORT = {"profile.json", "program.ipu", "report.html", "trace.json"}
ALL = {"autoReport.all": "true", "autoReport.directory": "there"}
X, ROW = torch.ones(2, 8), torch.zeros(1, 1)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(IGNORE, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda options: monkeypatch.setenv(VARIABLE, json.dumps(options))


def compiled(options: poptorch.Options) -> poptorch.PoplarExecutor:
    executor = inference(Chain(1), options)
    executor.compile(X)
    return executor


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def reports(*names: str) -> set[str]:
    return {f"{name}/{file}" for name in names for file in REPORT}


@pytest.mark.parametrize(
    ("options", "environment", "written"),
    [
        (quiet, {}, set()),
        (lambda: quiet().enableProfiling(), {}, reports("inference")),
        (lambda: quiet().useOfflineIpuTarget().enableProfiling("here"), {}, reports("here/inference")),
        (lambda: quiet().enableProfiling("here"), ALL, reports("there")),
        (lambda: quiet().enableProfiling("here"), {"autoReport.all": "false"}, set()),
    ],
    ids=["not asked for", "no folder", "offline target", "the environment's folder", "switched off there"],
)
def test_a_report_is_written_where_it_is_asked_for(options, environment, written, tmp_path, engine) -> None:
    if environment:
        engine(environment)
    compiled(options())
    assert files(tmp_path) == written


def test_the_log_names_the_folders_of_training_and_inference(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, options = Chain(1), quiet().enableProfiling(str(tmp_path))
    with caplog.at_level(logging.INFO, logger="poptorch::python"):
        poptorch.trainingModel(model, options).compile(X, X)
    inference(model, options).compile(X)
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


def test_further_models_get_folders_in_the_environments_directory(tmp_path: Path, engine: Any) -> None:
    engine({"autoReport.all": "true", "autoReport.directory": str(tmp_path)})
    for name in ("first", "second") * 2:
        compiled(quiet().modelName(name))
    assert json.loads((tmp_path / "profile.json").read_text())["name"] == "first"
    assert files(tmp_path) == REPORT | reports("second")


def test_it_holds_the_executors_profile_and_a_timeline_unless_that_is_switched_off(tmp_path: Path, engine: Any) -> None:
    def written() -> dict[str, Any]:
        compiled(quiet().enableProfiling())
        report: dict[str, Any] = json.loads((tmp_path / "inference" / "profile.json").read_text())
        return report

    profile = ipu_model.profile(compiled(quiet()), host=ipu_model.HostWork())
    assert written()["device_seconds_per_call"] == pytest.approx(profile.device_seconds_per_call)
    assert len(written()["timeline"]) == len(profile.timeline) > 0
    engine({"autoReport.outputExecutionProfile": "false"})
    assert written()["timeline"] == []


OUT_OF_MEMORY = r"[Oo]ut of memory.*tile.*638,976"


def wide(width: int = 2**28) -> Any:
    """Return a model that sums up activations, which take a gigabyte for each row."""
    activated = lambda m, x: (m.weight * x.expand(-1, m.width)).exp().sum(1)  # noqa: E731
    return with_loss(activated, "mean", weight=nn.Parameter(torch.ones(1)), width=width)


def refused(options: poptorch.Options | None = None, words: str = OUT_OF_MEMORY) -> poptorch.Error:
    executor = inference(wide(), options)
    with pytest.raises(poptorch.Error, match=words) as refusal:
        executor.compile(ROW)
    assert not executor.isCompiled()
    return refusal.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (lambda: quiet(), OUT_OF_MEMORY),
        (lambda: quiet().useOfflineIpuTarget(), OUT_OF_MEMORY),
        (lambda: quiet().useOfflineIpuTarget(1), "262,144"),  # a Mk1 tile has 256 KiB
        (lambda: quiet(), r"What usually helps: .*enableProfiling\(folder\)"),
    ],
)
def test_compilation_fails_and_says_what_helps(options: Callable[[], poptorch.Options], words: str) -> None:
    error = refused(options(), words)
    assert error.type == "poplar_graph_memory_allocation_error"
    # It is called as in PopTorch and can be sent to another process.
    assert "".join(traceback.format_exception_only(error)).startswith("poptorch.poptorch_core.Error: ")
    copied = pickled(error)
    assert (type(copied), str(copied)) == (poptorch.Error, str(error))


def test_the_executor_is_as_if_it_had_never_been_called_but_can_be_explored() -> None:
    model = wide()
    executor = poptorch.trainingModel(model, quiet())
    for use in (executor.compile, executor):
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            use(ROW)
    assert not executor.isCompiled()
    assert not executor.isAttachedToDevice()
    assert type(model) is Module
    assert not ipu_model.profile(executor).fits
    assert ipu_model.profile(executor) == ipu_model.profile_module(wide(), ROW, quiet(), training=True)
    model.width = 4
    assert poptorch.trainingModel(model, quiet())(ROW)[0].tolist() == [4.0]


@pytest.mark.parametrize("way", ["environment", "profiling"])
def test_the_error_names_the_folder_of_the_report_and_the_next_step(way, monkeypatch, tmp_path, engine) -> None:
    """It comes before the session, which holds the device's copies of weights and state (guide 6.1)."""

    def made(*arguments: object, **more: object) -> None:
        raise AssertionError("a session was made for a program that does not fit")

    monkeypatch.setattr(sys.modules["poptorch._backend.compile"], "Session", made)
    folder, options = tmp_path / "inference", quiet()
    if way == "environment":
        engine({"autoReport.all": "true", "autoReport.directory": str(folder)})
    else:
        options.enableProfiling(str(tmp_path))
    assert f"The report is in {folder}; python -m ipu_model fit {folder} searches" in refused(options).message
    assert not read(folder).fits
    assert {"profile.json", "report.html", "trace.json"} <= files(folder)


def test_an_engine_option_only_says_whether_there_is_a_report(tmp_path: Path, engine: Any) -> None:
    """Poplar's debug.allowOutOfMemory only lets the compiler write a profile; the run still fails."""
    engine({"debug.allowOutOfMemory": "true"})
    refused()
    engine({"debug.allowOutOfMemory": "false"})
    refused(quiet().enableProfiling(str(tmp_path)), rf"{OUT_OF_MEMORY}.*allowOutOfMemory is off")
    assert files(tmp_path) == set()


def test_a_report_that_cannot_be_written_is_an_error_and_does_not_hide_another_one(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(poptorch.Error, match=r"taken.* cannot be made.*enableProfiling\(folder\)"):
        compiled(quiet().enableProfiling("taken"))
    refused(quiet().enableProfiling("taken"), rf"{OUT_OF_MEMORY}.*No profiling report: .*cannot be made")


def test_if_memory_is_ignored_compilation_warns_and_goes_on(caplog, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv(IGNORE, "1")
    executor = inference(wide(), quiet().useOfflineIpuTarget().enableProfiling())
    executor.compile(ROW)
    assert executor.isCompiled()
    assert "638,976" in caplog.text
    assert "IPU_MODEL_IGNORE_MEMORY is set" in caplog.text
    assert not ipu_model.profile(executor).fits
    assert files(tmp_path) == reports("inference")
    for off in ("0", ""):
        monkeypatch.setenv(IGNORE, off)
        refused()


def test_a_close_call_is_a_warning_only_and_what_fits_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    few, many = 2**20, 2**28

    def verdict(width: int) -> Any:
        return ipu_model.profile_module(wide(width), ROW, quiet()).verdict

    while verdict(width := (few + many) // 2) is not Verdict.CLOSE:
        few, many = (width, many) if verdict(width) is Verdict.FITS else (few, width)
    poptorch.trainingModel(wide(16), quiet())(ROW)
    assert caplog.text == ""
    executor = inference(wide(width), quiet().useOfflineIpuTarget())
    executor.compile(ROW)
    assert executor.isCompiled()
    assert "too close to call" in caplog.text
