"""save, compileAndExport, load and loadExecutable: programs go on as if they had never been in a file, or are refused.

Damaged files: test_saving_damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from executor_support import Module
from saving_support import Mixed, X, Y, options
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model import custom_ops
from poptorch import _poptorch_data


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        with poptorch.Block("a", ipu_id=0):
            x = torch.tanh(self.first(x))
        with poptorch.Block("b", ipu_id=1):
            out = self.second(x)
            return out, poptorch.identity_loss(out * out, "mean")


class Weighted(nn.Module):
    def __init__(self, own: Tensor) -> None:
        super().__init__()
        self.own = nn.Parameter(own)

    def forward(self, x: Tensor) -> Any:
        out = (x * self.own).sum(1) if x.shape[1:] == self.own.shape[-1:] else x.abs().sum().half() * self.own
        return out, poptorch.identity_loss((out * out).float(), "mean")


def grouped() -> Weighted:
    """Return a model whose weight has a slice for each group of replicas."""
    return Weighted(torch.linspace(0, 1, 8).reshape(2, 4))


def half() -> Weighted:
    """Return a model with a weight of float16 that small steps move only where rounding is stochastic."""
    return Weighted(torch.ones(256, dtype=torch.float16))


def momentum(model: nn.Module) -> poptorch.optim.SGD:
    return poptorch.optim.SGD(model.parameters(), lr=2.0**-13, momentum=0.5, use_combined_accum=False)


def adam(model: nn.Module) -> poptorch.optim.AdamW:
    return poptorch.optim.AdamW(model.parameters(), lr=0.1)


@dataclass(frozen=True)
class Case:
    """A kind of training program: its model, how its options differ, and what is said before it compiles."""

    model: Callable[[], nn.Module]
    change: Callable[[poptorch.Options], object] = lambda own: None
    prepare: Callable[[poptorch.PoplarExecutor], object] = lambda executor: None
    optimizer: Callable[[nn.Module], Any] = momentum
    inputs: tuple[Tensor, ...] = (X,)

    def wrapped(self, cache: Path | None = None) -> poptorch.PoplarExecutor:
        torch.manual_seed(0)
        model, own = self.model(), options(cache)
        self.change(own)
        executor = poptorch.trainingModel(model, own, self.optimizer(model))
        self.prepare(executor)
        return executor

    def exported(self, path: Path, **settings: Any) -> poptorch.PoplarExecutor:
        executor = self.wrapped()
        executor.compileAndExport(path, *self.inputs, **settings)
        return executor

    def steps(self, executor: poptorch.PoplarExecutor, count: int = 2) -> list[Tensor]:
        """Train, and return the last results, the weights and the optimiser's state."""
        for _ in range(count):
            results = executor(*self.inputs)
        assert executor._optimisation is not None
        state = executor._optimisation.optimizer.state_dict()["ipu_state"]
        results = results.values() if isinstance(results, dict) else results
        return [*results, *(t.clone() for t in executor.state_dict().values()), *state.values()]


def all_equal(some: Any, others: Any) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def cached(folder: Path) -> int:
    return len(list(folder.glob("*.poptorch")))


def pipelined(own: poptorch.Options) -> poptorch.Options:
    own.Training.gradientAccumulation(4)
    return own.setExecutionStrategy(poptorch.PipelinedExecution("a", "b"))


def of_replicas(executor: poptorch.PoplarExecutor) -> None:
    executor.own.replicaGrouping(poptorch.CommGroupType.Orthogonal, 2, poptorch.VariableRetrievalMode.OnePerGroup)


