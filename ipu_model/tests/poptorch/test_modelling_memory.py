"""Programs that do not fit into the tiles' memory fail when they are compiled, as on hardware."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import Module, quiet
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model import Profile
from ipu_model.predict.profile import Verdict
from ipu_model.report.files import read

VARIABLE = "POPLAR_ENGINE_OPTIONS"


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("IPU_MODEL_IGNORE_MEMORY", raising=False)


def wide(width: int = 2**28) -> Module:
    """Activations of one gigabyte for each row: `forward(x)` returns them summed up, and the loss."""

    def forward(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        out = (model.weight * x.expand(-1, model.width)).exp().sum(1)
        return out, poptorch.identity_loss(out, "mean")

    return Module(forward, weight=nn.Parameter(torch.ones(1)), width=width)


X = torch.zeros(1, 1)


OUT_OF_MEMORY = r"[Oo]ut of memory.*tile.*638,976"


class TestTooLarge:
    @pytest.mark.parametrize(
        ("use", "tile"),
        [
            (lambda: poptorch.trainingModel(wide(), quiet()).compile(X), "638,976"),
            (lambda: poptorch.inferenceModel(wide(), quiet()).compile(X), "638,976"),
            (lambda: poptorch.inferenceModel(wide(), quiet())(X), "638,976"),
            (lambda: poptorch.inferenceModel(wide(), quiet().useOfflineIpuTarget()).compile(X), "638,976"),
            # A Mk1 tile has 256 KiB.
            (lambda: poptorch.inferenceModel(wide(), quiet().useOfflineIpuTarget(1)).compile(X), "262,144"),
        ],
    )
    def test_compilation_fails_and_names_tile_and_bytes_and_what_helps(self, use: Any, tile: str) -> None:
        words = rf"[Oo]ut of memory.*tile.*{tile}.*What usually helps: .*enableProfiling\(folder\)"
        with pytest.raises(poptorch.Error, match=words) as refusal:
            use()
        assert refusal.value.type == "poplar_graph_memory_allocation_error"
        # It is called as in PopTorch and can be sent to another process.
        assert "".join(traceback.format_exception_only(refusal.value)).startswith("poptorch.poptorch_core.Error: ")
        copied = pickle.loads(pickle.dumps(refusal.value))
        assert (type(copied), str(copied)) == (poptorch.Error, str(refusal.value))

    def test_the_executor_is_as_if_it_had_never_been_called(self) -> None:
        model: Any = wide()
        executor = poptorch.trainingModel(model, quiet())
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            executor.compile(X)
        assert not executor.isCompiled()
        assert not executor.isAttachedToDevice()
        assert type(model) is Module
        model.width = 4
        assert poptorch.trainingModel(model, quiet())(X)[0].tolist() == [4.0]

    def test_the_executor_remembers_the_program_so_that_it_can_be_explored(self) -> None:
        executor = poptorch.inferenceModel(wide(), quiet())
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            executor.compile(X)
        assert not ipu_model.profile(executor).fits
        assert ipu_model.profile(executor) == ipu_model.profile_module(wide(), X, quiet())


class TestReport:
    """With profiling, a program that does not fit leaves its report and stops all the same (guide 6.1)."""

    @pytest.fixture(params=["environment", "profiling"])
    def options(self, request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> poptorch.Options:
        if request.param == "environment":
            engine = {"autoReport.all": "true", "autoReport.directory": str(tmp_path / "inference")}
            monkeypatch.setenv(VARIABLE, json.dumps(engine))
            return quiet()
        return quiet().enableProfiling(str(tmp_path))

    def test_the_error_names_its_folder_and_the_next_step(self, options: poptorch.Options, tmp_path: Path) -> None:
        folder = tmp_path / "inference"
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY) as refusal:
            poptorch.inferenceModel(wide(), options)(X)
        assert f"The report is in {folder}; python -m ipu_model fit {folder} searches" in refusal.value.message
        assert not read(folder).fits
        assert {"profile.json", "report.html", "trace.json"} <= {file.name for file in folder.iterdir()}

    def test_the_engine_option_alone_runs_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Poplar's debug.allowOutOfMemory only lets the compiler write a profile; the run still fails."""
        monkeypatch.setenv(VARIABLE, '{"debug.allowOutOfMemory": "true"}')
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            poptorch.inferenceModel(wide(), quiet())(X)

    def test_with_the_engine_option_off_there_is_no_report(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(VARIABLE, '{"debug.allowOutOfMemory": "false"}')
        with pytest.raises(poptorch.Error, match=rf"{OUT_OF_MEMORY}.*allowOutOfMemory is off"):
            poptorch.inferenceModel(wide(), quiet().enableProfiling(str(tmp_path))).compile(X)
        assert list(tmp_path.iterdir()) == []

    def test_a_report_that_cannot_be_written_does_not_hide_the_error(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("")
        with pytest.raises(poptorch.Error, match=rf"{OUT_OF_MEMORY}.*No profiling report: .*cannot be made"):
            poptorch.inferenceModel(wide(), quiet().enableProfiling(str(tmp_path / "taken"))).compile(X)

    def test_nothing_is_uploaded_and_no_optimiser_state_made(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The error comes before the session, which holds the device's copies of weights and state."""

        def made(*arguments: object, **more: object) -> None:
            raise AssertionError("a session was made for a program that does not fit")

        monkeypatch.setattr(sys.modules["poptorch._backend.compile"], "Session", made)
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            poptorch.trainingModel(wide(), quiet().enableProfiling(str(tmp_path)))(X)


class TestIgnored:
    @pytest.fixture(autouse=True)
    def _ignore_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IPU_MODEL_IGNORE_MEMORY", "1")

    def test_compilation_warns_and_goes_on(self, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
        executor = poptorch.inferenceModel(wide(), quiet().useOfflineIpuTarget().enableProfiling(str(tmp_path)))
        with caplog.at_level(logging.WARNING, logger="poptorch::python"):
            executor.compile(X)
        assert executor.isCompiled()
        assert "638,976" in caplog.text
        assert "IPU_MODEL_IGNORE_MEMORY is set" in caplog.text
        assert not ipu_model.profile(executor).fits
        assert (tmp_path / "inference" / "profile.json").is_file()

    @pytest.mark.parametrize("value", ["0", ""])
    def test_zero_switches_it_off(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("IPU_MODEL_IGNORE_MEMORY", value)
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            poptorch.inferenceModel(wide(), quiet()).compile(X)


def test_a_close_call_is_a_warning_only(caplog: pytest.LogCaptureFixture) -> None:
    def verdict(width: int) -> Verdict:
        return ipu_model.profile_module(wide(width), X, quiet()).verdict

    widths = (int(2**26 * 1.01**step) for step in range(200))
    width = next(width for width in widths if verdict(width) is Verdict.CLOSE)
    executor = poptorch.inferenceModel(wide(width), quiet().useOfflineIpuTarget())
    executor.compile(X)
    assert executor.isCompiled()
    assert "too close to call" in caplog.text


def test_what_fits_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    poptorch.trainingModel(wide(16), quiet())(X)
    assert caplog.text == ""


class TestConstants:
    """Where the tensors lie that forward makes of nothing: behind one another, in the order in which it makes them."""

    @staticmethod
    def profiled(sizes: list[int]) -> Profile:
        def forward(model: Any, x: Tensor) -> Tensor:
            for size in sizes:
                x = x * torch.linspace(0, 1, size).max()
            return x

        return ipu_model.profile_module(Module(forward), torch.ones(4), quiet(), training=False)

    @pytest.mark.parametrize(
        ("sizes", "tiles"), [([40, 10], (128.0, 32.0, 40.0, 0.0)), ([10, 40], (40.0, 128.0, 32.0, 0.0))]
    )
    def test_they_lie_behind_one_another(self, sizes: list[int], tiles: tuple[float, ...]) -> None:
        """A tile takes 32 elements of 4 bytes before the next one is filled: constants of 40 and 10 take three."""
        categories = self.profiled(sizes).memory[0].categories
        assert next(category.tiles for category in categories if category.name == "constants")[:4] == tiles

    def test_the_same_program_has_the_same_memory_every_time(self) -> None:
        sizes = [33 + 7 * number for number in range(12)]
        first, *others = (self.profiled(sizes).memory for _ in range(6))
        assert others == [first] * 5
