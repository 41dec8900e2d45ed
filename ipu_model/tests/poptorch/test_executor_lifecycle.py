"""Compiling, its target and log, attaching, destroying, failing (executor reference 3 and 4, options 3, 9 and 12)."""

from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import sys
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import ONES, Module, Net, Scale, X, Y, inference, quiet, scale, sgd, training
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ipu_model
import poptorch
from poptorch._backend.compile import check_programs


class TestStates:
    """The table of section 3.2."""

    def test_before_compilation(self) -> None:
        executor = inference(Net())
        assert (executor.isCompiled(), executor.isAttachedToDevice()) == (False, False)
        executor.destroy()
        for use in (
            executor.copyWeightsToHost, executor.copyWeightsToDevice, executor.copyNamedBuffersToDevice,
            executor.attachToDevice, executor.detachFromDevice, lambda: executor.rng_state,
            lambda: setattr(executor, "rng_state", [1]),
        ):  # fmt: skip
            with pytest.raises(poptorch.Error, match="Model has not been compiled or has been destroyed"):
                use()
        assert executor.copyWeightsToHostIfNeeded() is False

    @pytest.mark.parametrize("kind", [poptorch.ConnectionType.Always, poptorch.ConnectionType.OnDemand])
    def test_compiling_returns_nothing_and_attaches(self, kind: poptorch.ConnectionType) -> None:
        executor = inference(Net(), quiet(connectionType=kind))
        assert executor.compile(X) is None
        assert (executor.isCompiled(), executor.isAttachedToDevice()) == (True, True)
        with pytest.raises(poptorch.Error, match="Device is already attached"):
            executor.attachToDevice()

    def test_detached(self) -> None:
        executor = inference(Net())
        executor(X)
        executor.detachFromDevice()
        assert (executor.isCompiled(), executor.isAttachedToDevice()) == (True, False)
        with pytest.raises(poptorch.Error, match="Device is not attached"):
            executor.detachFromDevice()
        for use in (executor.copyWeightsToHost, executor.copyWeightsToDevice):
            with pytest.raises(poptorch.Error, match=r"not attached.*attachToDevice"):
                use()
        assert executor.rng_state is not None
        executor(X)
        assert executor.isAttachedToDevice(), "a call attaches by itself"

    def test_an_offline_target_compiles_but_never_runs_or_attaches(self) -> None:
        executor = inference(Net(), quiet().useOfflineIpuTarget())
        for _ in range(2):
            with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
                executor(X)
            executor.compile(X)
            assert (executor.isCompiled(), executor.isAttachedToDevice()) == (True, False)
        with pytest.raises(AssertionError, match="Trying to attach to an offline device"):
            executor.attachToDevice()

    def test_compiling_again_is_ignored_but_arguments_are_parsed(self, caplog: pytest.LogCaptureFixture) -> None:
        executor = inference(Net())
        executor.compile(X)
        executor.compile(X[:2])
        assert "Call to compile() ignored" in caplog.text
        with pytest.raises(AssertionError, match="is not a valid parameter"):
            executor.compile(X, z=1)
        assert executor(X).shape == (4, 2)


class Moody(Net):
    mood = "bad"

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:
        self.cache = self.first(x)
        if self.mood == "bad":
            raise ValueError("bad mood")
        return super().forward(x, y)


