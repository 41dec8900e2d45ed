"""Compiling, attaching, destroying, failing, being dropped (executor reference, sections 3 and 4)."""

from __future__ import annotations

import gc
import logging
import re
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from executor_support import Module, Net, Scale, X, Y, inference, quiet, raw, sgd, training
from torch import Tensor, nn

import ipu_model
import poptorch

NOT_COMPILED = "Model has not been compiled or has been destroyed"


class TestStates:
    """The table of section 3.2."""

    def test_before_compilation(self) -> None:
        executor = inference(Net())
        assert not executor.isCompiled()
        assert not executor.isAttachedToDevice()
        executor.destroy()
        for use in (
            executor.copyWeightsToHost, executor.copyWeightsToDevice, executor.copyNamedBuffersToDevice,
            executor.attachToDevice, executor.detachFromDevice, lambda: executor.rng_state,
        ):  # fmt: skip
            with pytest.raises(poptorch.Error, match=NOT_COMPILED):
                use()
        with pytest.raises(poptorch.Error, match=NOT_COMPILED):
            executor.rng_state = [1]
        assert executor.copyWeightsToHostIfNeeded() is False

    @pytest.mark.parametrize("kind", [poptorch.ConnectionType.Always, poptorch.ConnectionType.OnDemand])
    def test_compiling_returns_nothing_and_attaches(self, kind: poptorch.ConnectionType) -> None:
        executor = inference(Net(), quiet().connectionType(kind))
        assert executor.compile(X) is None
        assert executor.isCompiled()
        assert executor.isAttachedToDevice()
        with pytest.raises(poptorch.Error, match="Device is already attached"):
            executor.attachToDevice()

    def test_detached(self) -> None:
        executor = inference(Net())
        executor(X)
        executor.detachFromDevice()
        assert executor.isCompiled()
        assert not executor.isAttachedToDevice()
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
        with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
            executor(X)
        executor.compile(X)
        assert executor.isCompiled()
        assert not executor.isAttachedToDevice()
        with pytest.raises(AssertionError, match="Trying to attach to an offline device"):
            executor.attachToDevice()
        with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
            executor(X)
        executor.destroy()

    def test_compiling_again_is_ignored_with_a_warning_but_arguments_are_parsed(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        executor = inference(Net())
        executor.compile(X)
        executor.compile(X[:2])
        assert "Call to compile() ignored" in caplog.text
        assert "already compiled" in caplog.text
        with pytest.raises(AssertionError, match="is not a valid parameter"):
            executor.compile(X, z=1)
        assert executor(X).shape == (4, 2)

    def test_an_inference_executor_takes_other_shapes_after_destroy(self) -> None:
        executor = inference(Net())
        assert executor(X).shape == (4, 2)
        with pytest.raises(poptorch.Error, match=r"Shape mismatch.*destroy\(\)"):
            executor(X[:3])
        executor.destroy()
        assert not executor.isCompiled()
        assert executor(X[:3]).shape == (3, 2)

    def test_a_destroyed_training_executor_leaves_trained_weights_and_a_plain_module(self) -> None:
        model = Scale()
        executor = training(model, lr=0.5)
        executor(torch.ones(2))
        executor.destroy()
        assert raw(model, "weight").item() == 0.5
        assert type(model) is Scale
        second = training(model, lr=0.5)
        second(torch.ones(2))
        assert model.weight.item() == 0.0


class TestFailedCompilation:
    """After any failure the model is usable again (execution reference, section 16)."""

    class Moody(Net):
        mood = "bad"

        def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
            self.cache = self.first(x)
            if self.mood == "bad":
                raise ValueError("bad mood")
            return super().forward(x, y)

    def check_usable(self, executor: poptorch.PoplarExecutor, model: nn.Module) -> None:
        assert not executor.isCompiled()
        assert not executor.isAttachedToDevice()
        assert not poptorch.isRunningOnIpu()
        assert not poptorch.poptorch_core.isCompilingWithDispatcher()
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.detach().numpy()
        with torch.no_grad():
            assert torch.isfinite(model.first(X)).all()

    def test_an_exception_in_forward_passes_through_with_its_own_traceback(self) -> None:
        model = self.Moody()
        executor = training(model)
        with pytest.raises(ValueError, match="bad mood") as failure:
            executor(X, Y)
        assert failure.traceback[-1].name == "forward"
        self.check_usable(executor, model)
        assert not hasattr(model, "cache")
        executor._traced_model.mood = "good"
        assert executor(X, Y)[0].shape == (4, 2)

    def test_the_module_can_be_wrapped_again_although_the_failed_executor_lives(self) -> None:
        """As when a cell of a notebook is corrected and run again."""
        model = Scale()
        failed = training(model, quiet().deviceIterations(3))
        with pytest.raises(AssertionError, match="Invalid batch dimension"):
            failed(torch.ones(2))
        assert type(model) is Scale
        executor = training(model, lr=0.5)
        executor(torch.ones(2))
        assert model.weight.item() == 0.5
        with pytest.raises(RuntimeError, match="already been wrapped"):
            failed(torch.ones(3))
        executor.destroy()
        failed(torch.ones(3))
        assert type(model).__name__ == "PoptorchScale"
        assert model.weight.item() == pytest.approx(0.5 - 3 * 0.1)

    def test_an_error_of_poptorch_raised_in_forward_keeps_its_line(self) -> None:
        class Marked(Net):
            def forward(self, x: Tensor) -> Tensor:
                with poptorch.Block("a", ipu_id=0):
                    h = self.first(x)
                return torch.tanh(h)

        model = Marked()
        executor = inference(model)
        with pytest.raises(poptorch.Error, match="No active Block") as failure:
            executor(X)
        assert any("torch.tanh(h)" in str(entry.statement) for entry in failure.traceback)
        self.check_usable(executor, model)

    def test_an_optimiser_of_another_model_fails_and_the_right_one_then_works(self) -> None:
        model = Net()
        executor = poptorch.trainingModel(model, quiet(), sgd(Net()))
        with pytest.raises(KeyError, match="no parameter of the model"):
            executor(X, Y)
        self.check_usable(executor, model)
        executor.setOptimizer(sgd(model))
        assert executor(X, Y)[0].shape == (4, 2)

    def test_optimiser_state_of_another_model_fails_at_the_upload_again_and_again(self) -> None:
        model, other = Net(), nn.Linear(3, 3)
        optimiser = sgd(model, momentum=0.9)
        optimiser.load_state_dict(
            {"ipu_state": {"Accl1___first.weight": torch.ones(7)}, "ipu_param": {}, "state": {},
             "param_groups": optimiser.state_dict()["param_groups"]}
        )  # fmt: skip
        executor = poptorch.trainingModel(model, quiet(), optimiser)
        for _ in range(2):
            with pytest.raises(poptorch.Error, match=r"Accl1___first.weight has shape"):
                executor(X, Y)
            self.check_usable(executor, model)
        assert other.weight.shape == (3, 3)

    @pytest.mark.parametrize("wrap", [inference, training])
    def test_wrong_rows_fail_and_right_ones_then_work(self, wrap: Any) -> None:
        model = Net()
        executor = wrap(model, quiet().deviceIterations(3))
        with pytest.raises(AssertionError, match="Invalid batch dimension"):
            executor(X, Y)
        self.check_usable(executor, model)
        assert executor(X[:3], Y[:3])[0].shape == ((3, 2) if wrap is inference else (1, 2))


class TestTracedOnce:
    def test_forward_runs_once_for_each_compilation(self) -> None:
        calls: list[bool] = []

        forward = Module(lambda model, x: (calls.append(poptorch.isRunningOnIpu()), x + 1)[1])
        executor = inference(forward, quiet(deviceIterations=2))
        for _ in range(3):
            executor(X)
        assert calls == [True]
        executor.destroy()
        executor(X)
        assert calls == [True, True]

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
                inference(TestFailedCompilation.Moody())(X)
        finally:
            for handle in handles:
                handle.remove()
        inference(Net())(X)
        assert seen == [("before", True), "after", "last"] * 2
        with pytest.raises(RuntimeError, match="must be callable"):
            poptorch.registerPreCompileHook(3)


class TestThreads:
    def test_a_model_compiled_and_trained_in_another_thread_is_read_in_this_one(self) -> None:
        model = Scale()
        executor = training(model)
        thread = threading.Thread(target=executor, args=(torch.ones(2),))
        thread.start()
        thread.join()
        assert model.weight.item() == pytest.approx(0.9)
        executor(torch.ones(2))
        assert model.weight.item() == pytest.approx(0.8)

    def test_models_compiled_at_the_same_time_leave_torchs_settings_as_they_were(self) -> None:
        class Slow(Net):
            def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
                time.sleep(0.01)
                return super().forward(x, y)

        threads = [threading.Thread(target=inference(Slow()), args=(X,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert torch.backends.mha.get_fastpath_enabled()
        with pytest.raises(ValueError, match="constraint"):
            torch.distributions.Normal(X, -1 - X)

    def test_executors_that_draw_random_numbers_in_two_threads_keep_their_own_sequences(self) -> None:
        noise = Module(lambda model, x: x + torch.rand(x.shape))

        def draws(executor: poptorch.PoplarExecutor) -> list[Tensor]:
            return [executor(X) for _ in range(30)]

        def executors() -> list[poptorch.PoplarExecutor]:
            return [inference(noise, quiet().randomSeed(seed)) for seed in (1, 2)]

        alone = [draws(executor) for executor in executors()]
        # Made before the threads start: randomSeed seeds the host's generator, too.
        parallel = executors()
        together: dict[int, list[Tensor]] = {}

        def run(index: int) -> None:
            together[index] = draws(parallel[index])

        threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index in range(2):
            assert all(torch.equal(a, b) for a, b in zip(alone[index], together[index]))

    def test_modules_running_in_another_thread_do_not_disturb_a_trace(self) -> None:
        inside, traced = threading.Event(), threading.Event()

        def slow(model: Any, x: Tensor) -> Tensor:
            inside.set()
            assert traced.wait(timeout=30)
            return x

        thread = threading.Thread(target=nn.Sequential(Module(slow)), args=(X,))
        thread.start()

        def waiting(model: Any, x: Tensor) -> Tensor:
            assert inside.wait(timeout=30)
            h = model.net.first(x)
            traced.set()
            thread.join()
            return model.net.second(h)

        executor = inference(Module(waiting, net=Net()))
        assert executor(X).shape == (4, 2)


class TestDroppedExecutor:
    """A training executor that is never destroyed leaves a module that behaves as a plain one."""

    def test_nothing_keeps_it_alive(self) -> None:
        model = Net()
        executor = training(model)
        executor(X, Y)
        model.first.weight.sum()
        gone = weakref.ref(executor)
        inference(model)(X)
        del executor
        gc.collect()
        assert gone() is None

    def test_the_module_is_plain_again_with_the_weights_of_the_last_transfer(self) -> None:
        model = Scale()
        executor = training(model)
        executor(torch.ones(2))
        seen = model.weight.item()
        executor(torch.ones(2))
        del executor
        gc.collect()
        assert type(model) is Scale
        assert type(model.weight) is nn.Parameter
        assert model.weight.item() == seen
        model(torch.ones(2))[1].backward()
        assert model.weight.grad.item() == 1.0
        again = training(model)
        again(torch.ones(2))
        assert model.weight.item() == pytest.approx(seen - 0.1)

    def test_an_inference_executor_tied_to_it_goes_on(self) -> None:
        model = Net()
        train, test = training(model), None
        train(X, Y)
        test = inference(model)
        expected = test(X)
        del train
        gc.collect()
        assert torch.equal(test(X), expected)


def test_compilation_shows_a_progress_bar_unless_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    poptorch.inferenceModel(Net())(X)
    shown = capsys.readouterr().err
    # PopTorch's bar has no rate.
    assert re.search(r"Graph compilation: 100%\|\S*\| 100/100 \[\d\d:\d\d<\d\d:\d\d\]", shown)
    inference(Net())(X)
    assert "Graph compilation" not in capsys.readouterr().err


def test_logging_at_info_level_does_not_disturb_a_compilation(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert inference(Net())(X).shape == (4, 2)


@pytest.mark.parametrize("enabled", [True, False])
def test_compiling_and_profiling_leave_pythons_garbage_collector_as_they_found_it(enabled: bool) -> None:
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
        with pytest.raises(ZeroDivisionError):
            inference(fails)(X)
        with pytest.raises(ZeroDivisionError):
            ipu_model.profile_module(fails, X, quiet())
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert len(while_running) >= 2
    assert not any(while_running)
