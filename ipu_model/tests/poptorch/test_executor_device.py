"""Rules on the target, the log of a compilation, backend keys (options reference 3.2, 3.5, 9 and 12)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from executor_support import Net, X, Y, inference, quiet, sgd
from torch import Tensor, nn

import poptorch


def refused(options: poptorch.Options, words: str) -> None:
    """Check that compiling and calling are refused, and that the model works with other options."""
    model = Net()
    for use in ("compile", "__call__"):
        with pytest.raises(poptorch.Error, match=words):
            getattr(inference(model, options), use)(X)
    assert inference(model)(X).shape == (4, 2)


@pytest.fixture(autouse=True)
def _no_simulator_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL", "POPTORCH_IPU_MODEL_VERSION"):
        monkeypatch.delenv(name, raising=False)


class TestTarget:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (lambda: quiet().logCycleCount(True), r"only supported on actual IPU hardware.*ipu_model\.profile"),
            (lambda: quiet().useIpuModel(True), r"IPU model cannot be an offline target.*Use one of the two"),
            (lambda: quiet().useIpuId(3), r"useIpuId\(3\) chooses a device"),
        ],
    )
    def test_an_offline_target_has_no_counter_no_simulator_and_no_device(self, options: Any, words: str) -> None:
        with pytest.raises(poptorch.Error, match=words):
            inference(Net(), options().useOfflineIpuTarget()).compile(X)

    @pytest.mark.parametrize("name", ["POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
    def test_nor_is_one_from_the_environment_unless_the_options_say_hardware(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, "1")
        with pytest.raises(poptorch.Error, match="IPU model cannot be an offline target"):
            inference(Net(), quiet().useOfflineIpuTarget()).compile(X)
        inference(Net(), quiet().useIpuModel(False).useOfflineIpuTarget()).compile(X)
        monkeypatch.setenv(name, "0")
        inference(Net(), quiet().useOfflineIpuTarget()).compile(X)
        monkeypatch.setenv(name, "yes")
        with pytest.raises(poptorch.Error, match=f"{name} must be an integer, not 'yes'"):
            inference(Net()).compile(X)

    def test_the_version_of_the_simulator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu9")
        refused_with = quiet().useIpuModel(True)
        with pytest.raises(poptorch.Error, match="POPTORCH_IPU_MODEL_VERSION must be one of ipu1, ipu2, ipu21"):
            inference(Net(), refused_with)(X)
        assert inference(Net())(X).shape == (4, 2)

    def test_the_log_says_where_the_choice_comes_from(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with caplog.at_level(logging.INFO, logger="poptorch:cpp"):
            inference(Net(), quiet().useIpuModel(True))(X)
            monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
            inference(Net())(X)
        assert "From the user configuration: Ipu model: Enabled" in caplog.text
        assert "From POPTORCH_IPU_MODEL environment variable: Ipu model: Enabled" in caplog.text


class TestWarnings:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda o: o.Distributed.configureProcessId(0, 2), "enableExecutableCaching"),
            (
                lambda o: o._Popart.set("enableGradientAccumulation", True),
                "enableGradientAccumulation forced by the user",
            ),
            (lambda o: o._Popart.set("logDir", "somewhere"), "use poptorch.Options.logDir"),
        ],
    )
    def test_what_the_log_says_of_options(self, change: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
        options = quiet()
        change(options)
        inference(Net(), options)(X)
        assert words in caplog.text

    def test_several_processes_with_a_cache_make_its_folder(self, tmp_path: Any) -> None:
        """Options reference, section 7: created if missing, an error if nothing can be written there."""
        cache = tmp_path / "new" / "cache"
        options = quiet().enableExecutableCaching(str(cache))
        options.Distributed.configureProcessId(0, 2)
        inference(Net(), options)(X)
        assert cache.is_dir()

    def test_several_processes_need_a_cache_that_can_be_written(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = quiet().enableExecutableCaching(str(tmp_path))
        options.Distributed.configureProcessId(0, 2)
        monkeypatch.setattr("os.access", lambda *args: False)
        with pytest.raises(AssertionError, match="is not writable"):
            inference(Net(), options)(X)

    def test_a_plain_program_says_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        model = Net()
        executor = poptorch.trainingModel(model, quiet(), sgd(model))
        executor(X, Y)
        inference(model)(X)
        assert caplog.text == ""


class TestDebugLines:
    """Section 12.2."""

    def lines(
        self, caplog: pytest.LogCaptureFixture, model: nn.Module, options: poptorch.Options, *inputs: Tensor
    ) -> str:
        with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
            poptorch.trainingModel(model, options, sgd(model, max_grad_norm=1.0)).compile(*inputs)
        return caplog.text

    def test_options_and_derived_settings(self, caplog: pytest.LogCaptureFixture) -> None:
        text = self.lines(caplog, Net(), quiet(deviceIterations=2), X, Y)
        assert "poptorch.Options set device_iterations to value 2" in text
        assert "enablePipelining set to value 0" in text
        assert "autoRecomputation" not in text
        caplog.clear()
        model = Net()
        poptorch.BeginBlock(model.second, ipu_id=1)
        text = self.lines(caplog, model, quiet(accumulation=4), X, Y)
        for key, value in (
            ("enablePipelining", 1),
            ("autoRecomputation", 3),
            ("virtualGraphMode", 1),
            ("enableGradientAccumulation", 1),
            ("accumulateOuterFragmentSettings.schedule", 0),
        ):
            assert f"{key} set to value {value}" in text


class TestBackendKeys:
    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("noSuchKey", True, "Unknown bool option noSuchKey"),
            ("outlineThreshold", 10, "Unknown uint64 option outlineThreshold.*a float"),
            ("noSuchKey", 1.5, "Unknown floating point option noSuchKey"),
            ("noSuchKey", "a", "Unknown string option noSuchKey"),
            ("noSuchKey", [1], "Unknown set / vector option noSuchKey"),
            ("noSuchKey", {"a": 1}, "Unknown map option noSuchKey"),
            ("noSuchKey", object(), "Unknown value type object for option noSuchKey"),
            ("autoRecomputation", 17, "out of range"),
        ],
    )
    def test_unknown_and_ill_typed_keys_fail_at_compilation(self, key: str, value: Any, words: str) -> None:
        options = quiet()
        options._Popart.set(key, value)
        refused(options, words)

    def test_known_keys_are_accepted(self) -> None:
        options = quiet()
        options._Popart.set("outlineThreshold", 10.0)._unfreeze()
        options._Popart.set("autoRecomputation", 1)
        assert inference(Net(), options)(X).shape == (4, 2)

    def test_a_key_of_poptorch_itself_is_refused(self) -> None:
        options = quiet()
        options._Popart.set("replication_factor", 2)
        with pytest.raises(AssertionError, match="keys in common"):
            inference(Net(), options)(X)


class TestSeveralProcesses:
    """What a process finds out alone; several of them: tests/popdist."""

    @pytest.fixture
    def options(self, monkeypatch: pytest.MonkeyPatch) -> poptorch.Options:
        monkeypatch.delenv("MASTER_ADDR", raising=False)
        monkeypatch.delenv("MASTER_PORT", raising=False)
        options = quiet()
        options.Distributed.configureProcessId(1, 2)
        return options

    def test_training_needs_to_know_where_the_others_are(self, options: poptorch.Options) -> None:
        model = Net()
        wrapped = poptorch.trainingModel(model, options)
        with pytest.raises(poptorch.Error, match=r"MASTER_ADDR and MASTER_PORT are not set.*poprun.*torchrun"):
            wrapped(X, Y)
        assert not wrapped.isCompiled()

    def test_inference_and_compilation_for_an_offline_target_need_no_others(self, options: poptorch.Options) -> None:
        inference(Net(), options)(X)
        offline = options.clone().useOfflineIpuTarget()
        model = Net()
        poptorch.trainingModel(model, offline).compile(X, Y)


def test_the_return_type_of_a_call_is_a_plain_tensor() -> None:
    assert type(inference(Net())(X)) is torch.Tensor
