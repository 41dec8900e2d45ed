"""Wrapping a module, and what the executor forwards to it (executor reference, sections 2 and 3.4)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from executor_support import Module, Net, Scale, X, Y, inference, quiet, raw, training
from torch import Tensor, nn

import poptorch


class TestWrapping:
    def test_options_are_frozen_in_place_and_the_executor_works_on_a_copy_with_the_mode_resolved(
        self,
    ) -> None:
        options = quiet()
        train, test = training(Net(), options), inference(Net(), options)
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            options.deviceIterations(2)
        assert options.output_mode == poptorch.OutputMode.Default
        assert train.options.output_mode == poptorch.OutputMode.Final
        assert test.options.output_mode == poptorch.OutputMode.All
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            train.options.Training.gradientAccumulation(2)

    def test_without_options_there_are_fresh_ones(self) -> None:
        executor = poptorch.inferenceModel(Net())
        assert executor.options.device_iterations == 1
        assert executor.options.output_mode == poptorch.OutputMode.All

    @pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
    @pytest.mark.parametrize(
        ("wrap", "words"),
        [
            (lambda model: inference(torch.jit.trace(nn.Linear(3, 2), X)), "wrap the module it was made from"),
            (
                lambda model: poptorch.trainingModel(model, {"deviceIterations": 2}),
                "Invalid type: 'options' is of type",
            ),
            (lambda model: inference(torch.relu), r"Invalid type: 'model'.*Wrap a function in a module"),
            (
                lambda model: inference(model, quiet(accumulation=4)),
                r"Training.gradientAccumulation to 1.*deviceIterations",
            ),
        ],
    )
    def test_what_cannot_be_wrapped_is_refused_and_the_module_stays_plain(self, wrap: Any, words: str) -> None:
        model = Net()
        with pytest.raises(poptorch.Error, match=words):
            wrap(model)
        assert type(model) is Net

    def test_only_a_pipeline_is_told_of_device_iterations(self) -> None:
        sharded = quiet(accumulation=4).setExecutionStrategy(poptorch.ShardedExecution())
        with pytest.raises(poptorch.Error, match=r"Training.gradientAccumulation to 1") as refusal:
            inference(Net(), sharded)
        assert "deviceIterations" not in refusal.value.message

    def test_without_an_optimiser_it_is_sgd_with_rate_one_hundredth(self) -> None:
        model = Scale()
        executor = poptorch.trainingModel(model, quiet())
        executor(torch.full((2,), 3.0))
        assert model.weight.item() == pytest.approx(1 - 0.01 * 3)

    def test_an_executor_for_inference_takes_no_optimiser(self) -> None:
        """Options reference, section 12.3: the internal path only, as `inferenceModel` has no such argument."""
        model = Net()
        with pytest.raises(AssertionError, match="no optimizer"):
            poptorch.PoplarExecutor(model, quiet(), False, poptorch.optim.SGD(model.parameters(), lr=0.1))

    def test_wrapping_changes_classes_but_not_what_the_objects_are(self) -> None:
        model = Net()
        model.register_buffer("scale", torch.ones(1))
        parameter = model.first.weight
        executor = training(model)
        assert type(model).__name__ == "PoptorchNet"
        assert isinstance(model, Net)
        assert model.first.weight is parameter
        assert isinstance(parameter, nn.Parameter)
        assert model is executor.model
        assert type(parameter).__name__ == "PoptorchParameter"
        assert type(model.scale).__name__ == "PoptorchBuffer"
        executor(X, Y)
        executor.destroy()
        assert type(model) is Net
        assert type(model.scale) is Tensor
        assert type(parameter) is nn.Parameter

    def test_a_module_is_wrapped_for_training_once_until_it_is_destroyed(self) -> None:
        model = Net()
        executor = training(model)
        for again in (model, executor):
            with pytest.raises(RuntimeError, match=r"Model has already been wrapped in 'poptorch.trainingModel'"):
                poptorch.trainingModel(again, quiet())
        executor(X, Y)
        model.destroy()
        assert training(model)(X, Y)[0].shape == (4, 2)

    def test_destroying_a_training_executor_that_was_never_compiled_does_not_unwrap(self) -> None:
        model = Net()
        executor = training(model)
        executor.destroy()
        assert type(model).__name__ == "PoptorchNet"

    def test_inference_leaves_the_classes_alone_and_may_be_wrapped_often(self) -> None:
        model = Net()
        results = [inference(model)(X) for _ in range(2)]
        assert type(model) is Net
        assert torch.equal(results[0], results[1])

    def test_a_buffer_that_is_no_plain_tensor_is_refused(self) -> None:
        model = Net()
        model.register_buffer("scale", nn.Parameter(torch.ones(1)))
        with pytest.raises(poptorch.Error, match=r"All buffers must be an instance of torch.Tensor"):
            training(model)
        assert type(model) is Net


class TestShallowCopy:
    """What happens between wrapping and the first compile: the table of section 2.1."""

    @staticmethod
    def switches() -> Any:
        """Returns zero where it drops what it is given, else 2, and whether it trains."""

        def forward(model: Any, x: Tensor) -> tuple[Tensor, ...]:
            out = model.layer(x) * model.weight * model.factor
            return out, torch.zeros(1) + float(model.training), poptorch.identity_loss(out, "sum")

        return Module(forward, layer=nn.Dropout(1.0), weight=nn.Parameter(torch.ones(1)), factor=2)

    @pytest.mark.parametrize(
        ("change", "out", "trains"),
        [
            (lambda model, executor: None, 0, 1),
            (lambda model, executor: setattr(model, "layer", nn.Identity()), 2, 1),  # a replaced submodule is seen
            (lambda model, executor: (model.layer.eval(), model.weight.data.fill_(3)), 6, 1),  # so are new values
            (lambda model, executor: (model.layer.eval(), setattr(model, "factor", 100)), 2, 1),  # attributes are not
            (lambda model, executor: model.eval(), 2, 1),  # it reaches submodules but not the flag of the top level
            # Of an inference executor it reaches what is traced.
            (lambda model, executor: executor.eval(), 2, 0),
            (lambda model, executor: executor.model.eval(), 2, 0),
        ],
    )
    def test_what_reaches_the_trace(self, change: Any, out: float, trains: float) -> None:
        model = self.switches()
        executor = inference(model)
        change(model, executor)
        assert [value.item() for value in executor(torch.ones(1))[:2]] == [out, trains]

    def test_eval_of_a_training_executor_reaches_submodules_only(self) -> None:
        executor = training(self.switches())
        # As every method that executors do not have: the module's, which returns the module.
        assert executor.eval() is executor.model
        assert [value.item() for value in executor(torch.ones(1))[:2]] == [2, 1]

    def test_after_compilation_flags_have_no_effect_until_it_is_compiled_again(self) -> None:
        executor = inference(self.switches())
        assert executor(torch.ones(1))[0].item() == 0
        executor.eval()
        assert executor(torch.ones(1))[0].item() == 0
        executor.destroy()
        assert executor(torch.ones(1))[0].item() == 2


class TestForwarding:
    class WithMethods(Net):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))
            self.note = "mine"

        def describe(self) -> str:
            return f"{self.note}: {self.scale.tolist()}"

    def test_unknown_attributes_resolve_on_the_module(self) -> None:
        model = self.WithMethods()
        executor = training(model)
        assert executor.first is model.first
        assert executor.describe() == "mine: [1.0, 2.0]"
        assert [name for name, _ in executor.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert executor.state_dict().keys() == model.state_dict().keys()
        assert not hasattr(executor, "something_else")

    def test_setting_an_attribute_sets_it_on_the_executor(self) -> None:
        model = self.WithMethods()
        executor = inference(model)
        executor.note = "the executor's"
        assert executor.note == "the executor's"
        assert model.note == executor.model.note == "mine"

    def test_a_parameter_of_the_top_level_comes_as_a_view_that_is_no_tensor(self) -> None:
        model = self.WithMethods()
        executor = training(model)
        view = executor.scale
        assert not isinstance(view, torch.Tensor)
        assert view.shape == (2,)
        assert view.requires_grad
        view.data.fill_(5)
        assert model.scale.tolist() == [5, 5]
        view.data = torch.tensor([7.0, 8.0])
        assert model.scale.tolist() == [7, 8]
        assert "Parameter containing" in repr(view)
        with pytest.raises(TypeError):
            torch.equal(view, model.scale)
        assert torch.equal(executor.model.scale, model.scale)

    def test_its_text_is_the_module_tree_with_block_annotations(self) -> None:
        model = Net()
        poptorch.BeginBlock(model.second, "back", ipu_id=0)
        for executor in (inference(model), training(model)):
            lines = repr(executor).splitlines()
            assert lines[0] == "Net("
            assert (
                "  (second): BeginBlock(user_id=back, ipu_id=0) "
                "Linear(in_features=4, out_features=2, bias=True)" in lines
            )


class TestUnusualModules:
    def test_slots(self) -> None:
        class Slotted(Net):
            __slots__ = ("factor", "unset")

            def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
                return super().forward(x * self.factor, y)

        model = Slotted()
        model.factor = 2
        executor = training(model)
        expected = model(2 * X / 2, Y)[1]
        assert torch.equal(executor(X, Y)[1], expected)
        executor.destroy()
        assert type(model) is Slotted

    def test_a_module_that_looks_its_attributes_up_elsewhere(self) -> None:
        class Delegating(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Net()

            def __getattr__(self, name: str) -> Any:
                try:
                    return super().__getattr__(name)
                except AttributeError:
                    return getattr(super().__getattr__("inner"), name)

            def forward(self, x: Tensor, y: Tensor) -> Any:
                return self.inner(x, y)[0], self.loss(self.inner(x), y)

        model = Delegating()
        executor = training(model)
        before = raw(model, "inner.first.weight")
        executor(X, Y)
        assert not torch.equal(model.first.weight, before)
        assert executor.second is model.inner.second
        executor.destroy()

    def test_a_module_that_copies_itself_in_its_own_way(self) -> None:
        class Careful(Net):
            def __copy__(self) -> Any:
                raise RuntimeError("do not copy me")

            def __deepcopy__(self, memo: Any) -> Any:
                made = type(self)()
                made.load_state_dict(self.state_dict())
                return made

        model = Careful()
        executor = training(model)
        executor(X, Y)
        twin = copy.deepcopy(model)
        assert type(twin) is Careful
        assert torch.equal(twin.first.weight, model.first.weight)

    def test_a_model_without_parameters(self) -> None:
        assert torch.equal(inference(nn.ReLU())(X - 0.5), torch.relu(X - 0.5))