PHASED = poptorch.ParallelPhasedExecution("a", "b").sendTensorsOffChipAfterFwd()
MIXED = Case(Mixed, optimizer=adam, inputs=(X, Y))
GROUPED = Case(grouped, lambda own: own.replicationFactor(4), of_replicas)
CASES = {
    "dropout, statistics and a dict": MIXED,
    "phased": Case(Blocks, lambda own: own.setExecutionStrategy(PHASED)),
    "pipelined": Case(Blocks, pipelined),
    "anchored": Case(Blocks, lambda own: pipelined(own).anchorTensor("g", "Gradient___first.weight")),
    "replica groups": GROUPED,
    "stochastic rounding": Case(half, lambda own: own.Precision.enableStochasticRounding(True)),
    "automatic loss scaling": Case(half, lambda own: own.Training.setAutomaticLossScaling(True)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_program_from_a_file_or_the_cache_goes_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    plain, fresh, again = case.wrapped(), *(case.wrapped(tmp_path / "cache") for _ in range(2))
    plain.compile(*case.inputs)
    plain.save(tmp_path / "program", export_model=False)
    served = case.wrapped()
    served.loadExecutable(tmp_path / "program")
    expected = case.steps(plain)
    assert all(all_equal(case.steps(other), expected) for other in (served, fresh, again))
    assert ipu_model.profile(fresh) == ipu_model.profile(again)
    assert cached(tmp_path / "cache") == 1
    plain.save(tmp_path / "model")
    loaded = poptorch.load(tmp_path / "model")
    assert (loaded.isCompiled(), loaded.isAttachedToDevice()) == (True, True)
    assert all_equal(case.steps(loaded), case.steps(plain))


def test_an_executable_uses_the_weights_of_the_host(tmp_path: Path) -> None:
    MIXED.exported(tmp_path / "model")
    own, same = MIXED.wrapped(), MIXED.wrapped()
    for executor in (own, same):
        executor.model.second.weight.data += 1.0
    own.loadExecutable(tmp_path / "model")
    assert all_equal(MIXED.steps(own), MIXED.steps(same))


def exported(folder: Path) -> poptorch.PoplarExecutor:
    """Return an inference model that is compiled and in the file `model`."""
    executor = poptorch.inferenceModel(Mixed().eval(), options())
    executor.compileAndExport(folder / "model", X)
    return executor


def test_an_inference_model_comes_back_with_other_options(tmp_path: Path) -> None:
    executor = exported(tmp_path)
    loaded = poptorch.load(tmp_path / "model", lambda own: own.logDir("elsewhere"))
    assert torch.equal(loaded(X)[0], executor(X)[0])
    assert loaded.options.log_dir == "elsewhere"
    with pytest.raises(poptorch.Error, match=r"Invalid file .*device_iterations is 2, in the file 1"):
        poptorch.load(tmp_path / "model", lambda own: own.deviceIterations(2))


def test_a_model_whose_code_has_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file never stands in for what forward computes now."""
    exported(tmp_path)
    forward = Mixed.forward
    monkeypatch.setattr(Mixed, "forward", lambda self, x, *others: forward(self, x + 1, *others))
    for use in (poptorch.load, poptorch.inferenceModel(Mixed().eval(), options()).loadExecutable):
        with pytest.raises(poptorch.Error, match=r"Invalid file .*compiled from another model"):
            use(tmp_path / "model")


def test_folders_are_made_and_an_existing_one_holds_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    executor = exported(tmp_path / "new" / "folder")
    executor.save(str(tmp_path / "new"))
    assert "existing directory" in caplog.text
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["model", "model.poptorch"]
    assert poptorch.load(tmp_path / "new").isCompiled()


def test_what_was_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = exported(tmp_path)
    before = (tmp_path / "model").read_bytes()
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError("No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        executor.save(tmp_path / "model", export_model=False)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"model": before}


def test_the_random_state_is_kept_if_asked_for(tmp_path: Path) -> None:
    executor = MIXED.wrapped()
    MIXED.steps(executor, 1)
    executor.save(tmp_path / "kept", save_rng_state=True)
    executor.save(tmp_path / "not", save_rng_state=False)
    assert poptorch.load(tmp_path / "kept").rng_state == executor.rng_state != [11]
    loaded = poptorch.load(tmp_path / "not")
    assert loaded.rng_state == [11]
    # A module that was wrapped for training is so again.
    assert type(loaded.model).__name__ == "PoptorchMixed"
    loaded.destroy()
    assert type(loaded.model) is Mixed


def test_an_offline_target_is_attached_when_loaded(tmp_path: Path) -> None:
    offline = options().connectionType(poptorch.ConnectionType.Never)
    executor = poptorch.inferenceModel(Mixed().eval(), offline)
    executor.compileAndExport(tmp_path / "model", X)
    loaded = poptorch.load(tmp_path / "model")
    assert loaded.options.connection_type == poptorch.ConnectionType.Always
    assert torch.equal(loaded(X)[0], poptorch.inferenceModel(executor.model, options())(X)[0])


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


class Paired(nn.Linear):
    def forward(self, x: Any) -> Any:
        x = x[0] if isinstance(x, Pair) else x
        return Pair(super().forward(x), x)


def test_results_in_containers_of_their_own_come_back_and_such_arguments_are_refused_by_name(tmp_path: Path) -> None:
    executor, other = (poptorch.inferenceModel(Paired(4, 2), options()) for _ in range(2))
    with pytest.raises(poptorch.Error, match=r"test_saving_files\.Pair, which a file cannot hold"):
        other.compileAndExport(tmp_path / "model", Pair(X, X))
    assert list(tmp_path.iterdir()) == []
    executor.compileAndExport(tmp_path / "model", X)
    result = poptorch.load(tmp_path / "model")(X)
    assert isinstance(result, Pair)
    assert torch.equal(result.first, executor(X).first)


def test_a_model_that_cannot_be_pickled_can_be_saved_without_it(tmp_path: Path) -> None:
    executor = poptorch.inferenceModel(Module(lambda model, x: x + 1), options())
    with pytest.raises(poptorch.Error, match=r"cannot be exported.*export_model=False"):
        executor.compileAndExport(tmp_path / "model", X)
    executor.save(tmp_path / "model", export_model=False)
    with pytest.raises(AssertionError, match="export_model=False"):
        poptorch.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("case", "other", "words"),
    [
        (MIXED, Case(lambda: Mixed(5)), r"weights are others: first.weight \[5, 4\] .* first.weight \[4, 4\]"),
        (MIXED, Case(Mixed, lambda own: own.deviceIterations(2)), "device_iterations is 2, in the file 1"),
        (MIXED, Case(Mixed, lambda own: own.Training.gradientAccumulation(2)), "gradient_accumulation is 2, in the"),
        (MIXED, Case(lambda: Mixed(scale=0.25), optimizer=adam), "compiled from another model"),
        (GROUPED, Case(grouped, GROUPED.change), "other replica groups of own"),
    ],
    ids=["weights", "options", "accumulation", "attributes", "groups"],
)
def test_another_program_is_refused_by_what_differs(case: Case, other: Case, words: str, tmp_path: Path) -> None:
    case.exported(tmp_path / "model", export_model=False)
    executor = other.wrapped()
    with pytest.raises(poptorch.Error, match=f"Invalid file .*{words}"):
        executor.loadExecutable(tmp_path / "model")
    assert not executor.isCompiled()


def test_groups_decide_which_program_of_the_cache_is_taken(tmp_path: Path) -> None:
    """What a replica computes is the same with one slice for all."""
    for case in (GROUPED, Case(lambda: Weighted(torch.linspace(0, 1, 4)), GROUPED.change)):
        case.wrapped(tmp_path).compile(X)
    assert cached(tmp_path) == 2


def test_other_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, file = MIXED.exported(tmp_path / "model"), tmp_path / "model"
    with pytest.raises(poptorch.Error, match=r"Invalid file .*compiled by poptorch\.trainingModel"):
        poptorch.inferenceModel(Mixed(), options()).loadExecutable(file)
    with pytest.raises(poptorch.Error, match="compiled already"):
        executor.loadExecutable(file)
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        MIXED.wrapped().save(file)
    with pytest.raises(FileNotFoundError):
        poptorch.load(tmp_path / "missing")
    monkeypatch.setattr(_poptorch_data, "__version__", "0.0.1")
    with pytest.raises(AssertionError, match=r"Invalid file .*PopTorch version mismatch: written with "):
        poptorch.load(file)
    with pytest.raises(poptorch.Error, match=r"Invalid file .*PopTorch version mismatch"):
        MIXED.wrapped().loadExecutable(file)


def test_blocks_without_names_are_the_same_program_in_another_trace(tmp_path: Path) -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        x = model.first(x)
        poptorch.Block.start(ipu_id=1)
        return model.second(x)

    own = options(tmp_path).deviceIterations(2)
    own.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    for _ in range(2):
        unnamed = Module(forward, first=nn.Linear(4, 4), second=nn.Linear(4, 2))
        poptorch.inferenceModel(unnamed, own.clone()).compile(X)
    assert cached(tmp_path) == 1


@pytest.fixture
def cube() -> Any:
    op = custom_ops.register("Cube", "test.saving", 1, lambda x: x**3)
    yield op
    custom_ops.unregister(op)


def decoding(model: Any, x: Tensor) -> Any:
    """Ops of the IPU Model's own: beam search, farthest points, nearest points."""
    scores = x.reshape(1, 8, 4).transpose(0, 1).log_softmax(-1)
    decoded = poptorch.ctc_beam_search_decoder(scores, torch.tensor([8]), beam_width=3, top_paths=2)
    return [*decoded, poptorch.fps(x, [0, 8], 0.5), poptorch.nearest(x, x[:3])]


@pytest.mark.usefixtures("cube")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Module(lambda model, x: [model.op(x)[0]], op=poptorch.CPU(torch.sort, "sort")),
        lambda: Module(lambda model, x: poptorch.custom_op([x], "Cube", "test.saving", 1, [x])),
        lambda: Module(decoding),
    ],
    ids=["Python function", "custom op", "own ops"],
)
def test_functions_of_this_process_and_own_ops_come_back(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    executor, fresh = (poptorch.inferenceModel(make(), options(tmp_path / "cache")) for _ in range(2))
    executor.compileAndExport(tmp_path / "model", X, export_model=False)
    expected = executor(X)
    assert all_equal(fresh(X), expected)
    assert cached(tmp_path / "cache") == 1
    fresh.destroy()
    fresh.loadExecutable(tmp_path / "model")
    assert all_equal(fresh(X), expected)


def test_the_state_of_torchs_optimisers_stays_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """PopTorch cannot read the device's state of torch.optim either (optimiser reference, section on state)."""
    case = Case(Blocks, pipelined, optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    executor = case.wrapped()
    executor(X)
    executor.save(tmp_path / "model")
    assert "torch.optim.SGD" in caplog.text
    assert "starts anew" in caplog.text
    loaded = poptorch.load(tmp_path / "model")
    # A fresh optimiser of the same weights: its first step is the gradient alone.
    fresh, model = torch.optim.SGD(executor.model.parameters(), 0.1, momentum=0.9), executor.model
    executor.destroy()
    again = poptorch.trainingModel(model, pipelined(options()), fresh)
    assert all_equal([*loaded(X), *loaded.state_dict().values()], [*again(X), *again.state_dict().values()])
