"""Anchored tensors and the names they are asked for by (options reference 3.4, executor reference 15)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from executor_support import X, Y, inference, quiet, sgd, training
from function_models import on_device
from modelling_support import Chain, batch, trainable
from torch import Tensor, nn

import ipu_model
import poptorch
from ipu_model.front_ends import program_of_module
from ipu_model.predict.order import traffic_of
from poptorch import OutputMode


class Blocks(nn.Module):
    """Two layers in a block each: `forward(x)` is inference, `forward(x, y)` returns `(output, loss)`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(3, 4)
        self.act = nn.ReLU()
        self.second = nn.Linear(4, 2)
        self.loss = nn.MSELoss()
        poptorch.BeginBlock(self.first, "body", ipu_id=0)
        poptorch.BeginBlock(self.second, "head", ipu_id=1)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        out = self.second(self.act(self.first(x)))
        return out if y is None else (out, self.loss(out, y))


def anchoring(options: poptorch.Options | None = None, **long_names: str) -> poptorch.Options:
    """Return options with an anchor for each keyword."""
    options = options or quiet()
    for short_name, long_name in long_names.items():
        options.anchorTensor(short_name, long_name)
    return options


def sharded(accumulation: int = 1) -> poptorch.Options:
    """Return options under which several IPUs need no more micro-batches than one."""
    options = quiet().setExecutionStrategy(poptorch.ShardedExecution())
    options.Training.gradientAccumulation(accumulation)
    return options


def names(executor: poptorch.PoplarExecutor, *inputs: Tensor) -> list[str]:
    executor.compile(*inputs)
    return executor.getTensorNames()


FORWARD = ["first/Gemm:0", "act/Relu:0", "second/Gemm:0"]
WEIGHTS = ["first.weight", "first.bias", "second.weight", "second.bias"]