class TestFailedCompilation:
    def test_the_same_executor_can_be_tried_again(self) -> None:
        """First forward fails, then the optimiser is another model's; what else is refused: `test_mistakes.py`."""
        model = Moody()
        executor = poptorch.trainingModel(model, quiet(), sgd(Net()))
        tries = [("bad", ValueError, "bad mood")] * 2 + [("good", KeyError, "no parameter of the model")]
        for mood, error, words in tries:
            executor._traced_model.mood = mood
            with pytest.raises(error, match=words) as failure:
                executor(X, Y)
            assert mood == "good" or failure.traceback[-1].name == "forward"
            assert (executor.isCompiled(), executor.isAttachedToDevice()) == (False, False)
            assert not poptorch.isRunningOnIpu()
            assert not poptorch.poptorch_core.isCompilingWithDispatcher()
            assert all(torch.isfinite(parameter.detach()).all() for parameter in model.parameters())
            assert not hasattr(model, "cache")
        executor.setOptimizer(sgd(model))
        assert executor(X, Y)[0].shape == (4, 2)

    def test_the_module_can_be_wrapped_again_although_the_failed_executor_lives(self) -> None:
        """As when a cell of a notebook is corrected and run again."""
        model = Scale()
        failed = training(model, quiet(deviceIterations=3))
        with pytest.raises(AssertionError, match="Invalid batch dimension"):
            failed(ONES)
        assert type(model) is Scale
        executor = training(model, lr=0.5)
        executor(ONES)
        assert model.weight.item() == 0.5
        with pytest.raises(RuntimeError, match="already been wrapped"):
            failed(torch.ones(3))
        executor.destroy()
        failed(torch.ones(3))
        assert type(model).__name__ == "PoptorchScale"
        assert model.weight.item() == pytest.approx(0.5 - 3 * 0.1)


