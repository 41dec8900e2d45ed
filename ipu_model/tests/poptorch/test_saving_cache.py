"""The executable cache: forward is traced every time, and what is spared is what a compilation does with the trace."""

from __future__ import annotations

import logging
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
        first, second = (steps(training(tmp_path), 3) for _ in range(2))
        assert len(programs(tmp_path)) == 1
        assert all_equal(first, expected)
        assert all_equal(second, expected)

    def test_containers_and_constant_results_come_back(self, tmp_path: Path) -> None:
        made = [poptorch.inferenceModel(Mixed().eval(), options(tmp_path)) for _ in range(2)]
        made[1].model.load_state_dict(made[0].model.state_dict())
        (out, (hidden, seven)), (other, (other_hidden, other_seven)) = (executor(X) for executor in made)
        assert torch.equal(out, other)
        assert torch.equal(hidden, other_hidden)
        assert seven == other_seven == 7

    def test_the_modelled_profile_is_the_same(self, tmp_path: Path) -> None:
        made = [training(tmp_path) for _ in range(2)]
        profiles = []
        for executor in made:
            executor.compile(X, Y)
            profiles.append(ipu_model.profile(executor))
        assert profiles[0] == profiles[1]

    def test_what_was_not_compiled_took_no_time(self, tmp_path: Path) -> None:
        made = [poptorch.inferenceModel(Mixed(), options(tmp_path).showCompilationProgressBar(True)) for _ in range(2)]
        for executor in made:
            executor.compile(X)
        assert made[0].compilationTime() > timedelta(seconds=1)
        assert made[1].compilationTime() == timedelta()

    def test_a_program_in_stages_keeps_its_places(self, tmp_path: Path) -> None:
        def pipelined() -> poptorch.PoplarExecutor:
            model = Mixed()
            poptorch.BeginBlock(model.second, ipu_id=1)
            own = options(tmp_path).deviceIterations(4)
            own.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
            return poptorch.inferenceModel(model.eval(), own)

        made = [pipelined() for _ in range(2)]
        for executor in made:
            executor.compile(X)
        assert len(programs(tmp_path)) == 1
        assert [program_behind(executor).step.ipus for executor in made] == [(0, 1), (0, 1)]

    def test_compile_hooks_run_every_time(self, tmp_path: Path) -> None:
        calls: list[str] = []
        handles = [
            poptorch.registerPreCompileHook(lambda: calls.append("before")),
            poptorch.registerPostCompileHook(lambda: calls.append("after")),
        ]
        for _ in range(2):
            training(tmp_path).compile(X, Y)
        for handle in handles:
            handle.remove()
        assert calls == ["before", "after"] * 2


