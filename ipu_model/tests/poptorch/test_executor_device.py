"""Rules on the target, the log of a compilation, backend keys (options reference 3.2, 3.5, 9 and 12)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from executor_support import Net, X, Y, inference, quiet, training

import poptorch


@pytest.fixture(autouse=True)
def _nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPU_MODEL", "SMALL_IPU_MODEL", "IPU_MODEL_VERSION"):
        monkeypatch.delenv(f"POPTORCH_{name}", raising=False)


class TestTarget:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"logCycleCount": True}, r"only supported on actual IPU hardware.*ipu_model\.profile"),
            ({"useIpuModel": True}, r"IPU model cannot be an offline target.*Use one of the two"),
            ({"useIpuId": 3}, r"useIpuId\(3\) chooses a device"),
        ],
    )
    def test_an_offline_target_has_no_counter_no_simulator_and_no_device(
        self, settings: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(poptorch.Error, match=words):
            inference(Net(), quiet(**settings).useOfflineIpuTarget()).compile(X)

    @pytest.mark.parametrize("name", ["POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"])
    def test_nor_is_one_from_the_environment_unless_the_options_say_hardware(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, "1")
        with pytest.raises(poptorch.Error, match="IPU model cannot be an offline target"):
            inference(Net(), quiet().useOfflineIpuTarget()).compile(X)
        inference(Net(), quiet(useIpuModel=False).useOfflineIpuTarget()).compile(X)
        monkeypatch.setenv(name, "0")
        inference(Net(), quiet().useOfflineIpuTarget()).compile(X)
        monkeypatch.setenv(name, "yes")
        with pytest.raises(poptorch.Error, match=f"{name} must be an integer, not 'yes'"):
            inference(Net()).compile(X)

    def test_the_version_of_the_simulator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu9")
        with pytest.raises(poptorch.Error, match="POPTORCH_IPU_MODEL_VERSION must be one of ipu1, ipu2, ipu21"):
            inference(Net(), quiet(useIpuModel=True))(X)
        assert inference(Net())(X).shape == (4, 2)


class TestBackendKeys:
    def test_unknown_keys_fail_at_compilation_and_the_model_works_without_them(self) -> None:
        """Which keys, types and values there are: `test_options_backend.py`."""
        options = quiet()
        options._Popart.set("noSuchKey", 1.5)
        model = Net()
        for use in ("compile", "__call__"):
            with pytest.raises(poptorch.Error, match="Unknown floating point option noSuchKey"):
                getattr(inference(model, options), use)(X)
        options = quiet()
        options._Popart.set("outlineThreshold", 10.0)
        options._Popart.set("autoRecomputation", 1)
        assert inference(model, options)(X).shape == (4, 2)


class TestLog:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda o: o.Distributed.configureProcessId(0, 2), "enableExecutableCaching"),
            (lambda o: o._Popart.set("enableGradientAccumulation", True), "enableGradientAccumulation forced by the"),
            (lambda o: o._Popart.set("logDir", "somewhere"), "use poptorch.Options.logDir"),
        ],
    )
    def test_warnings(self, change: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
        model = Net()
        training(model)(X, Y)
        inference(model)(X)
        assert caplog.text == "", "a plain program says nothing"
        options = quiet()
        change(options)
        inference(Net(), options)(X)
        assert words in caplog.text

    def test_where_the_choice_of_a_simulator_comes_from(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, logger="poptorch:cpp"):
            inference(Net(), quiet(useIpuModel=True))(X)
            monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
            inference(Net())(X)
        assert "From the user configuration: Ipu model: Enabled" in caplog.text
        assert "From POPTORCH_IPU_MODEL environment variable: Ipu model: Enabled" in caplog.text

    def test_options_and_derived_settings(self, caplog: pytest.LogCaptureFixture) -> None:
        """Section 12.2."""
        model = Net()
        with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
            training(model, quiet(deviceIterations=2), max_grad_norm=1.0)(X, Y)
        assert "poptorch.Options set device_iterations to value 2" in caplog.text
        assert "enablePipelining set to value 0" in caplog.text
        assert "autoRecomputation" not in caplog.text
        model = Net()
        poptorch.BeginBlock(model.second, ipu_id=1)
        with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
            training(model, quiet(accumulation=4), max_grad_norm=1.0)(X, Y)
        for words in (
            "enablePipelining set to value 1",
            "autoRecomputation set to value 3",
            "virtualGraphMode set to value 1",
            "enableGradientAccumulation set to value 1",
            "accumulateOuterFragmentSettings.schedule set to value 0",
        ):
            assert words in caplog.text


class TestSeveralProcesses:
    """What a process finds out alone; several of them: tests/popdist."""

    def test_a_cache_has_its_folder_made_and_must_be_writable(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Options reference, section 7: created if missing, an error if nothing can be written there."""
        options = quiet(enableExecutableCaching=str(tmp_path / "new" / "cache"), configureProcessId=(0, 2))
        inference(Net(), options.clone())(X)
        assert (tmp_path / "new" / "cache").is_dir()
        monkeypatch.setattr("os.access", lambda *args: False)
        with pytest.raises(AssertionError, match="is not writable"):
            inference(Net(), options)(X)

    def test_training_needs_to_know_where_the_others_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Inference and compilation for an offline target need no others."""
        monkeypatch.delenv("MASTER_ADDR", raising=False)
        monkeypatch.delenv("MASTER_PORT", raising=False)
        options = quiet(configureProcessId=(1, 2))
        executor = training(Net(), options)
        with pytest.raises(poptorch.Error, match=r"MASTER_ADDR and MASTER_PORT are not set.*poprun.*torchrun"):
            executor(X, Y)
        assert not executor.isCompiled()
        inference(Net(), options)(X)
        training(Net(), options.clone().useOfflineIpuTarget()).compile(X, Y)