class TestTracing:
    def test_forward_runs_once_for_each_compilation(self) -> None:
        calls: list[bool] = []
        model = Module(lambda model, x: (calls.append(poptorch.isRunningOnIpu()), x + 1)[1])
        executor = inference(model, quiet(deviceIterations=2))
        for count in (1, 2):
            for _ in range(3):
                executor(X)
            assert calls == [True] * count
            assert not poptorch.isRunningOnIpu()
            executor.destroy()

    def test_hooks_run_around_each_trace_in_order_also_a_failed_one(self) -> None:
        seen: list[Any] = []
        handles = [
            poptorch.registerPreCompileHook(lambda: seen.append(("before", poptorch.isRunningOnIpu()))),
            poptorch.registerPostCompileHook(lambda: seen.append("after")),
            poptorch.registerPostCompileHook(lambda: seen.append("last")),
        ]
        try:
            executor = inference(Net())
            executor(X)
            executor(X)
            with pytest.raises(ValueError, match="bad mood"):
                inference(Moody())(X)
        finally:
            for handle in handles:
                handle.remove()
        inference(Net())(X)
        assert seen == [("before", True), "after", "last"] * 2
        with pytest.raises(RuntimeError, match="must be callable"):
            poptorch.registerPreCompileHook(3)

    def test_it_shows_a_progress_bar_unless_switched_off(self, capsys: pytest.CaptureFixture[str]) -> None:
        poptorch.inferenceModel(Net())(X)
        shown = capsys.readouterr().err
        # PopTorch's bar has no rate.
        assert re.search(r"Graph compilation: 100%\|\S*\| 100/100 \[\d\d:\d\d<\d\d:\d\d\]", shown)
        inference(Net())(X)
        assert "Graph compilation" not in capsys.readouterr().err

    @pytest.mark.parametrize("enabled", [True, False])
    def test_compiling_and_profiling_leave_pythons_garbage_collector_as_they_found_it(self, enabled: bool) -> None:
        while_running: list[bool] = []
        watches = Module(lambda model, x: (while_running.append(gc.isenabled()), x + 1)[1])
        fails = Module(lambda model, x: torch.ones(1 // 0))
        before = gc.isenabled()
        (gc.enable if enabled else gc.disable)()
        try:
            inference(watches)(X)
            assert gc.isenabled() is enabled
            ipu_model.profile_module(watches, X, quiet())
            assert gc.isenabled() is enabled
            for use in (inference(fails), lambda x: ipu_model.profile_module(fails, x, quiet())):
                with pytest.raises(ZeroDivisionError):
                    use(X)
                assert gc.isenabled() is enabled
        finally:
            (gc.enable if before else gc.disable)()
        assert len(while_running) >= 2
        assert not any(while_running)


class TestDroppedExecutor:
    def test_nothing_keeps_it_alive_and_an_inference_executor_tied_to_it_goes_on(self) -> None:
        model = Net()
        executor = training(model)
        executor(X, Y)
        model.first.weight.sum()
        test = inference(model)
        expected = test(X)
        executor.getLatency()  # What is remembered of a graph refers to the graph.
        gone = weakref.ref(executor), weakref.ref(executor._compiled.graph)
        del executor
        gc.collect()
        assert [reference() for reference in gone] == [None, None]
        assert torch.equal(test(X), expected)
        gone = weakref.ref(test), weakref.ref(test._compiled.graph)
        test.destroy()
        gc.collect()
        assert [reference() for reference in gone] == [test, None]

    def test_the_module_is_plain_again_with_the_weights_of_the_last_transfer(self) -> None:
        model, _, executor = scale()
        executor(ONES)
        seen = model.weight.item()
        executor(ONES)
        del executor
        gc.collect()
        assert (type(model), type(model.weight)) == (Scale, nn.Parameter)
        assert model.weight.item() == seen
        model(ONES)[1].backward()
        assert model.weight.grad.item() == 1.0
        again = training(model)
        again(ONES)
        assert model.weight.item() == pytest.approx(seen - 0.1)


@pytest.fixture(autouse=True)
def _nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPU_MODEL", "SMALL_IPU_MODEL", "IPU_MODEL_VERSION"):
        monkeypatch.delenv(f"POPTORCH_{name}", raising=False)


class TestTarget:
    @pytest.mark.parametrize(
        ("variable", "settings", "words"),
        [
            ("", {"logCycleCount": True}, r"only supported on actual IPU hardware.*ipu_model\.profile"),
            ("", {"useIpuModel": True}, r"IPU model cannot be an offline target.*Use one of the two"),
            ("", {"useIpuId": 3}, r"useIpuId\(3\) chooses a device"),
            ("IPU_MODEL=1", {}, "IPU model cannot be an offline target"),
            ("SMALL_IPU_MODEL=1", {}, "IPU model cannot be an offline target"),
            ("IPU_MODEL=yes", {}, "POPTORCH_IPU_MODEL must be an integer, not 'yes'"),
            ("SMALL_IPU_MODEL=yes", {}, "POPTORCH_SMALL_IPU_MODEL must be an integer, not 'yes'"),
            ("IPU_MODEL=1", {"useIpuModel": False}, None),
            ("SMALL_IPU_MODEL=1", {"useIpuModel": False}, None),
            ("IPU_MODEL=0", {}, None),
        ],
    )
    def test_an_offline_target_has_no_counter_no_simulator_and_no_device(
        self, variable: str, settings: dict[str, Any], words: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, _, value = variable.partition("=")
        monkeypatch.setenv(f"POPTORCH_{name}", value)
        with pytest.raises(poptorch.Error, match=words) if words else nullcontext():
            inference(Net(), quiet(**settings).useOfflineIpuTarget()).compile(X)

    def test_the_version_of_the_simulator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu9")
        with pytest.raises(poptorch.Error, match="POPTORCH_IPU_MODEL_VERSION must be one of ipu1, ipu2, ipu21"):
            inference(Net(), quiet(useIpuModel=True))(X)
        assert inference(Net())(X).shape == (4, 2)

    def test_unknown_backend_keys_fail_at_compilation(self) -> None:
        """Which keys, types and values there are: `test_options_backend.py`."""
        options = quiet()
        options._Popart.set("noSuchKey", 1.5)
        with pytest.raises(poptorch.Error, match="Unknown floating point option noSuchKey"):
            inference(Net(), options)(X)


class TestLog:
    def test_warnings(self, caplog: pytest.LogCaptureFixture) -> None:
        training(Net())(X, Y)
        assert caplog.text == "", "a plain program says nothing"
        options = quiet(configureProcessId=(0, 2))
        options._Popart.set("enableGradientAccumulation", True)
        options._Popart.set("logDir", "somewhere")
        inference(Net(), options)(X)
        for words in ("enableExecutableCaching", "enableGradientAccumulation forced by", "use poptorch.Options.logDir"):
            assert words in caplog.text

    def test_why_there_is_a_simulator(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        with caplog.at_level(logging.INFO), caplog.at_level(logging.INFO, logger="poptorch:cpp"):
            inference(Net(), quiet(useIpuModel=True))(X)
            monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
            inference(Net())(X)
        assert "From the user configuration: Ipu model: Enabled" in caplog.text
        assert "From POPTORCH_IPU_MODEL environment variable: Ipu model: Enabled" in caplog.text

    def test_options_and_derived_settings(self, caplog: pytest.LogCaptureFixture) -> None:
        """Section 12.2; all of them: `test_options_backend.py`."""
        model = Net()
        poptorch.BeginBlock(model.second, ipu_id=1)
        with caplog.at_level(logging.DEBUG, logger="poptorch:cpp"):
            training(model, quiet(accumulation=4), max_grad_norm=1.0)(X, Y)
        assert "poptorch.Options set gradient_accumulation to value 4" in caplog.text
        for setting in ("enablePipelining", "enableGradientAccumulation"):
            assert f"{setting} set to value 1" in caplog.text
        assert "accumulateOuterFragmentSettings.schedule set to value 0" in caplog.text


# Prints what one process would compare; sets have another order wherever this runs with another hash seed.
COMPARED = """
import torch, poptorch
from poptorch._backend.compile import program_text
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout())
model.forward = lambda x: poptorch.identity_loss(torch.nn.Sequential.forward(model, x), "sum")
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.5)
training = poptorch.trainingModel(model, poptorch.Options().showCompilationProgressBar(False), optimizer)
training.compile(torch.ones(2, 3))
print(program_text(training._compiled.graph, training.options, training._optimisation.spec))
"""


class TestSeveralProcesses:
    """What a process finds out alone and what it compares with the others; that they do: tests/popdist."""

    @given(instances=st.integers(2, 5), data=st.data())
    def test_what_differs_is_named_with_an_instance_for_each_value(self, instances: int, data: st.DataObject) -> None:
        programs = [{"deviceIterations": "2", "the optimiser": "ADAM"} for _ in range(instances)]
        check_programs(programs[:1])
        check_programs(programs)
        odd = data.draw(st.integers(1, instances - 1))
        programs[odd]["deviceIterations"] = "3"
        with pytest.raises(poptorch.Error) as refusal:
            check_programs(programs)
        assert f"deviceIterations: 2 in instance 0, 3 in instance {odd}." in refusal.value.message
        assert "ADAM" not in refusal.value.message

    def test_the_same_program_reads_the_same_in_every_process(self, capsys: pytest.CaptureFixture[str]) -> None:
        exec(COMPARED, {})
        here = capsys.readouterr().out
        done = subprocess.run([sys.executable, "-c", COMPARED], env={**os.environ, "PYTHONHASHSEED": "1"}, stdout=-1)
        assert done.stdout.decode() == here
        assert "lr=0.5" in here

    def test_a_cache_needs_a_writable_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Options reference, section 7; that it is created if missing: `test_saving_cache.py`."""
        options = quiet(enableExecutableCaching=str(tmp_path / "new"), configureProcessId=(0, 2))
        monkeypatch.setattr("os.access", lambda *args: False)
        with pytest.raises(AssertionError, match="is not writable"):
            inference(Net(), options)(X)

    def test_training_needs_to_know_where_the_others_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MASTER_ADDR", raising=False)
        monkeypatch.delenv("MASTER_PORT", raising=False)
        options = quiet(configureProcessId=(1, 2))
        executor = training(Net(), options)
        with pytest.raises(poptorch.Error, match=r"MASTER_ADDR and MASTER_PORT are not set.*poprun.*torchrun"):
            executor(X, Y)
        assert not executor.isCompiled()
        inference(Net(), options)(X)
        training(Net(), options.clone().useOfflineIpuTarget()).compile(X, Y)
