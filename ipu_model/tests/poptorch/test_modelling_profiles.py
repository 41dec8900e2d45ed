"""`ipu_model.profile` and `ipu_model.profile_module`: profiles of executors and of plain modules."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from executor_support import Module
from modelling_support import ROWS, Chain, batch, quiet, trainable
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model import HostWork
from ipu_model.front_ends import ModuleChanges, program_of_module
from ipu_model.predict.profile import Profile

X = torch.ones(2, 8)


def wrapped(options: poptorch.Options | None = None) -> poptorch.PoplarExecutor:
    """Return a compiled training executor of two IPUs."""
    options = options or trainable()
    executor = poptorch.trainingModel(Chain(), options)
    executor.compile(*(torch.ones_like(t, device="cpu") for t in batch(options)))
    return executor


class TestOfAnExecutor:
    def test_it_is_the_profile_of_its_program(self) -> None:
        profile = ipu_model.profile(wrapped())
        assert (profile.name, profile.training, profile.machine.name) == ("training", True, "M2000")
        assert profile.samples_per_call == ROWS * 3
        assert len(profile.memory) == 2

    def test_of_an_executor_that_is_not_compiled_or_was_destroyed_there_is_none(self) -> None:
        with pytest.raises(poptorch.Error, match=r"not been compiled .*compile\(\) it, first.*profile_module"):
            ipu_model.profile(poptorch.inferenceModel(Chain()))
        executor = wrapped()
        ipu_model.profile(executor)
        executor.destroy()
        with pytest.raises(poptorch.Error, match="destroyed"):
            ipu_model.profile(executor)

    def test_one_for_an_offline_target_will_do(self) -> None:
        executor = poptorch.inferenceModel(Chain(1), quiet().useOfflineIpuTarget(21))
        executor.compile(X)
        assert ipu_model.profile(executor).machine.chip == "C600"

    @pytest.mark.parametrize("thing", [Chain(), 3, None, poptorch.Options()])
    def test_other_things_are_refused(self, thing: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"compiled model that poptorch\.trainingModel or .*profile_module"):
            ipu_model.profile(thing)

    def test_threads_get_the_same_profiles(self) -> None:
        """More kinds of profile than an executor remembers, asked for by many threads at once."""
        executor = wrapped()
        hosts = [HostWork(seconds_per_call=number / 1000) for number in range(12)]
        expected = [ipu_model.profile(executor, host=host) for host in hosts]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda host: ipu_model.profile(executor, host=host), hosts * 4))
        assert found == expected * 4

    def test_it_is_remembered_until_the_executable_goes(self) -> None:
        executor = wrapped()
        first = ipu_model.profile(executor)
        assert ipu_model.profile(executor).memory is first.memory
        assert ipu_model.profile(executor, host=HostWork()).ops is first.ops
        slow = ipu_model.profile(executor, host=HostWork(seconds_per_call=1.0))
        assert slow.call_seconds > first.call_seconds + 0.9
        assert ipu_model.profile(executor, machine="Bow").machine.chip == "Bow"
        assert ipu_model.profile(executor).ops is first.ops

        for number in range(20):
            ipu_model.profile(executor, host=HostWork(seconds_per_call=1.0 + number))
        again = ipu_model.profile(executor)
        assert again.ops is not first.ops, "only so many are remembered"
        assert again == first

    def test_host_work_of_another_type(self) -> None:
        with pytest.raises(poptorch.Error, match=r"host takes an ipu_model\.HostWork, not a float"):
            ipu_model.profile(wrapped(), host=0.1)  # type: ignore[arg-type]

    def test_a_machine_that_is_too_small(self) -> None:
        options = quiet().replicationFactor(8)
        executor = poptorch.inferenceModel(Chain(1), options)
        executor.compile(torch.ones(16, 8))
        assert ipu_model.profile(executor).machine.name == "POD16"
        with pytest.raises(poptorch.Error, match=r"needs 8 IPUs, but M2000.* has 4.*POD16"):
            ipu_model.profile(executor, machine="M2000")


def profiled(options: poptorch.Options, **more: Any) -> Profile:
    model = Chain()
    inputs = more.pop("inputs", None) or batch(options)
    return ipu_model.profile_module(model, inputs, options, training=True, **more)


class TestOfAModule:
    def test_it_is_what_wrapping_and_compiling_would_give(self) -> None:
        options = trainable()
        executor = wrapped(options.clone())
        assert profiled(options) == ipu_model.profile(executor)

    @pytest.mark.parametrize("kind", ["meta", "expanded", "real"])
    def test_only_shapes_and_types_of_inputs_count(self, kind: str) -> None:
        x, y = batch(trainable())
        made = {
            "meta": lambda t: t,
            "expanded": lambda t: torch.zeros(1, 1).expand(t.shape),
            "real": lambda t: torch.randn(t.shape),
        }[kind]
        assert profiled(trainable(), inputs=(made(x), made(y))) == profiled(trainable())

    def test_inputs_may_be_one_tensor_a_list_or_keywords(self) -> None:
        options = quiet().deviceIterations(2)
        model, x = Chain(), torch.empty(4, 8, device="meta")
        first, *others = (ipu_model.profile_module(model, given, options) for given in (x, [x], (x,), {"x": x}))
        assert all(other == first for other in others)

    def test_one_micro_batch_stands_for_a_call(self) -> None:
        one = torch.empty(ROWS, 8, device="meta")
        options = trainable().deviceIterations(5).replicationFactor(2)
        assert profiled(options, inputs=(one, one), micro_batch=True) == profiled(options)

    def test_rows_that_do_not_divide(self) -> None:
        one = torch.empty(ROWS, 8, device="meta")
        with pytest.raises(AssertionError, match=r"Invalid batch dimension.* = 3 .*say micro_batch=True"):
            profiled(trainable(), inputs=(one, one))

    def test_training_is_what_an_optimizer_is_for(self) -> None:
        model, options = Chain(), trainable()
        optimizer = poptorch.optim.AdamW(model.parameters())
        assert ipu_model.profile_module(model, batch(options), options, optimizer=optimizer).training
        forward = quiet().deviceIterations(2)
        assert not ipu_model.profile_module(model, batch(forward)[0], forward).training
        with pytest.raises(poptorch.Error, match="inference program has no optimizer"):
            ipu_model.profile_module(model, batch(options), options, optimizer=optimizer, training=False)

    def test_accumulation_is_refused_for_inference(self) -> None:
        with pytest.raises(poptorch.Error, match=r"Training\.gradientAccumulation to 1"):
            ipu_model.profile_module(Chain(), X, trainable())

    @pytest.mark.parametrize("options", [None, {}, 4])
    def test_options_of_another_package(self, options: Any) -> None:
        with pytest.raises(poptorch.Error, match=r"takes poptorch\.Options\(\) as options"):
            ipu_model.profile_module(Chain(), X, options)

    def test_what_poptorch_refuses_is_refused(self) -> None:
        with pytest.raises(poptorch.Error, match="number of pipeline stages"):
            profiled(trainable(accumulation=2))
        options = quiet().deviceIterations(2)
        options._Popart.set("noSuchKey", True)
        with pytest.raises(poptorch.Error, match="Unknown bool option noSuchKey"):
            ipu_model.profile_module(Chain(), X, options)
        options = quiet()
        options.anchorTensor("g", "Gradient___layers.0.weight")  # inference has no gradients
        with pytest.raises(poptorch.Error, match=r"no tensor named 'Gradient___layers\.0\.weight'"):
            ipu_model.profile_module(Chain(1), X, options)

    def test_large_modules_need_no_memory(self) -> None:
        with torch.device("meta"):
            model = nn.Linear(2**16, 2**16)  # 16 GiB of weights
        profile = ipu_model.profile_module(model, torch.empty(1, 2**16, device="meta"), quiet())
        assert not profile.fits


class TestReplicas:
    """More than the 64 IPUs of one process: they are spread over processes."""

    @pytest.mark.parametrize(("replicas", "processes"), [(32, 1), (64, 2), (128, 4), (96, 3)])
    def test_over_the_fewest_processes_that_hold_them(self, replicas: int, processes: int) -> None:
        options = trainable().replicationFactor(replicas)
        program = program_of_module(options, Chain(), batch(options), training=True)
        assert (program.replicas, program.processes) == (replicas, processes)
        assert program.samples_per_call == ROWS * 3 * replicas

    def test_a_pod256(self) -> None:
        profile = profiled(trainable().replicationFactor(128))
        assert (profile.machine.name, profile.machine.ipus) == ("POD256", 256)

    def test_replicas_that_share_their_input_stay_in_one_process(self) -> None:
        options = quiet().replicationFactor(96).inputReplicaGrouping(12, poptorch.CommGroupType.Consecutive)
        program = program_of_module(options, Chain(1), torch.empty(16, 8))
        assert (program.processes, program.batching.replicas) == (2, 48)
        options = quiet().replicationFactor(96).inputReplicaGrouping(96, poptorch.CommGroupType.Consecutive)
        with pytest.raises(poptorch.Error, match=r"96 replicas of 1 IPUs share their input.*at most 64"):
            program_of_module(options, Chain(1), torch.empty(2, 8))

    def test_one_replica_has_to_fit_into_a_process(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            with poptorch.Block("far", ipu_id=64):
                return x + 1

        options = quiet().setExecutionStrategy(poptorch.ShardedExecution())
        with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(65\)"):
            ipu_model.profile_module(Module(forward), X, options)

    def test_an_executor_is_one_process(self) -> None:
        options = trainable().replicationFactor(64)
        executor = poptorch.trainingModel(Chain(), options)
        with pytest.raises(poptorch.Error, match=r"Too many IPUs requested \(128\)"):
            executor.compile(*(torch.ones_like(t, device="cpu") for t in batch(options)))

    def test_several_processes_of_the_options(self) -> None:
        options = trainable()
        options.Distributed.configureProcessId(0, 4)
        profile = profiled(options)
        assert profile.samples_per_call == ROWS * 3 * 4


class Odd(nn.Module):
    """A module with everything that tracing could leave a mark on."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.linear = nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 8)
        self.tied = self.linear
        self.register_buffer("count", torch.zeros(1))
        self.calls: list[int] = []
        self.last: Any = None
        self.linear.register_forward_hook(lambda *args: None)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.last = self.tied(self.drop(self.norm(x)))
        return self.last, poptorch.identity_loss(self.last, "mean")


