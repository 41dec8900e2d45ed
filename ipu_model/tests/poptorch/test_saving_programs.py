"""Programs of every kind, saved, loaded and cached: they go on as if they had never been in a file, or say why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import Module
from saving_support import all_equal, options
from torch import Tensor, nn

import poptorch
from ipu_model import custom_ops

X = torch.linspace(-1, 1, 32).reshape(8, 4)


class Blocks(nn.Module):
    """Two layers in the blocks "a" and "b"."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        with poptorch.Block("a", ipu_id=0):
            x = torch.tanh(self.first(x))
        with poptorch.Block("b", ipu_id=1):
            out = self.second(x)
            return out, poptorch.identity_loss(out * out, "mean")


class Grouped(nn.Module):
    """`own` has a slice for each group of replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.linspace(0, 1, 8).reshape(2, 4))

    def forward(self, x: Tensor) -> Any:
        out = (x * self.own).sum(1)
        return out, poptorch.identity_loss(out * out, "mean")


class Half(nn.Module):
    """A weight of float16 that small steps move only where rounding is stochastic."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256, dtype=torch.float16))

    def forward(self, x: Tensor) -> Any:
        out = self.weight * x.sum().half()
        return out, poptorch.identity_loss(out.float(), "sum")


def changed(change: Callable[[poptorch.Options], Any]) -> Callable[[], poptorch.Options]:
    def make() -> poptorch.Options:
        own = options()
        change(own)
        return own

    return make


def pipelined(own: poptorch.Options) -> poptorch.Options:
    own.Training.gradientAccumulation(4)
    return own.setExecutionStrategy(poptorch.PipelinedExecution("a", "b"))


PHASED = poptorch.ParallelPhasedExecution("a", "b").sendTensorsOffChipAfterFwd()


def grouped(executor: poptorch.PoplarExecutor) -> None:
    executor.own.replicaGrouping(poptorch.CommGroupType.Orthogonal, 2, poptorch.VariableRetrievalMode.OnePerGroup)


@dataclass(frozen=True)
class Case:
    """A kind of training program: its model and options, and what is said to the executor before it compiles."""

    model: type[nn.Module]
    options: Callable[[], poptorch.Options]
    prepare: Callable[[poptorch.PoplarExecutor], None] = lambda executor: None

    def wrapped(self, cache: Path | None = None) -> poptorch.PoplarExecutor:
        torch.manual_seed(0)
        model, own = self.model(), self.options()
        if cache is not None:
            own.enableExecutableCaching(str(cache))
        optimizer = poptorch.optim.SGD(model.parameters(), lr=2.0**-13, momentum=0.5, use_combined_accum=False)
        executor = poptorch.trainingModel(model, own, optimizer)
        self.prepare(executor)
        return executor


CASES = {
    "phased": Case(Blocks, changed(lambda own: own.setExecutionStrategy(PHASED))),
    "pipelined": Case(Blocks, changed(pipelined)),
    "anchored": Case(Blocks, changed(lambda own: pipelined(own).anchorTensor("g", "Gradient___first.weight"))),
    "replica groups": Case(Grouped, changed(lambda own: own.replicationFactor(4)), grouped),
    "stochastic rounding": Case(Half, changed(lambda own: own.Precision.enableStochasticRounding(True))),
    "automatic loss scaling": Case(Half, changed(lambda own: own.Training.setAutomaticLossScaling(True))),
}


def steps(executor: poptorch.PoplarExecutor, count: int) -> list[Tensor]:
    """Train, and return the last results, the weights and the optimiser's state."""
    for _ in range(count):
        results = executor(X)
    assert executor._optimisation is not None
    state = executor._optimisation.optimizer.state_dict()["ipu_state"]
    return [*results, *(t.clone() for t in executor.state_dict().values()), *state.values()]


@pytest.mark.parametrize("name", CASES)
def test_a_program_from_a_file_or_the_cache_goes_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    plain, cached, again = CASES[name].wrapped(), *(CASES[name].wrapped(tmp_path / "cache") for _ in range(2))
    plain.compile(X)
    plain.save(tmp_path / "program", export_model=False)
    served = CASES[name].wrapped()
    served.loadExecutable(tmp_path / "program")
    expected = steps(plain, 2)
    for other in (served, cached, again):
        assert all_equal(steps(other, 2), expected)
    assert len(list((tmp_path / "cache").glob("*.poptorch"))) == 1
    plain.save(tmp_path / "model")
    loaded = poptorch.load(tmp_path / "model")
    assert all_equal(steps(loaded, 2), steps(plain, 2))