class Applying(nn.Module):
    """Its forward is a function that it is given."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def changed_width() -> nn.Module:
    return Mixed(5)


def changed_attribute() -> nn.Module:
    model = Mixed()
    model.scale = 0.25
    return model


def changed_constant() -> nn.Module:
    model = Mixed()
    model.steps = torch.tensor([1, 3])
    return model


def changed_mode() -> nn.Module:
    return Mixed().eval()


def frozen_weight() -> nn.Module:
    model = Mixed()
    model.first.weight.requires_grad_(False)
    return model


def tied_weights() -> nn.Module:
    model = Mixed()
    model.first.bias = model.norm.bias
    return model


def with_hook() -> nn.Module:
    model = Mixed()
    model.first.register_forward_hook(lambda module, args, output: output * 2)
    return model


class TestWhatDecides:
    @pytest.mark.parametrize(
        "change",
        [changed_width, changed_attribute, changed_constant, changed_mode, frozen_weight, tied_weights, with_hook],
    )
    def test_a_model_that_traces_otherwise_is_traced_anew(
        self, change: Callable[[], nn.Module], tmp_path: Path
    ) -> None:
        assert compile_all(tmp_path, Mixed(), change(), Mixed(), change()) == 2

    def test_values_of_weights_decide_nothing(self, tmp_path: Path) -> None:
        assert compile_all(tmp_path, *(Mixed() for _ in range(3))) == 1

    @pytest.mark.parametrize("places", [1, 2])
    def test_changed_code_is_never_passed_over(self, tmp_path: Path, places: int) -> None:
        """As between two runs of a script whose layers have been edited; forward finds them by a computed name."""
        layers = ModuleType("layers")
        number = 1

        class Chosen(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                for place in range(places):
                    x = getattr(layers, f"block_v{place + number}")(x)
                return x

        layers.block_v1 = layers.block_v2 = lambda x: x + 1  # type: ignore[attr-defined]
        assert torch.equal(poptorch.inferenceModel(Chosen(), options(tmp_path))(X), X + places)
        layers.block_v1 = lambda x: x + 100  # type: ignore[attr-defined]
        assert torch.equal(poptorch.inferenceModel(Chosen(), options(tmp_path))(X), X + 99 + places)
        assert len(programs(tmp_path)) == 2

    def test_a_new_number_decides_and_a_new_name_does_not(self, tmp_path: Path) -> None:
        def times(number: float) -> Applying:
            return Applying(lambda model, x: model.weight * x * number)

        def twice(model: Applying, x: Tensor) -> Tensor:
            return model.weight * x * 2.0

        assert compile_all(tmp_path, times(1.0), times(2.0), times(1.0), Applying(twice)) == 2

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

    @pytest.mark.parametrize(
        ("optimiser", "first", "second", "programs_made"),
        [
            (poptorch.optim.SGD, {"lr": 0.1}, {"lr": 0.2}, 1),
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
            model = Mixed()
            optimizer = optimiser(model.parameters(), **{"lr": 0.1, **own})
            poptorch.trainingModel(model, options(tmp_path), optimizer).compile(X, Y)
        assert len(programs(tmp_path)) == programs_made

    def test_a_constant_learning_rate_decides(self, tmp_path: Path) -> None:
        for rate in (0.1, 0.2):
            model = Mixed()
            optimizer = poptorch.optim.SGD(model.parameters(), lr=rate)
            optimizer.variable_attrs.markAsConstant("lr")
            poptorch.trainingModel(model, options(tmp_path), optimizer).compile(X, Y)
        assert len(programs(tmp_path)) == 2

    def test_what_is_only_said_about_the_host_does_not(self, tmp_path: Path) -> None:
        assert compile_all(tmp_path, Mixed()) == 1
        poptorch.inferenceModel(Mixed(), options(tmp_path).logDir("elsewhere").randomSeed(3)).compile(X)
        assert len(programs(tmp_path)) == 1

    def test_a_hook_that_runs_before_every_trace_decides(self, tmp_path: Path) -> None:
        models = [Mixed() for _ in range(3)]
        assert compile_all(tmp_path, models[0]) == 1
        handle = poptorch.registerPreCompileHook(lambda: setattr(models[1].drop, "p", 0.7))
        assert compile_all(tmp_path, models[1]) == 1
        handle.remove()
        assert compile_all(tmp_path, models[2]) == 0


class TestWarnings:
    """What was said of a program when it was compiled is said again whenever it comes from the cache."""

    def test_a_program_that_does_not_fit_is_refused_every_time(self, tmp_path: Path) -> None:
        for _ in range(2):
            with pytest.raises(poptorch.Error, match="memory"):
                poptorch.inferenceModel(TooLarge(), options(tmp_path)).compile(torch.ones(1, 20_000))
        assert programs(tmp_path) == []

    def test_unless_memory_is_ignored(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("IPU_MODEL_IGNORE_MEMORY", "1")
        for _ in range(2):
            caplog.clear()
            poptorch.inferenceModel(TooLarge(), options(tmp_path)).compile(torch.ones(1, 20_000))
            assert "IPU_MODEL_IGNORE_MEMORY is set" in caplog.text
        assert len(programs(tmp_path)) == 1


class TooLarge(nn.Module):
    """Its weight takes 1.6 GB, an IPU has 0.9."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1).expand(20_000, 20_000))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class TestFiles:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda data: data[:-1],
            lambda data: data[: len(data) // 2],
            lambda data: b"",
            lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
            lambda data: b"something else",
        ],
        ids=["one byte short", "half", "empty", "one bit", "another format"],
    )
    def test_a_damaged_one_is_replaced(
        self, damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        compile_all(tmp_path, Mixed())
        (file,) = programs(tmp_path)
        good = file.read_bytes()
        file.write_bytes(damage(good))
        with caplog.at_level(logging.INFO, logger="poptorch::python"):
            compile_all(tmp_path, Mixed())
            assert "cannot be used" in caplog.text
            assert file.read_bytes() == good
            compile_all(tmp_path, Mixed())
        assert f"loaded from {file}" in caplog.text

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

    def test_only_programs_and_a_lock_are_left_in_the_folder(self, tmp_path: Path) -> None:
        compile_all(tmp_path, Mixed(), Mixed(5), Mixed())
        assert {*tmp_path.iterdir()} <= {*programs(tmp_path), tmp_path / ".lock"}
        assert len(programs(tmp_path)) == 2

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
        failing = Applying(lambda model, x: x if x.sum() > 0 else -x)
        with pytest.raises(poptorch.Error, match="branches on data"):
            compile_all(tmp_path, failing)
        assert programs(tmp_path) == []


class TestSharing:
    def test_another_process_takes_the_program_of_the_first(self, tmp_path: Path) -> None:
        program = (
            "import sys, poptorch\n"
            "from saving_support import *\n"
            "poptorch.setLogLevel('INFO')\n"
            "poptorch.inferenceModel(Mixed(), options(sys.argv[1])).compile(X)\n"
        )
        training(tmp_path).compile(X, Y)
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

        def second_judge() -> tuple[str, ...]:
            order.append("second compiles")
            return ()

        first = threading.Thread(target=recalled, args=(tmp_path, "key", slow))
        second = threading.Thread(target=recalled, args=(tmp_path, "key", second_judge))
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

        for _ in range(3):
            with pytest.raises(poptorch.Error):
                recalled(tmp_path, "key", failing)
        assert recalled(tmp_path, "key", lambda: ("a warning",)) == (("a warning",), False)
        assert recalled(tmp_path, "key", failing) == (("a warning",), True)
