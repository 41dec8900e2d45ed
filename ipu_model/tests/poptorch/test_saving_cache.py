"""The executable cache: forward is traced every time, and what is spared is what a compilation does with the trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from executor_support import Module
from saving_support import Mixed, X, Y, all_equal, options, steps, training
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model.front_ends import program_behind
from poptorch import _poptorch_data
from poptorch._backend.memory_check import recalled


def programs(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.poptorch"))


def compile_all(cache: Path, *models: nn.Module) -> int:
    """Compile each model for inference and return how many programs the cache did not know."""
    before = len(programs(cache))
    for model in models:
        poptorch.inferenceModel(model, options(cache)).compile(X)
    return len(programs(cache)) - before


class TestResults:
    def test_they_are_those_without_a_cache_bit_by_bit(self, tmp_path: Path) -> None:
        expected = steps(training(), 3)
        executors = [training(tmp_path) for _ in range(2)]
        assert all(all_equal(steps(executor, 3), expected) for executor in executors)
        assert len(programs(tmp_path)) == 1
        assert ipu_model.profile(executors[0]) == ipu_model.profile(executors[1])

    def test_containers_and_constant_results_come_back(self, tmp_path: Path) -> None:
        made = [poptorch.inferenceModel(Mixed().eval(), options(tmp_path)) for _ in range(2)]
        made[1].model.load_state_dict(made[0].model.state_dict())
        (out, (hidden, seven)), (other, (other_hidden, other_seven)) = (executor(X) for executor in made)
        assert torch.equal(out, other)
        assert torch.equal(hidden, other_hidden)
        assert seven == other_seven == 7

    def test_what_was_not_compiled_took_no_time(self, tmp_path: Path) -> None:
        made = [poptorch.inferenceModel(Mixed(), options(tmp_path).showCompilationProgressBar(True)) for _ in range(2)]
        for executor in made:
            executor.compile(X)
        assert made[0].compilationTime() > timedelta(seconds=1)
        assert made[1].compilationTime() == timedelta()

    def test_a_program_in_stages_keeps_its_places(self, tmp_path: Path) -> None:
        for _ in range(2):
            model = Mixed()
            poptorch.BeginBlock(model.second, ipu_id=1)
            own = options(tmp_path).deviceIterations(4)
            own.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
            executor = poptorch.inferenceModel(model.eval(), own)
            executor.compile(X)
            assert program_behind(executor).step.ipus == (0, 1)
        assert len(programs(tmp_path)) == 1

    def test_compile_hooks_run_every_time(self, tmp_path: Path) -> None:
        calls: list[str] = []
        handles = [
            poptorch.registerPreCompileHook(lambda: calls.append("before")),
            poptorch.registerPostCompileHook(lambda: calls.append("after")),
        ]
        compile_all(tmp_path, Mixed(), Mixed())
        for handle in handles:
            handle.remove()
        assert calls == ["before", "after"] * 2


def applying(function: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    return Module(function, weight=nn.Parameter(torch.ones(4)))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda model: setattr(model, "scale", 0.25),
    "a constant": lambda model: setattr(model, "steps", torch.tensor([1, 3])),
    "the mode": lambda model: model.eval(),
    "a frozen weight": lambda model: model.first.weight.requires_grad_(False),
    "tied weights": lambda model: setattr(model.first, "bias", model.norm.bias),
    "a hook": lambda model: model.first.register_forward_hook(lambda module, args, output: output * 2),
}


class TestWhatDecides:
    @pytest.mark.parametrize("change", CHANGES)
    def test_a_model_that_traces_otherwise_is_traced_anew(self, change: str, tmp_path: Path) -> None:
        models = [Mixed() for _ in range(4)]
        for model in models[1::2]:
            CHANGES[change](model)
        assert compile_all(tmp_path, *models) == 2

    def test_widths_decide_and_values_of_weights_do_not(self, tmp_path: Path) -> None:
        assert compile_all(tmp_path, *(Mixed() for _ in range(3))) == 1
        assert compile_all(tmp_path, Mixed(5)) == 1

    @pytest.mark.parametrize("places", [1, 2])
    def test_changed_code_is_never_passed_over(self, tmp_path: Path, places: int) -> None:
        """As between two runs of a script whose layers have been edited; forward finds them by a computed name."""
        layers = ModuleType("layers")

        def forward(model: Any, x: Tensor) -> Tensor:
            for place in range(places):
                x = getattr(layers, f"block_v{place + 1}")(x)
            return x

        layers.block_v1 = layers.block_v2 = lambda x: x + 1  # type: ignore[attr-defined]
        assert torch.equal(poptorch.inferenceModel(Module(forward), options(tmp_path))(X), X + places)
        layers.block_v1 = lambda x: x + 100  # type: ignore[attr-defined]
        assert torch.equal(poptorch.inferenceModel(Module(forward), options(tmp_path))(X), X + 99 + places)
        assert len(programs(tmp_path)) == 2

    def test_a_new_number_decides_and_a_new_name_does_not(self, tmp_path: Path) -> None:
        def times(number: float) -> nn.Module:
            return applying(lambda model, x: model.weight * x * number)

        def twice(model: Any, x: Tensor) -> Tensor:
            return model.weight * x * 2.0

        assert compile_all(tmp_path, times(1.0), times(2.0), times(1.0), applying(twice)) == 2

    def test_inputs_and_options_decide(self, tmp_path: Path) -> None:
        def new(count: int, batch: Tensor, *others: Any) -> int:
            before = len(programs(tmp_path))
            poptorch.inferenceModel(Mixed(), options(tmp_path).deviceIterations(count)).compile(batch, *others)
            return len(programs(tmp_path)) - before

        assert new(1, X) == 1
        assert new(1, X.double()) == 0  # the device knows no float64
        assert new(1, X[:2]) == 1
        assert new(1, X, Y) == 1
        assert new(2, torch.cat([X, X])) == 1
        assert new(2, torch.cat([X, X])) == 0

    def test_memory_for_products_decides(self, tmp_path: Path) -> None:
        for proportion in (0.3, 0.3, 0.2):
            chosen = options(tmp_path).setAvailableMemoryProportion({"IPU0": proportion})
            poptorch.inferenceModel(Mixed(), chosen).compile(X)
        assert len(programs(tmp_path)) == 2

    def test_what_is_only_said_about_the_host_does_not(self, tmp_path: Path) -> None:
        assert compile_all(tmp_path, Mixed()) == 1
        poptorch.inferenceModel(Mixed(), options(tmp_path).logDir("elsewhere").randomSeed(3)).compile(X)
        assert len(programs(tmp_path)) == 1

    @pytest.mark.parametrize(
        ("optimiser", "first", "second", "programs_made"),
        [
            (poptorch.optim.SGD, {"lr": 0.1}, {"lr": 0.2}, 1),
            (poptorch.optim.SGD, {"lr": 0.1, "constant": True}, {"lr": 0.2, "constant": True}, 2),
            (poptorch.optim.SGD, {"loss_scaling": 8.0}, {"loss_scaling": 64.0}, 1),
            (poptorch.optim.SGD, {}, {"momentum": 0.9}, 2),  # now there is a velocity
            (poptorch.optim.AdamW, {"betas": (0.8, 0.9)}, {"betas": (0.7, 0.99)}, 1),
            (poptorch.optim.AdamW, {}, {"accum_type": torch.float16}, 2),
        ],
    )
    def test_numbers_that_are_streamed_decide_nothing(
        self, optimiser: Any, first: dict[str, Any], second: dict[str, Any], programs_made: int, tmp_path: Path
    ) -> None:
        for own in (first, second):
            model, given = Mixed(), {"lr": 0.1, **own}
            constant = given.pop("constant", False)
            optimizer = optimiser(model.parameters(), **given)
            if constant:
                optimizer.variable_attrs.markAsConstant("lr")
            poptorch.trainingModel(model, options(tmp_path), optimizer).compile(X, Y)
        assert len(programs(tmp_path)) == programs_made

    def test_a_hook_that_runs_before_every_trace_decides(self, tmp_path: Path) -> None:
        models = [Mixed() for _ in range(3)]
        assert compile_all(tmp_path, models[0]) == 1
        handle = poptorch.registerPreCompileHook(lambda: setattr(models[1].drop, "p", 0.7))
        assert compile_all(tmp_path, models[1]) == 1
        handle.remove()
        assert compile_all(tmp_path, models[2]) == 0


def test_what_was_said_of_memory_is_said_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that does not fit is refused every time, unless memory is ignored: its weight takes 1.6 GB of 0.9."""
    weight = nn.Parameter(torch.empty(1).expand(20_000, 20_000))

    def compile_once() -> None:
        caplog.clear()
        too_large = Module(lambda model, x: x @ model.weight, weight=weight)
        poptorch.inferenceModel(too_large, options(tmp_path)).compile(torch.ones(1, 20_000))

    for _ in range(2):
        with pytest.raises(poptorch.Error, match="memory"):
            compile_once()
    assert programs(tmp_path) == []
    monkeypatch.setenv("IPU_MODEL_IGNORE_MEMORY", "1")
    for _ in range(2):
        compile_once()
        assert "IPU_MODEL_IGNORE_MEMORY is set" in caplog.text
    assert len(programs(tmp_path)) == 1


