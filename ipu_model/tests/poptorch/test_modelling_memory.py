"""Programs that do not fit into the tiles' memory fail when they are compiled, as on hardware."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import Module
from modelling_support import quiet
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model import Profile
from ipu_model.predict.profile import Verdict
from ipu_model.report.files import read

VARIABLE, IGNORE = "POPLAR_ENGINE_OPTIONS", "IPU_MODEL_IGNORE_MEMORY"
OUT_OF_MEMORY = r"[Oo]ut of memory.*tile.*638,976"
X = torch.zeros(1, 1)


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(IGNORE, raising=False)


class Wide(nn.Module):
    """Activations of one gigabyte for each row: `forward(x)` returns them summed up, and the loss."""

    def __init__(self, width: int = 2**28) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.width = width

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = (self.weight * x.expand(-1, self.width)).exp().sum(1)
        return out, poptorch.identity_loss(out, "mean")


def refused(use: Callable[[], object], words: str = OUT_OF_MEMORY) -> poptorch.Error:
    with pytest.raises(poptorch.Error, match=words) as refusal:
        use()
    return refusal.value


@pytest.mark.parametrize(
    ("words", "use"),
    [
        (OUT_OF_MEMORY, lambda: poptorch.trainingModel(Wide(), quiet()).compile(X)),
        (OUT_OF_MEMORY, lambda: poptorch.inferenceModel(Wide(), quiet())(X)),
        (OUT_OF_MEMORY, lambda: poptorch.inferenceModel(Wide(), quiet().useOfflineIpuTarget()).compile(X)),
        # a Mk1 tile has 256 KiB
        ("262,144", lambda: poptorch.inferenceModel(Wide(), quiet().useOfflineIpuTarget(1)).compile(X)),
        (r"What usually helps: .*enableProfiling\(folder\)", lambda: poptorch.inferenceModel(Wide(), quiet())(X)),
    ],
)
def test_compilation_fails_and_names_tile_bytes_and_what_helps(words: str, use: Callable[[], object]) -> None:
    error = refused(use, words)
    assert error.type == "poplar_graph_memory_allocation_error"
    # It is called as in PopTorch and can be sent to another process.
    assert "".join(traceback.format_exception_only(error)).startswith("poptorch.poptorch_core.Error: ")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied)) == (poptorch.Error, str(error))


def test_the_executor_is_as_if_it_had_never_been_called_but_can_be_explored() -> None:
    model = Wide()
    executor = poptorch.trainingModel(model, quiet())
    refused(lambda: executor.compile(X))
    assert not executor.isCompiled()
    assert not executor.isAttachedToDevice()
    assert type(model) is Wide
    model.width = 4
    assert poptorch.trainingModel(model, quiet())(X)[0].tolist() == [4.0]
    executor = poptorch.inferenceModel(Wide(), quiet())
    refused(lambda: executor.compile(X))
    assert not ipu_model.profile(executor).fits
    assert ipu_model.profile(executor) == ipu_model.profile_module(Wide(), X, quiet())


class TestReport:
    """With profiling, a program that does not fit leaves its report and stops all the same (guide 6.1)."""

    @pytest.mark.parametrize("way", ["environment", "profiling"])
    def test_the_error_names_its_folder_and_the_next_step(
        self, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """It comes before the session, which holds the device's copies of weights and state."""

        def made(*arguments: object, **more: object) -> None:
            raise AssertionError("a session was made for a program that does not fit")

        monkeypatch.setattr(sys.modules["poptorch._backend.compile"], "Session", made)
        folder, options = tmp_path / "inference", quiet()
        if way == "environment":
            engine = {"autoReport.all": "true", "autoReport.directory": str(folder)}
            monkeypatch.setenv(VARIABLE, json.dumps(engine))
        else:
            options.enableProfiling(str(tmp_path))
        error = refused(lambda: poptorch.inferenceModel(Wide(), options)(X))
        assert f"The report is in {folder}; python -m ipu_model fit {folder} searches" in error.message
        assert not read(folder).fits
        assert {"profile.json", "report.html", "trace.json"} <= {file.name for file in folder.iterdir()}

    def test_the_engine_option_alone_runs_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Poplar's debug.allowOutOfMemory only lets the compiler write a profile; the run still fails."""
        monkeypatch.setenv(VARIABLE, '{"debug.allowOutOfMemory": "true"}')
        refused(lambda: poptorch.inferenceModel(Wide(), quiet())(X))

    def test_with_the_engine_option_off_there_is_no_report(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(VARIABLE, '{"debug.allowOutOfMemory": "false"}')
        executor = poptorch.inferenceModel(Wide(), quiet().enableProfiling(str(tmp_path)))
        refused(lambda: executor.compile(X), rf"{OUT_OF_MEMORY}.*allowOutOfMemory is off")
        assert list(tmp_path.iterdir()) == []

    def test_a_report_that_cannot_be_written_does_not_hide_the_error(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("")
        executor = poptorch.inferenceModel(Wide(), quiet().enableProfiling(str(tmp_path / "taken")))
        refused(lambda: executor.compile(X), rf"{OUT_OF_MEMORY}.*No profiling report: .*cannot be made")


class TestIgnored:
    def test_compilation_warns_and_goes_on(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(IGNORE, "1")
        executor = poptorch.inferenceModel(Wide(), quiet().useOfflineIpuTarget().enableProfiling(str(tmp_path)))
        with caplog.at_level(logging.WARNING, logger="poptorch::python"):
            executor.compile(X)
        assert executor.isCompiled()
        assert "638,976" in caplog.text
        assert "IPU_MODEL_IGNORE_MEMORY is set" in caplog.text
        assert not ipu_model.profile(executor).fits
        assert (tmp_path / "inference" / "profile.json").is_file()

    @pytest.mark.parametrize("value", ["0", ""])
    def test_zero_switches_it_off(self, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(IGNORE, value)
        refused(lambda: poptorch.inferenceModel(Wide(), quiet()).compile(X))


def test_a_close_call_is_a_warning_only_and_what_fits_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    few, many = 2**20, 2**28

    def verdict(width: int) -> Any:
        return ipu_model.profile_module(Wide(width), X, quiet()).verdict

    while verdict(width := (few + many) // 2) is not Verdict.CLOSE:
        few, many = (width, many) if verdict(width) is Verdict.FITS else (few, width)
    poptorch.trainingModel(Wide(16), quiet())(X)
    assert caplog.text == ""
    executor = poptorch.inferenceModel(Wide(width), quiet().useOfflineIpuTarget())
    executor.compile(X)
    assert executor.isCompiled()
    assert "too close to call" in caplog.text


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
