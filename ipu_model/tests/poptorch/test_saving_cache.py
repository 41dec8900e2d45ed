"""The executable cache: a program is traced once, and what decides a trace decides which program is taken."""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from saving_support import Mixed, X, Y, all_equal, counted_traces, options, steps, training
from torch import Tensor, nn

import ipu_model
import poptorch
from poptorch._backend.saving import versions

_FACTOR = 2.0


def programs(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.poptorch"))


class TestResults:
    def test_they_are_those_without_a_cache_bit_by_bit(self, tmp_path: Path) -> None:
        expected = steps(training(), 3)
        with counted_traces() as traced:
            first, second = (steps(training(tmp_path), 3) for _ in range(2))
        assert len(traced) == 1
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

        with counted_traces() as traced:
            made = [pipelined() for _ in range(2)]
            for executor in made:
                executor.compile(X)
        assert len(traced) == 1
        graphs = [executor._graph for executor in made]
        assert graphs[0] is not None
        assert graphs[1] is not None
        assert graphs[0].ipus == graphs[1].ipus == (0, 1)

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


def imports_while_it_runs(model: Applying, x: Tensor) -> Tensor:
    import time

    return model.weight * x * min(1.0, time.time())


def found_by_its_name(model: Applying, x: Tensor) -> Tensor:
    return model.weight * x * float(getattr(test_module, "_FACTOR"))  # noqa: B009


test_module = sys.modules[__name__]


def doubled(model: Applying, x: Tensor) -> Tensor:
    return model.weight * x * _FACTOR


def compile_all(cache: Path, *models: nn.Module) -> int:
    """Compile each model for inference and return how many traces that took."""
    with counted_traces() as traced:
        for model in models:
            poptorch.inferenceModel(model, options(cache)).compile(X)
    return len(traced)


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

    def test_code_decides_and_not_its_name(self, tmp_path: Path) -> None:
        def once(model: Applying, x: Tensor) -> Tensor:
            return model.weight * x

        def twice(model: Applying, x: Tensor) -> Tensor:
            return model.weight * x * 2

        twice.__name__, twice.__qualname__ = once.__name__, once.__qualname__
        assert compile_all(tmp_path, Applying(once), Applying(twice), Applying(once)) == 2

    def test_values_that_a_function_closes_over_decide(self, tmp_path: Path) -> None:
        def times(number: float) -> Applying:
            return Applying(lambda model, x: model.weight * x * number)

        assert compile_all(tmp_path, times(1.0), times(2.0), times(1.0)) == 2

    @pytest.mark.parametrize("function", [doubled, found_by_its_name])
    def test_globals_that_forward_reads_decide(
        self, function: Callable[[Any, Tensor], Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert compile_all(tmp_path, *(Applying(function) for _ in range(2))) == 1
        monkeypatch.setattr(test_module, "_FACTOR", 3.0)
        assert compile_all(tmp_path, *(Applying(function) for _ in range(2))) == 1

    def test_the_inputs_decide_and_how_often_a_program_runs_does_not(self, tmp_path: Path) -> None:
        def traces(count: int, batch: Tensor, *others: Any) -> int:
            with counted_traces() as traced:
                poptorch.inferenceModel(Mixed(), options(tmp_path).deviceIterations(count)).compile(batch, *others)
            return len(traced)

        assert traces(1, X) == 1
        assert traces(2, torch.cat([X, X])) == 0
        assert traces(2, X) == 1
        assert traces(1, X.double()) == 0  # the device knows no float64
        assert traces(1, X[:4]) == 0  # what two iterations of X have got
        assert traces(1, X[:2]) == 1
        assert traces(1, X, Y) == 1

    @pytest.mark.parametrize(
        "function",
        [
            lambda model, x: model.weight * x * random.random(),
            lambda model, x: model.weight * x * len(os.environ),
            lambda model, x: model.weight * x * float(open(os.devnull).read() or 1),  # noqa: SIM115
            lambda model, x: imports_while_it_runs(model, x),
        ],
        ids=["random", "environment", "file", "import"],
    )
    def test_a_trace_that_cannot_be_told_is_made_every_time(
        self, function: Callable[[Any, Tensor], Tensor], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, logger="poptorch::python"):
            assert compile_all(tmp_path, *(Applying(function) for _ in range(2))) == 2
        assert "cannot be told" in caplog.text
        assert programs(tmp_path) == []

    def test_a_hook_that_runs_before_every_trace_decides(self, tmp_path: Path) -> None:
        models = [Mixed() for _ in range(3)]
        assert compile_all(tmp_path, models[0]) == 1
        handle = poptorch.registerPreCompileHook(lambda: setattr(models[1], "scale", 2.0))
        assert compile_all(tmp_path, models[1]) == 1
        handle.remove()
        assert compile_all(tmp_path, models[2]) == 0

    def test_a_hook_on_all_modules_decides(self, tmp_path: Path) -> None:
        handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
        assert compile_all(tmp_path, Mixed()) == 1
        handle.remove()
        assert compile_all(tmp_path, Mixed(), Mixed()) == 1

    def test_an_attribute_that_cannot_be_read_is_no_error(self, tmp_path: Path) -> None:
        class Unreadable:
            __slots__ = ("value",)

            def __getattribute__(self, name: str) -> Any:
                if name == "value":
                    raise ValueError(name)
                return object.__getattribute__(self, name)

        model = Mixed()
        model.odd = Unreadable()
        assert compile_all(tmp_path, model, model) == 2

    def test_code_without_a_module_is_read_like_any_other(self, tmp_path: Path) -> None:
        space: dict[str, Any] = {}
        exec("def function(model, x):\n    return model.weight * x", space)
        assert compile_all(tmp_path, *(Applying(space["function"]) for _ in range(2))) == 1

    def test_a_pure_module_of_the_standard_library_is_no_obstacle(self, tmp_path: Path) -> None:
        models = [Applying(lambda model, x: model.weight * x * math.pi) for _ in range(2)]
        models[1].function = models[0].function
        assert compile_all(tmp_path, *models) == 1


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
        assert compile_all(tmp_path, Mixed()) == 1
        assert "cannot be used" in caplog.text
        assert file.read_bytes() == good
        assert compile_all(tmp_path, Mixed()) == 0

    def test_one_of_another_version_is_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(versions, "version", lambda name: "0.0.1")
            compile_all(tmp_path, Mixed())
        assert compile_all(tmp_path, Mixed()) == 1
        assert "PopTorch version mismatch: written with 0.0.1" in caplog.text
        assert compile_all(tmp_path, Mixed()) == 0

    def test_one_under_the_name_of_another_is_replaced(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        compile_all(tmp_path, Mixed())
        (own,) = programs(tmp_path)
        compile_all(tmp_path, Mixed(5))
        (other,) = set(programs(tmp_path)) - {own}
        shutil.copy(own, other)
        assert compile_all(tmp_path, Mixed(5)) == 1
        assert "it holds another program" in caplog.text

    def test_only_programs_are_left_in_the_folder(self, tmp_path: Path) -> None:
        compile_all(tmp_path, Mixed(), Mixed(5), Mixed())
        assert sorted(tmp_path.iterdir()) == programs(tmp_path)
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