class TestFiles:
    """Damage: test_saving_damage."""

    def test_one_of_another_version_is_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(_poptorch_data, "__version__", "0.0.1")
            compile_all(tmp_path, Mixed())
        (old,) = programs(tmp_path)
        compile_all(tmp_path, Mixed())
        (new,) = set(programs(tmp_path)) - {old}
        shutil.copy(old, new)
        compile_all(tmp_path, Mixed())
        assert "PopTorch version mismatch: written with 0.0.1" in caplog.text

    def test_one_under_the_name_of_another_is_replaced(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        compile_all(tmp_path, Mixed())
        (own,) = programs(tmp_path)
        compile_all(tmp_path, Mixed(5))
        (other,) = set(programs(tmp_path)) - {own}
        shutil.copy(own, other)
        compile_all(tmp_path, Mixed(5))
        assert "it holds another program" in caplog.text
        assert other.read_bytes() != own.read_bytes()
        assert {*tmp_path.iterdir()} <= {own, other, tmp_path / ".lock"}

    def test_the_folder_is_made_and_none_switches_off(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "made" / "here"))
        poptorch.inferenceModel(Mixed(), options()).compile(X)
        assert len(programs(tmp_path / "made" / "here")) == 1
        poptorch.inferenceModel(Mixed(5), options().enableExecutableCaching(None)).compile(X)
        assert len(programs(tmp_path / "made" / "here")) == 1

    def test_a_folder_that_cannot_be_made_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        executor = poptorch.inferenceModel(Mixed(), options(tmp_path / "file"))
        with pytest.raises(AssertionError, match=r"executable cache .* cannot be created"):
            executor.compile(X)

    def test_a_failed_trace_leaves_nothing_behind(self, tmp_path: Path) -> None:
        with pytest.raises(poptorch.Error, match="branches on data"):
            compile_all(tmp_path, applying(lambda model, x: x if x.sum() > 0 else -x))
        assert programs(tmp_path) == []