class TestNames:
    def test_of_inference_are_inputs_parameters_and_results_of_ops(self) -> None:
        assert names(inference(Blocks(), sharded()), X) == ["input", *WEIGHTS, *FORWARD]

    def test_of_training_have_loss_gradients_and_updated_parameters_too(self) -> None:
        forward = [*FORWARD, "loss/MeanSquaredError:0"]
        gradients = [f"Gradient___{name}" for name in (*WEIGHTS, *forward, "loss")]
        updated = [f"UpdatedVar___{name}" for name in WEIGHTS]
        numbers = [
            f"{number}___specific___{name}"
            for name in WEIGHTS
            for number in ("scaledLearningRate0", "weightDecayScaleFactor0")
        ]
        assert names(training(Blocks(), sharded()), X, Y) == [
            "input", "input/1", *WEIGHTS, *forward, "loss", *gradients, *updated, *numbers, "lossScaling_FLOAT",
        ]  # fmt: skip

    def test_a_name_that_is_taken_gets_a_number(self) -> None:
        found = names(on_device(lambda m, x: x * 2 * x * x), torch.ones(1, 4))
        assert [name for name in found if "Mul" in name] == ["Mul:0", "Mul:0/1", "Mul:0/2"]

    def test_an_op_without_a_popart_name_gets_its_own_in_camel_case(self) -> None:
        assert "SpecialEntr:0" in names(on_device(lambda m, x: torch.special.entr(x)), torch.ones(1, 4))

    def test_several_results_of_one_op_are_counted(self) -> None:
        found = names(on_device(lambda m, x: x.topk(2)), torch.ones(1, 4))
        assert [name for name in found if "TopK" in name] == ["TopK:0", "TopK:1"]

    def test_name_scopes_stand_where_they_were_entered(self) -> None:
        class Inner(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                with poptorch.NameScope("inside"):
                    return torch.exp(x)

        class Outer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList([Inner()])

            def forward(self, x: Tensor) -> Any:
                with poptorch.NameScope("outside"):
                    return self.layers[0](torch.sin(x))

        found = names(inference(Outer()), X)
        assert found == ["input", "outside/Sin:0", "outside/layers/0/inside/Exp:0"]

    def test_module_paths_can_be_left_out(self) -> None:
        found = names(inference(Blocks(), sharded().disableModuleNamescope()), X)
        assert found[-3:] == ["Gemm:0", "Relu:0", "Gemm:0/1"]

    def test_tied_weights_have_all_their_names(self) -> None:
        model = Blocks()
        model.extra = nn.Linear(4, 2)
        model.extra.weight = model.second.weight
        found = names(training(model, sharded()), X, Y)
        for prefix in ("", "Gradient___", "UpdatedVar___"):
            assert {f"{prefix}second.weight", f"{prefix}extra.weight"} <= set(found)

    def test_need_a_compiled_model(self) -> None:
        executor = inference(Blocks(), sharded())
        with pytest.raises(AssertionError, match="Model must be compiled"):
            executor.getTensorNames()
        executor(X)
        assert executor.getTensorNames()
        executor.destroy()
        with pytest.raises(AssertionError, match="Model must be compiled"):
            executor.getTensorNames()

    def test_are_there_on_an_offline_device(self) -> None:
        assert names(inference(Blocks(), sharded().useOfflineIpuTarget()), X)

    def test_every_one_of_them_can_be_anchored(self) -> None:
        listed = names(training(Blocks(), sharded()), X, Y)
        executor = training(Blocks(), anchoring(sharded(), **{f"t{i}": name for i, name in enumerate(listed)}))
        executor(X, Y)
        assert executor.getTensorNames() == listed
        assert all(isinstance(executor.getAnchoredTensor(f"t{i}"), Tensor) for i in range(len(listed)))


class Returning(nn.Module):
    """Returns what the anchor `hidden` asks for as well, so that the two can be compared."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(3, 4)
        self.loss = nn.MSELoss()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        hidden = self.layer(x)
        total = hidden.sum()
        out = torch.tanh(hidden)[:, :2]
        return (hidden, total, out) if y is None else (hidden, total, self.loss(out, y))


MODES = [(OutputMode.All, 1), (OutputMode.Final, 1), (OutputMode.Sum, 1), (OutputMode.EveryN, 2)]


class TestOutputModes:
    """An anchored tensor comes back as forward would return it."""

    @pytest.mark.parametrize(("mode", "period"), MODES)
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_in_inference(self, mode: OutputMode, period: int, replicas: int) -> None:
        options = quiet().deviceIterations(4).replicationFactor(replicas).outputMode(mode, period)
        executor = inference(Returning(), anchoring(options, hidden="layer/Gemm:0", total="ReduceSum:0"))
        hidden, total, _ = executor(torch.randn(8 * replicas, 3))
        assert torch.equal(executor.getAnchoredTensor("hidden"), hidden)
        assert torch.equal(executor.getAnchoredTensor("total"), total)

    @pytest.mark.parametrize(("mode", "period"), MODES)
    @pytest.mark.parametrize("replicas", [1, 2])
    def test_in_training(self, mode: OutputMode, period: int, replicas: int) -> None:
        options = quiet().deviceIterations(2).replicationFactor(replicas).outputMode(mode, period)
        options.Training.gradientAccumulation(2)
        executor = training(Returning(), anchoring(options, hidden="layer/Gemm:0", loss="loss"))
        rows = 8 * replicas
        hidden, _, loss = executor(torch.randn(rows, 3), torch.randn(rows, 2))
        assert torch.equal(executor.getAnchoredTensor("hidden"), hidden)
        assert torch.equal(executor.getAnchoredTensor("loss"), loss)

    def test_the_default_follows_the_wrapper(self) -> None:
        options = anchoring(quiet().deviceIterations(4), hidden="layer/Gemm:0")
        executor = inference(Returning(), options)
        executor(torch.ones(8, 3))
        assert executor.getAnchoredTensor("hidden").shape == (8, 4)
        executor = training(Returning(), options)
        executor(torch.ones(8, 3), torch.ones(8, 2))
        assert executor.getAnchoredTensor("hidden").shape == (2, 4)

    def test_a_mode_of_its_own_has_no_effect_and_a_warning_says_so(self, caplog: pytest.LogCaptureFixture) -> None:
        options = quiet().deviceIterations(4)
        options.anchorTensor("hidden", "layer/Gemm:0", OutputMode.Final)
        executor = inference(Returning(), options)
        with caplog.at_level(logging.WARNING, logger="poptorch::python"):
            executor(torch.ones(8, 3))
        assert executor.getAnchoredTensor("hidden").shape == (8, 4)
        assert "output mode of 'hidden' (Final) has no effect" in caplog.text

    def test_every_call_gives_a_new_value(self) -> None:
        executor = inference(Returning(), anchoring(hidden="layer/Gemm:0"))
        executor(X)
        first = executor.getAnchoredTensor("hidden")
        kept = first.clone()
        hidden, *_ = executor(X + 1)
        assert torch.equal(executor.getAnchoredTensor("hidden"), hidden)
        assert torch.equal(first, kept)

    def test_one_tensor_can_have_several_short_names(self) -> None:
        executor = inference(Returning(), anchoring(a="layer/Gemm:0", b="layer/Gemm:0"))
        hidden, *_ = executor(X)
        a, b = executor.getAnchoredTensor("a"), executor.getAnchoredTensor("b")
        assert torch.equal(a, hidden)
        assert torch.equal(b, hidden)
        assert a.data_ptr() != b.data_ptr()


def plain_step(model: Blocks, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return what plain PyTorch computes for one micro-batch, under the names of the tensors."""
    hidden = model.first(x)
    active = F.relu(hidden)
    out = model.second(active)
    loss = F.mse_loss(out, y)
    parameters = dict(model.named_parameters())
    tensors = {"first/Gemm:0": hidden, "act/Relu:0": active, "second/Gemm:0": out, "loss": loss, **parameters}
    gradients = torch.autograd.grad(loss, list(tensors.values()))
    found = {**tensors, **{f"Gradient___{name}": gradient for name, gradient in zip(tensors, gradients)}}
    return {name: value.detach().clone() for name, value in found.items()}


ALL = [*FORWARD, "loss", *WEIGHTS]
ALL += [f"Gradient___{name}" for name in ALL]


class TestTraining:
    def test_each_tensor_is_that_of_plain_pytorch(self) -> None:
        expected = plain_step(Blocks(), X, Y)
        executor = training(Blocks(), anchoring(sharded(), **{f"t{i}": name for i, name in enumerate(ALL)}))
        executor(X, Y)
        found = {name: executor.getAnchoredTensor(f"t{i}") for i, name in enumerate(ALL)}
        torch.testing.assert_close(found, {name: expected[name] for name in ALL})

    def test_gradients_are_those_of_each_micro_batch(self) -> None:
        options = sharded(accumulation=2).outputMode(OutputMode.All).replicationFactor(2)
        executor = training(Blocks(), anchoring(options, g="Gradient___first.weight", a="Gradient___act/Relu:0"))
        executor(X, Y)
        parts = [plain_step(Blocks(), X[i : i + 1], Y[i : i + 1]) for i in range(4)]
        weights = torch.cat([part["Gradient___first.weight"] for part in parts])
        activations = torch.cat([part["Gradient___act/Relu:0"] for part in parts])
        torch.testing.assert_close(executor.getAnchoredTensor("g"), weights)
        torch.testing.assert_close(executor.getAnchoredTensor("a"), activations)

    def test_gradients_contain_the_loss_scaling(self) -> None:
        model = Blocks()
        options = anchoring(sharded(), g="Gradient___first.weight", loss="Gradient___loss")
        executor = poptorch.trainingModel(model, options, sgd(model, loss_scaling=128.0))
        executor(X, Y)
        expected = plain_step(Blocks(), X, Y)["Gradient___first.weight"] * 128
        torch.testing.assert_close(executor.getAnchoredTensor("g"), expected)
        assert executor.getAnchoredTensor("loss") == 128

    def test_an_updated_parameter_is_what_the_host_then_has(self) -> None:
        model = Blocks()
        executor = training(model, anchoring(sharded(), before="first.weight", after="UpdatedVar___first.weight"))
        before = Blocks().first.weight
        executor(X, Y)
        assert torch.equal(executor.getAnchoredTensor("before"), before)
        assert torch.equal(executor.getAnchoredTensor("after"), model.first.weight)
        assert not torch.equal(model.first.weight, before)

    def test_an_updated_parameter_comes_once_for_each_update(self) -> None:
        options = sharded(accumulation=2).deviceIterations(2).outputMode(OutputMode.All)
        executor = training(Blocks(), anchoring(options, after="UpdatedVar___second.bias"), lr=0.1)
        executor(X, Y)
        plain = Blocks()
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
        expected = []
        for rows in ((0, 1), (2, 3)):
            optimiser.zero_grad()
            for row in rows:
                (plain(X[row : row + 1], Y[row : row + 1])[1] / 2).backward()
            optimiser.step()
            expected.append(plain.second.bias.detach().clone())
        torch.testing.assert_close(executor.getAnchoredTensor("after"), torch.cat(expected))

    def test_numbers_of_the_optimiser_are_those_of_each_update(self) -> None:
        """Plain SGD reads lr*(1-dm)/ls."""
        options = sharded().deviceIterations(2).outputMode(OutputMode.All)
        number = "scaledLearningRate0___specific___first.bias"
        options = anchoring(options, rate=number, scale="lossScaling_FLOAT")
        model = Blocks()
        optimiser = sgd(model, lr=0.5, dampening=0.5, loss_scaling=4.0)
        executor = poptorch.trainingModel(model, options, optimiser)
        executor(X, Y)
        assert executor.getAnchoredTensor("rate").tolist() == [0.5 * 0.5 / 4] * 2
        assert executor.getAnchoredTensor("scale").tolist() == [4.0, 4.0]
        optimiser.param_groups[0]["lr"] = 1.0
        executor.setOptimizer(optimiser)
        executor(X, Y)
        assert executor.getAnchoredTensor("rate").tolist() == [1.0 * 0.5 / 4] * 2
        assert set(optimiser.state_dict()["ipu_param"]) <= set(executor.getTensorNames())

    def test_half_precision_gradients_stay_half(self) -> None:
        names = {"g": "Gradient___first.weight", "h": "Gradient___act/Relu:0", "a": "act/Relu:0"}
        executor = training(Blocks().half(), anchoring(sharded(), **names))
        executor(X.half(), Y.half())
        expected = plain_step(Blocks(), X, Y)
        for short_name, name in names.items():
            value = executor.getAnchoredTensor(short_name)
            assert value.dtype is torch.float16
            torch.testing.assert_close(value.float(), expected[name], atol=2e-3, rtol=1e-2)

    def test_results_do_not_depend_on_anchors(self) -> None:
        plain, watched = Blocks(), Blocks()
        options = anchoring(sharded(2), **{f"t{i}": name for i, name in enumerate(ALL)})
        one, other = training(plain, sharded(2)), training(watched, options)
        for _ in range(3):
            for a, b in zip(one(X, Y), other(X, Y)):
                assert torch.equal(a, b)
        for a, b in zip(plain.state_dict().values(), watched.state_dict().values()):
            assert torch.equal(a, b)

    def test_in_a_pipeline(self) -> None:
        options = quiet()
        options.Training.gradientAccumulation(4)
        executor = training(
            Blocks(), anchoring(options.outputMode(OutputMode.All), a="act/Relu:0", g="Gradient___loss")
        )
        executor(X, Y)
        torch.testing.assert_close(executor.getAnchoredTensor("a"), plain_step(Blocks(), X, Y)["act/Relu:0"])
        assert executor.getAnchoredTensor("g").tolist() == [1.0] * 4


class TestValuesOverwritten:
    """An anchor has the value of the moment, whatever writes into that storage later."""

    def test_by_an_activation_in_place(self) -> None:
        executor = on_device(lambda m, x: F.relu(m.linear(x), inplace=True), anchoring(before="linear/Gemm:0"))
        x = torch.randn(3, 4)
        after = executor(x)
        before = executor.getAnchoredTensor("before")
        assert (before < 0).any()
        assert torch.equal(before.relu(), after)

    def test_of_a_view(self) -> None:
        def forward(model: Any, x: Tensor) -> Tensor:
            y = x * 2
            y.view(-1).add_(1)
            return y

        executor = on_device(forward, anchoring(before="Mul:0", view="Reshape:0"))
        x = torch.randn(3, 4)
        assert torch.equal(executor(x), x * 2 + 1)
        assert torch.equal(executor.getAnchoredTensor("before"), x * 2)
        assert torch.equal(executor.getAnchoredTensor("view"), (x * 2).view(-1))

    def test_running_statistics_are_those_before_the_micro_batch(self) -> None:
        class Normed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(3)

            def forward(self, x: Tensor) -> Tensor:
                return poptorch.identity_loss(self.norm(x) ** 2, "sum")

        model = Normed()
        executor = training(model, anchoring(mean="norm.running_mean"), lr=0.0)
        executor(X)
        assert torch.equal(executor.getAnchoredTensor("mean"), torch.zeros(3))
        executor(X)
        torch.testing.assert_close(executor.getAnchoredTensor("mean"), X.mean(0) * 0.1)


class TestErrors:
    @pytest.mark.parametrize(
        ("wrap", "wrong", "nearest"),
        [
            (training, "first.weigth", "first.weight"),
            (training, "Gradient__first.weight", "Gradient___first.weight"),
            (training, "first", "first.weight"),
            (training, "act", "act/Relu:0"),
            (training, "eps___specific___first.bias", ""),  # plain SGD has none
            (inference, "eps___specific___first.bias", ""),
            (inference, "Gradient___first.weight", "first.weight"),
        ],
    )
    def test_an_unknown_name_is_told_the_nearest_ones(self, wrap: Any, wrong: str, nearest: str) -> None:
        executor = wrap(Blocks(), anchoring(sharded(), it=wrong))
        with pytest.raises(poptorch.Error) as refusal:
            executor.compile(*((X, Y) if wrap is training else (X,)))
        assert f"no tensor named '{wrong}'" in refusal.value.message
        assert nearest in refusal.value.message
        assert "getTensorNames()" in refusal.value.message

    def test_a_failed_compilation_leaves_the_model_usable(self) -> None:
        model = Blocks()
        with pytest.raises(poptorch.Error, match="no tensor named"):
            training(model, anchoring(sharded(), it="zzzz"))(X, Y)
        assert training(model, sharded())(X, Y)[0].shape == (4, 2)

    def test_before_the_first_run_and_after_destroy(self) -> None:
        executor = inference(Blocks(), anchoring(sharded(), it="act/Relu:0"))
        executor.compile(X)
        with pytest.raises(AssertionError, match="No tensor with name it found: the model has not run yet"):
            executor.getAnchoredTensor("it")
        executor(X)
        assert executor.getAnchoredTensor("it").shape == (4, 4)
        executor.destroy()
        with pytest.raises(AssertionError, match="No tensor with name it found"):
            executor.getAnchoredTensor("it")

    def test_a_name_that_is_not_anchored(self) -> None:
        executor = inference(Blocks(), anchoring(sharded(), it="act/Relu:0"))
        executor(X)
        with pytest.raises(AssertionError, match=r"No tensor with name act/Relu:0 found\. Anchored: it"):
            executor.getAnchoredTensor("act/Relu:0")

    def test_an_anchor_that_options_get_later_does_not_reach_the_model(self) -> None:
        options = sharded()
        executor = inference(Blocks(), options)
        options.anchorTensor("late", "act/Relu:0")
        assert "late" not in executor.options.anchored_tensors

    @pytest.mark.parametrize("names", [(1, "input"), ("a", X), ("a", None)])
    def test_names_are_strings(self, names: Any) -> None:
        with pytest.raises(AssertionError, match="must be a string"):
            quiet().anchorTensor(*names)


class TestPerformanceModel:
    def test_anchors_travel_to_the_host(self) -> None:
        def sent(options: poptorch.Options) -> float:
            return sum(traffic_of(program_of_module(options, Chain(), batch(options), training=True).step).outputs)

        # Two rows of eight float32 numbers, and an eight by eight gradient.
        watched = anchoring(trainable(), a="layers/0/Gemm:0", g="Gradient___layers.1.weight")
        assert sent(watched) - sent(trainable()) == 4 * (2 * 8 + 8 * 8)

    @pytest.mark.parametrize("name", ["layers.0.weight", "input", "UpdatedVar___layers.0.weight", "Gradient___loss"])
    def test_every_kind_of_tensor_can_be_modelled(self, name: str) -> None:
        profile = ipu_model.profile_module(Chain(), batch(trainable()), anchoring(trainable(), it=name), training=True)
        assert profile.fits

    def test_performance_counters_are_those_of_forwards_own_results(self) -> None:
        def outputs(options: poptorch.Options) -> int:
            executor = training(Blocks(), options)
            executor(X, Y)
            return len(executor.getPerfCounters()["output"])

        assert outputs(anchoring(sharded(), a="act/Relu:0")) == outputs(sharded()) == 2
