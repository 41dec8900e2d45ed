"""Wrapping a module, what the executor forwards to it, unusual modules (executor reference, sections 2 and 3.4)."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_support import Module, Net, Scale, X, Y, inference, quiet, raw, training, trains_alike, with_loss
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import poptorch

SHARDED = {"accumulation": 4, "setExecutionStrategy": poptorch.ShardedExecution()}
PHASED = {"accumulation": 4, "setExecutionStrategy": poptorch.SerialPhasedExecution("a")}


class TestWrapping:
    def test_options_are_frozen_in_place_and_the_executor_works_on_a_copy_with_the_mode_resolved(self) -> None:
        options = quiet()
        train, test = training(Net(), options), inference(Net(), options)
        assert options.output_mode == poptorch.OutputMode.Default
        assert train.options.output_mode == poptorch.OutputMode.Final
        assert test.options.output_mode == poptorch.OutputMode.All
        for change in (options.deviceIterations, train.options.Training.gradientAccumulation):
            with pytest.raises(AttributeError, match="Can't modify frozen Options"):
                change(2)

    def test_without_options_and_optimiser_there_are_fresh_ones_and_sgd_with_rate_one_hundredth(self) -> None:
        assert poptorch.inferenceModel(Net()).options.device_iterations == 1
        model = Scale()
        executor = poptorch.trainingModel(model, quiet())
        executor(torch.full((2,), 3.0))
        assert model.weight.item() == pytest.approx(1 - 0.01 * 3)

    @pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
    @pytest.mark.parametrize(
        ("wrap", "words"),
        [
            (lambda model: inference(torch.jit.trace(nn.Linear(3, 2), X)), "wrap the module it was made from"),
            (lambda model: inference(nn.Sequential(torch.jit.trace(model, X)))(X), r"scripted module .*'0' is one"),
            (lambda model: poptorch.trainingModel(model, {"a": 2}), "Invalid type: 'options' is of type"),
            (lambda model: inference(torch.relu), r"Invalid type: 'model'.*Wrap a function in a module"),
            (lambda model: inference(model, quiet(accumulation=4)), "gradientAccumulation to 1.*deviceIterations"),
            # Only a pipeline is told of deviceIterations.
            (lambda model: inference(model, quiet(**SHARDED)), r"gradientAccumulation to 1(?!.*deviceIterations)"),
            (lambda model: inference(model, quiet(**PHASED)), r"gradientAccumulation to 1(?!.*deviceIterations)"),
            (lambda model: (model.register_buffer("b", nn.Parameter(X)), training(model)), "All buffers must be"),
        ],
    )
    def test_what_cannot_be_wrapped_is_refused_and_the_module_stays_plain(self, wrap: Any, words: str) -> None:
        model = Net()
        with pytest.raises(poptorch.Error, match=words):
            wrap(model)
        assert type(model) is Net

    def test_wrapping_changes_classes_but_not_what_the_objects_are(self) -> None:
        model = Net()
        model.register_buffer("scale", torch.ones(1))
        parameter = model.first.weight
        executor = training(model)
        for run in (False, True):
            assert type(model).__name__ == "PoptorchNet"
            assert isinstance(model, Net)
            assert repr(executor).startswith("Net(")
            assert model.first.weight is parameter
            assert isinstance(parameter, nn.Parameter)
            assert model is executor.model
            assert type(parameter).__name__ == "PoptorchParameter"
            assert type(model.scale).__name__ == "PoptorchBuffer"
            if run:
                executor(X, Y)
            executor.destroy()  # Before the first compilation it unwraps nothing.
        assert type(model) is Net
        assert type(model.scale) is Tensor
        assert type(parameter) is nn.Parameter

    def test_inference_leaves_the_classes_alone_and_may_be_wrapped_often(self) -> None:
        model = Net()
        results = [inference(model)(X) for _ in range(2)]
        assert type(model) is Net
        assert torch.equal(results[0], results[1])

    def test_a_module_is_wrapped_for_training_once_until_it_is_destroyed(self) -> None:
        model = Net()
        executor = training(model)
        for again in (model, executor):
            with pytest.raises(RuntimeError, match=r"Model has already been wrapped in 'poptorch.trainingModel'"):
                poptorch.trainingModel(again, quiet())
        executor(X, Y)
        model.destroy()
        assert training(model)(X, Y)[0].shape == (4, 2)


class TestShallowCopy:
    @staticmethod
    def switches() -> Any:
        """Returns zero where it drops what it is given, else 2, and whether it trains."""

        def forward(model: Any, x: Tensor) -> tuple[Tensor, ...]:
            out = model.layer(x) * model.weight * model.factor
            return out, torch.zeros(1) + float(model.training), poptorch.identity_loss(out, "sum")

        return Module(forward, layer=nn.Dropout(1.0), weight=nn.Parameter(torch.ones(1)), factor=2)

    @pytest.mark.parametrize(
        ("wrap", "change", "out", "trains"),
        [
            (inference, lambda model, executor: None, 0, 1),
            (inference, lambda model, executor: setattr(model, "layer", nn.Identity()), 2, 1),  # submodules are seen
            (inference, lambda model, executor: (model.layer.eval(), model.weight.data.fill_(3)), 6, 1),  # and values
            (inference, lambda model, executor: (model.layer.eval(), setattr(model, "factor", 100)), 2, 1),  # no others
            (inference, lambda model, executor: model.eval(), 2, 1),  # all submodules, not the flag of the top level
            # Of an inference executor it reaches what is traced.
            (inference, lambda model, executor: executor.eval(), 2, 0),
            (inference, lambda model, executor: executor.model.eval(), 2, 0),
            (training, lambda model, executor: executor.eval(), 2, 1),
        ],
    )
    def test_what_reaches_the_trace(self, wrap: Any, change: Any, out: float, trains: float) -> None:
        model = self.switches()
        executor = wrap(model)
        change(model, executor)
        assert [value.item() for value in executor(torch.ones(1))[:2]] == [out, trains]

    def test_after_compilation_flags_have_no_effect_until_it_is_compiled_again(self) -> None:
        executor = inference(self.switches())
        assert executor(torch.ones(1))[0].item() == 0
        # As every method that executors do not have: the module's, which returns the module.
        assert executor.eval() is executor.model
        assert executor(torch.ones(1))[0].item() == 0
        executor.destroy()
        assert executor(torch.ones(1))[0].item() == 2


class TestForwarding:
    def test_unknown_attributes_resolve_on_the_module(self) -> None:
        model = Net()
        model.note = "mine"
        executor = training(model)
        assert executor.first is model.first
        assert [name for name, _ in executor.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert executor.state_dict().keys() == model.state_dict().keys()
        assert not hasattr(executor, "something_else")
        assert executor.note == "mine"
        executor.note = "the executor's"
        assert executor.note == "the executor's"
        assert model.note == executor.model.note == "mine"

    def test_a_parameter_of_the_top_level_comes_as_a_view_that_is_no_tensor(self) -> None:
        model = Scale()
        executor = training(model)
        view = executor.weight
        assert not isinstance(view, torch.Tensor)
        assert view.shape == (1,)
        assert view.requires_grad
        view.data.fill_(5)
        assert model.weight.tolist() == [5]
        view.data = torch.tensor([7.0])
        assert model.weight.tolist() == [7]
        assert "Parameter containing" in repr(view)
        with pytest.raises(TypeError):
            torch.equal(view, model.weight)
        assert torch.equal(executor.model.weight, model.weight)


X2 = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def two() -> Any:
    def forward(model: Any, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        out = model.second(model.first(x)) * scale
        return out, poptorch.identity_loss(out, "sum")

    torch.manual_seed(0)
    return Module(forward, first=nn.Linear(2, 2), second=nn.Linear(2, 2))


def scaled(module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    return out[0] * kwargs.get("scale", 1.0), out[1]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "forward": lambda m: m.first.register_forward_hook(lambda module, args, out: out * 2),
    "forward, of the model": lambda m: m.register_forward_hook(lambda module, args, out: (out[0] * 2, out[1])),
    "forward, with keywords": lambda m: m.register_forward_hook(scaled, with_kwargs=True, always_call=True),
    "before forward": lambda m: m.second.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "before forward, with keywords": lambda m: m.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {"scale": 3.0}), with_kwargs=True
    ),
    "weight norm by a hook": lambda m: torch.nn.utils.weight_norm(m.first),
    "spectral norm by a hook": lambda m: torch.nn.utils.spectral_norm(m.first),
    "weight norm": lambda m: parametrizations.weight_norm(m.first),
    "own parametrisation": lambda m: parametrize.register_parametrization(m.first, "weight", nn.Tanh()),
    "pruning": lambda m: prune.l1_unstructured(m.first, "weight", 0.5),
}


class TestHooks:
    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
    def test_a_wrapped_model_trains_alike(self, change: str) -> None:
        model, plain = two(), two()
        for each in (model, plain):
            torch.manual_seed(0)
            CHANGES[change](each)
        trains_alike(model, plain, X2)

    def test_a_hook_runs_once_for_each_compilation_and_not_after_it_was_removed(self) -> None:
        seen: list[bool] = []
        model = two()
        handle = model.first.register_forward_hook(lambda module, args, out: seen.append(poptorch.isRunningOnIpu()))
        executor = inference(model)
        executor(X2)
        executor(X2)
        assert seen == [True]
        handle.remove()
        executor.destroy()
        executor(X2)
        assert seen == [True]

    def test_global_hooks_of_the_program_see_its_own_modules_only(self) -> None:
        seen: list[str] = []
        handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))
        try:
            executor = inference(nn.Sequential(nn.Linear(3, 2)))
            executor(X)
            executor(X)
        finally:
            handle.remove()
        assert seen == ["Linear", "Sequential"]


def on_meta() -> Net:
    with torch.device("meta"):
        return Net()


class TestModulesWithoutData:
    def test_filled_in_place_or_by_assignment_they_work_like_any_other(self) -> None:
        model, plain = on_meta(), Net()
        model.to_empty(device="cpu").load_state_dict(plain.state_dict())
        late = on_meta()
        executor = inference(late)
        late.load_state_dict(plain.state_dict(), assign=True)
        assert torch.equal(executor(X), inference(plain)(X))
        expected = [t.tolist() for t in training(plain)(X, Y)]
        assert [t.tolist() for t in training(model)(X, Y)] == expected

    @pytest.mark.parametrize("wrap", [training, inference])
    def test_unfilled_they_are_refused_by_name(self, wrap: Any) -> None:
        model = on_meta()
        executor = wrap(model)
        with pytest.raises(poptorch.Error, match=r"'first.weight' is on the device 'meta'.*to_empty.*assign=True"):
            executor(X, Y)
        model.to_empty(device="cpu")
        wrap(model)(X, Y)
        with pytest.raises(poptorch.Error, match=r"shape \[3\].*on the device 'meta'"):
            inference(Module(lambda model, x: x + model.shift, shift=torch.ones(3, device="meta")))(X)
        offline = inference(on_meta(), quiet(connectionType=poptorch.ConnectionType.Never))
        offline.compile(X)
        assert "first.weight" in offline.getTensorNames(), "this needs no data"


class Unusual(Net):
    """Has slots, looks its attributes up elsewhere and copies itself in its own way."""

    __slots__ = ("factor", "unset")

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"deep": nn.Linear(3, 3)})
        self.factor = 2

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def __copy__(self) -> Any:
        raise RuntimeError("do not copy me")

    def __deepcopy__(self, memo: Any) -> Any:
        made = type(self)()
        made.load_state_dict(self.state_dict())
        return made

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        return super().forward(self.deep(x * self.factor), y)


class TestUnusualModules:
    def test_deep_nesting(self) -> None:
        """Python refuses calls of 250 such modules, each with its function; hooks would leave room for 200."""
        before = sys.getrecursionlimit()
        body: nn.Module = nn.Identity()
        for _ in range(225):
            body = Module(lambda m, x: m.inner(x) + 1, inner=body)
        executor = training(with_loss(lambda m, x: m.body(x) * m.one, body=body, one=nn.Parameter(torch.ones(1))))
        assert [t.tolist() for t in executor(torch.zeros(2))] == [[225, 225], 450]
        assert sys.getrecursionlimit() == before
        assert repr(inference(body)).count("Module(") == 225

    def test_slots_attributes_from_elsewhere_and_copies_of_their_own_kind(self) -> None:
        model = Unusual()
        executor = training(model)
        expected, before = model(X, Y)[1], raw(model, "inner.deep.weight")
        assert torch.equal(executor(X, Y)[1], expected)
        assert not torch.equal(model.deep.weight, before)
        assert executor.deep is model.inner["deep"]
        twin = copy.deepcopy(model)
        assert type(twin) is Unusual
        assert torch.equal(twin.first.weight, model.first.weight)
        executor.destroy()
        assert type(model) is Unusual