class TestSharing:
    def test_another_process_takes_the_program_of_the_first(self, tmp_path: Path) -> None:
        program = (
            "import sys, poptorch\n"
            "from saving_support import *\n"
            "poptorch.setLogLevel('INFO')\n"
            "poptorch.inferenceModel(Mixed(), options(sys.argv[1])).compile(X)\n"
        )
        compile_all(tmp_path, Mixed())
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
        other = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
        )
        assert "The compiled program was loaded from" in other.stderr

    def test_who_comes_second_waits_for_the_first(self, tmp_path: Path) -> None:
        order: list[str] = []
        compiling, released = threading.Event(), threading.Event()

        def slow() -> tuple[str, ...]:
            order.append("first compiles")
            compiling.set()
            released.wait(10)
            return ()

        first = threading.Thread(target=recalled, args=(tmp_path, "key", slow))
        second = threading.Thread(target=recalled, args=(tmp_path, "key", lambda: (order.append("second"), ())[1]))
        first.start()
        assert compiling.wait(10)
        second.start()
        second.join(0.2)
        assert second.is_alive()
        released.set()
        first.join(10)
        second.join(10)
        assert order == ["first compiles"]

    def test_who_waits_for_one_that_fails_gets_its_turn(self, tmp_path: Path) -> None:
        def failing() -> tuple[str, ...]:
            raise poptorch.Error("no program")

        for _ in range(2):
            with pytest.raises(poptorch.Error):
                recalled(tmp_path, "key", failing)
        assert recalled(tmp_path, "key", lambda: ("a warning",)) == (("a warning",), False)
        assert recalled(tmp_path, "key", failing) == (("a warning",), True)