def test_a_micro_batch_changes_the_rows_of_all_inputs_in_proportion_or_not_at_all() -> None:
    pair = Module(lambda model, x, y: (x * 2, y * 2))

    def rows(micro_batch: int) -> list[int]:
        inputs = torch.zeros(4, 8), torch.zeros(2, 8)
        program = program_of_module(quiet(), pair, inputs, changes=ModuleChanges(micro_batch=micro_batch))
        return [tensor.shape[0] for tensor in program.step.inputs]

    assert rows(2) == [2, 1]
    with pytest.raises(poptorch.Error, match="An input with 2 rows cannot have 3 for each 4 of another"):
        rows(3)


class TestNothingIsLeftBehind:
    def test_module_options_and_random_numbers_are_as_before(self) -> None:
        torch.manual_seed(0)
        model, options = Odd(), trainable(1, 2)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        ids = {name: id(tensor) for name, tensor in model.named_parameters()}
        text, attributes, state = repr(options), dict(vars(model)), torch.get_rng_state()
        optimizer = poptorch.optim.AdamW(model.parameters())
        ipu_model.profile_module(model, torch.zeros(4, 8), options, optimizer=optimizer)
        assert type(model) is Odd
        assert {type(p) for p in model.parameters()} == {nn.Parameter}
        assert ids == {name: id(tensor) for name, tensor in model.named_parameters()}
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert vars(model) == attributes
        assert len(model.linear._forward_hooks) == 1
        assert repr(options) == text
        assert options.deviceIterations(2) is options  # not frozen
        assert torch.equal(torch.get_rng_state(), state)
        assert optimizer.state_dict()["state"] == {}

    def test_the_module_can_be_wrapped_afterwards_and_profiled_while_it_is(self) -> None:
        model, options = Odd(), trainable(1, 2)
        before = ipu_model.profile_module(model, torch.zeros(4, 8), options, training=True)
        executor = poptorch.trainingModel(model, options)
        executor(torch.rand(4, 8))
        kind, weights = type(model), {name: tensor.clone() for name, tensor in executor.state_dict().items()}
        assert ipu_model.profile_module(model, torch.zeros(4, 8), options, training=True) == before
        assert type(model) is kind
        assert all(torch.equal(weights[name], tensor) for name, tensor in executor.state_dict().items())
        executor(torch.rand(4, 8))

    def test_a_failure_leaves_the_module_alone_too(self) -> None:
        class Broken(Odd):
            def forward(self, x: Tensor) -> Any:
                super().forward(x)
                raise ValueError("no")

        model = Broken()
        before = dict(vars(model))
        with pytest.raises(ValueError, match="no"):
            ipu_model.profile_module(model, X, quiet())
        assert vars(model) == before

    def test_it_works_under_inference_mode(self) -> None:
        with torch.inference_mode():
            assert profiled(trainable()).training


class TestImports:
    """`python -m ipu_model --help` must not wait for torch."""

    @pytest.mark.parametrize(
        ("statement", "loads_torch"),
        [("import ipu_model", False), ("from ipu_model import profile_module", False), ("import poptorch", True)],
    )
    def test_the_engine_is_imported_without_torch(self, statement: str, loads_torch: bool) -> None:
        code = f"import sys; {statement}; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(loads_torch)]

    def test_poptorch_brings_no_part_of_the_performance_model(self) -> None:
        parts = ("ipu_model.predict", "ipu_model.report")
        code = f"import sys, poptorch; print([name for name in sys.modules if name.startswith({parts})])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    def test_names_that_do_not_exist(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'profiles'"):
            _ = ipu_model.profiles