class Unnamed(nn.Module):
    """Its second layer is in a block without a name: every trace draws another one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        poptorch.Block.start(ipu_id=1)
        found: Tensor = self.second(x)
        return found


def test_blocks_without_names_are_the_same_program_in_another_trace(tmp_path: Path) -> None:
    own = options().deviceIterations(2)
    own.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    executor = poptorch.inferenceModel(Unnamed(), own)
    executor.compileAndExport(tmp_path / "model", X)
    assert torch.equal(poptorch.load(tmp_path / "model")(X), executor(X))


class TestReplicaGroups:
    def test_an_executable_of_other_groups_is_refused_by_name(self, tmp_path: Path) -> None:
        case = CASES["replica groups"]
        case.wrapped().compileAndExport(tmp_path / "model", X, export_model=False)
        other = Case(case.model, case.options).wrapped()
        with pytest.raises(poptorch.Error, match=r"Invalid file .*other replica groups of own"):
            other.loadExecutable(tmp_path / "model")

    def test_groups_decide_which_program_is_taken(self, tmp_path: Path) -> None:
        case = CASES["replica groups"]
        case.wrapped(tmp_path).compile(X)
        Case(Flat, case.options).wrapped(tmp_path).compile(X)
        assert len(list(tmp_path.glob("*.poptorch"))) == 2


class Flat(Grouped):
    """As `Grouped`, with one slice only."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.linspace(0, 1, 4))


def on_host() -> nn.Module:
    """Calls a Python function in the middle of its program."""
    op = poptorch.CPU(torch.sort, "sort")
    return Module(lambda model, x: model.op(model.linear(x))[0], linear=nn.Linear(4, 4), op=op)


def custom() -> nn.Module:
    """Calls a custom op."""

    def forward(model: Any, x: Tensor) -> Tensor:
        x = model.linear(x)
        return poptorch.custom_op([x], "Cube", "test.saving", 1, [x])[0]

    return Module(forward, linear=nn.Linear(4, 4))


@pytest.fixture
def cube() -> Any:
    """Give the custom op its arithmetic for the time of a test."""
    op = custom_ops.register("Cube", "test.saving", 1, lambda x: x**3)
    yield op
    custom_ops.unregister(op)


@pytest.mark.usefixtures("cube")
@pytest.mark.parametrize("make", [on_host, custom])
def test_a_program_with_a_python_function_calls_that_of_this_process(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    executor, fresh = (poptorch.inferenceModel(make(), options(tmp_path / "cache")) for _ in range(2))
    executor.compileAndExport(tmp_path / "model", X, export_model=False)
    fresh.model.load_state_dict(executor.model.state_dict())
    fresh.compile(X)
    assert len(list((tmp_path / "cache").glob("*.poptorch"))) == 1
    fresh.destroy()
    fresh.loadExecutable(tmp_path / "model")
    assert torch.equal(fresh(X), executor(X))


class Decoding(nn.Module):
    """Ops of the IPU Model's own: beam search, farthest points, nearest points."""

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        scores = x.reshape(1, 8, 4).transpose(0, 1).log_softmax(-1)
        found = poptorch.ctc_beam_search_decoder(scores, lengths, beam_width=3, top_paths=2)
        return [*found, poptorch.fps(x, [0, 8], 0.5), poptorch.nearest(x, x[:3])]


class TestOwnOps:
    def test_they_come_back_from_files_and_from_the_cache(self, tmp_path: Path) -> None:
        made = [poptorch.inferenceModel(Decoding(), options(tmp_path / "cache")) for _ in range(2)]
        results = [executor(X, torch.tensor([8])) for executor in made]
        made[0].save(tmp_path / "model")
        results.append(poptorch.load(tmp_path / "model")(X, torch.tensor([8])))
        assert len(list((tmp_path / "cache").glob("*.poptorch"))) == 1
        assert all_equal(results[0], results[1])
        assert all_equal(results[0], results[2])


class TestOptimisersOfTorch:
    def test_save_says_that_their_state_stays_behind(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """PopTorch cannot read the device's state of torch.optim either (optimiser reference, section on state)."""
        model = Blocks()
        executor = poptorch.trainingModel(
            model, pipelined(options()), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        )
        executor(X)
        executor.save(tmp_path / "model")
        assert "torch.optim.SGD" in caplog.text
        assert "starts anew" in caplog.text
        loaded = poptorch.load(tmp_path / "model")
        # A fresh optimiser of the same weights: its first step is the gradient alone.
        torch_optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        executor.destroy()
        again = poptorch.trainingModel(model, pipelined(options()), torch_optimizer)
        assert all_equal([*loaded(X), *loaded.state_dict().values()], [*again(X), *again.state_dict().values()])
