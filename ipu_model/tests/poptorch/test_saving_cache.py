"""The executable cache: forward is traced every time, and what is spared is what a compilation does with the trace.

Results of programs from the cache: test_saving_files. Damaged files: test_saving_damage.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import Module
from saving_support import Mixed, X, Y, options
from torch import Tensor, nn

import poptorch
from poptorch import _poptorch_data
from poptorch._backend.modelling import recalled


def programs(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.poptorch"))


def compile_all(cache: Path, *models: nn.Module) -> int:
    """Compile each model for inference and return how many programs the cache did not know."""
    before = len(programs(cache))
    for model in models:
        poptorch.inferenceModel(model, options(cache)).compile(X)
    return len(programs(cache)) - before


def test_containers_and_constant_results_come_back_and_take_no_time(tmp_path: Path) -> None:
    model, own = Mixed().eval(), options(tmp_path).showCompilationProgressBar(True)
    first, second = (poptorch.inferenceModel(model, own.clone()) for _ in range(2))
    (out, (hidden, seven)), again = first(X), second(X)
    assert torch.equal(out, again[0])
    assert torch.equal(hidden, again[1][0])
    assert again[1][1] == seven == 7
    assert first.compilationTime() > timedelta(seconds=1)
    assert second.compilationTime() == timedelta()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "scale", 0.25),
        lambda model: setattr(model, "steps", torch.tensor([1, 3])),
        lambda model: model.eval(),
        lambda model: model.first.weight.requires_grad_(False),
        lambda model: setattr(model.first, "bias", model.norm.bias),
        lambda model: model.first.register_forward_hook(lambda module, args, output: output * 2),
    ],
    ids=["an attribute", "a constant", "the mode", "a frozen weight", "tied weights", "a hook"],
)
def test_a_model_that_traces_otherwise_is_another_one(change: Callable[[Any], Any], tmp_path: Path) -> None:
    models = [Mixed() for _ in range(4)]
    for model in models[1::2]:
        change(model)
    assert compile_all(tmp_path, *models) == 2


def test_a_new_number_decides_and_a_new_name_does_not(tmp_path: Path) -> None:
    def times(number: float) -> nn.Module:
        return Module(lambda model, x: x * torch.tensor([number, 1.0, 1.0, 1.0]))

    twice = Module(lambda other, name: name * torch.tensor([2.0, 1.0, 1.0, 1.0]))
    assert compile_all(tmp_path, times(1.0), times(2.0), times(1.0), twice) == 2


def test_inputs_and_options_decide_but_not_what_concerns_the_host(tmp_path: Path) -> None:
    def new(*inputs: Tensor, model: Any = Mixed, **changes: Any) -> int:
        before, own = len(programs(tmp_path)), options(tmp_path)
        for setter, value in changes.items():
            getattr(own, setter)(value)
        poptorch.inferenceModel(model(), own).compile(*inputs)
        return len(programs(tmp_path)) - before

    assert new(X) == 1
    assert new(X) == 0  # values of weights do not count
    assert new(X, model=lambda: Mixed(5)) == 1
    assert new(X.double()) == 0  # the device knows no float64
    assert new(X[:2]) == 1
    assert new(X.half(), model=lambda: Mixed().half()) == 1
    assert new(X, Y) == 1
    assert [new(torch.cat([X, X]), deviceIterations=2) for _ in range(2)] == [1, 0]
    shares = [{"IPU0": share} for share in (0.3, 0.3, 0.2)]
    assert [new(X, setAvailableMemoryProportion=share) for share in shares] == [1, 0, 1]
    assert new(X, logDir="elsewhere", randomSeed=3) == 0


def fixed(*args: Any, **numbers: Any) -> poptorch.optim.SGD:
    sgd = poptorch.optim.SGD(*args, **numbers)
    sgd.variable_attrs.markAsConstant("lr")
    return sgd


@pytest.mark.parametrize(
    ("optimiser", "first", "second", "programs_made"),
    [
        (poptorch.optim.SGD, {}, {"lr": 0.2}, 1),
        (fixed, {}, {"lr": 0.2}, 2),
        (poptorch.optim.SGD, {"loss_scaling": 8.0}, {"loss_scaling": 64.0}, 1),
        (poptorch.optim.SGD, {}, {"momentum": 0.9}, 2),  # now there is a velocity
        (poptorch.optim.AdamW, {"betas": (0.8, 0.9)}, {"betas": (0.7, 0.99)}, 1),
        (poptorch.optim.AdamW, {}, {"accum_type": torch.float16}, 2),
    ],
)
def test_numbers_that_are_streamed_decide_nothing(optimiser, first, second, programs_made, tmp_path) -> None:
    for own in (first, second):
        model = Mixed()
        optimizer = optimiser(model.parameters(), **{"lr": 0.1, **own})
        poptorch.trainingModel(model, options(tmp_path), optimizer).compile(X, Y)
    assert len(programs(tmp_path)) == programs_made


def test_hooks_run_every_time_and_decide_if_they_change_the_trace(tmp_path: Path) -> None:
    model, calls = Mixed(), []
    hooks = [
        poptorch.registerPreCompileHook(lambda: setattr(model.drop, "p", 0.1 * len(calls))),
        poptorch.registerPostCompileHook(lambda: calls.append("after")),
    ]
    assert [compile_all(tmp_path, network) for network in (Mixed(), Mixed(), model)] == [1, 0, 1]
    for hook in hooks:
        hook.remove()
    assert calls == ["after"] * 3


def test_what_was_said_of_memory_is_said_again(tmp_path, caplog, monkeypatch) -> None:
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


def test_files_of_another_version_and_of_another_program_are_replaced(tmp_path, monkeypatch, caplog) -> None:
    def compiled(model: nn.Module) -> Path:
        before = set(programs(tmp_path))
        compile_all(tmp_path, model)
        (new,) = set(programs(tmp_path)) - before
        return new

    with monkeypatch.context() as patch:
        patch.setattr(_poptorch_data, "__version__", "0.0.1")
        old = compiled(Mixed())
    own, other = compiled(Mixed()), compiled(Mixed(5))
    shutil.copy(old, own)
    compile_all(tmp_path, Mixed())
    assert "PopTorch version mismatch: written with 0.0.1" in caplog.text
    shutil.copy(own, other)
    compile_all(tmp_path, Mixed(5))
    assert "it holds another program" in caplog.text
    assert other.read_bytes() != own.read_bytes()
    assert {*tmp_path.iterdir()} <= {old, own, other, tmp_path / ".lock"}


def test_the_folder_is_made_if_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path / "made" / "here"))
    poptorch.inferenceModel(Mixed(), options()).compile(X)
    poptorch.inferenceModel(Mixed(5), options().enableExecutableCaching(None)).compile(X)
    assert len(programs(tmp_path / "made" / "here")) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(AssertionError, match=r"executable cache .* cannot be created"):
        compile_all(tmp_path / "file", Mixed())
    with pytest.raises(poptorch.Error, match="branches on data"):
        compile_all(tmp_path, Module(lambda model, x: x if x.sum() > 0 else -x))
    assert programs(tmp_path) == []


def test_another_process_takes_the_program_of_the_first(tmp_path: Path) -> None:
    program = (
        "import sys, poptorch\n"
        "from saving_support import *\n"
        "poptorch.setLogLevel('INFO')\n"
        "poptorch.inferenceModel(Mixed(), options(sys.argv[1])).compile(X)\n"
    )
    compile_all(tmp_path, Mixed())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "The compiled program was loaded from" in other.stderr


def test_who_comes_second_waits_for_the_first(tmp_path: Path) -> None:
    compiling, released = threading.Event(), threading.Event()

    def slow() -> tuple[str, ...]:
        compiling.set()
        released.wait(10)
        return ("slow",)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(recalled, tmp_path, "key", slow)
        assert compiling.wait(10)
        second = pool.submit(recalled, tmp_path, "key", lambda: ("second",))
        with pytest.raises(TimeoutError):
            second.result(0.2)
        released.set()
    assert (first.result(), second.result()) == ((("slow",), False), (("slow",), True))


def test_who_waits_for_one_that_fails_gets_its_turn(tmp_path: Path) -> None:
    def failing() -> tuple[str, ...]:
        raise poptorch.Error("no program")

    for _ in range(2):
        with pytest.raises(poptorch.Error):
            recalled(tmp_path, "key", failing)
    assert recalled(tmp_path, "key", lambda: ("a warning",)) == (("a warning",), False)
    assert recalled(tmp_path, "key", failing) == (("a warning",), True)
