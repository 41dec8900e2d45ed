"""Programs that do not fit into the tiles' memory fail when they are compiled, as on hardware."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model.predict.verdict import Verdict

VARIABLE = "POPLAR_ENGINE_OPTIONS"


@pytest.fixture(autouse=True)
def _no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


class Wide(nn.Module):
    """Activations of one gigabyte for each row: `forward(x)` returns them summed up, and the loss."""

    def __init__(self, width: int = 2**28) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.width = width

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = (self.weight * x.expand(-1, self.width)).exp().sum(1)
        return out, poptorch.identity_loss(out, "mean")


X = torch.zeros(1, 1)


def quiet() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


OUT_OF_MEMORY = r"[Oo]ut of memory.*tile.*638,976"


class TestTooLarge:
    @pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
    def test_compilation_fails_and_names_tile_and_bytes(self, wrap: Any) -> None:
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            wrap(Wide(), quiet()).compile(X)

    def test_the_error_says_what_helps_and_how_to_look_closer(self) -> None:
        with pytest.raises(poptorch.Error, match=r"What usually helps: .*enableProfiling\(folder\)") as refusal:
            poptorch.inferenceModel(Wide(), quiet()).compile(X)
        assert refusal.value.type == "poplar_graph_memory_allocation_error"

    def test_so_does_the_first_call(self) -> None:
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            poptorch.inferenceModel(Wide(), quiet())(X)

    def test_and_compiling_for_an_offline_target(self) -> None:
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            poptorch.inferenceModel(Wide(), quiet().useOfflineIpuTarget()).compile(X)

    def test_the_tile_is_that_of_the_machine(self) -> None:
        with pytest.raises(poptorch.Error, match="262,144"):  # a Mk1 tile has 256 KiB
            poptorch.inferenceModel(Wide(), quiet().useOfflineIpuTarget(1)).compile(X)

    def test_the_executor_is_as_if_it_had_never_been_called(self) -> None:
        model = Wide()
        executor = poptorch.trainingModel(model, quiet())
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            executor.compile(X)
        assert not executor.isCompiled()
        assert not executor.isAttachedToDevice()
        assert type(model) is Wide
        model.width = 4
        assert poptorch.trainingModel(model, quiet())(X)[0].tolist() == [4.0]

    def test_the_executor_remembers_the_program_so_that_it_can_be_explored(self) -> None:
        executor = poptorch.inferenceModel(Wide(), quiet())
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            executor.compile(X)
        assert not ipu_model.profile(executor).fits
        assert ipu_model.profile(executor) == ipu_model.profile_module(Wide(), X, quiet())


class TestAllowed:
    @pytest.fixture(params=["environment", "engine options", "profiling"])
    def options(self, request: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> poptorch.Options:
        options = quiet().useOfflineIpuTarget()
        if request.param == "environment":
            monkeypatch.setenv(VARIABLE, '{"debug.allowOutOfMemory": "true"}')
        elif request.param == "engine options":
            options._Popart.setEngineOptions({"debug.allowOutOfMemory": "true"})
        else:
            options.enableProfiling(str(tmp_path))
        return options

    def test_compilation_warns_and_goes_on(self, options: poptorch.Options, caplog: pytest.LogCaptureFixture) -> None:
        executor = poptorch.inferenceModel(Wide(), options)
        with caplog.at_level(logging.WARNING, logger="poptorch::python"):
            executor.compile(X)
        assert executor.isCompiled()
        assert "638,976" in caplog.text
        assert not ipu_model.profile(executor).fits

    def test_the_environment_wins(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        monkeypatch.setenv(VARIABLE, '{"debug.allowOutOfMemory": "false"}')
        with pytest.raises(poptorch.Error, match=OUT_OF_MEMORY):
            poptorch.inferenceModel(Wide(), quiet().enableProfiling(str(tmp_path))).compile(X)


def test_a_close_call_is_a_warning_only(caplog: pytest.LogCaptureFixture) -> None:
    def verdict(width: int) -> Verdict:
        return ipu_model.profile_module(Wide(width), X, quiet()).verdict

    widths = (int(2**26 * 1.05**step) for step in range(40))
    width = next(width for width in widths if verdict(width) is Verdict.CLOSE)
    executor = poptorch.inferenceModel(Wide(width), quiet().useOfflineIpuTarget())
    executor.compile(X)
    assert executor.isCompiled()
    assert "too close to call" in caplog.text


def test_what_fits_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    poptorch.trainingModel(Wide(16), quiet())(X)
    assert caplog.text == ""
