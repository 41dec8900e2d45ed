"""Profiles of executors and of plain modules, and of both with other options: `what_if`, `sweep` and `advise`."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from executor_support import Module, inference, quiet
from modelling_support import ROWS, Chain, batch, trainable, trained
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model import HostWork
from ipu_model.explore.options import OPTIONS, with_options
from ipu_model.front_ends import ModuleChanges, program_of_module
from ipu_model.predict import profile_program
from ipu_model.predict.profile import Profile
from ipu_model.predict.program import Program
from ipu_model.report.files import from_json, read_report, to_json, write_report
from ipu_model.sources import profile_of_source

X = torch.ones(2, 8)
ONE = torch.empty(ROWS, 8, device="meta")


def wrapped() -> poptorch.PoplarExecutor:
    executor = poptorch.trainingModel(Chain(), trainable())
    executor.compile(*(torch.ones_like(t, device="cpu") for t in batch(trainable())))
    return executor


@pytest.fixture(scope="module")
def executor() -> poptorch.PoplarExecutor:
    return wrapped()


def destroyed() -> poptorch.PoplarExecutor:
    executor = wrapped()
    ipu_model.profile(executor)
    executor.destroy()
    return executor


def of_eight_replicas() -> poptorch.PoplarExecutor:
    executor = inference(Chain(1), quiet().replicationFactor(8))
    executor.compile(torch.ones(16, 8))
    return executor


def profiled(options: poptorch.Options, inputs: Any = None, **more: Any) -> Profile:
    return ipu_model.profile_module(Chain(), inputs or batch(options), options, training=True, **more)


def of_inference(change: Callable[[poptorch.Options], object], inputs: Any = X, ipus: int = 1) -> Profile:
    options = quiet()
    change(options)
    return ipu_model.profile_module(Chain(ipus), inputs, options)


def test_it_is_the_profile_of_its_program(executor: poptorch.PoplarExecutor) -> None:
    profile = ipu_model.profile(executor)
    assert (profile.name, profile.training, profile.machine.name) == ("training", True, "M2000")
    assert profile.samples_per_call == ROWS * 3
    assert len(profile.memory) == 2
    offline = inference(Chain(1), quiet().useOfflineIpuTarget(21))
    offline.compile(X)
    assert ipu_model.profile(offline).machine.chip == "C600"
    assert ipu_model.profile(of_eight_replicas()).machine.name == "POD16"


def test_threads_get_the_same_profiles(executor: poptorch.PoplarExecutor) -> None:
    """More kinds of profile than an executor remembers, asked for by many threads at once."""
    hosts = [HostWork(seconds_per_call=number / 1000) for number in range(12)]
    expected = [ipu_model.profile(executor, host=host) for host in hosts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda host: ipu_model.profile(executor, host=host), hosts * 4)) == expected * 4


def test_it_is_remembered_until_others_were_asked_for() -> None:
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
    assert ipu_model.profile(executor).ops is not first.ops, "only so many are remembered"


def test_it_is_what_wrapping_and_compiling_would_give(executor: poptorch.PoplarExecutor) -> None:
    """Only shapes and types of inputs count; one micro-batch may stand for a call."""
    expected, (x, y) = ipu_model.profile(executor), batch(trainable())
    assert profiled(trainable()) == expected
    for made in (lambda t: torch.zeros(1, 1).expand(t.shape), lambda t: torch.randn(t.shape)):
        assert profiled(trainable(), (made(x), made(y))) == expected
    assert profiled(trainable(), (ONE, ONE), micro_batch=True) == expected
    many = trainable().deviceIterations(5).replicationFactor(2)
    assert profiled(many, (ONE, ONE), micro_batch=True) == profiled(many)
    with torch.inference_mode():
        assert profiled(trainable()) == expected


def test_inputs_may_be_one_tensor_a_list_or_keywords() -> None:
    model, x = Chain(), torch.empty(4, 8, device="meta")
    options = quiet().deviceIterations(2)
    first, *others = (ipu_model.profile_module(model, given, options) for given in (x, [x], (x,), {"x": x}))
    assert others == [first] * 3


def test_training_is_what_an_optimizer_is_for() -> None:
    model, options = Chain(), trainable()
    optimizer = poptorch.optim.AdamW(model.parameters())
    assert ipu_model.profile_module(model, batch(options), options, optimizer=optimizer).training
    assert not of_inference(lambda o: o.deviceIterations(2), torch.empty(4, 8), ipus=2).training
    with pytest.raises(poptorch.Error, match="inference program has no optimizer"):
        ipu_model.profile_module(model, batch(options), options, optimizer=optimizer, training=False)


def test_more_than_the_64_ipus_of_one_process_are_spread_over_the_fewest_processes() -> None:
    for replicas, processes in ((32, 1), (64, 2), (128, 4), (96, 3)):
        program = trained(trainable().replicationFactor(replicas))
        assert (program.replicas, program.processes) == (replicas, processes)
        assert program.samples_per_call == ROWS * 3 * replicas
    profile = profiled(trainable().replicationFactor(128))
    assert (profile.machine.name, profile.machine.ipus) == ("POD256", 256)
    # Replicas that share their input stay in one process.
    options = quiet().replicationFactor(96).inputReplicaGrouping(12, CONSECUTIVE)
    program = program_of_module(options, Chain(1), torch.empty(16, 8))
    assert (program.processes, program.batching.replicas) == (2, 48)
    # Several processes of the options.
    options = trainable()
    options.Distributed.configureProcessId(0, 4)
    assert profiled(options).samples_per_call == ROWS * 3 * 4


def test_a_micro_batch_changes_the_rows_of_all_inputs_in_proportion_or_not_at_all() -> None:
    def rows(micro_batch: int) -> list[int]:
        pair, inputs = Module(lambda model, x, y: (x * 2, y * 2)), (torch.zeros(4, 8), torch.zeros(2, 8))
        program = program_of_module(quiet(), pair, inputs, changes=ModuleChanges(micro_batch=micro_batch))
        return [tensor.shape[0] for tensor in program.step.inputs]

    assert rows(2) == [2, 1]
    with pytest.raises(poptorch.Error, match="An input with 2 rows cannot have 3 for each 4 of another"):
        rows(3)


def odd() -> Any:
    """Return a module with everything that tracing could leave a mark on."""

    def forward(m: Any, x: Tensor) -> tuple[Tensor, float]:
        m.last = m.tied(m.drop(m.norm(x)))
        return m.last, 1 / m.number * poptorch.identity_loss(m.last, "mean")

    linear = nn.Linear(8, 8)
    linear.register_forward_hook(lambda *args: None)
    layers = {"norm": nn.BatchNorm1d(8), "drop": nn.Dropout(0.5), "linear": linear, "tied": linear}
    return Module(forward, {"count": torch.zeros(1)}, **layers, last=None, number=1)


def test_module_options_and_random_numbers_are_as_before() -> None:
    model, options = odd(), trainable(1, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ids = {name: id(tensor) for name, tensor in model.named_parameters()}
    text, attributes, state = repr(options), dict(vars(model)), torch.get_rng_state()
    optimizer = poptorch.optim.AdamW(model.parameters())
    ipu_model.profile_module(model, torch.zeros(4, 8), options, optimizer=optimizer)
    model.number = attributes["number"] = 0
    with pytest.raises(ZeroDivisionError):
        ipu_model.profile_module(model, X, quiet())
    assert type(model) is Module
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    assert ids == {name: id(tensor) for name, tensor in model.named_parameters()}
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert vars(model) == attributes
    assert len(model.linear._forward_hooks) == 1
    assert repr(options) == text
    assert options.deviceIterations(2) is options  # not frozen
    assert torch.equal(torch.get_rng_state(), state)
    assert optimizer.state_dict()["state"] == {}


def test_a_module_can_be_wrapped_afterwards_and_profiled_while_it_is() -> None:
    model, options = odd(), trainable(1, 2)
    before = ipu_model.profile_module(model, torch.zeros(4, 8), options, training=True)
    executor = poptorch.trainingModel(model, options)
    executor(torch.rand(4, 8))
    kind, weights = type(model), {name: tensor.clone() for name, tensor in executor.state_dict().items()}
    assert ipu_model.profile_module(model, torch.zeros(4, 8), options, training=True) == before
    assert type(model) is kind
    assert all(torch.equal(weights[name], tensor) for name, tensor in executor.state_dict().items())
    executor(torch.rand(4, 8))


@pytest.mark.parametrize(
    ("statement", "parts"),
    [
        # `python -m ipu_model --help` must not wait for torch.
        ("from ipu_model import profile_module", ("torch",)),
        # poprun tells mistakes at once; agents import torch when there is something to run.
        ("import popdist.run.command, popdist.run.agent", ("torch",)),
        # PopTorch brings no part of the performance model.
        ("import poptorch", ("ipu_model.predict", "ipu_model.report")),
    ],
)
def test_what_an_import_does_not_bring(statement: str, parts: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print([name for name in sys.modules if name.startswith({parts!r})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_names_that_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'profiles'"):
        _ = ipu_model.profiles


EIGHT = torch.ones(8, 8)
SLOW = HostWork(seconds_per_sample=1e-3)
# The arguments of a plain module that is trained as that of `executor` is.
OF_MODULE: dict[str, Any] = {"inputs": batch(trainable()), "options": trainable(), "training": True}


def test_half_precision_is_what_compiling_in_half_precision_gives() -> None:
    """Weights, inputs and outputs: all that crosses the host link is half as large, too."""
    full, half = (inference(model, quiet().deviceIterations(2)) for model in (Chain(2), Chain(2).half()))
    full.compile(torch.ones(16, 8))
    half.compile(torch.ones(16, 8).half())
    assert ipu_model.what_if(full, half_precision=True) == ipu_model.profile(half)


def test_no_change_is_the_programs_own_profile_which_stays_as_it_is(executor: poptorch.PoplarExecutor) -> None:
    before = ipu_model.profile(executor)
    assert ipu_model.what_if(executor) == before
    ipu_model.what_if(executor, gradient_accumulation=64, half_precision=True)
    assert ipu_model.profile(executor) == before
    of_module = ipu_model.what_if(Chain(2), **OF_MODULE, gradient_accumulation=8)
    assert of_module.samples_per_second == ipu_model.what_if(executor, gradient_accumulation=8).samples_per_second


def test_more_accumulation_never_slows_the_device_and_too_little_says_why(executor: poptorch.PoplarExecutor) -> None:
    first, *points = ipu_model.sweep(executor, "gradient_accumulation", [1, 3, 4, 8, 16, 64])
    assert first.profile is None
    assert "at least 2 x 2 - 1 = 3" in first.refused
    rates = [point.profile.device_samples_per_second for point in points if point.profile is not None]
    assert len(rates) == 5
    assert rates == sorted(rates)


def test_other_changes_hold_for_every_point_also_of_a_plain_module() -> None:
    points = ipu_model.sweep(Chain(2), "replicas", [1, 2], **OF_MODULE, execution="sharded")
    first, second = (point.profile for point in points)
    assert second.samples_per_call == 2 * first.samples_per_call
    assert (first.options["execution"], second.options["execution"]) == ("sharded", "sharded")


def test_gains_are_modelled_and_the_most_useful_comes_first(executor: poptorch.PoplarExecutor) -> None:
    """Speed for each unit of risk: a change that leaves results alone counts four times one of the numerics."""
    items = ipu_model.advise(executor)
    item = next(item for item in items if item.change.startswith("gradient accumulation"))
    value = int(item.change.split()[-1])
    after = ipu_model.what_if(executor, gradient_accumulation=value)
    factor = after.samples_per_second / ipu_model.profile(executor).samples_per_second
    assert item.samples_per_second_factor == pytest.approx(factor)
    assert item.how == f"opts.Training.gradientAccumulation({value})"
    gains = [math.log(item.samples_per_second_factor) / 2 ** int(item.risk) for item in items]
    assert gains == sorted(gains, reverse=True)
    assert min(item.samples_per_second_factor for item in items) >= 1.02


def test_only_a_module_can_have_another_micro_batch_at_the_same_global_batch() -> None:
    def given(rows: int, accumulation: int) -> dict[str, Any]:
        inputs = (torch.ones(rows, 8), torch.ones(rows, 8))
        return {"inputs": inputs, "options": trainable(1, accumulation), "training": True, "micro_batch": True}

    before, after = (ipu_model.profile_module(Chain(1), **given(*counts)) for counts in ((4, 8), (8, 4)))
    advice = {item.kind: item for item in ipu_model.advise(Chain(1), **given(4, 8))}
    item = advice.pop("micro_batch")
    assert item.change == "micro-batch: 4 -> 8, gradient accumulation: 8 -> 4"
    assert item.how.startswith("batch_size=8")
    assert item.how.endswith("\nopts.Training.gradientAccumulation(4)")
    assert item.samples_per_second_factor == pytest.approx(after.samples_per_second / before.samples_per_second)
    assert {item.kind for item in ipu_model.advise(before)} == set(advice)


def test_the_hosts_work_is_kept(executor: poptorch.PoplarExecutor, tmp_path: Path) -> None:
    without, profile = ipu_model.profile(executor), ipu_model.profile(executor, host=SLOW)
    assert profile.limited_by == "host loader"
    wanted = list(ipu_model.advise(profile.program, host=SLOW))
    assert wanted[0].change.startswith("loader workers")
    assert list(ipu_model.advise(profile)) == wanted
    assert list(ipu_model.advise(executor, profile=profile)) == wanted
    # A profile with another host is not what changes are compared with.
    assert list(ipu_model.advise(executor, profile=without, host=SLOW)) == wanted
    assert ipu_model.what_if(profile) == profile
    assert ipu_model.profile(profile) == profile
    assert ipu_model.sweep(profile, "replicas", [1])[0].profile == profile
    write_report(profile, tmp_path)
    assert read_report(tmp_path).host == SLOW
    assert profile_of_source(str(tmp_path), machine="Bow").host == SLOW


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gradient_accumulation", 5), ("device_iterations", 3), ("replicas", 2), ("execution", "sharded"),
        ("recomputation", "norm only"), ("available_memory_proportion", {"IPU1": 0.3}), ("half_partials", True),
        ("optimiser_off_chip", True), ("optimiser_sharded", True), ("prefetch_depth", 3), ("synthetic_data", True),
        ("output_mode", "all"),
    ],
)  # fmt: skip
def test_the_line_of_an_option_sets_what_the_model_changes(name: str, value: Any) -> None:
    def with_line(line: str) -> Program:
        opts, model = trainable(2, 4), Chain(2)
        exec(line, {"opts": opts, "poptorch": poptorch, "torch": torch})
        optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return program_of_module(opts, model, (EIGHT, EIGHT), optimizer=optimiser, micro_batch=True)

    before = with_line("")
    after = with_line(OPTIONS[name].line(before, value))
    assert profile_program(after) == profile_program(with_options(before, **{name: value}))
    assert profile_program(after) != profile_program(before)


def without_program(executor: poptorch.PoplarExecutor) -> ipu_model.Profile:
    return from_json(to_json(ipu_model.profile(executor)))


def sharded() -> poptorch.Options:
    return quiet().setExecutionStrategy(poptorch.ShardedExecution())


def one_group_of_96(options: poptorch.Options) -> poptorch.Options:
    return options.replicationFactor(96).inputReplicaGrouping(96, CONSECUTIVE)


def far(model: Any, x: Tensor) -> Tensor:
    with poptorch.Block("far", ipu_id=64):
        return x + 1


TAKE_A_HOST = ("what_if", "advise", "make_it_fit", "profile")
NO_HOST = r"host takes an ipu_model\.HostWork, not a float"
NO_EXECUTOR = r"compiled model that poptorch\.trainingModel or .*profile_module"
NO_OPTIONS = r"takes poptorch\.Options\(\) as options"
CONSECUTIVE = poptorch.CommGroupType.Consecutive


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda e: ipu_model.profile(inference(Chain())), r"not been compiled .*compile\(\) it, first.*profile_module"),
        (lambda e: ipu_model.profile(destroyed()), "destroyed"),
        (lambda e: ipu_model.profile(of_eight_replicas(), machine="M2000"), r"needs 8 IPUs, but M2000.* has 4.*POD16"),
        *((lambda e, thing=thing: ipu_model.profile(thing), NO_EXECUTOR) for thing in (Chain(), 3, None, quiet())),
        *((lambda e, o=o: ipu_model.profile_module(Chain(), X, o), NO_OPTIONS) for o in (None, {}, 4)),
        (lambda e: ipu_model.profile_module(Chain(), X, trainable()), r"Training\.gradientAccumulation to 1"),
        (lambda e: profiled(trainable(), (ONE, ONE)), r"Invalid batch dimension.* = 3 .*say micro_batch=True"),
        # What PopTorch refuses is refused.
        (lambda e: profiled(trainable(accumulation=2)), "number of pipeline stages"),
        (lambda e: of_inference(lambda o: o._Popart.set("noSuchKey", True)), "Unknown bool option noSuchKey"),
        # inference has no gradients
        (lambda e: of_inference(lambda o: o.anchorTensor("g", "Gradient___layers.0.bias")), "no tensor named 'Grad"),
        # A process has 64 IPUs, an executor one process.
        (lambda e: ipu_model.profile_module(Module(far), X, sharded()), r"Too many IPUs requested \(65\)"),
        (lambda e: of_inference(one_group_of_96), "96 replicas of 1 IPUs share their input.*at most 64"),
        (lambda e: ipu_model.what_if(e, batch=3), "no option 'batch'"),
        (lambda e: ipu_model.sweep(e, "speed", [1]), "no option 'speed'"),
        (lambda e: ipu_model.sweep(e, None, [1]), "no option 'None'"),
        (lambda e: ipu_model.what_if(Chain(1)), "got a Chain"),
        (lambda e: ipu_model.what_if(inference(Chain(1))), "not been compiled"),
        (lambda e: ipu_model.what_if(without_program(e)), "no program to explore"),
        (lambda e: ipu_model.advise(Chain(2)), "also give its inputs and options"),
        (lambda e: ipu_model.advise(Chain(2), inputs=(EIGHT, EIGHT)), "needs both"),
        (lambda e: ipu_model.advise(e, training=True), "Only a plain module takes training"),
        (lambda e: ipu_model.sweep(e, "replicas", [1], host=0.001), NO_HOST),
        *((lambda e, name=name: getattr(ipu_model, name)(e, host=0.001), NO_HOST) for name in TAKE_A_HOST),
    ],
)
def test_mistakes(executor: poptorch.PoplarExecutor, ask: Callable[[Any], object], words: str) -> None:
    with pytest.raises((poptorch.Error, AssertionError), match=words):
        ask(executor)
